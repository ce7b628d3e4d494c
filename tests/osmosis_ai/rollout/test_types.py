"""The values: what they accept, refuse and keep."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from osmosis_ai.rollout import (
    AgentWorkflowConfig,
    ConcurrencyConfig,
    ExecutionOutcome,
    ExecutionRequest,
    ExecutionResult,
    GraderConfig,
    GraderStatus,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)


class TestRewards:
    @pytest.mark.parametrize(
        "value",
        [
            *(math.nan, math.inf, -math.inf, np.float32("nan"), 10**400),
            *("good", "nan", "inf", "", b"1", [1], 1j, object()),
        ],
    )
    def test_what_is_not_a_finite_number_is_refused_where_it_is_set(self, value: Any) -> None:
        sample = RolloutSample(reward=0.5)

        with pytest.raises(ValidationError, match="reward"):
            sample.reward = value
        with pytest.raises(ValidationError, match="reward"):
            RolloutSample(reward=value)
        assert sample.reward == 0.5

    @pytest.mark.parametrize(
        ("value", "reward"),
        [
            (1, 1.0),
            (True, 1.0),
            ("0.5", 0.5),
            (" -2e3 ", -2000.0),
            (np.float32(0.25), 0.25),
            (np.int64(3), 3.0),
            (np.array(0.75), 0.75),
            (Decimal("0.1"), 0.1),
            (1.7e308, 1.7e308),
            (None, None),
        ],
    )
    def test_numbers_in_any_form_become_floats(self, value: Any, reward: float | None) -> None:
        sample = RolloutSample()
        sample.reward = value

        assert sample.reward == reward
        assert type(sample.reward) in {float, type(None)}


class TestSamples:
    def test_a_new_sample_is_empty(self) -> None:
        sample = RolloutSample()

        assert (sample.id, sample.messages, sample.label, sample.reward) == ("", [], None, None)
        assert (sample.metrics, sample.extra_fields) == ({}, {})
        assert sample.remove_sample is False
        assert sample.trajectory_messages is None

    def test_messages_keep_keys_order_and_odd_text(self) -> None:
        item = {"z": 1, "a": "\ud800 \0", "\udfff": None, "nested": [{"b": 1, "a": 2}]}

        (kept,) = RolloutSample(messages=[item]).messages

        assert json.dumps(kept) == json.dumps(item)

    def test_a_json_safe_copy_normalises_or_drops_with_a_warning_and_keeps_the_reward(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        loop: list[Any] = []
        loop.append(loop)
        sample = RolloutSample(
            id="s",
            reward=0.5,
            metrics={
                "nan": math.nan,
                "np": np.float64(0.5),
                "array": np.arange(3),
                "list": [1.0, math.inf, (1, 2)],
                "status": RolloutStatus.SUCCESS,
                "deep": {1: "one", (): "gone"},
            },
            extra_fields={"object": object(), "loop": loop, "text": "kept", "set": {1}},
        )

        safe = sample.json_safe_copy()

        assert safe.reward == 0.5
        assert safe.metrics == {
            "np": 0.5,
            "array": [0, 1, 2],
            "list": [1.0, [1, 2]],
            "status": "success",
            "deep": {"1": "one"},
        }
        assert safe.extra_fields == {"loop": [], "text": "kept", "set": [1]}
        json.dumps([safe.metrics, safe.extra_fields], allow_nan=False)
        assert "metrics.nan" in caplog.text
        assert "extra_fields.object" in caplog.text
        assert "object" in sample.extra_fields

    def test_plain_values_come_through_without_a_warning(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        metrics = {"a": 1, "b": [True, None, {"c": "d"}], "e": 0.5}

        assert RolloutSample(metrics=metrics).json_safe_copy().metrics == metrics
        assert caplog.text == ""


class TestConfigs:
    def test_further_fields_are_kept_and_assignment_is_validated(self) -> None:
        config = AgentWorkflowConfig(name="c", temperature=0.5, tool=object)

        assert config.temperature == 0.5
        with pytest.raises(ValidationError):
            config.name = None

    @pytest.mark.parametrize("limit", [0, -1, "many"])
    def test_a_limit_below_one_is_refused(self, limit: Any) -> None:
        with pytest.raises(ValidationError):
            ConcurrencyConfig(max_concurrent=limit)

    def test_without_a_word_on_concurrency_there_is_no_limit(self) -> None:
        assert GraderConfig(name="g").concurrency.max_concurrent is None


class TestRequests:
    @pytest.mark.parametrize("rollout_id", ["", ".", "..", "a/b", "a\\b", "a\0", "x" * 256])
    def test_an_id_that_is_not_one_safe_path_segment_is_refused(self, rollout_id: str) -> None:
        with pytest.raises(ValidationError, match="safe path segment"):
            ExecutionRequest(id=rollout_id, prompt=[])

    @pytest.mark.parametrize("timeout", [math.nan, math.inf, -1.0])
    def test_timeouts_are_finite_and_not_negative(self, timeout: float) -> None:
        with pytest.raises(ValidationError):
            ExecutionRequest(id="r", prompt=[], agent_timeout_sec=timeout)
        with pytest.raises(ValidationError):
            ExecutionRequest(id="r", prompt=[], grader_timeout_sec=timeout)

    def test_an_empty_label_is_a_label(self) -> None:
        assert ExecutionRequest(id="r", prompt=[], label="").label == ""


class TestResults:
    def test_a_result_takes_one_sample_or_several(self) -> None:
        one = ExecutionResult(status=RolloutStatus.SUCCESS, sample=RolloutSample(id="a"))
        unnamed = ExecutionResult(status=RolloutStatus.SUCCESS, sample=RolloutSample())
        none = ExecutionResult(status=RolloutStatus.FAILURE, sample=None)

        assert list(one.samples) == ["a"]
        assert list(unnamed.samples) == ["main"]
        assert one.sample is one.samples["a"]
        assert none.sample is None

    def test_several_samples_have_no_single_one(self) -> None:
        samples = {"a": RolloutSample(id="a"), "b": RolloutSample(id="b")}
        result = ExecutionResult(status=RolloutStatus.SUCCESS, samples=samples)

        with pytest.raises(ValueError, match="'a', 'b'"):
            _ = result.sample
        with pytest.raises(ValidationError, match="not both"):
            ExecutionResult(
                status=RolloutStatus.SUCCESS, samples=samples, sample=RolloutSample(id="c")
            )

    def test_an_outcome_says_how_grading_ended(self) -> None:
        success = ExecutionResult(status=RolloutStatus.SUCCESS)
        failure = ExecutionResult(status=RolloutStatus.FAILURE)
        skipped = ExecutionResult(
            status=RolloutStatus.FAILURE, extra_fields={"not_graded": "there is no grader"}
        )

        assert ExecutionOutcome(success, success).grader_status is GraderStatus.SUCCESS
        assert ExecutionOutcome(success, failure).grader_status is GraderStatus.FAILURE
        assert ExecutionOutcome(success, skipped).grader_status is GraderStatus.PENDING


def test_the_words_for_status_and_category_are_the_contracts() -> None:
    statuses = "pending queued running grading success failure cancelled unknown"
    categories = "timeout validation_error http_error agent_error internal_error"

    assert " ".join(RolloutStatus) == statuses
    assert " ".join(RolloutErrorCategory) == categories


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (TimeoutError(), "timeout"),
        (ValueError(), "validation_error"),
        (TypeError(), "validation_error"),
        (AssertionError(), "validation_error"),
        (KeyError(), "agent_error"),
        (RuntimeError(), "agent_error"),
    ],
)
def test_an_error_has_a_category(error: Exception, category: str) -> None:
    assert RolloutErrorCategory.of(error) == category
