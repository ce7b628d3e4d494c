"""The write path of items: appends, which are data so that many share a statement; tombstones."""

from __future__ import annotations

import datetime as dt
import functools
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import (
    EncodedItem,
    Item,
    body_digest,
    chain_digest,
    decode_body,
    first_chain_digest,
)
from osmosis_store.engine import (
    bind_rows,
    insert_if_absent,
    run_compiled,
    run_rows,
    to_driver_time,
    values_of_rows,
)
from osmosis_store.errors import RolloutFinished, RolloutNotFound, SampleNotFound
from osmosis_store.queries.items import fetch_live_tail
from osmosis_store.records import SampleKey, Usage
from osmosis_store.schema import items, model_calls, rollouts, samples
from osmosis_store.writes.audit import append_audit

__all__ = [
    "Append",
    "SeqRange",
    "append_items",
    "ensure_conversation",
    "ensure_sample",
    "pop_item",
    "replace_tail",
    "tombstone_items",
]

_NONCE_BYTES = 16


@dataclass(slots=True)
class Append:
    """One call's items for one sample.

    Attributes:
        saved_calls: Model calls whose whole output is among these items, by call number: the
            journal's copy of it goes in the same transaction.
        call_numbers: For each item the model call that gave it, or None.
        usage: Tokens of the model call that gave the items, where nothing else records it.
    """

    sample: SampleKey
    items: list[EncodedItem]
    saved_calls: Sequence[int] = ()
    call_numbers: Sequence[int | None] = ()
    usage: Usage | None = None

    @property
    def size(self) -> int:
        """Bytes of all bodies."""
        return sum(len(item.data) for item in self.items)


class SeqRange(NamedTuple):
    """The positions that an append took: from `first` up to, not including, `end`."""

    first: int
    end: int


_NEW_COLUMNS = tuple(
    items.c[name]
    for name in (
        "rollout_id",
        "sample_id",
        "seq",
        "body",
        "nonce",
        "chain_digest",
        "type",
        "role",
        "tool_name",
        "call_id",
        "call_no",
        "created_at",
    )
)
_HEAD_COLUMNS = (
    samples.c.rollout_id,
    samples.c.sample_id,
    samples.c.item_count,
    samples.c.chain_head,
)


@functools.cache
def _insert_items(size: int) -> sa.Executable:
    return sa.insert(items).values(bind_rows(size, *_NEW_COLUMNS))


@functools.cache
def _lock_heads_statement(size: int) -> sa.Executable:
    """Hold samples in the order of their keys, so that two writers do not deadlock."""
    wanted = values_of_rows("wanted", size, samples.c.rollout_id, samples.c.sample_id)
    return (
        sa.select(*_HEAD_COLUMNS)
        .join(wanted, _is_same_sample(wanted))
        .order_by(samples.c.rollout_id, samples.c.sample_id)
        .with_for_update(of=samples)
    )


@functools.cache
def _select_heads_as_json(size: int) -> sa.Executable:
    """Ask SQLite, whose one writer holds everything already, for all heads as one row."""
    wanted = values_of_rows("wanted", size, samples.c.rollout_id, samples.c.sample_id)
    *facts, head = _HEAD_COLUMNS
    row = sa.func.json_array(*facts, sa.func.hex(head))
    return sa.select(sa.func.json_group_array(row)).select_from(
        sa.join(wanted, samples, _is_same_sample(wanted))
    )


@functools.cache
def _advance_heads(size: int) -> sa.Executable:
    grown = values_of_rows("grown", size, *_HEAD_COLUMNS, samples.c.updated_at)
    return (
        sa.update(samples)
        .where(_is_same_sample(grown))
        .values({name: grown.c[name] for name in ("item_count", "chain_head", "updated_at")})
    )


def _is_same_sample(rows: sa.CTE) -> sa.ColumnElement[bool]:
    return sa.and_(
        samples.c.rollout_id == rows.c.rollout_id, samples.c.sample_id == rows.c.sample_id
    )


_SETTLE_CALLS = (
    sa.update(model_calls)
    .where(
        model_calls.c.rollout_id == sa.bindparam("key_rollout_id"),
        model_calls.c.call_no == sa.bindparam("key_call_no"),
    )
    .values(state="saved", output=None)
)


_INSERT_USED_CALL = sa.insert(model_calls).values(
    rollout_id=sa.bindparam("rollout_id"),
    call_no=sa.select(sa.func.coalesce(sa.func.max(model_calls.c.call_no), -1) + 1)
    .where(model_calls.c.rollout_id == sa.bindparam("rollout_id"))
    .scalar_subquery(),
    sample_id=sa.bindparam("sample_id"),
    settings="{}",
    state="saved",
    asked_at=sa.bindparam("asked_at"),
    input_tokens=sa.bindparam("input_tokens"),
    cached_tokens=sa.bindparam("cached_tokens"),
    output_tokens=sa.bindparam("output_tokens"),
    reasoning_tokens=sa.bindparam("reasoning_tokens"),
)
_INSERT_OPEN = insert_if_absent(rollouts).values(
    rollout_id=sa.bindparam("rollout_id"),
    status="open",
    metadata=sa.bindparam("metadata"),
    started_at=sa.bindparam("started_at"),
)
_LOCK_ROLLOUT = (
    sa.select(rollouts.c.status)
    .where(rollouts.c.rollout_id == sa.bindparam("rollout_id"))
    .with_for_update()
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


def append_items(
    tx: Connection, appends: Sequence[Append], *, now: dt.datetime
) -> list[SeqRange | SampleNotFound]:
    """Append many calls' items, each call's in one piece, numbered on from its sample's last.

    Returns:
        For each append, in order, the positions it took, or the error that keeps it alone from
        being stored.
    """
    heads = _lock_heads(tx, {append.sample for append in appends})
    at = to_driver_time(tx, now)
    new_rows: list[dict[str, Any]] = []
    outcomes: list[SeqRange | SampleNotFound] = []
    grown: set[SampleKey] = set()
    settled: list[dict[str, Any]] = []
    for append in appends:
        sample = append.sample
        head = heads.get(sample)
        if head is None:
            outcomes.append(SampleNotFound(*sample))
            continue
        first, chain = head
        seq, chain = _number(append, first, chain, at, new_rows)
        heads[sample] = (seq, chain)
        grown.add(sample)
        outcomes.append(SeqRange(first, seq))
        settled += [
            {"key_rollout_id": sample.rollout_id, "key_call_no": call_no}
            for call_no in append.saved_calls
        ]
    if new_rows:
        run_rows(tx, _insert_items, new_rows)
        run_rows(tx, _advance_heads, [_to_head(one, *heads[one], at) for one in grown])
    if settled:
        run_compiled(tx, _SETTLE_CALLS, settled)
    for append in appends:
        if append.usage is not None and append.sample in grown:
            _insert_used_call(tx, append.sample, append.usage, at)
    return outcomes


def _insert_used_call(tx: Connection, sample: SampleKey, usage: Usage, asked_at: Any) -> None:
    """Add a model call of which only the tokens are known."""
    _lock_rollout(tx, sample.rollout_id)
    row = {**sample._asdict(), **asdict(usage), "asked_at": asked_at}
    run_compiled(tx, _INSERT_USED_CALL, row)


def _number(
    append: Append, seq: int, chain: bytes, created_at: Any, rows: list[dict[str, Any]]
) -> tuple[int, bytes]:
    """Add an append's rows and return the sample's next position and new chain head."""
    rollout_id, sample_id = append.sample
    numbers = append.call_numbers or (None,) * len(append.items)
    nonces = os.urandom(_NONCE_BYTES * len(append.items))
    for at, item in enumerate(append.items):
        nonce = nonces[at * _NONCE_BYTES : (at + 1) * _NONCE_BYTES]
        chain = chain_digest(chain, seq, body_digest(nonce, item.data))
        rows.append(
            {
                "rollout_id": rollout_id,
                "sample_id": sample_id,
                "seq": seq,
                "body": item.body,
                "nonce": nonce,
                "chain_digest": chain,
                "type": item.type,
                "role": item.role,
                "tool_name": item.tool_name,
                "call_id": item.call_id,
                "call_no": numbers[at],
                "created_at": created_at,
            }
        )
        seq += 1
    return seq, chain


def _lock_heads(tx: Connection, wanted: set[SampleKey]) -> dict[SampleKey, tuple[int, bytes]]:
    """Hold samples against other writers until the transaction ends; return count and head."""
    keys = [key._asdict() for key in sorted(wanted)]
    if tx.dialect.name == "postgresql":
        rows = run_rows(tx, _lock_heads_statement, keys)
        return {SampleKey(row[0], row[1]): (row[2], row[3]) for row in rows}
    found = run_rows(tx, _select_heads_as_json, keys)
    return {
        SampleKey(row[0], row[1]): (row[2], bytes.fromhex(row[3]))
        for (text,) in found
        for row in decode_body(text)
    }


def _to_head(sample: SampleKey, count: int, chain: bytes, updated_at: Any) -> dict[str, Any]:
    return {
        "rollout_id": sample.rollout_id,
        "sample_id": sample.sample_id,
        "item_count": count,
        "chain_head": chain,
        "updated_at": updated_at,
    }


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
    status = _lock_rollout(tx, sample.rollout_id)
    if status != "open":
        raise RolloutFinished(sample.rollout_id, str(status))
    _insert_sample(tx, sample, now)


def ensure_sample(tx: Connection, sample: SampleKey, *, now: dt.datetime) -> None:
    """Make an empty sample where it does not exist, numbered after those of its rollout.

    Raises:
        RolloutNotFound: There is no such rollout.
    """
    if _lock_rollout(tx, sample.rollout_id) is None:
        raise RolloutNotFound(sample.rollout_id)
    _insert_sample(tx, sample, now)


def _lock_rollout(tx: Connection, rollout_id: str) -> str | None:
    """Hold a rollout against other writers and return its status; None when there is none."""
    row = run_compiled(tx, _LOCK_ROLLOUT, {"rollout_id": rollout_id}).fetchone()
    return None if row is None else str(row[0])


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
    _lock_heads(tx, {sample})
    newest = fetch_live_tail(tx, sample, last=1)
    if not newest:
        return None
    seq, item = newest[0]
    tombstone_items(tx, sample, from_seq=seq, reason="popped", now=now)
    return item


def tombstone_items(
    tx: Connection, sample: SampleKey, *, from_seq: int = 0, reason: str, now: dt.datetime
) -> int:
    """Mark a sample's live items from a position on as gone, and return how many there were.

    Args:
        reason: `popped`, `cleared` or `compacted`; kept in the rows and in the audit log.
    """
    _lock_heads(tx, {sample})
    live = sa.and_(
        items.c.rollout_id == sample.rollout_id,
        items.c.sample_id == sample.sample_id,
        items.c.seq >= from_seq,
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
    now: dt.datetime,
) -> bool:
    """Put new items in the place of the newest ones, if they are still the ones that were seen.

    Args:
        seen: The positions of the newest live items when the caller looked; at least one.

    Returns:
        False, with nothing changed, when the sample has changed since.
    """
    _lock_heads(tx, {sample})
    live = fetch_live_tail(tx, sample, last=len(seen))
    if [seq for seq, _ in live] != list(seen):
        return False
    tombstone_items(tx, sample, from_seq=seen[0], reason="compacted", now=now)
    append_items(tx, [Append(sample, new)], now=now)
    return True
