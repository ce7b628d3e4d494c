"""What a recorder is told by the local backend, in which order, and what happens if it raises."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    ExecutionOutcome,
    ExecutionRequest,
    ExecutionResult,
    Grader,
    GraderContext,
    LocalBackend,
    RolloutContext,
    RolloutErrorCategory,
    RolloutRecorder,
    RolloutStatus,
    get_rollout_context,
)
from osmosis_ai.rollout.recording import RolloutStart
from tests.osmosis_ai.rollout.conftest import Recorder

MESSAGES = [{"role": "assistant", "content": "42"}]


class Answers(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
        return MESSAGES


class Raises(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        raise ValueError("bad row")


class RewardsAll(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        for sample_id in ctx.samples:
            ctx.set_sample_reward(sample_id, 1.0)


class Crashes(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        raise KeyError("judge")


async def execute(
    recorder: Recorder, workflow: type[AgentWorkflow] = Answers, grader: Any = RewardsAll
) -> tuple[ExecutionOutcome, list[ExecutionResult]]:
    async def note(result: ExecutionResult) -> None:
        delivered.append(result)

    delivered: list[ExecutionResult] = []
    backend = LocalBackend(workflow=workflow, grader=grader, recorder=recorder)
    asked = ExecutionRequest(
        id="r-1",
        prompt=[{"role": "user", "content": "?"}],
        label="42",
        metadata={"k": 1},
        row_index=7,
        attempt=2,
        retry_no=1,
    )
    outcome = await backend.execute(asked, note, note)
    assert delivered == [outcome.workflow, outcome.grader]
    return outcome, delivered


def test_the_double_is_a_recorder() -> None:
    assert isinstance(Recorder(), RolloutRecorder)


async def test_a_rollout_is_reported_from_start_to_grade() -> None:
    recorder = Recorder()
    await execute(recorder)

    assert recorder.order == ["rollout_started", "samples_collected", "rollout_finished", "graded"]
    (start,) = recorder.named("rollout_started")
    assert start == RolloutStart(
        rollout_id="r-1",
        prompt=[{"role": "user", "content": "?"}],
        workflow=f"{__name__}:Answers",
        label="42",
        metadata={"k": 1},
        row_index=7,
        attempt=2,
        retry_no=1,
    )
    (samples,) = recorder.named("samples_collected")
    assert samples["main"].messages == MESSAGES
    (report,) = recorder.named("graded")
    assert (report.grader, report.label, report.kind) == (RewardsAll, "42", "rollout")
    assert report.samples["main"].reward == 1.0
    assert report.error is None


async def test_a_failed_rollout_is_reported_with_its_error_and_not_graded() -> None:
    recorder = Recorder()
    await execute(recorder, Raises)

    assert recorder.order == ["rollout_started", "samples_collected", "rollout_failed"]
    (end,) = recorder.named("rollout_failed")
    assert end.status is RolloutStatus.FAILURE
    assert end.error_category is RolloutErrorCategory.VALIDATION_ERROR
    assert end.error_message == "bad row"
    assert "ValueError: bad row" in end.error_traceback


async def test_a_grader_that_raises_is_reported_as_an_error() -> None:
    recorder = Recorder()
    await execute(recorder, grader=Crashes)

    (report,) = recorder.named("graded")
    assert report.error == "'judge'"
    assert report.error_category is RolloutErrorCategory.AGENT_ERROR
    assert list(report.samples) == ["main"]


async def test_without_a_label_and_metadata_nothing_is_graded() -> None:
    recorder = Recorder()
    backend = LocalBackend(workflow=Answers, grader=RewardsAll, recorder=recorder)
    await backend.execute(ExecutionRequest(id="r-1", prompt=[]))

    assert recorder.named("graded") == []


async def test_a_cancelled_rollout_is_reported_as_cancelled() -> None:
    class Waits(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            started.set()
            await asyncio.sleep(10)

    started = asyncio.Event()
    recorder = Recorder()
    backend = LocalBackend(workflow=Waits, recorder=recorder)
    task = asyncio.create_task(backend.execute(ExecutionRequest(id="r-1", prompt=[])))
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorder.order == ["rollout_started", "samples_collected", "rollout_failed"]
    (end,) = recorder.named("rollout_failed")
    assert end.status is RolloutStatus.CANCELLED


async def test_model_and_sessions_reach_the_recorder_through_the_context() -> None:
    class Looks(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            seen.append(get_rollout_context())

    seen: list[Any] = []
    recorder = Recorder()
    await execute(recorder, Looks)

    assert seen[0].recorder is recorder


async def test_the_recorder_of_an_active_context_is_used() -> None:
    recorder = Recorder()
    with RolloutContext(rollout_id="given", recorder=recorder):
        await LocalBackend(workflow=Answers).execute(ExecutionRequest(id="r-1", prompt=[]))

    (start,) = recorder.named("rollout_started")
    assert start.rollout_id == "given"


async def test_nothing_runs_when_the_start_cannot_be_stored() -> None:
    recorder = Recorder("rollout_started")
    outcome, _ = await execute(recorder)

    assert recorder.order == ["rollout_started"]
    assert outcome.workflow.status is RolloutStatus.FAILURE
    assert outcome.workflow.err_category is RolloutErrorCategory.INTERNAL_ERROR
    assert outcome.workflow.err_message == "disk full in rollout_started"


@pytest.mark.parametrize("broken", ["samples_collected", "rollout_finished"])
async def test_a_rollout_that_cannot_be_stored_has_failed_and_keeps_its_samples(
    broken: str,
) -> None:
    recorder = Recorder(broken)
    outcome, _ = await execute(recorder)

    assert outcome.workflow.status is RolloutStatus.FAILURE
    assert outcome.workflow.err_category is RolloutErrorCategory.INTERNAL_ERROR
    assert outcome.workflow.err_message == f"disk full in {broken}"
    assert outcome.workflow.samples["main"].messages == MESSAGES
    assert recorder.order[-1] == "rollout_failed"
    assert recorder.named("graded") == []


async def test_a_failure_that_cannot_be_stored_names_both_errors() -> None:
    outcome, _ = await execute(Recorder("rollout_failed"), Raises)

    assert outcome.workflow.status is RolloutStatus.FAILURE
    assert outcome.workflow.err_message == ("disk full in rollout_failed; while reporting: bad row")


async def test_a_recorder_that_always_raises_still_gives_one_result_each() -> None:
    outcome, delivered = await execute(Recorder("samples_collected", "rollout_failed"))

    assert len(delivered) == 2
    assert outcome.workflow.err_message == (
        "disk full in rollout_failed; while reporting: disk full in samples_collected"
    )


async def test_a_grade_that_cannot_be_stored_fails_the_grading() -> None:
    outcome, _ = await execute(Recorder("graded"))

    assert outcome.workflow.status is RolloutStatus.SUCCESS
    assert outcome.grader.status is RolloutStatus.FAILURE
    assert outcome.grader.err_category is RolloutErrorCategory.INTERNAL_ERROR
    assert outcome.grader.err_message == "disk full in graded"
