"""The grade ledger as it is read: grades, grading runs, what was graded already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import decode_body
from osmosis_store.errors import GradingRunNotFound
from osmosis_store.records import GradeRecord, GradingRunRecord
from osmosis_store.schema import grades, grading_runs, rollouts, samples

__all__ = [
    "fetch_grades",
    "fetch_grading_run",
    "fetch_grading_runs",
    "fetch_newest_run_ids",
    "fetch_settled_samples",
]

_SELECT_GRADES = (
    sa.select(
        *(column for column in grades.c if column.name != "chain_digest"),
        grading_runs.c.grader,
        grading_runs.c.kind,
        grading_runs.c.code_digest,
    )
    .join(grading_runs, grading_runs.c.grading_run_id == grades.c.grading_run_id)
    .order_by(grades.c.rollout_id, grades.c.sample_id, grades.c.grade_no)
)


def fetch_grades(
    tx: Connection,
    *,
    rollout_id: str | None = None,
    rollout_ids: Sequence[str] | None = None,
    eval_run_id: str | None = None,
    grading_run_id: str | None = None,
    limit: int | None = None,
) -> list[GradeRecord]:
    """Return grades by rollout, sample and grade number.

    Args:
        rollout_id, rollout_ids, eval_run_id, grading_run_id: Only theirs; None: of all.
        limit: At most so many; None: all.
    """
    statement = _SELECT_GRADES.limit(limit)
    if rollout_id is not None:
        statement = statement.where(grades.c.rollout_id == rollout_id)
    if rollout_ids is not None:
        statement = statement.where(grades.c.rollout_id.in_(rollout_ids))
    if eval_run_id is not None:
        of_run = sa.select(rollouts.c.rollout_id).where(rollouts.c.eval_run_id == eval_run_id)
        statement = statement.where(grades.c.rollout_id.in_(of_run))
    if grading_run_id is not None:
        statement = statement.where(grades.c.grading_run_id == grading_run_id)
    return [_to_grade(row) for row in tx.execute(statement)]


def fetch_grading_runs(tx: Connection, *, limit: int | None = None) -> list[GradingRunRecord]:
    """Return grading runs, newest first."""
    rows = tx.execute(
        sa.select(grading_runs).order_by(grading_runs.c.grading_run_id.desc()).limit(limit)
    )
    return [_to_grading_run(row) for row in rows]


def fetch_newest_run_ids(tx: Connection, *, limit: int = 3) -> list[str]:
    """Return the ids of the newest grading runs, the newest first."""
    found = sa.select(grading_runs.c.grading_run_id).order_by(
        grading_runs.c.started_at.desc(), grading_runs.c.grading_run_id.desc()
    )
    return list(tx.execute(found.limit(limit)).scalars())


def fetch_grading_run(tx: Connection, grading_run_id: str) -> GradingRunRecord:
    """Return one grading run.

    Raises:
        GradingRunNotFound: Names the newest ones that there are.
    """
    row = tx.execute(
        sa.select(grading_runs).where(grading_runs.c.grading_run_id == grading_run_id)
    ).one_or_none()
    if row is None:
        raise GradingRunNotFound(grading_run_id, fetch_newest_run_ids(tx))
    return _to_grading_run(row)


def fetch_settled_samples(
    tx: Connection, rollout_id: str, *, code_digest: str, label: str | None
) -> set[str]:
    """Return the samples whose items, as they are now, this very grader has graded without error.

    Args:
        code_digest: Of the grader's code and config.
        label: The label as it is now; a grade that used another one does not count.
    """
    rows = tx.execute(
        sa.select(grades.c.sample_id)
        .join(grading_runs, grading_runs.c.grading_run_id == grades.c.grading_run_id)
        .join(
            samples,
            sa.and_(
                samples.c.rollout_id == grades.c.rollout_id,
                samples.c.sample_id == grades.c.sample_id,
                samples.c.chain_head == grades.c.chain_head,
            ),
        )
        .where(
            grades.c.rollout_id == rollout_id,
            grading_runs.c.code_digest == code_digest,
            grades.c.error.is_(None),
            grades.c.label.is_not_distinct_from(label),
        )
    )
    return {row[0] for row in rows}


def _to_grade(row: Any) -> GradeRecord:
    values = row._asdict()
    values["metrics"] = _decode(values["metrics"])
    return GradeRecord(**values)


def _to_grading_run(row: Any) -> GradingRunRecord:
    values = row._asdict()
    for name in ("config", "selection", "versions"):
        values[name] = _decode(values[name])
    values["code_covers"] = _decode(values["code_covers"]) or []
    return GradingRunRecord(**values)


def _decode(text: str | None) -> Any:
    return None if text is None else decode_body(text)
