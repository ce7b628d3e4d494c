"""What an eval run tells while it goes on, for a progress bar or a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["EvalEvent", "RolloutEnded", "RolloutRegraded", "RunOpened"]


@dataclass(frozen=True, kw_only=True)
class RunOpened:
    """The work is known and about to begin.

    Attributes:
        policy: The model as people are told of it.
        selected_count: Selected rows times attempts.
        reused_count: Of those, finished by earlier commands.
        regrade_count: Of the reused, how many the grader is about to grade.
        run_count: How many are about to run.
        concurrency: How many of them at once: `batch_size`, or fewer where the workflow's config
            allows fewer.
    """

    eval_run_id: str
    resumed: bool
    policy: str
    selected_count: int
    reused_count: int
    regrade_count: int
    run_count: int
    concurrency: int


@dataclass(frozen=True, kw_only=True)
class RolloutEnded:
    """A rollout ran to its end and was graded where it could be; `error` is None on success."""

    rollout_id: str
    row_index: int
    attempt: int
    error: str | None


@dataclass(frozen=True, kw_only=True)
class RolloutRegraded:
    """A stored rollout was graded without calling the model; `error` is None on success."""

    rollout_id: str
    row_index: int
    attempt: int
    error: str | None


EvalEvent: TypeAlias = RunOpened | RolloutEnded | RolloutRegraded
