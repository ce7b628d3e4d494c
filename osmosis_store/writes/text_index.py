"""The text index: made and dropped here, kept current by the database itself.

On SQLite a full-text table of three-character pieces, without a copy of the texts, filled by
triggers on `items`. On PostgreSQL an index of the extension pg_trgm. A store without one has
neither triggers nor tables for it.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine import Connection

from osmosis_store.errors import TextIndexUnavailable
from osmosis_store.records import ItemKey
from osmosis_store.schema import items
from osmosis_store.texts import DATA_HEAD, SILENT_KEYS

__all__ = [
    "create_text_index",
    "drop_text_index",
    "end_text_index",
    "index_slice",
    "make_postgresql_index",
]

_SILENT = ", ".join(f"'{key}'" for key in sorted(SILENT_KEYS))


def _said(body: str) -> str:
    """Return SQL for what an item says, or for more: `texts.item_texts` looks at it again."""
    head = f"substr(atom, 1, {DATA_HEAD})"
    is_data = (
        f"substr(atom, 1, 5) = 'data:' AND instr({head}, ';base64,') > 0 AND instr({head}, ' ') = 0"
    )
    return (
        # escapes may stand for NUL or half a character: such a body is taken as it is
        f"CASE WHEN instr({body}, '\\u') > 0 OR NOT json_valid({body}) THEN {body} ELSE coalesce(("
        f"SELECT group_concat(atom, char(10)) FROM json_tree({body}) WHERE type = 'text' "
        f"AND key NOT IN ({_SILENT}) AND NOT ({is_data})), '') END"
    )


def _keys_of(row: str) -> str:
    names = ("rollout_id", "sample_id", "seq")
    return " AND ".join(f"{name} = {row}.{name}" for name in names)


_CREATE = (
    """CREATE TABLE IF NOT EXISTS item_search_keys (
        text_id INTEGER PRIMARY KEY,
        rollout_id TEXT NOT NULL,
        sample_id TEXT NOT NULL,
        seq BIGINT NOT NULL,
        UNIQUE (rollout_id, sample_id, seq)
    )""",
    """CREATE VIRTUAL TABLE IF NOT EXISTS item_search USING fts5(
        said, content = '', detail = none, columnsize = 0, tokenize = 'trigram'
    )""",
    f"""CREATE TRIGGER IF NOT EXISTS item_search_insert AFTER INSERT ON items BEGIN
        INSERT INTO item_search_keys (rollout_id, sample_id, seq)
        VALUES (new.rollout_id, new.sample_id, new.seq);
        INSERT INTO item_search (rowid, said)
        VALUES (last_insert_rowid(), {_said("new.body")});
    END""",
    f"""CREATE TRIGGER IF NOT EXISTS item_search_update AFTER UPDATE OF body ON items
    WHEN old.body IS NOT new.body BEGIN
        INSERT INTO item_search (item_search, rowid, said)
        SELECT 'delete', text_id, {_said("old.body")}
        FROM item_search_keys WHERE {_keys_of("old")};
        INSERT INTO item_search (rowid, said)
        SELECT text_id, {_said("new.body")} FROM item_search_keys WHERE {_keys_of("new")};
    END""",
    f"""CREATE TRIGGER IF NOT EXISTS item_search_delete AFTER DELETE ON items BEGIN
        INSERT INTO item_search (item_search, rowid, said)
        SELECT 'delete', text_id, {_said("old.body")}
        FROM item_search_keys WHERE {_keys_of("old")};
        DELETE FROM item_search_keys WHERE {_keys_of("old")};
    END""",
)
_DROP = (
    *(f"DROP TRIGGER IF EXISTS item_search_{event}" for event in ("insert", "update", "delete")),
    "DROP TABLE IF EXISTS item_search_ready",
    "DROP TABLE IF EXISTS item_search",
    "DROP TABLE IF EXISTS item_search_keys",
)
_READY = "CREATE TABLE IF NOT EXISTS item_search_ready (ready INTEGER)"
_LAST_ID = "SELECT coalesce(max(text_id), 0) FROM item_search_keys"
_ADD_KEYS = """
    INSERT INTO item_search_keys (rollout_id, sample_id, seq)
    SELECT rollout_id, sample_id, seq FROM items
    WHERE (rollout_id, sample_id, seq) > (?, ?, ?) AND (rollout_id, sample_id, seq) <= (?, ?, ?)
    ORDER BY rollout_id, sample_id, seq
    ON CONFLICT DO NOTHING
"""
_ADD_TEXTS = f"""
    INSERT INTO item_search (rowid, said)
    SELECT k.text_id, {_said("i.body")} FROM item_search_keys AS k
    JOIN items AS i ON i.rollout_id = k.rollout_id AND i.sample_id = k.sample_id AND i.seq = k.seq
    WHERE k.text_id > ? ORDER BY k.text_id
"""
_POSTGRESQL_INDEX = (
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS ix_items_text ON items "
    'USING gin (lower(body COLLATE "C") gin_trgm_ops)'
)
_POSTGRESQL_INVALID = (
    "SELECT count(*) FROM pg_class JOIN pg_index ON indexrelid = oid "
    "WHERE relname = 'ix_items_text' AND NOT indisvalid"
)


def create_text_index(tx: Connection) -> None:
    """Make SQLite's text index, empty and not used yet; from now on new items get into it.

    Raises:
        TextIndexUnavailable: This SQLite has no FTS5 with trigrams, or no JSON functions.
    """
    try:
        tx.exec_driver_sql("SELECT json_valid('{}')")
        for statement in _CREATE:
            tx.exec_driver_sql(statement)
    except sa_exc.OperationalError as error:
        if not str(error.orig).startswith("no such "):
            raise
        raise TextIndexUnavailable(f"this SQLite cannot: {error.orig}") from None


def index_slice(tx: Connection, after: ItemKey, size: int) -> ItemKey | None:
    """Add the next items behind a key to SQLite's text index; those that are in it stay.

    Returns:
        The last one's key; None: there were no more.
    """
    columns = (items.c.rollout_id, items.c.sample_id, items.c.seq)
    found = tx.execute(
        sa.select(*columns).where(sa.tuple_(*columns) > after).order_by(*columns).limit(size)
    ).fetchall()
    if not found:
        return None
    last = ItemKey(*found[-1])
    last_id = tx.exec_driver_sql(_LAST_ID).scalar_one()
    tx.exec_driver_sql(_ADD_KEYS, (*after, *last))
    tx.exec_driver_sql(_ADD_TEXTS, (last_id,))
    return last


def end_text_index(tx: Connection) -> None:
    """Let queries use SQLite's text index: it is complete."""
    tx.exec_driver_sql(_READY)


def drop_text_index(tx: Connection) -> None:
    """Take the text index away, on either database; searches give the same answers, slower."""
    if tx.dialect.name == "postgresql":
        tx.exec_driver_sql("DROP INDEX IF EXISTS ix_items_text")
        return
    for statement in _DROP:
        tx.exec_driver_sql(statement)


def make_postgresql_index(tx: Connection) -> None:
    """Make PostgreSQL's text index, while others write, on a connection in autocommit mode.

    Raises:
        TextIndexUnavailable: The server has no pg_trgm, or this user may not install it.
    """
    try:
        tx.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    except sa_exc.DBAPIError as error:
        reason = str(error.orig).splitlines()[0]
        raise TextIndexUnavailable(f"PostgreSQL has no pg_trgm here: {reason}") from None
    if tx.exec_driver_sql(_POSTGRESQL_INVALID).scalar_one():  # left by a build that was cut off
        tx.exec_driver_sql("DROP INDEX ix_items_text")
    tx.exec_driver_sql(_POSTGRESQL_INDEX)
