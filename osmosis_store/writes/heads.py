"""Holding rollouts and samples against other writers; the heads of samples."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import decode_body
from osmosis_store.records import SampleKey
from osmosis_store.schema import rollouts, samples
from osmosis_store.statements import (
    bind_rows,
    read_pragma,
    run_compiled,
    run_rows,
    values_of_rows,
)

__all__ = ["Head", "KnownHeads", "advance_heads", "is_same_sample", "lock_heads", "lock_rollout"]

Head: TypeAlias = tuple[int, bytes]
"""A sample's item count, which is its next position, and its chain head."""

_MOST_KNOWN = 10_000

_LOCK_ROLLOUT = (
    sa.select(rollouts.c.status)
    .where(rollouts.c.rollout_id == sa.bindparam("rollout_id"))
    .with_for_update()
)
_KEY_COLUMNS = (samples.c.rollout_id, samples.c.sample_id)
_HEAD_COLUMNS = (*_KEY_COLUMNS, samples.c.item_count, samples.c.chain_head)
_GROWN_COLUMNS = (
    samples.c.item_count,
    samples.c.chain_head,
    samples.c.updated_at,
    *_KEY_COLUMNS,
)


@functools.cache
def _lock_heads_statement(size: int) -> sa.Executable:
    """Hold samples in the order of their keys, so that two writers do not deadlock."""
    wanted = values_of_rows("wanted", size, *_KEY_COLUMNS)
    return (
        sa.select(*_HEAD_COLUMNS)
        .join(wanted, is_same_sample(wanted))
        .order_by(*_KEY_COLUMNS)
        .with_for_update(of=samples)
    )


@functools.cache
def _select_heads_as_json(size: int) -> sa.Executable:
    """Ask SQLite, whose one writer holds everything already, for all heads as one row."""
    wanted = values_of_rows("wanted", size, *_KEY_COLUMNS)
    *facts, head = _HEAD_COLUMNS
    row = sa.func.json_array(*facts, sa.func.hex(head))
    return sa.select(sa.func.json_group_array(row)).select_from(
        sa.join(wanted, samples, is_same_sample(wanted))
    )


@functools.cache
def _advance_heads_statement(size: int) -> sa.Executable:
    if size == 1:  # by key, which is quicker than by a join with one row
        [new] = bind_rows(1, *_GROWN_COLUMNS)
        by_key = [column == new.pop(column.name) for column in _KEY_COLUMNS]
        return sa.update(samples).values(new).where(*by_key)
    grown = values_of_rows("grown", size, *_GROWN_COLUMNS)
    return (
        sa.update(samples)
        .where(is_same_sample(grown))
        .values({name: grown.c[name] for name in ("item_count", "chain_head", "updated_at")})
    )


def is_same_sample(rows: sa.CTE) -> sa.ColumnElement[bool]:
    """Return the condition under which a sample is the one that such a row names."""
    return sa.and_(
        samples.c.rollout_id == rows.c.rollout_id, samples.c.sample_id == rows.c.sample_id
    )


def lock_heads(tx: Connection, wanted: set[SampleKey]) -> dict[SampleKey, Head]:
    """Hold samples against other writers until the transaction ends; return count and head."""
    keys = sorted(wanted)
    if tx.dialect.name == "postgresql":
        rows = run_rows(tx, _lock_heads_statement, keys)
        return {SampleKey(row[0], row[1]): (row[2], row[3]) for row in rows}
    found = run_rows(tx, _select_heads_as_json, keys)
    return {
        SampleKey(row[0], row[1]): (row[2], bytes.fromhex(row[3]))
        for (text,) in found
        for row in decode_body(text)
    }


class KnownHeads:
    """Heads that a writer's connection knows from its own appends, so as not to ask again.

    They hold while nobody else has written to the file, which SQLite says for next to nothing. On
    PostgreSQL they are asked for and held each time.
    """

    def __init__(self) -> None:
        self._heads: dict[SampleKey, Head] = {}
        self._data_version: int | None = None

    def lock(self, tx: Connection, wanted: set[SampleKey]) -> dict[SampleKey, Head]:
        """Do what `lock_heads` does; what the caller changes in the answer is known next time."""
        if tx.dialect.name == "postgresql":
            return lock_heads(tx, wanted)
        data_version = read_pragma(tx, "data_version")
        if data_version != self._data_version or len(self._heads) > _MOST_KNOWN:
            self.forget()
            self._data_version = data_version
        if unknown := wanted - self._heads.keys():
            self._heads.update(lock_heads(tx, unknown))
        return self._heads

    def find(self, sample: SampleKey | None) -> tuple[SampleKey, Head] | None:
        """Return a sample with its head; None where it is not known."""
        head = None if sample is None else self._heads.get(sample)
        return None if sample is None or head is None else (sample, head)

    def forget(self) -> None:
        """Ask again next time: the connection was used otherwise, or a transaction failed."""
        self._heads.clear()


def advance_heads(tx: Connection, heads: Mapping[SampleKey, Head], *, updated_at: Any) -> None:
    """Set samples' item counts and chain heads; the time is the driver's."""
    rows = [(*head, updated_at, *sample) for sample, head in heads.items()]  # as _GROWN_COLUMNS
    run_rows(tx, _advance_heads_statement, rows)


def lock_rollout(tx: Connection, rollout_id: str) -> str | None:
    """Hold a rollout against other writers and return its status; None when there is none."""
    row = run_compiled(tx, _LOCK_ROLLOUT, {"rollout_id": rollout_id}).fetchone()
    return None if row is None else str(row[0])
