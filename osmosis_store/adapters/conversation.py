"""One stored sample as a conversation: read, append, pop, clear, replace."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from sqlalchemy.engine import Connection

from osmosis_store.codec import EncodedItem, Item
from osmosis_store.database import Database
from osmosis_store.errors import SampleNotFound
from osmosis_store.queries.items import LiveItems, fetch_live_items, require_sample
from osmosis_store.queries.rollouts import require_open_conversation
from osmosis_store.records import SampleKey, Usage
from osmosis_store.writes.items import Append, append_items
from osmosis_store.writes.samples import (
    ensure_conversation,
    ensure_sample,
    pop_item,
    replace_tail,
    tombstone_items,
)

__all__ = ["Conversation", "OpenConversation", "ReopenedSample", "RolloutSampleConversation"]

T = TypeVar("T")

# Bytes: read and decoded in about 0.1 ms.
_SMALL = 64 * 1024


class Conversation(ABC):
    """A sample that comes into being with the first write to it; see the three kinds below.

    Args:
        store: An open database, or the URL of one that is opened on first use and shared by the
            process.
    """

    def __init__(self, store: Database | str, sample: SampleKey) -> None:
        self.sample = sample
        self._store = store
        self._ready = False
        self._size: int | None = None  # of all live items as far as is known here

    @abstractmethod
    def prepare(self, tx: Connection, database: Database) -> None:
        """Make the sample, or check that it may be written; called until a write succeeded."""

    @abstractmethod
    def check(self, tx: Connection) -> None:
        """Check that the sample may be read; called until a write succeeded."""

    async def database(self) -> Database:
        """Return the database, opened now if need be."""
        if isinstance(self._store, str):
            self._store = await asyncio.to_thread(Database.shared, self._store)
        return self._store

    async def read(self, last: int | None) -> LiveItems:
        """Return live items, oldest first; `last` as in `fetch_live_items`."""
        fetch = partial(fetch_live_items, sample=self.sample, last=last)
        found = None
        if self._ready and self._size is not None and self._size <= _SMALL:
            found = (await self.database()).read_here(fetch)
        if found is None:
            found = await self._read(fetch)
        if last is None:
            self._size = found.size
        return found

    async def _read(self, fetch: Callable[[Connection], T]) -> T:
        database = await self.database()
        if self._ready:
            return await database.read(fetch)

        def fetch_checked(tx: Connection) -> T:
            self.check(tx)
            return fetch(tx)

        return await database.read(fetch_checked)

    async def append(
        self,
        items: list[EncodedItem],
        *,
        saved_calls: Sequence[int] = (),
        call_numbers: Sequence[int | None] = (),
        usage: Usage | None = None,
    ) -> None:
        """Append items in one piece; they are on disk when this returns."""
        append = Append(self.sample, items, saved_calls, call_numbers, usage)
        if self._size is not None:
            self._size += append.size
        database = await self.database()
        if self._ready:
            try:
                await database.append(append)
                return
            except SampleNotFound:
                self._ready = False  # purged by somebody: begin anew, or fail as at first
        await self.write(lambda tx: append_items(tx, [append], now=database.clock()))

    async def pop(self) -> Item | None:
        """Take the newest live item away and return it; None when there is none."""
        database = await self.database()
        return await self.write(lambda tx: pop_item(tx, self.sample, now=database.clock()))

    async def clear(self) -> None:
        """Take every live item away."""
        database = await self.database()
        await self.write(
            lambda tx: tombstone_items(tx, self.sample, reason="cleared", now=database.clock())
        )

    async def replace(
        self,
        seen: Sequence[int],
        new: list[EncodedItem],
        is_expired: Callable[[Item], bool] | None,
    ) -> bool:
        """Put new items in the place of the newest ones; as `replace_tail`."""
        database = await self.database()
        return await self.write(
            lambda tx: replace_tail(
                tx, self.sample, seen, new, is_expired=is_expired, now=database.clock()
            )
        )

    async def replace_all(self, new: list[EncodedItem]) -> None:
        """Put new items in the place of all live ones, in one transaction."""
        database = await self.database()

        def replace(tx: Connection) -> None:
            now = database.clock()
            tombstone_items(tx, self.sample, reason="compacted", now=now)
            append_items(tx, [Append(self.sample, new)], now=now)

        await self.write(replace)

    async def write(self, change: Callable[[Connection], T]) -> T:
        """Run a change of this sample in one transaction, the sample made before if need be."""
        database = await self.database()

        def run(tx: Connection) -> T:
            if not self._ready:
                self.prepare(tx, database)
            return change(tx)

        result = await database.write(run)
        self._ready = True
        return result


class OpenConversation(Conversation):
    """A conversation outside any rollout, made on first write; `metadata` is JSON text."""

    def __init__(
        self, store: Database | str, sample: SampleKey, metadata: str | None = None
    ) -> None:
        super().__init__(store, sample)
        self._metadata = metadata

    def prepare(self, tx: Connection, database: Database) -> None:
        """Make it; refuse an id that belongs to a rollout."""
        ensure_conversation(tx, self.sample, metadata=self._metadata, now=database.clock())

    def check(self, tx: Connection) -> None:
        """Refuse an id that belongs to a rollout."""
        require_open_conversation(tx, self.sample.rollout_id)


class RolloutSampleConversation(Conversation):
    """A sample of a rollout that runs in this process."""

    def prepare(self, tx: Connection, database: Database) -> None:
        """Make the sample; its rollout is there."""
        ensure_sample(tx, self.sample, now=database.clock())

    def check(self, tx: Connection) -> None:
        """Let it be read: before the first write it has no items."""


class ReopenedSample(Conversation):
    """A sample that exists, whatever became of its rollout."""

    def prepare(self, tx: Connection, database: Database) -> None:
        """Check that it exists."""
        require_sample(tx, self.sample)

    def check(self, tx: Connection) -> None:
        """Check that it exists."""
        require_sample(tx, self.sample)
