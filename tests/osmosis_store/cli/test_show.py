"""`rollouts list` as CSV and `rollouts show` of a conversation with calls side by side."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from osmosis_store.codec import encode_items
from osmosis_store.database import Database
from osmosis_store.engine import parse_url
from osmosis_store.records import NewGrade, SampleKey
from osmosis_store.writes.items import Append
from osmosis_store.writes.samples import tombstone_items
from tests.osmosis_store.ledger import add_grades, add_rollout

from .conftest import Command


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


PIXELS = "data:image/png;base64," + "A" * 4000
ITEMS: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is\n\x1b[2J this?"},
            {"type": "input_image", "image_url": PIXELS},
        ],
    },
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Both, then."}]},
    call("c1", "look", '{"where":"left"}'),
    call("c2", "look", '{"where":"right"}'),
    output("c2", "a hat"),
    output("c1", "a cat"),
    {"role": "assistant", "content": "A cat, a hat. \ud83d"},
]


@pytest.fixture
def store(folder: Path) -> Database:
    """Return the folder's own store, with one rollout."""
    path = folder / ".osmosis" / "rollouts.db"
    path.parent.mkdir()
    database = Database.open(parse_url(f"sqlite:///{path}"))
    add_rollout(database, "r1", "main", "other", label='cat, "hat"')
    append(database, "main", *ITEMS)
    append(database, "other", {"role": "user", "content": "ü"})
    grades = [NewGrade(sample_id="main", reward=1.0), NewGrade(sample_id="other", reward=0.5)]
    add_grades(database, "g1", "r1", *grades)
    return database


def append(database: Database, sample: str, *items: Any) -> None:
    one = Append(SampleKey("r1", sample), encode_items(list(items)))
    database._require_writer().submit(one, loop=None).wait()


@pytest.mark.usefixtures("store")
def test_an_output_is_shown_beside_its_call(command: Command) -> None:
    lines = command("rollouts", "show", "r1", "--sample", "main").out.splitlines()

    told = [" ".join(line.split()) for line in lines]
    assert '2 call look(where="left") c1' in told
    at = told.index('2 call look(where="left") c1')
    assert told[at + 1 : at + 4] == [
        "5 output a cat c1",
        '3 call look(where="right") c2',
        "4 output a hat c2",
    ]


@pytest.mark.usefixtures("store")
def test_reasoning_images_and_control_characters_are_told(command: Command) -> None:
    out = command("rollouts", "show", "r1").out

    assert "reasoning  Both, then." in out
    assert "[image image/png, 3.0 KB]" in out
    assert "␛[2J this?" in out
    assert "A cat, a hat. <U+D83D>" in out


@pytest.mark.usefixtures("store")
def test_tail_shows_the_last_items_and_counts_the_others(command: Command) -> None:
    out = command("rollouts", "show", "r1", "--sample", "main", "--tail", "2").out
    data = command("rollouts", "show", "r1", "--tail", "2", "--json").data

    assert "… 5 earlier items" in out
    assert "a cat" in out
    assert "a hat" not in out.replace("A cat, a hat", "")
    seqs = [[item["seq"] for item in one["items"]] for one in data["samples"]]
    assert seqs == [[5, 6], [0]]


def test_raw_prints_the_live_bodies_byte_for_byte(command: Command, store: Database) -> None:
    bodies = [one.body for one in encode_items(ITEMS)]
    store.write_now(
        lambda tx: tombstone_items(
            tx, SampleKey("r1", "main"), from_seq=6, reason="popped", now=store.clock()
        )
    )

    raw = ["rollouts", "show", "r1", "--raw"]
    assert command(*raw, "--sample", "main").out == "".join(f"{one}\n" for one in bodies[:-1])
    assert command(*raw, "--tail", "1").out == bodies[-2] + '\n{"role":"user","content":"ü"}\n'
    assert command(*raw, "--json").code == 2
    assert command(*raw, "--sample", "none").code == 4
    assert command("rollouts", "show", "none", "--raw").code == 4


def test_csv_has_a_row_per_rollout_and_no_number_cut(command: Command, store: Database) -> None:
    add_rollout(store, "r2")

    done = command("rollouts", "list", "--csv")

    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [(row["rollout_id"], row["reward"]) for row in rows] == [("r1", "0.75"), ("r2", "")]
    assert rows[0]["label"] == 'cat, "hat"'
    assert "T" in rows[0]["started_at"]
    assert done.err == ""
    assert "--after r1" in command("rollouts", "list", "--csv", "--limit", "1").err
    assert command("rollouts", "list", "--csv", "--json").code == 2


def test_the_list_is_sorted(command: Command, store: Database) -> None:
    add_rollout(store, "r0", "main")
    add_grades(store, "g1", "r0", NewGrade(sample_id="main", reward=1.0))

    page = command("rollouts", "list", "--sort", "reward", "--limit", "1", "--json").data

    assert [one["rollout_id"] for one in page["rollouts"]] == ["r1"]
    assert (page["last_id"], page["has_more"]) == ("r1", True)
    done = command("rollouts", "list", "--sort", "size", "--json")
    assert (done.code, done.error["code"]) == (2, "invalid_selection")


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["--reward", "<1"], ["r1"]),
        (["--reward", ">1"], []),
        (["--graded-by", "Lenient"], ["r1"]),
        (["--ungraded-by", "Lenient"], ["r2"]),
        (["--text", "A CAT"], ["r1"]),
        (["--meta", "split=test"], ["r2"]),
        (["--meta", "split=test", "--meta", "n=2"], []),
    ],
)
def test_flags_choose_rollouts(
    command: Command, store: Database, flags: list[str], found: list[str]
) -> None:
    add_rollout(store, "r2", "main", metadata=json.dumps({"split": "test", "n": 1}))

    rollouts = command("rollouts", "list", "--json", *flags).data["rollouts"]

    assert [one["rollout_id"] for one in rollouts] == found


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("flags", "code", "name"),
    [
        (["--reward", "good"], 2, "invalid_selection"),
        (["--meta", "split"], 2, "invalid_selection"),
        (["--text", ""], 2, "invalid_selection"),
        (["--graded-by", "g_0"], 4, "grading_run_not_found"),
    ],
)
def test_a_value_without_meaning_is_an_error(
    command: Command, flags: list[str], code: int, name: str
) -> None:
    done = command("rollouts", "list", "--json", *flags)

    assert (done.code, done.error["code"]) == (code, name)
