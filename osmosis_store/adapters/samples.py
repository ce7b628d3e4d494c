"""Stored samples as the rollout SDK hands them to a grader."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection

from osmosis_ai.rollout.types import RolloutSample
from osmosis_store.codec import Item
from osmosis_store.errors import RolloutNotFound
from osmosis_store.queries.grading import GradableRollout, GradableSample, fetch_gradable
from osmosis_store.queries.items import fetch_items, fetch_recovered_tail

__all__ = ["STORE_FIELD", "fetch_rollout_samples", "to_rollout_sample"]

STORE_FIELD = "osmosis_store"
"""The key of `RolloutSample.extra_fields` under which a grader finds what the store knows."""


def fetch_rollout_samples(tx: Connection, rollout_id: str) -> dict[str, RolloutSample]:
    """Return a rollout's samples by id, in the order in which it registered them.

    Raises:
        RolloutNotFound, CorruptItem
    """
    found = fetch_gradable(tx, [rollout_id])
    if not found:
        raise RolloutNotFound(rollout_id)
    [rollout] = found
    return {
        sample.key.sample_id: to_rollout_sample(
            rollout, sample, fetch_items(tx, sample.key), fetch_recovered_tail(tx, sample.key)
        )
        for sample in rollout.samples
    }


def to_rollout_sample(
    rollout: GradableRollout, sample: GradableSample, items: list[Item], recovered_tail: int
) -> RolloutSample:
    """Return a sample for a grader, which may change it as it likes.

    Args:
        recovered_tail: How many of the last items came from the journal after a crash.
    """
    extra: dict[str, Any] = dict(sample.extra_fields or {})
    extra[STORE_FIELD] = {
        "status": rollout.status,
        "attempt": rollout.attempt,
        "retry_no": rollout.retry_no,
        "recovered_tail": recovered_tail,
    }
    # without validation: what comes out of the store was checked when it went in
    return RolloutSample.model_construct(
        id=sample.key.sample_id,
        messages=items,
        label=rollout.label,
        reward=None,
        remove_sample=False,
        metrics={},
        extra_fields=extra,
        trajectory_messages=None,
    )
