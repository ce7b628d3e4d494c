"""The grade ledger: grading runs and their grades, which are only ever added."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import chain_digest, to_json_text
from osmosis_store.errors import SampleNotFound
from osmosis_store.records import NewGrade, NewGradingRun
from osmosis_store.schema import grades, grading_runs, samples
from osmosis_store.statements import insert_if_absent
from osmosis_store.writes.audit import append_audit

__all__ = ["append_grades", "end_grading_run", "ensure_grading_run"]

_SELECT_HEADS = (
    sa.select(
        samples.c.sample_id, samples.c.chain_head, samples.c.grade_count, samples.c.grade_chain_head
    )
    .where(
        samples.c.rollout_id == sa.bindparam("rollout_id"),
        samples.c.sample_id.in_(sa.bindparam("sample_ids", expanding=True)),
    )
    .order_by(samples.c.sample_id)
    .with_for_update()
)
_ADVANCE_HEADS = (
    sa.update(samples)
    .where(
        samples.c.rollout_id == sa.bindparam("key_rollout_id"),
        samples.c.sample_id == sa.bindparam("key_sample_id"),
    )
    .values(
        grade_count=sa.bindparam("grade_count"), grade_chain_head=sa.bindparam("grade_chain_head")
    )
)


def ensure_grading_run(
    tx: Connection,
    grading_run_id: str,
    run: NewGradingRun,
    *,
    versions: dict[str, Any],
    now: dt.datetime,
) -> None:
    """Add a grading run that begins now, unless it is there already."""
    added = tx.execute(
        insert_if_absent(grading_runs),
        {
            "grading_run_id": grading_run_id,
            "eval_run_id": run.eval_run_id,
            "kind": run.kind,
            "grader": run.grader,
            "code_digest": run.code_digest,
            "code_covers": to_json_text(list(run.code_covers)),
            "config": None if run.config is None else to_json_text(run.config),
            "author": run.author,
            "reason": run.reason,
            "selection": None if run.selection is None else to_json_text(run.selection),
            "versions": to_json_text(versions),
            "started_at": now,
        },
    ).rowcount
    if added:
        append_audit(
            tx,
            "grading_run.started",
            now=now,
            author=run.author,
            reason=run.reason,
            detail={"grading_run_id": grading_run_id, "kind": run.kind, "grader": run.grader},
        )


def append_grades(
    tx: Connection,
    rollout_id: str,
    grading_run_id: str,
    new: Sequence[NewGrade],
    *,
    now: dt.datetime,
) -> None:
    """Add one grade to each of some samples of one rollout and count them in the grading run.

    Raises:
        SampleNotFound: One of the samples is not stored; none of the grades is then.
    """
    sample_ids = [grade.sample_id for grade in new]
    rows = tx.execute(_SELECT_HEADS, {"rollout_id": rollout_id, "sample_ids": sample_ids})
    heads = {row[0]: (row[1], row[2], row[3]) for row in rows}
    added, advanced = [], []
    for grade in new:
        if grade.sample_id not in heads:
            raise SampleNotFound(rollout_id, grade.sample_id, sorted(heads))
        items_head, grade_no, previous = heads[grade.sample_id]
        values = _to_row(rollout_id, grading_run_id, grade, items_head, now)
        digest = chain_digest(previous, grade_no, _grade_digest(values))
        heads[grade.sample_id] = (items_head, grade_no + 1, digest)
        added.append({**values, "grade_no": grade_no, "chain_digest": digest})
        advanced.append(
            {
                "key_rollout_id": rollout_id,
                "key_sample_id": grade.sample_id,
                "grade_count": grade_no + 1,
                "grade_chain_head": digest,
            }
        )
    if not added:
        return
    tx.execute(sa.insert(grades), added)
    tx.execute(_ADVANCE_HEADS, advanced)
    _count(tx, grading_run_id, new)


def _to_row(
    rollout_id: str, grading_run_id: str, grade: NewGrade, items_head: bytes, now: dt.datetime
) -> dict[str, Any]:
    return {
        "rollout_id": rollout_id,
        "sample_id": grade.sample_id,
        "grading_run_id": grading_run_id,
        # as the column gives it back, for the digest: a float, without a sign on zero
        "reward": None if grade.reward is None else float(grade.reward) + 0.0,
        "error": grade.error,
        "removed": grade.removed,
        "metrics": None if grade.metrics is None else to_json_text(grade.metrics),
        "explanation": grade.explanation,
        "label": grade.label,
        "chain_head": items_head if grade.graded_head is None else grade.graded_head,
        "created_at": now,
    }


def _grade_digest(values: dict[str, Any]) -> bytes:
    """Return the digest over everything that a grade says, in the order of its columns."""
    plain = {
        name: value.hex()
        if isinstance(value, bytes)
        else value.isoformat()
        if isinstance(value, dt.datetime)
        else value
        for name, value in values.items()
    }
    return sha256(to_json_text(plain).encode()).digest()


def _count(tx: Connection, grading_run_id: str, new: Sequence[NewGrade]) -> None:
    failed = sum(grade.error is not None for grade in new)
    tx.execute(
        sa.update(grading_runs)
        .where(grading_runs.c.grading_run_id == grading_run_id)
        .values(
            graded_count=grading_runs.c.graded_count + len(new) - failed,
            failed_count=grading_runs.c.failed_count + failed,
        )
    )


def end_grading_run(
    tx: Connection,
    grading_run_id: str,
    *,
    skipped_count: int,
    now: dt.datetime,
) -> None:
    """Mark a grading run as ended."""
    tx.execute(
        sa.update(grading_runs)
        .where(grading_runs.c.grading_run_id == grading_run_id)
        .values(skipped_count=skipped_count, ended_at=now)
    )
    append_audit(tx, "grading_run.ended", now=now, detail={"grading_run_id": grading_run_id})
