"""Grading stored samples again: choosing them, skipping what is settled, adding to the ledger."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from sqlalchemy.engine import Connection

from osmosis_store.database import Database
from osmosis_store.ids import new_id
from osmosis_store.queries.grades import fetch_grades, fetch_settled_samples
from osmosis_store.queries.items import fetch_samples
from osmosis_store.queries.rollouts import fetch_rollout, fetch_rollout_ids
from osmosis_store.records import NewGrade, NewGradingRun, RolloutRecord, SampleRecord, Selection
from osmosis_store.versions import package_versions
from osmosis_store.writes.grades import append_grades, end_grading_run, ensure_grading_run

__all__ = ["GradedRollout", "RegradeReport", "regrade_rollouts"]


@dataclass(frozen=True)
class GradedRollout:
    """What a grader said of one rollout's samples, and how often it tried to call the policy."""

    grades: Sequence[NewGrade]
    policy_calls_refused: int = 0


GradeRollout: TypeAlias = Callable[[RolloutRecord], Awaitable[GradedRollout]]


@dataclass(frozen=True, kw_only=True)
class RegradeReport:
    """What a regrade did.

    Attributes:
        grading_run_id: None when there was nothing to grade: then no grading run is stored.
        sample_count: Samples that were selected; each is graded, failed or skipped.
        skipped_count: The same grader has graded these very items with this label already, or
            the rollout still runs.
        removed_count: Of the graded ones, those that the grader takes out of every aggregate.
        mean_before: Over the samples graded now, of their newest grade before; None: there is
            none. `mean_after`: of the grades given now.
        passed_to_failed: How many crossed the pass threshold downwards; `failed_to_passed`: up.
        policy_calls: Always 0: while a grader runs, the policy refuses.
        policy_calls_refused: How often a grader tried.
        failures: Rollout id, sample id and error of each sample that got no reward.
    """

    grading_run_id: str | None
    grader: str
    code_digest: str | None
    sample_count: int
    graded_count: int
    failed_count: int
    skipped_count: int
    removed_count: int
    mean_before: float | None
    mean_after: float | None
    passed_to_failed: int
    failed_to_passed: int
    policy_calls: int
    policy_calls_refused: int
    duration_s: float
    failures: list[tuple[str, str, str]]


@dataclass
class _Tally:
    pass_threshold: float
    sample_count: int = 0
    skipped_count: int = 0
    removed_count: int = 0
    refused: int = 0
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    flips: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    graded_count: int = 0
    failures: list[tuple[str, str, str]] = field(default_factory=list)

    def count(self, rollout_id: str, graded: GradedRollout, earlier: dict[str, float]) -> None:
        self.refused += graded.policy_calls_refused
        for grade in graded.grades:
            if grade.error is not None:
                self.failures.append((rollout_id, grade.sample_id, grade.error))
                continue
            self.graded_count += 1
            if grade.removed or grade.reward is None:
                self.removed_count += 1
                continue
            self.after.append(grade.reward)
            if (before := earlier.get(grade.sample_id)) is not None:
                self.before.append(before)
                passes = grade.reward >= self.pass_threshold
                if passes != (before >= self.pass_threshold):
                    self.flips[passes] += 1


async def regrade_rollouts(
    database: Database,
    run: NewGradingRun,
    grade: GradeRollout,
    *,
    selection: Selection,
    force: bool = False,
    concurrency: int = 8,
    pass_threshold: float = 1.0,
    on_progress: Callable[[int, int], None] | None = None,
) -> RegradeReport:
    """Grade the selected rollouts and add their grades under one new grading run.

    Every grade is on disk as soon as it is given; one that fails is a grade with an error and
    ends nothing.

    Args:
        grade: Grades the samples of one rollout and does not raise for what a grader does.
        force: Also grade what this very grader has graded already.
        concurrency: How many rollouts are graded at once.
        on_progress: Called with the rollouts done and all of them.
    """
    began = time.monotonic()
    rollout_ids = await database.read(partial(fetch_rollout_ids, selection=selection))
    run_id, now = new_id("g_"), database.clock()
    await database.write(
        partial(
            ensure_grading_run, grading_run_id=run_id, run=run, versions=package_versions(), now=now
        )
    )
    tally = _Tally(pass_threshold)
    waiting, done = iter(rollout_ids), 0

    async def work() -> None:
        nonlocal done
        for rollout_id in waiting:
            await _regrade_one(database, run, run_id, rollout_id, grade, selection, force, tally)
            done += 1
            if on_progress is not None:
                on_progress(done, len(rollout_ids))

    async with asyncio.TaskGroup() as group:
        for _ in range(max(1, min(concurrency, len(rollout_ids)))):
            group.create_task(work())
    if tally.graded_count or tally.failures:
        await database.write(
            partial(
                end_grading_run,
                grading_run_id=run_id,
                skipped_count=tally.skipped_count,
                now=database.clock(),
            )
        )
    return _to_report(run_id, run, tally, time.monotonic() - began)


async def _regrade_one(
    database: Database,
    run: NewGradingRun,
    run_id: str,
    rollout_id: str,
    grade: GradeRollout,
    selection: Selection,
    force: bool,
    tally: _Tally,
) -> None:
    digest = None if force else run.code_digest
    found = await database.read(
        partial(_fetch_work, rollout_id=rollout_id, code_digest=digest, selection=selection)
    )
    tally.sample_count += len(found.wanted)
    if found.rollout.status == "running" or not found.open:
        tally.skipped_count += len(found.wanted)
        return
    tally.skipped_count += len(found.wanted) - len(found.open)
    graded = await grade(found.rollout)
    kept = GradedRollout(
        [
            replace(one, graded_head=found.open[one.sample_id].chain_head)
            for one in graded.grades
            if one.sample_id in found.open
        ],
        graded.policy_calls_refused,
    )

    def store(tx: Connection) -> None:
        now = database.clock()
        ensure_grading_run(tx, run_id, run, versions=package_versions(), now=now)
        append_grades(tx, run_id, {rollout_id: kept.grades}, now=now)

    await database.write(store)
    tally.count(rollout_id, kept, found.earlier)


@dataclass(frozen=True)
class _Work:
    rollout: RolloutRecord
    wanted: dict[str, SampleRecord]
    open: dict[str, SampleRecord]
    earlier: dict[str, float]


def _fetch_work(
    tx: Connection, rollout_id: str, code_digest: str | None, selection: Selection
) -> _Work:
    """Return what there is to grade in a rollout: the samples meant, and those not settled yet."""
    rollout = fetch_rollout(tx, rollout_id)
    wanted = {
        sample.sample_id: sample
        for sample in fetch_samples(tx, rollout_id)
        if selection.sample in (None, sample.sample_id)
    }
    settled = (
        set()
        if code_digest is None
        else fetch_settled_samples(tx, rollout_id, code_digest=code_digest, label=rollout.label)
    )
    earlier = {
        grade.sample_id: grade.reward
        for grade in fetch_grades(tx, rollout_id=rollout_id)
        if grade.reward is not None
    }
    unsettled = {name: sample for name, sample in wanted.items() if name not in settled}
    return _Work(rollout, wanted, unsettled, earlier)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _to_report(run_id: str, run: NewGradingRun, tally: _Tally, duration_s: float) -> RegradeReport:
    return RegradeReport(
        grading_run_id=run_id if tally.graded_count or tally.failures else None,
        grader=run.grader,
        code_digest=run.code_digest,
        sample_count=tally.sample_count,
        graded_count=tally.graded_count,
        failed_count=len(tally.failures),
        skipped_count=tally.skipped_count,
        removed_count=tally.removed_count,
        mean_before=_mean(tally.before),
        mean_after=_mean(tally.after),
        passed_to_failed=tally.flips[False],
        failed_to_passed=tally.flips[True],
        policy_calls=0,
        policy_calls_refused=tally.refused,
        duration_s=duration_s,
        failures=tally.failures,
    )
