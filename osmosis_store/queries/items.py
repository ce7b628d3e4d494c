"""What is in a sample: its items as the Agents SDK wants them, and as people look at them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import Item, decode_body
from osmosis_store.engine import run_compiled
from osmosis_store.errors import CorruptItem, SampleNotFound
from osmosis_store.records import ItemRecord, SampleKey, SampleRecord
from osmosis_store.schema import items, rollouts, samples

__all__ = [
    "StoredBodies",
    "fetch_bodies",
    "fetch_item_records",
    "fetch_items",
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


def _joined(rows: sa.Select[Any]) -> sa.Select[Any]:
    """Return a statement that gives all rows as one: positions and bodies, joined by commas.

    For SQLite: each of its rows is a step that gives up and retakes Python's lock, which with
    other threads at work costs more than the row.
    """
    part = rows.subquery()
    comma: sa.ColumnElement[str] = sa.literal_column("','")
    return sa.select(
        sa.func.group_concat(part.c.seq, comma), sa.func.group_concat(part.c.body, comma)
    )


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
class StoredBodies:
    """A sample's items as they were fetched: positions and bodies, not decoded yet.

    Attributes:
        joined: All positions and all bodies, each joined by commas; None where `rows` has them.
        rows: Position and body of each item.
    """

    sample: SampleKey
    joined: tuple[str, str] | None
    rows: Sequence[tuple[int, object]] = ()

    @property
    def size(self) -> int:
        """Characters of the joined bodies, about what decoding takes time for."""
        return 0 if self.joined is None else len(self.joined[1])

    def decode(self) -> list[tuple[int, Item]] | None:
        """Return each item with its position, oldest first; None: only the rows could tell.

        Raises:
            CorruptItem: A body does not decode; names its row.
        """
        if self.joined is None:
            return [(seq, to_item(self.sample, seq, body)) for seq, body in self.rows]
        positions, bodies = self.joined
        try:
            items = decode_body(f"[{bodies}]")
            order = [int(position) for position in positions.split(",")]
        except (ValueError, RecursionError):
            return None
        whole = len(items) == len(order) and all(type(item) is dict for item in items)
        ordered = all(first < then for first, then in pairwise(order))
        return list(zip(order, items, strict=True)) if whole and ordered else None


def fetch_items(tx: Connection, sample: SampleKey, *, last: int | None = None) -> list[Item]:
    """Return a sample's live items, oldest first, as the Agents SDK's `Session.get_items` does.

    A sample that does not exist has none.

    Args:
        last: Only this many of the newest items; None: all; 0: none.

    Raises:
        CorruptItem: A body does not decode; names its row.
        ValueError: `last` is negative.
    """
    return [item for _, item in fetch_live_tail(tx, sample, last=last)]


def fetch_live_tail(
    tx: Connection, sample: SampleKey, *, last: int | None = None
) -> list[tuple[int, Item]]:
    """Return the same items, each with its `seq`."""
    found = fetch_bodies(tx, sample, last=last).decode()
    if found is None:
        found = fetch_bodies(tx, sample, last=last, by_row=True).decode()
    assert found is not None
    return found


def fetch_bodies(
    tx: Connection, sample: SampleKey, *, last: int | None = None, by_row: bool = False
) -> StoredBodies:
    """Return the same items not decoded yet.

    Args:
        by_row: Whatever it costs, so that a body that does not decode can be named.
    """
    if last is not None and last < 0:
        raise ValueError(f"limit must not be negative: {last}")
    if last == 0:
        return StoredBodies(sample, None)
    which = "all" if last is None else "last"
    values = {**sample._asdict(), "last": last}
    if tx.dialect.name == "sqlite" and not by_row:
        # over a gigabyte there is no one row
        with contextlib.suppress(sqlite3.DataError):
            joined = run_compiled(tx, _JOINED[which], values).fetchone()
            return StoredBodies(sample, None if joined[0] is None else joined)
    rows = run_compiled(tx, _LIVE_BY_SEQ[which], values).fetchall()
    return StoredBodies(sample, None, sorted(rows))


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
