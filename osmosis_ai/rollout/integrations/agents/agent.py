"""An agent that calls the active rollout's policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents import Agent
from agents.run_context import TContext

from osmosis_ai.rollout.integrations.agents.model import OsmosisLitellmModel, OsmosisRolloutModel
from osmosis_ai.rollout.integrations.agents.registration import announce_turn

if TYPE_CHECKING:
    from agents import RunContextWrapper, Tool

__all__ = ["OsmosisAgent"]


class OsmosisAgent(Agent[TContext]):
    """A drop-in `agents.Agent`: an `OsmosisRolloutModel()` becomes the active rollout's model.

    Any other model stays as it is. Build the agent inside `AgentWorkflow.run()`.

    Raises:
        RuntimeError: The placeholder is given and no rollout is active.
    """

    def __post_init__(self) -> None:
        if isinstance(self.model, OsmosisRolloutModel):
            self.model = OsmosisLitellmModel()
        super().__post_init__()  # type: ignore[no-untyped-call] # the SDK's has no annotations

    async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        """Return the agent's tools; the Runner asks for them in its own task, once per turn."""
        announce_turn(run_context, self.name)
        return await super().get_all_tools(run_context)
