"""Statements at the driver's speed, and those that the two databases write differently."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

__all__ = [
    "QuickTransaction",
    "bind_rows",
    "end_transaction",
    "insert_if_absent",
    "read_pragma",
    "run_compiled",
    "run_rows",
    "to_driver_time",
    "utc_now",
    "values_of_rows",
]

_SIZES = (64, 16, 4, 1)


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


def read_pragma(tx: Connection, name: str) -> int:
    """Return one of SQLite's settings or counters."""
    return int(_open_cursor(tx).execute(f"PRAGMA {name}").fetchone()[0])


def _to_driver(
    row: dict[str, Any], order: tuple[str, ...] | None, constants: dict[str, Any]
) -> Any:
    """Return parameters as the driver wants them: in order, or by name."""
    if constants:
        row = {**constants, **row}
    return row if order is None else tuple([row[name] for name in order])


class QuickTransaction:
    """On SQLite, a writing transaction for compiled statements alone, which SQLAlchemy never sees.

    With its bookkeeping `begin` and `commit` cost as much as an append's statements. Errors are
    the driver's own; what fails is rolled back.
    """

    def __init__(self, tx: Connection) -> None:
        self._tx = tx
        self._raw: Any = tx.connection.driver_connection

    def __enter__(self) -> None:
        self._raw.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if error is None:
                self._tx.dialect.do_commit(self._raw)
        finally:
            if self._raw.in_transaction:
                self._raw.rollback()


def end_transaction(tx: Connection) -> None:
    """End a reader's transaction, also one that only the driver knows of."""
    if tx.in_transaction():
        tx.rollback()
    elif tx.dialect.name == "postgresql":
        tx.connection.rollback()


def run_rows(
    tx: Connection,
    build: Callable[[int], sa.Executable],
    rows: Sequence[tuple[Any, ...]],
) -> list[Any]:
    """Run a statement that takes many rows at once over all of them, in a few sizes.

    A step of SQLite gives up and retakes Python's lock: with other threads at work a statement for
    64 rows costs little more than one for a single row.

    Args:
        build: Makes the statement for a number of rows, whose parameters stand in its text row by
            row. Cached by its caller.
        rows: Driver values, each row's in the order of the parameters.

    Returns:
        The rows that the statements gave.
    """
    found: list[Any] = []
    cursor = _open_cursor(tx)
    at = 0
    while at < len(rows):
        size = next(size for size in _SIZES if size <= len(rows) - at)
        part = rows[at : at + size]
        values = [value for row in part for value in row]
        text, names = _compile_rows(build, size, tx.dialect)
        cursor.execute(text, values if names is None else dict(zip(names, values, strict=True)))
        if cursor.description is not None:
            found += cursor.fetchall()
        at += size
    return found


@functools.cache
def _compile_rows(
    build: Callable[[int], sa.Executable], size: int, dialect: sa.Dialect
) -> tuple[str, tuple[str, ...] | None]:
    """Return a statement's text and its parameters' names in order; None: they have no names."""
    compiled = build(size).compile(dialect=dialect)  # type: ignore[attr-defined]
    return str(compiled), None if compiled.positional else tuple(compiled.binds)


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
    """Return an INSERT that leaves a row that is there already as it is; the same on SQLite.

    Its `rowcount` tells whether there was one.
    """
    insert = postgresql.insert(table).on_conflict_do_nothing()
    # without it psycopg's count of an INSERT is lost, and reads as -1
    return insert.execution_options(preserve_rowcount=True)


def utc_now(tx: Connection, *, plus_s: float = 0) -> sa.ColumnElement[Any]:
    """Return the database's clock, or a time so many seconds later, as a time column's value."""
    if tx.dialect.name == "postgresql":
        return sa.func.clock_timestamp() + sa.cast(f"{plus_s} seconds", sa.Interval)
    later = sa.func.strftime("%Y-%m-%d %H:%M:%f", "now", f"{plus_s:+} seconds")
    return later.op("||")(sa.literal_column("'000'"))  # milliseconds to microseconds
