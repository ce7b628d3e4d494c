"""The local backend: slots, deadlines, results, callbacks."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    ConcurrencyConfig,
    ExecutionRequest,
    ExecutionResult,
    Grader,
    GraderConfig,
    GraderContext,
    GraderStatus,
    LocalBackend,
    RolloutContext,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
    SampleSource,
    get_rollout_context,
)

MESSAGES = [{"role": "assistant", "content": "42"}]
PROMPT = [{"role": "user", "content": "6 times 7?"}]

module_config = AgentWorkflowConfig(name="by-path", concurrency=ConcurrencyConfig(max_concurrent=2))


class Answers(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
        return MESSAGES


class RewardsAll(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        for sample_id in ctx.samples:
            ctx.set_sample_reward(sample_id, 1.0)


class Stored(SampleSource):
    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)

    async def get_sample(self, name: str) -> RolloutSample:
        return RolloutSample(id=name, messages=self.messages)


def request(rollout_id: str = "r-1", **options: Any) -> ExecutionRequest:
    return ExecutionRequest(id=rollout_id, prompt=PROMPT, **options)


def workflow(program: Any) -> type[AgentWorkflow]:
    class Program(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> Any:
            result = program(ctx)
            return await result if asyncio.iscoroutine(result) else result

    return Program


def register(name: str, *messages: dict[str, Any]) -> None:
    context = get_rollout_context()
    assert context is not None
    context.register_sample_source(name, Stored(*messages))


async def run(program: Any, **options: Any) -> ExecutionResult:
    backend = LocalBackend(workflow=workflow(program))
    return (await backend.execute(request(**options))).workflow


class Callbacks:
    def __init__(self) -> None:
        self.workflow: list[ExecutionResult] = []
        self.grader: list[ExecutionResult] = []

    async def on_workflow(self, result: ExecutionResult) -> None:
        assert self.grader == []
        self.workflow.append(result)

    async def on_grader(self, result: ExecutionResult) -> None:
        self.grader.append(result)

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.workflow), len(self.grader)


class TestWhatAWorkflowReturns:
    async def test_a_message_list_is_the_only_sample(self) -> None:
        result = await run(lambda ctx: MESSAGES)

        assert result.status is RolloutStatus.SUCCESS
        assert result.sample is not None
        assert (result.sample.id, result.sample.messages) == ("main", MESSAGES)

    async def test_none_leaves_the_samples_to_the_sources(self) -> None:
        result = await run(lambda ctx: register("planner", *MESSAGES))

        assert result.samples["planner"].messages == MESSAGES

    async def test_an_output_names_its_samples_and_adds_metrics_and_info(self) -> None:
        output = AgentWorkflowOutput(samples={"a": MESSAGES}, metrics={"n": 1}, info={"k": "v"})

        result = await run(lambda ctx: output)

        assert result.samples["a"].messages == MESSAGES
        assert result.samples["a"].metrics == {"n": 1}
        assert result.samples["a"].extra_fields == {"k": "v"}

    async def test_an_output_without_samples_adds_to_those_of_the_sources(self) -> None:
        def program(ctx: AgentWorkflowContext) -> AgentWorkflowOutput:
            register("a", *MESSAGES)
            return AgentWorkflowOutput(metrics={"n": 1})

        assert (await run(program)).samples["a"].metrics == {"n": 1}

    @pytest.mark.parametrize("returned", ["text", {"role": "user"}, 1, (1,)])
    async def test_anything_else_is_a_type_error(self, returned: Any) -> None:
        result = await run(lambda ctx: returned)

        assert result.status is RolloutStatus.FAILURE
        assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
        assert result.err_message is not None
        assert "message list" in result.err_message

    @pytest.mark.parametrize("sample_id", ["a/b", "..", ""])
    async def test_an_output_with_an_unsafe_sample_id_is_an_error(self, sample_id: str) -> None:
        result = await run(lambda ctx: AgentWorkflowOutput(samples={sample_id: MESSAGES}))

        assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
        assert result.err_message is not None
        assert "sample id" in result.err_message

    async def test_a_message_list_while_a_session_is_registered_is_an_error(self) -> None:
        def program(ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
            register("main", {"role": "user", "content": "kept"})
            return MESSAGES

        result = await run(program)

        assert result.status is RolloutStatus.FAILURE
        assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
        assert result.err_message is not None
        assert "'main' is registered" in result.err_message
        assert result.samples["main"].messages == [{"role": "user", "content": "kept"}]


class TestWhatAWorkflowIsGiven:
    async def test_the_prompt_and_metadata_come_unchanged_and_the_label_not_at_all(self) -> None:
        seen: list[Any] = []

        await run(lambda ctx: seen.append(ctx), label="secret", metadata={"k": [1]})

        (ctx,) = seen
        assert (ctx.prompt, ctx.metadata) == (PROMPT, {"k": [1]})
        assert "secret" not in repr(vars(ctx))

    async def test_what_it_changes_stays_its_own(self) -> None:
        def program(ctx: AgentWorkflowContext) -> None:
            ctx.prompt[0]["content"] = "changed"
            ctx.config.words.append("changed")

        config = AgentWorkflowConfig(name="c", words=["as given"])
        backend = LocalBackend(workflow=workflow(program), workflow_config=config)
        asked = request()
        for _ in range(2):
            outcome = await backend.execute(asked)
            assert outcome.workflow.err_message is None

        assert asked.prompt == PROMPT
        assert config.words == ["as given"]

    async def test_each_execution_has_an_instance_of_its_own(self) -> None:
        class Once(AgentWorkflow):
            async def run(self, ctx: AgentWorkflowContext) -> None:
                instances.append(self)
                configs.append(self.config is ctx.config)

        instances: list[Any] = []
        configs: list[bool] = []
        backend = LocalBackend(workflow=Once, workflow_config=AgentWorkflowConfig(name="c"))
        for _ in range(2):
            await backend.execute(request())

        assert instances[0] is not instances[1]
        assert configs == [True, True]

    async def test_the_rollout_context_has_the_requests_id(self) -> None:
        seen: list[Any] = []

        await run(lambda ctx: seen.append(get_rollout_context()))

        assert seen[0].rollout_id == "r-1"
        assert get_rollout_context() is None

    async def test_an_active_context_is_reused(self) -> None:
        seen: list[Any] = []

        with RolloutContext("http://policy/v1", "k", "given") as context:
            await run(lambda ctx: seen.append(get_rollout_context()))
            assert get_rollout_context() is context

        assert seen == [context]

    async def test_rollouts_side_by_side_do_not_see_each_other(self) -> None:
        async def program(ctx: AgentWorkflowContext) -> None:
            register("main", {"n": ctx.metadata["n"]})
            await asyncio.sleep(0.01)

        backend = LocalBackend(workflow=workflow(program))
        outcomes = await asyncio.gather(
            *(backend.execute(request(f"r-{n}", metadata={"n": n})) for n in range(4))
        )

        messages = [outcome.workflow.samples["main"].messages for outcome in outcomes]
        assert messages == [[{"n": n}] for n in range(4)]


class TestFailures:
    async def test_a_workflow_that_raises_keeps_what_was_collected(self) -> None:
        def program(ctx: AgentWorkflowContext) -> None:
            register("main", *MESSAGES)
            raise KeyError("tool")

        result = await run(program)

        assert result.status is RolloutStatus.FAILURE
        assert result.err_category is RolloutErrorCategory.AGENT_ERROR
        assert result.err_message == "'tool'"
        assert result.extra_fields is not None
        assert "KeyError: 'tool'" in result.extra_fields["traceback"]
        assert result.samples["main"].messages == MESSAGES

    async def test_a_sample_source_that_raises_is_a_failure_and_the_others_are_kept(self) -> None:
        class Broken(SampleSource):
            async def get_sample(self, name: str) -> RolloutSample:
                raise OSError("lost")

        def program(ctx: AgentWorkflowContext) -> None:
            register("before", *MESSAGES)
            context = get_rollout_context()
            assert context is not None
            context.register_sample_source("broken", Broken())
            register("after", *MESSAGES)

        result = await run(program)

        assert result.status is RolloutStatus.FAILURE
        assert result.err_message == "lost; sample 'broken' could not be collected"
        assert list(result.samples) == ["before", "after"]

    async def test_a_constructor_that_raises_is_delivered_to_both_callbacks_once(self) -> None:
        class Broken(AgentWorkflow):
            def __init__(self, config: Any = None) -> None:
                raise ValueError("no model configured")

            async def run(self, ctx: AgentWorkflowContext) -> None: ...

        callbacks = Callbacks()
        backend = LocalBackend(workflow=Broken, grader=RewardsAll)
        outcome = await backend.execute(
            request(label="42"), callbacks.on_workflow, callbacks.on_grader
        )

        assert callbacks.counts == (1, 1)
        assert outcome.workflow.err_message == "no model configured"
        assert outcome.workflow.err_category is RolloutErrorCategory.VALIDATION_ERROR
        assert outcome.grader.err_message == (
            "not graded: the workflow failed: no model configured"
        )

    async def test_a_config_that_cannot_be_copied_is_a_failure(self) -> None:
        class Uncopyable:
            def __deepcopy__(self, memo: Any) -> Any:
                raise TypeError("not twice")

        config = AgentWorkflowConfig(name="c", client=Uncopyable())
        outcome = await LocalBackend(workflow=Answers, workflow_config=config).execute(request())

        assert outcome.workflow.err_message == "not twice"

    async def test_a_workflow_that_exits_does_not_take_the_process_along(self) -> None:
        def program(ctx: AgentWorkflowContext) -> None:
            raise SystemExit("bye")

        assert (await run(program)).err_message == "the program called exit('bye')"

    async def test_a_workflow_that_cancels_itself_is_a_failure(self) -> None:
        def program(ctx: AgentWorkflowContext) -> None:
            raise asyncio.CancelledError

        assert (await run(program)).status is RolloutStatus.FAILURE

    async def test_a_run_method_that_is_not_async_is_named(self) -> None:
        class Plain(AgentWorkflow):
            def run(self, ctx: AgentWorkflowContext) -> None:  # type: ignore[override]  # so
                return None

        outcome = await LocalBackend(workflow=Plain).execute(request())

        assert outcome.workflow.err_message is not None
        assert "Plain.run is an ordinary function" in outcome.workflow.err_message

    async def test_what_a_recorder_reported_fails_a_rollout_that_swallowed_it(self) -> None:
        def program(ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
            context = get_rollout_context()
            assert context is not None
            context.fail(OSError("disk full"))
            context.fail(OSError("second"))
            return MESSAGES

        result = await run(program)

        assert result.err_message == "disk full"
        assert result.err_category is RolloutErrorCategory.INTERNAL_ERROR
        assert result.samples["main"].messages == MESSAGES


class TestDeadlines:
    async def test_a_slow_workflow_is_cancelled_and_keeps_its_samples(self) -> None:
        async def program(ctx: AgentWorkflowContext) -> None:
            register("main", *MESSAGES)
            await asyncio.sleep(10)

        result = await run(program, agent_timeout_sec=0.05)

        assert result.err_category is RolloutErrorCategory.TIMEOUT
        assert result.err_message == "the workflow was not done within 0.05 s"
        assert result.samples["main"].messages == MESSAGES

    async def test_swallowing_the_cancellation_is_a_timeout_all_the_same(self) -> None:
        async def program(ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                return MESSAGES
            return []

        result = await run(program, agent_timeout_sec=0.05)

        assert result.err_category is RolloutErrorCategory.TIMEOUT

    async def test_blocking_past_the_deadline_is_a_timeout_all_the_same(self) -> None:
        def program(ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
            time.sleep(0.1)
            return MESSAGES

        result = await run(program, agent_timeout_sec=0.05)

        assert result.err_category is RolloutErrorCategory.TIMEOUT

    async def test_a_workflow_in_time_is_not_late_because_another_one_blocks(self) -> None:
        async def program(ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
            if ctx.metadata["blocks"]:
                time.sleep(0.1)  # noqa: ASYNC251 # what the neighbour must not pay for
            return MESSAGES

        backend = LocalBackend(workflow=workflow(program))
        quick, blocking = await asyncio.gather(
            backend.execute(request("a", metadata={"blocks": False}, agent_timeout_sec=0.08)),
            backend.execute(request("b", metadata={"blocks": True}, agent_timeout_sec=5)),
        )

        assert quick.workflow.status is RolloutStatus.SUCCESS
        assert blocking.workflow.status is RolloutStatus.SUCCESS

    async def test_its_own_timeout_error_keeps_its_message(self) -> None:
        def program(ctx: AgentWorkflowContext) -> None:
            raise TimeoutError("the search tool is slow")

        result = await run(program, agent_timeout_sec=5)

        assert result.err_category is RolloutErrorCategory.TIMEOUT
        assert result.err_message == "the search tool is slow"

    async def test_time_in_the_queue_counts_and_the_workflow_does_not_start(self) -> None:
        async def program(ctx: AgentWorkflowContext) -> None:
            started.append(ctx.metadata["n"])
            await release.wait()

        started: list[int] = []
        release = asyncio.Event()
        config = AgentWorkflowConfig(name="c", concurrency=ConcurrencyConfig(max_concurrent=1))
        backend = LocalBackend(workflow=workflow(program), workflow_config=config)
        callbacks = Callbacks()
        first = asyncio.create_task(backend.execute(request("a", metadata={"n": 1})))
        await asyncio.sleep(0)
        second = await backend.execute(
            request("b", metadata={"n": 2}, agent_timeout_sec=0.05),
            callbacks.on_workflow,
            callbacks.on_grader,
        )
        release.set()

        assert second.workflow.err_category is RolloutErrorCategory.TIMEOUT
        assert callbacks.counts == (1, 1)
        assert (await first).workflow.status is RolloutStatus.SUCCESS
        assert started == [1]
        assert backend.health()["concurrency"] == {
            "max_concurrent": 1,
            "queued": 0,
            "running": 0,
        }

    async def test_the_graders_deadline_is_its_own(self) -> None:
        class Slow(Grader):
            async def grade(self, ctx: GraderContext) -> None:
                await asyncio.sleep(0.1)
                ctx.set_reward(1.0)

        backend = LocalBackend(workflow=Answers, grader=Slow)
        in_time = await backend.execute(request(label="", agent_timeout_sec=0.05))
        late = await backend.execute(request(label="", grader_timeout_sec=0.02))

        assert in_time.grader_status is GraderStatus.SUCCESS
        assert late.workflow.status is RolloutStatus.SUCCESS
        assert late.grader.err_category is RolloutErrorCategory.TIMEOUT

    async def test_an_ended_rollout_takes_no_more_from_code_that_was_left_behind(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def program(ctx: AgentWorkflowContext) -> None:
            context = get_rollout_context()
            assert context is not None
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    continue
            try:
                context.require_active("the late code")
            except RuntimeError as error:
                errors.append(str(error))

        over, errors = asyncio.Event(), []
        monkeypatch.setattr("osmosis_ai.rollout.deadline.GRACE_S", 0.02)
        await run(program, agent_timeout_sec=0.02)
        over.set()
        await asyncio.sleep(0.01)

        assert errors == ["the late code is used after rollout 'r-1' has ended"]


class TestSlots:
    async def test_four_run_at_once_without_a_config(self) -> None:
        async def program(ctx: AgentWorkflowContext) -> None:
            await release.wait()

        release = asyncio.Event()
        backend = LocalBackend(workflow=workflow(program))
        tasks = [asyncio.create_task(backend.execute(request(f"r-{n}"))) for n in range(6)]
        await asyncio.sleep(0.01)

        assert backend.max_concurrency == 4
        assert backend.health() == {
            "status": "ok",
            "concurrency": {"max_concurrent": 4, "queued": 2, "running": 4},
        }
        release.set()
        await asyncio.gather(*tasks)
        assert backend.health()["concurrency"]["running"] == 0

    def test_a_config_without_a_limit_has_none(self) -> None:
        backend = LocalBackend(workflow=Answers, workflow_config=AgentWorkflowConfig(name="c"))

        assert backend.max_concurrency == 0

    async def test_a_queued_rollout_that_is_cancelled_leaves_no_trace(self) -> None:
        async def program(ctx: AgentWorkflowContext) -> None:
            await release.wait()

        release = asyncio.Event()
        backend = LocalBackend(workflow=workflow(program), workflow_config=module_config)
        tasks = [asyncio.create_task(backend.execute(request(f"r-{n}"))) for n in range(4)]
        await asyncio.sleep(0.01)
        tasks[2].cancel()
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        assert backend.health()["concurrency"]["queued"] == 0
        release.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)

        cancelled = [isinstance(result, asyncio.CancelledError) for result in results]
        assert cancelled == [True, False, True, False]
        assert backend.health()["concurrency"] == {
            "max_concurrent": 2,
            "queued": 0,
            "running": 0,
        }

    async def test_gradings_have_a_limit_of_their_own(self) -> None:
        class Counting(Grader):
            running = peak = 0

            async def grade(self, ctx: GraderContext) -> None:
                Counting.running += 1
                Counting.peak = max(Counting.peak, Counting.running)
                await asyncio.sleep(0.005)
                Counting.running -= 1
                ctx.set_reward(1.0)

        config = GraderConfig(name="g", concurrency=ConcurrencyConfig(max_concurrent=1))
        backend = LocalBackend(workflow=Answers, grader=Counting, grader_config=config)
        await asyncio.gather(*(backend.execute(request(f"r-{n}", label="")) for n in range(3)))

        assert Counting.peak == 1


class TestGradingOrNot:
    @pytest.mark.parametrize(
        "options", [{"label": "42"}, {"label": ""}, {"metadata": {}}, {"metadata": {"k": 1}}]
    )
    async def test_a_label_or_metadata_is_enough(self, options: dict[str, Any]) -> None:
        outcome = await LocalBackend(workflow=Answers, grader=RewardsAll).execute(
            request(**options)
        )

        assert outcome.grader_status is GraderStatus.SUCCESS
        assert outcome.grader.samples["main"].reward == 1.0
        assert outcome.workflow.samples["main"].reward is None

    @pytest.mark.parametrize(
        ("grader", "options", "reason"),
        [
            (RewardsAll, {}, "the row has neither a label nor metadata"),
            (RewardsAll, {"label": "42", "grade": False}, "grading was not asked for"),
            (None, {"label": "42"}, "there is no grader"),
        ],
    )
    async def test_otherwise_the_outcome_says_why_not(
        self, grader: Any, options: dict[str, Any], reason: str
    ) -> None:
        callbacks = Callbacks()
        outcome = await LocalBackend(workflow=Answers, grader=grader).execute(
            request(**options), callbacks.on_workflow, callbacks.on_grader
        )

        assert outcome.workflow.status is RolloutStatus.SUCCESS
        assert outcome.grader_status is GraderStatus.PENDING
        assert outcome.grader.err_message == f"not graded: {reason}"
        assert outcome.grader.extra_fields == {"not_graded": reason}
        assert outcome.grader.samples["main"].messages == MESSAGES
        assert callbacks.counts == (1, 1)

    async def test_both_callbacks_get_the_results_of_the_outcome(self) -> None:
        callbacks = Callbacks()
        outcome = await LocalBackend(workflow=Answers, grader=RewardsAll).execute(
            request(label="42"), callbacks.on_workflow, callbacks.on_grader
        )

        assert callbacks.workflow == [outcome.workflow]
        assert callbacks.grader == [outcome.grader]


class TestReferences:
    async def test_everything_can_be_named_by_import_path(self) -> None:
        backend = LocalBackend(
            workflow=f"{__name__}:Answers",
            workflow_config=f"{__name__}:module_config",
            grader=f"{__name__}:RewardsAll",
        )
        outcome = await backend.execute(request(label="42"))

        assert backend.max_concurrency == 2
        assert outcome.grader.samples["main"].reward == 1.0

    def test_an_instance_instead_of_a_class_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"workflow is .* pass the class"):
            LocalBackend(workflow=Answers())
        with pytest.raises(TypeError, match=r"grader is .* pass the class"):
            LocalBackend(workflow=Answers, grader=RewardsAll())
