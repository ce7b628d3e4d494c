"""How a session becomes a rollout's sample, and how the model learns which sample a run is for.

Neither LiteLLM nor the Agents SDK is imported here. A session registers itself and marks each run
that touches it; an agent announces each turn in the run's own task; the model claims the turn.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from osmosis_ai.rollout.context import RolloutContext, get_rollout_context

if TYPE_CHECKING:
    from agents import RunContextWrapper

    from osmosis_ai.rollout.context import SampleSource

__all__ = ["SampleRegistration", "Turn", "announce_turn", "claim_turn"]


class SampleRegistration:
    """A session's place in the rollout in which it was built, if there was one.

    Attributes:
        context: The rollout's context; None: the session was built outside any rollout.
        sample_id: The session's name.
    """

    def __init__(self, sample_id: str, source: SampleSource) -> None:
        """Register `source` as the sample `sample_id` of the active rollout, if one is active.

        Raises:
            ValueError: The rollout has a sample of that name, or the name is not one safe path
                segment.
        """
        self.sample_id = sample_id
        self.context: RolloutContext | None = get_rollout_context()
        if self.context is not None:
            self.context.register_sample_source(sample_id, source)

    def touch(self, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Check that the session is used where it was built, and mark the run as its own.

        Call it first in every session method.

        Args:
            wrapper: What the Runner passes; None: the caller is not a run.

        Raises:
            RuntimeError: Another rollout is active than the one it was built in, or none, or
                that rollout has ended.
        """
        user = f"session {self.sample_id!r}"
        if self.context is not None:
            self.context.require_active(user)
        elif (active := get_rollout_context()) is not None:
            raise RuntimeError(
                f"{user} was built outside rollout {active.rollout_id!r} and is not one of its "
                "samples: build it inside AgentWorkflow.run()"
            )
        if wrapper is not None:
            _registrations[wrapper] = self

    def fail(self, error: BaseException) -> None:
        """Make the rollout fail with this error even if the Runner or the workflow swallows it."""
        if self.context is not None:
            self.context.fail(error)


_registrations: WeakKeyDictionary[RunContextWrapper[Any], SampleRegistration] = WeakKeyDictionary()


class Turn:
    """One step of a run: whose it is, and the model call that it allows."""

    def __init__(self, wrapper: RunContextWrapper[Any], agent_name: str) -> None:
        self.wrapper = wrapper
        self.agent_name = agent_name
        self._input: object = None

    def claim(self, model_input: object) -> bool:
        """Tell whether a model call with this input belongs to the turn; retries share it."""
        if self._input is None:
            self._input = model_input
        return self._input is model_input

    @property
    def registration(self) -> SampleRegistration | None:
        """The session that this turn's run has touched; None: there is none."""
        return _registrations.get(self.wrapper)


_current_turn: ContextVar[Turn | None] = ContextVar("current_turn", default=None)


def announce_turn(wrapper: RunContextWrapper[Any], agent_name: str) -> None:
    """Say in the run's own task that its next model call is for the run of `wrapper`."""
    _current_turn.set(Turn(wrapper, agent_name))


def claim_turn(context: RolloutContext, model_input: object) -> tuple[SampleRegistration, Turn]:
    """Return the session and the turn that a model call is for.

    Raises:
        RuntimeError: No session of this rollout was used in this run.
    """
    turn = _current_turn.get()
    if turn is None or not turn.claim(model_input):
        raise RuntimeError(
            "the rollout model was called outside a run of an OsmosisAgent: nothing tells which "
            "sample the call belongs to. Use OsmosisAgent instead of Agent, and Runner.run"
        )
    registration = turn.registration
    if registration is None or registration.context is not context:
        raise RuntimeError(
            f"agent {turn.agent_name!r} runs without a session of this rollout: nothing was sent. "
            'Pass session=OsmosisMemorySession(name="…") to Runner.run, or to as_tool when the '
            "agent is a tool; a session that wraps it has to hand `wrapper` on"
        )
    return registration, turn
