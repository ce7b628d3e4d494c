"""Reads for coroutines: a few threads, each with a connection that cannot write."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from sqlalchemy.engine import Connection, Engine

from osmosis_store.engine import Options, Place, translate_errors
from osmosis_store.errors import StoreClosed, StoreForked
from osmosis_store.ticket import Outcome, Ticket, deliver

__all__ = ["Reader"]

T = TypeVar("T")

_Job: TypeAlias = tuple[Ticket[Any], Callable[[Connection], Any]]

_THREADS = 2
_MAX_HOLD_S = 0.002


class Reader:
    """Runs functions of a read-only connection, each in one snapshot of the store."""

    def __init__(self, engine: Engine, place: Place, options: Options) -> None:
        self._engine, self._place, self._options = engine, place, options
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Give the calling thread a connection for one transaction."""
        self._require_open()
        with translate_errors(self._place, self._options), self._engine.begin() as tx:
            yield tx

    def submit(
        self, read: Callable[[Connection], T], *, loop: asyncio.AbstractEventLoop
    ) -> Ticket[T]:
        """Queue a read whose ticket is awaited in `loop`.

        Raises:
            StoreClosed, StoreForked
        """
        self._require_open()
        ticket: Ticket[T] = Ticket(loop)
        with self._lock:
            if self._closed:
                raise StoreClosed(self._place.name)
            if len(self._threads) < _THREADS:
                self._start_thread()
            self._queue.put((ticket, read))
        return ticket

    def close(self) -> None:
        """Finish what is queued, then stop; safe to call twice and in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
            for _ in threads:
                self._queue.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        self._engine.dispose()

    def _start_thread(self) -> None:
        name = f"osmosis-store reader {self._place.name}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _require_open(self) -> None:
        if os.getpid() != self._pid:
            raise StoreForked(self._place.name)
        if self._closed:
            raise StoreClosed(self._place.name)

    def _run(self) -> None:
        tx: Connection | None = None
        while (job := self._queue.get()) is not None:
            outcomes: list[Outcome] = []
            held_until = time.monotonic() + _MAX_HOLD_S
            while job is not None:
                ticket, read = job
                if ticket.claim():
                    tx, outcome = self._read(tx, ticket, read)
                    outcomes.append(outcome)
                job = self._take_waiting() if time.monotonic() < held_until else None
            # callers that wait are woken together: a wake-up costs as much as a short read
            deliver(outcomes)
            del outcomes
        if tx is not None:
            tx.close()

    def _take_waiting(self) -> _Job | None:
        """Return a read that waits, if there is one; the sign to stop stays in the queue."""
        try:
            job = self._queue.get_nowait()
        except queue.Empty:
            return None
        if job is None:
            self._queue.put(None)
        return job

    def _read(
        self, tx: Connection | None, ticket: Ticket[Any], read: Callable[[Connection], Any]
    ) -> tuple[Connection | None, Outcome]:
        """Run one read on this thread's connection, which an error makes it give up."""
        try:
            with translate_errors(self._place, self._options):
                tx = tx or self._engine.connect()
                result = read(tx)
                if tx.in_transaction():
                    tx.rollback()
        except Exception as error:  # whatever it is, its caller gets it
            if tx is not None:
                tx.close()
            return None, (ticket, None, error)
        return tx, (ticket, result, None)
