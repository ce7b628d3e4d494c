"""What tests ask of an eval run's report and of its store."""

from __future__ import annotations

from functools import partial

from osmosis_ai.eval.report import EvalReport
from osmosis_store.database import Database
from osmosis_store.queries.grades import fetch_grades, fetch_grading_runs
from osmosis_store.queries.rollouts import fetch_rollouts
from osmosis_store.records import GradeRecord, RolloutRecord, Selection


def states(report: EvalReport) -> list[str]:
    return [verdict.state for verdict in report.verdicts]


def counts(report: EvalReport) -> tuple[int, int, int]:
    """Return how many rollouts ran, were reused and, of those, were graded."""
    return report.run_count, report.reused_count, report.regraded_count


async def rollouts_of(database: Database) -> list[RolloutRecord]:
    """Return every rollout by row, attempt and retry."""
    found = await database.read(partial(fetch_rollouts, selection=Selection()))
    return sorted(found, key=lambda one: (one.row_index or 0, one.attempt, one.retry_no))


async def grades_of(database: Database) -> list[GradeRecord]:
    """Return every grade by row and grade number."""
    rows = {one.rollout_id: one.row_index or 0 for one in await rollouts_of(database)}
    found = await database.read(fetch_grades)
    return sorted(found, key=lambda one: (rows[one.rollout_id], one.sample_id, one.grade_no))


async def gradings_of(database: Database) -> list[str]:
    """Return the kinds of the grading runs, oldest first."""
    return [run.kind for run in reversed(await database.read(fetch_grading_runs))]
