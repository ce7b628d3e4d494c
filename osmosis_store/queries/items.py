"""What is in a sample: its items as the Agents SDK wants them, and as people look at them."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import Item, decode_body
from osmosis_store.errors import CorruptItem, SampleNotFound
from osmosis_store.records import ItemRecord, SampleKey, SampleRecord
from osmosis_store.schema import items, rollouts, samples
from osmosis_store.statements import bind_rows, run_compiled, run_rows

__all__ = [
    "fetch_item_records",
    "fetch_items",
    "fetch_items_of_many",
    "fetch_live_tail",
    "fetch_sample",
    "fetch_samples",
    "fetch_samples_by_rollout",
    "require_sample",
]

_of_sample = sa.and_(
    items.c.rollout_id == sa.bindparam("rollout_id"),
    items.c.sample_id == sa.bindparam("sample_id"),
)
_is_live = items.c.tombstoned_at.is_(None)

_LIVE = sa.select(items.c.seq, items.c.body).where(_of_sample, _is_live)
_LIVE_BY_SEQ = {
    "all": _LIVE.order_by(items.c.seq),
    "last": _LIVE.order_by(items.c.seq.desc()).limit(sa.bindparam("last")),
}


def _joined(rows: sa.Select[Any]) -> sa.ScalarSelect[Any]:
    """Return one value with all rows in it: `seq,seq… [body,body…]`.

    For SQLite: each of its rows is a step that gives up and retakes Python's lock, which with
    other threads at work costs more than the row.
    """
    part = rows.subquery()
    comma, opening, closing = (sa.literal_column(text, sa.Text) for text in ("','", "' ['", "']'"))
    positions = sa.func.group_concat(part.c.seq, comma, type_=sa.Text)
    bodies = sa.func.group_concat(part.c.body, comma, type_=sa.Text)
    return sa.select(positions + opening + bodies + closing).scalar_subquery()


@functools.cache
def _select_joined(size: int) -> sa.Executable:
    """Ask for all items of so many samples as one row, a column for each."""
    keys = bind_rows(size, items.c.rollout_id, items.c.sample_id)
    return sa.select(
        *(
            _joined(
                sa.select(items.c.seq, items.c.body)
                .where(
                    items.c.rollout_id == key["rollout_id"],
                    items.c.sample_id == key["sample_id"],
                    _is_live,
                )
                .order_by(items.c.seq)
            )
            for key in keys
        )
    )


_newest = _LIVE_BY_SEQ["last"].subquery()
_SELECT_LAST_JOINED = sa.select(_joined(sa.select(_newest).order_by(_newest.c.seq)))
_SELECT_RECORDS = (
    sa.select(
        *(
            column
            for column in items.c
            if column.name not in ("nonce", "body_digest", "chain_digest")
        )
    )
    .where(_of_sample)
    .order_by(items.c.seq)
)


def fetch_items(tx: Connection, sample: SampleKey, *, last: int | None = None) -> list[Item]:
    """Return a sample's live items, oldest first, as the Agents SDK's `Session.get_items` does.

    A sample that does not exist has none.

    Args:
        last: Only this many of the newest items; None: all; 0: none.

    Raises:
        CorruptItem: A body does not decode; names its row.
        ValueError: `last` is negative.
    """
    return _fetch(tx, sample, last)[1]


def fetch_live_tail(
    tx: Connection, sample: SampleKey, *, last: int | None = None
) -> list[tuple[int, Item]]:
    """Return the same items, each with its `seq`."""
    return list(zip(*_fetch(tx, sample, last), strict=True))


def fetch_items_of_many(
    tx: Connection, wanted: Sequence[SampleKey]
) -> list[list[Item] | CorruptItem]:
    """Return the live items of many samples at a time, or the error that keeps one from it."""
    if tx.dialect.name == "sqlite" and len(wanted) > 1:
        with contextlib.suppress(sqlite3.DataError):
            keys = [sample._asdict() for sample in wanted]
            texts = [text for row in run_rows(tx, _select_joined, keys) for text in row]
            return [
                _fetch_or_error(tx, sample) if (found := _decode_joined(text)) is None else found[1]
                for sample, text in zip(wanted, texts, strict=True)
            ]
    return [_fetch_or_error(tx, sample) for sample in wanted]


def _fetch_or_error(tx: Connection, sample: SampleKey) -> list[Item] | CorruptItem:
    try:
        return fetch_items(tx, sample)
    except CorruptItem as error:
        return error


def _fetch(tx: Connection, sample: SampleKey, last: int | None) -> tuple[list[int], list[Item]]:
    """Return positions and items, in order."""
    if last is not None and last < 0:
        raise ValueError(f"limit must not be negative: {last}")
    if last == 0:
        return [], []
    if tx.dialect.name == "sqlite":
        found = _decode_joined(_fetch_joined(tx, sample, last))
        if found is not None:
            return found
    statement = _LIVE_BY_SEQ["all" if last is None else "last"]
    rows = sorted(run_compiled(tx, statement, {**sample._asdict(), "last": last}).fetchall())
    return [seq for seq, _ in rows], [to_item(sample, seq, body) for seq, body in rows]


def _fetch_joined(tx: Connection, sample: SampleKey, last: int | None) -> Any:
    try:
        if last is None:
            return run_rows(tx, _select_joined, [sample._asdict()])[0][0]
        values = {**sample._asdict(), "last": last}
        return run_compiled(tx, _SELECT_LAST_JOINED, values).fetchone()[0]
    except sqlite3.DataError:  # SQLite joins no more than a gigabyte
        return ""


def _decode_joined(joined: str | None) -> tuple[list[int], list[Item]] | None:
    """Take joined rows apart; None where row by row has to tell what is wrong."""
    if joined is None:
        return [], []
    positions_text, _, bodies = joined.partition(" ")
    try:
        items = decode_body(bodies)
        positions = list(map(int, positions_text.split(",")))
    except (ValueError, RecursionError):
        return None
    whole = len(items) == len(positions) and set(map(type, items)) == {dict}
    # the order of a joined subquery is SQLite's habit, not its promise
    return (positions, items) if whole and positions == sorted(positions) else None


def to_item(sample: SampleKey, seq: int, body: object) -> Item:
    """Decode a stored body.

    Raises:
        CorruptItem: It is no JSON object; names its row.
    """
    try:
        item = decode_body(body)  # type: ignore[arg-type]  # a damaged row may hold anything
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptItem(*sample, seq, str(error)) from None
    if not isinstance(item, dict):
        raise CorruptItem(*sample, seq, "it is not a JSON object")
    return item


def fetch_item_records(tx: Connection, sample: SampleKey) -> list[ItemRecord]:
    """Return all of a sample's items in order, tombstoned ones too.

    Raises:
        CorruptItem: A body does not decode; names its row.
    """
    rows = tx.execute(_SELECT_RECORDS, sample._asdict()).mappings()
    return [
        ItemRecord(
            **{name: value for name, value in row.items() if name != "body"},
            item=to_item(sample, row["seq"], row["body"]),
        )
        for row in rows
    ]


def fetch_samples(tx: Connection, rollout_id: str) -> list[SampleRecord]:
    """Return a rollout's samples in the order in which it registered them."""
    rows = tx.execute(
        sa.select(samples).where(samples.c.rollout_id == rollout_id).order_by(samples.c.sample_no)
    )
    return [_to_sample(row) for row in rows]


def fetch_samples_by_rollout(tx: Connection, eval_run_id: str) -> dict[str, list[SampleRecord]]:
    """Return the samples of an eval run's rollouts by rollout id, each rollout's in order."""
    rows = tx.execute(
        sa.select(samples)
        .join(rollouts, rollouts.c.rollout_id == samples.c.rollout_id)
        .where(rollouts.c.eval_run_id == eval_run_id)
        .order_by(samples.c.rollout_id, samples.c.sample_no)
    )
    found: dict[str, list[SampleRecord]] = {}
    for row in rows:
        sample = _to_sample(row)
        found.setdefault(sample.rollout_id, []).append(sample)
    return found


def fetch_sample(tx: Connection, sample: SampleKey) -> SampleRecord | None:
    """Return one sample; None when there is none."""
    row = tx.execute(
        sa.select(samples).where(
            samples.c.rollout_id == sample.rollout_id, samples.c.sample_id == sample.sample_id
        )
    ).one_or_none()
    return None if row is None else _to_sample(row)


def require_sample(tx: Connection, sample: SampleKey) -> SampleRecord:
    """Return one sample.

    Raises:
        SampleNotFound: There is none; names those that the rollout has.
    """
    found = fetch_sample(tx, sample)
    if found is None:
        known = [one.sample_id for one in fetch_samples(tx, sample.rollout_id)]
        raise SampleNotFound(*sample, known)
    return found


def _to_sample(row: Any) -> SampleRecord:
    values = row._asdict()
    del values["grade_chain_head"]
    extra = values.pop("extra_fields")
    return SampleRecord(**values, extra_fields=None if extra is None else decode_body(extra))
