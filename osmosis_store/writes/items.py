"""The write path of items: appends, which are data so that many of them share a statement."""

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
    body_digest,
    chain_digest,
)
from osmosis_store.errors import SampleNotFound
from osmosis_store.records import SampleKey, Usage
from osmosis_store.schema import items, model_calls
from osmosis_store.statements import (
    bind_rows,
    run_compiled,
    run_rows,
    to_driver_time,
)
from osmosis_store.writes.heads import KnownHeads, advance_heads, lock_rollout

__all__ = ["Append", "SeqRange", "append_items"]

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


@functools.cache
def _insert_items(size: int) -> sa.Executable:
    return sa.insert(items).values(bind_rows(size, *_NEW_COLUMNS))


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


def append_items(
    tx: Connection,
    appends: Sequence[Append],
    *,
    now: dt.datetime,
    known: KnownHeads | None = None,
) -> list[SeqRange | SampleNotFound]:
    """Append many calls' items, each call's in one piece, numbered on from its sample's last.

    Args:
        known: What the caller keeps from one transaction of its connection to the next.

    Returns:
        For each append, in order, the positions it took, or the error that keeps it alone from
        being stored.
    """
    heads = (known or KnownHeads()).lock(tx, {append.sample for append in appends})
    at = to_driver_time(tx, now)
    new_rows: list[tuple[Any, ...]] = []
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
        advance_heads(tx, {one: heads[one] for one in grown}, updated_at=at)
    if settled:
        run_compiled(tx, _SETTLE_CALLS, settled)
    for append in appends:
        if append.usage is not None and append.sample in grown:
            _insert_used_call(tx, append.sample, append.usage, at)
    return outcomes


def _insert_used_call(tx: Connection, sample: SampleKey, usage: Usage, asked_at: Any) -> None:
    """Add a model call of which only the tokens are known."""
    lock_rollout(tx, sample.rollout_id)
    row = {**sample._asdict(), **asdict(usage), "asked_at": asked_at}
    run_compiled(tx, _INSERT_USED_CALL, row)


def _number(
    append: Append, seq: int, chain: bytes, created_at: Any, rows: list[tuple[Any, ...]]
) -> tuple[int, bytes]:
    """Add an append's rows and return the sample's next position and new chain head."""
    rollout_id, sample_id = append.sample
    numbers = append.call_numbers or (None,) * len(append.items)
    nonces = os.urandom(_NONCE_BYTES * len(append.items))
    for at, item in enumerate(append.items):
        nonce = nonces[at * _NONCE_BYTES : (at + 1) * _NONCE_BYTES]
        chain = chain_digest(chain, seq, body_digest(nonce, item.data))
        rows.append(  # in the order of _NEW_COLUMNS
            (
                rollout_id,
                sample_id,
                seq,
                item.body,
                nonce,
                chain,
                item.type,
                item.role,
                item.tool_name,
                item.call_id,
                numbers[at],
                created_at,
            )
        )
        seq += 1
    return seq, chain
