"""The scripted policy: answers from a file, with no network and no key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    ValidationError,
    model_validator,
)

from osmosis_ai.eval.chat import ChatRequest, RequestRefused, UpstreamError
from osmosis_ai.eval.errors import ScriptError

__all__ = ["ScriptedPolicy", "load_script"]

PIECE_LENGTH = 12
CHARACTERS_PER_TOKEN = 4

# What has no meaning for a policy without sampling; everything else is refused by name.
ACCEPTED_PARAMETERS = frozenset(
    [
        "frequency_penalty",
        "logit_bias",
        "max_completion_tokens",
        "max_tokens",
        "metadata",
        "n",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt_cache_key",
        "reasoning_effort",
        "response_format",
        "seed",
        "service_tier",
        "stop",
        "store",
        "temperature",
        "tool_choice",
        "tools",
        "top_p",
        "user",
        "verbosity",
    ]
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _ToolCall(_Strict):
    name: str = Field(min_length=1)
    arguments: dict[str, Any] | str = Field(default_factory=dict)

    def to_arguments(self) -> str:
        text = self.arguments
        return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)


class _Reply(_Strict):
    content: str | None = None
    tool_calls: list[_ToolCall] = Field(default_factory=list)
    delay_s: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _says_something(self) -> _Reply:
        if self.content is None and not self.tool_calls:
            raise ValueError("a reply has content, tool_calls or both")
        return self


class _Rule(_Strict):
    match: str | None = Field(default=None, min_length=1)
    replies: list[_Reply] = Field(min_length=1)


def load_script(path: Path, *, name: str) -> ScriptedPolicy:
    """Read a scripted policy: one rule per line, as a JSON object; blank lines are skipped.

    A rule is `{"match": "text", "replies": [{"content": …, "tool_calls": [{"name", "arguments"}],
    "delay_s": …}, …]}`. The newest user message that contains a `match` decides, the longest match
    wins; a rule without `match` answers what no other rule does. The reply is chosen by the number
    of assistant messages that follow that user message.

    Args:
        name: The path as error texts show it.

    Raises:
        ScriptError: A line is not a rule, or there is none; names it.
    """
    rules: dict[int, _Rule] = {}
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            rules[number] = _parse_rule(name, number, line)
    matches = [rule.match for rule in rules.values()]
    for number, rule in rules.items():
        if matches.count(rule.match) > 1:
            raise ScriptError(name, f"another rule has the same match {rule.match!r}", line=number)
    if not rules:
        raise ScriptError(name, "has no rules")
    return ScriptedPolicy(name, rules)


def _parse_rule(name: str, number: int, line: bytes) -> _Rule:
    try:
        return _Rule.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        problem = f"{where}: {first['msg']}" if where else first["msg"]
        raise ScriptError(name, problem, line=number) from None


@dataclass(frozen=True)
class ScriptedPolicy:
    """Plays a script; the same conversation gets the same answer, whatever runs beside it.

    Attributes:
        name: The script's path as error texts show it.
        rules: By line number.
    """

    name: str
    rules: Mapping[int, _Rule]

    async def preflight(self) -> None:
        """Do nothing: the script was read when it was loaded."""

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def stream(self, request: ChatRequest) -> AsyncGenerator[Mapping[str, Any]]:
        """Yield the reply in pieces, token counts in the last chunk.

        A token is four characters, rounded up: of messages and tools as JSON for the input, of
        content, tool names and arguments for the output.

        Raises:
            RequestRefused: A parameter means nothing to a script; names it.
            UpstreamError: No rule matches, or the rule has no further reply.
        """
        for key in request.parameters:
            if key not in ACCEPTED_PARAMETERS:
                raise RequestRefused(f"{key}: not supported by the scripted model")
        number, position = self._choose(request.messages)
        reply = self.rules[number].replies[position]
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        answer_id = f"{number}_{position}"
        for delta in _to_deltas(reply, answer_id):
            yield _to_chunk(answer_id, delta)
            # Give way, so that pieces leave one by one as a model's tokens would.
            await asyncio.sleep(0)
        yield _to_chunk(answer_id, {}, finish_reason="tool_calls" if reply.tool_calls else "stop")
        yield {**_to_chunk(answer_id, {}), "choices": [], "usage": _count_tokens(request, reply)}

    def _choose(self, messages: list[dict[str, Any]]) -> tuple[int, int]:
        newest: tuple[str, int] | None = None
        answers = 0
        for message in reversed(messages):
            if message["role"] == "assistant":
                answers += 1
            elif message["role"] == "user":
                text = _to_text(message.get("content"))
                newest = newest or (text, answers)
                if (number := self._find(text)) is not None:
                    return number, self._require_reply(number, answers)
        text, answers = newest or ("", answers)
        for number, rule in self.rules.items():
            if rule.match is None:
                return number, self._require_reply(number, answers)
        raise UpstreamError(f"{self.name}: no rule matches {text[:80]!r}", status=400)

    def _find(self, text: str) -> int | None:
        found = [
            (len(rule.match), -n)
            for n, rule in self.rules.items()
            if rule.match and rule.match in text
        ]
        return -max(found)[1] if found else None

    def _require_reply(self, number: int, position: int) -> int:
        replies = len(self.rules[number].replies)
        if position >= replies:
            raise UpstreamError(
                f"{self.name} line {number}: the conversation asks for reply {position + 1}, "
                f"the rule has {replies}",
                status=400,
            )
        return position


def _to_text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content)
    return content or ""


def _to_deltas(reply: _Reply, answer_id: str) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in _cut(reply.content or ""):
        yield {"content": piece}
    for index, call in enumerate(reply.tool_calls):
        head = {"index": index, "id": f"call_{answer_id}_{index}", "type": "function"}
        yield {"tool_calls": [{**head, "function": {"name": call.name, "arguments": ""}}]}
        for piece in _cut(call.to_arguments()):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _cut(text: str) -> list[str]:
    return [text[start : start + PIECE_LENGTH] for start in range(0, len(text), PIECE_LENGTH)]


def _to_chunk(
    answer_id: str, delta: dict[str, Any], finish_reason: str | None = None
) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer_id}",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }


def _count_tokens(request: ChatRequest, reply: _Reply) -> dict[str, int]:
    asked = json.dumps([request.messages, request.parameters.get("tools")], ensure_ascii=False)
    said = [reply.content or ""]
    said += [call.name + call.to_arguments() for call in reply.tool_calls]
    prompt, completion = (-(-len(text) // CHARACTERS_PER_TOKEN) for text in (asked, "".join(said)))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
