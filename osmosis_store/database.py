"""An open database and its doors: read(fn), write(fn) and append(items)."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from sqlalchemy.engine import Connection

from osmosis_store import migrate
from osmosis_store.engine import Options, Place, file_id, make_engine, parse_url
from osmosis_store.errors import NotAStore, StoreBusy, StoreNotFound, StoreReadOnly
from osmosis_store.nearby import stores_in
from osmosis_store.reader import Reader
from osmosis_store.writer import Clock, Writer
from osmosis_store.writes.items import Append, SeqRange

__all__ = ["Database", "HasDatabase", "to_database"]

T = TypeVar("T")


_shared: dict[tuple[str, int], Database] = {}
_shared_lock = threading.Lock()


def _system_clock() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class Database:
    """An open store beneath the facade; usable from any event loop and any thread.

    Closed at exit, what is queued written first.
    """

    def __init__(self, place: Place, options: Options, *, clock: Clock = _system_clock) -> None:
        self.place, self.options, self.clock = place, options, clock
        self._file_id = file_id(place)
        self._reader = Reader(make_engine(place, options, write=False), place, options)
        self._writer = (
            None
            if options.readonly
            else Writer(make_engine(place, options, write=True), place, options, clock=clock)
        )
        self.last_writes: list[Callable[[Connection], object]] = []
        """What is written when the store is closed, also at exit."""
        self._finalizer = weakref.finalize(
            self, _close, self._writer, self._reader, self.last_writes
        )

    @classmethod
    def open(
        cls,
        place: Place,
        options: Options | None = None,
        *,
        create: bool = True,
        clock: Clock = _system_clock,
    ) -> Database:
        """Open a store, made anew where there is none and `create` allows it.

        Raises:
            StoreNotFound, NotAStore, StoreNeedsUpgrade, StoreIsNewer, StoreUnreachable, StoreBusy
        """
        options = options or Options()
        create = create and not options.readonly
        if place.path is not None and not place.path.is_file():
            if not create:
                raise StoreNotFound(place.name, _stores_beside(place.path))
            migrate.create_if_new(place, options)
        database = cls(place, options, clock=clock)
        try:
            database._require_head(create)
        except BaseException:
            database.close()
            raise
        return database

    @classmethod
    def shared(cls, url: str) -> Database:
        """Return the database that this process shares for a URL, opened or made on first use.

        Raises:
            As `open`, and `InvalidStoreUrl`.
        """
        place = parse_url(url)
        with _shared_lock:
            key = (str(place.url), os.getpid())
            found = _shared.get(key)
            if found is None or found.closed or found.is_replaced():
                found = _shared[key] = cls.open(place)
            return found

    def is_replaced(self) -> bool:
        """Whether the file was moved, deleted or replaced since it was opened."""
        return file_id(self.place) != self._file_id

    def _require_head(self, create: bool) -> None:
        try:
            with self.reading() as tx:
                migrate.require_head(tx, self.place)
        except NotAStore:
            if not create:
                raise
            # an empty database, or one that another process is making right now
            migrate.create_if_new(self.place, self.options)
            with self.reading() as tx:
                migrate.require_head(tx, self.place)

    def reading(self) -> AbstractContextManager[Connection]:
        """Give the calling thread a read-only connection: one snapshot, until the block ends."""
        return self._reader.connect()

    async def read(self, fn: Callable[[Connection], T]) -> T:
        """Run a function of a read-only connection in a reader thread and return its result."""
        result: T = await self._reader.submit(fn, loop=asyncio.get_running_loop())
        return result

    def read_here(self, fn: Callable[[Connection], T]) -> T | None:
        """Run a read that takes microseconds at once, in the event loop that calls.

        To hand it to a thread and back takes longer, and makes others wait for Python's lock.

        Args:
            fn: Begins no transaction: one compiled statement.

        Returns:
            None where it cannot be done here: on PostgreSQL, and when the file is busy.
        """
        if not self.place.is_sqlite:
            return None
        try:
            return self._reader.read_here(fn)
        except StoreBusy:
            return None

    async def write(self, fn: Callable[[Connection], T]) -> T:
        """Run a function of the writing connection; its effect is on disk when this returns.

        Args:
            fn: May be run more than once, so it may change nothing but the database.
        """
        ticket = self._require_writer().submit(fn, loop=asyncio.get_running_loop())
        result: T = await ticket
        return result

    def write_now(self, fn: Callable[[Connection], T]) -> T:
        """Do what `write` does for a caller without an event loop, blocking its thread."""
        result: T = self._require_writer().submit(fn, loop=None).wait()
        return result

    async def append(self, append: Append) -> SeqRange:
        """Append one call's items; they are on disk when this returns.

        Raises:
            SampleNotFound: The sample was never made.
        """
        ticket = self._require_writer().submit(append, loop=asyncio.get_running_loop())
        result: SeqRange = await ticket
        return result

    def close(self) -> None:
        """Write what is queued and close every connection; safe to call twice."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._finalizer.alive

    def _require_writer(self) -> Writer:
        if self._writer is None:
            raise StoreReadOnly(self.place.name)
        return self._writer


class HasDatabase(Protocol):
    """What stands for its database: a `Store`, or anything else that holds one."""

    @property
    def database(self) -> Database:
        """The open database."""
        ...


def to_database(store: Database | HasDatabase) -> Database:
    """Return a store's database, or the database itself.

    Raises:
        TypeError: It is neither; what `Store.open` returns has to be awaited first.
    """
    if isinstance(store, Database):
        return store
    database = getattr(store, "database", None)
    if not isinstance(database, Database):
        raise TypeError(
            f"{type(store).__name__} is no open store: "
            "give what `await Store.open(url)` returns, or the URL where one is taken"
        )
    return database


def _close(
    writer: Writer | None, reader: Reader, last_writes: list[Callable[[Connection], object]]
) -> None:
    reader.close()
    if writer is not None:  # last: only a connection that may write can tidy up SQLite's files
        for write in last_writes:
            writer.submit(write, loop=None)
        writer.close()


def _stores_beside(path: Path) -> list[str]:
    """Name the stores that may have been meant."""
    return stores_in((path.parent, Path.cwd(), Path.cwd() / ".osmosis"))[:5]
