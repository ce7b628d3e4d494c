import json
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.eval.chat import ChatRequest, RequestRefused, UpstreamError
from osmosis_ai.eval.errors import ScriptError
from osmosis_ai.eval.scripted import ScriptedPolicy, load_script

CALL = {"tool_calls": [{"name": "multiply", "arguments": {"a": 17, "b": 23}}]}
SAID = {"content": "17 × 23 = 391, as the tool says."}


def script(folder: Path, *rules: Any) -> ScriptedPolicy:
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(rule) + "\n" for rule in rules))
    return load_script(path, name="policies/script.jsonl")


def request(*messages: tuple[str, Any], **parameters: Any) -> ChatRequest:
    return ChatRequest(
        messages=[{"role": role, "content": content} for role, content in messages],
        include_usage=True,
        parameters=parameters,
    )


async def chunks(policy: ScriptedPolicy, asked: ChatRequest) -> list[dict[str, Any]]:
    return [dict(chunk) async for chunk in policy.stream(asked)]


async def text(policy: ScriptedPolicy, asked: ChatRequest) -> str:
    choices = [choice for chunk in await chunks(policy, asked) for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_the_reply_is_chosen_by_the_answers_since_the_matched_message(tmp_path: Path) -> None:
    policy = script(tmp_path, {"match": "17 times 23", "replies": [CALL, SAID]})
    question = ("user", "What is 17 times 23?")

    first = await chunks(policy, request(question))
    second = await text(policy, request(question, ("assistant", None), ("tool", "391")))

    calls = [c["choices"][0]["delta"].get("tool_calls", [{}])[0] for c in first if c["choices"]]
    assert "".join(c.get("function", {}).get("arguments", "") for c in calls) == (
        '{"a": 17, "b": 23}'
    )
    assert second == SAID["content"]


async def test_an_answer_comes_in_several_chunks_and_ends_with_its_usage(tmp_path: Path) -> None:
    policy = script(tmp_path, {"replies": [SAID]})

    *pieces, last, usage = await chunks(policy, request(("user", "x" * 400)))

    assert len(pieces) > 3
    assert last["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(SAID["content"]) / 4
    assert 100 < usage["usage"]["prompt_tokens"] < 120


async def test_the_same_conversation_gets_the_same_answer(tmp_path: Path) -> None:
    policy = script(tmp_path, {"replies": [CALL]})
    asked = request(("user", "x"))

    assert await chunks(policy, asked) == await chunks(policy, asked)


async def test_the_longest_match_wins_and_a_rule_without_one_takes_the_rest(tmp_path: Path) -> None:
    policy = script(
        tmp_path,
        {"match": "7 times 8", "replies": [{"content": "short"}]},
        {"match": "17 times 8", "replies": [{"content": "long"}]},
        {"replies": [{"content": "default"}]},
    )

    assert await text(policy, request(("user", "17 times 8?"))) == "long"
    assert await text(policy, request(("user", "7 times 8?"))) == "short"
    assert await text(policy, request(("user", "hello"))) == "default"


async def test_the_newest_user_message_that_matches_decides(tmp_path: Path) -> None:
    policy = script(
        tmp_path,
        {"match": "first", "replies": [{"content": "1"}, {"content": "2"}]},
        {"match": "second", "replies": [{"content": "3"}]},
    )
    history = [("user", "first"), ("assistant", "1")]

    assert await text(policy, request(*history, ("user", "second"))) == "3"
    assert await text(policy, request(*history, ("user", "and?"))) == "2"


async def test_text_parts_are_matched_too(tmp_path: Path) -> None:
    policy = script(tmp_path, {"match": "second", "replies": [{"content": "ok"}]})
    parts = [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]

    assert await text(policy, request(("user", parts))) == "ok"


async def test_a_prompt_that_no_rule_matches_names_script_and_prompt(tmp_path: Path) -> None:
    policy = script(tmp_path, {"match": "a", "replies": [SAID]})

    with pytest.raises(UpstreamError, match=r"policies/script.jsonl: no rule matches 'Who\?'"):
        await text(policy, request(("user", "Who?")))


async def test_a_conversation_longer_than_its_rule_names_the_line(tmp_path: Path) -> None:
    policy = script(tmp_path, {"match": "a", "replies": [SAID]})

    with pytest.raises(UpstreamError, match="line 1: the conversation asks for reply 2"):
        await text(policy, request(("user", "a"), ("assistant", "x")))


async def test_a_parameter_that_means_nothing_to_a_script_is_refused(tmp_path: Path) -> None:
    policy = script(tmp_path, {"replies": [SAID]})

    assert await text(policy, request(("user", "a"), temperature=1.0)) == SAID["content"]
    with pytest.raises(RequestRefused, match="top_k: not supported by the scripted model"):
        await text(policy, request(("user", "a"), top_k=3))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("", "has no rules"),
        ("\n{\n", "line 2: Invalid JSON"),
        ('{"replies": []}', "line 1: replies: List should have at least 1 item"),
        ('{"replies": [{}]}', "a reply has content, tool_calls or both"),
        ('{"reply": [{"content": "x"}]}', r"line 1: replies: Field required"),
        ('{"replies": [{"content": "x", "text": "y"}]}', "replies.0.text: Extra inputs"),
        ('{"replies": [{"content": "x"}]}\n' * 2, "line 1: another rule has the same match None"),
    ],
)
def test_a_broken_script_names_its_line(tmp_path: Path, lines: str, problem: str) -> None:
    (tmp_path / "script.jsonl").write_text(lines)

    with pytest.raises(ScriptError, match=problem):
        load_script(tmp_path / "script.jsonl", name="policies/script.jsonl")
