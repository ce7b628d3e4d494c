"""`osmosis-store grades diff`: what people, machines and CI jobs get of it."""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from osmosis_store.database import Database
from osmosis_store.engine import parse_url
from osmosis_store.records import NewGrade
from tests.osmosis_store.ledger import add_grades, add_rollout

from .conftest import Command
from .shapes import COUNT, ID, NUMBER, TEXT, list_of, or_null, shape
from .test_grades import GRADING_RUN

FLAG = {"type": "boolean"}
COMPARED = {
    "rollout_id": ID,
    "sample_id": ID,
    "row_index": or_null(COUNT),
    "attempt": COUNT,
    "presence": {"const": "compared"},
    "reward_a": NUMBER,
    "reward_b": NUMBER,
    "shift": NUMBER,
    "flip": {"enum": ["pass→fail", "fail→pass", None]},
    "mixed": FLAG,
    "error_a": {"type": "null"},
    "error_b": {"type": "null"},
    "show": {"type": "string", "pattern": "^osmosis-store rollouts show "},
}
MIXED = shape(
    rollout_id=ID,
    sample_id=ID,
    labels_differ=FLAG,
    items_differ=FLAG,
    label_a=or_null(TEXT),
    label_b=or_null(TEXT),
)
COUNTS = (
    *("compared_count", "only_in_a", "only_in_b", "errors_in_a", "errors_in_b", "removed_in_a"),
    *("removed_in_b", "cluster_count", "passed_a", "passed_b", "passed_to_failed"),
    *("failed_to_passed", "improved_count", "worsened_count"),
)
FIGURES = (
    *("mean_a", "mean_b", "mean_shift", "standard_error", "interval_low", "interval_high"),
    *("mcnemar_p", "tolerance"),
)
DIFF = shape(
    a=GRADING_RUN,
    b=GRADING_RUN,
    pass_threshold=NUMBER,
    clustered=FLAG,
    movers=list_of(shape(**COMPARED)),
    mixed=list_of(MIXED),
    regressed=or_null(FLAG),
    **dict.fromkeys(COUNTS, COUNT),
    **dict.fromkeys(FIGURES, or_null(NUMBER)),
)


@pytest.fixture
def opened(folder: Path, migrated_file: Path) -> Iterator[Database]:
    """Return the working directory's own store, which two graders have graded."""
    path = folder / ".osmosis" / "rollouts.db"
    path.parent.mkdir()
    shutil.copy(migrated_file, path)
    database = Database.open(parse_url(f"sqlite:///{path}"), create=False)
    for number in range(8):
        add_rollout(database, f"r{number}", "main", workflow="w", row_index=number // 2)
    give(database, "g_a", dict.fromkeys(range(7), 1.0))
    give(database, "g_b", {0: 0.0, 1: 0.5, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0, 6: "broken", 7: 1.0})
    yield database
    database.close()


def give(database: Database, run: str, rewards: Mapping[int, float | str], **values: Any) -> None:
    for number, given in rewards.items():
        reward, error = (None, given) if isinstance(given, str) else (given, None)
        one = NewGrade(sample_id="main", reward=reward, error=error, **values)
        grader = {"g_a": "graders:Lenient", "g_b": "graders:Strict"}[run]
        add_grades(database, run, f"r{number}", one, grader=grader)


def test_people_are_told_figures_movers_and_doubts(command: Command, opened: Database) -> None:
    done = command("grades", "diff", "g_a", "g_b", "--utc")

    assert (done.code, done.err) == (0, "")
    figures, movers, doubts = (part.splitlines() for part in done.out.split("\n\n"))
    assert figures[0].startswith("A        g_a   regrade · graders:Lenient digest o   ")
    assert figures[1].startswith("B        g_b   regrade · graders:Strict digest o   ")
    # differences -1, -1/2 of one row, 0 of two others: SE² = (7/8)/5/6 + (3/2 - 7/8)/36 = 0.2157²
    assert figures[2:] == [
        "samples  6 compared",
        "reward   mean 1.0 → 0.75   shift -0.25",
        "         95 % interval -0.673 to 0.173, paired, clustered by dataset row, 3 of them",
        "pass     6 → 4 of 6, with 1.0 or more",
        "flips    2 pass→fail, 0 fail→pass   p = 0.5 (McNemar, exact)",
        "moved    0 up, 2 down",
    ]
    assert [line.split() for line in movers] == [
        ["rollout", "sample", "row", "A", "B", "shift", "flip", "show"],
        ["r0", "main", "0", "1.0", "0.0", "-1.0", "pass→fail", *show("r0")],
        ["r1", "main", "0", "1.0", "0.5", "-0.5", "pass→fail", *show("r1")],
    ]
    assert doubts == [
        "not compared: 1 only in B, 1 failed in B",
        "the interval is rough: 3 dataset rows only",
        "McNemar's test takes attempts of a row as independent, which can make p too small",
    ]


def show(rollout_id: str) -> list[str]:
    return ["osmosis-store", "rollouts", "show", rollout_id, "--sample", "main"]


def test_on_a_terminal_the_way_to_show_a_mover_is_never_cut(
    command: Command, opened: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((60, 20)))

    out = command("grades", "diff", "g_a", "g_b").out

    assert "show one: osmosis-store rollouts show r0 --sample main\n" in out


def test_a_mover_can_be_shown_with_the_command_that_is_named(
    command: Command, opened: Database
) -> None:
    mover = command("grades", "diff", "g_a", "g_b", "--json").data["movers"][0]

    script, *arguments = mover["show"].split()
    assert script == "osmosis-store"
    assert command(*arguments).out.startswith("r0 · success")


def test_the_diff_as_json_follows_its_schema(command: Command, opened: Database) -> None:
    data = command("grades", "diff", "g_a", "g_b", "--json").data
    jsonschema.validate(data, DIFF)
    assert (data["a"]["grader"], data["mean_shift"], data["regressed"]) == (
        "graders:Lenient",
        -0.25,
        None,
    )

    nothing = command("grades", "diff", "g_a", "g_b", "--status", "failure", "--json").data
    jsonschema.validate(nothing, DIFF)
    assert (nothing["compared_count"], nothing["mean_shift"]) == (0, None)

    give(opened, "g_b", {3: 1.0}, label="43")
    mixed = command("grades", "diff", "g_a", "g_b", "--allow-mixed", "--json").data
    jsonschema.validate(mixed, DIFF)
    assert [one["rollout_id"] for one in mixed["mixed"]] == ["r3"]


def test_csv_has_a_line_for_every_sample(command: Command, opened: Database) -> None:
    done = command("grades", "diff", "g_a", "g_b", "--csv", "--limit", 1)

    lines = list(csv.DictReader(io.StringIO(done.out)))
    assert [(one["rollout_id"], one["presence"], one["shift"]) for one in lines] == [
        ("r0", "compared", "-1.0"),
        ("r1", "compared", "-0.5"),
        *((f"r{number}", "compared", "0.0") for number in range(2, 6)),
        ("r6", "error", ""),
        ("r7", "only in B", ""),
    ]
    assert (lines[0]["flip"], lines[0]["row_index"]) == ("pass→fail", "0")
    assert (lines[6]["reward_a"], lines[6]["reward_b"], lines[6]["error_b"]) == (
        "1.0",
        "",
        "broken",
    )
    assert lines[0]["show"].split() == show("r0")


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ([], 0),
        (["--fail-on-regression"], 1),
        (["--fail-on-regression", "--tolerance", "0.2"], 1),
        (["--fail-on-regression", "--tolerance", "0.25"], 0),
        (["--fail-on-regression", "--rollout", "r3"], 0),
        (["--fail-on-regression", "--status", "failure"], 1),  # nothing was compared
    ],
)
def test_a_regression_sets_the_exit_code(
    command: Command, opened: Database, flags: list[str], code: int
) -> None:
    assert command("grades", "diff", "g_a", "g_b", *flags).code == code
    assert command("grades", "diff", "g_a", "g_b", *flags, "--csv").code == code
    done = command("grades", "diff", "g_a", "g_b", *flags, "--json")
    assert (done.code, done.data["regressed"]) == (code, bool(code) if flags else None)


def test_a_regression_is_said(command: Command, opened: Database) -> None:
    flags = ["--fail-on-regression", "--tolerance", 0.1]

    assert command("grades", "diff", "g_a", "g_b", *flags).err == (
        "regression: the mean shift -0.25 is below -0.1\n"
    )
    assert command("grades", "diff", "g_a", "g_b", *flags, "--status", "failure").err == (
        "regression: no sample was compared, so a regression cannot be ruled out\n"
    )


def test_other_labels_are_refused_with_a_code_of_their_own(
    command: Command, opened: Database
) -> None:
    give(opened, "g_b", {3: 1.0, 4: 1.0}, label="43")

    done = command("grades", "diff", "g_a", "g_b", "--fail-on-regression")
    assert (done.code, done.out) == (3, "")
    assert done.err.splitlines() == [
        "error: cannot compare g_a with g_b: of 6 samples 2 graded with another label",
        "  r3 main: label None and '43'",
        "  r4 main: label None and '43'",
        "  regrade them with both graders, or compare them all the same: --allow-mixed",
    ]
    for formats in (["--json"], ["--json", "--fail-on-regression"]):
        done = command("grades", "diff", "g_a", "g_b", *formats)
        assert (done.code, done.error["code"]) == (3, "mixed_grades")
        jsonschema.validate(done.error["details"]["samples"], list_of(MIXED))
        assert [one["rollout_id"] for one in done.error["details"]["samples"]] == ["r3", "r4"]
    assert command("grades", "diff", "g_a", "g_b", "--csv").out == ""

    allowed = command("grades", "diff", "g_a", "g_b", "--allow-mixed")
    assert allowed.code == 0
    assert "mixed: 2 samples compared over other labels or items\n" in allowed.out
    assert command("grades", "diff", "g_a", "g_b", "--rollout", "r0").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["g_a", "g_a"], 2, "invalid_comparison"),
        (["g_x", "g_b"], 4, "grading_run_not_found"),
        (["g_x", "g_x"], 4, "grading_run_not_found"),
        (["g_a"], 2, "usage_error"),
        (["g_a", "g_b", "--tolerance", "0.1"], 2, "usage_error"),
        (["g_a", "g_b", "--fail-on-regression", "--tolerance", "-0.1"], 2, "usage_error"),
        (["g_a", "g_b", "--fail-on-regression", "--tolerance", "nan"], 2, "usage_error"),
        (["g_a", "g_b", "--pass-threshold", "nan"], 2, "usage_error"),
        (["g_a", "g_b", "--limit", "-1"], 2, "usage_error"),
        (["g_a", "g_b", "--csv"], 2, "usage_error"),  # and JSON
        (["g_a", "g_b", "--reward", "good"], 2, "invalid_selection"),
    ],
)
def test_bad_input_is_refused(
    command: Command, opened: Database, arguments: list[str], code: int, kind: str
) -> None:
    done = command("grades", "diff", *arguments, "--json")

    assert (done.code, done.error["code"]) == (code, kind)


def test_a_limit_of_movers_says_that_there_are_more(command: Command, opened: Database) -> None:
    assert (
        "1 mover more; --limit shows more"
        in command("grades", "diff", "g_a", "g_b", "--limit", 1).out
    )
    assert "2 movers more" in command("grades", "diff", "g_a", "g_b", "--limit", 0).out
