"""The two examples of the page that the contract comes from, with only the policy scripted."""

from __future__ import annotations

import pytest
from agents import ModelSettings, Runner, function_tool

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    ExecutionRequest,
    Grader,
    GraderContext,
    LocalBackend,
    RolloutContext,
    RolloutStatus,
)
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)
from tests.policy_endpoint import LITELLM_WARNINGS, PolicyEndpoint, text, tool_call

pytestmark = LITELLM_WARNINGS


class OpenAIWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisAgent(
            name="assistant",
            instructions="Answer the user's request clearly.",
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(temperature=1.0, max_tokens=4096),
        )
        session = OsmosisMemorySession(name="assistant")
        await Runner.run(
            agent,
            ctx.prompt,
            session=session,
        )


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


class MultiplyWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisAgent(
            name="multiply-agent",
            instructions="Use the multiply tool when arithmetic is required.",
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(temperature=1.0, max_tokens=4096),
            tools=[multiply],
        )
        session = OsmosisMemorySession(name="multiply-agent")
        await Runner.run(
            agent,
            ctx.prompt,
            session=session,
        )


def _last_text(sample) -> str:  # type: ignore[no-untyped-def] # as the page has it
    for item in reversed(sample.messages):
        if item.get("role") != "assistant":
            continue
        content = item.get("content", "")
        if isinstance(content, str):
            return content
        if isinstance(content, list):
            for block in content:
                if isinstance(block, dict):
                    text = block.get("text") or block.get("content")
                    if text:
                        return text
    return ""


class MultiplyGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        for sample_id, sample in ctx.samples.items():
            answer = _last_text(sample)
            reward = 1.0 if ctx.label and ctx.label.strip() in answer else 0.0
            ctx.set_sample_reward(sample_id, reward)


@pytest.fixture(autouse=True)
def policy_of_the_environment(
    endpoint: PolicyEndpoint, monkeypatch: pytest.MonkeyPatch
) -> PolicyEndpoint:
    monkeypatch.setenv("OSMOSIS_CHAT_COMPLETIONS_URL", endpoint.url)
    monkeypatch.setenv("OSMOSIS_API_KEY", "key-of-the-environment")
    return endpoint


PROMPT = [{"role": "user", "content": "What is 6 times 7?"}]


async def test_the_assistant_answers_and_its_session_is_the_sample(
    endpoint: PolicyEndpoint,
) -> None:
    endpoint.answer_with([text("Forty-two.")])

    outcome = await LocalBackend(workflow=OpenAIWorkflow).execute(
        ExecutionRequest(id="row-0", prompt=PROMPT)
    )

    assert outcome.workflow.status is RolloutStatus.SUCCESS
    user, assistant = outcome.workflow.samples["assistant"].messages
    assert user == {"content": "What is 6 times 7?", "role": "user"}
    assert assistant["content"][0]["text"] == "Forty-two."
    (call,) = endpoint.calls
    assert call.headers["x-sample-id"] == "assistant"
    assert call.headers["x-rollout-id"] == "row-0"
    assert call.headers["authorization"] == "Bearer key-of-the-environment"
    assert call.body["temperature"] == 1.0
    assert call.body["max_tokens"] == 4096


@pytest.mark.parametrize(("label", "reward"), [("42", 1.0), (" 42 ", 1.0), ("43", 0.0)])
async def test_the_multiply_agent_uses_its_tool_and_is_graded_on_its_last_text(
    endpoint: PolicyEndpoint, label: str, reward: float
) -> None:
    endpoint.answer_with([tool_call("multiply", a=6, b=7), text("6 times 7 is 42.")])

    outcome = await LocalBackend(workflow=MultiplyWorkflow, grader=MultiplyGrader).execute(
        ExecutionRequest(id="row-1", prompt=PROMPT, label=label)
    )

    assert outcome.grader.samples["multiply-agent"].reward == reward
    items = outcome.workflow.samples["multiply-agent"].messages
    assert [item.get("type", item.get("role")) for item in items] == [
        "user",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert items[2]["output"] == "42"
    assert [call.sample_id for call in endpoint.calls] == ["multiply-agent"] * 2


async def test_a_rollout_context_that_is_active_says_where_the_policy_is(
    endpoint: PolicyEndpoint,
) -> None:
    with RolloutContext(endpoint.url, "given-key", "given-id"):
        outcome = await LocalBackend(workflow=OpenAIWorkflow).execute(
            ExecutionRequest(id="row-2", prompt=PROMPT)
        )

    assert outcome.workflow.status is RolloutStatus.SUCCESS
    assert endpoint.calls[0].headers["authorization"] == "Bearer given-key"
    assert endpoint.calls[0].headers["x-rollout-id"] == "given-id"
