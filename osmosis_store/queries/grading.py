"""What a grader is given: pages of rollouts with their samples, and those samples' items."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import Item, decode_body
from osmosis_store.queries.grades import fetch_grading_run
from osmosis_store.queries.workers import fetch_living_workers
from osmosis_store.records import GradingRunRecord, SampleKey
from osmosis_store.schema import grades, grading_runs, items, rollouts, samples
from osmosis_store.statements import run_rows, values_of_rows

__all__ = [
    "GradableRollout",
    "GradableSample",
    "decode_joined",
    "fetch_failed_run",
    "fetch_gradable",
    "fetch_graded_in_run",
    "fetch_joined_items",
    "fetch_settled",
]


@dataclass(frozen=True, slots=True)
class GradableSample:
    """One sample without its items.

    Attributes:
        reward: The newest one that any grader gave; None: there is none.
    """

    key: SampleKey
    item_count: int
    chain_head: bytes
    extra_fields: dict[str, Any] | None
    reward: float | None


@dataclass(frozen=True, slots=True)
class GradableRollout:
    """One rollout with its samples, in the order in which it registered them.

    Attributes:
        status: As a reader sees it now.
    """

    rollout_id: str
    status: str
    label: str | None
    metadata: dict[str, Any] | None
    attempt: int
    retry_no: int
    samples: tuple[GradableSample, ...]


def _of_sample(table: Any) -> sa.ColumnElement[bool]:
    """Return the condition for a grade that counts for a reward."""
    return sa.and_(
        table.c.rollout_id == samples.c.rollout_id,
        table.c.sample_id == samples.c.sample_id,
        table.c.reward.is_not(None),
        sa.not_(table.c.removed),
    )


_older = grades.alias()
_newest_reward = (
    sa.select(grades.c.reward)
    .where(
        _of_sample(grades),
        grades.c.grade_no
        == sa.select(sa.func.max(_older.c.grade_no))
        .where(_of_sample(_older))
        .correlate(samples)
        .scalar_subquery(),
    )
    .scalar_subquery()
)


@functools.cache
def _select_gradable(size: int) -> sa.Executable:
    wanted = values_of_rows("wanted", size, rollouts.c.rollout_id)
    return (
        sa.select(
            rollouts.c.rollout_id,
            rollouts.c.status,
            rollouts.c.worker_id,
            rollouts.c.label,
            rollouts.c.metadata,
            rollouts.c.attempt,
            rollouts.c.retry_no,
            samples.c.sample_id,
            samples.c.item_count,
            samples.c.chain_head,
            samples.c.extra_fields,
            _newest_reward,
        )
        .join(wanted, wanted.c.rollout_id == rollouts.c.rollout_id)
        .outerjoin(samples, samples.c.rollout_id == rollouts.c.rollout_id)
        .order_by(rollouts.c.rollout_id, samples.c.sample_no)
    )


def fetch_gradable(tx: Connection, rollout_ids: Sequence[str]) -> list[GradableRollout]:
    """Return rollouts by id, ordered, with their samples; one that is gone is left out."""
    rows = run_rows(tx, _select_gradable, [(rollout_id,) for rollout_id in sorted(rollout_ids)])
    of_rollout: dict[str, list[Any]] = {}
    for row in rows:
        of_rollout.setdefault(row[0], []).append(row)
    living: set[str] | None = None
    found = []
    for rollout_id, group in of_rollout.items():
        _, status, worker_id, label, metadata, attempt, retry_no, *_ = group[0]
        if status == "running":
            if living is None:
                living = {worker.worker_id for worker in fetch_living_workers(tx)}
            status = status if worker_id in living else "crashed"
        found.append(
            GradableRollout(
                rollout_id,
                status,
                label,
                None if metadata is None else decode_body(metadata),
                attempt,
                retry_no,
                tuple(_to_sample(row) for row in group if row[7] is not None),
            )
        )
    return found


def _to_sample(row: Any) -> GradableSample:
    sample_id, item_count, chain_head, extra, reward = row[7:]
    return GradableSample(
        SampleKey(row[0], sample_id),
        item_count,
        bytes(chain_head),
        None if extra is None else decode_body(extra),
        reward,
    )


def _select_joined_items(size: int, aggregate: Any, kind: Any) -> sa.Executable:
    """Return each sample's items as one value, since a row costs more than what is in it."""
    wanted = values_of_rows("wanted", size, items.c.rollout_id, items.c.sample_id)
    comma, opening, closing = (sa.literal_column(text, sa.Text) for text in ("','", "'['", "']'"))
    seq = sa.cast(items.c.seq, sa.Text)
    recovered = sa.cast(sa.cast(items.c.recovered, sa.Integer), sa.Text)
    parts = (
        sa.select((opening + seq + comma + recovered + comma + items.c.body + closing).label("row"))
        .where(
            items.c.rollout_id == wanted.c.rollout_id,
            items.c.sample_id == wanted.c.sample_id,
            items.c.tombstoned_at.is_(None),
        )
        .order_by(items.c.seq)
        .correlate(wanted)
        .subquery()
    )
    joined = sa.select(opening + aggregate(parts.c.row, comma, type_=sa.Text) + closing)
    found = joined.correlate(wanted).scalar_subquery()
    return sa.select(wanted.c.rollout_id, wanted.c.sample_id, sa.cast(found, kind))


_JOINED_ITEMS = {
    # as bytes, which SQLite hands out sooner than text, and the decoder wants
    "sqlite": functools.partial(
        _select_joined_items, aggregate=sa.func.group_concat, kind=sa.LargeBinary
    ),
    "postgresql": functools.partial(
        _select_joined_items, aggregate=sa.func.string_agg, kind=sa.Text
    ),
}


def fetch_joined_items(
    tx: Connection, keys: Sequence[SampleKey]
) -> dict[SampleKey, str | bytes | None]:
    """Return samples' live items, each sample's as one JSON text for `decode_joined`."""
    try:
        rows = run_rows(tx, _JOINED_ITEMS[tx.dialect.name], keys)
    except sqlite3.DataError:  # over a gigabyte is more than one of SQLite's values holds
        return {key: _fetch_and_join(tx, key) for key in keys}
    return {SampleKey(row[0], row[1]): row[2] for row in rows}


def _fetch_and_join(tx: Connection, key: SampleKey) -> str:
    rows = tx.execute(
        sa.select(items.c.seq, items.c.recovered, items.c.body)
        .where(
            items.c.rollout_id == key.rollout_id,
            items.c.sample_id == key.sample_id,
            items.c.tombstoned_at.is_(None),
        )
        .order_by(items.c.seq)
    )
    return f"[{','.join(f'[{seq},{int(recovered)},{body}]' for seq, recovered, body in rows)}]"


def decode_joined(text: str | bytes | None) -> tuple[list[Item], int]:
    """Return a sample's items, oldest first, and how many of the last ones were recovered.

    Raises:
        ValueError: A body does not decode, or is no JSON object.
    """
    rows: Any = [] if text is None else decode_body(text)
    positions = [row[0] for row in rows]
    if positions != sorted(positions):  # the database keeps the order by habit, not by promise
        rows.sort(key=itemgetter(0))
    tail = 0
    while tail < len(rows) and rows[-1 - tail][1]:
        tail += 1
    found = [row[2] for row in rows]
    if found and set(map(type, found)) != {dict}:
        raise ValueError("a body is not a JSON object")
    return found, tail


def fetch_settled(
    tx: Connection, rollout_ids: Sequence[str], *, code_digest: str
) -> set[SampleKey]:
    """Return the samples that this very grader has graded without error, as they are now.

    A grade counts when items and label are still the same.

    Args:
        code_digest: Of the grader's code and config.
    """
    rows = tx.execute(
        sa.select(grades.c.rollout_id, grades.c.sample_id)
        .join(grading_runs, grading_runs.c.grading_run_id == grades.c.grading_run_id)
        .join(rollouts, rollouts.c.rollout_id == grades.c.rollout_id)
        .join(
            samples,
            sa.and_(
                samples.c.rollout_id == grades.c.rollout_id,
                samples.c.sample_id == grades.c.sample_id,
                samples.c.chain_head == grades.c.chain_head,
            ),
        )
        .where(
            grades.c.rollout_id.in_(rollout_ids),
            grading_runs.c.code_digest == code_digest,
            grades.c.error.is_(None),
            grades.c.label.is_not_distinct_from(rollouts.c.label),
        )
    )
    return {SampleKey(*row) for row in rows}


def fetch_graded_in_run(
    tx: Connection, rollout_ids: Sequence[str], *, grading_run_id: str
) -> dict[SampleKey, bool]:
    """Return the samples that have a grade of this grading run; True: the newest is an error."""
    rows = tx.execute(
        sa.select(grades.c.rollout_id, grades.c.sample_id, grades.c.error.is_not(None))
        .where(grades.c.rollout_id.in_(rollout_ids), grades.c.grading_run_id == grading_run_id)
        .order_by(grades.c.grade_no)
    )
    return {SampleKey(row[0], row[1]): bool(row[2]) for row in rows}


def fetch_failed_run(tx: Connection, *, code_digest: str) -> GradingRunRecord | None:
    """Return the newest regrade with this grader that has failed grades; None: there is none."""
    newest = (
        sa.select(grading_runs.c.grading_run_id)
        .where(
            grading_runs.c.code_digest == code_digest,
            grading_runs.c.kind == "regrade",
            grading_runs.c.failed_count > 0,
        )
        .order_by(grading_runs.c.grading_run_id.desc())
        .limit(1)
    )
    found = tx.execute(newest).scalar_one_or_none()
    return None if found is None else fetch_grading_run(tx, found)
