"""Reads for coroutines: a few threads, each with a connection that cannot write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from sqlalchemy.engine import Connection, Engine

from osmosis_store.engine import Options, Place, translate_errors
from osmosis_store.errors import StoreUnreachable
from osmosis_store.lane import Lane
from osmosis_store.ticket import Outcome, Ticket, deliver

__all__ = ["Reader"]

T = TypeVar("T")

_Read: TypeAlias = Callable[[Connection], Any]

_THREADS = 2
_MAX_HOLD_S = 0.002


class Reader:
    """Runs functions of a read-only connection, each in one snapshot of the store."""

    def __init__(self, engine: Engine, place: Place, options: Options) -> None:
        self._engine, self._place, self._options = engine, place, options
        self._lane: Lane[_Read] = Lane(place.name, "reader", self._run, threads=_THREADS)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Give the calling thread a connection for one transaction."""
        self._lane.require_open()
        with translate_errors(self._place, self._options), self._engine.begin() as tx:
            yield tx

    def submit(
        self, read: Callable[[Connection], T], *, loop: asyncio.AbstractEventLoop
    ) -> Ticket[T]:
        """Queue a read whose ticket is awaited in `loop`.

        Raises:
            StoreClosed, StoreForked
        """
        return self._lane.submit(read, loop=loop)

    def close(self) -> None:
        """Finish what is queued, then stop; safe to call twice and in a forked child."""
        self._lane.close()
        self._engine.dispose()

    def _run(self) -> None:
        tx: Connection | None = None
        while (job := self._lane.take()) is not None:
            outcomes: list[Outcome] = []
            held_until = time.monotonic() + _MAX_HOLD_S
            while job is not None:
                if job.ticket.claim():
                    tx, outcome = self._read(tx, *job)
                    outcomes.append(outcome)
                job = self._lane.take_waiting() if time.monotonic() < held_until else None
            # callers that wait are woken together: a wake-up costs as much as a short read
            deliver(outcomes)
            del outcomes
        if tx is not None:
            tx.close()

    def _read(
        self, tx: Connection | None, ticket: Ticket[Any], read: Callable[[Connection], Any]
    ) -> tuple[Connection | None, Outcome]:
        """Run one read on this thread's connection, which an error makes it give up."""
        waited = tx is not None
        try:
            with translate_errors(self._place, self._options):
                tx = tx or self._engine.connect()
                result = read(tx)
                if tx.in_transaction():
                    tx.rollback()
        except Exception as error:  # whatever it is, its caller gets it
            if tx is not None:
                tx.close()
            if waited and isinstance(error, StoreUnreachable):
                # the server cut it while it waited for work: ask on a new one
                return self._read(None, ticket, read)
            return None, (ticket, None, error)
        return tx, (ticket, result, None)
