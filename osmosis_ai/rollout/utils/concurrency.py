"""Slots for things that run at once, with counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["ConcurrencyLimiter"]


class ConcurrencyLimiter:
    """Hands out slots in the order of asking.

    Args:
        max_concurrent: How many at once, at least 1; None: no limit.
    """

    def __init__(self, *, max_concurrent: int | None) -> None:
        if max_concurrent is not None and max_concurrent < 1:
            raise ValueError(f"max_concurrent is {max_concurrent}: use at least 1, or None")
        self.max_concurrent = max_concurrent
        self.queued = 0
        self.running = 0
        self._slots = None if max_concurrent is None else asyncio.Semaphore(max_concurrent)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it for the block; a cancelled wait leaves no trace."""
        await self._take()
        try:
            yield
        finally:
            self.running -= 1
            if self._slots is not None:
                self._slots.release()

    async def _take(self) -> None:
        if self._slots is not None:
            self.queued += 1
            try:
                await self._slots.acquire()
            finally:
                self.queued -= 1
        self.running += 1

    def snapshot(self) -> dict[str, int | None]:
        """Return the limit and both counters."""
        return {
            "max_concurrent": self.max_concurrent,
            "queued": self.queued,
            "running": self.running,
        }
