"""docs/cookbook.md: every block runs, and the three answers to a question agree."""

from __future__ import annotations

import ast
import asyncio
import csv
import io
import json
import re
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from .scripts import ROOT, call, copy_example

PAGE = ROOT / "docs/cookbook.md"
GYM = ROOT / "tests/data/gym"
STORE = ".osmosis/rollouts.db"
WITHOUT_COMMAND = {14, 15, 16}

Table = list[tuple[Any, ...]]


class Recipe(NamedTuple):
    """A question with its blocks by language."""

    number: int
    blocks: dict[str, str]


class Kitchen(NamedTuple):
    """A folder with a store, and what the page's names stand for."""

    folder: Path
    names: dict[str, str]


def read_page() -> tuple[str, list[Recipe]]:
    """Return the block that opens the store, and the recipes."""
    intro, *parts = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    recipes = []
    for part in parts:
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)
        recipes.append(Recipe(int(part.partition(".")[0]), dict(blocks)))
        assert len(blocks) == len(recipes[-1].blocks)
    opening = re.findall(r"^```python\n(.*?)^```$", intro, re.DOTALL | re.MULTILINE)
    return opening[0], recipes


OPENING, RECIPES = read_page()


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Kitchen:
    """Return the example, run and graded by two graders, beside the gym rollouts."""
    folder = copy_example(tmp_path_factory.mktemp("cookbook"))
    for arguments in (
        ("osmosis", "eval", "run", "configs/eval/multiply.toml"),
        ("osmosis-store", "regrade", "--grader", "graders/strict.py:ExactAnswer"),
        ("osmosis-store", "import", "gym", *map(str, sorted(GYM.glob("*.jsonl")))),
    ):
        done = call(folder, *arguments)
        assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(folder / STORE)) as connection:
        runs = dict(
            connection.execute(
                "SELECT kind, grading_run_id FROM grading_runs WHERE kind <> 'imported'"
            )
        )
        (rollout,) = connection.execute(
            "SELECT rollout_id FROM rollouts WHERE label = '391'"
        ).fetchone()
    return Kitchen(folder, {"a": runs["rollout"], "b": runs["regrade"], "rollout": rollout})


def ask_sql(kitchen: Kitchen, query: str) -> tuple[list[str], Table]:
    """Return the names of the columns and the rows."""
    with closing(sqlite3.connect(kitchen.folder / STORE)) as connection:
        cursor = connection.execute(query, kitchen.names)
        return [one[0] for one in cursor.description], cursor.fetchall()


def ask_python(kitchen: Kitchen, block: str) -> Table:
    """Return the value of the block's last line, as a notebook shows it."""
    tree = ast.parse(f"{OPENING}\n{block}")
    last = tree.body[-1]
    assert isinstance(last, ast.Expr)
    tree.body[-1] = ast.copy_location(
        ast.Assign(targets=[ast.Name("answer", ast.Store())], value=last.value), last
    )
    code = compile(
        ast.fix_missing_locations(tree), "cookbook", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    names: dict[str, Any] = {"asyncio": asyncio, **kitchen.names}

    async def run() -> None:
        coroutine = eval(code, names)
        if coroutine is not None:
            await coroutine
        await names["store"].close()

    asyncio.run(run())
    answer = names["answer"]
    if isinstance(answer, pd.DataFrame):
        return [tuple(row) for row in answer.itertuples(index=False)]
    return [row if isinstance(row, tuple) else (row,) for row in answer]


def ask_command(kitchen: Kitchen, block: str) -> str:
    """Return what the command prints."""
    line = block.strip().removeprefix("$ ")
    assert "\n" not in line
    for name, value in kitchen.names.items():
        line = line.replace(f"${name.upper()}", value)
    done = call(kitchen.folder, *shlex.split(line))
    assert done.returncode == 0
    assert done.stderr == "" or done.stderr.startswith("more: --after ")
    return done.stdout


def to_rows(printed: str) -> list[dict[str, Any]]:
    """Return CSV or one JSON object's list as dicts."""
    if not printed.startswith("{"):
        return list(csv.DictReader(io.StringIO(printed)))
    data = json.loads(printed)
    rows: list[dict[str, Any]] = next(part for part in data.values() if isinstance(part, list))
    return rows


def flipped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["flip"]]


CHOOSE: dict[int, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]] = {3: flipped}
"""What the SQL leaves out of what a command prints."""


def plain(rows: Table) -> Table:
    """Return rows in an order of their own, with values that compare across the three."""
    return sorted((tuple(map(plain_value, row)) for row in rows), key=str)


def plain_value(value: Any) -> Any:
    if value is pd.NA or value is None or value != value:
        return ""
    try:
        return round(float(value), 6)
    except (TypeError, ValueError):
        return value


def test_there_are_at_least_twelve_questions_with_three_answers() -> None:
    whole = [one for one in RECIPES if one.blocks.keys() == {"console", "sql", "python"}]

    assert len(whole) >= 12
    assert [one.number for one in RECIPES] == list(range(1, len(RECIPES) + 1))
    assert {one.number for one in RECIPES if one not in whole} == WITHOUT_COMMAND


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: str(recipe.number))
def test_the_answers_agree(
    kitchen: Kitchen, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(kitchen.folder)
    columns, rows = ask_sql(kitchen, recipe.blocks["sql"])

    assert rows
    assert plain(ask_python(kitchen, recipe.blocks["python"])) == plain(rows)
    if "console" not in recipe.blocks:
        return
    printed = ask_command(kitchen, recipe.blocks["console"])
    if columns == ["body"]:
        assert printed == "".join(f"{body}\n" for (body,) in rows)
        return
    found = CHOOSE.get(recipe.number, list)(to_rows(printed))
    assert plain([tuple(row[name] for name in columns) for row in found]) == plain(rows)
