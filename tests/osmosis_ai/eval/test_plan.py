from typing import Any

import pytest

from osmosis_ai.eval.dataset import DatasetRow
from osmosis_ai.eval.plan import Plan, make_plan
from osmosis_ai.rollout.recording import StoredGrade, StoredRollout

from .stored import graded, stored


def rows(*indexes: int) -> list[DatasetRow]:
    return [DatasetRow(index=i, prompt=[], label="2", metadata=None) for i in indexes]


def plan(*rollouts: StoredRollout, of: list[DatasetRow] | None = None, **options: Any) -> Plan:
    defaults = {"n": 1, "retry_failed": False, "has_grader": True}
    return make_plan(rollouts, of or rows(0), **{**defaults, **options})


def slots(made: Plan) -> list[tuple[int, int, int]]:
    return [(slot.row.index, slot.attempt, slot.retry_no) for slot in made.to_run]


def test_without_stored_rollouts_every_attempt_runs() -> None:
    assert slots(plan(of=rows(3, 4), n=2)) == [(3, 0, 0), (3, 1, 0), (4, 0, 0), (4, 1, 0)]


def test_a_finished_rollout_never_runs_again() -> None:
    made = plan(graded(0), stored(1, status="failure"), of=rows(0, 1))

    assert (slots(made), made.to_grade, made.reused_count) == ([], [], 2)


def test_a_failed_one_runs_again_when_that_is_asked_for() -> None:
    failed = stored(0, status="failure", retry_no=1)

    assert slots(plan(failed, graded(1), of=rows(0, 1), retry_failed=True)) == [(0, 0, 2)]


@pytest.mark.parametrize("status", ["crashed", "cancelled", "running"])
def test_an_unfinished_one_runs_as_the_next_retry(status: str) -> None:
    assert slots(plan(stored(status=status))) == [(0, 0, 1)]


def test_the_last_retry_decides() -> None:
    rollouts = [stored(retry_no=1, status="cancelled"), stored(retry_no=0, status="failure")]

    assert slots(plan(*rollouts)) == [(0, 0, 2)]
    assert slots(plan(*rollouts, graded(retry_no=2))) == []


def test_more_attempts_and_rows_only_widen_what_runs() -> None:
    assert slots(plan(graded(0), graded(0, attempt=1), of=rows(0, 1))) == [(1, 0, 0)]
    assert slots(plan(graded(0), of=rows(0), n=3)) == [(0, 1, 0), (0, 2, 0)]
    assert plan(graded(0), graded(7), of=rows(0)).reused_count == 1


@pytest.mark.parametrize(
    ("rollout", "is_graded"),
    [
        (stored(), True),
        (stored(label=""), True),
        (stored(label=None, metadata={"a": 1}), True),
        (stored(label=None), False),
        (stored(status="failure"), False),
        (stored(sample_ids=()), False),
        (graded(), False),
        (graded(sample_ids=("main", "second")), True),
    ],
)
def test_what_the_current_grader_has_not_graded_is_graded(
    rollout: StoredRollout, is_graded: bool
) -> None:
    made = plan(rollout)

    assert made.to_grade == ([rollout] if is_graded else [])
    assert made.to_run == []


def test_without_a_grader_nothing_is_graded() -> None:
    assert plan(stored(), has_grader=False).to_grade == []


def test_a_failed_grading_is_repeated_only_when_that_is_asked_for() -> None:
    rollout = stored(grades={"main": StoredGrade(error="ValueError: no")})

    assert plan(rollout).to_grade == []
    assert plan(rollout, retry_failed=True).to_grade == [rollout]
    assert plan(rollout, retry_failed=True).to_run == []
