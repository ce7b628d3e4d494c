"""What commands print with `--json` has the form that `tests/data/cli_schemas.json` gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from osmosis_store.database import Database
from osmosis_store.engine import parse_url
from osmosis_store.records import NewGrade
from osmosis_store.writes.journal import insert_model_call
from tests.osmosis_store.ledger import add_grades, add_rollout

from .conftest import Command

SCHEMAS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data/cli_schemas.json").read_text(encoding="utf-8")
)


def check(name: str, data: object) -> None:
    schema = {"$defs": SCHEMAS["$defs"], **SCHEMAS["commands"][name]}
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(data)


@pytest.fixture(autouse=True)
def more_rows(store_file: Path) -> None:
    """Add what the gym rollouts do not have: a failure, a call without answer, failed grades."""
    database = Database.open(parse_url(f"sqlite:///{store_file}"))
    add_rollout(database, "failed", "main", status="failure", error_category="agent_error")
    add_rollout(database, "open", "main", status="open")
    add_grades(database, "g1", "failed", NewGrade(sample_id="main", error="no"))
    add_grades(database, "g1", "open", NewGrade(sample_id="main", reward=1.0, removed=True))
    values = {"rollout_id": "failed", "sample_id": "main", "model": "m", "settings": "{}"}
    database.write_now(
        lambda tx: insert_model_call(
            tx, values, instructions="Be brief.", tools=None, now=database.clock()
        )
    )
    database.close()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("rollouts list", []),
        ("rollouts list", ["--limit", "2", "--sort", "-reward"]),
        ("rollouts list", ["--status", "crashed"]),
        ("rollouts show", ["failed", "--tail", "1"]),
        ("items search", ["the"]),
        ("items search", ["nobody says this"]),
        ("stats", []),
        ("stats", ["--by", "workflow"]),
        ("stats", ["--by", "grader"]),
        ("db index", []),
        ("db index", ["--drop"]),
        ("db upgrade", []),
        ("db current", []),
        ("db check", []),
        ("db backup", ["copy.db"]),
    ],
    ids=str,
)
def test_the_output_has_its_form(command: Command, name: str, arguments: list[str]) -> None:
    done = command(*name.split(), *arguments, "--json")

    assert done.code == 0
    check(name, done.data)


@pytest.mark.parametrize(
    "arguments",
    [
        ["rollouts", "list", "--reward", "good"],
        ["rollouts", "list", "--sort", "size"],
        ["rollouts", "list", "--no-such-flag"],
        ["rollouts", "list", "--graded-by", "g_none"],
        ["rollouts", "show", "none"],
        ["items", "search", ""],
        ["stats", "--by", "colour"],
        ["db", "check", "--store", "sqlite:///none.db"],
    ],
    ids=str,
)
def test_an_error_has_its_form(command: Command, arguments: list[str]) -> None:
    done = command(*arguments, "--json")

    assert done.code != 0
    check("error", done.data)


def test_every_rollout_can_be_shown(command: Command) -> None:
    for one in command("rollouts", "list", "--json").data["rollouts"]:
        check("rollouts show", command("rollouts", "show", one["rollout_id"], "--json").data)
