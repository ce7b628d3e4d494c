"""What a rollout, its workflow and its grader can reach while they run."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from osmosis_ai.rollout.types import (
    DEFAULT_SAMPLE_ID,
    AgentWorkflowConfig,
    RolloutSample,
    single_sample,
)
from osmosis_ai.rollout.utils.identifiers import ensure_single_path_segment

if TYPE_CHECKING:
    from osmosis_ai.rollout.recording import RolloutRecorder
from osmosis_ai.rollout.utils.rewards import to_reward

__all__ = [
    "AgentWorkflowContext",
    "GraderContext",
    "GradingScope",
    "PolicyCallRefused",
    "RolloutContext",
    "SampleSource",
    "get_grading_scope",
    "get_rollout_context",
    "require_policy_allowed",
    "rollout_contextvar",
]

CHAT_COMPLETIONS_URL_ENV = "OSMOSIS_CHAT_COMPLETIONS_URL"
API_KEY_ENV = "OSMOSIS_API_KEY"
ROLLOUT_ID_ENV = "OSMOSIS_ROLLOUT_ID"

TConfig = TypeVar("TConfig", bound=AgentWorkflowConfig)

rollout_contextvar: ContextVar[RolloutContext | None] = ContextVar(
    "rollout_contextvar", default=None
)
_outer_contexts: ContextVar[tuple[RolloutContext | None, ...]] = ContextVar(
    "outer_rollout_contexts", default=()
)
_grading_scope: ContextVar[GradingScope | None] = ContextVar("grading_scope", default=None)


def get_rollout_context() -> RolloutContext | None:
    """Return the rollout context that is active here, if any."""
    return rollout_contextvar.get()


class SampleSource(ABC):
    """Where a sample comes from when the workflow has ended."""

    @abstractmethod
    async def get_sample(self, name: str) -> RolloutSample:
        """Return the sample that was registered as `name`; the argument may be left out."""


@dataclass(eq=False)
class RolloutContext:
    """The rollout that is active: where its policy is, and where its samples come from.

    Attributes:
        chat_completions_url: The policy's base URL; empty: `OSMOSIS_CHAT_COMPLETIONS_URL`.
        api_key: Its key; empty: `OSMOSIS_API_KEY`.
        rollout_id: Empty: `OSMOSIS_ROLLOUT_ID`.
        sample_sources: By sample id, in registration order.
        recorder: What model calls and sessions report to; None: nobody records.
        failure: What `fail` was told.
        ended: Whether the samples are collected; nothing may be added any more.
    """

    chat_completions_url: str = ""
    api_key: str | None = field(default=None, repr=False)
    rollout_id: str = ""
    sample_sources: dict[str, Any] = field(default_factory=dict)
    recorder: RolloutRecorder | None = field(default=None, repr=False)
    failure: BaseException | None = field(default=None, init=False, repr=False)
    ended: bool = field(default=False, init=False)
    _takes_name: dict[str, bool] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.chat_completions_url = self.chat_completions_url or os.environ.get(
            CHAT_COMPLETIONS_URL_ENV, ""
        )
        self.api_key = self.api_key or os.environ.get(API_KEY_ENV) or None
        self.rollout_id = self.rollout_id or os.environ.get(ROLLOUT_ID_ENV, "")
        if self.rollout_id:
            ensure_single_path_segment(self.rollout_id, label="rollout id")
        given, self.sample_sources = self.sample_sources, {}
        for name, source in given.items():
            self.register_sample_source(name, source)

    def __enter__(self) -> Self:
        _outer_contexts.set((*_outer_contexts.get(), rollout_contextvar.get()))
        rollout_contextvar.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        *outer, previous = _outer_contexts.get()
        _outer_contexts.set(tuple(outer))
        rollout_contextvar.set(previous)

    def register_sample_source(self, name: str, source: Any) -> None:
        """Add a source of the sample `name`; its `get_sample` may take the name or not.

        Raises:
            ValueError: The name is taken, or is not one safe path segment.
        """
        ensure_single_path_segment(name, label="sample id")
        if name in self.sample_sources:
            raise ValueError(
                f"a sample source named {name!r} already exists in this rollout: "
                "give each session a name of its own"
            )
        self._takes_name[name] = _takes_argument(source.get_sample)
        self.sample_sources[name] = source

    async def collect_sample(self, name: str) -> RolloutSample:
        """Return the sample that the source `name` yields now, under that id.

        Raises:
            TypeError: The source yields something else than a `RolloutSample`.
        """
        source = self.sample_sources[name]
        sample = await (source.get_sample(name) if self._takes_name[name] else source.get_sample())
        if not isinstance(sample, RolloutSample):
            raise TypeError(
                f"the source of sample {name!r} gave {type(sample).__name__}, not a RolloutSample"
            )
        return sample if sample.id == name else sample.model_copy(update={"id": name})

    async def get_samples(self) -> dict[str, RolloutSample]:
        """Return every sample as it is now, by id, in registration order."""
        return {name: await self.collect_sample(name) for name in list(self.sample_sources)}

    def set_sample_source(self, source: Any) -> None:
        """Register the source of this rollout's only sample, as "main".

        Raises:
            ValueError: The rollout has a sample source already.
        """
        if self.sample_sources:
            names = ", ".join(map(repr, self.sample_sources))
            raise ValueError(f"a sample source already exists in this rollout: {names}")
        self.register_sample_source(DEFAULT_SAMPLE_ID, source)

    @property
    def sample_source(self) -> Any | None:
        """The only sample source; None when there is none.

        Raises:
            ValueError: There are several; names them.
        """
        if len(self.sample_sources) > 1:
            names = ", ".join(map(repr, self.sample_sources))
            raise ValueError(f"there are several sample sources, not one: {names}")
        return next(iter(self.sample_sources.values()), None)

    async def get_sample(self) -> RolloutSample | None:
        """Return the only sample; None when there is none.

        Raises:
            ValueError: There are several sample sources; names them.
        """
        if self.sample_source is None:
            return None
        return await self.collect_sample(next(iter(self.sample_sources)))

    def require_active(self, user: str) -> None:
        """Check that this is the active rollout and that it has not ended.

        Args:
            user: Who asks, for the message.

        Raises:
            RuntimeError: It is not, or it has.
        """
        active = rollout_contextvar.get()
        if active is not self:
            where = f"rollout {active.rollout_id!r}" if active else "code outside any rollout"
            raise RuntimeError(
                f"{user} belongs to rollout {self.rollout_id!r} and is used in {where}: "
                "build it inside AgentWorkflow.run() of the rollout that uses it"
            )
        if self.ended:
            raise RuntimeError(f"{user} is used after rollout {self.rollout_id!r} has ended")

    def fail(self, error: BaseException) -> None:
        """Make the rollout fail with this error, even if the workflow swallows it.

        For whoever records: an answer or item that could not be stored must not get lost in a
        caller's `except`. The first error stays.
        """
        if self.failure is None:
            self.failure = error


def _takes_argument(method: Any) -> bool:
    try:
        inspect.signature(method).bind("name")
    except TypeError:
        return False
    return True


@dataclass
class AgentWorkflowContext(Generic[TConfig]):
    """What a workflow is given; the label is not part of it.

    Attributes:
        prompt: The row's messages.
        metadata: The row's metadata; None: there is none.
        artifacts_dir: Where files of this rollout belong; None: nowhere.
    """

    prompt: list[dict[str, Any]]
    config: TConfig | None = None
    metadata: dict[str, Any] | None = None
    artifacts_dir: Path | None = None


class GraderContext:
    """What a grader is given: the samples to reward and what the row says about them.

    Attributes:
        label: The row's ground truth; None: there is none.
        samples: By sample id, in registration order.
    """

    def __init__(
        self,
        label: str | None = None,
        samples: Mapping[str, RolloutSample] | None = None,
        project_path: str | None = None,
        metadata: dict[str, Any] | None = None,
        artifacts_dir: Path | None = None,
        *,
        sample: RolloutSample | None = None,
    ) -> None:
        if sample is not None and samples:
            raise ValueError("pass sample or samples, not both")
        self.label = label
        self.samples = dict(samples or {})
        if sample is not None:
            self.samples[sample.id or DEFAULT_SAMPLE_ID] = sample
        self.project_path = project_path
        self.metadata = metadata
        self.artifacts_dir = artifacts_dir

    def get_samples(self) -> dict[str, RolloutSample]:
        """Return the samples by id, in registration order."""
        return self.samples

    def set_sample_reward(self, sample_id: str, reward: float) -> None:
        """Give one sample its reward.

        Raises:
            ValueError: No such sample, or the reward is not a finite number.
        """
        sample = self.samples.get(sample_id)
        if sample is None:
            known = ", ".join(map(repr, self.samples)) or "none"
            raise ValueError(f"no sample {sample_id!r} in this rollout; there is {known}")
        sample.reward = _checked(reward)

    @property
    def sample(self) -> RolloutSample | None:
        """The only sample; None when there is none.

        Raises:
            ValueError: There are several; names them.
        """
        return single_sample(self.samples)

    def set_reward(self, reward: float) -> None:
        """Give the only sample its reward.

        Raises:
            ValueError: There is no sample or there are several, or the reward is not a finite
                number.
        """
        sample = self.sample
        if sample is None:
            raise ValueError("no sample to reward")
        sample.reward = _checked(reward)


def _checked(reward: float | None) -> float | None:
    return None if reward is None else to_reward(reward)


class PolicyCallRefused(RuntimeError):
    """A grader tried to call the policy."""


class GradingScope:
    """A stretch of code in which the policy must not be called; counts the attempts.

    Attributes:
        judge_calls: How often a `Judge` answered.
        judge_input_tokens: What its answers took, as far as they said; `judge_output_tokens`
            likewise.
        judge_calls_without_usage: How many did not say.
    """

    def __init__(self) -> None:
        self.policy_calls_refused = 0
        self.judge_calls = self.judge_calls_without_usage = 0
        self.judge_input_tokens = self.judge_output_tokens = 0

    def count_judge_call(self, input_tokens: int | None, output_tokens: int | None) -> None:
        """Add what one answer of a judge took; None: the endpoint did not say."""
        self.judge_calls += 1
        if input_tokens is None or output_tokens is None:
            self.judge_calls_without_usage += 1
        self.judge_input_tokens += input_tokens or 0
        self.judge_output_tokens += output_tokens or 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Refuse the policy, and hide the rollout context, until the block is left."""
        scope = _grading_scope.set(self)
        context = rollout_contextvar.set(None)
        try:
            yield
        finally:
            rollout_contextvar.reset(context)
            _grading_scope.reset(scope)


def get_grading_scope() -> GradingScope | None:
    """Return the grading that goes on here, if any."""
    return _grading_scope.get()


def require_policy_allowed() -> None:
    """Check that no grading is going on here.

    Raises:
        PolicyCallRefused: One is; the attempt is counted.
    """
    scope = _grading_scope.get()
    if scope is not None:
        scope.policy_calls_refused += 1
        raise PolicyCallRefused(
            "the policy is not called while a grader runs: use a model of the grader's own"
        )
