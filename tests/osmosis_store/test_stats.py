"""Figures over rollouts, the same on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis_store import Store
from osmosis_store.database import Database
from osmosis_store.errors import InvalidSelection
from osmosis_store.queries import stats as stats_module
from osmosis_store.queries.stats import GroupStats, fetch_stats
from osmosis_store.records import NewGrade, Selection, Usage
from osmosis_store.writes.journal import end_model_call, insert_model_call
from tests.osmosis_store.ledger import add_grades, add_rollout

WORK, OTHER = "work:Work", "work:Other"


def add_call(database: Database, rollout_id: str, **tokens: int) -> None:
    values = {"rollout_id": rollout_id, "sample_id": "main", "model": "m", "settings": "{}"}
    call_no = database.write_now(
        lambda tx: insert_model_call(
            tx, values, instructions=None, tools=None, now=database.clock()
        )
    )
    answer: dict[str, Any] = {"state": "saved", **tokens}
    database.write_now(
        lambda tx: end_model_call(tx, rollout_id, call_no, answer, now=database.clock())
    )


@pytest.fixture
def filled(database: Database) -> Database:
    """Return a store with rollouts of two workflows, graded by two graders, one in two versions."""
    add_rollout(database, "a", "main", "side", workflow=WORK, metadata='{"split":"test"}')
    add_rollout(database, "b", "main", workflow=WORK, status="failure", error_category="agent")
    add_rollout(database, "c", "main", workflow=WORK, status="crashed")
    add_rollout(database, "d", "main", workflow=OTHER, status="failure", error_category="agent")
    add_rollout(database, "e", status="cancelled")
    add_call(database, "a", input_tokens=10, output_tokens=4, reasoning_tokens=3)
    add_call(database, "a", input_tokens=20, cached_tokens=5, output_tokens=1)
    add_call(database, "b", input_tokens=1)
    grade(database, "g1", "a", "old", main=0.0, side=1.0)
    grade(database, "g2", "a", "new", main=1.0)
    grade(database, "g2", "b", "new", main=0.5)
    grade(database, "g3", "a", "new", main=0.25)
    add_grades(database, "g2", "c", NewGrade(sample_id="main", error="no"), code_digest="new")
    add_grades(database, "g2", "d", NewGrade(sample_id="main", removed=True), code_digest="new")
    add_grades(database, "g4", "a", NewGrade(sample_id="main", reward=9.0), grader="g:Other")
    return database


def grade(database: Database, run: str, rollout_id: str, digest: str, **rewards: float) -> None:
    grades = [NewGrade(sample_id=name, reward=reward) for name, reward in rewards.items()]
    add_grades(database, run, rollout_id, *grades, code_digest=digest)


def ask(database: Database, by: str, selection: Selection | None = None) -> list[GroupStats]:
    with database.reading() as tx:
        return fetch_stats(tx, selection or Selection(), by=by)


def test_a_group_counts_rollouts_samples_tokens_and_failures(filled: Database) -> None:
    nobody, other, work = ask(filled, "workflow")

    assert (nobody.key, nobody.rollout_count, nobody.statuses) == (None, 1, {"cancelled": 1})
    assert (nobody.failures, nobody.graders, nobody.sample_count) == ({}, [], 0)
    assert (other.key, other.rollout_count, other.failures) == (OTHER, 1, {"agent": 1})
    assert (work.key, work.rollout_count, work.sample_count) == (WORK, 3, 4)
    assert work.statuses == {"success": 1, "failure": 1, "crashed": 1}
    assert work.failures == {"agent": 1, "crashed": 1}
    assert work.usage == Usage(
        input_tokens=31, cached_tokens=5, output_tokens=5, reasoning_tokens=3
    )


def test_rewards_of_different_digests_are_never_put_together(filled: Database) -> None:
    work = ask(filled, "workflow")[-1]

    assert [tuple(one) for one in work.graders] == [
        ("g:Other", "digest of g:Other", 1, 0, 0, 9.0, 1.0),
        ("graders:Lenient", "new", 2, 1, 0, 0.375, 0.0),
        ("graders:Lenient", "old", 2, 0, 0, 0.5, 0.5),
    ]


def test_what_is_removed_is_in_no_mean(filled: Database) -> None:
    other = ask(filled, "workflow")[1]

    assert [tuple(one)[2:] for one in other.graders] == [(0, 0, 1, None, None)]


def test_by_grader_a_group_is_of_the_rollouts_that_it_graded(filled: Database) -> None:
    found = ask(filled, "grader")

    assert [
        (one.key, one.code_digest, one.rollout_count, one.sample_count, len(one.graders))
        for one in found
    ] == [
        ("g:Other", "digest of g:Other", 1, 2, 1),
        ("graders:Lenient", "new", 4, 5, 1),
        ("graders:Lenient", "old", 1, 2, 1),
    ]
    assert [one.usage.input_tokens for one in found] == [30, 31, 30]
    assert found[1].graders[0].mean_reward == 0.375


def test_a_selection_chooses_what_is_counted(
    filled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_module, "_CHUNK", 1)

    (of_status,) = ask(filled, "workflow", Selection(status="success"))
    (of_meta,) = ask(filled, "workflow", Selection(meta=(("split", "test"),)))
    side = ask(filled, "workflow", Selection(sample="side"))
    in_parts = ask(filled, "eval-run", Selection(meta=(("nothing", "x"),)))

    assert of_status == of_meta
    assert of_status.rollout_count == 1
    assert (side[0].sample_count, len(side[0].graders)) == (1, 1)
    assert in_parts == []


def test_parts_of_a_selection_add_up(filled: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {by: ask(filled, by) for by in ("workflow", "grader", "eval-run")}
    monkeypatch.setattr(stats_module, "_CHUNK", 2)
    monkeypatch.setattr(stats_module, "is_sql_alone", lambda selection: False)
    everything = Selection(rollout=("a", "b", "c", "d", "e"))

    assert {by: ask(filled, by, everything) for by in whole} == whole


async def test_a_store_gives_figures(filled: Database) -> None:
    assert len(await Store(filled).stats(by="workflow")) == 3
    with pytest.raises(InvalidSelection):
        await Store(filled).stats(by="colour")
