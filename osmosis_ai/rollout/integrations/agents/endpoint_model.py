"""The Agents SDK's LiteLLM model, which takes an answer for whole only when the endpoint says so.

The only module of the integration that imports LiteLLM: import it when a model is built.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import Any

from agents import ModelBehaviorError

# Without it LiteLLM fetches a price list while it is imported.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

try:
    import litellm
except ModuleNotFoundError as error:
    if error.name != "litellm":
        raise
    raise ImportError(
        "the rollout model needs the package litellm: pip install 'osmosis-store[litellm]'"
    ) from error

from agents.extensions.models.litellm_model import LitellmModel

__all__ = ["EndpointModel"]

litellm.suppress_debug_info = True  # it prints advice to standard output on errors


class EndpointModel(LitellmModel):
    """A `LitellmModel` that refuses streams which end without a finish reason.

    LiteLLM makes up a finish reason for them, so a broken or empty answer would pass for whole.
    """

    async def _fetch_response(self, *args: Any, **kwargs: Any) -> Any:
        fetched = await super()._fetch_response(*args, **kwargs)
        if not isinstance(fetched, tuple):
            return fetched
        response, stream = fetched
        return response, _whole(stream)


async def _whole(stream: Any) -> AsyncGenerator[Any]:
    try:
        async for chunk in stream:
            yield chunk
        if getattr(stream, "received_finish_reason", "unknown") is None:
            raise ModelBehaviorError("the policy's answer ended without a finish reason")
    finally:
        if hasattr(stream, "aclose"):
            await stream.aclose()
