"""What the recorder learns of each model call, and when."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agents import ModelRetrySettings, ModelSettings, Runner, function_tool, retry_policies
from pydantic import BaseModel

from osmosis_ai.rollout import RolloutContext
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)
from osmosis_ai.rollout.recording import ModelAnswer, TokenUsage
from tests.osmosis_ai.rollout.conftest import Recorder
from tests.policy_endpoint import (
    LITELLM_WARNINGS,
    PolicyEndpoint,
    failing,
    text,
    tool_call,
)

pytestmark = LITELLM_WARNINGS


@pytest.fixture
def recorder(rollout: RolloutContext) -> Recorder:
    rollout.recorder = recorder = Recorder()
    return recorder


def build_agent(**options: Any) -> OsmosisAgent[Any]:
    return OsmosisAgent(name="solver", model=OsmosisRolloutModel(), **options)


async def test_the_answer_is_reported_before_its_tools_run(
    recorder: Recorder, endpoint: PolicyEndpoint
) -> None:
    @function_tool
    def look() -> str:
        seen.extend(recorder.order)
        return "seen"

    seen: list[str] = []
    endpoint.answer_with([tool_call("look"), text("done")])
    await Runner.run(build_agent(tools=[look]), "hi", session=OsmosisMemorySession())

    assert seen == ["model_asked", "model_answered"]
    assert recorder.order == ["model_asked", "model_answered"] * 2


async def test_the_question_is_reported_before_it_is_sent(
    recorder: Recorder, endpoint: PolicyEndpoint
) -> None:
    seen: list[list[str]] = []

    def answer(call: object) -> Any:
        seen.append(list(recorder.order))
        return text("ok")

    endpoint.answer_with(answer)
    await Runner.run(build_agent(), "hi", session=OsmosisMemorySession())

    assert seen == [["model_asked"]]


async def test_the_question_says_what_the_model_sees(
    recorder: Recorder, endpoint: PolicyEndpoint
) -> None:
    @function_tool
    def look(where: str) -> str:
        """Look somewhere."""
        return where

    agent = build_agent(
        instructions="Be brief.",
        tools=[look],
        handoffs=[OsmosisAgent(name="expert")],
        model_settings=ModelSettings(temperature=0.25, max_tokens=9),
    )
    await Runner.run(agent, "hi", session=OsmosisMemorySession(name="s"))

    (ask,) = recorder.named("model_asked")
    assert (ask.sample_id, ask.agent, ask.model) == ("s", "solver", "openai/osmosis-rollout")
    assert ask.instructions == "Be brief."
    assert ask.input == [{"content": "hi", "role": "user"}]
    assert ask.settings["temperature"] == 0.25
    assert [tool["function"]["name"] for tool in ask.tools] == ["look", "transfer_to_expert"]
    assert ask.tools == endpoint.calls[0].body["tools"]


async def test_secrets_are_not_part_of_the_question(
    recorder: Recorder, endpoint: PolicyEndpoint
) -> None:
    settings = ModelSettings(
        max_tokens=9,
        extra_headers={"authorization": "Bearer hush"},
        extra_args={"headers": {"authorization": "hush", "x-own": "hush"}, "seed": 5},
        extra_body={"nested": {"api_key": "hush"}, "auth_token": "hush", "top_k": 3},
    )
    await Runner.run(build_agent(model_settings=settings), "hi", session=OsmosisMemorySession())

    (ask,) = recorder.named("model_asked")
    assert "hush" not in json.dumps(ask.settings)
    assert "rollout-key" not in json.dumps(ask.settings)
    assert ask.settings["extra_body"]["top_k"] == 3
    assert ask.settings["extra_args"] == {"seed": 5}
    assert ask.settings["max_tokens"] == 9


async def test_the_form_that_the_answer_must_have_is_part_of_the_question(
    recorder: Recorder, endpoint: PolicyEndpoint
) -> None:
    class Login(BaseModel):
        api_key: str

    endpoint.answer_with([text('{"api_key": "k"}')])
    await Runner.run(build_agent(output_type=Login), "hi", session=OsmosisMemorySession())

    (ask,) = recorder.named("model_asked")
    assert ask.settings["response_format"] == endpoint.calls[0].body["response_format"]


async def test_the_answer_has_the_items_that_the_session_gets(
    recorder: Recorder, endpoint: PolicyEndpoint
) -> None:
    session = OsmosisMemorySession()
    usage = {
        "prompt_tokens": 11,
        "completion_tokens": 5,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    endpoint.answer_with([text("hi", usage=usage)])
    await Runner.run(build_agent(), "hi", session=session)

    ((call_no, answer),) = recorder.named("model_answered")
    assert call_no == 1
    assert answer == ModelAnswer(
        output=(await session.get_items())[1:],
        usage=TokenUsage(input_tokens=11, cached_tokens=4, output_tokens=5, reasoning_tokens=2),
        response_id="__fake_id__",
    )


async def test_each_attempt_of_a_retried_call_is_reported(
    recorder: Recorder, endpoint: PolicyEndpoint
) -> None:
    endpoint.answer_with([failing(500), text("at last")])
    retry = ModelRetrySettings(max_retries=1, policy=retry_policies.http_status([500]))
    agent = build_agent(model_settings=ModelSettings(retry=retry))

    await Runner.run(agent, "hi", session=OsmosisMemorySession())

    assert recorder.order == ["model_asked", "model_failed", "model_asked", "model_answered"]


async def test_a_failed_call_is_reported_with_its_error(
    recorder: Recorder, endpoint: PolicyEndpoint
) -> None:
    endpoint.answer_with(lambda call: failing(400, "bad tempo"))

    with pytest.raises(Exception, match="bad tempo"):
        await Runner.run(build_agent(), "hi", session=OsmosisMemorySession())

    ((call_no, error),) = recorder.named("model_failed")
    assert call_no == 1
    assert "bad tempo" in str(error)


async def test_a_cancelled_call_is_reported(recorder: Recorder, endpoint: PolicyEndpoint) -> None:
    endpoint.answer_with(lambda call: text("late", delay_s=5))
    run = asyncio.create_task(Runner.run(build_agent(), "hi", session=OsmosisMemorySession()))
    assert await asyncio.to_thread(endpoint.called.wait, 10)
    run.cancel()

    with pytest.raises(asyncio.CancelledError):
        await run
    ((_, error),) = recorder.named("model_failed")
    assert isinstance(error, asyncio.CancelledError)


async def test_a_stream_that_the_caller_leaves_early_is_reported(
    recorder: Recorder, endpoint: PolicyEndpoint
) -> None:
    result = Runner.run_streamed(build_agent(), "hi", session=OsmosisMemorySession())
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            result.cancel()

    assert recorder.order in (["model_asked", "model_failed"], ["model_asked", "model_answered"])


async def test_nothing_is_sent_when_the_question_cannot_be_stored(
    rollout: RolloutContext, endpoint: PolicyEndpoint
) -> None:
    rollout.recorder = Recorder("model_asked")

    with pytest.raises(OSError, match="disk full in model_asked") as caught:
        await Runner.run(build_agent(), "hi", session=OsmosisMemorySession())
    assert endpoint.calls == []
    assert rollout.failure is caught.value


async def test_no_tool_runs_when_the_answer_cannot_be_stored(
    rollout: RolloutContext, endpoint: PolicyEndpoint
) -> None:
    @function_tool
    def look() -> str:
        ran.append("look")
        return "seen"

    ran: list[str] = []
    rollout.recorder = recorder = Recorder("model_answered")
    endpoint.answer_with([tool_call("look")])

    with pytest.raises(OSError, match="disk full in model_answered") as caught:
        await Runner.run(build_agent(tools=[look]), "hi", session=OsmosisMemorySession())
    assert ran == []
    assert recorder.order == ["model_asked", "model_answered"]
    assert rollout.failure is caught.value


async def test_a_failure_that_cannot_be_stored_fails_the_rollout_too(
    rollout: RolloutContext, endpoint: PolicyEndpoint
) -> None:
    rollout.recorder = Recorder("model_failed")
    endpoint.answer_with(lambda call: failing(400))

    with pytest.raises(OSError, match="disk full in model_failed"):
        await Runner.run(build_agent(), "hi", session=OsmosisMemorySession())
    assert isinstance(rollout.failure, OSError)
