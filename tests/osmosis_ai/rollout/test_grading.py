"""Grading once: rewards checked, errors kept, deadlines held, the policy out of reach."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from osmosis_ai.rollout import (
    ExecutionResult,
    Grader,
    GraderConfig,
    GraderContext,
    RolloutContext,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
    get_rollout_context,
)
from osmosis_ai.rollout.grading import grade_samples

Grade = Callable[[GraderContext], Awaitable[None] | None]


def samples(*sample_ids: str) -> dict[str, RolloutSample]:
    return {sample_id: RolloutSample(id=sample_id) for sample_id in sample_ids}


async def grade(program: Grade, given: dict[str, RolloutSample], **options: Any) -> ExecutionResult:
    class Judge(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            result = program(ctx)
            if result is not None:
                await result

    options = {"label": None, "metadata": None, **options}
    return await grade_samples(Judge, None, samples=given, **options)


def reward_all(ctx: GraderContext) -> None:
    for sample_id in ctx.samples:
        ctx.set_sample_reward(sample_id, 1.0)


async def test_each_grading_has_a_new_grader_a_copied_config_and_copied_samples() -> None:
    class Judge(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            seen.append((self, self.config))
            assert ctx.sample is not None
            ctx.sample.messages[0]["content"] = "changed"
            assert ctx.metadata is not None
            ctx.metadata["changed"] = True
            ctx.set_reward(0.5)

    seen: list[Any] = []
    config, metadata = GraderConfig(name="g", words=["a"]), {"k": 1}
    given = {"main": RolloutSample(id="main", messages=[{"content": "as it was"}], reward=0.1)}
    for _ in range(2):
        result = await grade_samples(
            Judge, config, samples=given, label="", metadata=metadata, timeout_s=5
        )
        assert result.samples["main"].reward == 0.5

    (first, first_config), (second, second_config) = seen
    assert first is not second
    assert first_config == config
    assert first_config is not config
    assert first_config is not second_config
    assert given["main"].messages == [{"content": "as it was"}]
    assert given["main"].reward == 0.1
    assert metadata == {"k": 1}


async def test_an_earlier_reward_does_not_count() -> None:
    result = await grade(lambda ctx: None, {"main": RolloutSample(id="main", reward=1.0)})

    assert result.status is RolloutStatus.FAILURE
    assert result.err_message is not None
    assert "'main'" in result.err_message


async def test_a_sample_without_a_reward_is_a_failure_that_names_it_and_keeps_all() -> None:
    result = await grade(lambda ctx: ctx.set_sample_reward("a", 1.0), samples("a", "b"))

    assert result.status is RolloutStatus.FAILURE
    assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert result.err_message is not None
    assert "'b'" in result.err_message
    assert "'a'" not in result.err_message
    assert list(result.samples) == ["a", "b"]


@pytest.mark.parametrize("way", ["set_sample_reward", "samples"])
async def test_a_reward_for_an_id_that_the_rollout_never_produced_is_a_failure(way: str) -> None:
    def program(ctx: GraderContext) -> None:
        reward_all(ctx)
        if way == "samples":
            ctx.samples["ghost"] = RolloutSample(id="ghost", reward=1.0)
        else:
            ctx.set_sample_reward("ghost", 1.0)

    result = await grade(program, samples("a"))

    assert result.status is RolloutStatus.FAILURE
    assert result.err_message is not None
    assert "'ghost'" in result.err_message
    assert list(result.samples) == ["a"]


async def test_a_sample_that_is_replaced_by_something_else_is_a_failure() -> None:
    def program(ctx: GraderContext) -> None:
        ctx.samples["a"] = None  # what a careless grader may do

    result = await grade(program, samples("a"))

    assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert list(result.samples) == ["a"]


@pytest.mark.parametrize("way", ["set_sample_reward", "set_reward", "assigned"])
@pytest.mark.parametrize("reward", [float("nan"), float("-inf"), "nan", "good"])
async def test_a_reward_that_is_none_is_told_in_one_sentence(way: str, reward: Any) -> None:
    def program(ctx: GraderContext) -> None:
        if way == "set_sample_reward":
            ctx.set_sample_reward("a", reward)
        elif way == "set_reward":
            ctx.set_reward(reward)
        else:
            ctx.samples["a"].reward = reward

    result = await grade(program, samples("a"))

    assert result.err_message is not None
    assert f"reward {reward!r} is not " in result.err_message
    assert "validation error" not in result.err_message
    assert "pydantic" not in result.err_message
    assert len(result.err_message.splitlines()) == 1


async def test_a_grade_method_that_is_not_async_is_named() -> None:
    class Judge(Grader):
        def grade(self, ctx: GraderContext) -> None:  # type: ignore[override]  # the mistake
            reward_all(ctx)

    result = await grade_samples(Judge, None, samples=samples("a"), label=None, metadata=None)

    assert result.err_message is not None
    assert result.err_message.endswith("Judge.grade is an ordinary function: write `async def`")


async def test_without_samples_there_is_nothing_to_reward() -> None:
    result = await grade(reward_all, {})

    assert result.status is RolloutStatus.FAILURE
    assert result.err_message is not None
    assert "no sample to reward" in result.err_message


async def test_a_removed_sample_needs_no_reward() -> None:
    def program(ctx: GraderContext) -> None:
        ctx.samples["a"].remove_sample = True

    result = await grade(program, samples("a"))

    assert result.status is RolloutStatus.SUCCESS
    assert result.samples["a"].remove_sample is True
    assert result.samples["a"].reward is None


async def test_a_grader_that_crashes_after_removing_a_sample_failed() -> None:
    def program(ctx: GraderContext) -> None:
        ctx.samples["a"].remove_sample = True
        raise KeyError("crash")

    result = await grade(program, samples("a"))

    assert result.status is RolloutStatus.FAILURE
    assert result.err_category is RolloutErrorCategory.AGENT_ERROR
    assert result.samples["a"].remove_sample is False
    assert "KeyError: 'crash'" in result.extra_fields["traceback"]


async def test_an_error_without_text_is_named_by_its_type() -> None:
    def program(ctx: GraderContext) -> None:
        raise AssertionError

    result = await grade(program, samples("a"))

    assert result.err_message == "AssertionError"
    assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR


async def test_a_constructor_that_raises_is_a_failure() -> None:
    class Judge(Grader):
        def __init__(self, config: GraderConfig | None = None) -> None:
            raise OSError("no licence")

        async def grade(self, ctx: GraderContext) -> None: ...

    result = await grade_samples(Judge, None, samples=samples("a"), label="1", metadata=None)

    assert result.err_message == "no licence"
    assert list(result.samples) == ["a"]


async def test_samples_that_cannot_be_copied_are_a_failure() -> None:
    given = {"a": RolloutSample(id="a", metrics={"lock": threading.Lock()})}

    result = await grade(reward_all, given)

    assert result.status is RolloutStatus.FAILURE
    assert list(result.samples) == ["a"]


async def test_a_grader_that_exits_does_not_take_the_process_along() -> None:
    def program(ctx: GraderContext) -> None:
        raise SystemExit(3)

    result = await grade(program, samples("a"))

    assert result.err_message == "the program called exit(3)"


class TestDeadline:
    async def expect_timeout(self, program: Grade) -> None:
        result = await grade(program, samples("a"), timeout_s=0.05)

        assert result.status is RolloutStatus.FAILURE
        assert result.err_category is RolloutErrorCategory.TIMEOUT
        assert result.err_message == "the grader was not done in 0.05 s"

    async def test_a_slow_grader_is_cancelled(self) -> None:
        await self.expect_timeout(lambda ctx: asyncio.sleep(10))

    async def test_a_grader_that_swallows_its_cancellation_is_late_all_the_same(self) -> None:
        async def program(ctx: GraderContext) -> None:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                reward_all(ctx)

        await self.expect_timeout(program)

    async def test_a_grader_that_goes_on_for_ever_is_left_behind(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def program(ctx: GraderContext) -> None:
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    reward_all(ctx)

        over = asyncio.Event()
        monkeypatch.setattr("osmosis_ai.rollout.deadline.GRACE_S", 0.05)
        await self.expect_timeout(program)
        assert "goes on running" in caplog.text
        over.set()
        await asyncio.sleep(0)

    async def test_a_grader_that_blocks_past_the_deadline_is_late(self) -> None:
        async def program(ctx: GraderContext) -> None:
            time.sleep(0.1)  # noqa: ASYNC251 # what must not pass as in time
            reward_all(ctx)

        await self.expect_timeout(program)

    async def test_its_own_timeout_error_keeps_its_message(self) -> None:
        def program(ctx: GraderContext) -> None:
            raise TimeoutError("the judge's model is slow")

        result = await grade(program, samples("a"), timeout_s=5)

        assert result.err_category is RolloutErrorCategory.TIMEOUT
        assert result.err_message == "the judge's model is slow"

    async def test_a_grader_that_is_done_in_time_is_not_late(self) -> None:
        assert (await grade(reward_all, samples("a"), timeout_s=5)).samples["a"].reward == 1.0


async def test_the_callers_cancellation_reaches_the_grader_and_the_caller() -> None:
    async def program(ctx: GraderContext) -> None:
        started.set()
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    started, seen = asyncio.Event(), []
    task = asyncio.create_task(grade(program, samples("a")))
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_a_grader_that_cancels_itself_is_a_failure() -> None:
    def program(ctx: GraderContext) -> None:
        raise asyncio.CancelledError

    result = await grade(program, samples("a"))

    assert result.err_message == "the program was cancelled from inside"


async def test_the_grader_sees_no_rollout_context() -> None:
    def program(ctx: GraderContext) -> None:
        seen.append(get_rollout_context())
        reward_all(ctx)

    seen: list[Any] = []
    with RolloutContext(rollout_id="r"):
        await grade(program, samples("a"))

    assert seen == [None]


async def test_odd_metrics_do_not_cost_the_reward() -> None:
    def program(ctx: GraderContext) -> None:
        ctx.samples["a"].metrics["odd"] = object()
        ctx.samples["a"].metrics["nan"] = float("nan")
        reward_all(ctx)

    result = await grade(program, samples("a"))

    assert result.samples["a"].reward == 1.0
    assert result.samples["a"].metrics == {}
    assert result.model_dump_json()
