"""What a session of the Agents SDK owes the Runner, as pytest classes for anyone's session.

Subclass one and override the fixture `open_session`:

    class TestMySession(SessionContract):
        @pytest.fixture
        def open_session(self, tmp_path):
            return lambda name: MySession(name, tmp_path / "chats.db")
"""

from __future__ import annotations

import asyncio
import copy
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest
from agents import RunContextWrapper
from agents.memory import Session, SessionSettings

__all__ = ["DurableSessionContract", "OpenSession", "SessionContract"]

OpenSession: TypeAlias = Callable[[str], Session]
"""Returns a new session object; two calls with one name give two objects over one history."""

_TIMEOUT_S = 60


def _in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a plain test of a coroutine, so that no pytest plugin is needed."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), _TIMEOUT_S))

    return run


def _message(text: str, **fields: Any) -> Any:
    return {"role": "user", "content": text, **fields}


def _turn(writer: object, number: int) -> list[Any]:
    """Return one call's items: what a turn of the Runner looks like."""
    call_id = f"{writer}.{number}"
    return [
        {"type": "reasoning", "id": "__fake_id__", "summary": []},
        {
            "type": "function_call",
            "id": "__fake_id__",
            "call_id": call_id,
            "name": "add",
            "arguments": '{"a": 1,  "b": 2}',
        },
        {"type": "function_call_output", "call_id": call_id, "output": "3"},
    ]


def _alike(one: Any, two: Any) -> bool:
    """Compare so that 1, 1.0 and True differ, and so do two orders of keys."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(_alike(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(_alike, one, two))
    return bool(repr(one) == repr(two)) if isinstance(one, float) else bool(one == two)


def _check_turns(items: list[Any], writers: int, turns: int) -> None:
    """Check that every turn is there once, in one piece, and each writer's in its order."""
    assert len(items) == 3 * writers * turns
    seen: dict[str, int] = dict.fromkeys(map(str, range(writers)), 0)
    for at in range(0, len(items), 3):
        writer = items[at + 1]["call_id"].split(".")[0]
        assert items[at : at + 3] == _turn(writer, seen[writer])
        seen[writer] += 1


async def _add_turns(session: Session, writer: int, turns: int) -> None:
    for number in range(turns):
        await session.add_items(_turn(writer, number))


class SessionContract:
    """What the SDK's own SQLite session keeps too; `open_session` is yours to override."""

    @pytest.fixture
    def open_session(self) -> OpenSession:
        """Return the factory of the sessions under test."""
        raise TypeError(f"{type(self).__name__} has to override the fixture open_session")

    @pytest.fixture
    def session(self, open_session: OpenSession) -> Session:
        """Return a session without items."""
        return open_session("chat")

    def test_it_is_a_session_of_its_name(self, open_session: OpenSession) -> None:
        session = open_session("chat 7")

        assert isinstance(session, Session)
        assert session.session_id == "chat 7"

    @_in_event_loop
    async def test_a_new_session_is_empty(self, session: Session) -> None:

        assert await session.get_items() == []
        assert await session.get_items(limit=3) == []
        assert await session.pop_item() is None

    @_in_event_loop
    async def test_items_come_back_in_the_order_of_the_calls(self, session: Session) -> None:
        await _add_turns(session, 0, 40)

        _check_turns(list(await session.get_items()), 1, 40)

    @pytest.mark.parametrize("limit", [0, 1, 4, 6, 7, 2_147_483_647])
    @_in_event_loop
    async def test_a_limit_gives_the_newest_items_in_order(
        self, session: Session, limit: int
    ) -> None:
        await _add_turns(session, 0, 2)
        every = await session.get_items()

        assert await session.get_items(limit=limit) == every[max(0, 6 - limit) :]

    @_in_event_loop
    async def test_the_settings_limit_counts_when_none_is_given(self, session: Session) -> None:
        await session.add_items([_message(text) for text in "abcd"])
        session.session_settings = SessionSettings(limit=1)

        assert await session.get_items() == [_message("d")]
        assert await session.get_items(limit=2) == [_message("c"), _message("d")]

    @_in_event_loop
    async def test_a_pop_takes_the_newest_item_and_returns_it(self, session: Session) -> None:
        await session.add_items([_message("a"), _message("b")])

        assert await session.pop_item() == _message("b")
        await session.add_items([_message("c")])
        assert await session.get_items() == [_message("a"), _message("c")]
        assert [await session.pop_item() for _ in range(3)] == [_message("c"), _message("a"), None]

    @_in_event_loop
    async def test_a_cleared_session_is_empty_and_goes_on(self, session: Session) -> None:
        await session.clear_session()
        await session.add_items([_message("a")])
        await session.clear_session()

        assert await session.get_items() == []
        await session.add_items([_message("b")])
        assert await session.get_items() == [_message("b")]

    @_in_event_loop
    async def test_an_empty_call_adds_nothing(self, session: Session) -> None:
        await session.add_items([])
        await session.add_items([_message("a")])
        await session.add_items([])

        assert await session.get_items() == [_message("a")]

    @pytest.mark.parametrize(
        "value",
        [
            "zwölf 会话 👩🏽‍🚀 \u202e",
            "nul \x00, lone \ud83d and \udc81",
            '\\u0000 \\ " \u2028\x7f\x85',
            [2**63, -(2**64), 10**40, 1, 1.0, True, -0.0, 5e-324, 1e308],
            {"z": 1, "a": {"y": [], "": None}, "k\x00": {}},
            "x" * 2_000_000,
        ],
        ids=["unicode", "surrogates", "escapes", "numbers", "objects", "large"],
    )
    @_in_event_loop
    async def test_an_item_comes_back_exactly_as_it_was_given(
        self, session: Session, value: Any
    ) -> None:
        item = _message("x", extra=value, type="a type of next year")
        await session.add_items([item, _message("after")])

        assert _alike((await session.get_items())[0], item)
        await session.pop_item()
        assert _alike(await session.pop_item(), item)

    @_in_event_loop
    async def test_equal_items_and_repeated_ids_are_all_kept(self, session: Session) -> None:
        for _ in range(2):
            await session.add_items(_turn("same", 0) * 2)

        assert await session.get_items() == _turn("same", 0) * 4

    @_in_event_loop
    async def test_what_the_caller_changes_later_is_not_stored(self, session: Session) -> None:
        given = [_message("a", deep={"list": [1]})]
        kept = copy.deepcopy(given)
        await session.add_items(given)
        given[0]["deep"]["list"].append(2)
        got: list[Any] = await session.get_items()
        got[0]["content"] = "changed"

        assert await session.get_items() == kept

    @_in_event_loop
    async def test_sessions_of_other_names_are_left_alone(self, open_session: OpenSession) -> None:
        names = ["a", "A", "a ", "%", "a/b", "a%2Fb", "'; drop table x; --", "é", "e\u0301"]
        for name in names:
            await open_session(name).add_items([_message(name)])
        await open_session("a").clear_session()

        for name in names[1:]:
            assert await open_session(name).get_items() == [_message(name)]

    @_in_event_loop
    async def test_another_object_of_the_name_sees_each_write(
        self, open_session: OpenSession
    ) -> None:
        one, two = open_session("chat"), open_session("chat")
        for number in range(4):
            await (one if number % 2 else two).add_items([_message(str(number))])
            assert len(await one.get_items()) == len(await two.get_items()) == number + 1
        assert await one.pop_item() == _message("3")
        await two.clear_session()
        assert await one.get_items() == []

    @_in_event_loop
    async def test_calls_of_many_tasks_stay_in_one_piece(self, session: Session) -> None:
        await asyncio.gather(*(_add_turns(session, writer, 6) for writer in range(6)))

        _check_turns(list(await session.get_items()), 6, 6)

    @_in_event_loop
    async def test_concurrent_pops_hand_out_each_item_once(self, session: Session) -> None:
        await session.add_items([_message(str(number)) for number in range(12)])
        popped: list[Any] = await asyncio.gather(*(session.pop_item() for _ in range(15)))

        texts = [item["content"] for item in popped if item is not None]
        assert sorted(texts, key=int) == [str(number) for number in range(12)]
        assert await session.get_items() == []

    def test_threads_with_event_loops_of_their_own_share_a_history(
        self, open_session: OpenSession
    ) -> None:
        shared = open_session("chat")
        asyncio.run(shared.get_items())
        sessions = [shared, shared, open_session("chat"), open_session("chat")]
        threads = [
            threading.Thread(target=lambda w=w, s=s: asyncio.run(_add_turns(s, w, 5)))
            for w, s in enumerate(sessions)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_TIMEOUT_S)

        _check_turns(list(asyncio.run(open_session("chat").get_items())), 4, 5)

    def test_one_object_is_used_in_one_event_loop_after_the_other(self, session: Session) -> None:
        for number in range(3):
            asyncio.run(session.add_items([_message(str(number))]))

        assert len(asyncio.run(session.get_items())) == 3

    @_in_event_loop
    async def test_a_cancelled_call_is_stored_whole_or_not_at_all(self, session: Session) -> None:
        expected = 0
        for number in range(30):
            adding = asyncio.create_task(session.add_items(_turn("c", number)))
            await asyncio.sleep(number * 0.0002)
            adding.cancel()
            await asyncio.wait([adding])
            found = len(await session.get_items())
            assert found in (expected, expected + 3)
            expected = found

        await session.add_items([_message("after")])
        assert (await session.get_items())[-1] == _message("after")


class DurableSessionContract(SessionContract):
    """What a session has to keep besides, for a history that can be relied on years later."""

    @_in_event_loop
    async def test_a_negative_limit_is_an_error(self, session: Session) -> None:
        await session.add_items([_message("a")])

        with pytest.raises(ValueError, match="negative"):
            await session.get_items(limit=-1)

    @pytest.mark.parametrize(
        "item",
        [
            None,
            "text",
            [["role", "user"], ["content", "x"]],
            {"role": "user", "n": float("nan")},
            {"role": "user", "n": float("inf")},
            {"role": "user", "image": b"x"},
            {"role": "user", "keys": {1: "a"}},
            {"role": "user", "tuple": (1, 2)},
        ],
        ids=["none", "text", "pairs", "nan", "infinity", "bytes", "keys", "tuple"],
    )
    @_in_event_loop
    async def test_an_item_that_would_change_is_refused_with_its_whole_call(
        self, session: Session, item: Any
    ) -> None:
        await session.add_items([_message("before")])

        with pytest.raises((TypeError, ValueError)):
            await session.add_items([_message("same call"), item])

        await session.add_items([_message("after")])
        assert await session.get_items() == [_message("before"), _message("after")]

    @_in_event_loop
    async def test_items_are_taken_as_they_are_when_the_call_begins(self, session: Session) -> None:
        given = [_message("a")]
        adding = asyncio.ensure_future(session.add_items(given))
        await asyncio.sleep(0)
        given[0]["content"] = "changed"
        await adding

        assert await session.get_items() == [_message("a")]

    @_in_event_loop
    async def test_a_write_is_settled_when_its_cancellation_goes_on(
        self, open_session: OpenSession
    ) -> None:
        session, other = open_session("chat"), open_session("chat")
        await session.add_items([_message("first")])
        for number in range(20):
            adding = asyncio.create_task(session.add_items([_message(str(number))]))
            await asyncio.sleep(number * 0.0002)
            adding.cancel()
            await asyncio.wait([adding])
            found = await other.get_items()
            await asyncio.sleep(0.005)
            assert await other.get_items() == found

    @_in_event_loop
    async def test_every_method_takes_the_run_wrapper(self, open_session: OpenSession) -> None:
        session: Any = open_session("chat")  # the protocol does not name `wrapper`
        wrapper = RunContextWrapper(context=None)
        await session.add_items([_message("a"), _message("b")], wrapper=wrapper)

        assert await session.get_items(wrapper=wrapper) == [_message("a"), _message("b")]
        assert await session.pop_item(wrapper=wrapper) == _message("b")
        await session.clear_session(wrapper=wrapper)
        assert await session.get_items() == []

    @_in_event_loop
    async def test_first_writes_of_many_objects_at_once_all_count(
        self, open_session: OpenSession
    ) -> None:
        sessions = [open_session("chat") for _ in range(8)]
        await asyncio.gather(*(_add_turns(one, at, 2) for at, one in enumerate(sessions)))

        _check_turns(list(await open_session("chat").get_items()), 8, 2)
