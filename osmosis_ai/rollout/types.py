"""The values that rollouts are described, configured and answered with."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    model_validator,
)

from osmosis_ai.rollout.utils.identifiers import ensure_single_path_segment
from osmosis_ai.rollout.utils.json_values import to_json_mapping
from osmosis_ai.rollout.utils.rewards import to_reward

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "DEFAULT_SAMPLE_ID",
    "NOT_GRADED",
    "AgentWorkflowConfig",
    "AgentWorkflowOutput",
    "BaseConfig",
    "ConcurrencyConfig",
    "ExecutionOutcome",
    "ExecutionRequest",
    "ExecutionResult",
    "GraderConfig",
    "GraderStatus",
    "MessageDict",
    "RolloutErrorCategory",
    "RolloutSample",
    "RolloutStatus",
]

logger = logging.getLogger(__name__)

DEFAULT_SAMPLE_ID = "main"
NOT_GRADED = "not_graded"

MessageDict: TypeAlias = dict[str, Any]

RolloutId: TypeAlias = Annotated[
    str, AfterValidator(lambda value: ensure_single_path_segment(value, label="rollout id"))
]
SampleId: TypeAlias = Annotated[
    str, AfterValidator(lambda value: ensure_single_path_segment(value, label="sample id"))
]
Reward: TypeAlias = Annotated[
    float | None, BeforeValidator(lambda value: None if value is None else to_reward(value))
]


class RolloutStatus(StrEnum):
    """Where a rollout stands, or how it ended."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    GRADING = "grading"
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class GraderStatus(StrEnum):
    """How a grading ended; pending: there was none."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"


class RolloutErrorCategory(StrEnum):
    """What kind of error made a rollout or a grading fail."""

    TIMEOUT = "timeout"
    VALIDATION_ERROR = "validation_error"
    HTTP_ERROR = "http_error"
    AGENT_ERROR = "agent_error"
    INTERNAL_ERROR = "internal_error"

    @classmethod
    def of(cls, error: BaseException) -> RolloutErrorCategory:
        """Return the category of an error that user code raised."""
        if isinstance(error, TimeoutError):
            return cls.TIMEOUT
        if isinstance(error, ValueError | TypeError | AssertionError):
            return cls.VALIDATION_ERROR
        return cls.AGENT_ERROR


class ConcurrencyConfig(BaseModel):
    """How many executions run at once; None: as many as there are."""

    model_config = ConfigDict(validate_assignment=True)

    max_concurrent: int | None = Field(default=None, ge=1)


class BaseConfig(BaseModel):
    """What workflow and grader configs share; further fields are welcome."""

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    name: str
    description: str | None = None


class AgentWorkflowConfig(BaseConfig):
    """Base of a workflow's config."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)


class GraderConfig(BaseConfig):
    """Base of a grader's config."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)


class RolloutSample(BaseModel):
    """One conversation of a rollout, and what grading made of it.

    Attributes:
        id: The session's name.
        messages: The persisted items, never converted.
        reward: A finite float; None: not graded. Checked on assignment.
        remove_sample: Leave this sample out of training, mean and pass rate.
        trajectory_messages: A best-effort copy as chat messages; None: there is none.
    """

    model_config = ConfigDict(validate_assignment=True)

    id: str = ""
    messages: list[MessageDict] = Field(default_factory=list)
    label: str | None = None
    reward: Reward = None
    remove_sample: bool = False
    metrics: dict[str, Any] = Field(default_factory=dict)
    extra_fields: dict[str, Any] = Field(default_factory=dict)
    trajectory_messages: list[MessageDict] | None = None

    def json_safe_copy(self) -> Self:
        """Return a copy whose metrics and extra fields JSON can hold.

        What it cannot hold is normalised or dropped with a warning that names it; the reward
        and the messages stay as they are.
        """
        metrics, changed_metrics = to_json_mapping(self.metrics)
        extra_fields, changed_fields = to_json_mapping(self.extra_fields)
        changed = [f"metrics.{path}" for path in changed_metrics]
        changed += [f"extra_fields.{path}" for path in changed_fields]
        if changed:
            logger.warning(
                "sample %r: JSON cannot hold %s as it is: normalised or dropped",
                self.id,
                ", ".join(dict.fromkeys(changed)),
            )
        return self.model_copy(update={"metrics": metrics, "extra_fields": extra_fields})


class AgentWorkflowOutput(BaseModel):
    """What a workflow may return instead of registering sessions.

    Attributes:
        samples: Each sample's messages by sample id; empty when sessions hold them.
        metrics: Added to every sample's metrics.
        info: Added to every sample's extra fields, for the grader.
    """

    samples: dict[SampleId, list[MessageDict]] = Field(default_factory=dict)
    metrics: dict[str, Any] = Field(default_factory=dict)
    info: dict[str, Any] = Field(default_factory=dict)


Timeout: TypeAlias = Annotated[FiniteFloat, Field(ge=0)]


class ExecutionRequest(BaseModel):
    """One rollout to execute.

    Attributes:
        id: The rollout's id: one safe path segment.
        label: The row's ground truth; an empty text is a label, None is none.
        agent_timeout_sec: Seconds from the request to the workflow's end, queue included.
        grader_timeout_sec: Seconds for the grader alone.
        grade: Whether to grade at all.
        row_index: The dataset row, from 0; None outside an eval run.
        attempt: The pass@k slot, from 0.
        retry_no: 0 for an attempt's first rollout.
    """

    id: RolloutId
    prompt: list[MessageDict]
    label: str | None = None
    metadata: dict[str, Any] | None = None
    agent_timeout_sec: Timeout | None = None
    grader_timeout_sec: Timeout | None = None
    grade: bool = True
    row_index: int | None = Field(default=None, ge=0)
    attempt: int = Field(default=0, ge=0)
    retry_no: int = Field(default=0, ge=0)


class ExecutionResult(BaseModel):
    """How a workflow or a grading ended; samples are kept on failure.

    Attributes:
        samples: By sample id, in registration order; `sample=` gives the only one.
        extra_fields: Details: a failure's `traceback` as text; why it was `not_graded`; how many
            `policy_calls_refused` a grader tried.
    """

    status: RolloutStatus
    samples: dict[str, RolloutSample] = Field(default_factory=dict)
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
    extra_fields: dict[str, Any] | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            status: RolloutStatus,
            samples: Mapping[str, RolloutSample] = ...,
            sample: RolloutSample | None = None,
            err_message: str | None = None,
            err_category: RolloutErrorCategory | None = None,
            extra_fields: Mapping[str, Any] | None = None,
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _accept_single_sample(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "sample" not in data:
            return data
        rest = {key: value for key, value in data.items() if key != "sample"}
        if data["sample"] is None:
            return rest
        if rest.get("samples"):
            raise ValueError("pass sample or samples, not both")
        sample = RolloutSample.model_validate(data["sample"])
        return {**rest, "samples": {sample.id or DEFAULT_SAMPLE_ID: sample}}

    @property
    def sample(self) -> RolloutSample | None:
        """The only sample; None when there is none.

        Raises:
            ValueError: There are several; names them.
        """
        return single_sample(self.samples)


@dataclass(frozen=True)
class ExecutionOutcome:
    """What one execution came to: the workflow's result and the grading's."""

    workflow: ExecutionResult
    grader: ExecutionResult

    @property
    def grader_status(self) -> GraderStatus:
        """How grading ended; pending when the rollout was not graded."""
        if NOT_GRADED in (self.grader.extra_fields or {}):
            return GraderStatus.PENDING
        if self.grader.status is RolloutStatus.SUCCESS:
            return GraderStatus.SUCCESS
        return GraderStatus.FAILURE


def single_sample(samples: Mapping[str, RolloutSample]) -> RolloutSample | None:
    """Return the only sample, or None when there is none.

    Raises:
        ValueError: There are several; names them.
    """
    if len(samples) > 1:
        raise ValueError(
            f"there are {len(samples)} samples ({_names(list(samples))}), not one: "
            "walk `samples` and reward each with set_sample_reward(sample_id, reward)"
        )
    return next(iter(samples.values()), None)


def _names(sample_ids: Sequence[str]) -> str:
    return ", ".join(map(repr, sample_ids))
