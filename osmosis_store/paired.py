"""Statistics over pairs of measurements of the same samples."""

from __future__ import annotations

import math
import statistics
import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

__all__ = ["MeanShift", "mcnemar_exact", "mean_shift"]

_Z_95 = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, kw_only=True)
class MeanShift:
    """The mean of paired differences, and how far it may be off.

    Attributes:
        standard_error: None where it cannot be told: for less than two pairs, or clusters.
        low: The lower end of the 95 % confidence interval; `high`: the upper one. Both by the
            central limit theorem, so they are rough for few pairs or clusters.
        clustered: Whether pairs of one cluster were taken together: some cluster has several.
        cluster_count: Clusters that there are, which is the number of pairs where none has more.
    """

    mean: float
    standard_error: float | None
    low: float | None
    high: float | None
    clustered: bool
    cluster_count: int


def mean_shift(differences: Sequence[float], clusters: Sequence[Hashable]) -> MeanShift:
    """Return the mean of paired differences with its standard error and 95 % interval.

    The standard error is that of paired differences by the central limit theorem; where a cluster
    has several pairs it is clustered: E. Miller, "Adding Error Bars to Evals", 2024
    (arXiv:2411.00640), sections 2 and 4.

    Args:
        differences: At least one.
        clusters: For each difference what it belongs to; those of one may depend on each other.
    """
    mean = statistics.fmean(differences)
    sizes = Counter(clusters)
    clustered = len(sizes) < len(differences)
    error = None
    if len(sizes) > 1:
        error = math.sqrt(_squared_error(differences, clusters if clustered else (), mean))
    return MeanShift(
        mean=mean,
        standard_error=error,
        low=None if error is None else mean - _Z_95 * error,
        high=None if error is None else mean + _Z_95 * error,
        clustered=clustered,
        cluster_count=len(sizes),
    )


def _squared_error(
    differences: Sequence[float], clusters: Sequence[Hashable], mean: float
) -> float:
    """Return SE² = s²/n, and for clusters + (Σ over pairs i ≠ j of one cluster of eᵢ·eⱼ) / n²."""
    count = len(differences)
    unclustered = statistics.variance(differences, mean) / count
    if not clusters:
        return unclustered
    sums: dict[Hashable, float] = {}
    for difference, cluster in zip(differences, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + (difference - mean)
    squares = math.fsum((difference - mean) ** 2 for difference in differences)
    together = math.fsum(part * part for part in sums.values()) - squares
    return max(unclustered + together / count**2, 0.0)  # rounding alone takes it below zero


def mcnemar_exact(one_way: int, other_way: int) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    It is the probability that n = `one_way` + `other_way` fair coins fall as unevenly as this or
    more: 2 · Σ C(n, k) / 2ⁿ for k up to the smaller of the two, and 1 at most.

    Args:
        one_way: Pairs that passed and then failed; `other_way`: that failed and then passed.
    """
    flips, fewer = one_way + other_way, min(one_way, other_way)
    total = term = 1.0  # of the terms, with the last and largest one as the unit
    for k in range(fewer, 0, -1):
        term *= k / (flips - k + 1)
        total += term
        if term < total * sys.float_info.epsilon / flips:
            break
    return min(2.0 * total * (math.comb(flips, fewer) / (1 << flips)), 1.0)
