"""Reads for coroutines: a few threads, each with a connection that cannot write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from sqlalchemy.engine import Connection, Engine

from osmosis_store.driver_errors import translate_errors
from osmosis_store.engine import Options, Place
from osmosis_store.errors import StoreUnreachable
from osmosis_store.lane import Lane
from osmosis_store.queries.items import fetch_items_of_many
from osmosis_store.records import SampleKey
from osmosis_store.statements import end_transaction
from osmosis_store.ticket import Outcome, Ticket, deliver

__all__ = ["Read", "Reader"]

Read: TypeAlias = SampleKey | Callable[[Connection], Any]
"""A function of the connection; or a sample, whose items are wanted."""

_THREADS = 2
_MAX_BATCH = 16


class Reader:
    """Runs reads on connections that cannot write, each function in one snapshot of the store.

    What waits is taken together: callers are woken at once, and the samples whose items are wanted
    share a statement.
    """

    def __init__(self, engine: Engine, place: Place, options: Options) -> None:
        self._engine, self._place, self._options = engine, place, options
        self._lane: Lane[Read] = Lane(place.name, "reader", self._run, threads=_THREADS)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Give the calling thread a connection for one transaction."""
        self._lane.require_open()
        with translate_errors(self._place, self._options), self._engine.begin() as tx:
            yield tx

    def submit(self, read: Read, *, loop: asyncio.AbstractEventLoop) -> Ticket[Any]:
        """Queue a read whose ticket is awaited in `loop`, the running one.

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
            samples: dict[Ticket[Any], SampleKey] = {}
            outcomes: list[Outcome] = []
            for ticket, read in (job, *self._lane.take_waiting(_MAX_BATCH - 1)):
                if not ticket.claim():
                    continue
                if isinstance(read, SampleKey):
                    samples[ticket] = read
                else:
                    tx, result, error = self._read(tx, read)
                    outcomes.append((ticket, result, error))
            if samples:
                tx, found = self._read_items(tx, samples)
                outcomes += found
            deliver(outcomes)
            del job, samples, outcomes
        if tx is not None:
            tx.close()

    def _read_items(
        self, tx: Connection | None, wanted: dict[Ticket[Any], SampleKey]
    ) -> tuple[Connection | None, list[Outcome]]:
        samples = list(wanted.values())
        tx, found, error = self._read(tx, lambda tx: fetch_items_of_many(tx, samples))
        if error is not None:
            return tx, [(ticket, None, error) for ticket in wanted]
        return tx, [
            (ticket, one, None) if isinstance(one, list) else (ticket, None, one)
            for ticket, one in zip(wanted, found, strict=True)
        ]

    def _read(
        self, tx: Connection | None, read: Callable[[Connection], Any]
    ) -> tuple[Connection | None, Any, BaseException | None]:
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
                return self._read(None, read)
            return None, None, error
        return tx, result, None
