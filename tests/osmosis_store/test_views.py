"""The documented views, as somebody with an SQL client sees them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa

from osmosis_store import OsmosisSQLSession, Store
from osmosis_store.database import Database
from osmosis_store.leases import hold_lease
from osmosis_store.records import NewGrade, Selection
from osmosis_store.writes.journal import end_model_call, insert_model_call
from osmosis_store.writes.workers import end_leases
from tests.osmosis_store.ledger import add_grades, add_rollout


def ask(database: Database, query: str) -> list[tuple[Any, ...]]:
    with database.reading() as tx:
        return [tuple(row) for row in tx.execute(sa.text(query))]


def add_model_call(database: Database, rollout_id: str, input_tokens: int) -> None:
    values = {"rollout_id": rollout_id, "sample_id": "main", "model": "m", "settings": "{}"}
    call_no = database.write_now(
        lambda tx: insert_model_call(
            tx, values, instructions=None, tools=None, now=database.clock()
        )
    )
    answer = {"state": "saved", "input_tokens": input_tokens, "output_tokens": 1}
    database.write_now(
        lambda tx: end_model_call(tx, rollout_id, call_no, answer, now=database.clock())
    )


async def test_live_items_leaves_out_what_was_popped(database: Database) -> None:
    session = OsmosisSQLSession("chat", store=database)
    call = {"type": "function_call", "name": "add", "call_id": "c1", "arguments": "{}"}
    await session.add_items([{"role": "user", "content": "a"}, call, call])
    await session.pop_item()

    assert ask(
        database, "SELECT seq, type, role, tool_name, call_id, body FROM live_items ORDER BY seq"
    ) == [
        (0, "message", "user", None, None, '{"role":"user","content":"a"}'),
        (
            1,
            "function_call",
            None,
            "add",
            "c1",
            '{"type":"function_call","name":"add","call_id":"c1","arguments":"{}"}',
        ),
    ]


def test_current_grades_has_the_newest_grade_of_each_grader(database: Database) -> None:
    add_rollout(database, "r", "main", "other")
    lenient, strict = "graders:Lenient", "graders:Strict"
    add_grades(database, "g1", "r", NewGrade(sample_id="main", reward=1.0), grader=lenient)
    add_grades(database, "g2", "r", NewGrade(sample_id="main", reward=0.0), grader=strict)
    add_grades(database, "g3", "r", NewGrade(sample_id="main", error="broken"), grader=lenient)
    add_grades(database, "g3", "r", NewGrade(sample_id="other", reward=0.5), grader=lenient)

    assert ask(
        database,
        "SELECT sample_id, grader, grade_no, grading_run_id, reward, error FROM current_grades "
        "ORDER BY sample_id, grader",
    ) == [
        ("main", lenient, 2, "g3", None, "broken"),
        ("main", strict, 1, "g2", 0.0, None),
        ("other", lenient, 0, "g3", 0.5, None),
    ]


def test_current_grades_has_the_second_grade_of_one_grading_run(database: Database) -> None:
    add_rollout(database, "r", "main", "other")
    for sample_id in ("main", "other"):
        add_grades(database, "g1", "r", NewGrade(sample_id=sample_id, error="broken"))
    add_grades(database, "g1", "r", NewGrade(sample_id="main", reward=1.0))

    assert ask(
        database,
        "SELECT sample_id, grade_no, grading_run_id, reward, error FROM current_grades "
        "ORDER BY sample_id",
    ) == [("main", 1, "g1", 1.0, None), ("other", 0, "g1", None, "broken")]


async def test_rollout_summary_counts_and_sums(database: Database) -> None:
    add_rollout(database, "r", "main", "empty", label="42", workflow="main:Multiply")
    session = Store(database).session("r", "main")
    await session.add_items([{"role": "user", "content": text} for text in "abc"])
    await session.pop_item()
    for tokens in (10, 20):
        add_model_call(database, "r", tokens)
    add_rollout(database, "s")

    assert ask(
        database,
        "SELECT rollout_id, status, label, sample_count, live_item_count, model_call_count, "
        "input_tokens, output_tokens FROM rollout_summary ORDER BY rollout_id",
    ) == [
        ("r", "success", "42", 2, 2, 2, 30, 2),
        ("s", "success", None, 0, 0, 0, None, None),
    ]


def test_rollout_summary_has_the_duration_and_the_mean_of_the_newest_rewards(
    database: Database,
) -> None:
    began = database.clock()
    ended = began + dt.timedelta(seconds=90, milliseconds=250)
    add_rollout(database, "r", "main", "other", started_at=began, ended_at=ended)
    for reward in (0.0, 1.0):
        add_grades(database, "g", "r", NewGrade(sample_id="main", reward=reward))
    add_grades(database, "g", "r", NewGrade(sample_id="other", reward=0.5))
    add_rollout(database, "s", "main")
    add_grades(database, "g", "s", NewGrade(sample_id="main", error="broken"))

    assert ask(
        database, "SELECT rollout_id, duration_s, reward FROM rollout_summary ORDER BY rollout_id"
    ) == [("r", 90.25, 0.75), ("s", None, None)]


def test_model_usage_sums_the_calls_of_each_model(database: Database) -> None:
    add_rollout(database, "r", "main")
    for tokens in (10, 20):
        add_model_call(database, "r", tokens)

    assert ask(
        database,
        "SELECT rollout_id, sample_id, model, call_count, input_tokens, cached_tokens, "
        "output_tokens FROM model_usage",
    ) == [("r", "main", "m", 2, 30, None, 2)]


async def test_a_running_rollout_is_crashed_once_its_workers_lease_is_over(
    database: Database,
) -> None:
    lease = await hold_lease(database)
    add_rollout(database, "mine", status="running", worker_id=lease.worker_id, lease_epoch=1)
    add_rollout(database, "nobodys", status="running")
    query = "SELECT rollout_id, status FROM rollout_summary ORDER BY rollout_id"

    async def through_the_facade() -> list[tuple[str, str]]:
        return [(one.rollout_id, one.status) async for one in Store(database).rollouts()]

    assert ask(database, query) == [("mine", "running"), ("nobodys", "crashed")]
    assert await through_the_facade() == ask(database, query)
    await database.write(lambda tx: end_leases(tx, [lease.worker_id]))
    assert ask(database, query) == [("mine", "crashed"), ("nobodys", "crashed")]
    assert await through_the_facade() == ask(database, query)
    crashed = Selection(status="crashed")
    assert len([one async for one in Store(database).rollouts(crashed)]) == 2
