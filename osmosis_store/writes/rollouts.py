"""Rollouts, eval runs and what a rollout ends with."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.errors import LeaseLost, RolloutExists, RolloutNotFound
from osmosis_store.schema import eval_runs, rollouts, samples
from osmosis_store.statements import insert_if_absent
from osmosis_store.writes.audit import append_audit

__all__ = [
    "finish_rollout",
    "hold_eval_run",
    "insert_eval_run",
    "insert_rollout",
    "order_samples",
    "set_extra_fields",
]


def insert_rollout(tx: Connection, values: dict[str, Any], *, now: dt.datetime) -> None:
    """Add a rollout.

    Args:
        values: Columns of `rollouts`; JSON ones as text.

    Raises:
        RolloutExists: The id is taken.
    """
    added = tx.execute(insert_if_absent(rollouts), {"started_at": now, **values}).rowcount
    if not added:
        raise RolloutExists(values["rollout_id"])
    append_audit(
        tx,
        "rollout.started",
        now=now,
        rollout_id=values["rollout_id"],
        detail={"status": values["status"]},
    )


def finish_rollout(
    tx: Connection,
    rollout_id: str,
    *,
    status: str,
    now: dt.datetime,
    worker_id: str,
    lease_epoch: int,
    error_category: str | None = None,
    error_message: str | None = None,
    error_traceback: str | None = None,
) -> None:
    """End a rollout that this worker holds.

    Raises:
        LeaseLost: Another worker has taken it over.
        RolloutNotFound
    """
    held = sa.and_(
        rollouts.c.rollout_id == rollout_id,
        rollouts.c.worker_id == worker_id,
        rollouts.c.lease_epoch == lease_epoch,
    )
    changed = tx.execute(
        sa.update(rollouts)
        .where(held)
        .values(
            status=status,
            ended_at=now,
            error_category=error_category,
            error_message=error_message,
            error_traceback=error_traceback,
        )
    ).rowcount
    if not changed:
        known = sa.select(rollouts.c.rollout_id).where(rollouts.c.rollout_id == rollout_id)
        if tx.execute(known).one_or_none() is None:
            raise RolloutNotFound(rollout_id)
        raise LeaseLost(rollout_id)
    append_audit(tx, "rollout.ended", now=now, rollout_id=rollout_id, detail={"status": status})


def order_samples(tx: Connection, rollout_id: str, sample_ids: Sequence[str]) -> None:
    """Number a rollout's samples in the given order, any others behind them."""
    found = tx.execute(
        sa.select(samples.c.sample_id, samples.c.sample_no)
        .where(samples.c.rollout_id == rollout_id)
        .order_by(samples.c.sample_no)
    ).all()
    rank = {sample_id: at for at, sample_id in enumerate(sample_ids)}
    ordered = sorted(found, key=lambda row: (rank.get(row[0], len(rank)), row[1]))
    for number, (sample_id, sample_no) in enumerate(ordered):
        if number != sample_no:
            tx.execute(
                sa.update(samples)
                .where(samples.c.rollout_id == rollout_id, samples.c.sample_id == sample_id)
                .values(sample_no=number)
            )


def set_extra_fields(tx: Connection, rollout_id: str, sample_id: str, extra_fields: str) -> None:
    """Keep what a sample source adds to a sample, a JSON object as text."""
    tx.execute(
        sa.update(samples)
        .where(samples.c.rollout_id == rollout_id, samples.c.sample_id == sample_id)
        .values(extra_fields=extra_fields)
    )


def insert_eval_run(tx: Connection, values: dict[str, Any], *, now: dt.datetime) -> None:
    """Add an eval run; `values` are columns of `eval_runs`, JSON ones as text."""
    tx.execute(sa.insert(eval_runs), {"started_at": now, **values})
    append_audit(
        tx,
        "eval_run.started",
        now=now,
        detail={"eval_run_id": values["eval_run_id"], "config_path": values["config_path"]},
    )


def hold_eval_run(
    tx: Connection, eval_run_id: str, *, worker_id: str | None, ended_at: dt.datetime | None = None
) -> None:
    """Set who holds an eval run; None: nobody."""
    tx.execute(
        sa.update(eval_runs)
        .where(eval_runs.c.eval_run_id == eval_run_id)
        .values(worker_id=worker_id, ended_at=ended_at)
    )
