"""Which items may say a text, as SQL can tell; what `texts.find_text` then says of them is true."""

from __future__ import annotations

import re

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.schema import items
from osmosis_store.texts import fold

__all__ = ["holds_runs", "lowered", "may_say", "runs_of"]

_ASCII_RUN = re.compile("[A-Za-z0-9 ]+")
_RUN = re.compile("[A-Za-z0-9 \u00a0-\ud7ff\ue000-\U0010ffff]+")
_MAX_RUNS, _MAX_LENGTH = 5, 100


def runs_of(text: str, *, ascii_only: bool = False) -> list[str]:
    """Return the parts of a text that no escape of JSON changes, in order, the first few.

    However deep a text lies in JSON in JSON, letters, digits and spaces are in the body as they
    are. So is what is not ASCII, unless the body has a backslash and u.
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
    return column.like(f"%{'%'.join(runs)}%" if runs else "%", escape="~")


def may_say(tx: Connection, text: str) -> sa.ColumnElement[bool]:
    """Return a condition that every item fulfils that says the text, and some others do."""
    body = lowered(tx, items.c.body)
    plain = holds_runs(body, runs_of(text))
    if text.isascii():
        return plain
    has_escape = body.like("%\\u%", escape="~")
    return sa.or_(plain, sa.and_(has_escape, holds_runs(body, runs_of(text, ascii_only=True))))
