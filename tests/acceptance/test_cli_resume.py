"""An eval run that is killed, resumed and graded again, at a provider that counts its calls."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.osmosis_ai.eval.provider import Provider, serve_provider

from .scripts import call, copy_example, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COMMAND = ("osmosis", "eval", "run", "configs/eval/multiply.toml")
ROWS = 24


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return copy_example(tmp_path)


@pytest.fixture
def provider(workspace: Path) -> Any:
    """Return a provider that the workspace's config names as its model."""
    with serve_provider() as running:
        config = workspace / "configs/eval/multiply.toml"
        text = config.read_text()
        before, _, after = text.partition('model = "scripted"\nscript = "policies/multiply.jsonl"')
        assert after
        config.write_text(f'{before}model = "openai/stand-in"\nbase_url = "{running.url}"{after}')
        yield running


def evaluate(workspace: Path) -> dict[str, Any]:
    done = call(workspace, *COMMAND, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def fetch_rollouts(workspace: Path, *flags: str) -> list[dict[str, Any]]:
    done = call(workspace, "osmosis-store", "rollouts", "list", "--limit", "500", "--json", *flags)
    found: list[dict[str, Any]] = json.loads(done.stdout)["rollouts"]
    return found


def count_calls(provider: Provider) -> dict[str, int]:
    """Return how often each question was asked."""
    counts: dict[str, int] = {}
    for body in provider.bodies:
        question = str(body["messages"][-1]["content"])
        counts[question] = counts.get(question, 0) + 1
    return counts


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def stop_in_the_middle(
    workspace: Path, provider: Provider, how: signal.Signals
) -> subprocess.CompletedProcess[str]:
    """Start the command and stop it while some rollouts are done and others wait for an answer."""
    with start(workspace, *COMMAND) as process:
        wait_until(lambda: len(provider.bodies) >= 8)
        provider.gate = threading.Event()
        stalled = len(provider.bodies)
        wait_until(lambda: len(provider.bodies) > stalled)
        process.send_signal(how)
        out, err = process.communicate(timeout=60)
    provider.gate.set()
    provider.gate = None
    return subprocess.CompletedProcess(COMMAND, process.returncode, out, err)


def test_no_finished_rollout_is_paid_for_twice_after_kill_9(
    workspace: Path, provider: Provider
) -> None:
    killed = stop_in_the_middle(workspace, provider, signal.SIGKILL)
    finished = fetch_rollouts(workspace, "--status", "success")
    assert killed.returncode == -signal.SIGKILL
    assert 0 < len(finished) < ROWS

    report = evaluate(workspace)

    assert report["resumed"]
    assert report["reused_count"] == len(finished)
    assert report["run_count"] == ROWS - len(finished)
    calls = count_calls(provider)
    for rollout in finished:
        assert calls[rollout["prompt"][-1]["content"]] == 1
    done = fetch_rollouts(workspace, "--status", "success")
    assert sorted(rollout["row_index"] for rollout in done) == list(range(ROWS))
    assert fetch_rollouts(workspace, "--status", "crashed")

    grade_again_without_a_call(workspace, provider)


def grade_again_without_a_call(workspace: Path, provider: Provider) -> None:
    """Edit the grader, run the same command: no call, new grades, the old ones kept."""
    main = workspace / "rollouts/multiply/main.py"
    text = main.read_text()
    assert "reward = 1.0 if" in text
    main.write_text(text.replace("reward = 1.0 if", "reward = 0.5 if True or"))
    asked = len(provider.bodies)

    report = evaluate(workspace)

    assert len(provider.bodies) == asked
    assert (report["upstream_calls"], report["regraded_count"]) == (0, ROWS)
    assert report["rewards"]["mean"] == 0.5
    listed = call(workspace, "osmosis-store", "grades", "list", "--json").stdout
    grades = [grade for grade in json.loads(listed)["grades"] if grade["error"] is None]
    assert sorted(grade["reward"] for grade in grades) == [0.0] * ROWS + [0.5] * ROWS
    assert len({grade["code_digest"] for grade in grades}) == 2


def test_an_interrupted_run_says_so_and_goes_on(workspace: Path, provider: Provider) -> None:
    interrupted = stop_in_the_middle(workspace, provider, signal.SIGINT)
    finished = fetch_rollouts(workspace, "--status", "success")

    assert interrupted.returncode == 130
    assert interrupted.stderr.startswith("error: interrupted\n")
    assert "Traceback" not in interrupted.stderr
    assert 0 < len(finished) < ROWS

    report = evaluate(workspace)

    assert report["reused_count"] == len(finished)
    assert report["graded_count"] == ROWS
