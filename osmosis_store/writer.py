"""Group commit: one thread that puts many callers' writes into one transaction."""

from __future__ import annotations

import datetime as dt
import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from osmosis_store.driver_errors import to_store_error
from osmosis_store.engine import Options, Place, file_id
from osmosis_store.errors import (
    NotAStore,
    OutcomeUnknown,
    SampleNotFound,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreReplaced,
    StoreUnreachable,
)
from osmosis_store.lane import Job, Lane
from osmosis_store.marks import Marks, Question
from osmosis_store.records import SampleKey
from osmosis_store.statements import QuickTransaction
from osmosis_store.ticket import Outcome, Ticket, deliver
from osmosis_store.wal_room import WalRoom
from osmosis_store.writes.heads import KnownHeads
from osmosis_store.writes.items import Append, append_items

__all__ = ["Clock", "Write", "Writer"]

T = TypeVar("T")
Clock: TypeAlias = Callable[[], dt.datetime]
Write: TypeAlias = Callable[[Connection], Any]

_MAX_BATCH_WRITES = 1000
_MAX_BATCH_BYTES = 16 * 1024 * 1024
_MAX_TAKEN = 64
_RETRY_PAUSES_S = (0.01, 0.05, 0.2, 1.0)
_DEADLOCKS = ("40001", "40P01")
_NOBODYS_FAULT = (
    NotAStore,
    OutcomeUnknown,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreReplaced,
    StoreUnreachable,
)


Work: TypeAlias = Append | Write
_Job: TypeAlias = Job[Work]


class Writer:
    """The one thread of a store that writes, with the one connection that it writes on.

    A result that a caller gets is on disk. Concurrent calls have no order among themselves; in
    one batch functions run before appends.
    """

    def __init__(self, engine: Engine, place: Place, options: Options, *, clock: Clock) -> None:
        self._engine, self._place, self._options, self._clock = engine, place, options, clock
        self._connection: Connection | None = None
        self._file_id = file_id(place)
        self._marks = Marks()
        self._heads = KnownHeads()
        self._wal_room = WalRoom(place)
        self._lane: Lane[Work] = Lane(place.name, "writer", self._run, threads=1)
        self.submit = self._lane.submit
        """Queue an append, or a function of the connection that may be run more than once."""

    def close(self) -> None:
        """Write what is queued, then stop; safe to call twice and in a forked child."""
        self._lane.close()

    def _run(self) -> None:
        while (job := self._lane.take()) is not None:
            batch = self._take_all(job)
            if batch:
                deliver(self._write(batch))
            del job, batch
            if self._wal_room.is_wanted() and not self._lane.has_waiting():
                self._wal_room.make(self._connect())
        self._drop_connection()
        self._engine.dispose()

    def _take_all(self, first: _Job) -> list[_Job]:
        """Return everything that waits, up to the bounds, less what was withdrawn."""
        batch, size = [], 0
        waiting = [first]
        while waiting:
            for job in waiting:
                if job.ticket.claim():
                    batch.append(job)
                    size += job.work.size if isinstance(job.work, Append) else 0
            room = _MAX_BATCH_WRITES - len(batch) if size < _MAX_BATCH_BYTES else 0
            waiting = self._lane.take_waiting(min(room, _MAX_TAKEN))
        return batch

    def _write(self, batch: list[_Job]) -> list[Outcome]:
        """Commit a batch; when that fails, write by write, so that only the culprit fails."""
        try:
            return self._commit_patiently(batch)
        except Exception as error:  # whatever it is, its caller gets it
            if len(batch) == 1 or isinstance(self._to_error(error), _NOBODYS_FAULT):
                return [(job.ticket, None, self._to_error(error)) for job in batch]
        return [outcome for job in batch for outcome in self._write([job])]

    def _commit_patiently(self, batch: list[_Job]) -> list[Outcome]:
        """Commit a batch, again after a while when the connection broke or a deadlock hit it."""
        for pause_s in _RETRY_PAUSES_S:
            try:
                return self._commit(batch)
            except Exception as error:
                if not self._may_try_again(error):
                    raise
            time.sleep(pause_s)
        return self._commit(batch)

    def _commit(self, batch: list[_Job]) -> list[Outcome]:
        """Run a batch in one transaction and return its outcomes.

        Raises:
            OutcomeUnknown: The connection broke during the commit and nobody can tell.
        """
        if self._place.path is not None and file_id(self._place) != self._file_id:
            self._drop_connection()
            raise StoreReplaced(self._place.name)
        tx = self._connect()
        is_committed = None
        try:
            with self._begin(tx, batch):
                outcomes, is_committed = self._execute(tx, batch)
        except Exception as error:
            self._heads.forget()
            self._require_idle(tx)
            if is_committed is None or not self._may_try_again(error):
                raise
            self._drop_connection()
            committed = self._look(is_committed)
            if committed is None:
                raise self._unknown(batch) from error
            if not committed:
                raise
        return outcomes

    def _begin(self, tx: Connection, batch: list[_Job]) -> AbstractContextManager[object]:
        if self._place.is_sqlite and all(isinstance(work, Append) for _, work in batch):
            return QuickTransaction(tx)
        return tx.begin()

    def _execute(self, tx: Connection, batch: list[_Job]) -> tuple[list[Outcome], Question]:
        """Run a batch's writes and leave a mark among them."""
        outcomes: list[Outcome] = []
        appends: list[tuple[Ticket, Append]] = []
        for ticket, work in batch:
            if isinstance(work, Append):
                appends.append((ticket, work))
            else:
                self._heads.forget()  # whatever the function does to them
                outcomes.append((ticket, work(tx), None))
        appended: SampleKey | None = None
        if appends:
            data = [append for _, append in appends]
            done = append_items(tx, data, now=self._clock(), known=self._heads)
            for (ticket, append), result in zip(appends, done, strict=True):
                if isinstance(result, SampleNotFound):
                    outcomes.append((ticket, None, result))
                else:
                    outcomes.append((ticket, result, None))
                    appended = append.sample if append.items else appended
        return outcomes, self._marks.leave(tx, self._heads.find(appended))

    def _look(self, is_committed: Question) -> bool | None:
        """Ask the database whether a transaction took effect; None: it cannot say."""
        for pause_s in _RETRY_PAUSES_S:
            time.sleep(pause_s)
            try:
                tx = self._connect()
                with tx.begin():
                    answer = is_committed(tx)
            except sa.exc.DBAPIError:
                self._drop_connection()
            else:
                if answer is not None:
                    return answer
        return None

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
            with self._connection.begin():
                self._marks.prepare(self._connection)
        return self._connection

    def _drop_connection(self) -> None:
        self._heads.forget()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()

    def _require_idle(self, tx: Connection) -> None:
        """Give up a connection that an error left inside a transaction."""
        raw: Any = None if tx.invalidated or tx.closed else tx.connection.driver_connection
        if tx.in_transaction() or getattr(raw, "in_transaction", False):
            self._drop_connection()

    def _may_try_again(self, error: Exception) -> bool:
        """Whether the same batch may succeed on a new connection or on a second try."""
        cause = getattr(error, "orig", error)
        if getattr(cause, "sqlstate", None) in _DEADLOCKS:
            return True
        code = getattr(cause, "sqlite_errorcode", 0)
        return code & 0xFF == sqlite3.SQLITE_IOERR or isinstance(
            self._to_error(error), StoreUnreachable
        )

    def _to_error(self, error: BaseException) -> BaseException:
        cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        return to_store_error(cause, self._place, self._options) or error

    def _unknown(self, batch: list[_Job]) -> StoreError:
        writes = [
            f"{len(job.work.items)} items of sample {job.work.sample.sample_id!r} in rollout "
            f"{job.work.sample.rollout_id!r}"
            for job in batch
            if isinstance(job.work, Append)
        ]
        return OutcomeUnknown(self._place.name, writes or [f"{len(batch)} writes"])
