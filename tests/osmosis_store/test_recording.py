"""`StoreRecorder`: what a backend reports is in the store, or the rollout says why not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from agents import Runner, function_tool

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    ExecutionOutcome,
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
from osmosis_store import OsmosisSQLSession, Store, StoreRecorder, versions
from osmosis_store.database import Database
from osmosis_store.errors import NoStoreGiven, RolloutFinished
from osmosis_store.schema import contents, model_calls
from tests.osmosis_store.scripted_model import kinds
from tests.policy_endpoint import (
    LITELLM_WARNINGS,
    PolicyEndpoint,
    failing,
    text,
    tool_call,
)

pytestmark = LITELLM_WARNINGS

HERE = Path(__file__).resolve().parent
PROMPT = [{"role": "user", "content": "go"}]


class Workflow(AgentWorkflow):
    """Runs what a test gives it."""

    program: ClassVar[Callable[[AgentWorkflowContext], Awaitable[Any]]]

    async def run(self, ctx: AgentWorkflowContext) -> Any:
        return await type(self).program(ctx)


class OneForAll(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        for sample_id in ctx.samples:
            ctx.set_sample_reward(sample_id, 1.0)


class Broken(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        raise KeyError("no such rubric")


@function_tool(failure_error_function=None)
def explode() -> str:
    """Fail."""
    raise ZeroDivisionError("boom")


def agent(**options: Any) -> OsmosisAgent:
    return OsmosisAgent(name="agent", model=OsmosisRolloutModel(), **options)


async def execute(
    store: Store,
    program: Callable[[AgentWorkflowContext], Awaitable[Any]],
    *,
    grader: type[Grader] | None = None,
    recorder: StoreRecorder | None = None,
    **request: Any,
) -> ExecutionOutcome:
    one = type("One", (Workflow,), {"program": staticmethod(program), "__module__": __name__})
    backend = LocalBackend(workflow=one, grader=grader, recorder=recorder or StoreRecorder(store))
    return await backend.execute(ExecutionRequest(**{"id": "r", "prompt": PROMPT, **request}))


async def one_turn(ctx: AgentWorkflowContext) -> None:
    await Runner.run(agent(), ctx.prompt, session=OsmosisSQLSession())


async def test_what_the_model_saw_is_stored_once_per_content(
    endpoint: PolicyEndpoint, store: Store
) -> None:
    async def two_runs(ctx: AgentWorkflowContext) -> None:
        for name in ("a", "b"):
            speaker = agent(instructions="Be brief.", tools=[explode])
            await Runner.run(speaker, ctx.prompt, session=OsmosisSQLSession(name))

    await execute(store, two_runs)

    def fetch(tx: sa.Connection) -> tuple[Any, Any]:
        digests = model_calls.c.instructions_digest, model_calls.c.tools_digest
        return (
            tx.execute(sa.select(*digests)).all(),
            dict(list(tx.execute(sa.select(contents.c.digest, contents.c.body)))),
        )

    calls, bodies = await store.database.read(fetch)
    assert len(calls) == 2
    assert len(set(calls)) == 1
    assert len(bodies) == 2
    instructions, tools = calls[0]
    assert bodies[instructions] == "Be brief."
    assert '"explode"' in bodies[tools]


async def test_times_lie_in_order(endpoint: PolicyEndpoint, store: Store) -> None:
    await execute(store, one_turn)

    detail = await store.rollout("r")
    (call,) = detail.model_calls
    assert call.answered_at is not None
    assert detail.rollout.ended_at is not None
    assert detail.rollout.started_at <= call.asked_at <= call.answered_at <= detail.rollout.ended_at
    assert detail.rollout.duration_s is not None
    assert detail.rollout.duration_s > 0


async def test_two_sessions_are_two_samples_in_the_order_of_their_making(
    endpoint: PolicyEndpoint, store: Store
) -> None:
    async def program(ctx: AgentWorkflowContext) -> None:
        executor, planner = OsmosisSQLSession("executor"), OsmosisMemorySession("planner")
        for session in (planner, executor):
            await Runner.run(agent(), ctx.prompt, session=session)

    await execute(store, program, grader=OneForAll, label="42")

    detail = await store.rollout("r")
    assert [sample.sample_id for sample in detail.samples] == ["executor", "planner"]
    assert [kinds(r.item for r in records) for records in detail.items.values()] == [
        ["user", "message"]
    ] * 2
    assert sorted((call.sample_id, call.state) for call in detail.model_calls) == [
        ("executor", "saved"),
        ("planner", "saved"),
    ]
    assert [(grade.sample_id, grade.reward) for grade in detail.grades] == [
        ("executor", 1.0),
        ("planner", 1.0),
    ]


async def test_returned_messages_are_the_sample(store: Store) -> None:
    async def program(ctx: AgentWorkflowContext) -> AgentWorkflowOutput:
        messages = [*ctx.prompt, {"role": "assistant", "content": "done"}]
        return AgentWorkflowOutput(samples={"main": messages}, info={"seed": 7})

    await execute(store, program)

    detail = await store.rollout("r")
    assert [record.item for record in detail.items["main"]][1]["content"] == "done"
    assert detail.samples[0].extra_fields == {"seed": 7}


async def test_a_failure_is_stored_with_its_traceback_and_what_there_was(
    endpoint: PolicyEndpoint, store: Store
) -> None:
    endpoint.answer_with([tool_call("explode"), text("never")])

    async def program(ctx: AgentWorkflowContext) -> None:
        session = OsmosisSQLSession()
        await Runner.run(agent(tools=[explode]), ctx.prompt, session=session)

    outcome = await execute(store, program, grader=OneForAll, label="42")

    assert outcome.workflow.status is RolloutStatus.FAILURE
    detail = await store.rollout("r")
    rollout = detail.rollout
    assert (rollout.status, rollout.error_category) == ("failure", "agent_error")
    assert rollout.error_message is not None
    assert "boom" in rollout.error_message
    assert rollout.error_traceback is not None
    assert "ZeroDivisionError" in rollout.error_traceback
    assert "in explode" in rollout.error_traceback
    assert kinds(record.item for record in detail.items["main"])[0] == "user"
    (call,) = detail.model_calls
    assert call.output is not None  # the session never got it: the journal has it
    assert [item["type"] for item in call.output] == ["function_call"]


async def test_a_traceback_that_no_database_takes_is_cleaned(store: Store) -> None:
    async def program(ctx: AgentWorkflowContext) -> None:
        raise ValueError("nul \x00 and lone \ud800")

    await execute(store, program)

    assert (await store.rollout("r")).rollout.error_message is not None


async def test_a_model_call_that_fails_is_stored_with_its_error(
    endpoint: PolicyEndpoint, store: Store
) -> None:
    endpoint.answer_with(lambda call: failing(400, "bad request, sorry"))

    outcome = await execute(store, one_turn)

    assert outcome.workflow.status is RolloutStatus.FAILURE
    detail = await store.rollout("r")
    assert detail.model_calls[-1].state == "failed"
    assert "bad request, sorry" in str(detail.model_calls[-1].error)
    assert kinds(record.item for record in detail.items["main"]) == ["user"]


async def test_a_cancelled_rollout_is_stored_as_such(store: Store) -> None:
    started = asyncio.Event()

    async def program(ctx: AgentWorkflowContext) -> None:
        await OsmosisSQLSession().add_items([{"role": "user", "content": "kept"}])
        started.set()
        await asyncio.sleep(60)

    running = asyncio.create_task(execute(store, program))
    await started.wait()
    running.cancel()
    await asyncio.wait([running])

    detail = await store.rollout("r")
    assert detail.rollout.status == "cancelled"
    assert [record.item["content"] for record in detail.items["main"]] == ["kept"]


async def test_a_rollout_that_is_late_is_stored_as_a_timeout(store: Store) -> None:
    async def program(ctx: AgentWorkflowContext) -> None:
        await asyncio.sleep(60)

    await execute(store, program, agent_timeout_sec=0.1)

    rollout = (await store.rollout("r")).rollout
    assert (rollout.status, rollout.error_category) == ("failure", "timeout")


async def test_a_grader_that_raises_leaves_an_error_for_each_sample(
    endpoint: PolicyEndpoint, store: Store
) -> None:
    await execute(store, one_turn, grader=Broken, label="42")

    detail = await store.rollout("r")
    assert detail.rollout.status == "success"
    (grade,) = detail.grades
    assert grade.reward is None
    assert "no such rubric" in str(grade.error)
    assert (await store.grading_runs())[0].failed_count == 1


async def test_one_recorder_keeps_one_grading_run_for_a_grader(
    endpoint: PolicyEndpoint, store: Store
) -> None:
    recorder = StoreRecorder(store)
    for rollout_id in ("a", "b"):
        request = {"id": rollout_id, "label": "42"}
        await execute(store, one_turn, grader=OneForAll, recorder=recorder, **request)
    await recorder.close()

    (run,) = await store.grading_runs()
    assert (run.kind, run.graded_count, run.failed_count) == ("rollout", 2, 0)
    assert run.ended_at is not None
    assert {grade.grading_run_id for grade in await store.grades()} == {run.grading_run_id}


async def test_a_grading_run_has_the_commit_of_its_graders_folder(
    endpoint: PolicyEndpoint, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def commit_of(folder: Path) -> str:
        asked.append(folder)
        return "3f2a-dirty"

    monkeypatch.setattr(versions, "code_commit", commit_of)
    recorder = StoreRecorder(store)
    for rollout_id in ("a", "b"):
        request = {"id": rollout_id, "label": "42"}
        await execute(store, one_turn, grader=OneForAll, recorder=recorder, **request)

    (run,) = await store.grading_runs()
    assert run.versions == {**versions.package_versions(), "git_commit": "3f2a-dirty"}
    assert asked == [HERE]


@pytest.mark.parametrize("session_class", [OsmosisMemorySession, OsmosisSQLSession])
async def test_an_item_that_cannot_be_stored_fails_the_rollout_with_that_error(
    store: Store, session_class: Any
) -> None:
    async def program(ctx: AgentWorkflowContext) -> None:
        session = session_class()
        await session.add_items([{"role": "user", "content": "kept"}])
        try:
            await session.add_items([{"role": "user", "content": "\ud83d\ude00"}])
        except ValueError:
            return  # whoever swallows it: the sample is not whole

    outcome = await execute(store, program)

    assert outcome.workflow.status is RolloutStatus.FAILURE
    rollout = (await store.rollout("r")).rollout
    assert rollout.status == "failure"
    assert "surrogate pair" in str(rollout.error_message)


async def test_a_store_that_cannot_be_written_fails_the_rollout_at_once(
    endpoint: PolicyEndpoint, store: Store
) -> None:
    await store.close()

    outcome = await execute(store, one_turn)

    assert outcome.workflow.status is RolloutStatus.FAILURE
    assert "is closed" in str(outcome.workflow.err_message)
    assert endpoint.calls == []


async def test_a_store_that_fails_in_the_middle_fails_the_rollout_though_it_is_swallowed(
    endpoint: PolicyEndpoint, store: Store
) -> None:
    async def program(ctx: AgentWorkflowContext) -> None:
        session = OsmosisSQLSession()
        await Runner.run(agent(), ctx.prompt, session=session)
        await store.close()
        try:
            await session.add_items([{"role": "user", "content": "dropped"}])
        except Exception:
            return

    outcome = await execute(store, program)

    assert outcome.workflow.status is RolloutStatus.FAILURE
    assert "is closed" in str(outcome.workflow.err_message)


async def test_an_id_that_runs_or_succeeded_is_not_given_again(
    endpoint: PolicyEndpoint, store: Store
) -> None:
    await execute(store, one_turn)
    endpoint.calls.clear()

    outcome = await execute(store, one_turn)

    assert outcome.workflow.status is RolloutStatus.FAILURE
    assert "'r' exists already" in str(outcome.workflow.err_message)
    assert endpoint.calls == []
    assert len((await store.rollout("r")).items["main"]) == 2


async def test_a_failed_rollouts_id_given_again_is_its_next_retry(
    endpoint: PolicyEndpoint, store: Store
) -> None:
    async def fail(ctx: AgentWorkflowContext) -> None:
        await OsmosisSQLSession().add_items([{"role": "user", "content": "failed"}])
        raise ValueError("not today")

    recorder = StoreRecorder(store)
    for _ in range(2):
        await execute(store, fail, recorder=recorder)
    outcome = await execute(store, one_turn, grader=OneForAll, recorder=recorder, label="42")

    assert outcome.workflow.status is RolloutStatus.SUCCESS
    found = [rollout async for rollout in store.rollouts()]
    assert [(one.rollout_id, one.retry_no, one.status) for one in found] == [
        ("r", 0, "failure"),
        ("r.r1", 1, "failure"),
        ("r.r2", 2, "success"),
    ]
    detail = await store.rollout("r.r2")
    assert kinds(record.item for record in detail.items["main"]) == ["user", "message"]
    assert [grade.rollout_id for grade in detail.grades] == ["r.r2"]


async def test_a_finished_rollouts_conversation_goes_on_only_when_it_is_reopened(
    endpoint: PolicyEndpoint, store: Store
) -> None:
    await execute(store, one_turn)
    with pytest.raises(RolloutFinished):
        await OsmosisSQLSession("r", store=store).get_items()

    session = store.session("r", "main")
    await session.add_items([{"role": "user", "content": "and then?"}])

    assert len(await store.session("r", "main").get_items()) == 3


async def test_a_sql_session_in_a_rollout_that_nobody_records_says_what_to_do() -> None:
    errors = []

    async def program(ctx: AgentWorkflowContext) -> None:
        with pytest.raises(NoStoreGiven, match="'r' is not recorded in a store") as refused:
            OsmosisSQLSession()
        errors.append(refused.value)

    one = type("One", (Workflow,), {"program": staticmethod(program)})
    await LocalBackend(workflow=one).execute(ExecutionRequest(id="r", prompt=PROMPT))

    assert "StoreRecorder(store)" in errors[0].hint


async def test_rollouts_side_by_side_do_not_mix(
    endpoint: PolicyEndpoint, database: Database
) -> None:
    endpoint.answer_with(lambda call: text(f"for {call.headers['x-rollout-id']}"))
    store, recorder = Store(database), StoreRecorder(database)

    await asyncio.gather(
        *(execute(store, one_turn, recorder=recorder, id=f"r{n}") for n in range(12))
    )

    for number in range(12):
        detail = await store.rollout(f"r{number}")
        assert detail.items["main"][1].item["content"][0]["text"] == f"for r{number}"
        assert [call.state for call in detail.model_calls] == ["saved"]


@pytest.mark.parametrize("odd", ["nul \x00", "lone \ud800"])
async def test_texts_that_no_database_takes_do_not_fail_a_rollout(
    endpoint: PolicyEndpoint, store: Store, odd: str
) -> None:
    async def program(ctx: AgentWorkflowContext) -> None:
        speaker = OsmosisAgent(name=f"a {odd}", model=OsmosisRolloutModel())
        await Runner.run(speaker, "go", session=OsmosisSQLSession())
        await OsmosisSQLSession("other").add_items([{"role": "user", "content": odd}])

    prompt = [{"role": "user", "content": odd}]
    outcome = await execute(store, program, metadata={"odd": odd}, prompt=prompt)

    assert outcome.workflow.err_message is None
    detail = await store.rollout("r")
    assert (detail.rollout.metadata, detail.rollout.prompt) == ({"odd": odd}, prompt)
    assert detail.items["other"][0].item["content"] == odd
    assert detail.model_calls[0].agent in ("a nul \ufffd", "a lone ?")


@pytest.mark.parametrize("odd", ["nul \x00", "lone \ud800"])
async def test_a_label_that_no_database_takes_fails_the_rollout_before_it_runs(
    endpoint: PolicyEndpoint, store: Store, odd: str
) -> None:
    outcome = await execute(store, one_turn, label=odd)

    assert outcome.workflow.status is RolloutStatus.FAILURE
    assert "label" in str(outcome.workflow.err_message)
    assert endpoint.calls == []
