"""A workflow that multiplies with a tool, and a grader that looks for the label in its answer."""

from agents import ModelSettings, Runner, function_tool

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    RolloutSample,
)
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisRolloutModel,
)
from osmosis_store import OsmosisSQLSession


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


class MultiplyWorkflow(AgentWorkflow):
    """One agent, one tool, one session."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        """Answer the row's question."""
        agent = OsmosisAgent(
            name="multiply-agent",
            instructions="Use the multiply tool when arithmetic is required.",
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(temperature=1.0, max_tokens=4096),
            tools=[multiply],
        )
        session = OsmosisSQLSession(name="multiply-agent")
        await Runner.run(agent, ctx.prompt, session=session)


class MultiplyGrader(Grader):
    """Lenient: the label stands anywhere in the last answer."""

    async def grade(self, ctx: GraderContext) -> None:
        """Reward every sample with 1.0 or 0.0."""
        for sample_id, sample in ctx.samples.items():
            answer = _last_text(sample)
            reward = 1.0 if ctx.label and ctx.label.strip() in answer else 0.0
            ctx.set_sample_reward(sample_id, reward)


def _last_text(sample: RolloutSample) -> str:
    for item in reversed(sample.messages):
        if item.get("role") != "assistant":
            continue
        content = item.get("content", "")
        if isinstance(content, str):
            return content
        for block in content:
            if text := block.get("text"):
                return text
    return ""
