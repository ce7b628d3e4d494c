"""The demo's main job, as `make demo` runs it."""

import shutil
from pathlib import Path

import pytest

from .scripts import run

EXAMPLE = Path(__file__).parents[2] / "examples/multiply"
EVAL = ("osmosis", "eval", "run", "configs/eval/multiply.toml")
REGRADE = ("osmosis-store", "regrade", "--grader", "graders/strict.py:ExactAnswer")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    target = tmp_path / "multiply"
    ignored = shutil.ignore_patterns(".osmosis", "__pycache__")
    return Path(shutil.copytree(EXAMPLE, target, ignore=ignored))


def test_the_example_runs_and_is_graded_again_without_the_model_twice_in_a_row(
    workspace: Path,
) -> None:
    first = run(workspace, *EVAL)
    strict = run(workspace, *REGRADE, "--json")
    second = run(workspace, *EVAL, "--json")
    again = run(workspace, *REGRADE)
    grades = run(workspace, "osmosis-store", "grades", "list", "--json")

    assert (first.code, first.err) == (0, "")
    assert "policy   scripted (policies/multiply.jsonl), no network, no key" in first.out
    assert "mean 0.833   pass 20/24" in first.out
    assert (strict.code, strict.json["graded_count"], strict.json["policy_calls"]) == (0, 24, 0)
    assert strict.json["passed_to_failed"] == 3
    assert strict.json["mean_after"] == pytest.approx(17 / 24)
    assert (second.json["run_count"], second.json["reused_count"]) == (0, 24)
    assert (second.json["upstream_calls"], second.json["regraded_count"]) == (0, 0)
    assert again.code == 0
    assert "policy calls: 0" in again.out
    assert "24" in next(line for line in again.out.splitlines() if line.startswith("skipped"))
    assert len(grades.json["grades"]) == 48


def test_the_readme_names_what_the_example_has(workspace: Path) -> None:
    readme = (workspace / "README.md").read_text()

    commands = [line[2:] for line in readme.splitlines() if line.startswith("$ ")]
    assert " ".join(EVAL) in commands
    assert " ".join(REGRADE) in commands
    files = [line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")]
    assert files
    assert [name for name in files if not (workspace / name).is_file()] == []
