from __future__ import annotations

import gzip
import io
import json
import secrets
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_store.adapters import gym_files
from osmosis_store.adapters.gym_lines import read_gym_line
from osmosis_store.database import Database
from osmosis_store.engine import Options, parse_url
from osmosis_store.queries.grades import fetch_grades, fetch_grading_runs
from osmosis_store.queries.items import fetch_items
from osmosis_store.queries.rollouts import fetch_model_calls, fetch_rollout, fetch_rollouts
from osmosis_store.records import SampleKey, Selection

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


def stored(command: Command) -> list[dict[str, Any]]:
    rollouts: list[dict[str, Any]] = command("rollouts", "list", "--store", URL, "--json").data[
        "rollouts"
    ]
    return rollouts


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_item_and_every_other_field_comes_back_as_it_was(
    command: Command, file: Path
) -> None:
    command("import", "gym", file, "--store", URL)

    database = open_store()
    with database.reading() as tx:
        rollouts = {
            json.dumps([fetch_items(tx, SampleKey(one.rollout_id, "main")), one.metadata]): one
            for one in fetch_rollouts(tx, Selection())
        }
    database.close()
    for text in file.read_text(encoding="utf-8").splitlines():
        data = json.loads(text)
        prompt = data["responses_create_params"].pop("input")
        if isinstance(prompt, str):
            prompt = [{"content": prompt, "role": "user"}]
        output = data["response"].pop("output") if "response" in data else []
        # as text: the order of the keys counts
        rollout = rollouts.pop(json.dumps([prompt + output, data]))
        assert json.dumps(rollout.prompt) == json.dumps(prompt)
    assert not rollouts


def test_a_line_without_a_response_is_a_failed_rollout_of_what_was_asked(command: Command) -> None:
    done = command("import", "gym", GYM / "multichallenge.jsonl", "--store", URL)

    assert done.code == 0
    assert "1 line without a response, as failed rollouts" in done.out
    (rollout,) = stored(command)
    assert (rollout["status"], rollout["rewards"]) == ("failure", {})
    assert rollout["error_message"] == "no response: a task that nobody has run"
    database = open_store()
    with database.reading() as tx:
        items = fetch_items(tx, SampleKey(rollout["rollout_id"], "main"))
        assert items == fetch_rollout(tx, rollout["rollout_id"]).prompt
        assert fetch_grading_runs(tx) == []
    database.close()


def test_a_row_that_gym_calls_a_failure_says_which(command: Command) -> None:
    failure = {"_ng_failure_class": "timeout_exceeded", "_ng_failure_message": "after 60 s"}
    file = write(Path("f_failures.jsonl"), line(response=None, reward=None, **failure))

    command("import", "gym", file, "--store", URL)

    (rollout,) = stored(command)
    assert rollout["error_message"] == "timeout_exceeded: after 60 s"
    assert (rollout["status"], rollout["error_category"]) == ("failure", "timeout")


def test_importing_twice_stores_nothing_twice_and_says_so(command: Command) -> None:
    first = command("import", "gym", *FILES, "--store", URL, "--json").data
    again = command("import", "gym", *FILES, "--store", URL)
    found = command("import", "gym", *FILES, "--store", URL, "--json").data

    count = first["imported_count"]
    assert count == sum(len(file.read_text().splitlines()) for file in FILES)
    assert (found["imported_count"], found["item_count"], found["grade_count"]) == (0, 0, 0)
    assert found["present_count"] == count
    assert f"{count} lines already there" in again.out
    database = open_store()
    with database.reading() as tx:
        assert len(fetch_grades(tx)) == first["grade_count"]
        assert sum(run.graded_count for run in fetch_grading_runs(tx)) == first["grade_count"]
    database.close()


def test_after_an_edit_only_the_line_that_changed_is_new(command: Command) -> None:
    rows = [line(_ng_task_index=at) for at in range(3)]
    file = write(Path("f.jsonl"), *rows)
    command("import", "gym", file, "--store", URL)
    write(file, line(note="in front"), rows[0], {**rows[1], "reward": 0.25}, rows[2])

    done = command("import", "gym", file, "--store", URL, "--json").data

    assert (done["imported_count"], done["present_count"]) == (2, 2)
    assert len(stored(command)) == 5


def test_a_line_that_stands_there_twice_is_two_attempts(command: Command) -> None:
    other = line(response={"output": []})
    file = write(Path("f.jsonl"), line(), line(), other)

    first = command("import", "gym", file, "--store", URL, "--json").data
    again = command("import", "gym", file, "--store", URL, "--json").data

    assert (first["imported_count"], again["imported_count"]) == (3, 0)
    assert sorted(one["attempt"] for one in stored(command)) == [0, 1, 2]


def test_attempts_without_a_number_are_counted_for_each_task(command: Command) -> None:
    rows = [line(_ng_task_index=task, n=at) for at, task in enumerate((7, 8, 7))]
    command("import", "gym", write(Path("f.jsonl"), *rows), "--store", URL)

    places = [(one["row_index"], one["attempt"]) for one in stored(command)]
    assert sorted(places) == [(7, 0), (7, 1), (8, 0)]


def test_nested_turns_are_items_in_their_order_and_the_nesting_is_kept(command: Command) -> None:
    one, two = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    file = write(
        Path("f.jsonl"),
        line(responses_create_params={"tools": [], "input": [[one, two], ["c"], one]}),
    )

    assert command("import", "gym", file, "--store", URL).code == 0
    database = open_store()
    with database.reading() as tx:
        (rollout,) = fetch_rollouts(tx, Selection())
    database.close()
    assert rollout.prompt == [one, two, {"content": "c", "role": "user"}, one]
    assert rollout.metadata is not None
    assert rollout.metadata["responses_create_params"] == {"tools": [], "input": [[0, 1], [2], 3]}


def test_a_dry_run_says_what_an_import_would_do_and_makes_no_store(command: Command) -> None:
    file = write(Path("f.jsonl"), line(), "{", line(reward=None))

    before = command("import", "gym", file, "--store", URL, "--dry-run", "--json")
    assert not Path("new.db").exists()
    shown = command("import", "gym", file, "--store", URL, "--dry-run")
    real = command("import", "gym", file, "--store", URL, "--json")
    after = command("import", "gym", file, "--store", URL, "--dry-run", "--json")

    assert before.data == {**real.data, "dry_run": True}
    assert (before.code, real.code) == (1, 1)
    assert (real.data["imported_count"], real.data["grade_count"]) == (2, 1)
    assert "would store 2 rollouts, 4 items" in shown.out
    assert (after.data["imported_count"], after.data["present_count"]) == (0, 2)


def test_a_gzipped_file_is_the_same_file(command: Command) -> None:
    file = write(Path("f.jsonl"), line(), line(reward=0.5))
    Path("f.jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))

    assert command("import", "gym", "f.jsonl.gz", "--store", URL, "--json").data[
        "imported_count"
    ] == len(stored(command))
    assert command("import", "gym", file, "--store", URL, "--json").data["present_count"] == 2


def test_a_gzipped_file_that_breaks_off_gives_what_was_before(command: Command) -> None:
    rows = [line(n=secrets.token_hex(200)) for _ in range(400)]
    whole = gzip.compress(write(Path("f.jsonl"), *rows).read_bytes())
    Path("f.jsonl.gz").write_bytes(whole[: len(whole) // 2])

    done = command("import", "gym", "f.jsonl.gz", "--store", URL, "--json")

    assert done.code == 1
    assert 0 < done.data["imported_count"] < 400
    (note,) = done.data["files"][0]["refused"]
    assert note["line"] == done.data["imported_count"] + 1
    assert "the gzip file is damaged from here on" in note["reason"]


def test_a_dash_is_standard_input(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.dumps(line()).encode() + b"\n{"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))

    done = command("import", "gym", "-", "--store", URL)

    assert "stored   1 rollout," in done.out
    assert "error: stdin:2: it is not JSON" in done.err


def test_a_last_line_that_breaks_off_is_named_and_comes_in_when_it_is_whole(
    command: Command,
) -> None:
    text = json.dumps(line(n=1)) + "\n" + json.dumps(line(n=2))
    Path("f.jsonl").write_text(text[:-5])

    first = command("import", "gym", "f.jsonl", "--store", URL)
    Path("f.jsonl").write_text(text)
    again = command("import", "gym", "f.jsonl", "--store", URL, "--json")

    assert first.code == 1
    assert "error: f.jsonl:2: it is not JSON" in first.err
    assert "the file breaks off in this line" in first.err
    assert again.code == 0
    assert (again.data["imported_count"], again.data["present_count"]) == (1, 1)


def test_a_line_longer_than_any_database_takes_is_passed_over(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym_files, "MAX_LINE_LENGTH", 1000)
    file = write(Path("f.jsonl"), line(), line(n="x" * 3000), line(n=1))

    done = command("import", "gym", file, "--store", URL)

    assert "error: f.jsonl:2: it is longer than 1,000 bytes" in done.err
    assert "stored   2 rollouts," in done.out


def test_the_report_as_json_follows_its_schema(command: Command) -> None:
    counts = [
        f"{name}_count"
        for name in ("imported", "item", "grade", "no_response", "present", "refused")
    ]
    count = {"type": "integer", "minimum": 0}
    note = shape(line=count, reason={"type": "string"})
    refused = {"type": "array", "items": note}
    one = shape(path={"type": "string"}, refused=refused, **dict.fromkeys(counts, count))
    schema = shape(
        store={"type": "string"},
        dry_run={"type": "boolean"},
        files={"type": "array", "items": one},
        **dict.fromkeys(counts, count),
    )
    file = write(Path("f.jsonl"), line(), "{")

    done = command("import", "gym", file, GYM / "blackjack.jsonl", "--store", URL, "--json")

    jsonschema.validate(done.data, schema)
    assert done.data["imported_count"] == sum(one["imported_count"] for one in done.data["files"])


def shape(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has just these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


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
    '{"responses_create_params": {}}': "responses_create_params.input is missing",
    json.dumps(line(x=[])).replace("[]", "[" * 5000 + "]" * 5000): "it is nested too deeply",
    json.dumps(line(x=1)).replace("1}", "9" * 5000 + "}"): "Exceeds the limit",
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
    assert f"error: f.jsonl:2: {reason}" in done.err
    assert "stored   2 rollouts" in done.out
    assert "1 line refused" in done.out


def test_what_was_refused_is_in_the_json_report(command: Command) -> None:
    file = write(Path("f.jsonl"), "{", line())

    done = command("import", "gym", file, "--store", URL, "--json")

    (report,) = done.data["files"]
    assert done.code == 1
    assert [note["line"] for note in report["refused"]] == [1]
    assert report["imported_count"] == 1


def test_a_file_that_is_not_utf8_is_refused_line_by_line(command: Command) -> None:
    Path("f.jsonl").write_bytes(b'{"a": "\xff"}\n' + json.dumps(line()).encode())

    done = command("import", "gym", "f.jsonl", "--store", URL)

    assert "f.jsonl:1: it is not UTF-8: invalid start byte at byte 7" in done.err
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
