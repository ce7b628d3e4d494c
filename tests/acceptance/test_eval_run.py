"""`osmosis eval run` as a user meets it: killed, resumed, graded again."""

import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .multiplier import serve_multiplier
from .scripts import call, copy_example, start

CONFIG = "configs/eval/multiply.toml"
EVAL = ("osmosis", "eval", "run", CONFIG, "--json")
ROW_COUNT, BATCH_SIZE, CALLS_PER_ROW = 14, 3, 2

MODEL = """\
[eval]
rollout = "multiply"
entrypoint = "main.py"
dataset = "data/multiply.jsonl"
limit = {limit}

[llm]
model = "openai/x"
base_url = "{url}"
api_key_env = "MULTIPLY_KEY"

[runs]
batch_size = {batch_size}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return copy_example(tmp_path)


def use_model(workspace: Path, url: str) -> None:
    text = MODEL.format(url=url, limit=ROW_COUNT, batch_size=BATCH_SIZE)
    (workspace / CONFIG).write_text(text)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def listed(workspace: Path, what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer(
        workspace, "osmosis-store", what, "list", "--json", "--limit", "100"
    )[what]
    return found


def answer(workspace: Path, *command: str) -> Any:
    """Run a command and return the JSON that it printed."""
    done = call(workspace, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def question(rollout: dict[str, Any]) -> str:
    text: str = rollout["prompt"][-1]["content"]
    return text


@pytest.mark.slow
def test_killed_resumed_and_graded_again(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIPLY_KEY", "sk-acceptance-0123456789")
    with serve_multiplier(delay_s=0.15) as model:
        use_model(workspace, model.provider.url)

        with start(workspace, *EVAL) as killed:
            model.wait_for_calls(4 * BATCH_SIZE)
            killed.send_signal(signal.SIGKILL)
        time.sleep(0.3)  # what was sent before the kill arrives
        before = Counter(model.calls)
        status = {question(one): one["status"] for one in listed(workspace, "rollouts")}

        resumed = answer(workspace, *EVAL)
        after = model.calls - before
        preflights = model.preflights

        edit(
            workspace / "rollouts/multiply/main.py", "1.0 if ctx.label and", "0.5 if ctx.label and"
        )
        monkeypatch.delenv("MULTIPLY_KEY")
        regraded = answer(workspace, *EVAL)  # without the key, which nothing asks for
        calls = model.calls

    finished = {name for name, state in status.items() if state == "success"}
    in_flight = set(status) - finished
    assert finished
    assert 0 < len(in_flight) <= BATCH_SIZE

    assert resumed["resumed"]
    assert resumed["reused_count"] == len(finished)
    assert resumed["run_count"] == ROW_COUNT - len(finished)
    assert resumed["upstream_calls"] == after.total()
    assert resumed["rewards"]["mean"] == 1.0
    assert {name: before[name] for name in finished} == dict.fromkeys(finished, CALLS_PER_ROW)
    assert finished.isdisjoint(after)
    assert set(before) - finished <= in_flight
    assert all(before[name] <= CALLS_PER_ROW for name in in_flight)
    assert set(after.values()) == {CALLS_PER_ROW}
    wasted = sum(before[name] for name in in_flight)
    assert calls.total() == ROW_COUNT * CALLS_PER_ROW + wasted

    assert (regraded["upstream_calls"], regraded["run_count"]) == (0, 0)
    assert regraded["regraded_count"] == ROW_COUNT
    assert regraded["rewards"]["mean"] == 0.5
    assert (calls, model.preflights) == (before + after, preflights)
    check_ledger(workspace, finished, in_flight)


def check_ledger(workspace: Path, finished: set[str], in_flight: set[str]) -> None:
    rollouts = listed(workspace, "rollouts")
    retries = {(question(one), one["retry_no"], one["status"]) for one in rollouts}
    assert {(name, 0, "success") for name in finished} <= retries
    assert {(name, 0, "crashed") for name in in_flight} <= retries
    assert {(name, 1, "success") for name in in_flight} <= retries
    assert len(retries) == ROW_COUNT + len(in_flight)

    grades: dict[str, list[float]] = {}
    for grade in listed(workspace, "grades"):
        grades.setdefault(grade["rollout_id"], []).append(grade["reward"])
    assert list(grades.values()) == [[1.0, 0.5]] * ROW_COUNT
