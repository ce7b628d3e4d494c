"""What is left to do of an eval run: which attempts to run and which stored rollouts to grade."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from osmosis_ai.eval.dataset import DatasetRow
from osmosis_ai.rollout.recording import StoredRollout

__all__ = ["Plan", "Slot", "is_gradable", "make_plan", "pick_newest"]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One attempt at one row that is to run, as its `retry_no`-th retry."""

    row: DatasetRow
    attempt: int
    retry_no: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of one `osmosis eval run`, in row order.

    Attributes:
        to_run: Attempts without a finished rollout.
        to_grade: Finished rollouts that the current grader has yet to grade.
        reused_count: Finished rollouts that are not run again, those to grade among them.
    """

    to_run: list[Slot]
    to_grade: list[StoredRollout]
    reused_count: int


def pick_newest(
    stored: Iterable[StoredRollout], rows: Sequence[DatasetRow], n: int
) -> dict[tuple[int, int], StoredRollout]:
    """Return the last retry of each selected row and attempt."""
    selected = {row.index for row in rows}
    newest: dict[tuple[int, int], StoredRollout] = {}
    for rollout in sorted(stored, key=lambda rollout: rollout.retry_no):
        if rollout.row_index in selected and rollout.attempt < n:
            newest[rollout.row_index, rollout.attempt] = rollout
    return newest


def make_plan(
    stored: Iterable[StoredRollout],
    rows: Sequence[DatasetRow],
    *,
    n: int,
    retry_failed: bool,
    has_grader: bool,
) -> Plan:
    """Decide what to run and what to grade.

    A rollout that succeeded is finished, and so is one that failed unless `retry_failed`. One
    that crashed, was cancelled or still claims to run without a worker is run again.

    Args:
        n: Attempts per row.
        retry_failed: Run failed rollouts again, and grade those again whose grading failed.
    """
    newest = pick_newest(stored, rows, n)
    finished = ("success",) if retry_failed else ("success", "failure")
    to_run = []
    for row in rows:
        for attempt in range(n):
            last = newest.get((row.index, attempt))
            if last is None or last.status not in finished:
                retry_no = 0 if last is None else last.retry_no + 1
                to_run.append(Slot(row=row, attempt=attempt, retry_no=retry_no))
    to_grade = [
        rollout
        for _, rollout in sorted(newest.items())
        if has_grader and _lacks_grade(rollout, retry_failed=retry_failed)
    ]
    return Plan(to_run=to_run, to_grade=to_grade, reused_count=len(rows) * n - len(to_run))


def is_gradable(rollout: StoredRollout) -> bool:
    """Return whether a grader is asked about it: it succeeded, with a label or metadata."""
    has_input = rollout.label is not None or rollout.metadata is not None
    return rollout.status == "success" and has_input


def _lacks_grade(rollout: StoredRollout, *, retry_failed: bool) -> bool:
    if not is_gradable(rollout):
        return False
    grades = [rollout.grades.get(sample_id) for sample_id in rollout.sample_ids]
    return any(grade is None or (retry_failed and grade.error is not None) for grade in grades)
