"""Chat-completions requests as the endpoint accepts them, and the policy that answers them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

__all__ = ["ChatRequest", "Policy", "RequestRefused", "UpstreamError", "parse_request"]

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
OWN_KEYS = ("model", "messages", "stream", "stream_options")


class RequestRefused(Exception):
    """A request is not one that the endpoint answers; the text names what is wrong with it."""


class UpstreamError(Exception):
    """The policy did not answer.

    Attributes:
        status: The HTTP status under which the waiting call learns of it.
        retry_after: The provider's `retry-after` header; None without one.
    """

    def __init__(self, message: str, *, status: int, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after

    @property
    def systemic(self) -> bool:
        """Whether every further call would fail alike: payment, key, right or model is missing."""
        return self.status in (401, 402, 403, 404)


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """One model call: `parameters` is everything beside model, messages and streaming."""

    messages: list[dict[str, Any]]
    include_usage: bool
    parameters: dict[str, Any]


class Policy(Protocol):
    """The model behind the endpoint; all its coroutines run on the endpoint's loop."""

    def stream(self, request: ChatRequest) -> AsyncGenerator[Mapping[str, Any]]:
        """Yield an answer as chat completion chunks, usage in the last one.

        Raises:
            RequestRefused: A parameter cannot be passed on; names it.
            UpstreamError: There is no answer, or it broke off.
        """
        ...

    async def preflight(self) -> None:
        """Find out whether the model answers at all.

        Raises:
            UpstreamError: It does not; being told to slow down counts as an answer.
        """
        ...

    async def close(self) -> None:
        """Let go of connections; safe to call twice."""
        ...


def parse_request(body: bytes) -> ChatRequest:
    """Return a request from its JSON body.

    Raises:
        RequestRefused: JSON, messages or a parameter is not usable; names which.
    """
    try:
        data = json.loads(body)
    except ValueError as error:
        raise RequestRefused(f"the body is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise RequestRefused("the body is not a JSON object")
    if data.get("stream") is not True:
        raise RequestRefused('stream: this endpoint only streams; send "stream": true')
    if data.get("n") not in (None, 1):
        raise RequestRefused("n: this endpoint gives one choice per call")
    return ChatRequest(
        messages=_check_messages(data.get("messages")),
        include_usage=_check_stream_options(data.get("stream_options") or {}),
        parameters={k: v for k, v in data.items() if k not in OWN_KEYS and v is not None},
    )


def _check_stream_options(options: Any) -> bool:
    if not isinstance(options, dict):
        raise RequestRefused("stream_options: not an object")
    for key in options:
        if key != "include_usage":
            raise RequestRefused(f"stream_options.{key}: not supported by this endpoint")
    return bool(options.get("include_usage"))


def _check_messages(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise RequestRefused("messages: not a list with at least one message")
    for position, message in enumerate(messages):
        _check_message(f"messages[{position}]", message)
    return messages


def _check_message(where: str, message: Any) -> None:
    def refuse(problem: str) -> NoReturn:
        raise RequestRefused(f"{where}{problem}")

    if not isinstance(message, dict):
        refuse(": not an object")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        refuse(f".role: {role!r} is none of {', '.join(ROLES)}")
    if not isinstance(content, str | list | None):
        refuse(".content: neither text nor a list of parts")
    if isinstance(content, list) and not all(isinstance(part, dict) for part in content):
        refuse(".content: a part is not an object")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        refuse(".tool_call_id: missing on a tool message")
    for number, call in enumerate(message.get("tool_calls") or ()):
        if not isinstance(call, dict) or not isinstance(call.get("id"), str):
            refuse(f".tool_calls[{number}]: not an object with an id")
