"""A rollout that is cancelled, at whatever moment and however often, is stored as cancelled."""

import asyncio
import contextlib
from typing import Any

import pytest

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, ExecutionRequest, LocalBackend
from osmosis_store import OsmosisSQLSession, Selection, Store, StoreRecorder
from osmosis_store.database import Database


class Waiting(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        await OsmosisSQLSession("main").add_items([{"role": "user", "content": "hello"}])
        await asyncio.sleep(60)


class Short(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        await OsmosisSQLSession("main").add_items([{"role": "user", "content": "hello"}])


async def test_one_whose_workflow_has_ended_keeps_its_end(database: Database) -> None:
    cancelled_late = 0
    for number in range(40):
        recorder = StoreRecorder(database)
        backend = LocalBackend(workflow=Short, recorder=recorder)
        collect, ending = recorder.samples_collected, asyncio.Event()

        async def note(*given: Any, collect: Any = collect, ending: Any = ending) -> None:
            ending.set()
            await collect(*given)

        recorder.samples_collected = note
        request = ExecutionRequest(id=f"s{number:02}", prompt=[])
        task = asyncio.create_task(backend.execute(request))
        await ending.wait()
        for _ in range(number % 4):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        cancelled_late += task.cancelled()

    stored = [one async for one in Store(database).rollouts(Selection())]
    assert cancelled_late > 0
    assert {one.status for one in stored} == {"success"}


@pytest.mark.parametrize("cancellations", [1, 4])
async def test_its_status_is_cancelled(database: Database, cancellations: int) -> None:
    recorder = StoreRecorder(database)
    backend = LocalBackend(workflow=Waiting, recorder=recorder)

    async def run_and_cancel(number: int) -> None:
        request = ExecutionRequest(id=f"r{number:02}", prompt=[])
        task = asyncio.create_task(backend.execute(request))
        await asyncio.sleep(number * 0.002)
        for _ in range(cancellations):
            task.cancel()
            await asyncio.sleep(0.001)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    for number in range(12):
        await run_and_cancel(number)

    stored = [one async for one in Store(database).rollouts(Selection())]
    # those that were cancelled before their row was begun have none
    assert {one.status for one in stored} == {"cancelled"}
    assert all(one.ended_at is not None for one in stored)
