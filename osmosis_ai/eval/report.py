"""What an eval run came to: one verdict per attempt, and the numbers over all of them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.eval.plan import is_gradable
from osmosis_ai.eval.statistics import RewardStatistics, compute_pass_at_k, compute_statistics
from osmosis_ai.rollout.recording import StoredGrade, StoredRollout, TokenUsage

__all__ = ["EvalReport", "Verdict", "judge_missing", "judge_rollout", "summarise"]

NO_USAGE = TokenUsage()
NO_GRADER = "there is no grader"
NO_INPUT = "the row has neither a label nor metadata"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How one attempt at one row ended.

    Attributes:
        rollout_id: None where not even its start could be stored.
        state: "graded" with a reward; "removed" when the grader removed every sample; "ungraded"
            without a grader, or without a label and metadata; "failed" with an error.
        reward: The mean of the rewards of the samples that were not removed.
        passed: Whether the reward reaches the threshold; False for a failed attempt, None for one
            that does not count.
        error: Why it failed; None unless it did.
        not_graded: Why it is ungraded; None unless it is.
        removed_sample_count: Samples that the grader removed.
    """

    row_index: int
    attempt: int
    rollout_id: str | None
    state: Literal["graded", "removed", "ungraded", "failed"]
    reward: float | None = None
    passed: bool | None = None
    error: str | None = None
    not_graded: str | None = None
    removed_sample_count: int = 0
    usage: TokenUsage = NO_USAGE
    duration_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class EvalReport:
    """One `osmosis eval run`, over every selected row and attempt.

    Attributes:
        policy: The model as people are told of it.
        grader: The grader as `module:Class`; None without one.
        run_count: Rollouts that this command ran.
        reused_count: Finished rollouts that earlier commands ran.
        regraded_count: Stored rollouts that this command graded, without calling the model.
        upstream_calls: Model calls of this command, the preflight apart.
        rewards: Over the attempts with a reward; None when none has one.
        pass_at_k: By k; a failed attempt did not pass, a removed or ungraded one does not count.
        usage: Over the selected rollouts, reused ones included.
        duration_s: This command's time.
        results_path: The results as JSON.
        samples_path: The samples as JSON lines; None unless they were asked for.
    """

    eval_run_id: str
    resumed: bool
    policy: str
    grader: str | None
    run_count: int
    reused_count: int
    regraded_count: int
    upstream_calls: int
    graded_count: int
    passed_count: int
    counted_count: int
    failed_count: int
    ungraded_count: int
    removed_count: int
    removed_sample_count: int
    rewards: RewardStatistics | None
    pass_at_k: Mapping[int, float]
    usage: TokenUsage
    duration_s: float
    results_path: Path
    samples_path: Path | None
    verdicts: Sequence[Verdict]

    @property
    def exit_code(self) -> int:
        """0; 1 when every selected rollout failed."""
        return 1 if self.failed_count == len(self.verdicts) else 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, the verdicts under "rollouts"."""
        data = asdict(self)
        data["pass_at_k"] = {str(k): value for k, value in self.pass_at_k.items()}
        data["results_path"] = str(self.results_path)
        data["samples_path"] = self.samples_path and str(self.samples_path)
        data["rollouts"] = data.pop("verdicts")
        return data


def judge_rollout(
    rollout: StoredRollout, *, pass_threshold: float, has_grader: bool, error: str | None
) -> Verdict:
    """Return a stored rollout's verdict.

    Args:
        error: Why this command could not grade it, where it tried.
    """
    grades = [rollout.grades[key] for key in rollout.sample_ids if key in rollout.grades]
    rewards = [g.reward for g in grades if g.reward is not None and not g.removed]
    is_graded = has_grader and is_gradable(rollout)
    problem = _find_problem(rollout, grades, error) if is_graded else _find_failure(rollout)
    state: Literal["graded", "removed", "ungraded", "failed"]
    if problem is not None:
        state = "failed"
    elif not is_graded:
        state = "ungraded"
    else:
        state = "graded" if rewards else "removed"
    reward = statistics.mean(rewards) if state == "graded" else None
    return Verdict(
        row_index=rollout.row_index,
        attempt=rollout.attempt,
        rollout_id=rollout.rollout_id,
        state=state,
        reward=reward,
        passed=_has_passed(state, reward, pass_threshold),
        error=problem,
        not_graded=(NO_INPUT if has_grader else NO_GRADER) if state == "ungraded" else None,
        removed_sample_count=sum(grade.removed for grade in grades),
        usage=rollout.usage,
        duration_s=rollout.duration_s,
    )


def _find_failure(rollout: StoredRollout) -> str | None:
    return None if rollout.status == "success" else rollout.error_message or rollout.status


def _find_problem(
    rollout: StoredRollout, grades: Sequence[StoredGrade], error: str | None
) -> str | None:
    if not rollout.sample_ids:
        return error or "the rollout produced no sample to grade"
    if len(grades) < len(rollout.sample_ids):
        return error or "not graded"
    return next((f"grader: {grade.error}" for grade in grades if grade.error is not None), None)


def judge_missing(row_index: int, attempt: int, error: str | None) -> Verdict:
    """Return the verdict on an attempt of which the archive knows nothing."""
    return Verdict(
        row_index=row_index,
        attempt=attempt,
        rollout_id=None,
        state="failed",
        passed=False,
        error=error or "not stored",
    )


def summarise(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the numbers of an `EvalReport` that follow from its verdicts."""
    counted = [verdict for verdict in verdicts if verdict.passed is not None]
    by_state = {
        f"{state}_count": sum(verdict.state == state for verdict in verdicts)
        for state in ("graded", "failed", "ungraded", "removed")
    }
    return {
        **by_state,
        "passed_count": sum(bool(verdict.passed) for verdict in counted),
        "counted_count": len(counted),
        "removed_sample_count": sum(verdict.removed_sample_count for verdict in verdicts),
        "rewards": compute_statistics([v.reward for v in verdicts if v.reward is not None]),
        "pass_at_k": compute_pass_at_k(_count_by_row(counted)) if by_state["graded_count"] else {},
        "usage": _sum_usage(verdict.usage for verdict in verdicts),
        "verdicts": tuple(verdicts),
    }


def _has_passed(state: str, reward: float | None, pass_threshold: float) -> bool | None:
    if state == "failed":
        return False
    return None if reward is None else reward >= pass_threshold


def _count_by_row(verdicts: Iterable[Verdict]) -> list[tuple[int, int]]:
    rows: dict[int, list[bool]] = defaultdict(list)
    for verdict in verdicts:
        rows[verdict.row_index].append(bool(verdict.passed))
    return [(len(passed), sum(passed)) for passed in rows.values()]


def _sum_usage(usages: Iterable[TokenUsage]) -> TokenUsage:
    total: dict[str, int] = defaultdict(int)
    for usage in usages:
        for name, count in asdict(usage).items():
            total[name] += count
    return TokenUsage(**total)
