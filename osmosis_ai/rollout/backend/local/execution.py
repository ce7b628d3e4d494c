"""One rollout in this process, from its start to the end of its workflow."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local.failure import Failure
from osmosis_ai.rollout.context import (
    AgentWorkflowContext,
    RolloutContext,
    get_rollout_context,
)
from osmosis_ai.rollout.deadline import require_awaitable, run_to_end, run_until
from osmosis_ai.rollout.recording import RolloutRecorder, RolloutStart
from osmosis_ai.rollout.types import (
    DEFAULT_SAMPLE_ID,
    AgentWorkflowConfig,
    AgentWorkflowOutput,
    ExecutionRequest,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)

__all__ = ["WorkflowExecution"]


class WorkflowExecution:
    """Runs one workflow, collects its samples and reports both to the recorder.

    A rollout context that is active already is reused, with its rollout id.
    """

    def __init__(
        self,
        workflow: type[AgentWorkflow[Any]],
        config: AgentWorkflowConfig | None,
        request: ExecutionRequest,
        recorder: RolloutRecorder | None,
    ) -> None:
        self._workflow = workflow
        self._config = config
        self._request = request
        active = get_rollout_context()
        self._owns_context = active is None
        self.context = active or RolloutContext(rollout_id=request.id)
        self.context.rollout_id = self.context.rollout_id or request.id
        self.context.recorder = recorder or self.context.recorder
        self.recorder = self.context.recorder
        self.rollout_id = self.context.rollout_id

    async def run(self, deadline: float | None) -> ExecutionResult:
        """Run the workflow until it ends or the deadline is there.

        Args:
            deadline: On the clock of `time.monotonic`; None: no deadline.
        """
        output, failure = None, None
        try:
            try:
                await self._report_start()
            except Exception as error:
                return Failure.of_recorder(error).to_result({})
            output = await run_until(self._program, deadline=deadline, message=self._late())
        except asyncio.CancelledError as error:
            # a second cancellation must not keep the recorder from hearing of the first
            end = self._end(None, Failure(error, _AGENT_ERROR, RolloutStatus.CANCELLED))
            await run_to_end(end)
            raise
        except Exception as error:
            failure = Failure.of_program(error)
        # cancelled while it is told how it ended, a rollout would seem to run for ever
        return await run_to_end(self._end(output, failure))

    async def _program(self) -> AgentWorkflowOutput:
        with self.context:
            config = copy.deepcopy(self._config)
            ctx: AgentWorkflowContext[Any] = AgentWorkflowContext(
                prompt=copy.deepcopy(self._request.prompt),
                config=config,
                metadata=copy.deepcopy(self._request.metadata),
            )
            running = self._workflow(config).run(ctx)
            require_awaitable(running, f"{self._workflow.__qualname__}.run")
            return _to_output(await running, self.context)

    async def _end(
        self, output: AgentWorkflowOutput | None, failure: Failure | None
    ) -> ExecutionResult:
        samples, collect_failure = await self._collect(output)
        if self.context.failure is not None:
            failure = Failure.of_recorder(self.context.failure)
        elif failure is None:
            failure = collect_failure
        elif collect_failure is not None:
            failure.error.add_note(collect_failure.message)
        self.context.ended = self._owns_context
        failure = await self._report_end(samples, failure)
        if failure is not None:
            return failure.to_result(samples)
        return ExecutionResult(status=RolloutStatus.SUCCESS, samples=samples)

    async def _collect(
        self, output: AgentWorkflowOutput | None
    ) -> tuple[dict[str, RolloutSample], Failure | None]:
        samples: dict[str, RolloutSample] = {}
        failure: Failure | None = None
        with self.context:
            for name in list(self.context.sample_sources):
                try:
                    samples[name] = await self.context.collect_sample(name)
                except Exception as error:
                    error.add_note(f"sample {name!r} could not be collected")
                    failure = failure or Failure.of_program(error)
        if output is not None:
            _add_output(samples, output)
        return samples, failure

    async def _report_start(self) -> None:
        if self.recorder is None:
            return
        request = self._request
        start = RolloutStart(
            rollout_id=self.rollout_id,
            prompt=request.prompt,
            workflow=f"{self._workflow.__module__}:{self._workflow.__qualname__}",
            label=request.label,
            metadata=request.metadata,
            row_index=request.row_index,
            attempt=request.attempt,
            retry_no=request.retry_no,
        )
        await self.recorder.rollout_started(start)

    async def _report_end(
        self, samples: dict[str, RolloutSample], failure: Failure | None
    ) -> Failure | None:
        if self.recorder is None:
            return failure
        try:
            safe = {sample_id: sample.json_safe_copy() for sample_id, sample in samples.items()}
            await self.recorder.samples_collected(self.rollout_id, safe)
            if failure is None:
                await self.recorder.rollout_finished(self.rollout_id)
                return None
        except Exception as error:
            failure = _after(failure, error)
        try:
            await self.recorder.rollout_failed(self.rollout_id, failure.to_end())
        except Exception as error:
            failure = _after(failure, error)
        return failure

    def _late(self) -> str:
        return f"the workflow was not done within {self._request.agent_timeout_sec or 0:g} s"


_AGENT_ERROR = RolloutErrorCategory.AGENT_ERROR


def _after(earlier: Failure | None, error: Exception) -> Failure:
    if earlier is not None and error is not earlier.error:
        error.add_note(f"while reporting: {earlier.message}")
    return Failure.of_recorder(error)


def _to_output(returned: Any, context: RolloutContext) -> AgentWorkflowOutput:
    if returned is None:
        return AgentWorkflowOutput()
    if isinstance(returned, list):
        returned = AgentWorkflowOutput(samples={DEFAULT_SAMPLE_ID: returned})
    if not isinstance(returned, AgentWorkflowOutput):
        raise TypeError(
            "run() returns None, a message list or an AgentWorkflowOutput, "
            f"not {type(returned).__name__}"
        )
    if returned.samples and context.sample_sources:
        names = ", ".join(map(repr, context.sample_sources))
        raise ValueError(
            f"run() returned messages although sample {names} is registered: return None and let "
            "the sessions hold the samples, or register none"
        )
    return returned


def _add_output(samples: dict[str, RolloutSample], output: AgentWorkflowOutput) -> None:
    for sample_id, messages in output.samples.items():
        samples[sample_id] = RolloutSample(id=sample_id, messages=messages)
    for sample in samples.values():
        sample.metrics = {**output.metrics, **sample.metrics}
        sample.extra_fields = {**output.info, **sample.extra_fields}
