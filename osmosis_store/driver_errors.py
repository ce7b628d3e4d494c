"""What the database drivers raise, as the store's errors."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import exc as sa_exc

from osmosis_store.engine import Options, Place
from osmosis_store.errors import (
    NotAStore,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreIOFailed,
    StoreReadOnly,
    StoreUnreachable,
)

__all__ = ["file_holders", "is_busy", "to_store_error", "translate_errors"]

_SQLITE_ERRORS = {
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_PROTOCOL: "busy",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "readonly",
    sqlite3.SQLITE_PERM: "readonly",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_IOERR: "io",
    sqlite3.SQLITE_NOTADB: "notadb",
    sqlite3.SQLITE_CANTOPEN: "cantopen",
}

_UNREACHABLE = ("OperationalError", "ConnectionTimeout", "AdminShutdown", "InvalidPassword")


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


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the file, so that the same may go well in a moment."""
    return _kind(error) == "busy"


def _kind(error: sqlite3.Error) -> str | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else _SQLITE_ERRORS.get(code & 0xFF)


def _psycopg_error() -> Any:
    """Return psycopg's base error, or no type at all where psycopg is not in use."""
    psycopg = sys.modules.get("psycopg")
    return () if psycopg is None else psycopg.Error


def _from_sqlite(error: sqlite3.Error, place: Place, options: Options) -> StoreError | None:
    match _kind(error):
        case "busy":
            holders = file_holders(place.path) if place.path else ""
            return StoreBusy(place.name, options.busy_timeout_s, holders)
        case "full":
            return StoreFull(place.name)
        case "readonly":
            return StoreReadOnly(place.name)
        case "notadb":
            return NotAStore(place.name, "the file is not a SQLite database")
        case "io":
            return StoreIOFailed(place.name, str(error))
        case "corrupt":
            return StoreCorrupt(place.name, str(error))
        case "cantopen" if place.path and place.path.exists() and _is_unwritable(place.path):
            return StoreReadOnly(place.name)
        case "cantopen":
            return StoreUnreachable(place.name, str(error))
    return None


def _is_unwritable(path: Path) -> bool:
    """Whether SQLite, which makes files beside the database, is let read it and no more."""
    is_writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    return os.access(path, os.R_OK) and not is_writable


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
