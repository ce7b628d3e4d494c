"""Which store a command means, and opening it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_store.errors import NoStoreGiven, StoreNotFound

if TYPE_CHECKING:
    from osmosis_store.database import Database
    from osmosis_store.engine import Place

__all__ = [
    "DEFAULT_PATH",
    "STORE_VARIABLE",
    "find_place",
    "find_store_url",
    "make_store_folder",
    "open_for_import",
    "open_for_reading",
    "require_file",
]

STORE_VARIABLE = "OSMOSIS_STORE_URL"
DEFAULT_PATH = Path(".osmosis", "rollouts.db")


def find_store_url(flag: str | None) -> str:
    """Return the URL that the flag, else the environment, else this folder's own store gives.

    Raises:
        NoStoreGiven: None of them gives one.
    """
    url = flag or os.environ.get(STORE_VARIABLE)
    if url:
        return url
    if DEFAULT_PATH.is_file():
        return f"sqlite:///{DEFAULT_PATH}"
    nearby = _stores_nearby()
    known = f"stores in this folder: {', '.join(nearby)}\n" if nearby else ""
    raise NoStoreGiven(
        f"no store given, and there is no {DEFAULT_PATH} in this folder",
        hint=f"{known}name one with --store sqlite:///path.db, or in {STORE_VARIABLE}\n"
        "`osmosis eval run …` makes one",
    )


def find_place(flag: str | None) -> Place:
    """Return where the store is that a command means.

    Raises:
        NoStoreGiven, InvalidStoreUrl
    """
    from osmosis_store.engine import parse_url

    return parse_url(find_store_url(flag))


def require_file(place: Place) -> None:
    """Check that there is a file where a SQLite store should be.

    Raises:
        StoreNotFound
    """
    if place.path is not None and not place.path.is_file():
        raise StoreNotFound(place.name, _stores_nearby())


@contextlib.contextmanager
def open_for_reading(flag: str | None) -> Iterator[Database]:
    """Open the store that a command means, never to write and never to make one.

    Raises:
        NoStoreGiven, InvalidStoreUrl, and as `Database.open`.
    """
    from osmosis_store.database import Database
    from osmosis_store.engine import Options

    database = Database.open(find_place(flag), Options(readonly=True), create=False)
    try:
        yield database
    finally:
        database.close()


@contextlib.contextmanager
def open_for_import(flag: str | None) -> Iterator[Database]:
    """Open the store that a command means to write; one that was named is made where there is none.

    Raises:
        NoStoreGiven, InvalidStoreUrl, and as `Database.open`.
    """
    from osmosis_store.database import Database

    place = find_place(flag)
    make_store_folder(place)
    database = Database.open(place)
    try:
        yield database
    finally:
        database.close()


def make_store_folder(place: Place) -> None:
    """Make the folder `.osmosis`, which is ours; any other must be there."""
    if place.path is not None and place.path.parent.name == DEFAULT_PATH.parent.name:
        place.path.parent.mkdir(exist_ok=True)


def _stores_nearby() -> list[str]:
    from osmosis_store.nearby import stores_in

    return stores_in((Path(), DEFAULT_PATH.parent))
