"""The local chat-completions endpoint: loopback only, in a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hmac
import json
import secrets
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis_ai.eval.chat import ChatRequest, Policy, RequestRefused, UpstreamError, parse_request
from osmosis_ai.eval.chunks import tidy_chunks

__all__ = ["Endpoint"]

HOST = "127.0.0.1"
REQUIRED_HEADERS = ("x-rollout-id", "x-sample-id")
EVENT_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
STOP_GRACE_S = 1


class Endpoint:
    """Serves one policy to the rollouts of this process; an async context manager.

    Entering it starts the thread, asks the policy for its preflight and serves; leaving it breaks
    off what is still being answered and joins the thread.

    Attributes:
        url: The base URL: `POST {url}/chat/completions`.
        api_key: The bearer token that every call must carry; new for each endpoint.
    """

    def __init__(self, policy: Policy, *, on_systemic: Callable[[UpstreamError], object]) -> None:
        """Prepare an endpoint without starting it.

        Args:
            on_systemic: Called, in the endpoint's thread and before the waiting call is answered,
                with an error that every further call would meet as well.
        """
        self.api_key = secrets.token_urlsafe(32)
        self.url = ""
        self._policy = policy
        self._on_systemic = on_systemic
        self._upstream_calls = 0
        self._loop: concurrent.futures.Future[asyncio.AbstractEventLoop] = (
            concurrent.futures.Future()
        )
        app = Starlette(routes=[Route("/chat/completions", self._complete, methods=["POST"])])
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=STOP_GRACE_S,
            )
        )
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="osmosis-endpoint", daemon=True
        )

    @property
    def upstream_calls(self) -> int:
        """How many calls the policy was asked to answer; its preflight is none of them."""
        return self._upstream_calls

    async def __aenter__(self) -> Self:
        self._socket = socket.create_server((HOST, 0))
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}"
        self._thread.start()
        try:
            loop = await asyncio.wrap_future(self._loop)
            await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(self._policy.preflight(), loop)
            )
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Break off what is being answered and join the thread."""
        self._server.should_exit = True
        await asyncio.to_thread(self._thread.join)
        self._socket.close()

    async def _serve(self) -> None:
        self._loop.set_result(asyncio.get_running_loop())
        try:
            # The socket listens already: a call that comes early waits in its backlog.
            await self._server.serve(sockets=[self._socket])
        finally:
            await self._policy.close()

    async def _complete(self, request: Request) -> ASGIApp:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.api_key}".encode()):
            return _refusal("missing or wrong bearer token", status=401)
        for name in REQUIRED_HEADERS:
            if not request.headers.get(name):
                return _refusal(f"missing header {name}", status=400)
        try:
            parsed = parse_request(await request.body())
        except RequestRefused as error:
            return _refusal(str(error), status=400)
        return _Answer(lambda: self._stream(parsed))

    async def _stream(self, request: ChatRequest) -> AsyncGenerator[dict[str, Any]]:
        self._upstream_calls += 1
        chunks = tidy_chunks(self._policy.stream(request), include_usage=request.include_usage)
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        except UpstreamError as error:
            if error.systemic:
                self._on_systemic(error)
            raise


def _refusal(message: str, *, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(_error_body(message, status), status_code=status, headers=headers)


def _error_body(message: str, status: int) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "upstream_error"
    return {"error": {"message": message, "type": kind, "code": status}}


class _Answer:
    """Streams chunks as server-sent events and stops the policy when the client goes away."""

    def __init__(self, open_stream: Callable[[], AsyncGenerator[dict[str, Any]]]) -> None:
        self._open_stream = open_stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = asyncio.ensure_future(self._send_answer(scope, receive, send))
        gone = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            answer.cancel()
            with suppress(asyncio.CancelledError):
                await answer

    async def _send_answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        chunks = self._open_stream()
        async with aclosing(chunks):
            try:
                first = await anext(chunks)
            except RequestRefused as error:
                await _refusal(str(error), status=400)(scope, receive, send)
                return
            except UpstreamError as error:
                headers = {"retry-after": error.retry_after} if error.retry_after else None
                refusal = _refusal(str(error), status=error.status, headers=headers)
                await refusal(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
            await self._send_events(send, first, chunks)

    async def _send_events(
        self, send: Send, first: dict[str, Any], rest: AsyncGenerator[dict[str, Any]]
    ) -> None:
        await send(_event(first))
        try:
            async for chunk in rest:
                await send(_event(chunk))
        except UpstreamError as error:
            await send(_event(_error_body(str(error), error.status)))
        else:
            await send(_event("[DONE]"))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _event(data: dict[str, Any] | str) -> dict[str, Any]:
    text = data if isinstance(data, str) else json.dumps(data)
    return {"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True}


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
