import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from osmosis_ai.eval.chat import UpstreamError
from osmosis_ai.eval.endpoint import Endpoint
from osmosis_ai.eval.upstream import LiteLLMPolicy
from osmosis_ai.rollout.utils.redaction import redact

from .provider import USAGE, Provider, chunk, wait_for

# LiteLLM itself reads attributes that pydantic deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning")

KEY = "sk-very-secret-key-1234"
HEADERS = {"x-rollout-id": "r1", "x-sample-id": "main"}
CONVERSATION: list[Any] = [
    {"role": "user", "content": "17 times 23?"},
    {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "call_9",
                "type": "function",
                "function": {"name": "multiply", "arguments": '{"a":17,  "b":23}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_9", "content": "391"},
]


def litellm_policy(provider: Provider, key: str | None = KEY) -> LiteLLMPolicy:
    return LiteLLMPolicy("openai/stand-in", base_url=provider.url, api_key=key, timeout_s=30)


@asynccontextmanager
async def serving(
    provider: Provider, key: str | None = KEY
) -> AsyncIterator[tuple[Endpoint, openai.AsyncOpenAI]]:
    async with (
        Endpoint(litellm_policy(provider, key), on_systemic=lambda _: None) as endpoint,
        openai.AsyncOpenAI(
            base_url=endpoint.url, api_key=endpoint.api_key, default_headers=HEADERS, max_retries=0
        ) as client,
    ):
        provider.bodies.clear()
        provider.headers.clear()
        yield endpoint, client


async def ask(client: openai.AsyncOpenAI, **more: Any) -> list[Any]:
    stream = await client.chat.completions.create(
        model="osmosis-rollout", messages=CONVERSATION, stream=True, **more
    )
    return [part async for part in stream]


async def test_a_call_goes_to_the_provider_and_its_answer_comes_back(provider: Provider) -> None:
    async with serving(provider) as (endpoint, client):
        parts = await ask(client, temperature=0.5, stream_options={"include_usage": True})

    texts = [p.choices[0].delta.content for p in parts if p.choices and p.choices[0].delta.content]
    assert texts == ["Hel", "lo"]
    assert (parts[-1].usage.prompt_tokens, parts[-1].usage.completion_tokens) == (11, 7)
    (body,) = provider.bodies
    assert (body["model"], body["temperature"]) == ("stand-in", 0.5)
    assert body["messages"] == CONVERSATION
    assert provider.headers[0]["authorization"] == f"Bearer {KEY}"
    assert endpoint.upstream_calls == 1


async def test_unknown_parameters_are_forwarded_or_refused_by_name(provider: Provider) -> None:
    async with serving(provider) as (_, client):
        await ask(client, extra_body={"top_k": 3, "chat_template_kwargs": {"think": False}})
        for name in ("api_key", "base_url", "mock_response", "drop_params", "_skip"):
            with pytest.raises(openai.BadRequestError, match=f"{name}: not a parameter"):
                await ask(client, extra_body={name: "x"})

    (body,) = provider.bodies
    assert (body["top_k"], body["chat_template_kwargs"]) == (3, {"think": False})


async def test_no_key_means_no_key_even_where_the_environment_has_one(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    async with serving(provider, key=None) as (_, client):
        await ask(client)

    assert KEY not in str(provider.headers)


async def test_a_client_that_goes_away_ends_the_call_to_the_provider(provider: Provider) -> None:
    async with serving(provider) as (_, client):
        provider.gate = threading.Event()
        call = asyncio.ensure_future(ask(client))
        while not provider.bodies:  # noqa: ASYNC110  # another thread changes it
            await asyncio.sleep(0.01)
        call.cancel()

        assert await wait_for(provider.client_gone)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
async def test_the_providers_status_reaches_the_client_after_one_call(
    provider: Provider, status: int, error: type[openai.APIStatusError]
) -> None:
    async with serving(provider) as (endpoint, client):
        provider.fail(status, f"no: {KEY} and sk-proj-{'*' * 8}abcd", **{"retry-after": "7"})
        with pytest.raises(error) as caught:
            await ask(client)

    assert caught.value.status_code == status
    assert "openai/stand-in" in str(caught.value)
    assert "sk-" not in str(caught.value)
    assert len(provider.bodies) == endpoint.upstream_calls == 1


async def test_the_providers_wish_to_wait_is_passed_on(provider: Provider) -> None:
    async with serving(provider) as (_, client):
        provider.fail(429, "slow down", **{"retry-after": "7"})
        with pytest.raises(openai.RateLimitError) as caught:
            await ask(client)

    assert caught.value.response.headers["retry-after"] == "7"


@pytest.mark.parametrize("chunks", [[USAGE], [chunk({"content": "Hel"})]])
async def test_an_answer_without_choices_or_end_is_an_error(
    provider: Provider, chunks: list[dict[str, Any]]
) -> None:
    async with serving(provider) as (_, client):
        provider.chunks = chunks
        with pytest.raises(openai.APIError):
            await ask(client)


async def test_a_provider_that_nobody_serves_is_an_error() -> None:
    policy = LiteLLMPolicy("openai/x", base_url="http://127.0.0.1:9/v1", api_key=None, timeout_s=5)

    with pytest.raises(UpstreamError, match="openai/x"):
        await policy.preflight()
    await policy.close()


@pytest.mark.parametrize("status", [401, 404, 503])
async def test_the_preflight_tells_a_wrong_key_or_model(provider: Provider, status: int) -> None:
    provider.fail(status, "no such thing")

    with pytest.raises(UpstreamError, match="no such thing") as caught:
        async with serving(provider):
            pass

    assert caught.value.status == status
    assert len(provider.bodies) == 1


async def test_the_preflight_tolerates_a_rate_limit(provider: Provider) -> None:
    provider.fail(429, "slow down")

    async with serving(provider) as (endpoint, _):
        assert endpoint.upstream_calls == 0


async def test_the_preflight_reads_no_more_than_the_first_chunk(provider: Provider) -> None:
    provider.gate = threading.Event()

    async with serving(provider):
        assert await wait_for(provider.client_gone)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("key abc123 refused", "key [secret] refused"),
        ("Authorization: Bearer eyJhbGciOi.x", "Authorization: Bearer [secret]"),
        ("sk-proj-abc***wxyz is wrong", "[secret] is wrong"),
        ("http://user:pass@host/v1", "http://[secret]host/v1"),
        ("a risk-free basket of monkey-business", "a risk-free basket of monkey-business"),
    ],
)
def test_secrets_are_cut_out_of_texts(text: str, clean: str) -> None:
    assert redact(text, "abc123", None) == clean
