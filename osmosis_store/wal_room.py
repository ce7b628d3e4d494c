"""Room in SQLite's write-ahead log, made while nobody waits for a commit."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.engine import CHECKPOINT_PAGES, PAGE_SIZE, Place
from osmosis_store.schema import contents
from osmosis_store.statements import run_compiled

__all__ = ["WalRoom"]

# A short life never pays for it; a long one gets room for two hundred commits in 5 ms.
_COMMITS_BETWEEN_LOOKS = 64
# Of it 2 MB stay in SQLite's cache, the rest reaches the log.
_SPILLED_BYTES = 4 * 1024 * 1024
_MAX_BYTES = CHECKPOINT_PAGES * PAGE_SIZE - _SPILLED_BYTES


class WalRoom:
    """Keeps the log's file larger than what is in it.

    A commit that makes the file longer costs twice the sync of one that does not, since the file
    system has to write down the new length too. SQLite itself makes the room: a transaction
    larger than its cache spills into the log and is rolled back, which leaves the file long.
    """

    def __init__(self, place: Place) -> None:
        self._path = None if place.path is None else f"{place.path}-wal"
        self._commits = 0
        self._room_until = 0
        self._wanted = False

    def is_wanted(self) -> bool:
        """Count a commit and tell whether the log, looked at now and then, outgrew its room."""
        self._commits += 1
        if self._path is not None and self._commits % _COMMITS_BETWEEN_LOOKS == 0:
            self._wanted = self._room_until < _size(self._path) < _MAX_BYTES
        return self._wanted

    def make(self, tx: Connection) -> None:
        """Make room; where the disk has none left, let it be."""
        assert self._path is not None
        self._wanted = False
        raw: Any = tx.connection.driver_connection
        with contextlib.suppress(sqlite3.Error, OSError):
            try:
                raw.execute("BEGIN IMMEDIATE")
                run_compiled(tx, _SPILL, {})
            finally:
                raw.rollback()
            _sync(self._path)
        self._room_until = _size(self._path)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _sync(path: str) -> None:
    """Write the room to the disk now, or the next commit has to."""
    file = os.open(path, os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)


_SPILL = sa.insert(contents).values(
    digest=sa.func.zeroblob(0), body=sa.func.zeroblob(_SPILLED_BYTES), created_at=""
)
