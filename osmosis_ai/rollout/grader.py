"""The program that judges a rollout's samples."""

from __future__ import annotations

from abc import ABC, abstractmethod

from osmosis_ai.rollout.context import GraderContext
from osmosis_ai.rollout.types import GraderConfig

__all__ = ["Grader"]


class Grader(ABC):
    """Base of user graders; a new instance is made for each grading."""

    def __init__(self, config: GraderConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> None:
        """Set a reward for each sample through `ctx`, or mark the sample as removed."""
