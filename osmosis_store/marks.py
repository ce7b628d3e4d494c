"""Marks in transactions, by which one whose connection broke in the commit is found out about."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.records import SampleKey
from osmosis_store.schema import items, writer_batches
from osmosis_store.statements import insert_if_absent, run_compiled
from osmosis_store.writes.heads import Head

__all__ = ["Marks", "Question"]

Question: TypeAlias = Callable[[Connection], bool | None]
"""Asks, on a new connection, whether the transaction took effect; None: nobody can tell yet."""


class Marks:
    """What one writer leaves in its transactions."""

    def __init__(self) -> None:
        self._writer_id = uuid.uuid4().hex
        self._batch_no = 0

    def prepare(self, tx: Connection) -> None:
        """Add the row that marks are left in; on a new connection."""
        if tx.dialect.name == "sqlite":
            row = {"writer_id": self._writer_id, "batch_no": self._batch_no}
            tx.execute(insert_if_absent(writer_batches), row)

    def leave(self, tx: Connection, appended: tuple[SampleKey, Head] | None) -> Question:
        """Mark the transaction, which is about to be committed.

        Args:
            appended: A sample that it appends to and the head that it gets. Its newest item, whose
                chain digest no other item ever has, is mark enough for SQLite.
        """
        if tx.dialect.name == "postgresql":
            xact_id = run_compiled(tx, _SELECT_XACT_ID, {}).fetchone()[0]
            return partial(_is_committed, xact_id=xact_id)
        if appended is not None:
            sample, (item_count, chain_head) = appended
            values = {**sample._asdict(), "seq": item_count - 1, "chain_digest": chain_head}
            return partial(_is_found, _SELECT_ITEM, values)
        self._batch_no += 1
        values = {"key_writer_id": self._writer_id, "key_batch_no": self._batch_no}
        run_compiled(tx, _UPDATE_BATCH, values)
        return partial(_is_found, _SELECT_BATCH, values)


def _is_committed(tx: Connection, *, xact_id: str) -> bool | None:
    status = tx.execute(_SELECT_XACT_STATUS, {"xact_id": xact_id}).scalar()
    # in progress: the server may be about to commit it; null: it is too long ago
    return None if status in (None, "in progress") else bool(status == "committed")


def _is_found(statement: sa.Select[Any], values: dict[str, Any], tx: Connection) -> bool:
    return tx.execute(statement, values).first() is not None


_SELECT_XACT_ID = sa.select(sa.cast(sa.func.pg_current_xact_id(), sa.Text))
_SELECT_XACT_STATUS = sa.text("SELECT pg_xact_status(CAST(:xact_id AS xid8))")
_SELECT_ITEM = sa.select(sa.true()).where(
    items.c.rollout_id == sa.bindparam("rollout_id"),
    items.c.sample_id == sa.bindparam("sample_id"),
    items.c.seq == sa.bindparam("seq"),
    items.c.chain_digest == sa.bindparam("chain_digest"),
)
_UPDATE_BATCH = (
    sa.update(writer_batches)
    .where(writer_batches.c.writer_id == sa.bindparam("key_writer_id"))
    .values(batch_no=sa.bindparam("key_batch_no"))
)
_SELECT_BATCH = sa.select(sa.true()).where(
    writer_batches.c.writer_id == sa.bindparam("key_writer_id"),
    writer_batches.c.batch_no == sa.bindparam("key_batch_no"),
)
