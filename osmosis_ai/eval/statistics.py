"""Statistics over rewards, exact up to the limits of a float."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["RewardStatistics", "compute_pass_at_k", "compute_statistics"]


@dataclass(frozen=True, kw_only=True)
class RewardStatistics:
    """How rewards are distributed; `std` is the population's standard deviation."""

    mean: float
    median: float
    std: float
    min: float
    max: float


def compute_statistics(rewards: Sequence[float]) -> RewardStatistics | None:
    """Return the statistics of finite rewards; None when there are none."""
    if not rewards:
        return None
    middle = [statistics.median_low(rewards), statistics.median_high(rewards)]
    # `statistics` computes with fractions: sums and squares beyond a float's range do not overflow.
    return RewardStatistics(
        mean=statistics.mean(rewards),
        median=statistics.mean(middle),
        std=statistics.pstdev(rewards),
        min=min(rewards),
        max=max(rewards),
    )


def compute_pass_at_k(rows: Iterable[tuple[int, int]]) -> dict[int, float]:
    """Return the chance that at least one of k attempts at a row passes, averaged over rows.

    The unbiased estimator 1 - C(n-c, k) / C(n, k) of Chen et al. 2021 (arXiv:2107.03374).

    Args:
        rows: Per row how many attempts counted and how many of those passed.

    Returns:
        By k, for k = 1, 2, 4 … and the largest number of attempts. A row with fewer than k
        attempts says nothing about k and is left out there.
    """
    counts = [(n, passed) for n, passed in rows if n > 0]
    most = max((n for n, _ in counts), default=0)
    estimates = {}
    for k in sorted({2**power for power in range(most.bit_length())} | ({most} if most else set())):
        chances = [_estimate(n, passed, k) for n, passed in counts if n >= k]
        estimates[k] = statistics.fmean(chances)
    return estimates


def _estimate(n: int, passed: int, k: int) -> float:
    ways = math.comb(n, k)
    return (ways - math.comb(n - passed, k)) / ways
