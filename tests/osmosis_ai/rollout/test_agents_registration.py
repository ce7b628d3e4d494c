"""How any session registers, marks its runs, and how the model finds out."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from agents import RunContextWrapper

from osmosis_ai.rollout import RolloutContext, RolloutSample, SampleSource
from osmosis_ai.rollout.integrations.agents import registration
from osmosis_ai.rollout.integrations.agents.registration import (
    SampleRegistration,
    announce_turn,
    claim_turn,
)


class Source(SampleSource):
    async def get_sample(self, name: str) -> RolloutSample:
        return RolloutSample(id=name)


@pytest.fixture
def wrapper() -> RunContextWrapper[Any]:
    return RunContextWrapper(None)


def test_a_turn_of_a_marked_run_leads_to_its_registration(
    rollout: RolloutContext, wrapper: RunContextWrapper[Any]
) -> None:
    registered = SampleRegistration("chat", Source())
    registered.touch(wrapper)
    announce_turn(wrapper, "assistant")

    found, turn = claim_turn(rollout, model_input := [])

    assert found is registered
    assert turn.agent_name == "assistant"
    assert claim_turn(rollout, model_input)[0] is registered
    with pytest.raises(RuntimeError, match="outside a run"):
        claim_turn(rollout, [])


async def test_an_announcement_stays_in_its_task(
    rollout: RolloutContext, wrapper: RunContextWrapper[Any]
) -> None:
    SampleRegistration("chat", Source()).touch(wrapper)

    async def announce() -> None:
        announce_turn(wrapper, "assistant")

    await asyncio.create_task(announce())

    with pytest.raises(RuntimeError, match="outside a run"):
        claim_turn(rollout, [])


def test_a_touch_outside_a_run_marks_nothing(
    rollout: RolloutContext, wrapper: RunContextWrapper[Any]
) -> None:
    SampleRegistration("chat", Source()).touch()
    announce_turn(wrapper, "assistant")

    with pytest.raises(RuntimeError, match="'assistant' runs without a session"):
        claim_turn(rollout, [])


def test_a_registration_of_another_rollout_does_not_count(
    rollout: RolloutContext, wrapper: RunContextWrapper[Any]
) -> None:
    SampleRegistration("chat", Source()).touch(wrapper)
    announce_turn(wrapper, "assistant")

    with pytest.raises(RuntimeError, match="without a session of this rollout"):
        claim_turn(RolloutContext(rollout_id="r-1"), [])


def test_a_failing_store_fails_the_rollout_through_its_registration(
    rollout: RolloutContext,
) -> None:
    registered = SampleRegistration("chat", Source())
    registered.fail(error := OSError("disk full"))

    assert rollout.failure is error


def test_outside_a_rollout_nothing_is_registered(wrapper: RunContextWrapper[Any]) -> None:
    registered = SampleRegistration("chat", Source())
    registered.touch(wrapper)
    registered.fail(OSError("disk full"))

    assert registered.context is None


def test_a_run_that_is_over_is_forgotten(rollout: RolloutContext) -> None:
    SampleRegistration("chat", Source()).touch(RunContextWrapper(None))
    gc.collect()

    assert rollout not in [entry.context for entry in registration._registrations.values()]
