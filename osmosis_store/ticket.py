"""A caller's wait for work that another thread does, from a coroutine or a plain thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

__all__ = ["Outcome", "Ticket", "deliver"]

T = TypeVar("T")


class Ticket(Generic[T]):
    """One waiting caller.

    Made on the caller's side: inside a running event loop it waits as a coroutine, on any loop;
    elsewhere it blocks its thread.
    """

    __slots__ = ("_claim", "future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop
        self.future: asyncio.Future[T] | concurrent.futures.Future[T] = (
            concurrent.futures.Future() if loop is None else loop.create_future()
        )
        self._claim = [None]

    def claim(self) -> bool:
        """Return True to exactly one asker: the thread that does the work, or who withdraws it."""
        try:
            self._claim.pop()  # atomic, hence no lock
        except IndexError:
            return False
        return True

    def wait(self) -> T:
        """Block until the work is done and return its result, or raise its error."""
        assert isinstance(self.future, concurrent.futures.Future)
        return self.future.result()

    async def settled(self) -> T:
        """Wait in the event loop.

        A caller that is cancelled withdraws work that nobody has begun. Work that was begun is
        awaited first, so that its outcome is settled when the cancellation goes on.
        """
        future = self.future
        assert isinstance(future, asyncio.Future)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if self.claim():
                future.cancel()
                raise
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # looked at: the loop need not warn about it
            raise


Outcome = tuple[Ticket[Any], Any, BaseException | None]


def deliver(outcomes: Iterable[Outcome]) -> None:
    """Hand results over to their callers, waking each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        loop = outcome[0].loop
        if loop is None:
            _settle([outcome])
        else:
            by_loop.setdefault(loop, []).append(outcome)
    for loop, settled in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, settled)


def _settle(outcomes: list[Outcome]) -> None:
    for ticket, result, error in outcomes:
        if ticket.future.done():
            continue
        if error is None:
            ticket.future.set_result(result)
        else:
            ticket.future.set_exception(error)
