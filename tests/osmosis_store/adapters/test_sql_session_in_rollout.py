from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    ExecutionRequest,
    LocalBackend,
    MessageDict,
    RolloutContext,
    RolloutStatus,
)
from osmosis_ai.rollout.recording import RolloutStart
from osmosis_store import OsmosisSQLSession, Store, StoreRecorder
from osmosis_store.database import Database

HELLO = {"role": "user", "content": "hello"}
METHODS: dict[str, Callable[[OsmosisSQLSession], Awaitable[object]]] = {
    "get": lambda session: session.get_items(),
    "add": lambda session: session.add_items([HELLO]),
    "pop": lambda session: session.pop_item(),
    "clear": lambda session: session.clear_session(),
}


@pytest.fixture
async def rollout(sqlite_database: Database) -> RolloutContext:
    recorder = StoreRecorder(sqlite_database)
    await recorder.rollout_started(RolloutStart(rollout_id="r1", prompt=[], workflow="x:X"))
    return RolloutContext(rollout_id="r1", recorder=recorder)


async def test_a_second_session_of_one_name_is_refused_and_the_first_stays(
    rollout: RolloutContext,
) -> None:
    with rollout:
        first = OsmosisSQLSession("main")
        await first.add_items([HELLO])
        with pytest.raises(ValueError, match="already exists"):
            OsmosisSQLSession("main")

        assert await first.get_items() == [HELLO]
        assert list(await rollout.get_samples()) == ["main"]


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_refuses_use_outside_its_rollout(
    rollout: RolloutContext, method: str
) -> None:
    with rollout:
        session = OsmosisSQLSession("main")
        await session.add_items([HELLO])
    with pytest.raises(RuntimeError):
        await METHODS[method](session)
    with RolloutContext(rollout_id="r1", recorder=rollout.recorder), pytest.raises(RuntimeError):
        await METHODS[method](session)

    with rollout:
        assert await session.get_items() == [HELLO]


async def test_messages_that_are_returned_beside_a_session_are_an_error(
    sqlite_database: Database,
) -> None:
    class Both(AgentWorkflow[Any]):
        async def run(self, ctx: AgentWorkflowContext[Any]) -> list[MessageDict]:
            await OsmosisSQLSession("main").add_items([HELLO])
            return [HELLO]

    backend = LocalBackend(workflow=Both, recorder=StoreRecorder(sqlite_database))
    outcome = await backend.execute(ExecutionRequest(id="r1", prompt=[HELLO]))

    assert outcome.workflow.status is RolloutStatus.FAILURE
    assert "'main' is registered" in (outcome.workflow.err_message or "")
    assert outcome.workflow.samples["main"].messages == [HELLO]


@pytest.mark.parametrize("method", METHODS)
async def test_a_session_built_outside_is_refused_inside_a_rollout(
    rollout: RolloutContext, sqlite_database: Database, method: str
) -> None:
    outside = OsmosisSQLSession("chat", store=sqlite_database)
    await outside.add_items([HELLO])

    with rollout, pytest.raises(RuntimeError, match="was built outside rollout 'r1'"):
        await METHODS[method](outside)
    assert await outside.get_items() == [HELLO]


async def test_a_conversation_beside_a_rollout_is_no_sample_of_it(
    rollout: RolloutContext, sqlite_database: Database
) -> None:
    with rollout:
        memory = OsmosisSQLSession("memory", store=sqlite_database, rollout_id="user-7")
        await memory.add_items([HELLO])
        assert rollout.sample_sources == {}

    stored = Store(sqlite_database).session("user-7", "memory")
    assert await stored.get_items() == [HELLO]


@pytest.mark.parametrize("given", ["nothing", "database", "store", "url"])
async def test_the_store_that_records_the_rollout_may_be_named_in_any_form(
    rollout: RolloutContext, sqlite_database: Database, given: str
) -> None:
    forms = {
        "nothing": None,
        "database": sqlite_database,
        "store": Store(sqlite_database),
        "url": f"sqlite:///{sqlite_database.place.path}",
    }
    with rollout:
        session = OsmosisSQLSession("main", store=forms[given])
        await session.add_items([HELLO])
        assert await session.get_items() == [HELLO]

    assert await Store(sqlite_database).session("r1", "main").get_items() == [HELLO]
