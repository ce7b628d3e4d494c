"""`regrade` over both databases: what is graded, skipped, tried again and refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis_ai.rollout import Grader, GraderConfig
from osmosis_store import Store, regrade
from osmosis_store.adapters.osmosis_grader import load_grader
from osmosis_store.codec import encode_items
from osmosis_store.database import Database
from osmosis_store.errors import (
    CannotResume,
    GraderNotShareable,
    GradingRunNotFound,
    InvalidShard,
    NothingSelected,
)
from osmosis_store.queries.grades import fetch_grades, fetch_grading_run, fetch_grading_runs
from osmosis_store.queries.grading import decode_joined, fetch_joined_items
from osmosis_store.records import GradeRecord, NewGrade, SampleKey, Selection
from osmosis_store.regrade_passes import Share
from osmosis_store.schema import items, samples
from osmosis_store.writes.items import Append, append_items

from .ledger import add_grades, add_rollout

Rule = Callable[[Any], Awaitable[None]]


def grader(rule: Rule) -> type[Grader]:
    """Return a new grader class; those of one rule have one digest."""

    class OneRule(Grader):
        async def grade(self, ctx: Any) -> None:
            await rule(ctx)

    return OneRule


class LabelLength(Grader):
    """Gives each sample the length of its label."""

    async def grade(self, ctx: Any) -> None:
        for sample_id in ctx.samples:
            ctx.set_sample_reward(sample_id, float(len(ctx.label or "")))


class Half(GraderConfig):
    share: float = 0.5


class Configured(Grader):
    async def grade(self, ctx: Any) -> None:
        for sample_id in ctx.samples:
            ctx.set_sample_reward(sample_id, self.config.share)


def fill(database: Database, count: int, *sample_ids: str) -> None:
    """Store so many rollouts, each sample with two items."""
    names = sample_ids or ("main",)
    for number in range(count):
        add_rollout(database, f"r{number:02}", *names, label="x" * (number % 3))
        for name in names:
            say(database, SampleKey(f"r{number:02}", name), "question", "answer")


def say(database: Database, sample: SampleKey, *texts: str) -> None:
    encoded = encode_items([{"role": "user", "content": text} for text in texts])
    database.write_now(lambda tx: append_items(tx, [Append(sample, encoded)], now=database.clock()))


def grades(database: Database) -> list[GradeRecord]:
    with database.reading() as tx:
        return fetch_grades(tx)


def runs(database: Database) -> int:
    with database.reading() as tx:
        return len(fetch_grading_runs(tx))


async def test_every_sample_gets_a_grade_of_the_items_that_were_seen(
    store: Store, database: Database
) -> None:
    fill(database, 5)

    report = await regrade(store, LabelLength)

    [one] = report.passes
    assert (one.graded_count, one.failed_count, one.skipped) == (5, 0, {})
    assert (report.rollout_count, report.policy_calls) == (5, 0)
    assert [grade.reward for grade in grades(database)] == [0.0, 1.0, 2.0, 0.0, 1.0]
    with database.reading() as tx:
        heads = {row[0]: bytes(row[1]) for row in tx.execute(_HEADS)}
        run = fetch_grading_run(tx, grades(database)[0].grading_run_id)
    assert {grade.rollout_id: grade.chain_head for grade in grades(database)} == heads
    assert (run.graded_count, run.kind, run.ended_at is None) == (5, "regrade", False)


_HEADS = sa.select(samples.c.rollout_id, samples.c.chain_head)


async def test_a_grader_sees_all_samples_of_a_rollout_with_their_items_and_its_state(
    store: Store, database: Database
) -> None:
    add_rollout(database, "r", "planner", "executor", label="42", metadata='{"tier":"hard"}')
    say(database, SampleKey("r", "planner"), "plan")
    say(database, SampleKey("r", "executor"), "do", "done")
    seen: list[Any] = []

    async def look(ctx: Any) -> None:
        texts = {name: [m["content"] for m in s.messages] for name, s in ctx.samples.items()}
        seen.append((ctx.label, ctx.metadata, texts))
        seen.append(ctx.samples["planner"].extra_fields["osmosis_store"])
        for name in ctx.samples:
            ctx.set_sample_reward(name, 1.0)

    await regrade(store, grader(look))

    texts = {"planner": ["plan"], "executor": ["do", "done"]}
    assert seen[0] == ("42", {"tier": "hard"}, texts)
    assert seen[1] == {"status": "success", "attempt": 0, "retry_no": 0, "recovered_tail": 0}


async def test_what_is_settled_is_skipped_until_items_label_or_config_change(
    store: Store, database: Database
) -> None:
    fill(database, 2)
    half = (Configured, Half(name="half"))
    await regrade(store, [half])

    again = await regrade(store, [half])
    other = await regrade(store, [(Configured, Half(name="half", share=0.25))])
    say(database, SampleKey("r00", "main"), "one more")
    changed = await regrade(store, [half])
    forced = await regrade(store, [half], force=True)

    assert (again.passes[0].graded_count, again.passes[0].skipped) == (0, {"graded": 2})
    assert again.passes[0].grading_run_id is None
    assert other.passes[0].graded_count == 2
    assert changed.passes[0].graded_count == 1
    assert forced.passes[0].graded_count == 2
    assert runs(database) == 4


async def test_one_that_fails_ends_nothing_and_is_tried_again_in_the_same_run(
    store: Store, database: Database
) -> None:
    fill(database, 4)
    at = {"count": 0}

    async def rule(ctx: Any) -> None:
        at["count"] += 1
        if len(ctx.label) == at.get("bad"):
            raise RuntimeError("the judge is down")
        for name in ctx.samples:
            ctx.set_sample_reward(name, 1.0)

    moody = grader(rule)
    at["bad"] = 1  # the labels of r01
    first = await regrade(store, moody)
    at["bad"], at["count"] = -1, 0
    second = await regrade(store, moody, failed_only=True)
    third = await regrade(store, moody, failed_only=True)

    run_id = first.passes[0].grading_run_id
    assert first.passes[0].failures == [("r01", "main", "the judge is down")]
    assert (second.passes[0].grading_run_id, second.passes[0].graded_count) == (run_id, 1)
    assert second.passes[0].skipped == {"not_failed": 3}
    assert at["count"] == 1
    assert third.passes[0].graded_count == 0
    of_one = [one for one in grades(database) if one.rollout_id == "r01"]
    assert [(one.grade_no, one.error, one.reward) for one in of_one] == [
        (0, "the judge is down", None),
        (1, None, 1.0),
    ]
    assert {one.grading_run_id for one in of_one} == {run_id}


async def test_a_stopped_regrade_goes_on_under_its_grading_run(
    store: Store, database: Database
) -> None:
    fill(database, 20)
    done: list[int] = []

    first = await regrade(
        store,
        LabelLength,
        selection=Selection(status="success"),
        concurrency=1,
        on_progress=lambda count, total: done.append(count),
        is_stopped=lambda: len(done) >= 5,
    )
    run_id = first.passes[0].grading_run_id
    second = await regrade(store, LabelLength, resume=run_id)

    assert first.interrupted
    assert 5 <= first.passes[0].graded_count < 20
    assert second.passes[0].grading_run_id == run_id
    assert first.passes[0].graded_count + second.passes[0].graded_count == 20
    assert len(grades(database)) == 20
    with database.reading() as tx:
        run = fetch_grading_run(tx, run_id or "")
    assert (run.graded_count, run.selection) == (20, {"status": "success"})


async def test_what_cannot_be_gone_on_with_is_refused(store: Store, database: Database) -> None:
    fill(database, 2)
    run_id = (await regrade(store, LabelLength)).passes[0].grading_run_id

    with pytest.raises(CannotResume, match="its code is another"):
        await regrade(store, Configured, resume=run_id)
    with pytest.raises(CannotResume, match="has failed grades"):
        await regrade(store, LabelLength, failed_only=True)
    with pytest.raises(CannotResume, match="of one grader"):
        await regrade(store, [LabelLength, Configured], resume=run_id)
    with pytest.raises(GradingRunNotFound):
        await regrade(store, LabelLength, resume="g_none")
    assert (runs(database), len(grades(database))) == (1, 2)


async def test_bad_input_changes_nothing(store: Store, database: Database) -> None:
    with pytest.raises(NothingSelected, match="the store has no rollout"):
        await regrade(store, LabelLength)
    fill(database, 1)
    with pytest.raises(NothingSelected, match="no rollout fits label=none"):
        await regrade(store, LabelLength, selection=Selection(label="none"))
    for shard in ("0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3"):
        with pytest.raises(InvalidShard):
            await regrade(store, LabelLength, shard=shard)
    with pytest.raises(GraderNotShareable):
        await regrade(store, grader(lambda ctx: asyncio.sleep(0)), workers=2)
    assert (runs(database), grades(database)) == (0, [])


async def test_several_graders_in_one_go_each_under_its_own_run(
    store: Store, database: Database
) -> None:
    fill(database, 3)

    report = await regrade(store, [LabelLength, (Configured, Half(name="half"))])

    assert [one.graded_count for one in report.passes] == [3, 3]
    ids = [one.grading_run_id for one in report.passes]
    by_run = {
        run_id: [one.reward for one in grades(database) if one.grading_run_id == run_id]
        for run_id in ids
    }
    assert by_run == {ids[0]: [0.0, 1.0, 2.0], ids[1]: [0.5, 0.5, 0.5]}


async def test_what_one_grader_changes_another_does_not_see(
    store: Store, database: Database
) -> None:
    fill(database, 1)
    seen: list[int] = []

    async def spoil(ctx: Any) -> None:
        seen.append(len(ctx.samples["main"].messages))
        ctx.samples["main"].messages[0]["content"] = "spoiled"
        ctx.samples["main"].messages.clear()
        ctx.set_sample_reward("main", 1.0)

    await regrade(store, [grader(spoil), LabelLength, grader(spoil)], force=True)

    assert seen == [2, 2]
    assert len(await store.session("r00", "main").get_items()) == 2


async def test_a_sample_without_a_reward_fails_alone_and_one_may_be_removed(
    store: Store, database: Database
) -> None:
    fill(database, 1, "a", "b", "c")

    async def some(ctx: Any) -> None:
        ctx.set_sample_reward("a", 0.5)
        ctx.samples["a"].metrics["steps"] = 3
        ctx.samples["a"].extra_fields["explanation"] = "because"
        ctx.samples["c"].remove_sample = True

    report = await regrade(store, grader(some))

    [one] = report.passes
    assert (one.graded_count, one.failed_count, one.removed_count) == (2, 1, 1)
    a, b, c = grades(database)
    assert (a.reward, a.metrics, a.explanation) == (0.5, {"steps": 3}, "because")
    assert (b.reward, b.error) == (None, "the grader gave no reward")
    assert (c.reward, c.error, c.removed) == (None, None, True)


async def test_a_dry_run_says_why_and_changes_nothing(store: Store, database: Database) -> None:
    fill(database, 2)
    add_rollout(database, "s", "main", status="running")
    await regrade(store, LabelLength, selection=Selection(rollout=("r00",)))
    told: list[Any] = []

    report = await regrade(store, LabelLength, dry_run=True, plan=lambda *one: told.append(one[1:]))

    assert told[:2] == [(("r00", "main"), "graded"), (("r01", "main"), None)]
    assert report.dry_run
    assert report.passes[0].grading_run_id is None
    assert (runs(database), len(grades(database))) == (1, 1)


async def test_a_limit_counts_rollouts_that_have_something_to_grade(
    store: Store, database: Database
) -> None:
    fill(database, 5)

    counts = [(await regrade(store, LabelLength, limit=2)).passes[0].graded_count for _ in range(3)]

    assert counts == [2, 2, 1]


async def test_shards_share_the_rollouts_out(store: Store, database: Database) -> None:
    fill(database, 30)

    counts = [
        (await regrade(store, LabelLength, shard=f"{index}/3")).passes[0].graded_count
        for index in (1, 2, 3)
    ]

    assert sum(counts) == 30
    assert min(counts) > 0
    assert len(grades(database)) == 30


def test_a_share_is_stable_and_every_rollout_has_one_worker() -> None:
    ids = [f"rollout-{number}" for number in range(500)]
    parts = [Share(index, 3, worker, 2) for index in range(3) for worker in range(2)]

    owners = [[part for part in parts if part.has(one)] for one in ids]

    assert {len(one) for one in owners} == {1}
    assert {len([one for one in owners if one == [part]]) > 40 for part in parts} == {True}
    assert Share.parse("2/3") == Share(1, 3)


async def test_a_grader_has_a_time_of_its_own(store: Store, database: Database) -> None:
    fill(database, 2)

    async def slow(ctx: Any) -> None:
        if ctx.label:
            await asyncio.sleep(30)
        ctx.set_sample_reward("main", 1.0)

    report = await regrade(store, grader(slow), timeout_s=0.2)

    [one] = report.passes
    assert (one.graded_count, one.failed_count) == (1, 1)
    assert one.failures == [("r01", "main", "the grader was not done in 0.2 s")]


async def test_graders_run_at_the_same_time(store: Store, database: Database) -> None:
    fill(database, 6)
    together = asyncio.Barrier(6)

    async def meet(ctx: Any) -> None:
        await asyncio.wait_for(together.wait(), 20)
        ctx.set_sample_reward("main", 1.0)

    report = await regrade(store, grader(meet), concurrency=6)

    assert report.passes[0].graded_count == 6


class Odd(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def cancel_itself(ctx: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)


async def raise_odd(ctx: Any) -> None:
    raise Odd("not even an Exception")


async def raise_mute(ctx: Any) -> None:
    raise Mute


@pytest.mark.parametrize("timeout_s", [None, 20.0])
@pytest.mark.parametrize(
    ("rule", "error"),
    [(cancel_itself, "cancelled"), (raise_odd, "not even an Exception"), (raise_mute, "Mute")],
)
async def test_whatever_a_grader_does_to_itself_is_its_samples_error(
    sqlite_database: Database, rule: Rule, error: str, timeout_s: float | None
) -> None:
    fill(sqlite_database, 5)

    report = await regrade(sqlite_database, grader(rule), concurrency=2, timeout_s=timeout_s)

    [one] = report.passes
    assert (one.graded_count, one.failed_count) == (0, 5)
    assert all(error in failure[2] for failure in one.failures)
    assert len(grades(sqlite_database)) == 5


async def test_no_grading_sees_the_context_variables_of_another(
    store: Store, database: Database
) -> None:
    fill(database, 6)
    seen: list[str] = []

    async def mark(ctx: Any) -> None:
        seen.append(MARK.get())
        MARK.set("spoiled")
        ctx.set_sample_reward("main", 1.0)

    report = await regrade(store, grader(mark), concurrency=2)

    assert report.passes[0].graded_count == 6
    assert seen == ["clean"] * 6
    assert MARK.get() == "clean"


MARK = ContextVar("MARK", default="clean")


async def test_a_refused_connection_is_the_samples_error_even_if_it_is_swallowed(
    store: Store, database: Database
) -> None:
    fill(database, 2)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    async def call(ctx: Any) -> None:
        if ctx.label:
            with contextlib.suppress(Exception):
                socket.create_connection(("127.0.0.1", port), 5).close()
        ctx.set_sample_reward("main", 0.0)

    refused = await regrade(store, grader(call))
    allowed = await regrade(store, grader(call), allow_network=True, force=True)
    listener.close()

    assert (refused.connections_refused, refused.connections_allowed) == (1, 0)
    assert [one[:2] for one in refused.passes[0].failures] == [("r01", "main")]
    assert f"127.0.0.1:{port}" in refused.passes[0].failures[0][2]
    assert (allowed.connections_refused, allowed.connections_allowed) == (0, 1)
    assert allowed.passes[0].failed_count == 0
    assert allowed.passes[0].judge is None


async def test_a_judge_may_say_its_tokens_in_the_metrics(store: Store, database: Database) -> None:
    fill(database, 3)

    async def judge(ctx: Any) -> None:
        ctx.samples["main"].metrics.update(judge_input_tokens=100, judge_output_tokens=5)
        ctx.set_sample_reward("main", 1.0)

    report = await regrade(store, grader(judge))

    found = report.passes[0].judge
    assert found is not None
    assert (found.input_tokens, found.output_tokens) == (300, 15)


async def test_two_regrades_at_once_store_one_grade_a_sample(
    store: Store, database: Database
) -> None:
    fill(database, 12)

    class Slow(Grader):
        async def grade(self, ctx: Any) -> None:
            await asyncio.sleep(0.01)
            ctx.set_sample_reward("main", 1.0)

    one, two = await asyncio.gather(regrade(store, Slow), regrade(store, Slow))

    assert len(grades(database)) == 12
    assert one.passes[0].graded_count + two.passes[0].graded_count == 12
    skipped = one.passes[0].skipped.get("graded", 0) + two.passes[0].skipped.get("graded", 0)
    assert skipped == 12


async def test_an_item_that_cannot_be_read_fails_its_rollout_alone(
    store: Store, database: Database
) -> None:
    fill(database, 3)
    spoil = sa.update(items).where(items.c.rollout_id == "r01", items.c.seq == 1)
    await database.write(lambda tx: tx.execute(spoil.values(body='{"role":')).close())

    report = await regrade(store, LabelLength)

    [one] = report.passes
    assert (one.graded_count, one.failed_count) == (2, 1)
    assert one.failures[0][0] == "r01"
    assert "r01" in one.failures[0][2]
    assert "1" in one.failures[0][2]


async def test_more_items_than_a_value_holds_are_graded_all_the_same(
    sqlite_database: Database,
) -> None:
    fill(sqlite_database, 2)
    say(sqlite_database, SampleKey("r01", "main"), *(["x" * 1000] * 30))

    with sqlite_database.reading() as tx:
        keys = [SampleKey("r00", "main"), SampleKey("r01", "main")]
        whole = fetch_joined_items(tx, keys)
        raw: Any = tx.connection.driver_connection
        before = raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 20_000)
        try:
            row_by_row = fetch_joined_items(tx, keys)
        finally:
            raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)

    assert {type(text) for text in row_by_row.values()} == {str}
    assert [decode_joined(row_by_row[key]) for key in keys] == [
        decode_joined(whole[key]) for key in keys
    ]
    assert len(decode_joined(whole[keys[1]])[0]) == 32


def test_grades_of_more_rollouts_than_a_statement_takes(database: Database) -> None:
    fill(database, 3)
    named = [NewGrade(sample_id="main", reward=float(number)) for number in range(3)]
    for number, grade in enumerate(named):
        add_grades(database, "g_1", f"r{number:02}", grade)

    with database.reading() as tx:
        ids = [f"r{number:02}" for number in reversed(range(70_000))]
        found = fetch_grades(tx, rollout_ids=ids)
        first = fetch_grades(tx, rollout_ids=ids, limit=2)

    assert [one.reward for one in found] == [0.0, 1.0, 2.0]
    assert first == found[:2]


async def test_what_was_graded_is_kept_when_the_caller_is_cancelled(
    store: Store, database: Database
) -> None:
    fill(database, 6)
    hanging = asyncio.Event()

    async def hang(ctx: Any) -> None:
        if len(ctx.label) == 2:
            hanging.set()
            await asyncio.sleep(60)
        ctx.set_sample_reward("main", 1.0)

    task = asyncio.create_task(regrade(store, grader(hang)))
    await asyncio.wait_for(hanging.wait(), 20)
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [one.rollout_id for one in grades(database)] == ["r00", "r01", "r03", "r04"]


async def test_processes_share_the_work_and_refuse_the_network(
    store: Store, database: Database, tmp_path: Path
) -> None:
    fill(database, 40)
    (tmp_path / "outside.py").write_text(OUTSIDE)
    outside, config = load_grader("outside.py:Outside", tmp_path, {"bonus": 0.5})

    report = await regrade(store, [(outside, config)], workers=2)

    [one] = report.passes
    assert (one.graded_count, one.failed_count) == (27, 13)
    assert (report.rollout_count, report.connections_refused) == (40, 13)
    found = grades(database)
    assert len(found) == 40
    assert {one.reward for one in found if one.error is None} == {1.5, 2.5}
    assert len({one.metrics["pid"] for one in found if one.metrics}) == 2
    assert {one.grading_run_id for one in found} == {one.grading_run_id}
    with database.reading() as tx:
        run = fetch_grading_run(tx, one.grading_run_id or "")
    assert (run.graded_count, run.failed_count, run.connections_refused) == (27, 13, 13)


async def test_a_process_that_dies_is_told_and_the_rest_can_be_graded(
    store: Store, database: Database, tmp_path: Path
) -> None:
    fill(database, 12)
    (tmp_path / "dying.py").write_text(DYING)
    dying, config = load_grader("dying.py:Dying", tmp_path, {})
    (tmp_path / "die").touch()

    with pytest.raises(Exception, match="ended with code 7"):
        await regrade(store, [(dying, config)], workers=2)
    (tmp_path / "die").unlink()
    await regrade(store, [(dying, config)], workers=2)

    assert sorted(one.rollout_id for one in grades(database)) == [f"r{n:02}" for n in range(12)]


OUTSIDE = """
import os, socket
from osmosis_ai.rollout import Grader, GraderConfig

class Bonus(GraderConfig):
    name: str = "bonus"
    bonus: float = 0.0

bonus = Bonus()

class Outside(Grader):
    async def grade(self, ctx):
        for name, sample in ctx.samples.items():
            sample.metrics["pid"] = os.getpid()
            if len(ctx.label) == 2:
                socket.create_connection(("127.0.0.1", 9), 5)
            ctx.set_sample_reward(name, len(ctx.label) + 1 + self.config.bonus)
"""

DYING = """
import os, pathlib
from osmosis_ai.rollout import Grader

class Dying(Grader):
    async def grade(self, ctx):
        if (pathlib.Path(__file__).parent / "die").exists():
            os._exit(7)
        ctx.set_sample_reward("main", 1.0)
"""
