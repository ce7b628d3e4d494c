"""`OsmosisSQLSession` beneath the SDK's wrappers: compaction and encryption."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agents import Agent
from agents.extensions.memory import EncryptedSession
from agents.memory import OpenAIResponsesCompactionSession
from agents.memory import session as sdk_session

from osmosis_store import OsmosisSQLSession, Store
from osmosis_store.errors import ItemNotStorable
from tests.osmosis_store.scripted_model import ScriptedModel, kinds, run, says

SUMMARY = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}


def user(text: str) -> Any:
    return {"role": "user", "content": text}


class CompactionClient:
    """Answers `responses.compact` with one summary, or with an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        self.responses = self
        self._error = error

    async def compact(self, **request: Any) -> Any:
        self.requests.append(request)
        if self._error is not None:
            raise self._error
        return SimpleNamespace(output=[SUMMARY], usage=None)


def compacting(session: OsmosisSQLSession, client: CompactionClient) -> Any:
    return OpenAIResponsesCompactionSession(
        "chat",
        session,
        client=cast("Any", client),
        compaction_mode="input",
        should_trigger_compaction=lambda _: True,
    )


@pytest.fixture
def session(store: Store) -> OsmosisSQLSession:
    return OsmosisSQLSession("chat", store=store)


@pytest.mark.parametrize("how", ["plain", "streamed"])
async def test_a_run_compacts_and_the_old_items_keep_their_rows(
    store: Store, session: OsmosisSQLSession, how: str
) -> None:
    client = CompactionClient()
    agent = Agent(name="A", model=ScriptedModel([says("hello")]))

    await run(how, agent, "hi", compacting(session, client))

    assert await session.get_items() == [SUMMARY]
    assert [kinds(request["input"]) for request in client.requests] == [["user", "message"]]
    rows = await store.items("chat", "chat")
    assert [(row.type, row.tombstoned_at is None) for row in rows] == [
        ("message", False),
        ("message", False),
        ("compaction", True),
    ]


async def test_a_failed_compaction_leaves_the_items(
    store: Store, session: OsmosisSQLSession
) -> None:
    client = CompactionClient(ConnectionError("api down"))
    await session.add_items([user("a"), user("b")])

    with pytest.raises(ConnectionError, match="api down"):
        await compacting(session, client).run_compaction({"force": True})

    assert await session.get_items() == [user("a"), user("b")]


async def test_a_manual_compaction_replaces_all_items(
    store: Store, session: OsmosisSQLSession
) -> None:
    await session.add_items([user("a"), user("b")])

    await compacting(session, CompactionClient()).run_compaction({"force": True})

    assert await session.get_items() == [SUMMARY]


async def test_all_items_are_replaced_in_one_transaction_or_none(
    store: Store, session: OsmosisSQLSession
) -> None:
    await session.add_items([user("a"), user("b")])

    with pytest.raises(ItemNotStorable):
        await session._atomic_replace_items([user("c"), {"x": b""}])
    assert await session.get_items() == [user("a"), user("b")]

    assert await session._atomic_replace_items([user("c")])
    assert await session.get_items() == [user("c")]
    rows = await store.items("chat", "chat")
    assert [row.tombstone_reason for row in rows] == ["compacted", "compacted", None]


async def test_a_snapshot_replaces_the_tail_that_it_showed(
    store: Store, session: OsmosisSQLSession
) -> None:
    await session.add_items([user(text) for text in "abcd"])
    snapshot = await session._get_compaction_snapshot(3)
    if not hasattr(sdk_session, "_CompactionSnapshot"):
        assert snapshot is None  # an older SDK compacts without one
        return

    assert (snapshot.items, snapshot.complete) == ([user("b"), user("c"), user("d")], False)
    assert await snapshot.replace_suffix(1, [SUMMARY])
    assert await session.get_items() == [user("a"), user("b"), SUMMARY]
    assert not await snapshot.replace_suffix(1, [SUMMARY])
    rows = await store.items("chat", "chat")
    assert [row.tombstone_reason for row in rows] == [None, None, "compacted", "compacted", None]


async def test_a_snapshot_takes_the_oldest_expired_items_along(
    store: Store, session: OsmosisSQLSession
) -> None:
    await session.add_items([user(text) for text in ("old", "old", "new", "old", "new")])
    is_old = lambda item: item["content"] == "old"  # noqa: E731 - short
    snapshot = await session._get_compaction_snapshot(1, prune_prefix=is_old)
    if not hasattr(sdk_session, "_CompactionSnapshot"):
        assert snapshot is None  # an older SDK compacts without one
        return

    assert await snapshot.replace_suffix(0, [SUMMARY])
    assert await session.get_items() == [user("new"), user("old"), SUMMARY]
    rows = await store.items("chat", "chat")
    assert [row.tombstone_reason for row in rows] == [
        "expired",
        "expired",
        None,
        None,
        "compacted",
        None,
    ]


@pytest.mark.parametrize("change", ["add", "pop", "clear"])
async def test_a_snapshot_replaces_nothing_once_the_tail_has_changed(
    session: OsmosisSQLSession, change: str
) -> None:
    await session.add_items([user("a"), user("b")])
    snapshot = await session._get_compaction_snapshot(2)
    if not hasattr(sdk_session, "_CompactionSnapshot"):
        assert snapshot is None  # an older SDK compacts without one
        return
    assert snapshot.complete
    changes: dict[str, Callable[[], Awaitable[Any]]] = {
        "add": lambda: session.add_items([user("c")]),
        "pop": session.pop_item,
        "clear": session.clear_session,
    }
    await changes[change]()
    before = await session.get_items()

    assert not await snapshot.replace_suffix(1, [SUMMARY])
    assert await session.get_items() == before


async def test_a_subclass_hands_out_no_snapshot_and_no_replacement(store: Store) -> None:
    class Transforming(OsmosisSQLSession):
        pass

    session = Transforming("chat", store=store)
    await session.add_items([user("a")])

    assert await session._get_compaction_snapshot(1) is None
    assert not await session._atomic_replace_items([user("b")])
    assert await session.get_items() == [user("a")]


@pytest.mark.parametrize("how", ["plain", "streamed"])
async def test_an_encrypted_session_over_it_reads_back_what_it_wrote(
    store: Store, session: OsmosisSQLSession, how: str
) -> None:
    encrypted = EncryptedSession("chat", cast("Any", session), "a key that nobody guesses")
    await run(how, Agent(name="A", model=ScriptedModel([says("secret")])), "hi", encrypted)
    await run(how, Agent(name="A", model=ScriptedModel([says("more")])), "ho", encrypted)

    assert kinds(await encrypted.get_items()) == ["user", "message"] * 2
    popped: Any = await encrypted.pop_item()
    assert popped["content"][0]["text"] == "more"
    assert "secret" not in str([row.item for row in await store.items("chat", "chat")])
