"""What `osmosis eval run` says and how it exits when something is not as it should be."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.osmosis_store.adapters.eval_archive.workspace import (
    CONFIG_PATH,
    MAIN_PATH,
    Workspace,
    row,
)

from .multiplier import serve_multiplier
from .scripts import call, start

EVAL = ("osmosis", "eval", "run", CONFIG_PATH)
KEY = "sk-acceptance-0123456789"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace", [row("1", "1"), row("2", "two")])


Ended: TypeAlias = subprocess.CompletedProcess[str]


def evaluate(workspace: Workspace, *flags: str, **environ: str) -> Ended:
    return call(workspace.root, *EVAL, *flags, **environ)


def answer_of(ended: Ended) -> Any:
    """Return what was printed on standard output, which is one JSON value and nothing else."""
    return json.loads(ended.stdout)


def wait(process: subprocess.Popen[str]) -> Ended:
    with process:
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(EVAL, process.returncode, out, err)


def rollouts_of(workspace: Workspace) -> list[dict[str, Any]]:
    ended = call(workspace.root, "osmosis-store", "rollouts", "list", "--json")
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = answer_of(ended)["rollouts"]
    return found


def use_model(workspace: Workspace, url: str) -> None:
    model = f'model = "openai/x"\nbase_url = "{url}"\napi_key_env = "THE_KEY"'
    script = 'model = "scripted"\nscript = "policies/echo.jsonl"'
    workspace.edit(CONFIG_PATH, script, model)


def broken_toml(workspace: Workspace) -> list[str]:
    workspace.edit(CONFIG_PATH, "[runs]", "[runs]\nbatchsize = 4")
    return [
        f"error: {CONFIG_PATH}: [runs] batchsize: unknown key; the nearest known one is batch_size",
        "  known keys: n, batch_size, pass_threshold",
    ]


def broken_row(workspace: Workspace) -> list[str]:
    workspace.write_rows([row("1"), {"user_promt": "2"}])
    return ["error: data/echo.jsonl row 1 (line 2): "]


def missing_script(workspace: Workspace) -> list[str]:
    (workspace.root / "policies/echo.jsonl").unlink()
    return [f"error: {CONFIG_PATH}: [llm] script: no file policies/echo.jsonl in "]


def broken_script(workspace: Workspace) -> list[str]:
    workspace.write("policies/echo.jsonl", '{"replies": []}\n')
    return ["error: policies/echo.jsonl line 1: replies: "]


def two_workflows(workspace: Workspace) -> list[str]:
    workspace.edit(MAIN_PATH, "class Exact", "class Other(Echo):\n    pass\n\n\nclass Exact")
    return [
        f"error: {MAIN_PATH}: defines 2 concrete AgentWorkflow classes: Echo, Other",
        "  keep one of them",
    ]


def missing_key(workspace: Workspace) -> list[str]:
    use_model(workspace, "http://127.0.0.1:9/v1")
    return [
        f"error: {CONFIG_PATH}: [llm] api_key_env: the environment variable THE_KEY is not set",
        "  set THE_KEY, or remove api_key_env where no key is needed",
    ]


@pytest.mark.parametrize(
    "break_it",
    [broken_toml, broken_row, missing_script, broken_script, two_workflows, missing_key],
)
def test_it_names_what_is_wrong_and_runs_nothing(workspace: Workspace, break_it: Any) -> None:
    expected = break_it(workspace)
    ended = evaluate(workspace)

    assert (ended.returncode, workspace.take_ran()) == (1, [])
    lines = ended.stderr.splitlines()
    assert lines[0].startswith(expected[0])
    assert lines[1:] == expected[1:] or len(expected) == 1
    assert "Traceback" not in ended.stderr


def test_a_changed_dataset_is_refused_until_a_fresh_start(workspace: Workspace) -> None:
    first = evaluate(workspace, "--json")
    workspace.write_rows([row("3", "3")])
    refused = evaluate(workspace, "--json")
    fresh = evaluate(workspace, "--json", "--fresh")

    error = answer_of(refused)["error"]
    assert (refused.returncode, error["code"]) == (1, "eval_run_changed")
    assert error["details"]["changed"] == ["dataset"]
    assert error["details"]["eval_run_id"] == answer_of(first)["eval_run_id"]
    assert (fresh.returncode, answer_of(fresh)["run_count"]) == (0, 1)


def test_with_json_there_is_one_object_whatever_the_workflow_prints(workspace: Workspace) -> None:
    workspace.edit(MAIN_PATH, "import asyncio", "import asyncio\n\nprint('loaded')")
    workspace.edit(MAIN_PATH, "        while text", "        print('working')\n        while text")
    good = evaluate(workspace, "--json")
    workspace.edit(CONFIG_PATH, "[eval]", "[experiment]\n[eval]")
    bad = evaluate(workspace, "--json")

    assert good.returncode == 0
    assert answer_of(good)["store"].endswith(".osmosis/rollouts.db")
    assert [one["state"] for one in answer_of(good)["rollouts"]] == ["graded", "graded"]
    assert (bad.returncode, list(answer_of(bad))) == (1, ["error"])
    assert sorted(answer_of(bad)["error"]) == ["code", "details", "message"]
    assert "[experiment]: is the platform's layout" in answer_of(bad)["error"]["message"]


def test_a_grader_that_raises_is_counted_and_the_rest_goes_on(workspace: Workspace) -> None:
    workspace.write_rows([row("1", "break"), row("2", "2")])
    some = evaluate(workspace)
    workspace.write_rows([row("1", "break"), row("2", "break")])
    every = evaluate(workspace, "--fresh")

    assert some.returncode == 0
    assert "reward   mean 1.0   pass 1/2" in some.stdout
    assert some.stderr.startswith("failed   row 0 ")
    assert some.stderr.endswith(": grader: 'the grader broke'\n")
    assert every.returncode == 1
    assert len(every.stderr.splitlines()) == 2


def test_a_second_process_is_told_who_runs_it(workspace: Workspace) -> None:
    workspace.write_rows([row("wait", "wait")])
    with start(workspace.root, *EVAL) as first:
        wait_until_running(workspace)
        second = evaluate(workspace, "--json")
        workspace.write("rollouts/echo/go", "")
        ended = wait(first)

    assert (second.returncode, answer_of(second)["error"]["code"]) == (1, "eval_run_busy")
    assert answer_of(second)["error"]["details"]["pid"] == first.pid
    assert ended.returncode == 0, ended.stderr


def test_an_interrupt_leaves_the_rest_to_the_same_command(workspace: Workspace) -> None:
    workspace.write_rows([row("1", "1"), row("wait 2", "wait 2")])
    process = start(workspace.root, *EVAL)
    wait_until_running(workspace)
    process.send_signal(signal.SIGINT)
    interrupted = wait(process)
    statuses = sorted(one["status"] for one in rollouts_of(workspace))
    workspace.take_ran()
    workspace.write("rollouts/echo/go", "")
    resumed = evaluate(workspace, "--json")

    assert interrupted.returncode == 130
    assert interrupted.stderr.splitlines() == [
        "error: interrupted",
        "  what was stored is kept; the same command goes on from there",
    ]
    assert statuses == ["cancelled", "success"]
    assert (resumed.returncode, workspace.take_ran()) == (0, ["wait 2"])
    assert (answer_of(resumed)["reused_count"], answer_of(resumed)["passed_count"]) == (1, 2)


def wait_until_running(workspace: Workspace) -> None:
    """Wait for a rollout that waits, every other one being done."""
    log = workspace.root / "rollouts/echo/ran.log"
    deadline = time.monotonic() + 60
    while not (log.exists() and "wait" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)


def test_a_wrong_key_ends_it_before_a_row_is_spent(workspace: Workspace) -> None:
    with serve_multiplier() as model:
        use_model(workspace, model.provider.url)
        model.provider.fail(401, f"Incorrect API key provided: {KEY}.")
        ended = evaluate(workspace, THE_KEY=KEY)
        calls = len(model.provider.bodies)

    assert (ended.returncode, calls, workspace.take_ran()) == (1, 1, [])
    first, hint = ended.stderr.splitlines()
    assert first.startswith("error: the model does not answer: openai/x: ")
    assert hint == "  check the key in THE_KEY, and whether it may use this model"
    assert KEY not in ended.stdout + ended.stderr
    assert rollouts_of(workspace) == []


def test_regrading_needs_neither_the_model_nor_its_client(workspace: Workspace) -> None:
    evaluate(workspace)
    workspace.take_ran()
    workspace.edit(MAIN_PATH, "== ctx.label)", "!= ctx.label)")
    workspace.write("shadow/litellm/__init__.py", "raise ImportError('litellm is not needed')\n")
    ended = evaluate(workspace, "--json", PYTHONPATH=str(workspace.root / "shadow"))

    assert (ended.returncode, workspace.take_ran()) == (0, [])
    assert (answer_of(ended)["regraded_count"], answer_of(ended)["upstream_calls"]) == (2, 0)


def test_flags_win_over_the_file_and_the_results_land_where_they_are_asked_for(
    workspace: Workspace,
) -> None:
    ended = evaluate(
        workspace,
        "--limit",
        "1",
        "--offset",
        "1",
        "-o",
        "out",
        "--log-samples",
        "-q",
        "--store",
        "sqlite:///other.db",
    )

    assert (ended.returncode, workspace.take_ran()) == (0, ["2"])
    assert len(ended.stdout.splitlines()) == 1
    assert (workspace.root / "other.db").is_file()
    results = json.loads((workspace.root / "out/results.json").read_text())
    assert (results["settings"]["limit"], results["settings"]["offset"]) == (1, 1)
    (line,) = (workspace.root / "out/samples.jsonl").read_text().splitlines()
    assert json.loads(line)["row_index"] == 1
