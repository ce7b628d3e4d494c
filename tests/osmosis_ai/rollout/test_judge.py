"""The judge client, against a real endpoint on loopback."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest

from osmosis_ai.rollout.context import GradingScope
from osmosis_ai.rollout.judge import Judge, JudgeAnswer


class JudgeEndpoint:
    """Answers every request with `answer` and keeps what came."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.answer = completion("good", prompt_tokens=11, completion_tokens=2)
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                endpoint.requests.append(({k.lower(): v for k, v in self.headers.items()}, body))
                answer = json.dumps(endpoint.answer).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def completion(text: str | None, **usage: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        **({"usage": {**usage, "total_tokens": sum(usage.values())}} if usage else {}),
    }


@pytest.fixture
def judged() -> Iterator[JudgeEndpoint]:
    endpoint = JudgeEndpoint()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()


@pytest.fixture
async def judge(judged: JudgeEndpoint) -> AsyncIterator[Judge]:
    made = Judge("m", base_url=judged.url, settings={"temperature": 0.0})
    yield made
    await made.aclose()


async def test_it_answers_with_text_and_tokens(judge: Judge, judged: JudgeEndpoint) -> None:
    assert await judge.ask("Is it right?", max_tokens=5) == JudgeAnswer("good", 11, 2)

    _, body = judged.requests[0]
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Is it right?"}],
        "temperature": 0.0,
        "max_tokens": 5,
    }


async def test_messages_are_sent_as_they_are_given(judge: Judge, judged: JudgeEndpoint) -> None:
    messages = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "x"}]
    await judge.ask(messages)

    assert judged.requests[0][1]["messages"] == messages


async def test_its_tokens_count_for_the_grading_that_goes_on(
    judge: Judge, judged: JudgeEndpoint
) -> None:
    scope, other = GradingScope(), GradingScope()
    with scope.active():
        await asyncio.gather(judge.ask("a"), judge.ask("b"))
    with other.active():
        judged.answer = completion("no usage")
        await judge.ask("c")
    await judge.ask("outside")

    assert (scope.judge_calls, scope.judge_input_tokens, scope.judge_output_tokens) == (2, 22, 4)
    assert scope.judge_calls_without_usage == 0
    assert (other.judge_calls, other.judge_calls_without_usage) == (1, 1)


async def test_the_openai_key_of_the_environment_reaches_no_other_endpoint(
    judge: Judge, judged: JudgeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    await judge.ask("a")
    own = Judge("m", base_url=judged.url, api_key="own")
    await own.ask("b")
    await own.aclose()

    sent = [headers["authorization"] for headers, _ in judged.requests]
    assert sent == ["Bearer no-key", "Bearer own"]


async def test_an_answer_without_text_is_empty_and_one_without_choices_an_error(
    judge: Judge, judged: JudgeEndpoint
) -> None:
    judged.answer = completion(None)
    assert await judge.ask("a") == JudgeAnswer("", None, None)

    judged.answer["choices"] = []
    with pytest.raises(ValueError, match="without any choice"):
        await judge.ask("b")


async def test_without_a_key_for_openai_it_says_so_when_it_is_asked() -> None:
    with pytest.raises(openai.OpenAIError, match="OPENAI_API_KEY"):
        await Judge("m").ask("a")


def test_one_judge_serves_several_event_loops(judged: JudgeEndpoint) -> None:
    judge = Judge("m", base_url=judged.url)

    async def ask() -> str:
        answer = await judge.ask("a")
        await judge.aclose()
        return answer.text

    assert [asyncio.run(ask()), asyncio.run(ask())] == ["good", "good"]


def test_a_copied_config_shares_its_judge() -> None:
    judge = Judge("m")

    assert copy.deepcopy({"judge": judge})["judge"] is judge
