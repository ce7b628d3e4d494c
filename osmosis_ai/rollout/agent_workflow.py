"""The program that a rollout executes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from osmosis_ai.rollout.context import AgentWorkflowContext
from osmosis_ai.rollout.types import AgentWorkflowConfig, AgentWorkflowOutput, MessageDict

__all__ = ["AgentWorkflow"]

TConfig = TypeVar("TConfig", bound=AgentWorkflowConfig)


class AgentWorkflow(ABC, Generic[TConfig]):
    """Base of user workflows; a new instance is made for each execution."""

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def run(
        self, ctx: AgentWorkflowContext[TConfig]
    ) -> AgentWorkflowOutput | list[MessageDict] | Any | None:
        """Execute one rollout.

        Returns:
            None when sessions hold the samples; a message list for one sample without a
            session; or an `AgentWorkflowOutput`. Anything else fails the rollout.
        """
