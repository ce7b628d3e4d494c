from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from .conftest import Command, Done
from .shapes import COUNT, ID, NUMBER, TEXT, list_of, or_null, shape

pytestmark = pytest.mark.usefixtures("store_file")

GRADERS = '''
from osmosis_ai.rollout import Grader, GraderConfig


class EndsWithLabel(Grader):
    """The label stands in the last answer."""

    async def grade(self, ctx):
        print("a grader may print")
        for sample_id, sample in ctx.samples.items():
            ctx.set_sample_reward(sample_id, float(ctx.label in str(sample.messages[-1])))


class Strict(GraderConfig):
    name: str = "strict"
    least: float = 0.0


class Configured(Grader):
    """Gives what its config says."""

    async def grade(self, ctx):
        for sample_id in ctx.samples:
            ctx.set_sample_reward(sample_id, self.config.least)


strict = Strict()


class Broken(Grader):
    """Fails for some."""

    async def grade(self, ctx):
        for sample_id in ctx.samples:
            if ctx.label is None:
                raise RuntimeError("no \\x1b[31mlabel")
            ctx.set_sample_reward(sample_id, 1.0)
'''


def only_pass(done: Done) -> dict[str, Any]:
    [one] = done.data["passes"]
    found: dict[str, Any] = one
    return found


WITH_LABEL = ["--workflow", "gym:math_with_judge"]


@pytest.fixture(autouse=True)
def graders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = folder / "graders.py"
    path.write_text(GRADERS)
    return path


def test_regrade_gives_new_grades_and_keeps_the_old_ones(command: Command) -> None:
    before = command("grades", "list", *WITH_LABEL, "--json").data["grades"]

    report = command("regrade", "--grader", "graders.py:EndsWithLabel", *WITH_LABEL, "--json").data

    [one] = report["passes"]
    assert (one["graded_count"], one["failed_count"], report["policy_calls"]) == (2, 0, 0)
    after = command("grades", "list", *WITH_LABEL, "--json").data
    assert [one for one in after["grades"] if one["kind"] == "imported"] == before
    assert sorted(one["grade_no"] for one in after["grades"]) == [0, 0, 1, 1]
    assert {run["kind"] for run in after["grading_runs"]} == {"imported", "regrade"}


def test_regrade_tells_what_it_did(command: Command) -> None:
    done = command("regrade", "--grader", "graders.py:EndsWithLabel", *WITH_LABEL)

    assert done.code == 0
    assert "graded   2 of 2 samples" in done.out
    assert "policy calls: 0   connections: 0 allowed, 0 refused" in done.out
    assert "graders.py:EndsWithLabel" in done.out
    assert done.err == ""


def test_what_was_graded_is_skipped_and_counted_unless_forced(command: Command) -> None:
    flags = ["regrade", "--grader", "graders.py:EndsWithLabel", *WITH_LABEL]
    command(*flags)

    assert "skipped  2 samples" in command(*flags).out
    assert only_pass(command(*flags, "--json"))["skipped"] == {"graded": 2}
    assert only_pass(command(*flags, "--force", "--json"))["graded_count"] == 2


def test_what_a_grader_prints_does_not_spoil_the_json(command: Command) -> None:
    done = command("regrade", "--grader", "graders.py:EndsWithLabel", *WITH_LABEL, "--json")

    assert only_pass(done)["graded_count"] == 2
    assert done.err.count("a grader may print") == 2


def test_config_values_reach_the_grader(command: Command) -> None:
    flags = ["regrade", "--grader", "graders.py:Configured", *WITH_LABEL, "--json"]

    assert only_pass(command(*flags, "--config", "least=0.25"))["mean_after"] == 0.25
    assert only_pass(command(*flags))["mean_after"] == 0.0


@pytest.mark.parametrize("pair", ["least", "=1"])
def test_a_config_that_is_no_pair_is_a_usage_error(command: Command, pair: str) -> None:
    done = command("regrade", "--grader", "graders.py:Configured", "--config", pair)

    assert done.code == 2
    assert f"{pair!r} is not KEY=VALUE" in done.err


def test_samples_that_fail_are_named_and_the_exit_code_is_1(command: Command) -> None:
    done = command("regrade", "--grader", "graders.py:Broken")
    report = command("regrade", "--grader", "graders.py:Broken", "--force", "--json")

    assert (done.code, report.code) == (1, 1)
    assert "graded   3 of 13 samples" in done.out
    assert "main: no ␛[31mlabel" in done.err
    one = only_pass(report)
    assert one["failed_count"] == len(one["failures"]) == 10
    assert one["failures"][0].keys() == {"rollout_id", "sample_id", "error"}


def test_author_and_reason_are_kept_with_the_grading_run(command: Command) -> None:
    command(
        "regrade", "--grader", "graders.py:EndsWithLabel", *WITH_LABEL,
        "--author", "Ada", "--reason", "a second look",
    )  # fmt: skip

    runs = command("grades", "list", *WITH_LABEL, "--json").data["grading_runs"]
    (run,) = [run for run in runs if run["kind"] == "regrade"]
    assert (run["author"], run["reason"]) == ("Ada", "a second look")
    assert run["selection"] == {"workflow": "gym:math_with_judge"}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("graders.py:Missing", "graders.py has no class Missing"),
        ("nowhere.py:Missing", "nowhere.py"),
        ("no_such_module:Missing", "no_such_module cannot be imported"),
        ("graders.py", "'graders.py' names no grader"),
    ],
)
def test_a_grader_that_is_not_there_is_named(
    command: Command, reference: str, message: str
) -> None:
    done = command("regrade", "--grader", reference)
    error = command("regrade", "--grader", reference, "--json").error

    assert done.code == 1
    assert message in done.err
    assert error["code"] == "grader_not_loadable"
    assert message in error["message"]


def test_the_classes_of_the_file_are_named_where_the_class_is_missing(command: Command) -> None:
    err = command("regrade", "--grader", "graders.py:Missing").err

    assert err.splitlines()[1].startswith("  it defines EndsWithLabel, Configured, Broken")


def test_grades_list_shows_each_grade_and_a_line_per_grading_run(command: Command) -> None:
    command("regrade", "--grader", "graders.py:EndsWithLabel", *WITH_LABEL)

    out = command("grades", "list", *WITH_LABEL).out

    grades, runs = out.split("\n\n")
    assert len(grades.splitlines()) == 1 + 4
    assert [line.split()[1] for line in runs.splitlines()[1:3]] == ["imported", "regrade"]
    assert out.endswith("4 grades of 2 rollouts\n")


def test_grades_of_one_grading_run_only(command: Command) -> None:
    run_id = command("grades", "list", *WITH_LABEL, "--json").data["grading_runs"][0][
        "grading_run_id"
    ]
    command("regrade", "--grader", "graders.py:EndsWithLabel", *WITH_LABEL)

    grades = command("grades", "list", "--grading-run", run_id, "--json").data["grades"]

    assert {grade["grading_run_id"] for grade in grades} == {run_id}
    assert len(grades) == 2


def test_the_summary_leaves_the_single_grades_out(command: Command) -> None:
    out = command("grades", "list", "--summary", *WITH_LABEL).out

    assert "gym-math_with_judge-l" not in out
    assert "imported" in out
    assert command("grades", "list", "--summary", *WITH_LABEL, "--json").data["grades"] == []


def test_grades_are_paged_by_rollout(command: Command) -> None:
    page = command("grades", "list", "--limit", 5, "--json").data
    rest = command("grades", "list", "--after", page["last_id"], "--json").data

    assert (page["has_more"], rest["has_more"]) == (True, False)
    assert len(page["grades"]) + len(rest["grades"]) == 12


def test_an_unknown_grading_run_is_named(command: Command) -> None:
    done = command("grades", "list", "--grading-run", "g_none")

    assert done.code == 4
    first, hint = done.err.splitlines()
    assert first == "error: no grading run 'g_none'"
    assert hint.startswith("  the newest are g_")


def test_the_json_of_a_regrade_has_its_shape(command: Command) -> None:
    flags = ["regrade", "--grader", "graders.py:Broken", "--grader", "graders.py:EndsWithLabel"]

    for done in (command(*flags, "--dry-run", "--json"), command(*flags, "--json")):
        jsonschema.validate(done.data, REPORT)


SAMPLES = shape(rollout_id=ID, sample_id=ID, error=TEXT)
PASS = shape(
    grading_run_id=or_null(ID),
    grader=TEXT,
    code_digest=or_null(TEXT),
    graded_count=COUNT,
    failed_count=COUNT,
    skipped={"type": "object", "additionalProperties": COUNT},
    removed_count=COUNT,
    mean_before=or_null(NUMBER),
    mean_after=or_null(NUMBER),
    passed_to_failed=COUNT,
    failed_to_passed=COUNT,
    policy_calls_refused=COUNT,
    judge=or_null(shape(input_tokens=COUNT, output_tokens=COUNT)),
    failures=list_of(SAMPLES),
)
REPORT = shape(
    passes=list_of(PASS),
    rollout_count=COUNT,
    policy_calls={"const": 0},
    connections_allowed=COUNT,
    connections_refused=COUNT,
    interrupted={"type": "boolean"},
    dry_run={"type": "boolean"},
    duration_s=NUMBER,
    plan=list_of(shape(grader=TEXT, rollout_id=ID, sample_id=ID, skipped=or_null(TEXT))),
)


def test_a_dry_run_tells_what_would_be_graded_and_stores_nothing(command: Command) -> None:
    command("regrade", "--grader", "graders.py:EndsWithLabel", *WITH_LABEL, "--limit", 1)
    before = command("grades", "list", "--json").data["grades"]

    done = command("regrade", "--grader", "graders.py:EndsWithLabel", *WITH_LABEL, "--dry-run")

    assert "to grade 1 of 2 samples" in done.out
    assert len([line for line in done.out.splitlines() if line.startswith("  grade ")]) == 1
    assert "graded already by this grader" in done.out
    assert command("grades", "list", "--json").data["grades"] == before


@pytest.mark.parametrize("name", ["config.toml", "config.json"])
def test_a_config_file_holds_the_fields_and_a_flag_goes_over_it(
    command: Command, folder: Path, name: str
) -> None:
    (folder / name).write_text('{"least": 0.25}' if name.endswith("json") else "least = 0.25")
    flags = ["regrade", "--grader", "graders.py:Configured", *WITH_LABEL, "--json"]

    assert only_pass(command(*flags, "--config-file", name))["mean_after"] == 0.25
    both = command(*flags, "--config-file", name, "--config", "least=0.75")
    assert only_pass(both)["mean_after"] == 0.75


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--config-file", "none.toml"], 2, "none.toml"),
        (["--config-file", "graders.py"], 2, "graders.py"),
        (["--config", "no_such_field=1", "--config", "least=much"], 1, "does not fit Strict"),
        (["--shard", "3/2"], 2, "'3/2' is no shard"),
        (["--reward", "high"], 2, "'high' is no reward expression"),
        (["--resume", "g_none"], 4, "no grading run 'g_none'"),
        (["--failed-only"], 1, "has failed grades"),
        (["--label", "nothing has this"], 4, "no rollout fits"),
        (["--workers", "0"], 2, "--workers"),
        (["--timeout", "-1"], 2, "no time to grade in"),
        (["--timeout", "nan"], 2, "no time to grade in"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(
    command: Command, flags: list[str], code: int, message: str
) -> None:
    before = command("grades", "list", "--json").data["grading_runs"]

    done = command("regrade", "--grader", "graders.py:Configured", *flags)

    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert "Traceback" not in done.err
    assert command("grades", "list", "--json").data["grading_runs"] == before


SLOW = """
import asyncio
from osmosis_ai.rollout import Grader


class Slow(Grader):
    async def grade(self, ctx):
        print("begun", flush=True)
        await asyncio.sleep(0.4)
        ctx.set_sample_reward("main", 1.0)
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_regrade_that_is_ended_in_the_middle_goes_on(
    command: Command, folder: Path, end: signal.Signals
) -> None:
    (folder / "slow.py").write_text(SLOW)
    flags = ["regrade", "--grader", "slow.py:Slow"]
    with subprocess.Popen(
        [Path(sys.executable).with_name("osmosis-store"), *flags, "--concurrency", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        begun = [running.stdout.readline() for _ in range(4)]
        running.send_signal(end)
        _, told = running.communicate(timeout=60)

    assert begun == ["begun\n"] * 4
    if end != signal.SIGKILL:
        assert running.returncode == 130
        assert "goes on" in told
        [resume] = re.findall(r"--resume (g_\w+)", told)
        flags += ["--resume", resume]
    kept = only_pass(command(*flags, "--dry-run", "--json"))["skipped"]["graded"]
    rest = only_pass(command(*flags, "--json"))
    assert kept in (2, 3, 4)  # the newest may have been on its way to the disk
    assert rest["graded_count"] == 13 - kept
    grades = command("grades", "list", "--json").data["grades"]
    assert len([one for one in grades if one["grader"] == "slow.py:Slow"]) == 13


def test_what_graders_print_in_processes_is_no_part_of_the_json(command: Command) -> None:
    done = subprocess.run(
        [
            Path(sys.executable).with_name("osmosis-store"),
            *("regrade", "--grader", "graders.py:EndsWithLabel", *WITH_LABEL),
            *("--workers", "2", "--json"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stderr.count("a grader may print") == 2
    assert only_pass(Done(0, done.stdout, done.stderr))["graded_count"] == 2


def test_a_summarys_means_are_over_all_grades_whatever_the_page(command: Command) -> None:
    flags = ["grades", "list", "--summary", "--json"]

    whole, paged = command(*flags).data, command(*flags, "--limit", 1).data

    assert paged["grading_runs"] == whole["grading_runs"]
    assert not paged["has_more"]
