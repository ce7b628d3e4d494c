import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.eval.report import EvalReport, Verdict, judge_missing, judge_rollout, summarise
from osmosis_ai.rollout.recording import StoredGrade, StoredRollout

from .stored import graded, stored


def judge(rollout: StoredRollout, threshold: float = 1.0, **options: Any) -> Verdict:
    defaults = {"has_grader": True, "error": None}
    return judge_rollout(rollout, pass_threshold=threshold, **{**defaults, **options})


def report(*verdicts: Verdict) -> EvalReport:
    return EvalReport(
        eval_run_id="e1",
        resumed=False,
        policy="scripted",
        grader=None,
        run_count=1,
        reused_count=0,
        regraded_count=0,
        upstream_calls=2,
        duration_s=1.5,
        results_path=Path("results.json"),
        samples_path=None,
        **summarise(verdicts),
    )


@pytest.mark.parametrize(
    ("reward", "threshold", "passed"),
    [(1.0, 1.0, True), (0.99, 1.0, False), (0.0, 0.0, True), (-0.1, 0.0, False)],
)
def test_a_reward_passes_at_the_threshold(reward: float, threshold: float, passed: bool) -> None:
    verdict = judge(graded(reward=reward), threshold)

    assert (verdict.state, verdict.reward, verdict.passed) == ("graded", reward, passed)


def test_several_samples_give_their_mean_and_removed_ones_do_not_count() -> None:
    grades = {
        "a": StoredGrade(reward=1.0),
        "b": StoredGrade(reward=0.0),
        "c": StoredGrade(removed=True),
    }

    verdict = judge(stored(sample_ids=("a", "b", "c"), grades=grades))

    assert (verdict.reward, verdict.passed, verdict.removed_sample_count) == (0.5, False, 1)


def test_a_rollout_whose_samples_are_all_removed_is_outside_mean_and_pass_rate() -> None:
    removed = judge(stored(grades={"main": StoredGrade(removed=True)}))

    numbers = summarise([removed, judge(graded())])

    assert (removed.state, removed.passed) == ("removed", None)
    assert (numbers["removed_count"], numbers["counted_count"]) == (1, 1)
    assert numbers["rewards"].mean == 1.0
    assert numbers["pass_at_k"] == {1: 1.0}


def test_a_failed_rollout_did_not_pass_and_has_no_reward() -> None:
    failed = judge(stored(status="failure", error_message="TimeoutError: late"))

    numbers = summarise([failed, judge(graded(1))])

    assert (failed.state, failed.passed, failed.error) == ("failed", False, "TimeoutError: late")
    assert numbers["rewards"].mean == 1.0
    assert (numbers["passed_count"], numbers["counted_count"]) == (1, 2)
    assert numbers["pass_at_k"] == {1: 0.5}


def test_a_grader_that_raised_makes_a_failure() -> None:
    verdict = judge(stored(grades={"main": StoredGrade(error="KeyError: 'x'")}))

    assert (verdict.state, verdict.error) == ("failed", "grader: KeyError: 'x'")


def test_a_gradable_rollout_without_a_grade_is_a_failure_that_says_why() -> None:
    assert judge(stored(), error="grader: disk full").error == "grader: disk full"
    assert judge(stored()).error == "not graded"


@pytest.mark.parametrize(("rollout", "has_grader"), [(stored(), False), (stored(label=None), True)])
def test_what_nothing_can_grade_is_ungraded(rollout: StoredRollout, has_grader: bool) -> None:
    verdict = judge(rollout, has_grader=has_grader)

    assert (verdict.state, verdict.passed) == ("ungraded", None)


def test_tokens_are_summed_over_all_rollouts() -> None:
    usage = summarise([judge(graded(0)), judge(graded(1))])["usage"]

    assert (usage.input_tokens, usage.output_tokens) == (20, 4)


def test_only_when_every_rollout_failed_is_the_exit_code_one() -> None:
    failed = judge_missing(0, 0, "store is full")

    assert report(failed, replace(failed, row_index=1)).exit_code == 1
    assert report(failed, judge(graded(1))).exit_code == 0
    assert report(judge(graded(reward=0.0))).exit_code == 0


def test_a_report_is_json() -> None:
    data = json.loads(json.dumps(report(judge(graded())).to_json(), allow_nan=False))

    assert data["pass_at_k"] == {"1": 1.0}
    assert data["rewards"]["mean"] == 1.0
    assert data["rollouts"][0]["rollout_id"] == "r-0-0-0"
