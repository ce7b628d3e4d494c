"""The demo's main job, as `make demo` runs it."""

import json
from pathlib import Path
from typing import Any

import pytest

from .scripts import call, copy_example

EVAL = ("osmosis", "eval", "run", "configs/eval/multiply.toml")
REGRADE = ("osmosis-store", "regrade", "--grader", "graders/strict.py:ExactAnswer")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return copy_example(tmp_path)


def answer(workspace: Path, *command: str) -> Any:
    """Run a command with `--json` and return what it printed."""
    done = call(workspace, *command, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_the_example_runs_and_is_graded_again_without_the_model_twice_in_a_row(
    workspace: Path,
) -> None:
    first = call(workspace, *EVAL)
    strict = answer(workspace, *REGRADE)
    second = answer(workspace, *EVAL)
    again = call(workspace, *REGRADE)
    grades = answer(workspace, "osmosis-store", "grades", "list")["grades"]

    assert (first.returncode, first.stderr) == (0, "")
    assert "policy   scripted (policies/multiply.jsonl), no network, no key" in first.stdout
    assert "upstream 46 model calls" in first.stdout  # two rows answer without the tool
    assert "mean 0.833   pass 20/24" in first.stdout
    [graded] = strict["passes"]
    assert (graded["graded_count"], strict["policy_calls"]) == (24, 0)
    assert graded["passed_to_failed"] == 3
    assert graded["mean_after"] == pytest.approx(17 / 24)
    assert (second["run_count"], second["reused_count"]) == (0, 24)
    assert (second["upstream_calls"], second["regraded_count"]) == (0, 0)
    assert again.returncode == 0
    assert "policy calls: 0" in again.stdout
    assert "24" in next(line for line in again.stdout.splitlines() if line.startswith("skipped"))
    assert len(grades) == 48


def test_the_readme_names_what_the_example_has(workspace: Path) -> None:
    readme = (workspace / "README.md").read_text()

    commands = [line[2:] for line in readme.splitlines() if line.startswith("$ ")]
    assert " ".join(EVAL) in commands
    assert " ".join(REGRADE) in commands
    files = [line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")]
    assert files
    assert [name for name in files if not (workspace / name).is_file()] == []
