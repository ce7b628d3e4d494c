"""The two Protocols through which a rollout reaches storage, and the values they exchange.

`osmosis_ai` knows nothing of SQL. A backend reports a rollout's progress to a `RolloutRecorder`;
an eval run asks a `RolloutArchive` what is finished already and gets stored samples back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from osmosis_ai.rollout.grader import Grader
    from osmosis_ai.rollout.types import (
        GraderConfig,
        RolloutErrorCategory,
        RolloutSample,
        RolloutStatus,
    )

__all__ = [
    "EvalRun",
    "EvalRunSpec",
    "GradeReport",
    "ModelAnswer",
    "ModelAsk",
    "RolloutArchive",
    "RolloutEnd",
    "RolloutRecorder",
    "RolloutStart",
    "StoredGrade",
    "StoredRollout",
    "TokenUsage",
]


@dataclass(frozen=True, kw_only=True)
class RolloutStart:
    """A rollout that is about to run; reported before any model is called.

    Attributes:
        workflow: The workflow as `module:Class`.
        row_index: The dataset row, from 0; None outside an eval run.
        attempt: The pass@k slot, from 0.
        retry_no: 0 for an attempt's first rollout.
    """

    rollout_id: str
    prompt: list[dict[str, Any]]
    workflow: str
    label: str | None = None
    metadata: Mapping[str, Any] | None = None
    row_index: int | None = None
    attempt: int = 0
    retry_no: int = 0


@dataclass(frozen=True, kw_only=True)
class TokenUsage:
    """Tokens of one model call; cached are part of input, reasoning part of output."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelAsk:
    """A model call that is about to be sent.

    Attributes:
        settings: Sampling options as JSON values, without secrets.
        instructions: The system instructions that the model sees.
        tools: The tool schemas that the model sees, as JSON values.
        input: The input items as the model sees them.
    """

    sample_id: str
    model: str
    agent: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    instructions: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    input: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    """What a model call returned: output items in canonical Responses shape, and usage."""

    output: Sequence[Any]
    usage: TokenUsage
    response_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class RolloutEnd:
    """How a workflow ended. `error_*` are None on success; the traceback is formatted text."""

    status: RolloutStatus
    error_category: RolloutErrorCategory | None = None
    error_message: str | None = None
    error_traceback: str | None = None


@dataclass(frozen=True, kw_only=True)
class GradeReport:
    """What one grading of a rollout's samples gave.

    Attributes:
        samples: The samples after grading; a sample's `reward` is None where it got none.
        error: Why the grading failed as a whole; then rewards count for nothing.
        kind: "rollout" when the grader ran as part of the rollout, "regrade" over stored samples.
    """

    grader: type[Grader]
    grader_config: GraderConfig | None
    label: str | None
    samples: Mapping[str, RolloutSample]
    error: str | None = None
    error_category: RolloutErrorCategory | None = None
    kind: Literal["rollout", "regrade"] = "rollout"


@runtime_checkable
class RolloutRecorder(Protocol):
    """What a backend reports a rollout's progress to, in an eval run and in training alike.

    What a method was told is durable when it returns. A method that raises fails the rollout with
    that error: nothing is dropped in silence. Order for one rollout: `rollout_started`, then any
    number of model calls, then `samples_collected`, `rollout_finished` or `rollout_failed`, and
    last, at most once, `graded`.
    """

    async def rollout_started(self, start: RolloutStart) -> None:
        """Store the rollout's row before its workflow runs."""
        ...

    async def model_asked(self, rollout_id: str, ask: ModelAsk) -> int:
        """Store the intent of a model call before it is sent and return its call number."""
        ...

    async def model_answered(self, rollout_id: str, call_no: int, answer: ModelAnswer) -> None:
        """Store a model's answer before any of its tools run."""
        ...

    async def model_failed(self, rollout_id: str, call_no: int, error: BaseException) -> None:
        """Store that a model call ended without an answer (an error or a cancellation)."""
        ...

    async def samples_collected(
        self, rollout_id: str, samples: Mapping[str, RolloutSample]
    ) -> None:
        """Store every sample that is not stored yet; called on failure with what there is."""
        ...

    async def rollout_finished(self, rollout_id: str) -> None:
        """Mark the rollout a success."""
        ...

    async def rollout_failed(self, rollout_id: str, end: RolloutEnd) -> None:
        """Mark the rollout failed or cancelled, with the reason."""
        ...

    async def graded(self, rollout_id: str, report: GradeReport) -> None:
        """Add one grade per sample to the ledger."""
        ...


@dataclass(frozen=True, kw_only=True)
class EvalRunSpec:
    """What an eval run is made of; each digest tells whether that part is still the same.

    Attributes:
        config_path: The eval TOML, absolute; together with the store it names the eval run.
        settings: The effective settings as JSON values, without secrets.
        dataset_sha256: Of the dataset file's bytes, hexadecimal.
        workflow: The workflow as `module:Class`.
        workflow_digest: Of the workflow's code and config, hexadecimal.
        model: The model's settings that shape its answers, as JSON values, without secrets.
    """

    config_path: str
    rollout_name: str
    settings: Mapping[str, Any]
    dataset_path: str
    dataset_sha256: str
    workflow: str
    workflow_digest: str
    model: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class StoredGrade:
    """A sample's newest grade by one grader: a reward, an error, or the mark that it is removed."""

    reward: float | None = None
    error: str | None = None
    removed: bool = False


@dataclass(frozen=True, kw_only=True)
class StoredRollout:
    """One rollout of an eval run as the archive has it.

    Attributes:
        status: As a reader sees it: a rollout whose worker is gone is "crashed".
        grades: By sample id, by the asked grader only; empty when it has not graded this rollout.
        graded_before: Whether any grader ever graded it, with whatever outcome.
        sample_ids: In the order in which the rollout registered them.
        usage: Sum over its model calls.
        duration_s: From start to end of the workflow; None while it has not ended.
    """

    rollout_id: str
    row_index: int
    attempt: int
    retry_no: int
    status: Literal["running", "success", "failure", "cancelled", "crashed"]
    label: str | None
    metadata: dict[str, Any] | None
    error_category: str | None
    error_message: str | None
    sample_ids: tuple[str, ...]
    grades: dict[str, StoredGrade]
    graded_before: bool
    usage: TokenUsage
    duration_s: float | None


class EvalRun(Protocol):
    """An eval run that this process holds until it is closed; no other process may have it."""

    @property
    def eval_run_id(self) -> str:
        """The id under which it is stored."""
        ...

    @property
    def resumed(self) -> bool:
        """Whether it existed before."""
        ...

    @property
    def recorder(self) -> RolloutRecorder:
        """The recorder that files rollouts under this eval run."""
        ...

    def new_rollout_id(self, row_index: int, attempt: int, retry_no: int) -> str:
        """Return an id that is unique store-wide, sorts by time and names the row."""
        ...

    async def fetch_rollouts(
        self, grader: type[Grader] | None, grader_config: GraderConfig | None
    ) -> list[StoredRollout]:
        """Return every stored rollout, by row, attempt and retry, with this grader's grades."""
        ...

    async def fetch_samples(self, rollout_id: str) -> dict[str, RolloutSample]:
        """Return a rollout's stored samples in the order in which it registered them."""
        ...

    async def close(self) -> None:
        """Let go of the eval run; safe to call twice."""
        ...


class RolloutArchive(Protocol):
    """Where an eval run finds what earlier processes finished."""

    async def open_eval_run(self, spec: EvalRunSpec, *, fresh: bool = False) -> EvalRun:
        """Take up the newest eval run of `spec.config_path`, or start one.

        Args:
            fresh: Start a new one in any case; the old one stays.

        Raises:
            EvalRunChanged: Workflow, dataset or model differ from the stored ones; names which.
            EvalRunBusy: Another living process holds it; names host and process.
        """
        ...
