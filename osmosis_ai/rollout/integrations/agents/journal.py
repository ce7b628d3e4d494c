"""Reporting each model call to the rollout's recorder, before and after it is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from agents import ModelResponse, Usage
from agents.models.chatcmpl_converter import Converter
from pydantic_core import to_jsonable_python

from osmosis_ai.rollout.recording import ModelAnswer, ModelAsk, TokenUsage

if TYPE_CHECKING:
    from agents import AgentOutputSchemaBase, Handoff, ModelSettings, Tool, TResponseInputItem
    from openai.types.responses import Response

    from osmosis_ai.rollout.context import RolloutContext

__all__ = ["ModelCall", "to_model_ask", "to_usage"]

_UNSENT = {"extra_headers", "retry"}
_SECRET = re.compile(r"(?i)api[-_]?key|secret|passw|authoriz|credential|(^|[-_])(token|key)$")


class ModelCall:
    """One model call on its way; without a recorder it reports to nobody.

    A recorder that raises fails the rollout, also when somebody swallows the error on its way.
    """

    def __init__(self, context: RolloutContext, call_no: int | None) -> None:
        self._context = context
        self._call_no = call_no

    @classmethod
    async def begin(cls, context: RolloutContext, ask: ModelAsk) -> ModelCall:
        """Report that the call is about to be sent."""
        if context.recorder is None:
            return cls(context, None)
        with _failing(context):
            call_no = await context.recorder.model_asked(context.rollout_id, ask)
        return cls(context, call_no)

    async def answered(self, response: Response) -> None:
        """Report the answer; durable before any of its tools run."""
        recorder, call_no = self._context.recorder, self._close()
        if recorder is None or call_no is None:
            return
        output = ModelResponse(response.output, Usage(), None).to_input_items()
        answer = ModelAnswer(
            output=output, usage=_to_token_usage(to_usage(response)), response_id=response.id
        )
        with _failing(self._context):
            await recorder.model_answered(self._context.rollout_id, call_no, answer)

    async def failed(self, error: BaseException) -> None:
        """Report that the call ended without an answer, unless its end is reported already."""
        recorder, call_no = self._context.recorder, self._close()
        if recorder is None or call_no is None:
            return
        with _failing(self._context):
            await recorder.model_failed(self._context.rollout_id, call_no, error)

    def _close(self) -> int | None:
        call_no, self._call_no = self._call_no, None
        return call_no


@contextmanager
def _failing(context: RolloutContext) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        context.fail(error)
        raise


def to_usage(response: Response) -> Usage:
    """Return a response's usage as one request; what is missing is zero."""
    usage = Usage(requests=1)
    if response.usage is None:
        return usage
    usage.input_tokens = response.usage.input_tokens or 0
    usage.output_tokens = response.usage.output_tokens or 0
    usage.total_tokens = response.usage.total_tokens or 0
    if response.usage.input_tokens_details is not None:
        usage.input_tokens_details = response.usage.input_tokens_details
    if response.usage.output_tokens_details is not None:
        usage.output_tokens_details = response.usage.output_tokens_details
    return usage


def _to_token_usage(usage: Usage) -> TokenUsage:
    return TokenUsage(
        input_tokens=usage.input_tokens,
        cached_tokens=usage.input_tokens_details.cached_tokens or 0,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.output_tokens_details.reasoning_tokens or 0,
    )


def to_model_ask(
    *,
    sample_id: str,
    model: str,
    agent: str,
    settings: ModelSettings,
    instructions: str | None,
    tools: Sequence[Tool],
    handoffs: Sequence[Handoff[Any, Any]],
    output_schema: AgentOutputSchemaBase | None,
    model_input: str | list[TResponseInputItem],
) -> ModelAsk:
    """Describe a model call in JSON values, as the model sees it and without secrets."""
    schemas: list[Any] = [Converter.tool_to_openai(tool) for tool in tools]
    schemas += [Converter.convert_handoff_tool(handoff) for handoff in handoffs]
    if isinstance(model_input, str):
        model_input = [{"role": "user", "content": model_input}]
    return ModelAsk(
        sample_id=sample_id,
        model=model,
        agent=agent,
        settings=_to_options(settings, output_schema),
        instructions=instructions,
        tools=to_jsonable_python(schemas, fallback=repr),
        input=[dict(item) for item in model_input],
    )


def _to_options(
    settings: ModelSettings, output_schema: AgentOutputSchemaBase | None
) -> dict[str, Any]:
    given = {
        field.name: getattr(settings, field.name)
        for field in fields(settings)
        if field.name not in _UNSENT and getattr(settings, field.name) is not None
    }
    if "extra_args" in given:
        sent = {name: value for name, value in given["extra_args"].items() if name != "headers"}
        given["extra_args"] = sent
    options: dict[str, Any] = _without_secrets(to_jsonable_python(given, fallback=repr))
    if output_schema is not None:
        response_format = Converter.convert_response_format(output_schema)
        options["response_format"] = to_jsonable_python(response_format, fallback=repr)
    return options


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: "[removed]" if _SECRET.search(key) else _without_secrets(item)
            for key, item in value.items()
        }
    return [_without_secrets(item) for item in value] if isinstance(value, list) else value
