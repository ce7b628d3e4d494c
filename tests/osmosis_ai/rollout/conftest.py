"""The scripted policy and the recorder double that rollout tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from osmosis_ai.eval.upstream import close_clients
from osmosis_ai.rollout import RolloutContext, RolloutSample
from osmosis_ai.rollout.recording import (
    GradeReport,
    ModelAnswer,
    ModelAsk,
    RolloutEnd,
    RolloutStart,
)
from tests.policy_endpoint import PolicyEndpoint, text


@pytest.fixture(scope="session")
def running_endpoint() -> Iterator[PolicyEndpoint]:
    endpoint = PolicyEndpoint()
    endpoint.start()
    yield endpoint
    endpoint.stop()


@pytest.fixture
async def endpoint(running_endpoint: PolicyEndpoint) -> AsyncIterator[PolicyEndpoint]:
    running_endpoint.answer_with(lambda call: text("ok"))
    yield running_endpoint
    await close_clients()


@pytest.fixture
def rollout(endpoint: PolicyEndpoint) -> Iterator[RolloutContext]:
    with RolloutContext(endpoint.url, "rollout-key", "r-1") as context:
        yield context


class Recorder:
    """Keeps what it is told, in order; `broken` names the methods that raise."""

    def __init__(self, *broken: str) -> None:
        self.broken = broken
        self.events: list[tuple[str, Any]] = []

    def named(self, name: str) -> list[Any]:
        return [value for event, value in self.events if event == name]

    @property
    def order(self) -> list[str]:
        return [event for event, _ in self.events]

    def _note(self, event: str, value: Any) -> None:
        self.events.append((event, value))
        if event in self.broken:
            raise OSError(f"disk full in {event}")

    async def rollout_started(self, start: RolloutStart) -> None:
        self._note("rollout_started", start)

    async def model_asked(self, rollout_id: str, ask: ModelAsk) -> int:
        self._note("model_asked", ask)
        return len(self.named("model_asked"))

    async def model_answered(self, rollout_id: str, call_no: int, answer: ModelAnswer) -> None:
        self._note("model_answered", (call_no, answer))

    async def model_failed(self, rollout_id: str, call_no: int, error: BaseException) -> None:
        self._note("model_failed", (call_no, error))

    async def samples_collected(self, rollout_id: str, samples: dict[str, RolloutSample]) -> None:
        self._note("samples_collected", dict(samples))

    async def rollout_finished(self, rollout_id: str) -> None:
        self._note("rollout_finished", rollout_id)

    async def rollout_failed(self, rollout_id: str, end: RolloutEnd) -> None:
        self._note("rollout_failed", end)

    async def graded(self, rollout_id: str, report: GradeReport) -> None:
        self._note("graded", report)
