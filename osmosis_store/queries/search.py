"""Items by what they say."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from osmosis_store.errors import InvalidSelection
from osmosis_store.queries.items import to_item
from osmosis_store.queries.selection import (
    Candidate,
    fetch_fulfilling,
    is_sql_alone,
    rollout_conditions,
    sample_conditions,
)
from osmosis_store.queries.text_filter import fetch_match, may_say, select_matching
from osmosis_store.records import ItemKey, SampleKey, Selection
from osmosis_store.schema import items, rollouts, samples
from osmosis_store.texts import Hit, find_text

__all__ = ["FoundItem", "fetch_items_saying"]

_SLICE = 500
_KEY = (items.c.rollout_id, items.c.sample_id, items.c.seq)
_COLUMNS = (
    *_KEY,
    items.c.body,
    items.c.type,
    items.c.role,
    items.c.tool_name,
    items.c.created_at,
    items.c.tombstoned_at,
    items.c.recovered,
)


@dataclass(frozen=True, kw_only=True)
class FoundItem:
    """An item that says a text, and where it does so first."""

    rollout_id: str
    sample_id: str
    seq: int
    type: str | None
    role: str | None
    tool_name: str | None
    created_at: dt.datetime
    tombstoned_at: dt.datetime | None
    recovered: bool
    hit: Hit

    @property
    def key(self) -> ItemKey:
        """The item's key."""
        return ItemKey(self.rollout_id, self.sample_id, self.seq)


def fetch_items_saying(
    tx: Connection,
    text: str,
    selection: Selection,
    *,
    after: ItemKey | None = None,
    limit: int,
) -> list[FoundItem]:
    """Return the items that say a text, popped ones too, by rollout, sample and position.

    Args:
        text: As `Selection.text`.
        selection: Only items of these rollouts, and of samples that fulfil its conditions on
            samples.
        after: Only those behind this one: the last one of the page before.
        limit: At most so many.

    Raises:
        InvalidSelection: The text is empty.
        GradingRunNotFound: The selection names a grading run that does not exist.
        CorruptItem: A body does not decode; names its row.
    """
    if not text:
        raise InvalidSelection("the text to search for is empty")
    found: list[FoundItem] = []
    for rows in _fetch_slices(tx, _select(tx, text, selection), after):
        selected = _fetch_selected(tx, selection, rows)
        for row in rows:
            if row.rollout_id not in selected:
                continue
            hit = find_text(
                to_item(SampleKey(row.rollout_id, row.sample_id), row.seq, row.body), text
            )
            if hit is not None:
                values = row._asdict()
                del values["body"], values["metadata"]
                found.append(FoundItem(**values, hit=hit))
                if len(found) == limit:
                    return found
    return found


def _select(tx: Connection, text: str, selection: Selection) -> sa.Select[Any]:
    source: sa.FromClause = items
    if (match := fetch_match(tx, text)) is not None:
        matching = select_matching(match).subquery()
        source = matching.join(items, sa.and_(*(matching.c[one.name] == one for one in _KEY)))
    source = source.join(rollouts, rollouts.c.rollout_id == items.c.rollout_id).join(
        samples,
        sa.and_(
            samples.c.rollout_id == items.c.rollout_id, samples.c.sample_id == items.c.sample_id
        ),
    )
    conditions = [may_say(tx, text), *sample_conditions(tx, selection)]
    if selection != Selection():
        conditions += rollout_conditions(tx, selection)
    return (
        sa.select(*_COLUMNS, rollouts.c.metadata)
        .select_from(source)
        .where(*conditions)
        .order_by(*_KEY)
    )


def _fetch_slices(
    tx: Connection, statement: sa.Select[Any], after: ItemKey | None
) -> Iterator[list[Row[Any]]]:
    while True:
        behind = statement if after is None else statement.where(sa.tuple_(*_KEY) > after)
        rows = list(tx.execute(behind.limit(_SLICE)).fetchall())
        yield rows
        if len(rows) < _SLICE:
            return
        after = ItemKey(*rows[-1][:3])


def _fetch_selected(tx: Connection, selection: Selection, rows: list[Row[Any]]) -> set[str]:
    candidates = {row.rollout_id: Candidate(row.rollout_id, row.metadata) for row in rows}
    if is_sql_alone(selection):
        return set(candidates)
    return fetch_fulfilling(tx, selection, candidates.values())
