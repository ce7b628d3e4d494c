"""The model that calls the active rollout's policy, and the placeholder for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import quote

from agents import Model, ModelBehaviorError, ModelResponse

from osmosis_ai.rollout.context import get_rollout_context, require_policy_allowed
from osmosis_ai.rollout.integrations.agents.journal import ModelCall, to_model_ask, to_usage
from osmosis_ai.rollout.integrations.agents.registration import claim_turn

if TYPE_CHECKING:
    from agents import (
        AgentOutputSchemaBase,
        Handoff,
        ModelRetryAdvice,
        ModelRetryAdviceRequest,
        ModelSettings,
        ModelTracing,
        Tool,
        TResponseInputItem,
        TResponseStreamEvent,
    )

    from osmosis_ai.rollout.context import RolloutContext
    from osmosis_ai.rollout.integrations.agents.endpoint_model import EndpointModel
    from osmosis_ai.rollout.integrations.agents.registration import SampleRegistration, Turn

__all__ = ["OsmosisLitellmModel", "OsmosisRolloutModel"]

MODEL_NAME = "openai/osmosis-rollout"
SAMPLE_ID_HEADER = "x-sample-id"
ROLLOUT_ID_HEADER = "x-rollout-id"


class OsmosisRolloutModel(Model):
    """Stands for the policy until an `OsmosisAgent` is built; sampling is in `ModelSettings`."""

    async def get_response(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse.

        Raises:
            RuntimeError: Always: the placeholder is not connected to anything.
        """
        _refuse_placeholder()

    def stream_response(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse.

        Raises:
            RuntimeError: Always: the placeholder is not connected to anything.
        """
        _refuse_placeholder()


def _refuse_placeholder() -> NoReturn:
    raise RuntimeError(
        "OsmosisRolloutModel is a placeholder and cannot be called: give it to an OsmosisAgent "
        "that is built inside AgentWorkflow.run()"
    )


class OsmosisLitellmModel(Model):
    """Calls the rollout's chat-completions endpoint through LiteLLM, always streaming.

    Each call carries the sample and rollout id as headers (a name outside ASCII percent-encoded)
    and is reported to the rollout's recorder. It needs an `OsmosisAgent` and a session of the
    same rollout in the same run.

    Args:
        context: The rollout; None: the active one.

    Raises:
        RuntimeError: No rollout is active.
        ImportError: LiteLLM is not installed.
    """

    model = MODEL_NAME

    def __init__(self, context: RolloutContext | None = None) -> None:
        context = context or get_rollout_context()
        if context is None:
            raise RuntimeError(
                "no rollout is active: build the agent inside AgentWorkflow.run(), or enter a "
                "RolloutContext first"
            )
        self._context = context
        self._inner = _connect(context)
        self.base_url = self._inner.base_url

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        previous_response_id: str | None = None,
        conversation_id: str | None = None,
        prompt: Any | None = None,
    ) -> ModelResponse:
        """Call the policy and return its whole answer."""
        events = self.stream_response(
            system_instructions,
            input,
            model_settings,
            tools,
            output_schema,
            handoffs,
            tracing,
            previous_response_id,
            conversation_id,
            prompt,
        )
        answer: ModelResponse | None = None
        async with aclosing(events):
            async for event in events:
                if event.type == "response.completed":
                    usage = to_usage(event.response)
                    answer = ModelResponse(event.response.output, usage, None)
        if answer is None:
            raise _unfinished()
        return answer

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        previous_response_id: str | None = None,
        conversation_id: str | None = None,
        prompt: Any | None = None,
    ) -> AsyncGenerator[TResponseStreamEvent]:
        """Call the policy and yield its answer as it comes.

        Raises:
            PolicyCallRefused: A grader is running.
            RuntimeError: No session of this rollout was used in this run, the rollout is not
                the active one, or it names no endpoint. Nothing was sent.
            ModelBehaviorError: The answer broke off.
        """
        registration, turn = self._claim(input)
        ask = to_model_ask(
            sample_id=registration.sample_id,
            model=MODEL_NAME,
            agent=turn.agent_name,
            settings=model_settings,
            instructions=system_instructions,
            tools=tools,
            handoffs=handoffs,
            output_schema=output_schema,
            model_input=input,
        )
        call = await ModelCall.begin(self._context, ask)
        events = self._inner.stream_response(
            system_instructions,
            input,
            self._routed(model_settings, registration.sample_id),
            tools,
            output_schema,
            handoffs,
            tracing,
            previous_response_id,
            conversation_id,
            prompt,
        )
        stream = cast("AsyncGenerator[TResponseStreamEvent]", events)
        async with aclosing(_reported(call, stream)) as reported:
            async for event in reported:
                yield event

    def _claim(self, model_input: object) -> tuple[SampleRegistration, Turn]:
        require_policy_allowed()
        self._context.require_active("the rollout model")
        claimed = claim_turn(self._context, model_input)
        if not self._context.chat_completions_url:
            raise RuntimeError(
                "the rollout names no endpoint: set OSMOSIS_CHAT_COMPLETIONS_URL or pass "
                "chat_completions_url to RolloutContext"
            )
        return claimed

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Return what LiteLLM's errors say about trying again."""
        return self._inner.get_retry_advice(request)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._inner.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._inner._cleanup_on_run_end(owner)

    def _routed(self, settings: ModelSettings, sample_id: str) -> ModelSettings:
        routing = {
            SAMPLE_ID_HEADER: to_header_text(sample_id),
            ROLLOUT_ID_HEADER: to_header_text(self._context.rollout_id),
        }
        extra_args = settings.extra_args
        if extra_args and "headers" in extra_args:  # LiteLLM's own argument, sent beside ours
            extra_args = {**extra_args, "headers": _without_routing(extra_args["headers"])}
        return replace(
            settings,
            include_usage=True,
            extra_headers={**_without_routing(settings.extra_headers), **routing},
            extra_args=extra_args,
        )


def _without_routing(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    ours = {SAMPLE_ID_HEADER, ROLLOUT_ID_HEADER}
    return {name: value for name, value in (headers or {}).items() if name.lower() not in ours}


def to_header_text(value: str) -> str:
    """Return an id as header text: what is outside ASCII percent-encoded as UTF-8."""
    return value if value.isascii() else quote(value, safe=" !#$&'()*+,:;=?@[]")


async def _reported(
    call: ModelCall, stream: AsyncGenerator[TResponseStreamEvent]
) -> AsyncGenerator[TResponseStreamEvent]:
    """Yield the events, the last one only when the recorder has the answer."""
    completed = False
    try:
        async with aclosing(stream):
            async for event in stream:
                if event.type == "response.completed":
                    await call.answered(event.response)
                    completed = True
                yield event
        if not completed:
            raise _unfinished()
    except BaseException as error:
        await call.failed(error)
        raise


def _unfinished() -> ModelBehaviorError:
    return ModelBehaviorError("the policy's answer ended without response.completed")


def _connect(context: RolloutContext) -> EndpointModel:
    from osmosis_ai.rollout.integrations.agents.endpoint_model import EndpointModel

    # Without any key LiteLLM would send the OpenAI key of the environment.
    return EndpointModel(
        MODEL_NAME, base_url=context.chat_completions_url, api_key=context.api_key or "no-key"
    )
