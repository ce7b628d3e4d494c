"""How much is stored."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.schema import rollouts, samples

__all__ = ["Counts", "fetch_counts", "fetch_item_count"]


class Counts(NamedTuple):
    """Rollouts, their samples, and the samples' items, tombstoned ones included."""

    rollout_count: int
    sample_count: int
    item_count: int


def fetch_counts(tx: Connection, *, eval_run_id: str) -> Counts:
    """Return how much of an eval run is stored, every retry counted."""
    row = tx.execute(
        sa.select(
            sa.func.count(sa.distinct(rollouts.c.rollout_id)),
            sa.func.count(samples.c.sample_id),
            sa.func.coalesce(sa.func.sum(samples.c.item_count), 0),
        )
        .select_from(rollouts.outerjoin(samples, samples.c.rollout_id == rollouts.c.rollout_id))
        .where(rollouts.c.eval_run_id == eval_run_id)
    ).one()
    return Counts(*(int(value) for value in row))


def fetch_item_count(tx: Connection) -> int:
    """Return how many items the store has, tombstoned ones included."""
    total = sa.select(sa.func.coalesce(sa.func.sum(samples.c.item_count), 0))
    return int(tx.execute(total).scalar_one())
