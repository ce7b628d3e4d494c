"""`OsmosisSQLSession` under the Agents SDK's Runner, plain and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, MaxTurnsExceeded, RunState, function_tool

from osmosis_store import OsmosisSQLSession, Store
from tests.osmosis_store.scripted_model import ScriptedModel, calls, kinds, run, says

pytestmark = pytest.mark.parametrize("how", ["plain", "streamed"])

TOOL_TURN = ["user", "function_call", "function_call_output"]


@function_tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@function_tool(needs_approval=True)
def launch(code: str) -> str:
    """Launch."""
    return f"launched with {code}"


@pytest.fixture
def session(store: Store) -> OsmosisSQLSession:
    return OsmosisSQLSession("chat", store=store)


async def test_a_second_run_sees_the_items_of_the_first(
    store: Store, session: OsmosisSQLSession, how: str
) -> None:
    model = ScriptedModel([calls("add", a=1, b=2)], [says("3")])
    await run(how, Agent(name="A", model=model, tools=[add]), "1 + 2?", session)
    first = await session.get_items()
    assert kinds(first) == [*TOOL_TURN, "message"]

    model = ScriptedModel([says("welcome")])
    again = OsmosisSQLSession("chat", store=store)
    await run(how, Agent(name="A", model=model), "thanks", again)

    assert model.seen[0] == [*first, {"role": "user", "content": "thanks"}]
    assert kinds(await session.get_items()) == [*TOOL_TURN, "message", "user", "message"]


async def test_a_handoff_is_stored_with_both_agents_items(
    session: OsmosisSQLSession, how: str
) -> None:
    clerk = Agent(name="clerk", model=ScriptedModel([says("from the clerk")]))
    desk = Agent(name="desk", model=ScriptedModel([calls("transfer_to_clerk")]), handoffs=[clerk])

    result = await run(how, desk, "hi", session)

    assert result.last_agent is clerk
    assert kinds(await session.get_items()) == [*TOOL_TURN, "message"]


async def test_finished_turns_stay_when_a_later_model_call_fails(
    session: OsmosisSQLSession, how: str
) -> None:
    model = ScriptedModel([calls("add", a=1, b=2)], ConnectionError("model down"))
    with pytest.raises(ConnectionError, match="model down"):
        await run(how, Agent(name="A", model=model, tools=[add]), "1 + 2?", session)

    assert kinds(await session.get_items()) == TOOL_TURN


async def test_finished_turns_stay_when_the_turns_run_out(
    session: OsmosisSQLSession, how: str
) -> None:
    model = ScriptedModel(*([calls("add", f"c{n}", a=n, b=n)] for n in range(3)))
    with pytest.raises(MaxTurnsExceeded):
        await run(how, Agent(name="A", model=model, tools=[add]), "go", session, max_turns=2)

    assert kinds(await session.get_items()) == ["user", *TOOL_TURN[1:] * 2]


async def test_a_run_that_waits_for_approval_is_resumed_from_json_with_a_new_session(
    store: Store, session: OsmosisSQLSession, how: str
) -> None:
    both = [calls("add", "c1", a=1, b=2), calls("launch", "c2", code="x")]
    agent: Agent[Any] = Agent(
        name="A", model=ScriptedModel(both, [says("done")]), tools=[add, launch]
    )
    waiting = await run(how, agent, "go", session)
    (interruption,) = waiting.interruptions
    assert kinds(await session.get_items()) == [
        "user",
        "function_call",
        "function_call",
        "function_call_output",
    ]

    state = await RunState.from_json(agent, waiting.to_state().to_json())
    state.approve(state.get_interruptions()[0])
    result = await run(how, agent, state, OsmosisSQLSession("chat", store=store))

    assert interruption.raw_item is not None
    assert result.final_output == "done"
    items: list[Any] = await session.get_items()
    assert kinds(items)[3:] == ["function_call_output", "function_call_output", "message"]
    assert items[4]["output"] == "launched with x"
