"""`OsmosisSQLSession` outside a rollout: a durable conversation under a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from agents.memory import SessionSettings

from osmosis_store import OsmosisSQLSession, Store
from osmosis_store.database import Database
from osmosis_store.errors import (
    CorruptItem,
    InvalidId,
    InvalidStoreUrl,
    ItemNotStorable,
    NoStoreGiven,
    RolloutFinished,
    SampleNotFound,
)
from osmosis_store.schema import items, rollouts
from osmosis_store.writes.rollouts import insert_rollout


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def set_body(database: Database, seq: int, body: str) -> None:
    await database.write(
        lambda tx: tx.execute(sa.update(items).where(items.c.seq == seq).values(body=body))
    )


async def store_rollout(database: Database, rollout_id: str, status: str) -> None:
    values = {"rollout_id": rollout_id, "status": status}
    await database.write(lambda tx: insert_rollout(tx, values, now=database.clock()))


def test_building_one_does_no_io(sqlite_url: str, tmp_path: Path) -> None:
    OsmosisSQLSession("chat-7", store=sqlite_url, metadata={"user": "u1"})

    assert list(tmp_path.iterdir()) == []


async def test_a_url_is_opened_on_first_use_and_shared_by_the_process(sqlite_url: str) -> None:
    one = OsmosisSQLSession("a", store=sqlite_url)
    two = OsmosisSQLSession("a", store=sqlite_url)
    await one.add_items([user("hi")])

    assert await two.get_items() == [user("hi")]
    shared = Database.shared(sqlite_url)
    assert Database.shared(sqlite_url) is shared
    shared.close()
    assert await OsmosisSQLSession("a", store=sqlite_url).get_items() == [user("hi")]
    Database.shared(sqlite_url).close()


def test_a_wrong_url_is_refused_at_once() -> None:
    with pytest.raises(InvalidStoreUrl):
        OsmosisSQLSession("chat", store="chats.db")


def test_without_a_store_it_says_what_to_pass() -> None:
    with pytest.raises(NoStoreGiven) as refused:
        OsmosisSQLSession("chat")

    assert "store=" in refused.value.hint


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_a_name_that_cannot_be_a_key_is_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidId):
        OsmosisSQLSession(name, store=store)


def test_metadata_that_json_cannot_hold_is_refused_at_once(store: Store) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        OsmosisSQLSession("chat", store=store, metadata={"user": object()})


async def test_a_conversation_is_an_open_rollout_of_its_name(store: Store) -> None:
    session = OsmosisSQLSession("chat-7", store=store, metadata={"user": "u1"})
    await session.add_items([user("hi")])
    await OsmosisSQLSession("chat-7", store=store, metadata={"user": "u2"}).add_items([user("ho")])

    (rollout,) = [found async for found in store.rollouts()]
    assert (rollout.rollout_id, rollout.status) == ("chat-7", "open")
    assert rollout.metadata == {"user": "u1"}
    assert (rollout.eval_run_id, rollout.workflow, rollout.ended_at) == (None, None, None)
    detail = await store.rollout("chat-7")
    assert [sample.sample_id for sample in detail.samples] == ["chat-7"]
    assert [record.item for record in detail.items["chat-7"]] == [user("hi"), user("ho")]


async def test_several_sessions_may_share_one_rollout_id(store: Store) -> None:
    for name in ("planner", "executor"):
        session = OsmosisSQLSession(name, store=store, rollout_id="team-1")
        await session.add_items([user(name)])

    detail = await store.rollout("team-1")
    assert [sample.sample_id for sample in detail.samples] == ["planner", "executor"]
    assert [sample.sample_no for sample in detail.samples] == [0, 1]


async def test_without_a_name_each_is_a_conversation_of_its_own(store: Store) -> None:
    one, two = OsmosisSQLSession(store=store), OsmosisSQLSession(store=store)
    await one.add_items([user("hi")])

    assert one.session_id != two.session_id
    assert await two.get_items() == []


async def test_reading_makes_nothing(store: Store) -> None:
    session = OsmosisSQLSession("chat", store=store)
    assert await session.get_items() == []
    await session.add_items([])

    assert [found async for found in store.rollouts()] == []


@pytest.mark.parametrize("status", ["running", "success", "failure", "cancelled"])
async def test_a_name_that_belongs_to_a_rollout_is_refused(store: Store, status: str) -> None:
    await store_rollout(store.database, "r-1", status)
    session = OsmosisSQLSession("r-1", store=store)

    for use in (session.get_items, lambda: session.add_items([user("hi")]), session.pop_item):
        with pytest.raises(RolloutFinished, match=f"'r-1' is a rollout with status {status}"):
            await use()
    assert (await store.rollout("r-1")).samples == []


async def test_a_stored_sample_is_reopened_by_its_ids(store: Store) -> None:
    await OsmosisSQLSession("a/b", store=store).add_items([user("hi")])
    await store.database.write(lambda tx: tx.execute(sa.update(rollouts).values(status="failure")))

    session = store.session("a%2Fb", "a%2Fb")
    await session.add_items([user("ho")])
    assert await session.pop_item() == user("ho")
    assert await session.get_items() == [user("hi")]


async def test_a_sample_that_does_not_exist_is_not_reopened(store: Store) -> None:
    await OsmosisSQLSession("chat", store=store).add_items([user("hi")])
    session = store.session("chat", "main")

    for use in (session.get_items, lambda: session.add_items([user("hi")]), session.pop_item):
        with pytest.raises(SampleNotFound, match="no sample 'main' in rollout 'chat'") as missing:
            await use()
        assert missing.value.hint == "it has chat"


@pytest.mark.parametrize(
    "settings", [SessionSettings(limit=2), {"limit": 2}], ids=["object", "dict"]
)
async def test_settings_given_to_it_limit_what_it_returns(store: Store, settings: Any) -> None:
    session = OsmosisSQLSession("chat", store=store, session_settings=settings)
    await session.add_items([user(text) for text in "abc"])

    assert await session.get_items() == [user("b"), user("c")]
    assert len(await session.get_items(limit=3)) == 3


def test_settings_that_the_sdk_does_not_know_are_refused(store: Store) -> None:
    with pytest.raises(TypeError, match="limits"):
        OsmosisSQLSession("chat", store=store, session_settings={"limits": 2})


async def test_what_was_popped_or_cleared_keeps_its_row(store: Store) -> None:
    session = OsmosisSQLSession("chat", store=store)
    await session.add_items([user("a"), user("b")])
    await session.pop_item()
    await session.add_items([user("c")])
    await session.clear_session()
    await session.add_items([user("d")])

    rows = await store.items("chat", "chat")
    assert [(row.seq, row.item["content"], row.tombstone_reason) for row in rows] == [
        (0, "a", "cleared"),
        (1, "b", "popped"),
        (2, "c", "cleared"),
        (3, "d", None),
    ]
    assert all((row.tombstoned_at is None) == (row.tombstone_reason is None) for row in rows)


async def test_an_item_that_cannot_be_stored_leaves_no_conversation_behind(store: Store) -> None:
    with pytest.raises(ItemNotStorable):
        await OsmosisSQLSession("chat", store=store).add_items([user("a"), {"x": b""}])

    assert [found async for found in store.rollouts()] == []


@pytest.mark.parametrize("body", ['{"role":"user"', "[1]", "", '{"a":NaN', '{"a":1}}', "{},{}"])
async def test_a_damaged_body_is_an_error_that_names_its_row(store: Store, body: str) -> None:
    session = OsmosisSQLSession("chat", store=store)
    await session.add_items([user(text) for text in "abc"])
    await set_body(store.database, 1, body)

    with pytest.raises(CorruptItem, match="item 1 of sample 'chat' in rollout 'chat'") as corrupt:
        await session.get_items()
    assert (corrupt.value.rollout_id, corrupt.value.seq) == ("chat", 1)
    assert await session.get_items(limit=1) == [user("c")]


async def test_a_pop_leaves_a_damaged_item_where_it_is(store: Store) -> None:
    session = OsmosisSQLSession("chat", store=store)
    await session.add_items([user("a"), user("b")])
    await set_body(store.database, 1, "{")

    for _ in range(2):
        with pytest.raises(CorruptItem):
            await session.pop_item()
    await set_body(store.database, 1, '{"role":"user","content":"b"}')
    assert await session.pop_item() == user("b")
