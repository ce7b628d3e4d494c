"""What counts as a reward, and the check that every sample has one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.rollout.types import RolloutSample

__all__ = ["to_reward", "validate_sample_has_reward", "validate_samples_have_rewards"]


def to_reward(value: Any) -> float:
    """Return `value` as a finite float; numeric text and numpy-like scalars are accepted.

    Raises:
        ValueError: It is not a number, or not a finite one.
    """
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, bytes | bytearray):
        raise ValueError(f"reward {value!r} is not a number")
    try:
        reward = float(plain)
    except OverflowError:
        raise ValueError(f"reward {value!r} is not a finite float") from None
    except (TypeError, ValueError):
        raise ValueError(f"reward {value!r} is not a number") from None
    if not math.isfinite(reward):
        raise ValueError(f"reward {value!r} is not finite")
    return reward


def validate_sample_has_reward(sample: RolloutSample | None) -> None:
    """Check one sample after grading; a removed one needs no reward.

    Raises:
        ValueError: There is no sample, or it has no reward.
    """
    if sample is None:
        raise ValueError("no sample to reward: the rollout produced none")
    if sample.reward is None and not sample.remove_sample:
        raise ValueError(f"sample {sample.id!r} has no reward after grading")


def validate_samples_have_rewards(samples: Mapping[str, RolloutSample]) -> None:
    """Check every sample after grading; removed ones need no reward.

    Raises:
        ValueError: There are no samples, or some have no reward; names them.
    """
    if not samples:
        raise ValueError("no sample to reward: the rollout produced none")
    missing = [
        sample_id
        for sample_id, sample in samples.items()
        if sample.reward is None and not sample.remove_sample
    ]
    if missing:
        names = ", ".join(map(repr, missing))
        raise ValueError(f"no reward after grading for sample {names}: call set_sample_reward")
