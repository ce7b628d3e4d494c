import math
import sys

import pytest

from osmosis_ai.eval.statistics import RewardStatistics, compute_pass_at_k, compute_statistics

HUGE = sys.float_info.max


def test_rewards_are_described() -> None:
    assert compute_statistics([0.0, 2.0, 2.0, 4.0]) == RewardStatistics(
        mean=2.0, median=2.0, std=math.sqrt(2.0), min=0.0, max=4.0
    )


def test_no_rewards_have_no_statistics() -> None:
    assert compute_statistics([]) is None


@pytest.mark.parametrize(
    ("rewards", "mean", "median"),
    [
        ([HUGE, HUGE], HUGE, HUGE),
        ([HUGE, -HUGE], 0.0, 0.0),
        ([HUGE, HUGE, HUGE, HUGE * 0.5], HUGE * 0.875, HUGE),
        ([5e-324, 5e-324], 5e-324, 5e-324),
    ],
)
def test_rewards_near_the_float_limits_do_not_break_them(
    rewards: list[float], mean: float, median: float
) -> None:
    statistics = compute_statistics(rewards)

    assert statistics is not None
    assert (statistics.mean, statistics.median) == (mean, median)
    assert math.isfinite(statistics.std)


def test_pass_at_k_is_the_unbiased_estimate_for_powers_of_two_and_the_last() -> None:
    estimates = compute_pass_at_k([(6, 1), (6, 3)])

    assert list(estimates) == [1, 2, 4, 6]
    assert estimates[1] == pytest.approx((1 / 6 + 3 / 6) / 2)
    assert estimates[2] == pytest.approx(((1 - 10 / 15) + (1 - 3 / 15)) / 2)
    assert estimates[6] == 1.0


def test_a_row_with_fewer_attempts_is_left_out_where_it_says_nothing() -> None:
    estimates = compute_pass_at_k([(2, 0), (1, 1), (0, 0)])

    assert estimates == {1: 0.5, 2: 0.0}


def test_no_attempts_give_no_estimate() -> None:
    assert compute_pass_at_k([]) == {}
