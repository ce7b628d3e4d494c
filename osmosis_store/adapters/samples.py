"""Stored samples as the rollout SDK hands them to a grader."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection

from osmosis_ai.rollout.types import RolloutSample
from osmosis_store.errors import RolloutNotFound
from osmosis_store.queries.grading import (
    GradableRollout,
    GradableSample,
    decode_joined,
    fetch_gradable,
    fetch_joined_items,
)
from osmosis_store.queries.items import fetch_items
from osmosis_store.regrade_passes import JoinedItems

__all__ = ["STORE_FIELD", "fetch_rollout_samples", "require_readable", "to_rollout_samples"]

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
    joined = fetch_joined_items(tx, [sample.key for sample in rollout.samples])
    try:
        return to_rollout_samples(rollout, joined)
    except (ValueError, RecursionError):
        require_readable(tx, rollout)
        raise


def require_readable(tx: Connection, rollout: GradableRollout) -> None:
    """Read a rollout's items row by row, so as to name the one that cannot be.

    Raises:
        CorruptItem
    """
    for sample in rollout.samples:
        fetch_items(tx, sample.key)


def to_rollout_samples(rollout: GradableRollout, joined: JoinedItems) -> dict[str, RolloutSample]:
    """Return a rollout's samples for a grader, which may change them as it likes.

    Raises:
        ValueError, RecursionError: An item does not decode; `require_readable` tells which.
    """
    return {
        sample.key.sample_id: _to_rollout_sample(rollout, sample, joined[sample.key])
        for sample in rollout.samples
    }


def _to_rollout_sample(
    rollout: GradableRollout, sample: GradableSample, joined: str | bytes | None
) -> RolloutSample:
    items, recovered_tail = decode_joined(joined)
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
