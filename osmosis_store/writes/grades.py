"""The grade ledger: grading runs and their grades, which are only ever added."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import chain_digest, to_json_text
from osmosis_store.errors import SampleNotFound
from osmosis_store.records import NewGrade, NewGradingRun
from osmosis_store.schema import grades, grading_runs, samples
from osmosis_store.statements import (
    bind_rows,
    insert_if_absent,
    run_rows,
    to_driver_time,
    values_of_rows,
)
from osmosis_store.writes.audit import append_audit
from osmosis_store.writes.heads import is_same_sample

__all__ = ["append_grades", "end_grading_run", "ensure_grading_run"]

_KEY_COLUMNS = (samples.c.rollout_id, samples.c.sample_id)
_ADVANCED_COLUMNS = (*_KEY_COLUMNS, samples.c.grade_count, samples.c.grade_chain_head)
_NEW_COLUMNS = tuple(grades.c)


class _Head(NamedTuple):
    """What a sample's next grade goes on from."""

    items_head: bytes
    grade_no: int
    chain: bytes


@functools.cache
def _lock_heads_statement(size: int) -> sa.Executable:
    wanted = values_of_rows("wanted", size, *_KEY_COLUMNS)
    return (
        sa.select(
            *_KEY_COLUMNS, samples.c.chain_head, samples.c.grade_count, samples.c.grade_chain_head
        )
        .join(wanted, is_same_sample(wanted))
        .order_by(*_KEY_COLUMNS)
        .with_for_update(of=samples)
    )


@functools.cache
def _insert_statement(size: int) -> sa.Executable:
    return sa.insert(grades).values(bind_rows(size, *_NEW_COLUMNS))


@functools.cache
def _advance_heads_statement(size: int) -> sa.Executable:
    grown = values_of_rows("grown", size, *_ADVANCED_COLUMNS)
    return (
        sa.update(samples)
        .where(is_same_sample(grown))
        .values(grade_count=grown.c.grade_count, grade_chain_head=grown.c.grade_chain_head)
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
    grading_run_id: str,
    new: Mapping[str, Sequence[NewGrade]],
    *,
    now: dt.datetime,
) -> None:
    """Add grades to samples, by rollout id, and count them in the grading run.

    Raises:
        SampleNotFound: One of the samples is not stored; none of the grades is then.
    """
    keys = sorted({(name, grade.sample_id) for name, of_one in new.items() for grade in of_one})
    heads = {
        (row[0], row[1]): _Head(bytes(row[2]), row[3], bytes(row[4]))
        for row in run_rows(tx, _lock_heads_statement, keys)
    }
    at = to_driver_time(tx, now)
    rows: list[tuple[Any, ...]] = []
    failed = 0
    for rollout_id, of_one in new.items():
        for grade in of_one:
            key = (rollout_id, grade.sample_id)
            head = heads.get(key)
            if head is None:
                raise SampleNotFound(*key, sorted(name for one, name in heads if one == rollout_id))
            values = _to_row(rollout_id, grading_run_id, grade, head.items_head)
            digest = chain_digest(head.chain, head.grade_no, _grade_digest(values, now))
            values.update(grade_no=head.grade_no, chain_digest=digest, created_at=at)
            rows.append(tuple([values[column.name] for column in _NEW_COLUMNS]))
            heads[key] = head._replace(grade_no=head.grade_no + 1, chain=digest)
            failed += grade.error is not None
    if not rows:
        return
    run_rows(tx, _insert_statement, rows)
    run_rows(
        tx, _advance_heads_statement, [(*key, *head[1:]) for key, head in sorted(heads.items())]
    )
    tx.execute(
        sa.update(grading_runs)
        .where(grading_runs.c.grading_run_id == grading_run_id)
        .values(
            graded_count=grading_runs.c.graded_count + len(rows) - failed,
            failed_count=grading_runs.c.failed_count + failed,
        )
    )


def _to_row(
    rollout_id: str, grading_run_id: str, grade: NewGrade, items_head: bytes
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
    }


def _grade_digest(values: dict[str, Any], now: dt.datetime) -> bytes:
    """Return the digest over everything that a grade says, in the order of its columns."""
    head = values["chain_head"].hex()
    plain = {**values, "chain_head": head, "created_at": now.isoformat()}
    return sha256(to_json_text(plain).encode()).digest()


def end_grading_run(
    tx: Connection,
    grading_run_id: str,
    *,
    now: dt.datetime,
    skipped_count: int = 0,
    connections_allowed: int = 0,
    connections_refused: int = 0,
) -> None:
    """Mark a grading run as ended and add what this pass of it counted."""
    added = {
        "skipped_count": skipped_count,
        "connections_allowed": connections_allowed,
        "connections_refused": connections_refused,
    }
    tx.execute(
        sa.update(grading_runs)
        .where(grading_runs.c.grading_run_id == grading_run_id)
        .values(
            ended_at=now, **{name: grading_runs.c[name] + count for name, count in added.items()}
        )
    )
    append_audit(tx, "grading_run.ended", now=now, detail={"grading_run_id": grading_run_id})
