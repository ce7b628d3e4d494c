"""Stored samples as the rollout SDK hands them to a grader."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection

from osmosis_ai.rollout.types import RolloutSample
from osmosis_store.queries.items import fetch_items, fetch_samples
from osmosis_store.queries.rollouts import fetch_rollout
from osmosis_store.records import RolloutRecord, SampleKey, SampleRecord

__all__ = ["STORE_FIELD", "fetch_rollout_samples"]

STORE_FIELD = "osmosis_store"
"""The key of `RolloutSample.extra_fields` under which a grader finds what the store knows."""


def fetch_rollout_samples(tx: Connection, rollout_id: str) -> dict[str, RolloutSample]:
    """Return a rollout's samples by id, in the order in which it registered them.

    Raises:
        RolloutNotFound, CorruptItem
    """
    rollout = fetch_rollout(tx, rollout_id)
    return {
        sample.sample_id: _to_rollout_sample(tx, rollout, sample)
        for sample in fetch_samples(tx, rollout_id)
    }


def _to_rollout_sample(
    tx: Connection, rollout: RolloutRecord, sample: SampleRecord
) -> RolloutSample:
    extra: dict[str, Any] = dict(sample.extra_fields or {})
    extra[STORE_FIELD] = {
        "status": rollout.status,
        "attempt": rollout.attempt,
        "retry_no": rollout.retry_no,
    }
    return RolloutSample(
        id=sample.sample_id,
        messages=fetch_items(tx, SampleKey(rollout.rollout_id, sample.sample_id)),
        label=rollout.label,
        extra_fields=extra,
    )
