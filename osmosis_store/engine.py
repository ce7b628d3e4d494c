"""Where a store is, and the engines that open it: SQLite or PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Connection, Engine

from osmosis_store.errors import (
    InvalidStoreUrl,
    StoreError,
    StoreNotFound,
)
from osmosis_store.network_guard import store_connection

__all__ = [
    "CHECKPOINT_PAGES",
    "PAGE_SIZE",
    "Options",
    "Place",
    "Synchronous",
    "file_id",
    "make_engine",
    "parse_url",
    "reading_uri",
]

Synchronous = Literal["full", "normal", "off"]

PAGE_SIZE = 4096
# Ten times SQLite's own: the caller whose commit it hits waits for a checkpoint.
CHECKPOINT_PAGES = 10_000
# What file systems take; SQLite adds "-journal" to the name.
_NAME_BYTES, _PATH_BYTES = 255 - len("-journal"), 4095 - len("-journal")


@dataclass(frozen=True)
class Options:
    """How a store is opened.

    Attributes:
        synchronous: SQLite's setting; anything below "full" may lose the last commits in a
            power cut, never in a crash of the process.
        busy_timeout_s: How long a write waits for another process before `StoreBusy`.
    """

    synchronous: Synchronous = "full"
    busy_timeout_s: float = 30.0
    readonly: bool = False


@dataclass(frozen=True)
class Place:
    """Where a store is: a SQLite file or a PostgreSQL database.

    Attributes:
        name: For messages, without a password.
        path: The SQLite file; None on PostgreSQL.
    """

    url: sa.URL
    name: str
    path: Path | None

    @property
    def is_sqlite(self) -> bool:
        """Whether the store is a SQLite file."""
        return self.path is not None


def parse_url(url: str) -> Place:
    """Understand a store URL; the driver in it is ours to choose.

    Raises:
        InvalidStoreUrl: Not a URL, another database, or SQLite in memory.
    """
    if "\0" in url:
        raise InvalidStoreUrl(repr(url), "it holds a NUL character")
    if "://" not in url:
        raise InvalidStoreUrl(repr(url), f"it is not a URL; a file is sqlite:///{url}")
    try:
        parsed = sa.make_url(url)
    except (sa_exc.ArgumentError, ValueError) as error:
        raise InvalidStoreUrl(repr(url.split("@")[-1]), str(error)) from None
    backend = parsed.drivername.split("+")[0]
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or "mode=memory" in url:
            raise InvalidStoreUrl(url, "in memory each connection would have its own; name a file")
        path = Path(parsed.database).absolute()
        _check_lengths(url, path)
        return Place(sa.URL.create("sqlite", database=str(path)), _short(path), path)
    if backend in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
        shown = sa.URL.create(
            "postgresql", parsed.username, None, parsed.host, parsed.port, parsed.database
        )
        return Place(parsed, shown.render_as_string(), None)
    raise InvalidStoreUrl(url.split("@")[-1], f"{backend} is neither sqlite nor postgresql")


def _check_lengths(url: str, path: Path) -> None:
    if max(len(os.fsencode(part)) for part in path.parts) > _NAME_BYTES:
        raise InvalidStoreUrl(repr(url), f"a name in it is longer than {_NAME_BYTES} bytes")
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise InvalidStoreUrl(repr(url), f"it is longer than {_PATH_BYTES} bytes")


def _short(path: Path) -> str:
    """Show a path relative to the working directory where that is shorter."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def make_engine(place: Place, options: Options, *, write: bool, create: bool = False) -> Engine:
    """Return an engine whose transactions are immediate (writing) or snapshots (reading).

    Args:
        write: Open for writing; else every statement that writes is refused by the database.
        create: Make the SQLite file where there is none.
    """
    if place.path is not None:
        return _sqlite_engine(place, options, write=write, create=create)
    return _postgresql_engine(place, options, write=write)


def _sqlite_engine(place: Place, options: Options, *, write: bool, create: bool) -> Engine:
    mode = "rwc" if create else "rw" if write else "ro"

    def connect() -> sqlite3.Connection:
        assert place.path is not None
        if not create and not place.path.exists():
            raise StoreNotFound(place.name)
        connection = sqlite3.connect(
            reading_uri(place.path) if mode == "ro" else _uri(place.path, mode),
            uri=True,
            timeout=options.busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        connection.execute("PRAGMA foreign_keys=ON")
        if create:
            connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        if write:
            connection.execute(f"PRAGMA synchronous={options.synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        return connection

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.pool.QueuePool)
    begin = "BEGIN IMMEDIATE" if write else "BEGIN"

    @sa.event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.connection.driver_connection.execute(begin)  # type: ignore[union-attr]

    return engine


def reading_uri(path: Path) -> str:
    """Return what SQLite opens for reading alone, also where nobody can write."""
    return _uri(path, "ro") + ("&immutable=1" if _is_frozen(path) else "")


def _uri(path: Path, mode: str) -> str:
    return f"file:{urllib.parse.quote(str(path))}?mode={mode}"


def _is_frozen(path: Path) -> bool:
    """Whether nobody can write to a file, so that SQLite may not make its side files either."""
    return not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists()


def _postgresql_engine(place: Place, options: Options, *, write: bool) -> Engine:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise StoreError(
            "PostgreSQL needs the psycopg package",
            hint="pip install 'osmosis-store[postgres]'",
        ) from None
    engine = sa.create_engine(
        place.url,
        connect_args={
            "application_name": "osmosis-store",
            "options": f"-c lock_timeout={int(options.busy_timeout_s * 1000)}",
        },
        pool_pre_ping=not write,
        isolation_level="READ COMMITTED" if write else "REPEATABLE READ",
    )

    @sa.event.listens_for(engine, "do_connect")
    def connect(dialect: Any, _: object, args: list[Any], values: dict[str, Any]) -> Any:
        with store_connection():  # psycopg looks the server's name up in Python
            return dialect.connect(*args, **values)

    if not write:

        @sa.event.listens_for(engine, "connect")
        def refuse_writes(connection: Any, record: object) -> None:
            connection.read_only = True

    return engine


def file_id(place: Place) -> tuple[int, int] | None:
    """Return what tells a SQLite file from another at the same path; None: there is none."""
    if place.path is None:
        return None
    try:
        found = os.stat(place.path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
