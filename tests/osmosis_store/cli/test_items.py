"""`items search` and `db index` on the gym rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Command

pytestmark = pytest.mark.usefixtures("store_file")


def found(command: Command, *arguments: object) -> list[str]:
    data = command("items", "search", "--json", *arguments).data
    return [f"{one['rollout_id']}/{one['sample_id']}/{one['seq']}" for one in data["items"]]


def test_pages_join_to_the_whole_search(command: Command) -> None:
    everything = found(command, "the", "--limit", 1000)
    pages: list[str] = []
    after: list[str] = []
    while True:
        page = command("items", "search", "the", "--json", "--limit", 3, *after).data
        pages += [f"{one['rollout_id']}/{one['sample_id']}/{one['seq']}" for one in page["items"]]
        if not page["has_more"]:
            break
        after = ["--after", page["last_id"]]

    assert len(everything) > 6
    assert pages == everything


def test_a_hit_is_shown_with_what_stands_around_it(command: Command) -> None:
    (first, *_) = command("items", "search", "WEATHER", "--json").data["items"]

    assert first["snippet"]["hit"].lower() == "weather"
    assert len(first["snippet"]["before"]) <= 31
    assert len(first["snippet"]["after"]) <= 61
    lines = command("items", "search", "WEATHER", "--limit", 1).out.splitlines()
    assert lines[0].split() == ["rollout", "sample", "seq", "by", "text"]
    assert "".join("".join(first["snippet"].values()).split()) in "".join(lines[1].split())
    assert lines[2].startswith("1 item, and more: --after ")


def test_a_selection_narrows_the_search(command: Command) -> None:
    of_tool = found(command, "weather", "--tool", "get_weather")

    assert of_tool
    assert all("mcp_weather" in one for one in of_tool)
    assert len(of_tool) < len(found(command, "weather")) + 1
    assert command("items", "search", "weather", "--status", "crashed").out == "no items\n"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([""], "invalid_selection"),
        (["x", "--after", "somewhere"], "usage_error"),
        (["x", "--after", "a/b/c"], "usage_error"),
        (["x", "--reward", "high"], "invalid_selection"),
    ],
)
def test_bad_input_is_an_error(command: Command, arguments: list[str], name: str) -> None:
    done = command("items", "search", "--json", *arguments)

    assert (done.code, done.error["code"]) == (2, name)


def test_an_index_is_made_kept_and_dropped_and_changes_no_answer(
    command: Command, store_file: Path
) -> None:
    before = found(command, "weather")

    assert command("db", "index").out.endswith("has a text index now\n")
    assert command("db", "index", "--json").data["text_index"] == "kept"
    assert found(command, "weather") == before
    assert command("db", "index", "--rebuild", "--json").data["text_index"] == "made"
    assert found(command, "weather") == before
    assert command("db", "index", "--drop", "--json").data["text_index"] == "dropped"
    assert found(command, "weather") == before
    assert command("db", "index", "--drop", "--rebuild").code == 2


def test_an_index_needs_a_store(command: Command) -> None:
    done = command("db", "index", "--store", "sqlite:///none.db", "--json")

    assert (done.code, done.error["code"]) == (4, "store_not_found")
