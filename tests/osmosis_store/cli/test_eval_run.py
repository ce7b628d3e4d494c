from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from osmosis_store.cli import osmosis
from osmosis_store.cli.shell import run
from tests.policy_endpoint import LITELLM_WARNINGS

from .conftest import Command, Done

EXAMPLE = Path(__file__).parents[3] / "examples/multiply"
CONFIG = "configs/eval/multiply.toml"
FEW = ["--limit", "3"]

pytestmark = LITELLM_WARNINGS


@pytest.fixture
def workspace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the working directory a workspace: the example, without what a demo left there."""
    ignore = shutil.ignore_patterns(".osmosis", "__pycache__")
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True, ignore=ignore)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield folder
    for name in set(sys.modules) - known:
        if name.startswith("rollouts."):
            del sys.modules[name]


@pytest.fixture
def evaluate(workspace: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return `osmosis eval run` of the example's config as a function of its flags."""

    def call(*flags: object, config: str = CONFIG) -> Done:
        arguments = ["eval", "run", config, *(str(flag) for flag in flags)]
        code = run(osmosis.app, "osmosis", arguments)
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return call


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_run_tells_policy_reward_and_where_it_is_stored(evaluate: Command) -> None:
    done = evaluate(*FEW)

    assert (done.code, done.err) == (0, "")
    words = {line.split()[0]: line for line in done.out.splitlines()}
    assert words["policy"] == ("policy   scripted (policies/multiply.jsonl), no network, no key")
    assert words["rollouts"].startswith("rollouts 3 run, 0 reused, of 3")
    assert "mean 1.0   pass 3/3   tokens" in words["reward"]
    assert words["stored"].startswith("stored   3 rollouts, 3 samples, 12 items")
    assert words["stored"].endswith(".osmosis/rollouts.db")
    assert Path(words["results"].split()[1]).is_file()


def test_the_same_command_runs_nothing_twice_and_says_so(
    evaluate: Command, command: Command
) -> None:
    evaluate(*FEW)
    stored = command("rollouts", "list", "--json").out

    again = evaluate(*FEW)

    assert "3 of 3 rollouts stored already" in again.out
    assert "rollouts 0 run, 3 reused, of 3" in again.out
    assert "upstream 0 model calls" in again.out
    assert command("rollouts", "list", "--json").out == stored


def test_the_report_as_json_is_the_one_object(evaluate: Command) -> None:
    done = evaluate(*FEW, "--json")

    assert (done.code, done.err) == (0, "")
    assert done.data["run_count"] == 3
    assert done.data["store"] == ".osmosis/rollouts.db"
    assert [one["reward"] for one in done.data["rollouts"]] == [1.0, 1.0, 1.0]


def test_what_a_workflow_prints_does_not_spoil_the_json(evaluate: Command, workspace: Path) -> None:
    main = workspace / "rollouts/multiply/main.py"
    replace(
        main, "        agent = OsmosisAgent(", '        print("hi")\n        agent = OsmosisAgent('
    )

    done = evaluate(*FEW, "--json")

    assert done.data["run_count"] == 3
    assert done.err == "hi\n" * 3


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=str)
def test_a_workflow_that_closes_the_streams_takes_the_report_from_nobody(
    evaluate: Command, workspace: Path, flags: list[str]
) -> None:
    replace(
        workspace / "rollouts/multiply/main.py",
        "        agent = OsmosisAgent(",
        "        import sys\n\n        sys.stdout.close()\n        sys.stderr.close()\n"
        "        agent = OsmosisAgent(",
    )

    done = evaluate(*FEW, *flags)

    assert done.code == 0
    assert "mean" in done.out


def test_fresh_starts_anew_and_the_old_stays(evaluate: Command, command: Command) -> None:
    first = evaluate(*FEW, "--json").data["eval_run_id"]
    second = evaluate(*FEW, "--fresh", "--json").data["eval_run_id"]

    for eval_run_id in (first, second):
        found = command("rollouts", "list", "--eval-run", eval_run_id, "--json").data
        assert len(found["rollouts"]) == 3


def test_flags_choose_rows_files_and_how_much_is_said(evaluate: Command, workspace: Path) -> None:
    done = evaluate(
        "--offset", 4, "--limit", 2, "--batch-size", 2, "-o", "out", "--log-samples", "-q"
    )  # fmt: skip

    assert done.out.startswith("reward   mean")
    assert len(done.out.splitlines()) == 1
    results = json.loads((workspace / "out/results.json").read_text())
    assert [one["row_index"] for one in results["rollouts"]] == [4, 5]
    assert len((workspace / "out/samples.jsonl").read_text().splitlines()) == 2


def test_the_store_is_the_flags_then_the_environments_then_the_configs(
    evaluate: Command, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / CONFIG).write_text(
        (workspace / CONFIG).read_text() + '\n[store]\nurl = "sqlite:///config.db"\n'
    )
    assert evaluate("--limit", 1, "--json").data["store"] == "config.db"
    monkeypatch.setenv("OSMOSIS_STORE_URL", "sqlite:///named.db")
    assert evaluate("--limit", 1, "--json").data["store"] == "named.db"
    flags = ["--store", "sqlite:///.osmosis/flag.db"]
    assert evaluate("--limit", 1, "--json", *flags).data["store"] == ".osmosis/flag.db"


def test_a_row_that_fails_is_named_and_kept_with_its_traceback(
    evaluate: Command, command: Command, workspace: Path
) -> None:
    main = workspace / "rollouts/multiply/main.py"
    replace(
        main,
        "        agent = OsmosisAgent(",
        '        if "38" in str(ctx.prompt):\n            raise RuntimeError("no \\x1b38")\n'
        "        agent = OsmosisAgent(",
    )

    done = evaluate(*FEW)

    assert done.code == 0
    (line,) = done.err.splitlines()
    assert line.startswith("failed   row 1 ")
    assert line.endswith("no ␛38")
    (failed,) = command("rollouts", "list", "--status", "failure", "--json").data["rollouts"]
    assert "RuntimeError" in command("rollouts", "show", failed["rollout_id"]).out


def test_when_every_row_fails_the_exit_code_is_1(evaluate: Command, workspace: Path) -> None:
    main = workspace / "rollouts/multiply/main.py"
    replace(
        main, "        agent = OsmosisAgent(", "        raise RuntimeError\n        OsmosisAgent("
    )

    first, again = evaluate(*FEW), evaluate(*FEW)

    assert first.code == 1
    assert "--retry-failed" not in first.err
    assert evaluate(*FEW, "--json").data["failed_count"] == 3
    assert "what failed before is not run again; --retry-failed does" in again.err


def test_a_workflow_that_changed_is_not_mixed(evaluate: Command, workspace: Path) -> None:
    evaluate(*FEW)
    replace(workspace / "rollouts/multiply/main.py", "temperature=1.0", "temperature=0.5")
    for name in [name for name in sys.modules if name.startswith("rollouts.")]:
        del sys.modules[name]

    done = evaluate(*FEW)

    assert done.code == 1
    assert "workflow changed" in done.err
    assert "--fresh" in done.err


@pytest.mark.parametrize(
    ("file", "old", "new", "code", "message"),
    [
        (CONFIG, "[runs]", "[runs]\nbatchsize = 2", "config_error", "unknown key"),
        (CONFIG, "[runs]", "[rums]", "config_error", "unknown table"),
        (CONFIG, "policies/multiply", "policies/gone", "config_error", "no file policies/gone"),
        (CONFIG, 'entrypoint = "main.py"', 'entrypoint = "x.py"', "config_error", "no file x.py"),
        ("data/multiply.jsonl", '{"user_prompt": "What is 7 ', "{oops ", "dataset_error", "row 1"),
        (
            "rollouts/multiply/main.py",
            "class MultiplyGrader",
            "class Second(MultiplyWorkflow):\n    pass\n\n\nclass MultiplyGrader",
            "entrypoint_error",
            "Second",
        ),
    ],
    ids=["key", "table", "script", "entry point", "row", "two workflows"],
)  # fmt: skip
def test_what_is_wrong_is_named_before_anything_is_stored(
    evaluate: Command, workspace: Path, file: str, old: str, new: str, code: str, message: str
) -> None:
    replace(workspace / file, old, new)

    done = evaluate()
    envelope = evaluate("--json")

    assert done.code == envelope.code == 1
    assert done.err.startswith("error: ")
    assert message in done.err
    assert "Traceback" not in done.err
    assert envelope.error["code"] == code
    assert message in envelope.error["message"] + envelope.error["details"].get("hint", "")


def test_debug_in_the_config_shows_the_traceback(evaluate: Command, workspace: Path) -> None:
    with (workspace / CONFIG).open("a") as file:
        file.write("\n[output]\ndebug = true\n")
    replace(workspace / "rollouts/multiply/main.py", "import", "imp0rt")

    done = evaluate(*FEW)

    assert done.code == 1
    assert done.err.startswith("Traceback")
    assert "\nerror: rollouts/multiply/main.py" in done.err


def test_a_config_that_is_not_there_names_those_that_are(evaluate: Command) -> None:
    done = evaluate(config="configs/eval/other.toml")

    assert done.code == 1
    assert "configs/eval/multiply.toml" in done.err


@pytest.mark.parametrize(
    "flags",
    [
        ["--limit", "0"],
        ["--offset", "-1"],
        ["--nope"],
        ["--offset", "9" * 30],
        ["--limit", "9" * 30],
    ],
    ids=str,
)
def test_wrong_usage_exits_with_2(evaluate: Command, flags: list[str]) -> None:
    assert evaluate(*flags).code == 2


def test_a_wrong_store_url_is_refused_before_anything_runs(evaluate: Command) -> None:
    done = evaluate("--store", "rollouts.db", "--json")

    assert (done.code, done.error["code"]) == (1, "invalid_store_url")
