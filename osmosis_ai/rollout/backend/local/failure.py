"""Why a rollout failed, in the forms that results and recorders take."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Self

from osmosis_ai.rollout.grading import TRACEBACK
from osmosis_ai.rollout.recording import RolloutEnd
from osmosis_ai.rollout.types import (
    ExecutionResult,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from osmosis_ai.rollout.utils.error_message import error_message

__all__ = ["Failure"]


@dataclass(frozen=True)
class Failure:
    """An error with its category, and whether it means failed or cancelled."""

    error: BaseException
    category: RolloutErrorCategory
    status: RolloutStatus = RolloutStatus.FAILURE

    @classmethod
    def of_program(cls, error: BaseException) -> Self:
        """Return the failure for an error of user code."""
        return cls(error, RolloutErrorCategory.of(error))

    @classmethod
    def of_recorder(cls, error: BaseException) -> Self:
        """Return the failure for an error of whoever stores the rollout."""
        category = RolloutErrorCategory.of(error)
        if category is RolloutErrorCategory.AGENT_ERROR:
            category = RolloutErrorCategory.INTERNAL_ERROR
        return cls(error, category)

    @property
    def message(self) -> str:
        """What the error says, with its notes; its type's name when it says nothing."""
        return "; ".join([error_message(self.error), *getattr(self.error, "__notes__", [])])

    @property
    def traceback(self) -> str:
        """The formatted traceback."""
        return "".join(traceback.format_exception(self.error))

    def to_end(self) -> RolloutEnd:
        """Return it as a recorder is told."""
        return RolloutEnd(
            status=self.status,
            error_category=self.category,
            error_message=self.message,
            error_traceback=self.traceback,
        )

    def to_result(self, samples: dict[str, RolloutSample]) -> ExecutionResult:
        """Return it as a caller is told, with the samples there are."""
        return ExecutionResult(
            status=self.status,
            samples=samples,
            err_message=self.message,
            err_category=self.category,
            extra_fields={TRACEBACK: self.traceback},
        )
