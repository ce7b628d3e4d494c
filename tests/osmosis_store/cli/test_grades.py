"""`osmosis-store grades` but for `diff`: where grades came from, and a person's own."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from osmosis_store import Store
from osmosis_store.database import Database
from osmosis_store.engine import parse_url
from osmosis_store.records import NewGrade, NewGradingRun
from osmosis_store.writes.grades import append_grades, end_grading_run, ensure_grading_run
from tests.osmosis_store.ledger import add_grades, add_rollout

from .conftest import Command
from .shapes import COUNT, ID, NUMBER, TEXT, TIME, list_of, or_null, shape

OBJECT = {"type": "object"}
GRADE = {
    "rollout_id": ID,
    "sample_id": ID,
    "grade_no": COUNT,
    "grading_run_id": ID,
    "grader": TEXT,
    "kind": {"enum": ["rollout", "regrade", "human", "imported"]},
    "code_digest": or_null(TEXT),
    "reward": or_null(NUMBER),
    "error": or_null(TEXT),
    "removed": {"type": "boolean"},
    "metrics": or_null(OBJECT),
    "explanation": or_null(TEXT),
    "label": or_null(TEXT),
    "chain_head": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "created_at": TIME,
}
GRADING_RUN = {
    "type": "object",
    "properties": {
        "grading_run_id": ID,
        "eval_run_id": or_null(ID),
        "kind": GRADE["kind"],
        "grader": TEXT,
        "code_digest": or_null(TEXT),
        "code_covers": list_of(TEXT),
        "config": or_null(OBJECT),
        "author": or_null(TEXT),
        "reason": or_null(TEXT),
        "selection": or_null(OBJECT),
        "versions": OBJECT,
        "graded_count": COUNT,
        "failed_count": COUNT,
        "skipped_count": COUNT,
        "policy_calls": COUNT,
        "connections_allowed": COUNT,
        "connections_refused": COUNT,
        "started_at": TIME,
        "ended_at": or_null(TIME),
    },
}
GRADING_RUN["required"] = list(GRADING_RUN["properties"])


@pytest.fixture
def opened(folder: Path, migrated_file: Path) -> Iterator[Database]:
    """Return the working directory's own store: two rollouts, the second with two samples."""
    path = folder / ".osmosis" / "rollouts.db"
    path.parent.mkdir()
    shutil.copy(migrated_file, path)
    database = Database.open(parse_url(f"sqlite:///{path}"), create=False)
    add_rollout(database, "r1", "main", label="42")
    add_rollout(database, "r2", "a", "b", label="43", metadata='{"split":"test"}')
    yield database
    database.close()


@pytest.fixture
def origin(opened: Database) -> str:
    """Return a grading run of whose origin everything is known; it failed once, then did not."""
    run = NewGradingRun(
        kind="regrade",
        grader="graders:Strict",
        code_digest="7c1e" * 16,
        code_covers=("graders.Strict", "graders.helper"),
        config={"least": 0.5},
        author="alice",
        reason="stricter now",
        selection={"status": "success", "rollout": ["r1", "r2"]},
    )
    versions = {"python": "3.11.7", "osmosis-store": "0.1.0", "git_commit": "3f2a" * 10}
    grades = {
        "r1": [NewGrade(sample_id="main", error="broken", label="42")],
        "r2": [
            NewGrade(sample_id="a", reward=0.5, label="43"),
            NewGrade(sample_id="b", removed=True, label="43"),
        ],
    }
    again = {"r1": [NewGrade(sample_id="main", reward=1.0, label="42")]}

    def write(tx: Any) -> None:
        now = opened.clock()
        ensure_grading_run(tx, "g_strict", run, versions=versions, now=now)
        append_grades(tx, "g_strict", grades, now=now)
        append_grades(tx, "g_strict", again, now=now)
        end_grading_run(
            tx,
            "g_strict",
            now=now,
            skipped_count=3,
            connections_allowed=2,
            connections_refused=1,
        )

    opened.write_now(write)
    return "g_strict"


def test_show_tells_where_grades_came_from(command: Command, origin: str) -> None:
    done = command("grades", "show", origin)

    assert done.code == 0
    head, *facts = done.out.splitlines()
    assert head.startswith("g_strict · regrade · graders:Strict · ")
    told = {line[1:11].rstrip(): line[12:] for line in facts}
    assert told == {
        "digest": "7c1e" * 16,
        "covers": "graders.Strict, graders.helper",
        "config": '{"least": 0.5}',
        "commit": "3f2a" * 10,
        "versions": "python 3.11.7, osmosis-store 0.1.0",
        "author": "alice",
        "reason": "stricter now",
        "selection": 'status=success, rollout=["r1", "r2"]',
        "samples": "2 of 3 with a reward, mean 0.75, 1 removed, 3 skipped",
        "ledger": "4 grades in all",
        "network": "policy calls: 0 connections: 2 allowed, 1 refused",
        "see": "osmosis-store grades list --grading-run g_strict",
    }


def test_show_as_json_follows_its_schema(command: Command, origin: str) -> None:
    data = command("grades", "show", origin, "--json").data

    result = shape(
        sample_count=COUNT,
        rewarded_count=COUNT,
        failed_count=COUNT,
        removed_count=COUNT,
        mean_reward=or_null(NUMBER),
    )
    jsonschema.validate(data, shape(grading_run=GRADING_RUN, result=result))
    assert data["grading_run"]["versions"]["git_commit"] == "3f2a" * 10
    assert list(data["result"].values()) == [3, 2, 0, 1, 0.75]


def test_a_grading_run_that_is_not_there_is_named_with_the_newest_ones(
    command: Command, opened: Database
) -> None:
    for number in range(5):
        add_grades(opened, f"g_{number}", "r1", NewGrade(sample_id="main", reward=1.0))

    for arguments in (("show", "g_x"), ("diff", "g_0", "g_x"), ("list", "--grading-run", "g_x")):
        done = command("grades", *arguments)
        assert (done.code, done.out) == (4, "")
        assert done.err == "error: no grading run 'g_x'\n  the newest are g_4, g_3, g_2\n"
    error = command("grades", "show", "g_x", "--json").error
    assert (error["code"], error["details"]["grading_run_id"], error["details"]["newest"]) == (
        "grading_run_not_found",
        "g_x",
        ["g_4", "g_3", "g_2"],
    )


def test_history_gives_every_grade_of_a_sample_in_order(
    command: Command, opened: Database, origin: str
) -> None:
    session = Store(opened).session("r1", "main")
    asyncio.run(session.add_items([{"role": "user", "content": "more"}]))
    command("grades", "add", "r1", "--reward", 0, "--author", "bob", "--reason", "it is wrong")

    done = command("grades", "history", "r1")

    titles, *lines, end = done.out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["main", "0", "error"],
        ["main", "1", "1.0"],
        ["main", "2", "0.0"],
    ]
    assert "author" in titles
    assert lines[1].endswith("alice   graders:Strict 7c1e7c1e  stricter now")
    assert "other items" in lines[1]
    assert lines[2].endswith("bob     human:bob                it is wrong")
    assert "other items" not in lines[2]
    assert end == "3 grades, 2 of items or a label that changed since"


def test_history_as_json_follows_its_schema(command: Command, origin: str) -> None:
    data = command("grades", "history", "r2", "--json").data

    flags = {"type": "boolean"}
    grade = shape(
        **GRADE, author=or_null(TEXT), reason=or_null(TEXT), same_items=flags, same_label=flags
    )
    jsonschema.validate(data, shape(rollout_id=ID, grades=list_of(grade)))
    assert [one["sample_id"] for one in data["grades"]] == ["a", "b"]
    assert {one["author"] for one in data["grades"]} == {"alice"}


def test_the_history_of_one_sample(command: Command, origin: str) -> None:
    assert len(command("grades", "history", "r2", "--sample", "b", "--json").data["grades"]) == 1
    assert command("grades", "history", "r2", "--sample", "c").code == 4
    missing = command("grades", "history", "r9")
    assert (missing.code, missing.err.splitlines()[0]) == (4, "error: no rollout 'r9'")


def test_a_label_that_changed_since_shows(command: Command, opened: Database) -> None:
    add_grades(opened, "g_old", "r1", NewGrade(sample_id="main", reward=1.0, label="41"))

    assert "other label" in command("grades", "history", "r1").out


def test_a_person_can_add_a_grade_of_their_own(command: Command, origin: str) -> None:
    done = command(
        *("grades", "add", "r2", "--sample", "b", "--reward", 0.25, "--author", "alice"),
        *("--reason", "looked at it", "--explanation", "half of it is right", "--json"),
    )

    jsonschema.validate(done.data, shape(grade=shape(**GRADE)))
    grade = done.data["grade"]
    assert (grade["kind"], grade["grader"], grade["reward"]) == ("human", "human:alice", 0.25)
    assert (grade["label"], grade["explanation"]) == ("43", "half of it is right")
    run = command("grades", "show", grade["grading_run_id"], "--json").data["grading_run"]
    assert (run["author"], run["reason"], run["code_digest"]) == ("alice", "looked at it", None)
    assert (run["graded_count"], run["ended_at"] is None) == (1, False)
    ledger = command("grades", "list", "--rollout", "r2", "--json").data["grades"]
    assert [one["kind"] for one in ledger] == ["regrade", "regrade", "human"]


def test_who_adds_a_grade_is_the_one_who_is_logged_in(
    command: Command, opened: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "carol")

    done = command("grades", "add", "r1", "--reward", 1, "--reason", "fine")

    assert done.out.splitlines()[0] == "graded   r1 main   1.0 by human:carol"


def test_every_grade_that_a_person_adds_is_a_grading_run(
    command: Command, opened: Database
) -> None:
    for reward in (0, 1):
        command("grades", "add", "r1", "--reward", reward, "--author", "a", "--reason", "b")

    grades = command("grades", "list", "--json").data["grades"]
    assert [one["grade_no"] for one in grades] == [0, 1]
    assert len({one["grading_run_id"] for one in grades}) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["r9", "--reward", "1"], 4, "rollout_not_found"),
        (["r1", "--reward", "1", "--sample", "other"], 4, "sample_not_found"),
        (["r2", "--reward", "1"], 2, "invalid_grade"),  # it has two samples
        (["r1", "--reward", "nan"], 2, "invalid_grade"),
        (["r1", "--reward", "inf"], 2, "invalid_grade"),
        (["r1", "--reward", "good"], 2, "usage_error"),
        (["r1"], 2, "usage_error"),
        (["r1", "--reward", "1", "--reason", " "], 2, "invalid_grade"),
        (["r1", "--reward", "1", "--author", ""], 2, "invalid_grade"),
    ],
)
def test_a_grade_that_cannot_be_is_refused_and_nothing_is_stored(
    command: Command, opened: Database, arguments: list[str], code: int, kind: str
) -> None:
    given = [*arguments, "--json"]
    if "--reason" not in arguments:
        given += ["--reason", "why"]

    done = command("grades", "add", *given)

    assert (done.code, done.error["code"]) == (code, kind)
    found = command("grades", "list", "--json").data
    assert (found["grades"], found["grading_runs"]) == ([], [])


def test_a_grade_is_added_to_no_store_that_does_not_exist(command: Command, folder: Path) -> None:
    done = command(
        *("grades", "add", "r1", "--reward", 1, "--reason", "x", "--author", "a"),
        *("--store", "sqlite:///new.db"),
    )

    assert done.code == 4
    assert not (folder / "new.db").exists()


def test_list_as_json_follows_its_schema(command: Command, origin: str) -> None:
    data = command("grades", "list", "--json").data

    schema = shape(
        grades=list_of(shape(**GRADE)),
        grading_runs=list_of(GRADING_RUN),
        rollout_count=COUNT,
        last_id=or_null(ID),
        has_more={"type": "boolean"},
    )
    jsonschema.validate(data, schema)
    assert len(data["grades"]) == 4


def test_grades_can_be_listed_by_reward_and_by_time(command: Command, origin: str) -> None:
    def rewards(*flags: object) -> list[float | None]:
        grades = command("grades", "list", *flags, "--json").data["grades"]
        return [one["reward"] for one in grades]

    assert rewards("--sort", "reward") == [0.5, 1.0, None, None]
    assert rewards("--sort", "-reward") == [1.0, 0.5, None, None]
    assert rewards("--sort", "-time", "--limit", 1, "--meta", "split=test") == [0.5]
    assert rewards("--sort", "reward", "--sample", "b") == [None]
    page = command("grades", "list", "--sort", "reward", "--limit", 2, "--json").data
    assert (page["has_more"], page["last_id"], page["rollout_count"]) == (True, None, 2)


def test_a_sorted_list_has_no_next_page_and_knows_its_orders(command: Command, origin: str) -> None:
    assert command("grades", "list", "--sort", "reward", "--after", "r1").code == 2
    unknown = command("grades", "list", "--sort", "size")
    assert (unknown.code, unknown.err) == (
        2,
        "error: grades cannot be sorted by 'size'\n  known: id, reward, -reward, time, -time\n",
    )


def test_a_mean_is_over_the_newest_grades_of_one_grading_run(
    command: Command, opened: Database, origin: str
) -> None:
    add_grades(opened, "g_other", "r1", NewGrade(sample_id="main", reward=0.0, label="42"))

    _, runs = command("grades", "list").out.split("\n\n")
    other, strict = sorted(line.split()[:5] for line in runs.splitlines()[1:3])
    assert other == ["g_other", "regrade", "1", "0", "0.0"]
    assert strict == ["g_strict", "regrade", "3", "0", "0.75"]


def test_the_list_as_csv(command: Command, origin: str) -> None:
    done = command("grades", "list", "--csv", "--sample", "main")

    first, second = csv.DictReader(io.StringIO(done.out))
    assert (first["rollout_id"], first["reward"], first["error"]) == ("r1", "", "broken")
    assert (second["reward"], second["removed"], second["grade_no"]) == ("1.0", "false", "1")
    (summary,) = csv.DictReader(io.StringIO(command("grades", "list", "--csv", "--summary").out))
    assert (summary["grading_run_id"], summary["mean_reward"]) == ("g_strict", "0.75")
    assert command("grades", "list", "--csv", "--json").error["code"] == "usage_error"


def test_a_graders_text_does_not_steer_the_terminal(command: Command, opened: Database) -> None:
    error = NewGrade(sample_id="main", error="a\x1b[31mb\nc")
    add_grades(opened, "g_a", "r1", error, grader="graders:\x1b[31mRed")
    add_grades(opened, "g_b", "r1", NewGrade(sample_id="main", reward=1.0))

    for arguments in (("history", "r1"), ("show", "g_a"), ("list",), ("diff", "g_a", "g_b")):
        done = command("grades", *arguments)
        assert done.code == 0
        assert "\x1b" not in done.out
    assert json.loads(command("grades", "history", "r1", "--json").out)
