from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_store.adapters.gym_lines import read_gym_line
from osmosis_store.database import Database
from osmosis_store.engine import Options, parse_url
from osmosis_store.queries.grades import fetch_grades, fetch_grading_runs
from osmosis_store.queries.items import fetch_items
from osmosis_store.queries.rollouts import fetch_model_calls, fetch_rollout
from osmosis_store.records import SampleKey

from .conftest import GYM, Command

FILES = sorted(GYM.glob("*.jsonl"))
URL = "sqlite:///new.db"


def line(**changes: Any) -> dict[str, Any]:
    """Return a whole line; None as a value takes the key away."""
    data = {
        "responses_create_params": {"input": [{"role": "user", "content": "1 + 1?"}]},
        "response": {"output": [{"role": "assistant", "content": "2"}]},
        "reward": 1.0,
        **changes,
    }
    return {key: value for key, value in data.items() if value is not None}


def write(path: Path, *lines: object) -> Path:
    texts = (one if isinstance(one, str) else json.dumps(one) for one in lines)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def parse(**changes: Any) -> Any:
    return read_gym_line(json.dumps(line(**changes)).encode())


def open_store() -> Database:
    return Database.open(parse_url(URL), Options(readonly=True), create=False)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_item_and_every_other_field_comes_back_as_it_was(
    command: Command, file: Path
) -> None:
    (report,) = command("import", "gym", file, "--store", URL, "--json").data["files"]

    ids = iter(report["imported"])
    database = open_store()
    for text in file.read_text(encoding="utf-8").splitlines():
        data = json.loads(text)
        if "response" not in data:
            continue
        rollout_id = next(ids)
        prompt = data["responses_create_params"].pop("input")
        if isinstance(prompt, str):
            prompt = [{"content": prompt, "role": "user"}]
        with database.reading() as tx:
            items = fetch_items(tx, SampleKey(rollout_id, "main"))
            rollout = fetch_rollout(tx, rollout_id)
        # as text: the order of the keys counts
        assert json.dumps(items) == json.dumps(prompt + data["response"].pop("output"))
        assert json.dumps(rollout.prompt) == json.dumps(prompt)
        assert json.dumps(rollout.metadata) == json.dumps(data)
    assert next(ids, None) is None
    database.close()


def test_a_line_without_a_response_is_a_task_and_is_skipped(command: Command) -> None:
    done = command("import", "gym", GYM / "multichallenge.jsonl", "--store", URL, "--json")

    assert done.code == 0
    (report,) = done.data["files"]
    assert report["imported"] == []
    assert report["skipped"] == [{"line": 1, "reason": "no response: a task, not a rollout"}]


def test_importing_twice_stores_nothing_twice_and_says_so(command: Command) -> None:
    first = command("import", "gym", *FILES, "--store", URL, "--json").data["files"]
    again = command("import", "gym", *FILES, "--store", URL)
    found = command("import", "gym", *FILES, "--store", URL, "--json").data["files"]

    count = sum(len(report["imported"]) for report in first)
    assert [report["imported"] for report in found] == [[] for _ in FILES]
    assert sum(report["present_count"] for report in found) == count
    assert f"{count} lines already there" in again.out
    database = open_store()
    with database.reading() as tx:
        assert len(fetch_grades(tx)) == count
        assert sum(run.graded_count for run in fetch_grading_runs(tx)) == count
    database.close()


def test_a_reward_becomes_a_grade_of_an_imported_grading_run(command: Command) -> None:
    command("import", "gym", GYM / "blackjack.jsonl", "--store", URL)

    found = command("grades", "list", "--store", URL, "--json").data
    (run,) = found["grading_runs"]
    assert (run["kind"], run["grader"]) == ("imported", "gym:blackjack_gymnasium_agent")
    assert run["ended_at"] is not None
    lines = (GYM / "blackjack.jsonl").read_text().splitlines()
    rewards = {json.loads(text)["reward"] for text in lines}
    assert {grade["reward"] for grade in found["grades"]} == rewards


def test_task_and_rollout_index_become_row_and_attempt(command: Command) -> None:
    command("import", "gym", GYM / "blackjack.jsonl", "--store", URL)

    rollouts = command("rollouts", "list", "--store", URL, "--json").data["rollouts"]
    places = [
        (json.loads(text)["_ng_task_index"], json.loads(text)["_ng_rollout_index"])
        for text in (GYM / "blackjack.jsonl").read_text().splitlines()
    ]
    assert sorted((one["row_index"], one["attempt"]) for one in rollouts) == sorted(places)


def test_the_usage_of_a_response_is_kept_as_a_model_call(command: Command) -> None:
    command("import", "gym", GYM / "math_with_code.jsonl", "--store", URL)

    (rollout,) = command("rollouts", "list", "--store", URL, "--json").data["rollouts"]
    usage = json.loads((GYM / "math_with_code.jsonl").read_text())["response"]["usage"]
    database = open_store()
    with database.reading() as tx:
        (call,) = fetch_model_calls(tx, rollout["rollout_id"])
    database.close()
    assert (call.input_tokens, call.output_tokens) == (
        usage["input_tokens"],
        usage["output_tokens"],
    )
    assert call.state == "saved"


@pytest.mark.parametrize("file", ["math_with_judge.jsonl", "math_with_code.jsonl"])
def test_the_label_is_found_in_the_line_and_in_its_response(command: Command, file: str) -> None:
    command("import", "gym", GYM / file, "--store", URL)

    labels = {
        one["label"]
        for one in command("rollouts", "list", "--store", URL, "--json").data["rollouts"]
    }
    lines = [json.loads(text) for text in (GYM / file).read_text().splitlines()]
    assert labels == {
        data.get("expected_answer") or data["response"]["expected_answer"] for data in lines
    }


def test_a_label_that_is_no_text_is_kept_as_json_text() -> None:
    assert parse(expected_answer={"b": 1, "a": [2.0]}).label == '{"b":1,"a":[2.0]}'
    assert parse(expected_answer=42).label == "42"
    assert parse(expected_answer="42").label == "42"
    assert parse().label is None


def test_a_response_that_failed_is_a_failed_rollout(command: Command) -> None:
    failed = {"output": [], "status": "failed", "error": {"code": "x", "message": "too long"}}
    file = write(Path("f.jsonl"), line(response=failed, reward=None))

    assert command("import", "gym", file, "--store", URL).code == 0
    (rollout,) = command("rollouts", "list", "--store", URL, "--json").data["rollouts"]
    assert (rollout["status"], rollout["error_message"]) == ("failure", "too long")
    assert rollout["rewards"] == {}


BROKEN = {
    '{"reward": 1': "it is not JSON",
    "[1]": "it is not a JSON object",
    '{"response": {"output": []}}': "responses_create_params is missing",
    json.dumps(line(response=[1])): "response is not an object",
    json.dumps(line(response={})): "response.output is missing",
    json.dumps(line(response={"output": [1]})): "response.output[0] is not an object",
    json.dumps(
        line(responses_create_params={"input": 7})
    ): "responses_create_params.input is not an array",
    json.dumps(line(reward="high")): 'reward is not a finite number: "high"',
    '{"reward": NaN}': "NaN is no number that JSON gives back",
    '{"reward": 1e999}': "1e999 is no number that JSON gives back",
    '{"a": 1, "a": 2}': "the key 'a' stands twice in one object",
    json.dumps(line(expected_answer="\x00")): "expected_answer holds NUL or a lone surrogate",
}


@pytest.mark.parametrize(("broken", "reason"), BROKEN.items(), ids=BROKEN.values())
def test_a_broken_line_is_named_and_the_others_are_imported(
    command: Command, broken: str, reason: str
) -> None:
    file = write(Path("f.jsonl"), line(), broken, line(reward=0.5))

    done = command("import", "gym", file, "--store", URL)

    assert done.code == 1
    assert f"error: f.jsonl, line 2: {reason}" in done.err
    assert "stored   2 rollouts" in done.out
    assert "1 line refused" in done.out


def test_what_was_refused_is_in_the_json_report(command: Command) -> None:
    file = write(Path("f.jsonl"), "{", line())

    done = command("import", "gym", file, "--store", URL, "--json")

    (report,) = done.data["files"]
    assert done.code == 1
    assert [note["line"] for note in report["refused"]] == [1]
    assert len(report["imported"]) == 1


def test_a_file_that_is_not_utf8_is_refused_line_by_line(command: Command) -> None:
    Path("f.jsonl").write_bytes(b'{"a": "\xff"}\n' + json.dumps(line()).encode())

    done = command("import", "gym", "f.jsonl", "--store", URL)

    assert "line 1: it is not UTF-8: invalid start byte at byte 7" in done.err
    assert "stored   1 rollout," in done.out


def test_a_byte_order_mark_and_blank_lines_are_no_part_of_a_line(command: Command) -> None:
    Path("f.jsonl").write_bytes(b"\xef\xbb\xbf\n\n" + json.dumps(line()).encode() + b"\r\n")

    assert "stored   1 rollout," in command("import", "gym", "f.jsonl", "--store", URL).out


def test_a_line_separator_inside_a_text_ends_no_line(command: Command) -> None:
    text = "one\u2028two\x85three"
    data = line(response={"output": [{"role": "assistant", "content": text}]})
    Path("f.jsonl").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")

    assert "stored   1 rollout," in command("import", "gym", "f.jsonl", "--store", URL).out


def test_a_file_that_is_not_there_is_a_usage_error(command: Command) -> None:
    done = command("import", "gym", "nowhere.jsonl", "--store", URL)

    assert done.code == 2
    assert "nowhere.jsonl" in done.err
    assert not Path("new.db").exists()


def test_without_a_store_nothing_is_made(command: Command, folder: Path) -> None:
    done = command("import", "gym", GYM / "blackjack.jsonl", "--json")

    assert done.error["code"] == "no_store_given"
    assert list(folder.iterdir()) == []


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.lists(st.dictionaries(st.text(), JSON)), st.dictionaries(st.text(), JSON))
def test_any_json_is_read_as_it_is(items: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    found = parse(info=fields, response={"output": items, "more": fields})

    assert json.dumps(found.output) == json.dumps(items)
    assert json.dumps(found.metadata["info"]) == json.dumps(fields)
    assert found.metadata["response"] == {"more": fields}
