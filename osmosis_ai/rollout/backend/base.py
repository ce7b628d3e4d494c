"""The interface of everything that executes rollouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from osmosis_ai.rollout.types import ExecutionOutcome, ExecutionRequest, ExecutionResult

__all__ = ["ExecutionBackend", "ResultCallback"]

ResultCallback: TypeAlias = Callable[[ExecutionResult], Awaitable[None]]


class ExecutionBackend(ABC):
    """Executes rollouts, several at a time."""

    @abstractmethod
    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback | None = None,
        on_grader_complete: ResultCallback | None = None,
    ) -> ExecutionOutcome:
        """Run one rollout and grade it.

        Args:
            on_workflow_complete: Awaited exactly once, before grading.
            on_grader_complete: Awaited exactly once; a rollout that was not graded says why.

        Returns:
            Both results; user code's errors are in them and are not raised.
        """

    @property
    def max_concurrency(self) -> int:
        """How many rollouts run at once; 0: no limit."""
        return 0

    def health(self) -> dict[str, Any]:
        """Return `status` and whatever else a monitor may want, as JSON values."""
        return {"status": "ok"}
