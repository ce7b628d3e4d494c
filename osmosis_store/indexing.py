"""Making the text index of a store that others go on using."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import sqlalchemy as sa

from osmosis_store.database import Database
from osmosis_store.driver_errors import translate_errors
from osmosis_store.engine import make_engine
from osmosis_store.queries.counts import fetch_item_count
from osmosis_store.queries.text_filter import has_text_index
from osmosis_store.records import ItemKey
from osmosis_store.writes.text_index import (
    create_text_index,
    drop_text_index,
    end_text_index,
    index_slice,
    make_postgresql_index,
)

__all__ = ["build_text_index", "remove_text_index"]

_SLICE = 1000


def build_text_index(
    database: Database,
    *,
    rebuild: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> bool:
    """Make the text index, slice by slice; one that was cut off is gone on with.

    Args:
        rebuild: Make an index that is there anew.
        on_progress: On SQLite told how many items are in it, and of how many.

    Returns:
        False where there is one already.

    Raises:
        TextIndexUnavailable, StoreReadOnly
    """
    with database.reading() as tx:
        if has_text_index(tx) and not rebuild:
            return False
        total = fetch_item_count(tx)
    if rebuild:
        remove_text_index(database)
    if not database.place.is_sqlite:
        _build_on_postgresql(database)
        return True
    database.write_now(create_text_index)
    last: ItemKey | None = ItemKey("", "", -1)
    done = 0
    while last is not None:
        last = database.write_now(partial(index_slice, after=last, size=_SLICE))
        done = min(done + _SLICE, total)
        if on_progress is not None:
            on_progress(done, total)
    database.write_now(end_text_index)
    return True


def remove_text_index(database: Database) -> None:
    """Take the text index away; searches give the same answers, slower."""
    database.write_now(drop_text_index)


def _build_on_postgresql(database: Database) -> None:
    """Make it on a connection of its own, outside a transaction, so that nobody waits for it."""
    options = database.options
    engine = make_engine(database.place, options, write=True)
    try:
        with translate_errors(database.place, options), engine.connect() as connection:
            tx = connection.execution_options(isolation_level="AUTOCOMMIT")
            tx.execute(sa.text("SET lock_timeout = 0"))  # it waits for older transactions to end
            make_postgresql_index(tx)
    finally:
        engine.dispose()
