"""Grades that people add through the facade, and what the queries of the ledger say of them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from osmosis_store import Store
from osmosis_store.database import Database
from osmosis_store.errors import InvalidGrade, RolloutNotFound, SampleNotFound
from osmosis_store.queries.grades import (
    fetch_grading_run,
    fetch_history,
    fetch_run_result,
    fetch_sorted_grades,
)
from osmosis_store.records import NewGrade, Selection
from tests.osmosis_store.ledger import add_grades, add_rollout

GIVEN: dict[str, Any] = {"author": "alice", "reason": "looked at it"}


@pytest.fixture
def two_samples(store: Store) -> Store:
    add_rollout(store.database, "r", "a", "b", label="42")
    add_rollout(store.database, "s", "main")
    return store


async def test_a_persons_grade_is_of_the_items_and_label_as_they_are(two_samples: Store) -> None:
    await two_samples.session("r", "b").add_items([{"role": "user", "content": "more"}])

    grade = await two_samples.add_grade("r", 0.5, sample_id="b", explanation="half", **GIVEN)

    (sample,) = [one for one in (await two_samples.rollout("r")).samples if one.sample_id == "b"]
    assert (grade.kind, grade.grader, grade.code_digest) == ("human", "human:alice", None)
    assert (grade.reward, grade.explanation, grade.label) == (0.5, "half", "42")
    assert grade.chain_head == sample.chain_head
    assert await two_samples.grades(rollout_id="r") == [grade]
    run = await two_samples.database.read(lambda tx: fetch_grading_run(tx, grade.grading_run_id))
    assert (run.kind, run.author, run.reason) == ("human", "alice", "looked at it")
    assert (run.graded_count, run.selection) == (1, {"rollout": ["r"], "sample": "b"})
    assert run.ended_at is not None


async def test_two_people_do_not_replace_each_others_current_grade(two_samples: Store) -> None:
    await two_samples.add_grade("s", 0.0, author="alice", reason="no")
    await two_samples.add_grade("s", 1.0, author="bob", reason="yes")
    await two_samples.add_grade("s", 0.5, author="alice", reason="on second thoughts")

    with two_samples.database.reading() as tx:
        rows = tx.exec_driver_sql("SELECT grader, reward FROM current_grades ORDER BY grader")
        assert [tuple(row) for row in rows] == [("human:alice", 0.5), ("human:bob", 1.0)]


async def test_a_grade_that_says_nothing_is_refused_and_nothing_is_stored(
    two_samples: Store,
) -> None:
    for reward in (math.nan, math.inf):
        with pytest.raises(InvalidGrade, match="a reward is a finite number"):
            await two_samples.add_grade("s", reward, **GIVEN)
    with pytest.raises(InvalidGrade, match="rollout 'r' has 2 samples") as caught:
        await two_samples.add_grade("r", 1.0, **GIVEN)
    assert caught.value.hint == "name one with --sample: a, b"
    with pytest.raises(InvalidGrade, match="needs its reason"):
        await two_samples.add_grade("s", 1.0, author="alice", reason="")
    with pytest.raises(RolloutNotFound):
        await two_samples.add_grade("t", 1.0, **GIVEN)
    with pytest.raises(SampleNotFound):
        await two_samples.add_grade("s", 1.0, sample_id="other", **GIVEN)

    assert await two_samples.grades() == []
    assert await two_samples.grading_runs() == []


async def test_a_rollout_without_a_sample_cannot_be_graded(store: Store) -> None:
    add_rollout(store.database, "empty")

    with pytest.raises(InvalidGrade, match="rollout 'empty' has no sample to grade"):
        await store.add_grade("empty", 1.0, **GIVEN)


async def test_texts_that_no_database_takes_are_made_fit(two_samples: Store) -> None:
    grade = await two_samples.add_grade(
        "s", 1.0, author="a\x00b", reason="\ud800", explanation="c\x00d"
    )

    assert (grade.grader, grade.explanation) == ("human:a\ufffdb", "c\ufffdd")


def test_a_grading_runs_result_is_over_the_newest_grade_of_each_sample(database: Database) -> None:
    for name in ("r", "s", "t"):
        add_rollout(database, name, "main")
    add_grades(database, "g", "r", NewGrade(sample_id="main", error="broken"))
    add_grades(database, "g", "r", NewGrade(sample_id="main", reward=0.25))
    add_grades(database, "g", "s", NewGrade(sample_id="main", reward=1.0, removed=True))
    add_grades(database, "g", "t", NewGrade(sample_id="main", error="broken"))
    add_grades(database, "g_other", "t", NewGrade(sample_id="main", reward=1.0))

    with database.reading() as tx:
        assert tuple(fetch_run_result(tx, "g")) == (3, 1, 1, 1, 0.25)
        assert tuple(fetch_run_result(tx, "g_none")) == (0, 0, 0, 0, None)


async def test_a_history_says_what_changed_since(two_samples: Store) -> None:
    add_grades(two_samples.database, "g", "r", NewGrade(sample_id="a", reward=1.0, label="42"))
    add_grades(two_samples.database, "g", "r", NewGrade(sample_id="b", reward=1.0, label="41"))
    await two_samples.session("r", "a").add_items([{"role": "user", "content": "more"}])
    await two_samples.add_grade("r", 0.0, sample_id="a", **GIVEN)

    found = await two_samples.database.read(lambda tx: fetch_history(tx, "r"))

    assert [
        (one.grade.sample_id, one.grade.grade_no, one.author, one.same_items, one.same_label)
        for one in found
    ] == [
        ("a", 0, None, False, True),
        ("a", 1, "alice", True, True),
        ("b", 0, None, True, False),
    ]


def test_sorted_grades_keep_those_without_a_reward_for_the_end(database: Database) -> None:
    rewards = {"r1": 0.5, "r2": None, "r3": 1.0, "r4": 0.5}
    for name, reward in rewards.items():
        add_rollout(database, name, "main", metadata=f'{{"name":"{name}"}}')
        error = "broken" if reward is None else None
        add_grades(database, "g", name, NewGrade(sample_id="main", reward=reward, error=error))

    def ids(order: str, limit: int = 9, **conditions: Any) -> list[str]:
        with database.reading() as tx:
            found = fetch_sorted_grades(tx, Selection(**conditions), order=order, limit=limit)
        return [one.rollout_id for one in found]

    assert ids("reward") == ["r1", "r4", "r3", "r2"]
    assert ids("-reward") == ["r3", "r1", "r4", "r2"]
    assert ids("-time") == ["r4", "r3", "r2", "r1"]
    assert ids("reward", 2) == ["r1", "r4"]
    assert ids("-reward", 1, meta=(("name", "r4"),)) == ["r4"]
