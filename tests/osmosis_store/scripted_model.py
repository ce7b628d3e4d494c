"""A model for the Agents SDK that plays a script, plain or streamed."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from agents import Agent, ModelResponse, Runner, Session, Usage
from agents.models.interface import Model
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)


class ScriptedModel(Model):
    """Gives one step of the script per call: output items, or an exception to raise.

    Attributes:
        seen: The input of each call.
    """

    def __init__(self, *script: Any) -> None:
        self._script = list(script)
        self.seen: list[Any] = []

    def _play(self, given: Any) -> Any:
        self.seen.append(copy.deepcopy(given))
        step = self._script.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        return ModelResponse(output=self._play(input), usage=Usage(), response_id="resp_1")

    async def stream_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        response = Response(
            id="resp_1",
            created_at=0,
            model="scripted",
            object="response",
            output=self._play(input),
            tool_choice="none",
            tools=[],
            parallel_tool_calls=False,
        )
        yield ResponseCompletedEvent(
            type="response.completed", response=response, sequence_number=0
        )


def says(text: str, item_id: str = "msg_1") -> ResponseOutputMessage:
    part = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(
        id=item_id, type="message", role="assistant", status="completed", content=[part]
    )


def calls(name: str, call_id: str = "c1", **arguments: Any) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        type="function_call",
        id=f"fc_{call_id}",
        call_id=call_id,
        name=name,
        arguments=json.dumps(arguments),
    )


async def run(how: str, agent: Agent[Any], given: Any, session: Session, **options: Any) -> Any:
    """Run an agent, "plain" or "streamed", to its end."""
    if how == "plain":
        return await Runner.run(agent, given, session=session, **options)
    result = Runner.run_streamed(agent, given, session=session, **options)
    async for _ in result.stream_events():
        pass
    return result


def kinds(items: Iterable[Any]) -> list[str]:
    return [item.get("type") or item["role"] for item in items]
