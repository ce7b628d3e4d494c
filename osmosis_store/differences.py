"""What two grading runs say differently of the same samples."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from sqlalchemy.engine import Connection

from osmosis_store.errors import InvalidComparison, MixedGrades
from osmosis_store.paired import mcnemar_exact, mean_shift
from osmosis_store.queries.differences import GradePair, GradeSide, iterate_grade_pairs
from osmosis_store.queries.grades import fetch_grading_run
from osmosis_store.records import GradingRunRecord, Selection

__all__ = [
    "ComparedSample",
    "Flip",
    "GradesDiff",
    "MixedSample",
    "Presence",
    "compare_pairs",
    "diff_grades",
    "iterate_compared",
]

Flip: TypeAlias = Literal["pass→fail", "fail→pass"]
Presence: TypeAlias = Literal["compared", "only in A", "only in B", "error", "removed"]


@dataclass(frozen=True, kw_only=True)
class ComparedSample:
    """A sample, and what each of two grading runs says of it now.

    Attributes:
        presence: "compared" when both have a reward; else why it is not.
        shift: The second reward less the first one; None: not compared. `flip` likewise, and None
            also where it passes in both or in neither.
        mixed: Whether the two graders saw another label, or other items.
    """

    rollout_id: str
    sample_id: str
    row_index: int | None
    attempt: int
    presence: Presence
    reward_a: float | None
    reward_b: float | None
    shift: float | None
    flip: Flip | None
    mixed: bool
    error_a: str | None
    error_b: str | None


@dataclass(frozen=True, kw_only=True)
class MixedSample:
    """A sample whose two grades are not of the same: another label, or other items."""

    rollout_id: str
    sample_id: str
    labels_differ: bool
    items_differ: bool
    label_a: str | None
    label_b: str | None


@dataclass(frozen=True, kw_only=True)
class GradesDiff:
    """Two grading runs on the same samples; of a sample graded again, each run's newest grade.

    Attributes:
        a: The first grading run; `b`: the second one, which is compared with it.
        pass_threshold: A sample passes with this reward or more.
        compared_count: Samples to which both gave a reward; all figures below are over them.
        only_in_a: Samples of which only the first one has a grade, an error included.
        errors_in_a: Of the samples in both, those that the first grader failed at.
        removed_in_a: Of the samples in both, those that it takes out of every aggregate.
        mean_a, mean_b: None, as all that follows, when nothing was compared.
        mean_shift: The mean of the second reward less the first one, sample by sample.
        standard_error: Of the mean shift, by the central limit theorem; None: fewer than two
            samples, or dataset rows where it is clustered.
        interval_low, interval_high: The shift's 95 % confidence interval.
        clustered: Whether samples of one dataset row were taken together, as several attempts are
            not independent of each other.
        cluster_count: Dataset rows; where a row is not known, its rollout counts for it.
        passed_a, passed_b: How many passed.
        passed_to_failed: How many passed in the first one and not in the second one.
        mcnemar_p: McNemar's exact test on the two: how likely chance alone flips so one-sidedly,
            were the samples independent of each other.
        movers: The samples whose reward moved most, the farthest first.
        mixed: Compared all the same, as `allow_mixed` asked for it.
    """

    a: GradingRunRecord
    b: GradingRunRecord
    pass_threshold: float
    compared_count: int
    only_in_a: int
    only_in_b: int
    errors_in_a: int
    errors_in_b: int
    removed_in_a: int
    removed_in_b: int
    mean_a: float | None
    mean_b: float | None
    mean_shift: float | None
    standard_error: float | None
    interval_low: float | None
    interval_high: float | None
    clustered: bool
    cluster_count: int
    passed_a: int
    passed_b: int
    passed_to_failed: int
    failed_to_passed: int
    mcnemar_p: float | None
    improved_count: int
    worsened_count: int
    movers: list[ComparedSample]
    mixed: list[MixedSample]

    def is_regression(self, tolerance: float = 0.0) -> bool:
        """Tell whether the mean shift is below -tolerance by more than rounding can be.

        Also when nothing was compared: then nothing says that it is none.

        Raises:
            InvalidComparison: The tolerance is negative or not finite.
        """
        if not (math.isfinite(tolerance) and tolerance >= 0):
            raise InvalidComparison(f"a tolerance is a finite number from 0, not {tolerance}")
        if self.mean_shift is None:
            return True
        is_at_limit = math.isclose(self.mean_shift, -tolerance, rel_tol=1e-9, abs_tol=1e-12)
        return self.mean_shift < -tolerance and not is_at_limit


def diff_grades(
    tx: Connection,
    a: str,
    b: str,
    *,
    selection: Selection | None = None,
    allow_mixed: bool = False,
    pass_threshold: float = 1.0,
    mover_limit: int = 10,
) -> GradesDiff:
    """Compare two grading runs on the samples that both have graded.

    Args:
        a, b: Ids of grading runs.
        selection: Only these samples; None: all.
        allow_mixed: Also compare grades that saw another label, or other items.
        pass_threshold: A sample passes with this reward or more.
        mover_limit: How many of the biggest movers to name.

    Raises:
        GradingRunNotFound
        InvalidComparison: Both are the same grading run, or a number has no meaning.
        MixedGrades: Two grades saw another label or other items, and `allow_mixed` is not set.
    """
    if not math.isfinite(pass_threshold):
        raise InvalidComparison(f"a pass threshold is a finite number, not {pass_threshold}")
    if mover_limit < 0:
        raise InvalidComparison(f"there cannot be {mover_limit} movers")
    runs = fetch_grading_run(tx, a), fetch_grading_run(tx, b)
    if a == b:
        raise InvalidComparison(
            f"{a!r} would be compared with itself", hint="give two grading runs"
        )
    pairs = iterate_grade_pairs(tx, a, b, selection or Selection())
    return compare_pairs(
        *runs,
        pairs,
        allow_mixed=allow_mixed,
        pass_threshold=pass_threshold,
        mover_limit=mover_limit,
    )


def iterate_compared(
    tx: Connection, diff: GradesDiff, selection: Selection | None = None
) -> Iterator[ComparedSample]:
    """Yield every sample of a comparison, by rollout and sample, those not compared too."""
    pairs = iterate_grade_pairs(
        tx, diff.a.grading_run_id, diff.b.grading_run_id, selection or Selection()
    )
    return (_to_compared(pair, diff.pass_threshold) for pair in pairs)


def compare_pairs(
    a: GradingRunRecord,
    b: GradingRunRecord,
    pairs: Iterable[GradePair],
    *,
    allow_mixed: bool = False,
    pass_threshold: float = 1.0,
    mover_limit: int = 10,
) -> GradesDiff:
    """Compare two grading runs by their grades, one sample after the other.

    Raises:
        MixedGrades: As `diff_grades`.
    """
    tally = _Tally(pass_threshold, mover_limit)
    for pair in pairs:
        tally.count(pair)
    if tally.mixed and not allow_mixed:
        raise MixedGrades(
            a.grading_run_id,
            b.grading_run_id,
            len(tally.shifts),
            [asdict(one) for one in tally.mixed],
        )
    return tally.to_diff(a, b)


class _Tally:
    """What is kept of the samples gone by: a few numbers each, and the biggest movers."""

    def __init__(self, pass_threshold: float, mover_limit: int) -> None:
        self.pass_threshold, self.mover_limit = pass_threshold, mover_limit
        self.only = {"a": 0, "b": 0}
        self.errors = {"a": 0, "b": 0}
        self.removed = {"a": 0, "b": 0}
        self.passed = {"a": 0, "b": 0}
        self.flips: dict[Flip, int] = {"pass→fail": 0, "fail→pass": 0}
        self.rewards_a, self.rewards_b, self.shifts = array("d"), array("d"), array("d")
        self.clusters = array("q")
        self.cluster_numbers: dict[tuple[str | None, int | str], int] = {}
        self.movers: list[tuple[float, int, ComparedSample]] = []
        self.mixed: list[MixedSample] = []

    def count(self, pair: GradePair) -> None:
        if pair.a is None or pair.b is None:
            self.only["b" if pair.a is None else "a"] += 1
            return
        for name, side in (("a", pair.a), ("b", pair.b)):
            self.removed[name] += side.removed
            self.errors[name] += side.error is not None and not side.removed
        compared = _to_compared(pair, self.pass_threshold)
        if compared.shift is None or compared.reward_a is None or compared.reward_b is None:
            return
        self.rewards_a.append(compared.reward_a)
        self.rewards_b.append(compared.reward_b)
        self.passed["a"] += compared.reward_a >= self.pass_threshold
        self.passed["b"] += compared.reward_b >= self.pass_threshold
        if compared.flip is not None:
            self.flips[compared.flip] += 1
        if compared.mixed:
            self.mixed.append(_to_mixed(pair, pair.a, pair.b))
        self.clusters.append(
            self.cluster_numbers.setdefault(_cluster_of(pair), len(self.cluster_numbers))
        )
        self._keep_if_mover(compared, compared.shift)
        self.shifts.append(compared.shift)

    def _keep_if_mover(self, compared: ComparedSample, shift: float) -> None:
        entry = (abs(shift), -len(self.shifts), compared)  # of equal ones the first is kept
        if shift == 0:
            return
        if len(self.movers) < self.mover_limit:
            heapq.heappush(self.movers, entry)
        elif self.movers:
            heapq.heappushpop(self.movers, entry)

    def to_diff(self, a: GradingRunRecord, b: GradingRunRecord) -> GradesDiff:
        found = mean_shift(self.shifts, self.clusters) if self.shifts else None
        passed_to_failed, failed_to_passed = self.flips["pass→fail"], self.flips["fail→pass"]
        return GradesDiff(
            a=a,
            b=b,
            pass_threshold=self.pass_threshold,
            compared_count=len(self.shifts),
            only_in_a=self.only["a"],
            only_in_b=self.only["b"],
            errors_in_a=self.errors["a"],
            errors_in_b=self.errors["b"],
            removed_in_a=self.removed["a"],
            removed_in_b=self.removed["b"],
            mean_a=_mean(self.rewards_a),
            mean_b=_mean(self.rewards_b),
            mean_shift=None if found is None else found.mean,
            standard_error=None if found is None else found.standard_error,
            interval_low=None if found is None else found.low,
            interval_high=None if found is None else found.high,
            clustered=found is not None and found.clustered,
            cluster_count=0 if found is None else found.cluster_count,
            passed_a=self.passed["a"],
            passed_b=self.passed["b"],
            passed_to_failed=passed_to_failed,
            failed_to_passed=failed_to_passed,
            mcnemar_p=mcnemar_exact(passed_to_failed, failed_to_passed) if found else None,
            improved_count=sum(shift > 0 for shift in self.shifts),
            worsened_count=sum(shift < 0 for shift in self.shifts),
            movers=[one for *_, one in sorted(self.movers, reverse=True)],
            mixed=self.mixed,
        )


def _to_compared(pair: GradePair, pass_threshold: float) -> ComparedSample:
    reward_a, reward_b = _reward(pair.a), _reward(pair.b)
    shift: float | None = None
    flip: Flip | None = None
    if reward_a is not None and reward_b is not None:
        shift = reward_b - reward_a
        passed_before, passes_now = reward_a >= pass_threshold, reward_b >= pass_threshold
        if passed_before != passes_now:
            flip = "fail→pass" if passes_now else "pass→fail"
    return ComparedSample(
        rollout_id=pair.rollout_id,
        sample_id=pair.sample_id,
        row_index=pair.row_index,
        attempt=pair.attempt,
        presence=_presence(pair),
        reward_a=reward_a,
        reward_b=reward_b,
        shift=shift,
        flip=flip,
        mixed=pair.a is not None and pair.b is not None and _differ(pair.a, pair.b) != (False,) * 2,
        error_a=None if pair.a is None else pair.a.error,
        error_b=None if pair.b is None else pair.b.error,
    )


def _reward(side: GradeSide | None) -> float | None:
    return None if side is None or side.removed else side.reward


def _presence(pair: GradePair) -> Presence:
    if pair.a is None or pair.b is None:
        return "only in B" if pair.a is None else "only in A"
    if pair.a.removed or pair.b.removed:
        return "removed"
    return "error" if None in (pair.a.reward, pair.b.reward) else "compared"


def _differ(a: GradeSide, b: GradeSide) -> tuple[bool, bool]:
    """Return whether the labels differ, and whether the items do."""
    return a.label != b.label, a.chain_head != b.chain_head


def _to_mixed(pair: GradePair, a: GradeSide, b: GradeSide) -> MixedSample:
    labels_differ, items_differ = _differ(a, b)
    return MixedSample(
        rollout_id=pair.rollout_id,
        sample_id=pair.sample_id,
        labels_differ=labels_differ,
        items_differ=items_differ,
        label_a=a.label,
        label_b=b.label,
    )


def _cluster_of(pair: GradePair) -> tuple[str | None, int | str]:
    """Return the dataset row that a sample is of, or its rollout where no row is known."""
    if pair.row_index is None:
        return None, pair.rollout_id
    return pair.dataset, pair.row_index


def _mean(values: array[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
