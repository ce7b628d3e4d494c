"""Running user code so that a deadline holds whatever that code does."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["DeadlineExceeded", "require_awaitable", "run_to_end", "run_unhurried", "run_until"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_S = 2.0
_abandoned: set[asyncio.Task[object]] = set()


class DeadlineExceeded(TimeoutError):
    """Code was still running at its deadline."""


class ProgramAborted(RuntimeError):
    """Code called for the process to exit, or cancelled itself."""


async def run_until(
    program: Callable[[], Awaitable[T]], *, deadline: float | None, message: str
) -> T:
    """Run `program` in a task of its own and return what it returns, or raise what it raises.

    Code that swallows its cancellation gets two seconds and is then left behind; code that
    blocks the event loop past the deadline is late even when it returns. When the caller is
    cancelled, the program is cancelled first.

    Args:
        deadline: On the clock of `time.monotonic`; None: no deadline.
        message: What the error says.

    Raises:
        DeadlineExceeded: The program was not done in time, or there was none left to start it.
        ProgramAborted: It called for the process to exit, or cancelled itself.
    """
    if deadline is not None and time.monotonic() >= deadline:
        raise DeadlineExceeded(message)
    finished_at: list[float] = []

    async def run() -> T:
        try:
            return await program()
        except SystemExit as error:
            # Raised inside a task it would stop the whole event loop.
            raise ProgramAborted(f"the program called exit({error.code!r})") from error
        finally:
            finished_at.append(time.monotonic())

    task: asyncio.Task[T] = asyncio.create_task(run())
    try:
        await asyncio.wait({task}, timeout=_remaining(deadline))
    except asyncio.CancelledError:
        await _stop(task)
        raise
    if not task.done():
        await _stop(task)
        raise DeadlineExceeded(message)
    if deadline is not None and finished_at and finished_at[0] > deadline:
        _consume(task)
        raise DeadlineExceeded(message)
    if task.cancelled():
        raise ProgramAborted("the program was cancelled from inside")
    return task.result()


async def run_unhurried(program: Callable[[], Awaitable[T]]) -> T:
    """Run `program` in the caller's own task and context, without a deadline.

    Raises:
        ProgramAborted: It called for the process to exit, or cancelled itself.
    """
    task = asyncio.current_task()
    try:
        return await program()
    except SystemExit as error:
        raise ProgramAborted(f"the program called exit({error.code!r})") from error
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raise ProgramAborted("the program was cancelled from inside") from error


def require_awaitable(value: object, method: str) -> None:
    """Check that a method of user code gave something to await.

    Raises:
        TypeError: It did not, and has done all that it does by now.
    """
    if not inspect.isawaitable(value):
        raise TypeError(f"{method} is an ordinary function: write `async def`")


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


async def _stop(task: asyncio.Task[T]) -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE_S)
    if task.done():
        _consume(task)
        return
    logger.warning("code goes on running %.0f s after its cancellation", GRACE_S)
    _abandoned.add(task)
    task.add_done_callback(_abandoned.discard)
    task.add_done_callback(_consume)


def _consume(task: asyncio.Task[T]) -> None:
    if not task.cancelled():
        task.exception()


async def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run what has to be done however often the caller is cancelled meanwhile.

    Raises:
        CancelledError: It is done, and the caller was cancelled.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        _consume(task)
        raise cancelled
    return task.result()
