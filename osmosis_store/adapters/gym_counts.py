"""How often something was seen, in a temporary file: memory stays flat over millions of lines."""

from __future__ import annotations

import sqlite3

__all__ = ["Occurrences"]


class Occurrences:
    """Counts keys, in a database that nobody else sees and that is gone when it is closed."""

    def __init__(self) -> None:
        # an empty name: SQLite keeps it in memory while it is small, and in a file after that
        self._counts = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._counts.execute("PRAGMA synchronous=OFF")
        self._counts.execute("PRAGMA journal_mode=OFF")
        self._counts.execute("CREATE TABLE seen (key BLOB PRIMARY KEY, n INTEGER) WITHOUT ROWID")

    def count(self, key: bytes) -> int:
        """Return how often this key was counted before."""
        row = self._counts.execute(
            "INSERT INTO seen VALUES (?, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING n - 1",
            (key,),
        ).fetchall()
        return int(row[0][0])

    def close(self) -> None:
        """Forget everything."""
        self._counts.close()
