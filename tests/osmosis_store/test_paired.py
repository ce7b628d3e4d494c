"""Statistics of pairs, against values that others published or that were worked by hand."""

from __future__ import annotations

import math
import random
import time
from fractions import Fraction

import pytest

from osmosis_store.paired import mcnemar_exact, mean_shift

# Student, "The probable error of a mean", Biometrika 6 (1908): hours of sleep gained by the same
# ten patients with each of two drugs; R's dataset `sleep`, in its documentation t = 4.0621.
FIRST_DRUG = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
SECOND_DRUG = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)


@pytest.mark.parametrize(
    ("one_way", "other_way", "p"),
    [
        # A. Agresti, Categorical Data Analysis: approval of the prime minister, asked twice;
        # the p-value is that of R's exact2x2::mcnemar.exact in its vignette.
        (150, 86, pytest.approx(3.716e-05, rel=2e-4)),
        # The example in the documentation of exact2x2::mcnemar.exact.
        (9, 2, pytest.approx(0.06543, abs=5e-6)),
        # The second example of Wikipedia's "McNemar's test", exact binomial.
        (6, 16, pytest.approx(0.0525, abs=5e-5)),
        (3, 0, 0.25),
        (0, 1, 1.0),
        (4, 4, 1.0),
        (0, 0, 1.0),
    ],
)
def test_mcnemars_exact_test_gives_the_published_values(
    one_way: int, other_way: int, p: object
) -> None:
    assert mcnemar_exact(one_way, other_way) == p
    assert mcnemar_exact(other_way, one_way) == p


@pytest.mark.parametrize(("one_way", "other_way"), [(1, 7), (30, 45), (200, 260), (499, 500)])
def test_mcnemars_exact_test_is_the_whole_sum(one_way: int, other_way: int) -> None:
    flips = one_way + other_way
    tail = sum(math.comb(flips, k) for k in range(min(one_way, other_way) + 1))

    expected = min(float(Fraction(2 * tail, 2**flips)), 1.0)
    assert mcnemar_exact(one_way, other_way) == pytest.approx(expected, rel=1e-12)


def test_mcnemars_exact_test_takes_any_number_of_flips() -> None:
    began = time.monotonic()

    assert mcnemar_exact(0, 100_000) == 0.0
    # by the normal approximation with continuity correction: z = (400 - 1) / sqrt(100,000)
    normal = math.erfc(399 / math.sqrt(100_000) / math.sqrt(2))
    assert mcnemar_exact(50_200, 49_800) == pytest.approx(normal, rel=1e-4)
    assert time.monotonic() - began < 10


def test_the_shift_of_students_sleepers_is_the_published_one() -> None:
    differences = [second - first for first, second in zip(FIRST_DRUG, SECOND_DRUG, strict=True)]

    found = mean_shift(differences, range(10))

    assert found.mean == pytest.approx(1.58)
    assert found.standard_error is not None
    assert found.mean / found.standard_error == pytest.approx(4.0621, abs=5e-5)
    assert (found.clustered, found.cluster_count) == (False, 10)
    # 95 % by the central limit theorem: 1.959964 standard errors to either side
    assert found.low == pytest.approx(1.58 - 1.959964 * 1.58 / 4.062128, abs=1e-6)
    assert found.high == pytest.approx(1.58 + 1.959964 * 1.58 / 4.062128, abs=1e-6)


@pytest.mark.parametrize(
    ("differences", "clusters", "squared_error"),
    [
        # Miller 2024 (arXiv:2411.00640), by hand. Mean 1/2, deviations ±1/2: s²/n = (1/3)/4; the
        # pairs of one cluster: 2·(1/4) + 2·(1/4) = 1, over n² = 16.
        ([1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1], 1 / 12 + 1 / 16),
        # Mean 1/3, sum of squared deviations 10/3: s²/n = 1/9; sums by cluster 1/3, -2/3, 1/3:
        # their squares less 10/3 are -8/3, over n² = 36.
        ([1.0, 0.0, -1.0, 1.0, 0.0, 1.0], [7, 7, 8, 8, 9, 9], 1 / 9 - 2 / 27),
        # Clusters of two sizes. Mean 1, deviations 1, 1, -2: s²/n = 3/3; 2·(1·1) over n² = 9.
        ([2.0, 2.0, -1.0], ["a", "a", "b"], 1 + 2 / 9),
    ],
)
def test_pairs_of_one_cluster_are_taken_together_by_millers_formula(
    differences: list[float], clusters: list[object], squared_error: float
) -> None:
    found = mean_shift(differences, clusters)

    assert found.clustered
    assert found.standard_error == pytest.approx(math.sqrt(squared_error))


def test_repeating_each_pair_does_not_make_the_mean_more_certain() -> None:
    rng = random.Random(7)
    once = [rng.gauss(0.1, 1.0) for _ in range(400)]

    alone = mean_shift(once, range(400))
    repeated = mean_shift([one for one in once for _ in range(5)], [at // 5 for at in range(2000)])
    careless = mean_shift([one for one in once for _ in range(5)], range(2000))

    assert alone.standard_error is not None
    assert repeated.standard_error == pytest.approx(alone.standard_error, rel=0.005)
    assert careless.standard_error == pytest.approx(alone.standard_error / math.sqrt(5), rel=0.005)


@pytest.mark.parametrize(("differences", "clusters"), [([0.5], [0]), ([0.5, 1.0], [0, 0])])
def test_one_pair_or_one_cluster_tells_no_error(
    differences: list[float], clusters: list[int]
) -> None:
    found = mean_shift(differences, clusters)

    assert found.mean == pytest.approx(sum(differences) / len(differences))
    assert (found.standard_error, found.low, found.high) == (None, None, None)


def test_pairs_that_all_moved_alike_leave_no_doubt() -> None:
    found = mean_shift([0.1] * 6, [0, 0, 1, 1, 2, 2])

    assert found.standard_error == pytest.approx(0.0, abs=1e-15)
