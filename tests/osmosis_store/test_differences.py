"""Two grading runs compared on the same samples, on both databases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest
from sqlalchemy.engine import Connection

from osmosis_store import Selection, Store
from osmosis_store.database import Database
from osmosis_store.differences import GradesDiff, iterate_compared
from osmosis_store.errors import GradingRunNotFound, InvalidComparison, MixedGrades
from osmosis_store.records import NewGrade, NewGradingRun, SampleKey
from osmosis_store.writes.grades import append_grades, ensure_grading_run
from osmosis_store.writes.rollouts import insert_eval_run, insert_rollout
from osmosis_store.writes.samples import ensure_sample
from tests.osmosis_store.ledger import add_grades, add_rollout

LENIENT, STRICT = "graders:Lenient", "graders:Strict"


def grade(
    database: Database, run: str, rewards: Mapping[str, float | str | None], **values: Any
) -> None:
    """Store a grade of each rollout's sample `main`: a reward, an error's text, None: removed."""
    for rollout_id, given in rewards.items():
        reward, error = (None, given) if isinstance(given, str) else (given, None)
        one = NewGrade(
            sample_id="main", reward=reward, error=error, removed=given is None, **values
        )
        add_grades(database, run, rollout_id, one, grader=LENIENT if run == "g_a" else STRICT)


def add_eval_run(database: Database, eval_run_id: str, *, dataset_sha256: str) -> None:
    texts = ("config_path", "rollout_name", "dataset_path", "workflow", "workflow_digest")
    values = {
        **dict.fromkeys(texts, "x"),
        **dict.fromkeys(("settings", "model", "versions"), "{}"),
        "eval_run_id": eval_run_id,
        "dataset_sha256": dataset_sha256,
    }
    database.write_now(lambda tx: insert_eval_run(tx, values, now=database.clock()))


@pytest.fixture
def graded(database: Database) -> Database:
    """Return a store in which two graders have graded six rollouts, all but two of them both."""
    for name in "abcdef":
        add_rollout(database, f"r{name}", "main")
    grade(database, "g_a", {"ra": 1.0, "rb": 1.0, "rc": 0.0, "rd": 0.5, "re": 1.0})
    grade(database, "g_b", {"ra": 1.0, "rb": 0.0, "rc": 1.0, "rd": 0.25, "rf": 1.0})
    return database


async def test_the_figures_are_over_the_samples_that_both_have(graded: Database) -> None:
    diff = await Store(graded).diff("g_a", "g_b")

    assert (diff.compared_count, diff.only_in_a, diff.only_in_b) == (4, 1, 1)
    assert (diff.mean_a, diff.mean_b) == (2.5 / 4, 2.25 / 4)
    assert diff.mean_shift == pytest.approx(-0.0625)
    assert (diff.passed_a, diff.passed_b) == (2, 2)
    assert (diff.passed_to_failed, diff.failed_to_passed, diff.mcnemar_p) == (1, 1, 1.0)
    assert (diff.improved_count, diff.worsened_count) == (1, 2)
    # differences 0, -1, 1, -1/4: mean -1/16, s² = (2 + 1/16 - 4/256) / 3
    assert diff.standard_error == pytest.approx(math.sqrt((2 + 1 / 16 - 4 / 256) / 3 / 4))
    assert diff.interval_low == pytest.approx(-0.0625 - 1.959964 * diff.standard_error)
    assert diff.interval_high == pytest.approx(-0.0625 + 1.959964 * diff.standard_error)
    assert (diff.clustered, diff.cluster_count) == (False, 4)
    assert (diff.a.grader, diff.b.grader) == (LENIENT, STRICT)


async def test_the_biggest_movers_come_first_and_are_as_many_as_wanted(graded: Database) -> None:
    movers = (await Store(graded).diff("g_a", "g_b")).movers

    assert [
        (one.rollout_id, one.reward_a, one.reward_b, one.shift, one.flip) for one in movers
    ] == [
        ("rb", 1.0, 0.0, -1.0, "pass→fail"),
        ("rc", 0.0, 1.0, 1.0, "fail→pass"),
        ("rd", 0.5, 0.25, -0.25, None),
    ]
    assert (await Store(graded).diff("g_a", "g_b", mover_limit=2)).movers == movers[:2]
    assert (await Store(graded).diff("g_a", "g_b", mover_limit=0)).movers == []


async def test_the_pass_threshold_decides_what_flips(graded: Database) -> None:
    diff = await Store(graded).diff("g_a", "g_b", pass_threshold=0.5)

    assert (diff.passed_a, diff.passed_b) == (3, 2)
    assert (diff.passed_to_failed, diff.failed_to_passed) == (2, 1)


async def test_a_sample_graded_again_counts_once_with_its_newest_grade(graded: Database) -> None:
    grade(graded, "g_b", {"rb": "broken"})
    grade(graded, "g_b", {"rb": 1.0})

    diff = await Store(graded).diff("g_a", "g_b")

    assert (diff.compared_count, diff.passed_to_failed, diff.errors_in_b) == (4, 0, 0)
    assert diff.mean_shift == pytest.approx(0.75 / 4)


async def test_errors_and_removed_samples_are_counted_and_not_compared(graded: Database) -> None:
    grade(graded, "g_a", {"ra": "broken"})
    grade(graded, "g_b", {"rb": None, "rc": "broken"})

    diff = await Store(graded).diff("g_a", "g_b")

    assert (diff.errors_in_a, diff.errors_in_b) == (1, 1)
    assert (diff.removed_in_a, diff.removed_in_b) == (0, 1)
    assert (diff.compared_count, diff.mean_shift) == (1, -0.25)
    assert (diff.standard_error, diff.interval_low, diff.interval_high) == (None, None, None)


async def test_attempts_of_a_dataset_row_are_one_cluster(database: Database) -> None:
    add_eval_run(database, "e1", dataset_sha256="of the dataset")
    add_eval_run(database, "e2", dataset_sha256="of the dataset")
    for row in range(2):
        for attempt in range(2):
            for run in ("e1", "e2"):
                add_rollout(
                    database,
                    f"{run}-{row}-{attempt}",
                    "main",
                    eval_run_id=run,
                    row_index=row,
                    attempt=attempt,
                )
    ids = [f"{run}-{row}-{attempt}" for run in ("e1", "e2") for row in "01" for attempt in "01"]
    grade(database, "g_a", dict.fromkeys(ids, 0.0))
    grade(database, "g_b", {name: float(name.split("-")[1]) for name in ids})

    diff = await Store(database).diff("g_a", "g_b")

    assert (diff.clustered, diff.cluster_count, diff.compared_count) == (True, 2, 8)
    # deviations ±1/2 of eight: s²/n = (2/7)/8; each cluster's 4·3 products of 1/4, over n² = 64
    assert diff.standard_error == pytest.approx(math.sqrt(2 / 56 + 6 / 64))


async def test_samples_of_a_rollout_without_a_row_are_one_cluster(database: Database) -> None:
    add_rollout(database, "r", "main", "other")
    add_rollout(database, "s", "main")
    for run in ("g_a", "g_b"):
        for rollout_id, sample_id in (("r", "main"), ("r", "other"), ("s", "main")):
            add_grades(database, run, rollout_id, NewGrade(sample_id=sample_id, reward=1.0))

    diff = await Store(database).diff("g_a", "g_b")

    assert (diff.clustered, diff.cluster_count, diff.compared_count) == (True, 2, 3)


async def test_rows_of_different_datasets_are_different_clusters(database: Database) -> None:
    for name in ("math", "code"):
        add_rollout(database, name, "main", workflow=name, row_index=0)
    for run in ("g_a", "g_b"):
        grade(database, run, {"math": 1.0, "code": 1.0})

    assert not (await Store(database).diff("g_a", "g_b")).clustered


async def test_grades_of_other_labels_are_not_compared_unless_that_is_allowed(
    graded: Database,
) -> None:
    grade(graded, "g_b", {"rd": 0.25}, label="43")

    with pytest.raises(MixedGrades, match="of 4 samples 1 graded with another label") as caught:
        await Store(graded).diff("g_a", "g_b")
    assert caught.value.samples == [
        {
            "rollout_id": "rd",
            "sample_id": "main",
            "labels_differ": True,
            "items_differ": False,
            "label_a": None,
            "label_b": "43",
        }
    ]
    assert "rd main: label None and '43'" in caught.value.hint

    diff = await Store(graded).diff("g_a", "g_b", allow_mixed=True)
    assert [asdict(one) for one in diff.mixed] == caught.value.samples
    assert diff.compared_count == 4


async def test_grades_of_other_items_are_not_compared_unless_that_is_allowed(
    graded: Database,
) -> None:
    for name in ("ra", "rc"):
        await Store(graded).session(name, "main").add_items([{"role": "user", "content": "more"}])
    grade(graded, "g_b", {"ra": 1.0, "rc": 1.0})

    with pytest.raises(MixedGrades, match="of 4 samples 2 graded with other items") as caught:
        await Store(graded).diff("g_a", "g_b")
    assert [(one["rollout_id"], one["items_differ"]) for one in caught.value.samples] == [
        ("ra", True),
        ("rc", True),
    ]

    diff = await Store(graded).diff("g_a", "g_b", allow_mixed=True)
    assert ([one.mixed for one in diff.movers], diff.compared_count) == ([False, True, False], 4)


async def test_what_is_not_compared_cannot_be_mixed(graded: Database) -> None:
    grade(graded, "g_b", {"rd": "broken"}, label="43")

    assert (await Store(graded).diff("g_a", "g_b")).errors_in_b == 1


async def test_only_selected_samples_are_compared(database: Database) -> None:
    for name in ("ra", "rb", "rc"):
        add_rollout(database, name, "main", "other", metadata=f'{{"split":"{name}"}}', label=name)
        for run in ("g_a", "g_b"):
            for sample_id in ("main", "other"):
                one = NewGrade(sample_id=sample_id, reward=1.0, label=name)
                add_grades(database, run, name, one)
    store = Store(database)

    async def count(**conditions: Any) -> int:
        return (await store.diff("g_a", "g_b", selection=Selection(**conditions))).compared_count

    assert await count() == 6
    assert await count(rollout=("ra", "rb")) == 4
    assert await count(sample="other", label="rc") == 1
    assert await count(meta=(("split", "rb"),)) == 2
    assert await count(status="failure") == 0


async def test_two_grading_runs_without_a_common_sample_compare_nothing(
    database: Database,
) -> None:
    for name in ("ra", "rb"):
        add_rollout(database, name, "main")
    grade(database, "g_a", {"ra": 1.0})
    grade(database, "g_b", {"rb": 1.0})

    diff = await Store(database).diff("g_a", "g_b")

    assert (diff.compared_count, diff.only_in_a, diff.only_in_b) == (0, 1, 1)
    assert (diff.mean_a, diff.mean_shift, diff.mcnemar_p) == (None, None, None)
    assert diff.is_regression()


async def test_every_sample_can_be_had_with_what_became_of_it(graded: Database) -> None:
    grade(graded, "g_b", {"rc": "broken", "rd": None})
    diff = await Store(graded).diff("g_a", "g_b")

    found = await graded.read(lambda tx: list(iterate_compared(tx, diff)))

    assert [(one.rollout_id, one.presence, one.shift) for one in found] == [
        ("ra", "compared", 0.0),
        ("rb", "compared", -1.0),
        ("rc", "error", None),
        ("rd", "removed", None),
        ("re", "only in A", None),
        ("rf", "only in B", None),
    ]
    assert found[2].error_b == "broken"


async def test_more_samples_than_a_slice_are_all_compared(database: Database) -> None:
    ids = [f"r{number:04}" for number in range(1203)]

    def write(tx: Connection) -> None:
        now = database.clock()
        for at, name in enumerate(ids):
            row = {"rollout_id": name, "status": "success", "metadata": f'{{"half":{at % 2}}}'}
            insert_rollout(tx, row, now=now)
            ensure_sample(tx, SampleKey(name, "main"), now=now)
        for run, reward in (("g_a", 0.0), ("g_b", 1.0)):
            new = {name: [NewGrade(sample_id="main", reward=reward)] for name in ids}
            grader = NewGradingRun(kind="regrade", grader=run, code_digest=run)
            ensure_grading_run(tx, run, grader, versions={}, now=now)
            append_grades(tx, run, new, now=now)

    database.write_now(write)

    diff = await Store(database).diff("g_a", "g_b")
    half = await Store(database).diff("g_a", "g_b", selection=Selection(meta=(("half", "0"),)))

    assert (diff.compared_count, diff.failed_to_passed) == (1203, 1203)
    assert [one.rollout_id for one in diff.movers] == ids[:10]
    assert [one.rollout_id for one in half.movers] == ids[:20:2]
    assert half.compared_count == 602


@pytest.mark.parametrize(
    ("shift", "tolerance", "is_regression"),
    [
        (0.0, 0.0, False),
        (-0.01, 0.0, True),
        (-0.01, 0.01, False),
        (-0.3, 0.1 + 0.2, False),
        (-(0.1 + 0.2), 0.3, False),  # below by rounding alone
        (-0.31, 0.3, True),
        (0.5, 0.0, False),
        (None, 1.0, True),
    ],
)
async def test_a_regression_is_a_shift_below_the_tolerance(
    sqlite_database: Database, shift: float | None, tolerance: float, is_regression: bool
) -> None:
    add_rollout(sqlite_database, "r", "main")
    grade(sqlite_database, "g_a", {"r": 0.0})
    grade(sqlite_database, "g_b", {"r": "broken" if shift is None else shift})

    diff = await Store(sqlite_database).diff("g_a", "g_b")

    assert diff.is_regression(tolerance) is is_regression


@pytest.mark.parametrize("tolerance", [-0.1, math.nan, math.inf])
async def test_a_tolerance_is_finite_and_not_negative(graded: Database, tolerance: float) -> None:
    diff: GradesDiff = await Store(graded).diff("g_a", "g_b")

    with pytest.raises(InvalidComparison):
        diff.is_regression(tolerance)


async def test_a_grading_run_is_not_compared_with_itself_or_with_none(graded: Database) -> None:
    with pytest.raises(InvalidComparison, match="'g_a' would be compared with itself"):
        await Store(graded).diff("g_a", "g_a")
    with pytest.raises(GradingRunNotFound, match="no grading run 'g_x'") as caught:
        await Store(graded).diff("g_a", "g_x")
    assert caught.value.newest == ["g_b", "g_a"]
    with pytest.raises(InvalidComparison):
        await Store(graded).diff("g_a", "g_b", pass_threshold=math.nan)
