"""Rollouts, items and grades as wide rows, for data frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.queries.selection import seen_status
from osmosis_store.schema import grades, grading_runs, items, model_calls, rollouts, samples

__all__ = ["fetch_grade_rows", "fetch_item_rows", "fetch_rollout_rows"]


def fetch_rollout_rows(tx: Connection, rollout_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return rollouts by id with their counts, tokens and mean reward; JSON as text."""
    r = rollouts.c
    columns = (
        *(r[name] for name in ("rollout_id", "eval_run_id", "row_index", "attempt", "retry_no")),
        *(r[name] for name in ("workflow", "label", "error_category", "error_message")),
        *(r[name] for name in ("started_at", "ended_at", "metadata")),
        seen_status(tx).label("status"),
        _of_rollout(samples, sa.func.count()).label("sample_count"),
        _of_rollout(items, sa.func.count(), items.c.tombstoned_at.is_(None)).label(
            "live_item_count"
        ),
        _of_rollout(model_calls, sa.func.count()).label("model_call_count"),
        *(
            # a sum of bigints is numeric on PostgreSQL, which drivers give as Decimal
            sa.cast(
                _of_rollout(model_calls, sa.func.sum(model_calls.c[name])), sa.BigInteger
            ).label(name)
            for name in ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
        ),
        _mean_reward().label("reward"),
    )
    statement = sa.select(*columns).where(r.rollout_id.in_(rollout_ids)).order_by(r.rollout_id)
    return [dict(row) for row in tx.execute(statement).mappings()]


def fetch_item_rows(
    tx: Connection, rollout_ids: Sequence[str], *, sample_id: str | None = None
) -> list[dict[str, Any]]:
    """Return the live items of rollouts in order, their bodies as text.

    Args:
        sample_id: Only of the samples of this id; None: of all.
    """
    names = ("rollout_id", "sample_id", "seq", "type", "role", "tool_name", "call_id", "call_no")
    statement = (
        sa.select(*(items.c[name] for name in (*names, "created_at", "recovered", "body")))
        .where(items.c.rollout_id.in_(rollout_ids), items.c.tombstoned_at.is_(None))
        .order_by(items.c.rollout_id, items.c.sample_id, items.c.seq)
    )
    if sample_id is not None:
        statement = statement.where(items.c.sample_id == sample_id)
    return [dict(row) for row in tx.execute(statement).mappings()]


def fetch_grade_rows(
    tx: Connection, rollout_ids: Sequence[str], *, sample_id: str | None = None
) -> list[dict[str, Any]]:
    """Return all grades of rollouts in order, JSON as text.

    `is_current` tells the newest grade of each grader, which `current_grades` has.

    Args:
        sample_id: Only of the samples of this id; None: of all.
    """
    g, run = grades.c, grading_runs.c
    newest = sa.func.max(g.grade_no).over(partition_by=(g.rollout_id, g.sample_id, run.grader))
    statement = (
        sa.select(
            *(g[name] for name in ("rollout_id", "sample_id", "grade_no", "grading_run_id")),
            *(run[name] for name in ("grader", "kind", "code_digest", "author")),
            *(g[name] for name in ("reward", "error", "removed", "metrics", "explanation")),
            *(g[name] for name in ("label", "created_at")),
            (g.grade_no == newest).label("is_current"),
        )
        .join(grading_runs, run.grading_run_id == g.grading_run_id)
        .where(g.rollout_id.in_(rollout_ids))
        .order_by(g.rollout_id, g.sample_id, g.grade_no)
    )
    if sample_id is not None:
        statement = statement.where(g.sample_id == sample_id)
    return [dict(row) for row in tx.execute(statement).mappings()]


def _of_rollout(table: sa.Table, value: Any, *conditions: Any) -> sa.ScalarSelect[Any]:
    of_rollout = table.c.rollout_id == rollouts.c.rollout_id
    return sa.select(value).select_from(table).where(of_rollout, *conditions).scalar_subquery()


def _mean_reward() -> sa.ScalarSelect[Any]:
    """Return the mean of the rewards that a rollout's samples were given last."""
    newest = grades.alias("newest")
    last_no = (
        sa.select(sa.func.max(newest.c.grade_no))
        .where(newest.c.rollout_id == grades.c.rollout_id, newest.c.sample_id == grades.c.sample_id)
        .scalar_subquery()
    )
    return _of_rollout(
        grades,
        sa.func.avg(grades.c.reward),
        grades.c.grade_no == last_no.correlate(grades),
        grades.c.removed.is_(False),
    )
