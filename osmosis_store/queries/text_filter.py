"""Which items may say a text, as SQL can tell; what `texts.find_text` then says of them is true."""

from __future__ import annotations

import re
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.schema import items
from osmosis_store.texts import fold

__all__ = [
    "fetch_match",
    "has_text_index",
    "holds_runs",
    "lowered",
    "may_say",
    "runs_of",
    "select_matching",
]

# No encoder escapes these; some escape / and what HTML gives a meaning: & ' + < = > `
_NEVER_ESCAPED = r"A-Za-z0-9 .,:;!?@#$%*^|~_(){}\[\]\-"
_ASCII_RUN = re.compile(f"[{_NEVER_ESCAPED}]+")
_RUN = re.compile(f"[{_NEVER_ESCAPED}\u00a0-\ud7ff\ue000-\U0010ffff]+")
_WILD = re.compile("[%_~]")
_MAX_RUNS, _MAX_LENGTH = 5, 100

_GRAM = 3
_MAX_GRAMS = 8
# Of what so many items say, a page is found sooner by looking at the items in order.
_MANY = 20_000
_ESCAPES = " OR ".join(f'"\\u{digit}"' for digit in "0123456789abcdef")

_index = sa.table("item_search", sa.column("rowid", sa.Integer))
_keys = sa.table(
    "item_search_keys",
    *(sa.column(name) for name in ("text_id", "rollout_id", "sample_id", "seq")),
)
_HAS_INDEX = sa.text(
    "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'item_search_ready'"
)
_HAS_POSTGRESQL_INDEX = sa.text(
    "SELECT count(*) FROM pg_class JOIN pg_index ON indexrelid = oid "
    "WHERE relname = 'ix_items_text' AND indisvalid"
)


def runs_of(text: str, *, ascii_only: bool = False) -> list[str]:
    """Return the parts of a text that no escape of JSON changes, in order, the first few.

    However deep a text lies in JSON in JSON, letters, digits, spaces and most signs are in the
    body as they are. So is what is not ASCII, unless the body has a backslash and u.
    """
    found = (_ASCII_RUN if ascii_only else _RUN).findall(fold(text))
    return [run[:_MAX_LENGTH] for run in found[:_MAX_RUNS]]


def lowered(tx: Connection, column: sa.Column[str]) -> sa.ColumnElement[str]:
    """Return a text as it is compared with a pattern: A to Z in either case, all else exactly."""
    if tx.dialect.name == "postgresql":
        return sa.func.lower(column.collate("C"))
    return column  # SQLite's LIKE takes A to Z in either case anyway


def holds_runs(column: sa.ColumnElement[str], runs: list[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a `lowered` text has these parts in this order."""
    pattern = "".join(f"%{_WILD.sub(_escape, run)}" for run in runs) + "%"
    return column.like(pattern, escape="~")


def _escape(found: re.Match[str]) -> str:
    return f"~{found[0]}"


def may_say(tx: Connection, text: str) -> sa.ColumnElement[bool]:
    """Return a condition that every item fulfils that says the text, and some others do."""
    body = lowered(tx, items.c.body)
    plain = holds_runs(body, runs_of(text))
    if text.isascii():
        return plain
    has_escape = body.like("%\\u%", escape="~")
    return sa.or_(plain, sa.and_(has_escape, holds_runs(body, runs_of(text, ascii_only=True))))


def has_text_index(tx: Connection) -> bool:
    """Tell whether there is a text index, complete."""
    is_sqlite = tx.dialect.name == "sqlite"
    return bool(tx.execute(_HAS_INDEX if is_sqlite else _HAS_POSTGRESQL_INDEX).scalar_one())


def fetch_match(tx: Connection, text: str) -> str | None:
    """Return the question for SQLite's text index that finds the items that may say a text.

    None: there is no index, or it is of no use: the text has no three characters in a row, or is
    in too many items. PostgreSQL uses its index by itself.
    """
    if tx.dialect.name != "sqlite":
        return None
    match = _to_match(text)
    if match is None or not has_text_index(tx):
        return None
    some = sa.select(_index.c.rowid).where(_matches(match)).limit(_MANY + 1).subquery()
    count = tx.execute(sa.select(sa.func.count()).select_from(some)).scalar_one()
    return match if count <= _MANY else None


def select_matching(match: str) -> sa.Select[tuple[str, str, int]]:
    """Select the keys of the items that `fetch_match` is about."""
    return (
        sa.select(_keys.c.rollout_id, _keys.c.sample_id, _keys.c.seq)
        .select_from(_index.join(_keys, _keys.c.text_id == _index.c.rowid))
        .where(_matches(match))
    )


def _matches(match: str) -> sa.ColumnElement[bool]:
    return sa.literal_column("item_search").op("MATCH", is_comparison=True)(match)


def _to_match(text: str) -> str | None:
    plain = _all_of(runs_of(text))
    if plain is None or text.isascii():
        return plain
    rest = _all_of(runs_of(text, ascii_only=True))
    escaped = f"({_ESCAPES})" if rest is None else f"({rest} AND ({_ESCAPES}))"
    return f"{plain} OR {escaped}"


def _all_of(runs: list[str]) -> str | None:
    grams = list(dict.fromkeys(gram for run in runs for gram in _grams(run)))
    if not grams:
        return None
    step = -(-len(grams) // _MAX_GRAMS)
    return "(" + " AND ".join(f'"{gram}"' for gram in grams[::step]) + ")"


def _grams(run: str) -> Iterator[str]:
    return (run[at : at + _GRAM] for at in range(len(run) - _GRAM + 1))
