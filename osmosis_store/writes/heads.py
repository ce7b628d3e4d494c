"""Holding rollouts and samples against other writers; the heads of samples."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import decode_body
from osmosis_store.records import SampleKey
from osmosis_store.schema import rollouts, samples
from osmosis_store.statements import run_compiled, run_rows, values_of_rows

__all__ = ["advance_heads", "lock_heads", "lock_rollout"]

_LOCK_ROLLOUT = (
    sa.select(rollouts.c.status)
    .where(rollouts.c.rollout_id == sa.bindparam("rollout_id"))
    .with_for_update()
)
_HEAD_COLUMNS = (
    samples.c.rollout_id,
    samples.c.sample_id,
    samples.c.item_count,
    samples.c.chain_head,
)


@functools.cache
def _lock_heads_statement(size: int) -> sa.Executable:
    """Hold samples in the order of their keys, so that two writers do not deadlock."""
    wanted = values_of_rows("wanted", size, samples.c.rollout_id, samples.c.sample_id)
    return (
        sa.select(*_HEAD_COLUMNS)
        .join(wanted, _is_same_sample(wanted))
        .order_by(samples.c.rollout_id, samples.c.sample_id)
        .with_for_update(of=samples)
    )


@functools.cache
def _select_heads_as_json(size: int) -> sa.Executable:
    """Ask SQLite, whose one writer holds everything already, for all heads as one row."""
    wanted = values_of_rows("wanted", size, samples.c.rollout_id, samples.c.sample_id)
    *facts, head = _HEAD_COLUMNS
    row = sa.func.json_array(*facts, sa.func.hex(head))
    return sa.select(sa.func.json_group_array(row)).select_from(
        sa.join(wanted, samples, _is_same_sample(wanted))
    )


@functools.cache
def _advance_heads_statement(size: int) -> sa.Executable:
    grown = values_of_rows("grown", size, *_HEAD_COLUMNS, samples.c.updated_at)
    return (
        sa.update(samples)
        .where(_is_same_sample(grown))
        .values({name: grown.c[name] for name in ("item_count", "chain_head", "updated_at")})
    )


def _is_same_sample(rows: sa.CTE) -> sa.ColumnElement[bool]:
    return sa.and_(
        samples.c.rollout_id == rows.c.rollout_id, samples.c.sample_id == rows.c.sample_id
    )


def lock_heads(tx: Connection, wanted: set[SampleKey]) -> dict[SampleKey, tuple[int, bytes]]:
    """Hold samples against other writers until the transaction ends; return count and head."""
    keys = [key._asdict() for key in sorted(wanted)]
    if tx.dialect.name == "postgresql":
        rows = run_rows(tx, _lock_heads_statement, keys)
        return {SampleKey(row[0], row[1]): (row[2], row[3]) for row in rows}
    found = run_rows(tx, _select_heads_as_json, keys)
    return {
        SampleKey(row[0], row[1]): (row[2], bytes.fromhex(row[3]))
        for (text,) in found
        for row in decode_body(text)
    }


def advance_heads(
    tx: Connection, heads: Mapping[SampleKey, tuple[int, bytes]], *, updated_at: Any
) -> None:
    """Set samples' item counts and chain heads; the time is the driver's."""
    rows = [
        {
            "rollout_id": sample.rollout_id,
            "sample_id": sample.sample_id,
            "item_count": item_count,
            "chain_head": chain_head,
            "updated_at": updated_at,
        }
        for sample, (item_count, chain_head) in heads.items()
    ]
    run_rows(tx, _advance_heads_statement, rows)


def lock_rollout(tx: Connection, rollout_id: str) -> str | None:
    """Hold a rollout against other writers and return its status; None when there is none."""
    row = run_compiled(tx, _LOCK_ROLLOUT, {"rollout_id": rollout_id}).fetchone()
    return None if row is None else str(row[0])
