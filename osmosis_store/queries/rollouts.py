"""Rollouts and what belongs to them: listing, one in full, model calls, eval runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from osmosis_store.codec import decode_body
from osmosis_store.errors import EvalRunNotFound, RolloutFinished, RolloutNotFound
from osmosis_store.queries.grades import fetch_grades
from osmosis_store.queries.items import fetch_item_records, fetch_samples
from osmosis_store.queries.rollout_order import RolloutOrder
from osmosis_store.queries.selection import (
    Candidate,
    fetch_fulfilling,
    is_sql_alone,
    rollout_conditions,
    seen_status,
)
from osmosis_store.records import (
    EvalRunRecord,
    ModelCallRecord,
    RolloutDetail,
    RolloutRecord,
    SampleKey,
    Selection,
    Usage,
)
from osmosis_store.schema import eval_runs, items, model_calls, rollouts
from osmosis_store.statements import run_compiled

__all__ = [
    "fetch_bodies",
    "fetch_eval_run",
    "fetch_eval_run_rollouts",
    "fetch_eval_runs",
    "fetch_model_calls",
    "fetch_newest_eval_run",
    "fetch_rollout",
    "fetch_rollout_count",
    "fetch_rollout_detail",
    "fetch_rollout_ids",
    "fetch_rollouts",
    "fetch_usage",
    "require_open_conversation",
]

_SLICE = 200
_BY_ID = RolloutOrder()
_CANDIDATE = (rollouts.c.rollout_id, rollouts.c.metadata)
_SELECT_STATUS = sa.select(rollouts.c.status).where(
    rollouts.c.rollout_id == sa.bindparam("rollout_id")
)


def _select_rollouts(tx: Connection) -> sa.Select[Any]:
    columns = (column for column in rollouts.c if column.name != "status")
    return sa.select(*columns, seen_status(tx).label("status"))


def fetch_rollouts(
    tx: Connection,
    selection: Selection,
    *,
    sort: str = "id",
    after: str | None = None,
    limit: int | None = None,
) -> list[RolloutRecord]:
    """Return the selected rollouts, ordered by id, which for ids of ours is by time.

    Args:
        sort: Another order: `started`, `duration` or `reward`, the mean of the samples' newest
            rewards; `-` before it: from the greatest down. What has no such value comes last.
        after: Only those behind the rollout of this id: the last one of the page before.
        limit: At most so many; None: all.

    Raises:
        InvalidSelection: There is no such order.
        GradingRunNotFound: The selection names a grading run that does not exist.
        RolloutNotFound: There is no rollout `after`, and the order is not by id.
    """
    statement = _select_rollouts(tx).where(*rollout_conditions(tx, selection))
    order = RolloutOrder.parse(sort)
    rows = _fetch_selected(tx, selection, statement, order=order, after=after, limit=limit)
    return [_to_rollout(row) for row in rows]


def fetch_rollout_ids(
    tx: Connection, selection: Selection, *, after: str | None = None, limit: int | None = None
) -> Sequence[str]:
    """Return the ids of the selected rollouts, ordered.

    Args:
        after: Only those behind this id.
        limit: At most so many; None: all.

    Raises:
        GradingRunNotFound: The selection names a grading run that does not exist.
    """
    columns = [rollouts.c.rollout_id] if is_sql_alone(selection) else [*_CANDIDATE]
    statement = sa.select(*columns).where(*rollout_conditions(tx, selection))
    rows = _fetch_selected(tx, selection, statement, after=after, limit=limit)
    return [row.rollout_id for row in rows]


def fetch_rollout_count(tx: Connection, selection: Selection) -> int | None:
    """Return how many rollouts are selected; None where only looking at each would tell."""
    if not is_sql_alone(selection):
        return None
    counted = sa.select(sa.func.count()).select_from(rollouts)
    return int(tx.execute(counted.where(*rollout_conditions(tx, selection))).scalar_one())


def _fetch_selected(
    tx: Connection,
    selection: Selection,
    statement: sa.Select[Any],
    *,
    order: RolloutOrder = _BY_ID,
    after: str | None = None,
    limit: int | None = None,
) -> list[Row[Any]]:
    """Fetch rows of rollouts; where SQL says too much, slice by slice until there are enough."""
    found: list[Row[Any]] = []
    size = limit if is_sql_alone(selection) else _SLICE
    while True:
        rows = tx.execute(order.sort(tx, statement, after).limit(size)).fetchall()
        if is_sql_alone(selection):
            return list(rows)
        candidates = [Candidate(row.rollout_id, row.metadata) for row in rows]
        fulfilling = fetch_fulfilling(tx, selection, candidates)
        found += [row for row in rows if row.rollout_id in fulfilling]
        if len(rows) < _SLICE or (limit is not None and len(found) >= limit):
            return found[:limit]
        after = rows[-1].rollout_id


def fetch_rollout(tx: Connection, rollout_id: str) -> RolloutRecord:
    """Return one rollout.

    Raises:
        RolloutNotFound
    """
    row = tx.execute(_select_rollouts(tx).where(rollouts.c.rollout_id == rollout_id)).one_or_none()
    if row is None:
        raise RolloutNotFound(rollout_id)
    return _to_rollout(row)


def fetch_rollout_detail(tx: Connection, rollout_id: str) -> RolloutDetail:
    """Return one rollout with samples, items, model calls and grades.

    Raises:
        RolloutNotFound, CorruptItem
    """
    rollout = fetch_rollout(tx, rollout_id)
    found = fetch_samples(tx, rollout_id)
    return RolloutDetail(
        rollout=rollout,
        samples=found,
        items={
            one.sample_id: fetch_item_records(tx, SampleKey(rollout_id, one.sample_id))
            for one in found
        },
        model_calls=fetch_model_calls(tx, rollout_id),
        grades=fetch_grades(tx, rollout_id=rollout_id),
    )


def fetch_bodies(
    tx: Connection, rollout_id: str, *, sample_id: str | None = None, last: int | None = None
) -> Iterator[str]:
    """Yield the live items of a rollout as they are stored, sample by sample, oldest first.

    Args:
        sample_id: Only of this sample; None: of all.
        last: Only so many of each sample's newest; None: all.
    """
    for sample in fetch_samples(tx, rollout_id):
        if sample_id in (None, sample.sample_id):
            statement = sa.select(items.c.seq, items.c.body).where(
                items.c.rollout_id == rollout_id,
                items.c.sample_id == sample.sample_id,
                items.c.tombstoned_at.is_(None),
            )
            newest = statement.order_by(items.c.seq.desc()).limit(last).subquery()
            rows = tx.execute(sa.select(newest.c.body).order_by(newest.c.seq))
            yield from rows.yield_per(100).scalars()


def require_open_conversation(tx: Connection, rollout_id: str) -> None:
    """Check that an id is free or that of a conversation outside any rollout.

    Raises:
        RolloutFinished: It belongs to a rollout that was run.
    """
    row = run_compiled(tx, _SELECT_STATUS, {"rollout_id": rollout_id}).fetchone()
    if row is not None and row[0] != "open":
        raise RolloutFinished(rollout_id, row[0])


def fetch_model_calls(tx: Connection, rollout_id: str) -> list[ModelCallRecord]:
    """Return a rollout's model calls in the order in which they were asked."""
    hidden = ("instructions_digest", "tools_digest", "input_digest")
    columns = (column for column in model_calls.c if column.name not in hidden)
    rows = tx.execute(
        sa.select(*columns)
        .where(model_calls.c.rollout_id == rollout_id)
        .order_by(model_calls.c.call_no)
    )
    return [ModelCallRecord(**_decoded(row, "settings", "output")) for row in rows]


def fetch_usage(tx: Connection, eval_run_id: str) -> dict[str, Usage]:
    """Return the tokens of an eval run's rollouts by id, summed over their model calls."""
    sums = (
        sa.func.coalesce(sa.func.sum(model_calls.c[name]), 0)
        for name in ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    )
    rows = tx.execute(
        sa.select(model_calls.c.rollout_id, *sums)
        .join(rollouts, rollouts.c.rollout_id == model_calls.c.rollout_id)
        .where(rollouts.c.eval_run_id == eval_run_id)
        .group_by(model_calls.c.rollout_id)
    )
    return {
        row[0]: Usage(
            input_tokens=int(row[1]),
            cached_tokens=int(row[2]),
            output_tokens=int(row[3]),
            reasoning_tokens=int(row[4]),
        )
        for row in rows
    }


def fetch_eval_runs(tx: Connection, *, limit: int | None = None) -> list[EvalRunRecord]:
    """Return eval runs, newest first."""
    rows = tx.execute(sa.select(eval_runs).order_by(eval_runs.c.eval_run_id.desc()).limit(limit))
    return [_to_eval_run(row) for row in rows]


def fetch_eval_run(tx: Connection, eval_run_id: str) -> EvalRunRecord:
    """Return one eval run.

    Raises:
        EvalRunNotFound
    """
    row = tx.execute(
        sa.select(eval_runs).where(eval_runs.c.eval_run_id == eval_run_id)
    ).one_or_none()
    if row is None:
        raise EvalRunNotFound(eval_run_id)
    return _to_eval_run(row)


def fetch_newest_eval_run(tx: Connection, config_path: str) -> EvalRunRecord | None:
    """Return the newest eval run of a config file; None when it was never run."""
    row = tx.execute(
        sa.select(eval_runs)
        .where(eval_runs.c.config_path == config_path)
        .order_by(eval_runs.c.eval_run_id.desc())
        .limit(1)
    ).one_or_none()
    return None if row is None else _to_eval_run(row)


def fetch_eval_run_rollouts(tx: Connection, eval_run_id: str) -> list[RolloutRecord]:
    """Return an eval run's rollouts by row, attempt and retry."""
    statement = (
        _select_rollouts(tx)
        .where(rollouts.c.eval_run_id == eval_run_id)
        .order_by(rollouts.c.row_index, rollouts.c.attempt, rollouts.c.retry_no)
    )
    return [_to_rollout(row) for row in tx.execute(statement)]


def _to_rollout(row: Row[Any]) -> RolloutRecord:
    return RolloutRecord(**_decoded(row, "prompt", "metadata"))


def _to_eval_run(row: Row[Any]) -> EvalRunRecord:
    return EvalRunRecord(**_decoded(row, "settings", "model", "versions"))


def _decoded(row: Row[Any], *json_columns: str) -> dict[str, Any]:
    values = row._asdict()
    for name in json_columns:
        if values[name] is not None:
            values[name] = decode_body(values[name])
    return values
