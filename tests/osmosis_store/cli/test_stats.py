"""`osmosis-store stats` on the gym rollouts."""

from __future__ import annotations

import csv
import io

import pytest

from .conftest import Command

pytestmark = pytest.mark.usefixtures("store_file")


def test_figures_are_shown_by_group(command: Command) -> None:
    data = command("stats", "--by", "workflow", "--json").data
    out = command("stats", "--by", "workflow").out

    assert sum(one["rollout_count"] for one in data["groups"]) > 10
    assert all(one["key"] in out for one in data["groups"])
    assert out.splitlines()[0].split()[:3] == ["workflow", "rollouts", "samples"]


def test_csv_has_a_row_for_each_grader_of_a_group(command: Command) -> None:
    groups = command("stats", "--by", "grader", "--json").data["groups"]
    rows = list(csv.DictReader(io.StringIO(command("stats", "--by", "grader", "--csv").out)))

    assert [row["grader"] for row in rows] == [one["key"] for one in groups]
    assert [float(row["mean_reward"] or "nan") for row in rows if row["graded_count"] != "0"] == [
        grader["mean_reward"]
        for one in groups
        for grader in one["graders"]
        if grader["graded_count"]
    ]


def test_nothing_selected_is_said(command: Command) -> None:
    assert command("stats", "--status", "crashed").out == "no rollouts\n"


def test_an_unknown_grouping_is_an_error(command: Command) -> None:
    done = command("stats", "--by", "colour", "--json")

    assert (done.code, done.error["code"]) == (2, "invalid_selection")
