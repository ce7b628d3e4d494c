"""The code digest of classes without a file: notebook cells, exec'd code, `__main__`."""

from __future__ import annotations

import itertools
import linecache
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.utils.digest import CodeDigest, code_digest, source_file

HELPERS = """
import math
from enum import Enum
import workspace_helpers
from workspace_helpers import clean

LIMIT = 3
WORDS = {"a", "b", "c"}
UNUSED = 1

class Level(Enum):
    LOW = 1

def inner(x):
    return x + LIMIT

def helper(x):
    # a comment
    return inner(x) * math.floor(2.5)

def unused():
    return 1
"""
GRADER = '''
class Strict:
    """Judges."""
    def grade(self):
        return helper(1), clean("x"), workspace_helpers.lower("Y"), WORDS, Level.LOW
'''


class Notebook:
    """Runs cells the way ipykernel does: in a `__main__` without a file, sources in linecache."""

    def __init__(self) -> None:
        self.module = types.ModuleType("__main__")
        self._numbers = itertools.count()

    def run(self, cell: str) -> None:
        filename = f"/tmp/ipykernel_{id(self)}/{next(self._numbers)}.py"
        linecache.cache[filename] = (len(cell), None, cell.splitlines(keepends=True), filename)
        exec(compile(cell, filename, "exec"), self.module.__dict__)

    def digest(self) -> CodeDigest:
        return code_digest(self.module.__dict__["Strict"])


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    (tmp_path / "workspace_helpers.py").write_text(
        "def clean(x):\n    return x.strip()\n\n\ndef lower(x):\n    return x.lower()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    made = Notebook()
    monkeypatch.setitem(sys.modules, "__main__", made.module)
    monkeypatch.setattr(linecache, "cache", dict(linecache.cache))
    made.run(HELPERS)
    made.run(GRADER)
    yield made
    sys.modules.pop("workspace_helpers", None)


def test_a_notebook_class_is_covered_with_what_it_reaches_in_other_cells(
    notebook: Notebook,
) -> None:
    assert source_file(notebook.module.__dict__["Strict"]) is None
    assert notebook.digest().covers == (
        "import enum.Enum",
        "import math.floor",
        "source of __main__.Level (notebook cell)",
        "source of __main__.Strict (notebook cell)",
        "source of __main__.helper (notebook cell)",
        "source of __main__.inner (notebook cell)",
        "value of __main__.LIMIT",
        "value of __main__.WORDS",
        "workspace_helpers.clean",
        "workspace_helpers.lower",
    )


@pytest.mark.parametrize(
    "cell",
    [
        "def inner(x):\n    return x - LIMIT",
        "LIMIT = 4",
        "WORDS = {'a', 'b'}",
        "class Level(Enum):\n    LOW = 2",
        "helper = inner",
        GRADER.replace("helper(1)", "helper(2)"),
    ],
)
def test_what_a_later_cell_changes_of_it_changes_the_digest(notebook: Notebook, cell: str) -> None:
    before = notebook.digest()
    notebook.run(cell)

    assert notebook.digest().digest != before.digest


@pytest.mark.parametrize(
    "cell",
    [
        "UNUSED = 2",
        "def unused():\n    return 2",
        "def inner( x ):\n    # why\n    return (x +\n            LIMIT)",
        "WORDS = {'c', 'b', 'a'}",
        GRADER.replace("Judges.", "Judges well."),
        HELPERS + GRADER,
    ],
)
def test_formatting_comments_and_what_it_does_not_reach_change_nothing(
    notebook: Notebook, cell: str
) -> None:
    before = notebook.digest()
    notebook.run(cell)

    assert notebook.digest().digest == before.digest


def test_two_constants_that_change_places_change_the_digest(notebook: Notebook) -> None:
    notebook.run("LOW, HIGH = 1, 2\nclass Strict:\n    def grade(self): return LOW, HIGH")
    before = notebook.digest()
    notebook.run("LOW, HIGH = 2, 1")

    assert notebook.digest().digest != before.digest


def test_a_value_without_a_stable_text_counts_by_its_type(notebook: Notebook) -> None:
    notebook.run("class Client: ...\nCLIENT = Client()")
    notebook.run("class Strict:\n    def grade(self): return CLIENT")

    assert "type of __main__.CLIENT" in notebook.digest().covers
    assert "source of __main__.Client (notebook cell)" in notebook.digest().covers


def test_a_value_that_holds_itself_counts_by_its_type(notebook: Notebook) -> None:
    notebook.run("LOOP = []\nLOOP.append(LOOP)")
    notebook.run("class Strict:\n    def grade(self): return LOOP")

    assert "type of __main__.LOOP" in notebook.digest().covers


def test_what_a_dataclass_makes_does_not_hide_the_file(notebook: Notebook, tmp_path: Path) -> None:
    (tmp_path / "made_of_fields.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass\nclass Strict:\n    limit: int = 1\n"
    )
    notebook.run("from made_of_fields import Strict")

    assert source_file(notebook.module.__dict__["Strict"]) == tmp_path / "made_of_fields.py"
    assert "made_of_fields.Strict" in notebook.digest().covers
    sys.modules.pop("made_of_fields")


def test_decorated_methods_and_helpers_are_seen_through(notebook: Notebook) -> None:
    notebook.run("import functools\n@functools.cache\ndef helper(x):\n    return inner(x)")
    notebook.run("class Strict:\n    @staticmethod\n    def grade(): return helper(1)")

    assert "source of __main__.inner (notebook cell)" in notebook.digest().covers


BARE = """
LIMIT = 3
def helper(x):
    return x in {'a', 'b', LIMIT}
class Strict:
    level = 1
    def grade(self):
        return helper(1)
"""


def digest_of_bare(code: str) -> CodeDigest:
    namespace: dict[str, Any] = {"__name__": "made_up"}
    exec(code, namespace)
    return code_digest(namespace["Strict"])


def test_code_without_any_source_counts_by_its_bytecode_helpers_included() -> None:
    assert digest_of_bare(BARE) == digest_of_bare(BARE)
    assert digest_of_bare(BARE).covers == (
        "bytecode of made_up.Strict",
        "bytecode of made_up.helper",
        "value of made_up.LIMIT",
    )


@pytest.mark.parametrize(("old", "new"), [("= 3", "= 4"), ("= 1", "= 2"), ("'a'", "'c'")])
def test_a_change_of_code_without_any_source_changes_the_digest(old: str, new: str) -> None:
    assert digest_of_bare(BARE.replace(old, new)).digest != digest_of_bare(BARE).digest


@pytest.mark.parametrize(
    "made",
    [
        "if __name__ == '__main__':\n  class Strict:\n    def grade(self): return helper(VALUE)",
        "exec('''class Strict:\n        def grade(self): return helper(VALUE)''')",
        "class Strict:\n    def grade(self): return helper(VALUE)",
    ],
    ids=["under the main guard", "exec", "top level"],
)
def test_a_script_can_hold_its_grader_wherever_it_likes(tmp_path: Path, made: str) -> None:
    def run(value: int, limit: int, seed: str) -> list[str]:
        script = tmp_path / "script.py"
        script.write_text(
            "from osmosis_ai.rollout.utils.digest import code_digest\n"
            f"LIMIT = {limit}\ndef helper(x): return x in {{'a', 'b', LIMIT}}\n"
            + made.replace("VALUE", str(value))
            + "\nd = code_digest(Strict)\nprint(d.digest)\nprint(d.covers)\n"
        )
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={"PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONHASHSEED": seed},
        )
        return done.stdout.splitlines()

    digest, covers = run(1, 3, "1")
    assert "Strict" in covers
    assert "helper" in covers
    assert "LIMIT" in covers
    assert run(1, 3, "2")[0] == digest
    assert run(2, 3, "1")[0] != digest
    assert run(1, 4, "1")[0] != digest
