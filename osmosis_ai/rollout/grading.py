"""Running a grader: the only place where one is run."""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osmosis_ai.rollout.context import GraderContext, GradingScope
from osmosis_ai.rollout.deadline import require_awaitable, run_unhurried, run_until
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import (
    ExecutionResult,
    GraderConfig,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from osmosis_ai.rollout.utils.error_message import error_message
from osmosis_ai.rollout.utils.rewards import validate_samples_have_rewards

__all__ = ["POLICY_CALLS_REFUSED", "TRACEBACK", "grade_samples", "run_grader"]

POLICY_CALLS_REFUSED = "policy_calls_refused"
TRACEBACK = "traceback"


async def grade_samples(
    grader: type[Grader],
    config: GraderConfig | None,
    *,
    samples: Mapping[str, RolloutSample],
    label: str | None,
    metadata: Mapping[str, Any] | None,
    timeout_s: float | None = None,
    project_path: str | None = None,
    artifacts_dir: Path | None = None,
) -> ExecutionResult:
    """Grade copies of the samples with a new grader; the policy is refused meanwhile.

    The given samples stay as they are and earlier rewards on them do not count. Nothing that
    user code raises gets out; only the caller's own cancellation does.

    Args:
        config: Copied for the grader; None: the grader gets None.
        timeout_s: Seconds for constructing and running the grader; None: no limit.

    Returns:
        Success with the graded copies, each with a reward or marked as removed and made safe for
        JSON; or failure with
        message and category, and then `remove_sample` is as it was before and rewards count for
        nothing. `extra_fields` holds `policy_calls_refused`, how often the grader tried to call
        the policy, and on failure `traceback` as text.
    """
    scope = GradingScope()
    graded = dict(samples)
    try:
        for sample_id, sample in samples.items():
            graded[sample_id] = sample.model_copy(deep=True, update={"reward": None})
        await run_grader(
            grader,
            config,
            samples=graded,
            label=label,
            metadata=copy.deepcopy(_dict(metadata)),
            scope=scope,
            timeout_s=timeout_s,
            project_path=project_path,
            artifacts_dir=artifacts_dir,
        )
        validate_samples_have_rewards(graded)
    except Exception as error:
        return _failure(error, graded, samples, scope)
    return ExecutionResult(
        status=RolloutStatus.SUCCESS,
        samples={sample_id: sample.json_safe_copy() for sample_id, sample in graded.items()},
        extra_fields={POLICY_CALLS_REFUSED: scope.policy_calls_refused},
    )


async def run_grader(
    grader: type[Grader],
    config: GraderConfig | None,
    *,
    samples: dict[str, RolloutSample],
    label: str | None,
    metadata: dict[str, Any] | None,
    scope: GradingScope,
    timeout_s: float | None = None,
    project_path: str | None = None,
    artifacts_dir: Path | None = None,
) -> None:
    """Run a new grader on samples that are its own to change.

    Args:
        samples: By sample id; afterwards with what the grader made of them.
        scope: Refuses the policy meanwhile, and counts.
        timeout_s: Seconds for constructing and running the grader; None: no limit.

    Raises:
        Whatever the grader raises; `DeadlineExceeded`; ValueError or TypeError for samples that
        the rollout never had.
    """

    async def run() -> None:
        with scope.active():
            ctx = GraderContext(label, samples, project_path, metadata, artifacts_dir)
            own = None if config is None else copy.deepcopy(config)
            graded = grader(own).grade(ctx)
            require_awaitable(graded, f"{grader.__qualname__}.grade")
            await graded
            _adopt(samples, ctx.samples)

    if timeout_s is None:
        await run_unhurried(run)
        return
    message = f"the grader was not done in {timeout_s:g} s"
    await run_until(run, deadline=time.monotonic() + timeout_s, message=message)


def _dict(metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if metadata is None else dict(metadata)


def _adopt(graded: dict[str, RolloutSample], seen: Mapping[str, RolloutSample]) -> None:
    unknown = [sample_id for sample_id in seen if sample_id not in graded]
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise ValueError(f"the grader rewarded sample {names}, which the rollout never produced")
    odd = [sample_id for sample_id, sample in seen.items() if not isinstance(sample, RolloutSample)]
    if odd:
        names = ", ".join(map(repr, odd))
        raise TypeError(f"the grader replaced sample {names} by something that is not a sample")
    graded.update(seen)


def _failure(
    error: Exception,
    graded: Mapping[str, RolloutSample],
    samples: Mapping[str, RolloutSample],
    scope: GradingScope,
) -> ExecutionResult:
    kept = {sample_id: sample.json_safe_copy() for sample_id, sample in graded.items()}
    for sample_id, sample in kept.items():
        sample.remove_sample = samples[sample_id].remove_sample
    return ExecutionResult(
        status=RolloutStatus.FAILURE,
        samples=kept,
        err_message=error_message(error),
        err_category=RolloutErrorCategory.of(error),
        extra_fields={
            POLICY_CALLS_REFUSED: scope.policy_calls_refused,
            TRACEBACK: "".join(traceback.format_exception(error)),
        },
    )
