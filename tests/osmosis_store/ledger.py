"""Rows for tests of grades and views: rollouts, samples and grading runs, written directly."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection

from osmosis_store.database import Database
from osmosis_store.records import GradingKind, NewGrade, NewGradingRun, SampleKey
from osmosis_store.writes.grades import append_grades, ensure_grading_run
from osmosis_store.writes.rollouts import insert_rollout
from osmosis_store.writes.samples import ensure_sample


def add_rollout(database: Database, rollout_id: str, *sample_ids: str, **values: Any) -> None:
    """Store a rollout, a success unless the values say otherwise, with empty samples."""
    row = {"rollout_id": rollout_id, "status": "success", **values}

    def write(tx: Connection) -> None:
        insert_rollout(tx, row, now=database.clock())
        for sample_id in sample_ids:
            ensure_sample(tx, SampleKey(rollout_id, sample_id), now=database.clock())

    database.write_now(write)


def add_grades(
    database: Database,
    grading_run_id: str,
    rollout_id: str,
    *grades: NewGrade,
    grader: str = "graders:Lenient",
    kind: GradingKind = "regrade",
    code_digest: str | None = None,
) -> None:
    """Store grades of one rollout under a grading run, begun if it is new."""
    digest = code_digest or f"digest of {grader}"
    run = NewGradingRun(kind=kind, grader=grader, code_digest=digest)

    def write(tx: Connection) -> None:
        now = database.clock()
        ensure_grading_run(tx, grading_run_id, run, versions={}, now=now)
        append_grades(tx, grading_run_id, {rollout_id: grades}, now=now)

    database.write_now(write)
