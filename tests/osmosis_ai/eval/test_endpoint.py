import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from osmosis_ai.eval.chat import ChatRequest, RequestRefused, UpstreamError
from osmosis_ai.eval.endpoint import Endpoint

from .provider import HELLO, USAGE, chunk

HEADERS = {"x-rollout-id": "r1", "x-sample-id": "main"}
BODY = {"model": "any", "messages": [{"role": "user", "content": "hi"}], "stream": True}


class Canned:
    """A policy that yields what it was given and raises what it finds between."""

    def __init__(self, *steps: Mapping[str, Any] | Exception) -> None:
        self.steps = steps or tuple(HELLO)
        self.requests: list[ChatRequest] = []
        self.preflight_error: UpstreamError | None = None
        self.closed = False

    async def stream(self, request: ChatRequest) -> AsyncGenerator[Mapping[str, Any]]:
        self.requests.append(request)
        for step in self.steps:
            if isinstance(step, Exception):
                raise step
            yield step

    async def preflight(self) -> None:
        if self.preflight_error is not None:
            raise self.preflight_error

    async def close(self) -> None:
        self.closed = True


class Stuck(Canned):
    """A policy that says one word and then nothing until it is cancelled."""

    def __init__(self, *, after_first: bool) -> None:
        super().__init__()
        self.after_first = after_first
        self.cancelled = False

    async def stream(self, request: ChatRequest) -> AsyncGenerator[Mapping[str, Any]]:
        self.requests.append(request)
        try:
            if self.after_first:
                yield HELLO[1]
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled = True
            raise


@asynccontextmanager
async def serving(policy: Canned) -> AsyncIterator[tuple[Endpoint, Any]]:
    async with (
        Endpoint(policy, on_systemic=lambda _: None) as endpoint,
        openai.AsyncOpenAI(
            base_url=endpoint.url,
            api_key=endpoint.api_key,
            default_headers=HEADERS,
            max_retries=0,
        ) as client,
    ):
        yield endpoint, client


async def post(endpoint: Endpoint, body: Any, headers: dict[str, str]) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body)
    async with httpx.AsyncClient() as client:
        url = f"{endpoint.url}/chat/completions"
        return await client.post(url, content=content, headers=headers)


async def ask(client: Any, **more: Any) -> list[Any]:
    stream = await client.chat.completions.create(**BODY, **more)
    return [part async for part in stream]


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # another thread changes it
            await asyncio.sleep(0.01)


async def test_an_answer_streams_through_the_real_client() -> None:
    async with serving(Canned()) as (endpoint, client):
        parts = await ask(client)

        text = "".join(p.choices[0].delta.content or "" for p in parts)
        assert (text, endpoint.upstream_calls) == ("Hello", 1)
        assert endpoint.url.startswith("http://127.0.0.1:")


async def test_usage_comes_only_when_it_is_asked_for() -> None:
    async with serving(Canned()) as (_, client):
        without = await ask(client)
        asked = await ask(client, stream_options={"include_usage": True})

    assert all(part.usage is None for part in without)
    assert asked[-1].usage.prompt_tokens == 11
    assert asked[-1].choices == []


async def test_tokens_leave_before_the_answer_is_complete() -> None:
    policy = Stuck(after_first=True)
    async with serving(policy) as (_, client):
        stream = await client.chat.completions.create(**BODY)
        first = await anext(aiter(stream))
        await stream.close()

    assert first.choices[0].delta.content == "Hel"


@pytest.mark.parametrize("after_first", [False, True])
async def test_a_client_that_goes_away_cancels_the_upstream_call(after_first: bool) -> None:
    policy = Stuck(after_first=after_first)
    async with serving(policy) as (_, client):
        call = asyncio.ensure_future(ask(client))
        await until(lambda: policy.requests)
        call.cancel()

        await until(lambda: policy.cancelled)


async def test_a_blocked_event_loop_does_not_stop_the_endpoint() -> None:
    policy = Canned()
    async with serving(policy) as (endpoint, _):
        with httpx.Client() as client:  # blocks this loop until the endpoint's thread answers
            response = client.post(  # noqa: ASYNC212  # that is the point
                f"{endpoint.url}/chat/completions",
                json=BODY,
                headers={**HEADERS, "authorization": f"Bearer {endpoint.api_key}"},
            )

    assert response.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer wrong"}])
async def test_a_call_without_the_token_is_refused(given: dict[str, str]) -> None:
    policy = Canned()
    async with serving(policy) as (endpoint, _):
        response = await post(endpoint, BODY, {**HEADERS, **given})

    assert response.status_code == 401
    assert endpoint.api_key not in response.text
    assert not policy.requests


@pytest.mark.parametrize("missing", list(HEADERS))
async def test_a_missing_header_is_named(missing: str) -> None:
    async with serving(Canned()) as (endpoint, _):
        headers = {"authorization": f"Bearer {endpoint.api_key}", **HEADERS}
        del headers[missing]
        response = await post(endpoint, BODY, headers)

    assert response.status_code == 400
    assert response.json()["error"]["message"] == f"missing header {missing}"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "the body is not JSON"),
        ([], "the body is not a JSON object"),
        ({**BODY, "stream": False}, "this endpoint only streams"),
        ({**BODY, "messages": []}, "messages: not a list"),
        ({**BODY, "messages": ["x"]}, r"messages[0]: not an object"),
        ({**BODY, "messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({**BODY, "messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({**BODY, "messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {**BODY, "messages": [{"role": "assistant", "tool_calls": [{"type": "function"}]}]},
            "messages[0].tool_calls[0]",
        ),
        ({**BODY, "n": 2}, "n: this endpoint gives one choice"),
        ({**BODY, "stream_options": {"x": 1}}, "stream_options.x: not supported"),
    ],
)
async def test_a_bad_request_says_what_is_wrong(body: Any, problem: str) -> None:
    policy = Canned()
    async with serving(policy) as (endpoint, _):
        headers = {"authorization": f"Bearer {endpoint.api_key}", **HEADERS}
        response = await post(endpoint, body, headers)

    assert response.status_code == 400
    assert problem in response.json()["error"]["message"]
    assert not policy.requests


async def test_tool_calls_ids_and_unknown_parameters_reach_the_policy_as_they_came() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_7",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{ "a":1}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_7", "content": "1"},
    ]
    policy = Canned()
    async with serving(policy) as (endpoint, _):
        headers = {"authorization": f"Bearer {endpoint.api_key}", **HEADERS}
        await post(endpoint, {**BODY, "messages": messages, "top_k": 3, "seed": None}, headers)

    (request,) = policy.requests
    assert request.messages == messages
    assert request.parameters == {"top_k": 3}


async def test_a_parameter_that_the_policy_refuses_is_named() -> None:
    async with serving(Canned(RequestRefused("top_k: not supported"))) as (_, client):
        with pytest.raises(openai.BadRequestError, match="top_k: not supported"):
            await ask(client)


async def test_an_upstream_error_reaches_the_waiting_call_at_once() -> None:
    seen: list[UpstreamError] = []
    error = UpstreamError("wrong key", status=401)
    async with (
        Endpoint(Canned(error), on_systemic=seen.append) as endpoint,
        openai.AsyncOpenAI(
            base_url=endpoint.url, api_key=endpoint.api_key, default_headers=HEADERS
        ) as client,
    ):
        started = time.monotonic()
        with pytest.raises(openai.AuthenticationError, match="wrong key"):
            await ask(client)

    assert time.monotonic() - started < 2
    assert seen == [error]
    assert endpoint.upstream_calls == 1


async def test_an_error_that_others_may_not_meet_is_not_systemic() -> None:
    seen: list[UpstreamError] = []
    error = UpstreamError("slow down", status=429, retry_after="7")
    async with Endpoint(Canned(error), on_systemic=seen.append) as endpoint:
        headers = {"authorization": f"Bearer {endpoint.api_key}", **HEADERS}
        response = await post(endpoint, BODY, headers)

    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    assert seen == []


async def test_an_answer_that_breaks_off_is_an_error_for_the_client() -> None:
    async with serving(Canned(HELLO[1], UpstreamError("gone", status=502))) as (_, client):
        with pytest.raises(openai.APIError, match="gone"):
            await ask(client)


async def test_an_answer_without_a_finish_reason_is_an_error() -> None:
    async with serving(Canned(*HELLO[:3])) as (_, client):
        with pytest.raises(openai.APIError, match="has no finish reason"):
            await ask(client)


@pytest.mark.parametrize("steps", [(USAGE,), ({"choices": []},)])
async def test_an_answer_without_choices_is_an_error(steps: Any) -> None:
    async with serving(Canned(*steps)) as (_, client):
        with pytest.raises(openai.InternalServerError, match="no choices"):
            await ask(client, stream_options={"include_usage": True})


async def test_tool_calls_that_share_an_index_get_their_own() -> None:
    def call(index: int, call_id: str | None, arguments: str) -> dict[str, Any]:
        head = {"id": call_id, "type": "function"} if call_id else {}
        return {"index": index, **head, "function": {"name": "f", "arguments": arguments}}

    policy = Canned(
        chunk({"tool_calls": [call(0, "a", ""), call(0, "b", "{")]}),
        chunk({"tool_calls": [call(0, None, "}")]}),
        chunk({"tool_calls": [call(1, "c", "{}")]}),
        chunk({}, "tool_calls"),
    )
    async with serving(policy) as (_, client):
        parts = await ask(client)

    calls = [c for part in parts for c in part.choices[0].delta.tool_calls or ()]
    assert [(c.index, c.id) for c in calls] == [(0, "a"), (1, "b"), (1, None), (2, "c")]


async def test_text_parts_after_the_first_are_not_lost() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    async with serving(Canned(chunk({"content": content}), chunk({}, "stop"))) as (_, client):
        parts = await ask(client)

    assert parts[0].choices[0].delta.content == "ab"


async def test_a_failed_preflight_ends_the_start_and_leaves_no_thread() -> None:
    policy = Canned()
    policy.preflight_error = UpstreamError("wrong key", status=401)
    endpoint = Endpoint(policy, on_systemic=lambda _: None)

    with pytest.raises(UpstreamError, match="wrong key"):
        await endpoint.__aenter__()

    assert policy.closed
    assert not endpoint._thread.is_alive()


async def test_each_endpoint_has_a_token_and_a_port_of_its_own() -> None:
    async with serving(Canned()) as (one, _), serving(Canned()) as (other, _):
        assert one.api_key != other.api_key
        assert one.url != other.url
