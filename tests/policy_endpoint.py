"""A loopback chat-completions endpoint that streams scripted answers, for tests of the policy."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

# For `pytestmark` of modules in which LiteLLM calls a model: what it does to pydantic warns.
LITELLM_WARNINGS = [
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*`ReadOnly` qualifier:UserWarning"),
]


@dataclass(frozen=True)
class PolicyCall:
    """What the endpoint was sent."""

    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def sample_id(self) -> str:
        return self.headers["x-sample-id"]


@dataclass(frozen=True)
class Answer:
    """What the endpoint sends back: deltas in order, or an HTTP error."""

    deltas: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = "stop"
    usage: dict[str, Any] | None = field(
        default_factory=lambda: {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    )
    status: int = 200
    delay_s: float = 0.0
    raw: str | None = None


def text(content: str, **options: Any) -> Answer:
    """Return an answer of that text, in two chunks."""
    half = len(content) // 2
    pieces = [content[:half], content[half:]] if half else [content]
    return Answer([{"content": piece} for piece in pieces], **options)


def tool_call(name: str, /, call_id: str = "call_1", **arguments: Any) -> Answer:
    """Return an answer that calls one tool."""
    return tool_calls((name, call_id, arguments))


def tool_calls(*calls: tuple[str, str, dict[str, Any]]) -> Answer:
    """Return an answer that calls several tools, each with an index of its own."""
    deltas: list[dict[str, Any]] = []
    for index, (name, call_id, arguments) in enumerate(calls):
        function = {"name": name, "arguments": ""}
        first = {"index": index, "id": call_id, "type": "function", "function": function}
        rest = {"index": index, "function": {"arguments": json.dumps(arguments)}}
        deltas += [{"tool_calls": [first]}, {"tool_calls": [rest]}]
    return Answer(deltas, finish_reason="tool_calls")


def failing(status: int, message: str = "scripted failure") -> Answer:
    """Return an HTTP error that clients do not retry by themselves."""
    return Answer(status=status, raw=json.dumps({"error": {"message": message}}))


Script = Callable[[PolicyCall], Answer]


class PolicyEndpoint:
    """The endpoint: `answer_with` sets what the next calls get, `calls` is what came."""

    def __init__(self) -> None:
        self.calls: list[PolicyCall] = []
        self.called = threading.Event()
        self._script: Script = lambda call: text("ok")
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        app = Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])
        config = uvicorn.Config(app, log_level="error", lifespan="off", ws="none", http="h11")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    def start(self) -> None:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)

    def stop(self) -> None:
        self._server.force_exit = self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    def answer_with(self, script: Script | Iterable[Answer]) -> None:
        """Answer the next calls in this order, or by a function of the call."""
        self.calls.clear()
        self.called.clear()
        if callable(script):
            self._script = script
        else:
            answers = iter(script)
            self._script = lambda call: next(answers)

    async def _complete(self, request: Request) -> Response:
        call = PolicyCall(dict(request.headers), await request.json())
        self.calls.append(call)
        self.called.set()
        answer = self._script(call)
        if answer.status != 200:
            return JSONResponse(
                json.loads(answer.raw or "{}"), answer.status, {"x-should-retry": "false"}
            )
        return StreamingResponse(_stream(call, answer), media_type="text/event-stream")


async def _stream(call: PolicyCall, answer: Answer) -> AsyncIterator[str]:
    await anyio.sleep(answer.delay_s)
    if answer.raw is not None:
        yield answer.raw
        return
    for delta in answer.deltas:
        yield _event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])
    yield _event(choices=[{"index": 0, "delta": {}, "finish_reason": answer.finish_reason}])
    if answer.usage is not None and call.body.get("stream_options", {}).get("include_usage"):
        yield _event(choices=[], usage=answer.usage)
    yield "data: [DONE]\n\n"


def _event(**fields: Any) -> str:
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "scripted",
        **fields,
    }
    return f"data: {json.dumps(chunk)}\n\n"
