"""A caller's wait for work that another thread does, from a coroutine or a plain thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Generator, Iterable
from typing import Any, Generic, TypeAlias, TypeVar

__all__ = ["Outcome", "Ticket", "deliver"]

T = TypeVar("T")

# So many callers go on before the event loop looks after its timers and sockets again.
_AT_ONCE = 16


class Ticket(Generic[T]):
    """One waiting caller: `await ticket` in an event loop, `ticket.wait()` elsewhere.

    An awaiting task that is cancelled withdraws work that nobody has begun. Work that was begun
    is awaited first, so that its outcome is settled when the cancellation goes on.
    """

    __slots__ = ("_claim", "future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop
        self.future: _Promise[T] | concurrent.futures.Future[T] = (
            concurrent.futures.Future() if loop is None else _Promise(self, loop)
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

    def __await__(self) -> Generator[Any, None, T]:
        assert isinstance(self.future, asyncio.Future)
        return self.future.__await__()


class _Promise(asyncio.Future[T]):
    """A future that is cancelled only while its work has not begun.

    asyncio throws a refused cancellation into the task when the future is done: just when the
    outcome is settled.
    """

    def __init__(self, ticket: Ticket[T], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._ticket = ticket

    def cancel(self, msg: Any | None = None) -> bool:
        return self._ticket.claim() and super().cancel(msg)


Outcome: TypeAlias = tuple[Ticket[Any], Any, BaseException | None]


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
    for ticket, result, error in outcomes[:_AT_ONCE]:
        if error is None:
            ticket.future.set_result(result)
        else:
            ticket.future.set_exception(error)
    rest = outcomes[_AT_ONCE:]
    if rest and (loop := rest[0][0].loop) is not None:
        loop.call_soon(_settle, rest)
