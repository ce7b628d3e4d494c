"""Reads for coroutines on connections that cannot write: in threads, or at once where small."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from sqlalchemy.engine import Connection, Engine

from osmosis_store.driver_errors import translate_errors
from osmosis_store.engine import Options, Place
from osmosis_store.errors import StoreUnreachable
from osmosis_store.lane import Lane
from osmosis_store.statements import end_transaction
from osmosis_store.ticket import LoopTicket, Outcome, Ticket, deliver

__all__ = ["Read", "Reader"]

T = TypeVar("T")
Read: TypeAlias = Callable[[Connection], Any]

_THREADS = 2
_MAX_BATCH = 16


class Reader:
    """Runs functions of a read-only connection, each in one snapshot of the store."""

    def __init__(self, engine: Engine, place: Place, options: Options) -> None:
        self._engine, self._place, self._options = engine, place, options
        self._lane: Lane[Read] = Lane(place.name, "reader", self._run, threads=_THREADS)
        self._here = threading.local()
        self._everywhere: weakref.WeakSet[Connection] = weakref.WeakSet()

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Give the calling thread a connection for one transaction."""
        self._lane.require_open()
        with translate_errors(self._place, self._options), self._engine.begin() as tx:
            yield tx

    def submit(self, read: Read, *, loop: asyncio.AbstractEventLoop) -> LoopTicket[Any]:
        """Queue a read whose ticket is awaited in `loop`, the running one.

        Raises:
            StoreClosed, StoreForked
        """
        return self._lane.submit(read, loop=loop)

    def read_here(self, read: Callable[[Connection], T]) -> T:
        """Run a read that takes microseconds in the calling thread, on a connection of its own.

        Raises:
            StoreClosed, StoreForked
        """
        self._lane.require_open()
        tx: Connection | None = getattr(self._here, "connection", None)
        if tx is None:
            tx = self._here.connection = self._engine.connect()
            self._everywhere.add(tx)
        with translate_errors(self._place, self._options):
            return read(tx)

    def close(self) -> None:
        """Finish what is queued, then stop; safe to call twice and in a forked child."""
        self._lane.close()
        for connection in list(self._everywhere):
            connection.close()
        self._engine.dispose()

    def _run(self) -> None:
        tx: Connection | None = None
        while (job := self._lane.take()) is not None:
            outcomes: list[Outcome] = []
            # callers that wait are woken together: a wake-up costs as much as a short read
            for ticket, read in (job, *self._lane.take_waiting(_MAX_BATCH - 1)):
                if ticket.claim():
                    tx, outcome = self._read(tx, ticket, read)
                    outcomes.append(outcome)
            deliver(outcomes)
            del job, outcomes
        if tx is not None:
            tx.close()

    def _read(
        self, tx: Connection | None, ticket: Ticket, read: Read
    ) -> tuple[Connection | None, Outcome]:
        """Run one read on this thread's connection, which an error makes it give up."""
        waited = tx is not None
        try:
            with translate_errors(self._place, self._options):
                tx = tx or self._engine.connect()
                result = read(tx)
                end_transaction(tx)
        except Exception as error:  # whatever it is, its caller gets it
            if tx is not None:
                tx.close()
            if waited and isinstance(error, StoreUnreachable):
                # the server cut it while it waited for work: ask on a new one
                return self._read(None, ticket, read)
            return None, (ticket, None, error)
        return tx, (ticket, result, None)
