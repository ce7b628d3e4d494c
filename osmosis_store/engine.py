"""Engines and everything that differs between SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import os
import sqlite3
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection, Engine

from osmosis_store.errors import (
    InvalidStoreUrl,
    NotAStore,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreNotFound,
    StoreReadOnly,
    StoreUnreachable,
)

__all__ = [
    "Options",
    "Place",
    "Synchronous",
    "bind_rows",
    "end_transaction",
    "file_holders",
    "file_id",
    "insert_if_absent",
    "make_engine",
    "parse_url",
    "run_compiled",
    "run_rows",
    "to_driver_time",
    "translate_errors",
    "utc_now",
    "values_of_rows",
]

Synchronous = Literal["full", "normal", "off"]

_PAGE_SIZE = 4096
_SQLITE_ERRORS = {
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_PROTOCOL: "busy",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "readonly",
    sqlite3.SQLITE_PERM: "readonly",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_IOERR: "corrupt",
    sqlite3.SQLITE_NOTADB: "notadb",
    sqlite3.SQLITE_CANTOPEN: "cantopen",
}

_SIZES = (64, 16, 4, 1)
_UNREACHABLE = ("OperationalError", "ConnectionTimeout", "AdminShutdown", "InvalidPassword")


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
        return Place(sa.URL.create("sqlite", database=str(path)), _short(path), path)
    if backend in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
        shown = sa.URL.create(
            "postgresql", parsed.username, None, parsed.host, parsed.port, parsed.database
        )
        return Place(parsed, shown.render_as_string(), None)
    raise InvalidStoreUrl(url.split("@")[-1], f"{backend} is neither sqlite nor postgresql")


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
        target = f"file:{urllib.parse.quote(str(place.path))}?mode={mode}"
        if mode == "ro" and _is_frozen(place.path):
            target += "&immutable=1"
        connection = sqlite3.connect(
            target,
            uri=True,
            timeout=options.busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        connection.execute("PRAGMA foreign_keys=ON")
        if create:
            connection.execute(f"PRAGMA page_size={_PAGE_SIZE}")
        if write:
            connection.execute(f"PRAGMA synchronous={options.synchronous}")
        return connection

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.pool.QueuePool)
    begin = "BEGIN IMMEDIATE" if write else "BEGIN"

    @sa.event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.connection.driver_connection.execute(begin)  # type: ignore[union-attr]

    return engine


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


def file_holders(path: Path) -> str:
    """Name the processes that have a file open, where the system tells."""
    found = []
    for pid in (name for name in _listdir("/proc") if name.isdigit() and int(name) != os.getpid()):
        for handle in _listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/fd/{handle}").readlink() == path:
                    found.append(f"process {pid}")
                    break
    return ", ".join(found)


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def run_compiled(
    tx: Connection,
    statement: sa.Executable,
    values: dict[str, Any] | list[dict[str, Any]],
) -> Any:
    """Run a statement of the hot path: compiled once, handed to the driver as it is.

    SQLAlchemy's own execution costs 30 to 60 µs a statement, more than SQLite needs for it. The
    price: values and rows are the driver's own types (times by `to_driver_time`), and reading
    outside a transaction begins none on SQLite.

    Args:
        statement: A module's constant, with bound parameters by name.
        values: Parameters; a list of them runs the statement for each.

    Returns:
        The driver's cursor.
    """
    text, order, constants = _compile(statement, tx.dialect)
    cursor = _open_cursor(tx)
    if isinstance(values, list):
        cursor.executemany(text, [_to_driver(row, order, constants) for row in values])
    else:
        cursor.execute(text, _to_driver(values, order, constants))
    return cursor


def _to_driver(
    row: dict[str, Any], order: tuple[str, ...] | None, constants: dict[str, Any]
) -> Any:
    """Return parameters as the driver wants them: in order, or by name."""
    if constants:
        row = {**constants, **row}
    return row if order is None else tuple([row[name] for name in order])


def end_transaction(tx: Connection) -> None:
    """End a reader's transaction, also one that only the driver knows of."""
    if tx.in_transaction():
        tx.rollback()
    elif tx.dialect.name == "postgresql":
        tx.connection.rollback()


def run_rows(
    tx: Connection,
    build: Callable[[int], sa.Executable],
    rows: Sequence[dict[str, Any]],
) -> list[Any]:
    """Run a statement that takes many rows at once over all of them, in a few sizes.

    A step of SQLite gives up and retakes Python's lock: with other threads at work a statement for
    64 rows costs little more than one for a single row.

    Args:
        build: Makes the statement for a number of rows; its parameters are named `column_0`,
            `column_1` … by row. Cached by its caller.
        rows: Driver values by column name.

    Returns:
        The rows that the statements gave.
    """
    found: list[Any] = []
    at = 0
    while at < len(rows):
        size = next(size for size in _SIZES if size <= len(rows) - at)
        part = rows[at : at + size]
        text, order, constants = _compile(build(size), tx.dialect)
        assert not constants
        cursor = _open_cursor(tx)
        if order is None:
            cursor.execute(text, _by_number(part))
        else:  # the parameters stand in the text as in the rows
            cursor.execute(text, [value for row in part for value in row.values()])
        if cursor.description is not None:
            found += cursor.fetchall()
        at += size
    return found


def _by_number(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        f"{name}_{number}": value for number, row in enumerate(rows) for name, value in row.items()
    }


def bind_rows(size: int, *columns: sa.Column[Any]) -> list[dict[str, sa.BindParameter[Any]]]:
    """Return the parameters that `run_rows` gives a statement for so many rows, row by row."""
    return [
        {
            column.name: sa.bindparam(f"{column.name}_{number}", type_=column.type)
            for column in columns
        }
        for number in range(size)
    ]


def values_of_rows(name: str, size: int, *columns: sa.Column[Any]) -> sa.CTE:
    """Return the rows that `run_rows` gives a statement as a table that it can join."""
    rows = bind_rows(size, *columns)
    return (
        sa.values(*(sa.column(column.name, column.type) for column in columns), name=name)
        .data([tuple(row.values()) for row in rows])
        .cte(name)
    )


def _open_cursor(tx: Connection) -> Any:
    if tx.dialect.name == "postgresql" and not tx.in_transaction():
        tx.begin()  # psycopg begins one by itself, which nobody would end
    return tx.connection.driver_connection.cursor()  # type: ignore[union-attr]


@functools.cache
def _compile(
    statement: Any, dialect: sa.Dialect
) -> tuple[str, tuple[str, ...] | None, dict[str, Any]]:
    """Return a statement's text, its parameters in order (None: by name), and its constants."""
    compiled = statement.compile(dialect=dialect)
    constants = {name: bound.value for name, bound in compiled.binds.items() if not bound.required}
    order = tuple(compiled.positiontup) if compiled.positional else None
    return str(compiled), order, constants


def to_driver_time(tx: Connection, time: dt.datetime) -> Any:
    """Return a UTC time as the driver stores it in a time column."""
    if tx.dialect.name == "postgresql":
        return time
    return time.replace(tzinfo=None).isoformat(" ", "microseconds")


def insert_if_absent(table: sa.Table) -> postgresql.Insert:
    """Return an INSERT that leaves a row that is there already as it is; the same on SQLite."""
    return postgresql.insert(table).on_conflict_do_nothing()


def utc_now(tx: Connection, *, plus_s: float = 0) -> sa.ColumnElement[Any]:
    """Return the database's clock, or a time so many seconds later, as a time column's value."""
    if tx.dialect.name == "postgresql":
        return sa.func.clock_timestamp() + sa.cast(f"{plus_s} seconds", sa.Interval)
    later = sa.func.strftime("%Y-%m-%d %H:%M:%f", "now", f"{plus_s:+} seconds")
    return later.op("||")(sa.literal_column("'000'"))  # milliseconds to microseconds


@contextlib.contextmanager
def translate_errors(place: Place, options: Options) -> Iterator[None]:
    """Turn what the driver raises into the store's errors; others pass through."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        cause = error.orig if isinstance(error, sa_exc.DBAPIError) else error
        raise to_store_error(cause, place, options) or error from error


def to_store_error(
    error: BaseException | None, place: Place, options: Options
) -> StoreError | None:
    """Return the store's error for a driver's error; None when it has none."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, sqlite3.Error):
        return _from_sqlite(error, place, options)
    if not isinstance(error, _psycopg_error()):
        return None
    state = error.sqlstate
    if state in ("53100", "54000"):
        return StoreFull(place.name)
    if state in ("25006", "42501"):
        return StoreReadOnly(place.name)
    if state in ("55P03", "57014"):
        return StoreBusy(place.name, options.busy_timeout_s)
    unreachable = state is None or state[:2] in ("08", "28", "3D", "57")
    if unreachable and type(error).__name__ in _UNREACHABLE:
        return StoreUnreachable(place.name, str(error).strip().splitlines()[0])
    return None


def _psycopg_error() -> Any:
    """Return psycopg's base error, or no type at all where psycopg is not in use."""
    psycopg = sys.modules.get("psycopg")
    return () if psycopg is None else psycopg.Error


def _from_sqlite(error: sqlite3.Error, place: Place, options: Options) -> StoreError | None:
    code = getattr(error, "sqlite_errorcode", None)
    match _SQLITE_ERRORS.get(code & 0xFF) if code is not None else None:
        case "busy":
            holders = file_holders(place.path) if place.path else ""
            return StoreBusy(place.name, options.busy_timeout_s, holders)
        case "full":
            return StoreFull(place.name)
        case "readonly":
            return StoreReadOnly(place.name)
        case "notadb":
            return NotAStore(place.name, "the file is not a SQLite database")
        case "corrupt":
            return StoreCorrupt(place.name, str(error))
        case "cantopen":
            return StoreUnreachable(place.name, str(error))
    return None
