"""A stand-in for a model provider: a real HTTP server that speaks the OpenAI wire protocol."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "stand-in",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }


USAGE = {
    **chunk({}),
    "choices": [],
    "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
}
HELLO = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Hel"}),
    chunk({"content": "lo"}),
    chunk({}, "stop"),
    USAGE,
]


class Provider:
    """Answers every call with the same chunks, or with an error status; remembers what came.

    Attributes:
        answer: Chooses the chunks by the request's body, in a thread per call, instead.
    """

    def __init__(self) -> None:
        self.chunks: list[dict[str, Any]] = HELLO
        self.answer: Callable[[dict[str, Any]], list[dict[str, Any]]] | None = None
        self.error: tuple[int, dict[str, Any], dict[str, str]] | None = None
        self.gate: threading.Event | None = None
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.client_gone = threading.Event()
        self.url = ""

    def fail(self, status: int, message: str, **headers: str) -> None:
        self.error = (status, {"error": {"message": message, "code": "x"}}, headers)


class _Handler(BaseHTTPRequestHandler):
    provider: Provider

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def do_POST(self) -> None:
        provider = self.provider
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        provider.bodies.append(body)
        provider.headers.append({k.lower(): v for k, v in self.headers.items()})
        if provider.error is not None:
            status, answer, headers = provider.error
            self._send_head(status, "application/json", headers)
            self.wfile.write(json.dumps(answer).encode())
            return
        chunks = provider.chunks if provider.answer is None else provider.answer(body)
        try:
            self._send_head(200, "text/event-stream", {})
            for position, data in enumerate(chunks):
                if position and provider.gate is not None:
                    self._wait_at(provider.gate)
                self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            provider.client_gone.set()

    def _send_head(self, status: int, media_type: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-type": media_type, "connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _wait_at(self, gate: threading.Event) -> None:
        while not gate.wait(0.02):
            self.wfile.write(b": still here\n\n")
            self.wfile.flush()


@contextmanager
def serve_provider() -> Iterator[Provider]:
    provider = Provider()
    handler = type("Handler", (_Handler,), {"provider": provider})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    provider.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def wait_for(event: threading.Event) -> bool:
    return await asyncio.to_thread(event.wait, 5)
