"""The values that the store hands out and takes: frozen, free of SQL."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from osmosis_store.conditions import parse_reward
from osmosis_store.errors import InvalidSelection

__all__ = [
    "EvalRunRecord",
    "GradeRecord",
    "GradingRunRecord",
    "ItemKey",
    "ItemRecord",
    "ModelCallRecord",
    "NewGrade",
    "NewGradingRun",
    "RolloutDetail",
    "RolloutRecord",
    "SampleKey",
    "SampleRecord",
    "Selection",
    "Usage",
]

RolloutState = Literal["running", "success", "failure", "cancelled", "crashed", "open"]
GradingKind = Literal["rollout", "regrade", "human", "imported"]

_STATES = ("running", "success", "failure", "cancelled", "crashed", "open")


class SampleKey(NamedTuple):
    """Names one sample."""

    rollout_id: str
    sample_id: str


class ItemKey(NamedTuple):
    """Names one item."""

    rollout_id: str
    sample_id: str
    seq: int


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens over one or many model calls; cached are part of input, reasoning of output."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class EvalRunRecord:
    """One `osmosis eval run`."""

    eval_run_id: str
    config_path: str
    rollout_name: str
    settings: dict[str, Any]
    dataset_path: str
    dataset_sha256: str
    workflow: str
    workflow_digest: str
    model: dict[str, Any]
    versions: dict[str, Any]
    worker_id: str | None
    started_at: dt.datetime
    ended_at: dt.datetime | None


@dataclass(frozen=True, kw_only=True)
class RolloutRecord:
    """One execution of a workflow on one dataset row, or an open conversation.

    Attributes:
        status: As a reader sees it now: a running rollout whose worker's lease is over is
            "crashed".
    """

    rollout_id: str
    eval_run_id: str | None
    row_index: int | None
    attempt: int
    retry_no: int
    workflow: str | None
    prompt: list[dict[str, Any]] | None
    label: str | None
    metadata: dict[str, Any] | None
    status: RolloutState
    error_category: str | None
    error_message: str | None
    error_traceback: str | None
    worker_id: str | None
    lease_epoch: int
    started_at: dt.datetime
    ended_at: dt.datetime | None

    @property
    def duration_s(self) -> float | None:
        """Seconds from start to end; None while it has not ended."""
        return None if self.ended_at is None else (self.ended_at - self.started_at).total_seconds()


@dataclass(frozen=True, kw_only=True)
class SampleRecord:
    """One conversation of a rollout.

    Attributes:
        item_count: Items ever stored, tombstoned ones included; the next `seq`.
        chain_head: Digest over all of them, in order.
    """

    rollout_id: str
    sample_id: str
    sample_no: int
    item_count: int
    chain_head: bytes
    grade_count: int
    extra_fields: dict[str, Any] | None
    created_at: dt.datetime
    updated_at: dt.datetime


@dataclass(frozen=True, kw_only=True)
class ItemRecord:
    """One stored item with what the store knows about it; `item` is the value that came in."""

    rollout_id: str
    sample_id: str
    seq: int
    item: dict[str, Any]
    type: str | None
    role: str | None
    tool_name: str | None
    call_id: str | None
    call_no: int | None
    created_at: dt.datetime
    tombstoned_at: dt.datetime | None
    tombstone_reason: str | None
    recovered: bool


@dataclass(frozen=True, kw_only=True)
class ModelCallRecord:
    """One request to a model.

    Attributes:
        model: None for a call of which only the session knows, by its tokens.
        output: There only while the session does not have it.
    """

    rollout_id: str
    call_no: int
    sample_id: str
    agent: str | None
    model: str | None
    settings: dict[str, Any]
    input_item_count: int
    state: Literal["asked", "answered", "saved", "withheld", "failed", "lost"]
    asked_at: dt.datetime
    answered_at: dt.datetime | None
    response_id: str | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    output: list[Any] | None
    error: str | None

    @property
    def latency_s(self) -> float | None:
        """Seconds from request to answer or error; None while neither came."""
        if self.answered_at is None:
            return None
        return (self.answered_at - self.asked_at).total_seconds()


@dataclass(frozen=True, kw_only=True)
class NewGradingRun:
    """One pass of a grader, about to begin.

    Attributes:
        code_digest: Of the grader's code and config; None for a person.
        code_covers: What the digest is over, as qualified names.
    """

    kind: GradingKind
    grader: str
    code_digest: str | None = None
    code_covers: tuple[str, ...] = ()
    config: dict[str, Any] | None = None
    eval_run_id: str | None = None
    author: str | None = None
    reason: str | None = None
    selection: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class GradingRunRecord:
    """One pass of a grader over a selection."""

    grading_run_id: str
    eval_run_id: str | None
    kind: GradingKind
    grader: str
    code_digest: str | None
    code_covers: list[str]
    config: dict[str, Any] | None
    author: str | None
    reason: str | None
    selection: dict[str, Any] | None
    versions: dict[str, Any]
    graded_count: int
    failed_count: int
    skipped_count: int
    policy_calls: int
    connections_allowed: int
    connections_refused: int
    started_at: dt.datetime
    ended_at: dt.datetime | None


@dataclass(frozen=True, kw_only=True)
class NewGrade:
    """What a grader said of one sample: a finite reward, an error, or that it is removed."""

    sample_id: str
    reward: float | None = None
    error: str | None = None
    removed: bool = False
    metrics: dict[str, Any] | None = None
    explanation: str | None = None
    label: str | None = None
    graded_head: bytes | None = None
    """The chain head of the items that the grader saw; None: those stored now."""


@dataclass(frozen=True, kw_only=True)
class GradeRecord:
    """One grade in the ledger; never changed."""

    rollout_id: str
    sample_id: str
    grade_no: int
    grading_run_id: str
    grader: str
    kind: GradingKind
    code_digest: str | None
    reward: float | None
    error: str | None
    removed: bool
    metrics: dict[str, Any] | None
    explanation: str | None
    label: str | None
    chain_head: bytes
    created_at: dt.datetime


@dataclass(frozen=True, kw_only=True)
class RolloutDetail:
    """One rollout with everything that belongs to it, as `rollouts show` prints it."""

    rollout: RolloutRecord
    samples: list[SampleRecord]
    items: dict[str, list[ItemRecord]]
    model_calls: list[ModelCallRecord]
    grades: list[GradeRecord]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which rollouts are meant: every condition that is given must hold.

    Sample, reward, graded_by, ungraded_by, tool and text are conditions on samples: a rollout is
    meant when one of its samples fulfils all of them that are given.

    Attributes:
        eval_run: An eval run's id.
        rollout: Ids of rollouts; empty: any.
        status: As a reader sees it now.
        since: Started at or after; `until`: started before.
        workflow: As `module:Class`.
        label: The row's label, exactly.
        reward: Of the sample's newest grade, by the grader of `graded_by` where that is given:
            `<0.5`, `<=0.5`, `>0.5`, `>=1`, `=1`, `!=0`, or `0.2..0.8`. A grade that failed or
            is removed has no reward.
        graded_by: Has a grade, not an error, of this grader: a grading run's id, the grader's
            reference or its class name alone, or eight or more characters of its code digest.
        ungraded_by: Has none.
        tool: Called the tool of this name at least once.
        text: An item says this, popped ones too: A to Z in either case, all else exactly. Ids,
            types, keys and the data of images do not count; a call's arguments do.
        meta: Keys and values of the rollout's metadata: nested keys with dots, a value equal as
            JSON or as text.
        sample: Has a sample of this id; only these samples are meant then.
    """

    eval_run: str | None = None
    rollout: tuple[str, ...] = field(default=())
    status: str | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    workflow: str | None = None
    label: str | None = None
    reward: str | None = None
    graded_by: str | None = None
    ungraded_by: str | None = None
    tool: str | None = None
    text: str | None = None
    meta: tuple[tuple[str, str], ...] = field(default=())
    sample: str | None = None

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in _STATES:
            raise InvalidSelection(
                f"there is no status {self.status!r}", hint=f"known: {', '.join(_STATES)}"
            )
        for name in ("since", "until"):
            time = getattr(self, name)
            if time is not None and time.tzinfo is None:
                raise InvalidSelection(f"{name} needs a time zone: {time}")
        if self.reward is not None:
            parse_reward(self.reward)
        for name in ("graded_by", "ungraded_by", "text"):
            if getattr(self, name) == "":
                raise InvalidSelection(f"{name} is empty")
        for key, _ in self.meta:
            if not key:
                raise InvalidSelection("a metadata key is empty")

    def to_json(self) -> dict[str, Any]:
        """Return the conditions that are given, as JSON values."""
        found = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if value not in (None, ()):
                found[one.name] = _to_json_value(value)
        return found

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Selection:
        """Return the selection that `to_json` gave these values for.

        Raises:
            InvalidSelection: A name or a value is none of ours.
        """
        unknown = values.keys() - {one.name for one in fields(cls)}
        if unknown:
            raise InvalidSelection(f"there is no condition {min(unknown)!r}")
        found = dict(values)
        try:
            for name in ("since", "until"):
                if name in found:
                    found[name] = dt.datetime.fromisoformat(found[name])
            if "rollout" in found:
                found["rollout"] = tuple(found["rollout"])
            if "meta" in found:
                found["meta"] = tuple((key, value) for key, value in found["meta"])
        except (TypeError, ValueError) as error:
            raise InvalidSelection(f"this is no selection: {error}") from None
        return cls(**found)


def _to_json_value(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return [_to_json_value(part) for part in value] if isinstance(value, tuple) else value
