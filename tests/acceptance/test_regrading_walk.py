"""docs/regrading.md: its commands are run as they stand there, and say what it says."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/regrading.md"
_RUN_ID = re.compile(r"g_[0-9a-z]{16}")
_EXIT_CODE = re.compile(r" # exit code (\d+)$")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_the_walk_through_goes_as_it_is_told(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests/data/gym", tmp_path / "gym")
    (tmp_path / "graders.py").write_text(blocks("python")[0], "utf-8")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OSMOSIS_STORE_URL": "sqlite:///rollouts.db",
    }
    ids: dict[str, str] = {}

    def in_our_ids(text: str) -> str:
        return _RUN_ID.sub(lambda found: ids.get(found[0], found[0]), text)

    count = 0
    for part in "\n".join(blocks("console")).split("$ ")[1:]:
        command, *expected = part.strip().splitlines()
        code = _EXIT_CODE.search(command)
        done = subprocess.run(
            in_our_ids(_EXIT_CODE.sub("", command)),
            shell=True,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        count += 1

        assert done.returncode == (int(code[1]) if code else 0), (command, done.stderr)
        printed = done.stdout.splitlines()
        for line in expected:
            # how many of Patient's were done at the kill is chance
            told_by = functools.partial(is_told, line, numbers="Patient" not in command + line)
            found = next((at for at, one in enumerate(printed) if told_by(one)), None)
            assert found is not None, (command, line, done.stdout)
            told = printed.pop(found)
            ids.update(zip(_RUN_ID.findall(line), _RUN_ID.findall(told), strict=True))
    assert count == 12


_TIMES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d|[\d.,]+ (ms|s|min)\b|[\d,]+/s")


def shape(line: str, *, numbers: bool = True) -> str:
    """Return what of a line is the same in every run; a line that was cut says where."""
    words = " ".join(_TIMES.sub("@", _RUN_ID.sub("g_", line)).split())
    return words if numbers else re.sub(r"\d[\d.]*", "#", words)


def is_told(expected: str, printed: str, *, numbers: bool) -> bool:
    wanted, found = (shape(line, numbers=numbers) for line in (expected, printed))
    return found.startswith(wanted.rstrip("… ")) if wanted.endswith("…") else found == wanted
