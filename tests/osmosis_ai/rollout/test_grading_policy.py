"""While a grader runs, the policy cannot be called, whatever way it takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import Runner

from osmosis_ai.rollout import Grader, GraderContext, RolloutContext, RolloutSample
from osmosis_ai.rollout.grading import POLICY_CALLS_REFUSED, grade_samples
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)
from tests.policy_endpoint import LITELLM_WARNINGS, PolicyEndpoint

pytestmark = LITELLM_WARNINGS


async def ask(agent: OsmosisAgent[Any], session: OsmosisMemorySession) -> None:
    await Runner.run(agent, "grade this", session=session)


@pytest.mark.parametrize("way", ["same task", "task", "to_thread"])
async def test_a_call_is_refused_and_counted_and_nothing_is_sent(
    way: str, rollout: RolloutContext, endpoint: PolicyEndpoint
) -> None:
    class Judge(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            with rollout:
                agent = OsmosisAgent(name="judge", model=OsmosisRolloutModel())
                session = OsmosisMemorySession(name="judge")
                for _ in range(2):
                    try:
                        if way == "same task":
                            await ask(agent, session)
                        elif way == "task":
                            await asyncio.create_task(ask(agent, session))
                        else:
                            await asyncio.to_thread(asyncio.run, ask(agent, session))
                    except RuntimeError as error:
                        errors.append(type(error).__name__)
            ctx.set_reward(0.0)

    errors: list[str] = []
    result = await grade_samples(
        Judge, None, samples={"a": RolloutSample(id="a")}, label="1", metadata=None
    )

    assert errors == ["PolicyCallRefused"] * 2
    assert result.extra_fields == {POLICY_CALLS_REFUSED: 2}
    assert endpoint.calls == []


async def test_after_grading_the_policy_answers_again(
    rollout: RolloutContext, endpoint: PolicyEndpoint
) -> None:
    class Judge(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            ctx.set_reward(0.0)

    result = await grade_samples(
        Judge, None, samples={"a": RolloutSample(id="a")}, label="1", metadata=None
    )
    agent = OsmosisAgent(name="assistant", model=OsmosisRolloutModel())
    await ask(agent, OsmosisMemorySession())

    assert result.extra_fields == {POLICY_CALLS_REFUSED: 0}
    assert len(endpoint.calls) == 1
