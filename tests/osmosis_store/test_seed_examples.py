"""The two examples of the page that the contract comes from, recorded, with either session."""

from __future__ import annotations

from typing import Any

import pytest
from agents import ModelSettings, Runner, function_tool

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    ExecutionRequest,
    Grader,
    GraderContext,
    LocalBackend,
    RolloutStatus,
)
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)
from osmosis_store import OsmosisSQLSession, Store, StoreRecorder
from tests.osmosis_store.scripted_model import kinds
from tests.policy_endpoint import LITELLM_WARNINGS, PolicyEndpoint, text, tool_call

pytestmark = LITELLM_WARNINGS

SESSIONS = [OsmosisMemorySession, OsmosisSQLSession]
Session: Any = None


@pytest.fixture(params=SESSIONS, autouse=True)
def session_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.Session", request.param)


class OpenAIWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisAgent(
            name="assistant",
            instructions="Answer the user's request clearly.",
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(temperature=1.0, max_tokens=4096),
        )
        session = Session(name="assistant")
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
        session = Session(name="multiply-agent")
        await Runner.run(
            agent,
            ctx.prompt,
            session=session,
        )


def _last_text(sample: Any) -> Any:
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


PROMPT = [{"role": "user", "content": "What is 6 times 7?"}]


async def test_the_assistants_conversation_is_stored(
    endpoint: PolicyEndpoint, store: Store
) -> None:
    endpoint.answer_with([text("Forty-two.")])

    outcome = await LocalBackend(workflow=OpenAIWorkflow, recorder=StoreRecorder(store)).execute(
        ExecutionRequest(id="row-0", prompt=PROMPT)
    )

    assert outcome.workflow.status is RolloutStatus.SUCCESS
    detail = await store.rollout("row-0")
    assert detail.rollout.status == "success"
    user, assistant = [record.item for record in detail.items["assistant"]]
    assert user == {"content": "What is 6 times 7?", "role": "user"}
    assert assistant["content"][0]["text"] == "Forty-two."
    assert outcome.workflow.samples["assistant"].messages == [user, assistant]
    assert detail.grades == []


@pytest.mark.parametrize(("label", "reward"), [("42", 1.0), ("43", 0.0)])
async def test_the_multiply_agents_rollout_is_stored_with_its_grade(
    endpoint: PolicyEndpoint, store: Store, label: str, reward: float
) -> None:
    endpoint.answer_with([tool_call("multiply", a=6, b=7), text("6 times 7 is 42.")])
    backend = LocalBackend(
        workflow=MultiplyWorkflow, grader=MultiplyGrader, recorder=StoreRecorder(store)
    )

    outcome = await backend.execute(
        ExecutionRequest(id="row-1", prompt=PROMPT, label=label, metadata={"level": 1})
    )

    assert outcome.grader is not None
    assert outcome.grader.samples["multiply-agent"].reward == reward
    detail = await store.rollout("row-1")
    rollout = detail.rollout
    assert (rollout.status, rollout.label, rollout.metadata) == ("success", label, {"level": 1})
    assert rollout.prompt == PROMPT
    assert rollout.workflow == f"{__name__}:MultiplyWorkflow"
    items = detail.items["multiply-agent"]
    assert kinds(record.item for record in items) == [
        "user",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert [record.call_no for record in items] == [None, 0, None, 1]
    for call in detail.model_calls:
        assert (call.state, call.output, call.error) == ("saved", None, None)
        assert (call.input_tokens, call.output_tokens) == (7, 3)
        assert call.latency_s is not None
        assert call.latency_s > 0
    (grade,) = detail.grades
    assert (grade.reward, grade.label, grade.kind) == (reward, label, "rollout")
    assert grade.grader == f"{__name__}:MultiplyGrader"
    assert grade.chain_head == detail.samples[0].chain_head
