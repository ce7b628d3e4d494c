"""The code digest: what changes it and what does not."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from osmosis_ai.rollout import GraderConfig
from osmosis_ai.rollout.utils.digest import CodeDigest, code_digest

MAIN = '''
"""A workspace."""
import math
import logging
from dataclasses import dataclass

import tools.numbers
from prompts import SYSTEM as INSTRUCTIONS
from tools import text as texts
from tools.words import *

LIMIT = 3
STRICT = True
REGISTRY = {}


def add(a, b):
    """Add two numbers."""
    return a + b


def helper(x):
    return add(x, LIMIT)


def graded(x):
    return STRICT


@dataclass
class Base:
    def shared(self):
        return tools.numbers.double(1)


class Workflow(Base):
    """Does things."""

    def run(self):
        """Run."""
        from prompts import LATE

        return helper(1), INSTRUCTIONS, texts.upper("x"), word(), math.floor(2.5), REGISTRY, LATE


class Grader:
    def grade(self):
        return graded(1)


REGISTRY["add"] = add
logging.raiseExceptions = False

if __name__ == "__main__":
    print(Workflow().run())
'''

FILES = {
    "main.py": MAIN,
    "prompts.py": 'SYSTEM = "Be brief."\nLATE = 1\nUNUSED = 2\n',
    "tools/__init__.py": "",
    "tools/numbers.py": "def double(x):\n    return 2 * x\n\n\ndef triple(x):\n    return 3 * x\n",
    "tools/text.py": "def upper(x):\n    return x.upper()\n\n\ndef lower(x):\n    return x\n",
    "tools/words.py": "def word():\n    return 'w'\n\n\ndef other():\n    return 'o'\n",
}

SYNTAX = r'''
import re


class Everything:
    """All that versions of Python print differently."""

    limit: int = -1_000
    ratio = 1e-3 + 2j
    raw = rb"\\x00" b"tail"

    async def run(self, /, a, *rest, b: "int | None" = None, **more) -> list[str]:
        """Keep."""
        text = f"{a!r:>{self.limit}} {{}} {b['k']}{'nested'}" "joined" f"{a=}"
        if (n := len(rest)) > 1 and not more:
            del text
        match a:
            case {"k": [1, *_], **others}:
                pass
            case str() as word if word:
                return [x async for x in word if x]
            case _:
                global seen
                seen = lambda x, *, y=2: (yield)
        try:
            async with a as c, b:
                raise ValueError from None
        except* (OSError, ValueError) as group:
            seen = [*rest, *map(re.compile, c)][::2], group, n, u"u", ...
'''

Digest = Callable[..., CodeDigest]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [
        "main",
        "prompts",
        "tools",
        "tools.numbers",
        "tools.text",
        "tools.words",
        "syntax",
    ]:
        sys.modules.pop(name, None)


@pytest.fixture
def digest(workspace: Path) -> Digest:
    main = importlib.import_module("main")

    def compute(name: str = "Workflow", **options: object) -> CodeDigest:
        return code_digest(getattr(main, name), **options)

    return compute


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_it_covers_all_that_the_class_reaches_and_nothing_else(digest: Digest) -> None:
    covered = digest().covers

    assert [name for name in covered if not name.startswith("import ")] == [
        "main.Base",
        "main.LIMIT",
        "main.REGISTRY",
        "main.Workflow",
        "main.add",
        "main.helper",
        "main:REGISTRY",
        "main:logging",
        "prompts.LATE",
        "prompts.SYSTEM",
        "tools.numbers.double",
        "tools.text.upper",
        "tools.words.word",
    ]
    assert "import math.floor" in covered
    assert digest("Grader").covers == ("main.Grader", "main.STRICT", "main.graded", "main:logging")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("main.py", "helper(1)", "helper(2)"),
        ("main.py", "return a + b", "return a - b"),
        ("main.py", "LIMIT = 3", "LIMIT = 4"),
        ("main.py", "double(1)", "double(2)"),
        ("main.py", "@dataclass", "@dataclass(slots=True)"),
        ("main.py", "import math", "import cmath as math"),
        ("main.py", "Add two numbers.", "Add two integers."),
        ("main.py", 'REGISTRY["add"]', 'REGISTRY["plus"]'),
        ("main.py", "raiseExceptions = False", "raiseExceptions = True"),
        ("main.py", "SYSTEM as", "UNUSED as"),
        ("prompts.py", "Be brief.", "Be long."),
        ("prompts.py", "LATE = 1", "LATE = 9"),
        ("tools/numbers.py", "2 * x", "x * 2"),
        ("tools/text.py", "x.upper()", "x"),
        ("tools/words.py", "'w'", "'v'"),
    ],
)
def test_editing_what_it_reaches_changes_it(
    digest: Digest, workspace: Path, file: str, old: str, new: str
) -> None:
    before = digest().digest
    edit(workspace / file, old, new)

    assert digest().digest != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("main.py", "graded(1)", "graded(2)"),
        ("main.py", "STRICT = True", "STRICT = False"),
        ("main.py", "print(Workflow().run())", "pass"),
        ("main.py", "LIMIT = 3", "# a comment\nLIMIT  =  (3)  # three"),
        ("main.py", '"""Does things."""', '"""Does other things."""'),
        ("main.py", '"""Run."""', "'''Runs.'''"),
        ("main.py", '"""A workspace."""', '"""The workspace."""'),
        ("prompts.py", "UNUSED = 2", "UNUSED = 3"),
        ("prompts.py", '"Be brief."', "'Be ' \\\n    'brief.'"),
        ("tools/numbers.py", "3 * x", "x * 3"),
        ("tools/words.py", "'o'", "'p'"),
    ],
)
def test_editing_anything_else_does_not_change_it(
    digest: Digest, workspace: Path, file: str, old: str, new: str
) -> None:
    before = digest().digest
    edit(workspace / file, old, new)

    assert digest().digest == before


def test_the_grader_and_the_workflow_of_one_file_have_digests_of_their_own(
    digest: Digest, workspace: Path
) -> None:
    grader = digest("Grader").digest
    edit(workspace / "main.py", "helper(1)", "helper(2)")
    assert digest("Grader").digest == grader
    edit(workspace / "main.py", "STRICT = True", "STRICT = False")
    assert digest("Grader").digest != grader


def test_the_config_counts(digest: Digest) -> None:
    digests = {
        digest("Grader", config=config).digest
        for config in (
            None,
            GraderConfig(name="g"),
            GraderConfig(name="g", strict=True),
            GraderConfig(name="g", strict=True),
        )
    }
    assert len(digests) == 3


def test_another_process_and_another_folder_name_give_the_same(
    digest: Digest, workspace: Path
) -> None:
    code = (
        "import main; from osmosis_ai.rollout.utils.digest import code_digest;"
        "print(code_digest(main.Workflow).digest)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=workspace,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONHASHSEED": "7"},
    )
    assert done.stdout.strip() == digest().digest


def test_the_digest_is_the_same_in_every_version_of_python(workspace: Path) -> None:
    (workspace / "syntax.py").write_text(SYNTAX)
    everything = importlib.import_module("syntax").Everything

    assert code_digest(everything) == CodeDigest(
        "38d1037098ad0292eadcc1768d8115a6d5c814fceab1c30b0a86c6e8525e11c6",
        ("import re.compile", "syntax.Everything"),
    )


def test_a_wider_root_gives_the_same_digest_and_longer_names(
    digest: Digest, workspace: Path
) -> None:
    wider = digest(root=workspace.parent)

    assert wider.digest == digest().digest
    assert f"{workspace.name}.main.Workflow" in wider.covers


def test_a_relative_import_inside_a_package_is_followed(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = workspace / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helpers.py").write_text("def f():\n    return 1\n")
    (package / "flow.py").write_text(
        "from . import helpers\nfrom .helpers import f\n\n\n"
        "class W:\n    def run(self):\n        return f(), helpers.f()\n"
    )
    flow = importlib.import_module("pack.flow")

    assert code_digest(flow.W).covers == ("pack.flow.W", "pack.helpers.f")
    for name in ("pack", "pack.flow", "pack.helpers"):
        sys.modules.pop(name)


def test_names_that_refer_to_each_other_end() -> None:
    class Ping: ...

    first, second = code_digest(Ping), code_digest(Ping)
    assert first == second


def test_a_class_without_a_file_is_taken_in_by_its_bytecode() -> None:
    namespace: dict[str, type] = {}
    versions = []
    for number in (1, 1, 2):
        exec(f"class Made:\n    def run(self):\n        return {number}\n", namespace)
        namespace["Made"].__module__ = "no_such_module"
        versions.append(code_digest(namespace["Made"]))

    assert versions[0] == versions[1]
    assert versions[0].digest != versions[2].digest
    assert versions[0].covers == ("bytecode of no_such_module.Made",)
