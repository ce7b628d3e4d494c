"""What is in a sample: its items as the Agents SDK wants them, and as people look at them."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import Item, decode_body
from osmosis_store.errors import CorruptItem, SampleNotFound
from osmosis_store.records import ItemRecord, SampleKey, SampleRecord
from osmosis_store.schema import items, rollouts, samples
from osmosis_store.statements import run_compiled

__all__ = [
    "LiveItems",
    "fetch_item_records",
    "fetch_items",
    "fetch_live_items",
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


def _joined(rows: sa.Select[Any]) -> sa.Executable:
    """Return one row with all rows in it: `[seq,seq…]` and `[body,body…]`.

    For SQLite: each of its rows is a step that gives up and retakes Python's lock, which with
    other threads at work costs more than the row. As bytes, since a JSON decoder wants those.
    """
    part = rows.subquery()
    comma, opening, closing = (sa.literal_column(text, sa.Text) for text in ("','", "'['", "']'"))
    seqs, bodies = (
        opening + sa.func.group_concat(column, comma, type_=sa.Text) + closing
        for column in (part.c.seq, part.c.body)
    )
    return sa.select(sa.cast(seqs, sa.LargeBinary), sa.cast(bodies, sa.LargeBinary))


_newest = _LIVE_BY_SEQ["last"].subquery()
_JOINED = {
    "all": _joined(_LIVE_BY_SEQ["all"]),
    "last": _joined(sa.select(_newest).order_by(_newest.c.seq)),
}
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


@dataclass(frozen=True, slots=True)
class LiveItems:
    """A sample's live items, oldest first, each with its position.

    Attributes:
        size: Bytes of all bodies, nearly.
    """

    positions: list[int]
    items: list[Item]
    size: int


def fetch_live_items(tx: Connection, sample: SampleKey, *, last: int | None = None) -> LiveItems:
    """Return a sample's live items; a sample that does not exist has none.

    Args:
        last: Only this many of the newest items; None: all; 0: none.

    Raises:
        CorruptItem: A body does not decode; names its row.
        ValueError: `last` is negative.
    """
    if last is not None and last < 0:
        raise ValueError(f"limit must not be negative: {last}")
    if last == 0:
        return LiveItems([], [], 0)
    values = {**sample._asdict(), "last": last}
    which = "all" if last is None else "last"
    if tx.dialect.name == "sqlite":
        found = _fetch_joined(tx, which, values)
        if found is not None:
            return found
    rows = sorted(run_compiled(tx, _LIVE_BY_SEQ[which], values).fetchall())
    return LiveItems(
        positions=[seq for seq, _ in rows],
        items=[to_item(sample, seq, body) for seq, body in rows],
        size=sum(len(body) for _, body in rows),
    )


def fetch_items(tx: Connection, sample: SampleKey, *, last: int | None = None) -> list[Item]:
    """Return what `fetch_live_items` does, as the Agents SDK's `Session.get_items` wants it."""
    return fetch_live_items(tx, sample, last=last).items


def _fetch_joined(tx: Connection, which: str, values: dict[str, Any]) -> LiveItems | None:
    """Fetch and decode all rows at once; None where row by row has to tell what is wrong."""
    try:
        seqs, bodies = run_compiled(tx, _JOINED[which], values).fetchone()
        if bodies is None:
            return LiveItems([], [], 0)
        positions, items = decode_body(seqs), decode_body(bodies)
    except (sqlite3.DataError, ValueError, RecursionError):  # DataError: over a gigabyte
        return None
    whole = len(items) == len(positions) and set(map(type, items)) == {dict}
    # the order of a joined subquery is SQLite's habit, not its promise
    in_order = positions == sorted(positions)
    return LiveItems(positions, items, len(bodies)) if whole and in_order else None


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
