"""Work on its way from callers, on any event loop or thread, to the threads that do it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar, overload

from osmosis_store.errors import StoreClosed, StoreForked
from osmosis_store.ticket import LoopTicket, ThreadTicket, Ticket

__all__ = ["Job", "Lane"]

W = TypeVar("W")


class Job(NamedTuple, Generic[W]):
    """One piece of work, and who waits for it."""

    ticket: Ticket
    work: W


class Lane(Generic[W]):
    """A queue with its own threads, started on first use.

    A thread that sleeps is woken by the first job. What an event loop submits while the threads are
    busy is handed over once per turn of the loop: waking a thread costs more than a short read.

    Args:
        place: The store's name, for errors and thread names.
        run: What each thread does, until `take` returns nothing.
    """

    def __init__(self, place: str, kind: str, run: Callable[[], None], *, threads: int) -> None:
        self._place, self._kind, self._run = place, kind, run
        self._max_threads = threads
        self._threads: list[threading.Thread] = []
        self._jobs: deque[Job[W]] = deque()
        self._pending: dict[asyncio.AbstractEventLoop, list[Job[W]]] = {}
        self._idle = 0
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._pid = os.getpid()

    def require_open(self) -> None:
        """Check that the lane takes work.

        Raises:
            StoreClosed, StoreForked
        """
        if os.getpid() != self._pid:
            raise StoreForked(self._place)
        if self._closed:
            raise StoreClosed(self._place)

    @overload
    def submit(self, work: W, *, loop: asyncio.AbstractEventLoop) -> LoopTicket[Any]: ...
    @overload
    def submit(self, work: W, *, loop: None) -> ThreadTicket[Any]: ...
    def submit(self, work: W, *, loop: asyncio.AbstractEventLoop | None) -> Ticket:
        """Queue work and return what to wait with.

        Args:
            loop: The running event loop in which the ticket is awaited; None: `Ticket.wait`.

        Raises:
            StoreClosed, StoreForked
        """
        self.require_open()
        job = Job(ThreadTicket() if loop is None else LoopTicket(loop), work)
        if loop is None:
            self._hand_over([job])
        elif (waiting := self._pending.get(loop)) is not None:
            waiting.append(job)
        elif self._idle or not self._threads:
            self._hand_over([job])
        else:
            self._pending[loop] = [job]
            loop.call_soon(self._flush, loop)
        return job.ticket

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        jobs = self._pending.pop(loop)
        try:
            self._hand_over(jobs)
        except StoreClosed as error:
            for job in jobs:
                if not job.ticket.done():
                    job.ticket.set_exception(error)

    def _hand_over(self, jobs: list[Job[W]]) -> None:
        with self._lock:
            if self._closed:
                raise StoreClosed(self._place)
            self._jobs.extend(jobs)
            woken = min(self._idle, len(jobs))
            self._idle -= woken
            if not woken and len(self._threads) < self._max_threads:
                self._start_thread()
        for _ in range(woken):
            self._wake.put(None)

    def _start_thread(self) -> None:
        name = f"osmosis-store {self._kind} {self._place}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def take(self) -> Job[W] | None:
        """Return the next job, waiting for it; None: the lane was closed and is empty."""
        while True:
            with self._lock:
                if self._jobs:
                    return self._jobs.popleft()
                if self._closed:
                    return None
                self._idle += 1
            self._wake.get()

    def take_waiting(self, most: int) -> list[Job[W]]:
        """Return up to so many jobs that wait."""
        with self._lock:
            return [self._jobs.popleft() for _ in range(min(most, len(self._jobs)))]

    def has_waiting(self) -> bool:
        """Whether jobs wait; another may come any moment."""
        return bool(self._jobs)

    def close(self) -> None:
        """Take no more work and wait until what is queued is done; safe to call twice."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
            woken, self._idle = self._idle, 0
        for _ in range(woken):
            self._wake.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
