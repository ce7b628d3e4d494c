"""Sessions: samples of the rollout in which they are built, and nowhere else."""

from __future__ import annotations

import pytest
from agents import RunContextWrapper
from agents.memory import Session

from osmosis_ai.rollout import RolloutContext
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisMemorySession,
    SessionSampleSource,
)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def use(method: str, session: OsmosisMemorySession) -> object:
    calls = {
        "get_items": session.get_items,
        "add_items": lambda: session.add_items([user("x")]),
        "pop_item": session.pop_item,
        "clear_session": session.clear_session,
    }
    return await calls[method]()


METHODS = ["get_items", "add_items", "pop_item", "clear_session"]


def test_it_is_a_session_as_the_sdk_understands_it() -> None:
    assert isinstance(OsmosisMemorySession(), Session)


async def test_a_session_registers_under_its_name_and_yields_its_items() -> None:
    with RolloutContext(rollout_id="r") as rollout:
        planner, executor = OsmosisMemorySession(name="planner"), OsmosisMemorySession("executor")
        await executor.add_items([user("do")])
        await planner.add_items([user("plan")])
        samples = await rollout.get_samples()

    assert [(name, s.id, s.messages) for name, s in samples.items()] == [
        ("planner", "planner", [user("plan")]),
        ("executor", "executor", [user("do")]),
    ]
    assert samples["planner"].trajectory_messages == [user("plan")]


async def test_a_session_without_a_name_is_main() -> None:
    with RolloutContext(rollout_id="r") as rollout:
        assert OsmosisMemorySession().session_id == "main"
    assert list(rollout.sample_sources) == ["main"]


async def test_a_second_session_of_one_name_is_refused_and_the_first_stays() -> None:
    with RolloutContext(rollout_id="r") as rollout:
        first = OsmosisMemorySession(name="main")
        await first.add_items([user("kept")])
        with pytest.raises(ValueError, match=r"'main' already exists"):
            OsmosisMemorySession(name="main")
        assert (await rollout.get_samples())["main"].messages == [user("kept")]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", " a"])
def test_names_that_are_not_one_safe_path_segment_are_refused(name: str) -> None:
    with RolloutContext(rollout_id="r"), pytest.raises(ValueError, match="safe path segment"):
        OsmosisMemorySession(name=name)


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_refuses_use_outside_the_rollout(method: str) -> None:
    with RolloutContext(rollout_id="r-1"):
        session = OsmosisMemorySession()

    with pytest.raises(RuntimeError, match=r"belongs to rollout 'r-1' .* outside any rollout"):
        await use(method, session)


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_refuses_use_in_another_rollout_of_the_same_id(method: str) -> None:
    with RolloutContext(rollout_id="r-1"):
        session = OsmosisMemorySession()

    with RolloutContext(rollout_id="r-1"), pytest.raises(RuntimeError, match="belongs to rollout"):
        await use(method, session)


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_refuses_a_session_that_was_built_outside(method: str) -> None:
    session = OsmosisMemorySession(name="early")

    with (
        RolloutContext(rollout_id="r-1"),
        pytest.raises(RuntimeError, match=r"'early' was built outside rollout 'r-1'"),
    ):
        await use(method, session)


async def test_outside_any_rollout_it_is_a_plain_session() -> None:
    session = OsmosisMemorySession(name="chat")
    await session.add_items([user("a"), user("b")])

    assert await session.pop_item() == user("b")
    assert await session.get_items() == [user("a")]
    await session.clear_session()
    assert await session.pop_item() is None


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, "abc"), (0, ""), (1, "c"), (2, "bc"), (3, "abc"), (9, "abc")]
)
async def test_a_limit_gives_the_newest_in_order(limit: int | None, expected: str) -> None:
    session = OsmosisMemorySession()
    await session.add_items([user(text) for text in "abc"])

    assert [item["content"] for item in await session.get_items(limit=limit)] == list(expected)


async def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="limit is -1"):
        await OsmosisMemorySession().get_items(limit=-1)


async def test_the_settings_limit_holds_where_no_limit_is_given() -> None:
    session = OsmosisMemorySession()
    await session.add_items([user("a"), user("b")])
    assert session.session_settings is not None
    session.session_settings.limit = 1

    assert await session.get_items() == [user("b")]
    assert await session.get_items(limit=5) == [user("a"), user("b")]


async def test_a_sample_holds_all_items_whatever_the_settings_limit_is() -> None:
    with RolloutContext(rollout_id="r") as rollout:
        session = OsmosisMemorySession()
        await session.add_items([user("a"), user("b")])
        assert session.session_settings is not None
        session.session_settings.limit = 1

        assert (await rollout.get_samples())["main"].messages == [user("a"), user("b")]


async def test_items_are_copied_in_and_out() -> None:
    session = OsmosisMemorySession()
    item = {"role": "user", "content": [{"type": "input_text", "text": "a"}]}
    await session.add_items([item])
    item["content"][0]["text"] = "changed after adding"
    (got,) = await session.get_items()
    got["content"][0]["text"] = "changed after reading"

    (kept,) = await session.get_items()
    assert kept["content"][0]["text"] == "a"


async def test_all_four_methods_take_the_run_wrapper() -> None:
    session, wrapper = OsmosisMemorySession(), RunContextWrapper(None)

    await session.add_items([user("a")], wrapper=wrapper)
    assert await session.get_items(limit=1, wrapper=wrapper) == [user("a")]
    assert await session.pop_item(wrapper=wrapper) == user("a")
    await session.clear_session(wrapper=wrapper)


async def test_items_that_do_not_convert_stay_and_have_no_trajectory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = OsmosisMemorySession()
    item = {"type": "hologram", "id": "h1"}
    await session.add_items([item])

    sample = await SessionSampleSource(session).get_sample("odd")

    assert (sample.id, sample.messages) == ("odd", [item])
    assert sample.trajectory_messages is None
    assert "no trajectory messages" in caplog.text
