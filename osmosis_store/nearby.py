"""Which stores there are in some folders: those that may have been meant."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path

__all__ = ["stores_in"]


def stores_in(folders: Iterable[Path]) -> list[str]:
    """Return the paths of the SQLite stores in these folders, relative to this one where inside.

    A database of another program, a folder and an empty file are none.
    """
    here = Path.cwd()
    found = {file.absolute() for folder in folders for file in folder.glob("*.db")}
    return sorted(
        str(file.relative_to(here) if file.is_relative_to(here) else file)
        for file in found
        if _is_store(file)
    )


def _is_store(path: Path) -> bool:
    if not path.is_file():
        return False
    with contextlib.suppress(sqlite3.Error):
        target = f"{path.as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(target, uri=True, timeout=0)) as connection:
            columns = connection.execute("PRAGMA table_info(grading_runs)")
            return columns.fetchone() is not None
    return False
