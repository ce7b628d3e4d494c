"""The backend that executes rollouts in this process, several at a time."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.base import ExecutionBackend, ResultCallback
from osmosis_ai.rollout.backend.local.execution import WorkflowExecution
from osmosis_ai.rollout.backend.local.failure import Failure
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.grading import grade_samples
from osmosis_ai.rollout.recording import GradeReport, RolloutRecorder
from osmosis_ai.rollout.types import (
    NOT_GRADED,
    AgentWorkflowConfig,
    ExecutionOutcome,
    ExecutionRequest,
    ExecutionResult,
    GraderConfig,
    RolloutStatus,
)
from osmosis_ai.rollout.utils.concurrency import ConcurrencyLimiter
from osmosis_ai.rollout.utils.imports import resolve_object

__all__ = ["LocalBackend"]

DEFAULT_MAX_CONCURRENT = 4


class LocalBackend(ExecutionBackend):
    """Executes rollouts in this process and event loop.

    Args:
        workflow: The class, or `module:attr`; likewise the other three.
        workflow_config: Copied for each execution; its `concurrency` limits the rollouts that
            run at once. None: four at once.
        grader: None: rollouts are not graded.
        grader_config: Copied for each grading; its `concurrency` limits the gradings.
        recorder: What rollouts are reported to. One that raises fails the rollout.
    """

    def __init__(
        self,
        *,
        workflow: type[AgentWorkflow[Any]] | str,
        workflow_config: AgentWorkflowConfig | str | None = None,
        grader: type[Grader] | str | None = None,
        grader_config: GraderConfig | str | None = None,
        recorder: RolloutRecorder | str | None = None,
    ) -> None:
        self.workflow: type[AgentWorkflow[Any]] = resolve_object(workflow)
        self.workflow_config: AgentWorkflowConfig | None = resolve_object(workflow_config)
        self.grader: type[Grader] | None = resolve_object(grader)
        self.grader_config: GraderConfig | None = resolve_object(grader_config)
        self.recorder: RolloutRecorder | None = resolve_object(recorder)
        for role, value in (("workflow", self.workflow), ("grader", self.grader)):
            if value is not None and not isinstance(value, type):
                raise TypeError(f"{role} is {value!r}: pass the class, not an instance")
        config = self.workflow_config
        limit = DEFAULT_MAX_CONCURRENT if config is None else config.concurrency.max_concurrent
        self._limiter = ConcurrencyLimiter(max_concurrent=limit)
        gradings = self.grader_config.concurrency.max_concurrent if self.grader_config else None
        self._grading_limiter = ConcurrencyLimiter(max_concurrent=gradings)

    @property
    def max_concurrency(self) -> int:
        """How many rollouts run at once; 0: no limit."""
        return self._limiter.max_concurrent or 0

    def health(self) -> dict[str, Any]:
        """Return the status, and how many rollouts wait and run."""
        return {**super().health(), "concurrency": self._limiter.snapshot()}

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback | None = None,
        on_grader_complete: ResultCallback | None = None,
    ) -> ExecutionOutcome:
        """Wait for a slot, run the workflow, collect its samples and grade them.

        Returns:
            Both results. A rollout whose deadline came while it waited has failed too.

        Raises:
            CancelledError: The caller was cancelled; then no further callback is awaited.
            Exception: A callback's own, as it is.
        """
        timeout = request.agent_timeout_sec
        deadline = None if timeout is None else time.monotonic() + timeout
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(timeout):
                    await held.enter_async_context(self._limiter.acquire())
            except TimeoutError:
                deadline = 0.0
            execution = WorkflowExecution(
                self.workflow, self.workflow_config, request, self.recorder
            )
            result = await execution.run(deadline)
            if on_workflow_complete is not None:
                await on_workflow_complete(result)
            graded = await self._grade(request, execution, result)
            if on_grader_complete is not None:
                await on_grader_complete(graded)
            return ExecutionOutcome(result, graded)

    async def _grade(
        self, request: ExecutionRequest, execution: WorkflowExecution, result: ExecutionResult
    ) -> ExecutionResult:
        reason = self._reason_not_to_grade(request, result)
        if self.grader is None or reason is not None:
            return ExecutionResult(
                status=RolloutStatus.FAILURE,
                samples=result.samples,
                err_message=f"not graded: {reason}",
                err_category=result.err_category,
                extra_fields={NOT_GRADED: reason},
            )
        async with self._grading_limiter.acquire():
            graded = await grade_samples(
                self.grader,
                self.grader_config,
                samples=result.samples,
                label=request.label,
                metadata=request.metadata,
                timeout_s=request.grader_timeout_sec,
            )
        if execution.recorder is None:
            return graded
        report = GradeReport(
            grader=self.grader,
            grader_config=self.grader_config,
            label=request.label,
            samples=graded.samples,
            error=graded.err_message,
            error_category=graded.err_category,
        )
        try:
            await execution.recorder.graded(execution.rollout_id, report)
        except Exception as error:
            return Failure.of_recorder(error).to_result(graded.samples)
        return graded

    def _reason_not_to_grade(
        self, request: ExecutionRequest, result: ExecutionResult
    ) -> str | None:
        if self.grader is None:
            return "there is no grader"
        if not request.grade:
            return "grading was not asked for"
        if result.status is not RolloutStatus.SUCCESS:
            return f"the workflow failed: {result.err_message}"
        if request.label is None and request.metadata is None:
            return "the row has neither a label nor metadata"
        return None
