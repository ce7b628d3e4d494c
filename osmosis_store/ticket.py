"""A caller's wait for work that another thread does, from a coroutine or a plain thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Iterable
from typing import Any, TypeAlias, TypeVar

__all__ = ["LoopTicket", "Outcome", "ThreadTicket", "Ticket", "deliver"]

T = TypeVar("T")

# So many callers go on before the event loop looks after its timers and sockets again.
_AT_ONCE = 16


class _Claimed:
    """What exactly one asker gets: the thread that does the work, or who withdraws it."""

    _unclaimed: list[None]

    def claim(self) -> bool:
        """Return True to the first asker."""
        try:
            self._unclaimed.pop()  # atomic, hence no lock
        except IndexError:
            return False
        return True


class LoopTicket(_Claimed, asyncio.Future[T]):
    """What a coroutine awaits in its event loop.

    A task that is cancelled withdraws work that nobody has begun. Work that was begun cannot be
    cancelled: asyncio throws the refused cancellation into the task when the ticket is done, just
    when the outcome is settled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._unclaimed = [None]

    def cancel(self, msg: Any | None = None) -> bool:
        """Withdraw the work, if it has not begun."""
        return self.claim() and super().cancel(msg)


class ThreadTicket(_Claimed, concurrent.futures.Future[T]):
    """What a thread outside any event loop waits for."""

    def __init__(self) -> None:
        super().__init__()
        self._unclaimed = [None]

    def wait(self) -> T:
        """Block until the work is done and return its result, or raise its error."""
        return self.result()


Ticket: TypeAlias = LoopTicket[Any] | ThreadTicket[Any]
Outcome: TypeAlias = tuple[Ticket, Any, BaseException | None]


def deliver(outcomes: Iterable[Outcome]) -> None:
    """Hand results over to their callers, waking each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        if isinstance(outcome[0], LoopTicket):
            by_loop.setdefault(outcome[0].get_loop(), []).append(outcome)
        else:
            _settle(*outcome)
    for loop, settled in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_settle_some, loop, settled)


def _settle_some(loop: asyncio.AbstractEventLoop, outcomes: list[Outcome]) -> None:
    for outcome in outcomes[:_AT_ONCE]:
        _settle(*outcome)
    if rest := outcomes[_AT_ONCE:]:
        loop.call_soon(_settle_some, loop, rest)


def _settle(ticket: Ticket, result: Any, error: BaseException | None) -> None:
    if error is None:
        ticket.set_result(result)
    else:
        ticket.set_exception(error)
