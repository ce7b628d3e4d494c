"""The OpenAI Agents SDK integration: agent, model placeholder and session for rollouts."""

from __future__ import annotations

try:
    import agents as _agents  # noqa: F401 # only to see whether it is there
except ModuleNotFoundError as error:
    if error.name != "agents":
        raise
    raise ImportError(
        "the OpenAI Agents integration needs the package openai-agents: "
        "pip install 'osmosis-store[litellm]'"
    ) from error

from osmosis_ai.rollout.integrations.agents.agent import OsmosisAgent
from osmosis_ai.rollout.integrations.agents.model import OsmosisLitellmModel, OsmosisRolloutModel
from osmosis_ai.rollout.integrations.agents.session import (
    OsmosisMemorySession,
    SessionSampleSource,
)

__all__ = [
    "OsmosisAgent",
    "OsmosisLitellmModel",
    "OsmosisMemorySession",
    "OsmosisRolloutModel",
    "SessionSampleSource",
]
