"""The order in which rollouts are listed, page by page, the same on both databases."""

from __future__ import annotations

import datetime as dt

import pytest

from osmosis_store.database import Database
from osmosis_store.errors import InvalidSelection, RolloutNotFound
from osmosis_store.queries.rollouts import fetch_rollouts
from osmosis_store.records import NewGrade, Selection
from osmosis_store.store import Store
from tests.osmosis_store.ledger import add_grades, add_rollout

START = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def filled(database: Database) -> Database:
    """Return a store in which each order is another one, with ties and with values missing."""
    for name, started_s, length_us, rewards in (
        ("a", 5, 2_000_001, [0.5, 1.0]),
        ("b", 4, 2_000_000, [1.0]),
        ("c", 3, None, []),
        ("d", 3, 90_000_000, [0.75]),
        ("e", 1, 1, [0.0]),
        ("f", 0, None, [0.0]),
    ):
        samples = [f"s{at}" for at in range(len(rewards))]
        started = START + dt.timedelta(seconds=started_s)
        ended = None if length_us is None else started + dt.timedelta(microseconds=length_us)
        add_rollout(database, name, *samples, started_at=started, ended_at=ended)
        if rewards:
            grades = zip(samples, rewards, strict=True)
            add_grades(
                database, "g1", name, *(NewGrade(sample_id=one, reward=to) for one, to in grades)
            )
    add_grades(database, "g2", "f", NewGrade(sample_id="s0", error="it broke"))
    return database


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("id", "abcdef"),
        ("-id", "fedcba"),
        ("started", "fecdba"),
        ("-started", "abcdef"),
        ("duration", "ebadcf"),
        ("-duration", "dabecf"),
        ("reward", "eadbcf"),
        ("-reward", "badecf"),
    ],
)
def test_pages_of_any_size_are_the_whole_order(filled: Database, sort: str, order: str) -> None:
    for limit in (1, 2, 4, 10):
        pages, after = "", None
        while True:
            with filled.reading() as tx:
                page = fetch_rollouts(tx, Selection(), sort=sort, after=after, limit=limit)
            if not page:
                break
            pages += "".join(one.rollout_id for one in page)
            after = page[-1].rollout_id
        assert pages == order


def test_an_order_that_is_not_known_is_refused(database: Database) -> None:
    with database.reading() as tx, pytest.raises(InvalidSelection):
        fetch_rollouts(tx, Selection(), sort="size")


def test_a_page_behind_a_rollout_that_is_not_there_has_no_place(filled: Database) -> None:
    with filled.reading() as tx:
        assert len(fetch_rollouts(tx, Selection(), after="aa")) == 5
        with pytest.raises(RolloutNotFound):
            fetch_rollouts(tx, Selection(), sort="reward", after="aa")


async def test_a_store_streams_what_is_selected(
    filled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_store.store._PAGE", 2)

    found = [one.rollout_id async for one in Store(filled).rollouts(Selection(reward=">0"))]

    assert found == ["a", "b", "d"]
