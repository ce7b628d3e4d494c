"""`OsmosisSQLSession` against a plain list, by random calls."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osmosis_store import OsmosisSQLSession
from osmosis_store.database import Database
from osmosis_store.ids import new_id
from tests.osmosis_store.json_values import items, same

calls = st.lists(
    st.tuples(st.just("add"), st.lists(items, max_size=3))
    | st.tuples(st.just("get"), st.none() | st.integers(0, 6))
    | st.tuples(st.sampled_from(["pop", "clear", "replace", "reopen"]), st.none()),
    max_size=12,
)


async def compare(database: Database, steps: list[tuple[str, Any]]) -> None:
    name = new_id()
    session, expected = OsmosisSQLSession(name, store=database), []
    for step, value in steps:
        match step:
            case "add":
                await session.add_items(value)
                expected += value
            case "get":
                wanted = expected if value is None else expected[max(0, len(expected) - value) :]
                assert same(await session.get_items(limit=value), wanted)
            case "pop":
                assert same(await session.pop_item(), expected.pop() if expected else None)
            case "clear":
                await session.clear_session()
                expected = []
            case "replace":
                await session._atomic_replace_items(expected[:1])
                expected = expected[:1]
            case "reopen":
                session = OsmosisSQLSession(name, store=database)
    assert same(await session.get_items(), expected)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=calls)
def test_it_does_what_a_list_does(database: Database, steps: list[tuple[str, Any]]) -> None:
    asyncio.run(compare(database, steps))
