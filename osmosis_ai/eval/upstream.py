"""The real policy: a model that is called through LiteLLM."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from osmosis_ai.eval.chat import ChatRequest, RequestRefused, UpstreamError
from osmosis_ai.eval.errors import EvalError
from osmosis_ai.rollout.utils.redaction import redact

__all__ = ["LiteLLMPolicy", "close_clients"]

PREFLIGHT_TIMEOUT_S = 60.0
# Clients refuse an empty key; LiteLLM, given none, would take one from the environment.
NO_KEY = "no-key"
# These sign requests with the machine's own credentials, never with a key that we hand over.
AMBIENT_PROVIDERS = ("bedrock", "sagemaker", "vertex_ai")
# Arguments of LiteLLM's function that steer LiteLLM itself and are not in its own list of those.
CONTROLS = frozenset(
    [
        "additional_drop_params",
        "aws_region_name",
        "azure_ad_token",
        "base_url",
        "deployment_id",
        "drop_params",
        "extra_body",
        "extra_headers",
        "extra_query",
        "mock_delay",
        "mock_tool_calls",
        "organization",
        "session_id",
        "timeout",
    ]
)


class LiteLLMPolicy:
    """Calls one model for every rollout; the client decides about retries, this does none."""

    def __init__(
        self, model: str, *, base_url: str | None, api_key: str | None, timeout_s: float
    ) -> None:
        """Import LiteLLM, which takes seconds.

        Args:
            base_url: Of an OpenAI-compatible server; None: the provider's own.
            api_key: None: no key is sent, whatever the environment holds.

        Raises:
            EvalError: LiteLLM is not installed.
        """
        self._litellm = _import_litellm()
        self._own_parameters = frozenset(self._litellm.types.utils.all_litellm_params)
        self._model, self._base_url, self._secret = model, base_url, api_key
        self._api_key = api_key or (None if model.startswith(AMBIENT_PROVIDERS) else NO_KEY)
        self._timeout_s = timeout_s

    async def stream(self, request: ChatRequest) -> AsyncGenerator[Mapping[str, Any]]:
        """Yield the model's chunks; every parameter is forwarded or refused by name."""
        for key in request.parameters:
            if key.startswith("_") or key in CONTROLS or key in self._own_parameters:
                raise RequestRefused(f"{key}: not a parameter that can be passed on to a model")
        try:
            answer = await self._litellm.acompletion(
                model=self._model,
                messages=request.messages,
                base_url=self._base_url,
                api_key=self._api_key,
                timeout=self._timeout_s,
                max_retries=0,
                num_retries=0,
                stream=True,
                stream_options={"include_usage": True},
                **request.parameters,
            )
            async with aclosing(answer):
                async for chunk in answer:
                    yield chunk.model_dump(mode="json", exclude_none=True)
        except Exception as error:
            raise self._to_upstream_error(error) from error

    async def preflight(self) -> None:
        """Ask for one answer and read no more of it than its first chunk.

        Raises:
            UpstreamError: The model does not answer; a rate limit counts as an answer.
        """
        ask = ChatRequest(
            messages=[{"role": "user", "content": "Reply with OK."}],
            include_usage=False,
            parameters={},
        )
        try:
            async with asyncio.timeout(PREFLIGHT_TIMEOUT_S), aclosing(self.stream(ask)) as chunks:
                await anext(chunks)
        except TimeoutError:
            problem = f"no answer within {PREFLIGHT_TIMEOUT_S:g} s"
            raise UpstreamError(problem, status=504) from None
        except StopAsyncIteration:
            raise UpstreamError("the model's answer is empty", status=502) from None
        except UpstreamError as error:
            if error.status != 429:
                raise

    async def close(self) -> None:
        """Close the connections that LiteLLM keeps open in this event loop."""
        await close_clients()

    def _to_upstream_error(self, error: Exception) -> UpstreamError:
        # An answer that broke off comes wrapped; what broke it has the honest status.
        error = getattr(error, "original_exception", None) or error
        status = getattr(error, "status_code", None)
        response = getattr(error, "response", None)
        headers = getattr(response, "headers", None) or {}
        return UpstreamError(
            redact(f"{self._model}: {error}", self._secret),
            status=status if isinstance(status, int) and 400 <= status < 600 else 502,
            retry_after=headers.get("retry-after"),
        )


async def close_clients() -> None:
    """Close the connections that LiteLLM, if it is in use, keeps open in this event loop."""
    litellm = sys.modules.get("litellm")
    if litellm is not None:
        await litellm.close_litellm_async_clients()
        litellm.in_memory_llm_clients_cache.flush_cache()  # else it hands closed ones out again


def _import_litellm() -> Any:
    # Without it the import fetches a price list from the network.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ModuleNotFoundError as error:
        if error.name != "litellm":
            raise
        hint = 'install osmosis-store[litellm], or set [llm] model = "scripted"'
        raise EvalError("calling a model needs the package litellm", hint=hint) from error
    litellm.suppress_debug_info = True
    litellm.disable_aiohttp_transport = True
    return litellm
