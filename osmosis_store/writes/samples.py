"""Conversations and samples: their beginning, and items that go from them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import EncodedItem, Item, first_chain_digest
from osmosis_store.errors import RolloutFinished, RolloutNotFound
from osmosis_store.queries.items import fetch_live_items
from osmosis_store.records import SampleKey
from osmosis_store.schema import items, rollouts, samples
from osmosis_store.statements import insert_if_absent, run_compiled, to_driver_time
from osmosis_store.writes.audit import append_audit
from osmosis_store.writes.heads import lock_heads, lock_rollout
from osmosis_store.writes.items import Append, append_items

__all__ = [
    "ensure_conversation",
    "ensure_sample",
    "pop_item",
    "replace_tail",
    "tombstone_items",
]

_INSERT_OPEN = insert_if_absent(rollouts).values(
    rollout_id=sa.bindparam("rollout_id"),
    status="open",
    metadata=sa.bindparam("metadata"),
    started_at=sa.bindparam("started_at"),
)
_INSERT_SAMPLE = insert_if_absent(samples).values(
    rollout_id=sa.bindparam("rollout_id"),
    sample_id=sa.bindparam("sample_id"),
    sample_no=sa.select(sa.func.count())
    .where(samples.c.rollout_id == sa.bindparam("rollout_id"))
    .scalar_subquery(),
    chain_head=sa.bindparam("first"),
    grade_chain_head=sa.bindparam("first"),
    created_at=sa.bindparam("now"),
    updated_at=sa.bindparam("now"),
)


def ensure_conversation(
    tx: Connection, sample: SampleKey, *, metadata: str | None, now: dt.datetime
) -> None:
    """Make an open conversation and its sample where they do not exist.

    Args:
        metadata: A JSON object as text; kept from the first time.

    Raises:
        RolloutFinished: The id belongs to a rollout that was run.
    """
    row = {
        "rollout_id": sample.rollout_id,
        "metadata": metadata,
        "started_at": to_driver_time(tx, now),
    }
    run_compiled(tx, _INSERT_OPEN, row)
    status = lock_rollout(tx, sample.rollout_id)
    if status != "open":
        raise RolloutFinished(sample.rollout_id, str(status))
    _insert_sample(tx, sample, now)


def ensure_sample(tx: Connection, sample: SampleKey, *, now: dt.datetime) -> None:
    """Make an empty sample where it does not exist, numbered after those of its rollout.

    Raises:
        RolloutNotFound: There is no such rollout.
    """
    if lock_rollout(tx, sample.rollout_id) is None:
        raise RolloutNotFound(sample.rollout_id)
    _insert_sample(tx, sample, now)


def _insert_sample(tx: Connection, sample: SampleKey, now: dt.datetime) -> None:
    row = {
        **sample._asdict(),
        "first": first_chain_digest(*sample),
        "now": to_driver_time(tx, now),
    }
    run_compiled(tx, _INSERT_SAMPLE, row)


def pop_item(tx: Connection, sample: SampleKey, *, now: dt.datetime) -> Item | None:
    """Take the newest live item away, leaving its row, and return it; None when there is none.

    Raises:
        CorruptItem: It does not decode; it stays.
    """
    lock_heads(tx, {sample})
    newest = fetch_live_items(tx, sample, last=1)
    if not newest.items:
        return None
    tombstone_items(tx, sample, from_seq=newest.positions[0], reason="popped", now=now)
    return newest.items[0]


def tombstone_items(
    tx: Connection,
    sample: SampleKey,
    *,
    from_seq: int = 0,
    end_seq: int | None = None,
    reason: str,
    now: dt.datetime,
) -> int:
    """Mark a sample's live items from a position on as gone, and return how many there were.

    Args:
        end_seq: The position at which to stop, itself left alone; None: none.
        reason: `popped`, `cleared`, `compacted` or `expired`; kept in the rows and in the audit
            log.
    """
    lock_heads(tx, {sample})
    live = sa.and_(
        items.c.rollout_id == sample.rollout_id,
        items.c.sample_id == sample.sample_id,
        items.c.seq >= from_seq,
        sa.true() if end_seq is None else items.c.seq < end_seq,
        items.c.tombstoned_at.is_(None),
    )
    gone = tx.execute(
        sa.update(items).where(live).values(tombstoned_at=now, tombstone_reason=reason)
    ).rowcount
    if gone:
        append_audit(
            tx,
            f"sample.{reason}",
            now=now,
            sample=sample,
            detail={"from_seq": from_seq, "item_count": gone},
        )
    return gone


def replace_tail(
    tx: Connection,
    sample: SampleKey,
    seen: Sequence[int],
    new: list[EncodedItem],
    *,
    is_expired: Callable[[Item], bool] | None = None,
    now: dt.datetime,
) -> bool:
    """Put new items in the place of the newest ones, if they are still the ones that were seen.

    Args:
        seen: The positions of the newest live items when the caller looked; at least one.
        is_expired: The oldest items for which it holds go too, up to the first for which it does
            not; None: none.

    Returns:
        False, with nothing changed, when the sample has changed since.
    """
    lock_heads(tx, {sample})
    if fetch_live_items(tx, sample, last=len(seen)).positions != list(seen):
        return False
    tombstone_items(tx, sample, from_seq=seen[0], reason="compacted", now=now)
    if is_expired is not None:
        kept = fetch_live_items(tx, sample)
        pairs = zip(kept.positions, kept.items, strict=True)
        end_seq = next((seq for seq, item in pairs if not is_expired(item)), seen[0])
        tombstone_items(tx, sample, end_seq=end_seq, reason="expired", now=now)
    append_items(tx, [Append(sample, new)], now=now)
    return True
