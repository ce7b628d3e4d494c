"""Which rollouts a `Selection` means, the same on both databases."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

import pytest

from osmosis_store.codec import encode_items, to_json_text
from osmosis_store.conditions import has_meta
from osmosis_store.database import Database
from osmosis_store.errors import GradingRunNotFound, InvalidSelection
from osmosis_store.queries.rollouts import fetch_rollout_ids, fetch_rollouts
from osmosis_store.records import NewGrade, SampleKey, Selection
from osmosis_store.writes.items import Append
from tests.osmosis_store.ledger import add_grades, add_rollout


def selected(database: Database, **conditions: Any) -> list[str]:
    selection = Selection(**conditions)
    with database.reading() as tx:
        found = fetch_rollouts(tx, selection)
        assert list(fetch_rollout_ids(tx, selection)) == [one.rollout_id for one in found]
    return [one.rollout_id for one in found]


def add_items(database: Database, rollout_id: str, *items: Any, sample: str = "main") -> None:
    append = Append(SampleKey(rollout_id, sample), encode_items(list(items)))
    database._require_writer().submit(append, loop=None).wait()


def add_texts(database: Database, *texts: str | dict[str, Any]) -> None:
    """Store a rollout for each text, named by its position."""
    for at, text in enumerate(texts):
        add_rollout(database, f"r{at}", "main")
        item = {"role": "user", "content": text} if isinstance(text, str) else text
        add_items(database, f"r{at}", item)


def saying(database: Database, *needles: str) -> list[list[int]]:
    return [[int(one[1:]) for one in selected(database, text=needle)] for needle in needles]


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "call_1", "name": name, "arguments": arguments}


@pytest.mark.parametrize(
    ("reward", "chosen"),
    [
        ("<0.5", ["a"]),
        ("<=0.5", ["a", "b"]),
        (">0.5", ["c"]),
        (">= 1", ["c"]),
        ("=0.5", ["b"]),
        ("0.5", ["b"]),
        ("!=0", ["b", "c"]),
        ("0..0.5", ["a", "b"]),
        ("-1..-0.5", []),
        ("1e0", ["c"]),
    ],
)
def test_a_reward_is_compared(database: Database, reward: str, chosen: list[str]) -> None:
    for name, value in (("a", 0.0), ("b", 0.5), ("c", 1.0)):
        add_rollout(database, name, "main")
        add_grades(database, "g1", name, NewGrade(sample_id="main", reward=value))
    add_rollout(database, "never graded", "main")

    assert selected(database, reward=reward) == chosen


@pytest.mark.parametrize("reward", ["", "high", "<", "<<1", "<nan", "1..", "1..0", ">inf", "a..b"])
def test_what_is_no_reward_expression_is_refused(reward: str) -> None:
    with pytest.raises(InvalidSelection):
        Selection(reward=reward)


def test_the_reward_is_that_of_the_newest_grade(database: Database) -> None:
    add_rollout(database, "r", "main")
    add_grades(database, "g1", "r", NewGrade(sample_id="main", reward=0.0))
    add_grades(database, "g2", "r", NewGrade(sample_id="main", reward=1.0), grader="graders:New")

    assert selected(database, reward="=0") == []
    assert selected(database, reward="=1") == ["r"]
    assert selected(database, reward="=0", graded_by="Lenient") == ["r"]


@pytest.mark.parametrize(
    "newest",
    [NewGrade(sample_id="main", error="it broke"), NewGrade(sample_id="main", removed=True)],
)
def test_a_failed_or_removed_newest_grade_is_no_reward(
    database: Database, newest: NewGrade
) -> None:
    add_rollout(database, "r", "main")
    add_grades(database, "g1", "r", NewGrade(sample_id="main", reward=1.0))
    add_grades(database, "g2", "r", newest)

    assert selected(database, reward="!=7") == []


def test_a_grader_is_known_by_run_name_class_and_digest(database: Database) -> None:
    for name, grader in (("a", "graders:Strict"), ("b", "graders:Lenient")):
        add_rollout(database, name, "main")
        digest = f"g_{name}"
        add_grades(database, digest, name, NewGrade(sample_id="main", reward=1.0), grader=grader)
    add_rollout(database, "c", "main")

    for word in ("g_a", "graders:Strict", "Strict"):
        assert selected(database, graded_by=word) == ["a"]
        assert selected(database, ungraded_by=word) == ["b", "c"]
    for word in ("strict", "trict", "graders", "Never"):
        assert selected(database, graded_by=word) == []
        assert selected(database, ungraded_by=word) == ["a", "b", "c"]


def test_a_digest_is_known_by_eight_characters(database: Database) -> None:
    add_rollout(database, "a", "main")
    digest = "0123abcd" + "0" * 56
    add_grades(database, "g1", "a", NewGrade(sample_id="main", reward=1.0), code_digest=digest)

    assert selected(database, graded_by="0123abcd") == ["a"]
    assert selected(database, graded_by="0123ABCD0") == ["a"]
    assert selected(database, graded_by="0123abc") == []


def test_a_sample_on_which_the_grader_failed_is_not_graded_by_it(database: Database) -> None:
    add_rollout(database, "r", "main")
    add_grades(database, "g1", "r", NewGrade(sample_id="main", error="it broke"))

    assert selected(database, graded_by="Lenient") == []
    assert selected(database, ungraded_by="Lenient") == ["r"]


def test_a_grading_run_that_does_not_exist_is_an_error(database: Database) -> None:
    for word in ("graded_by", "ungraded_by"):
        with pytest.raises(GradingRunNotFound):
            selected(database, **{word: "g_none"})


def test_one_sample_has_to_fulfil_all(database: Database) -> None:
    add_rollout(database, "apart", "one", "two")
    add_rollout(database, "together", "one", "two")
    for name, caller in (("apart", "one"), ("together", "two")):
        add_items(database, name, call("add", '{"what":"apples"}'), sample=caller)
        add_items(database, name, {"role": "user", "content": "pears"}, sample="two")
        grades = [NewGrade(sample_id="one", reward=0.0), NewGrade(sample_id="two", reward=1.0)]
        add_grades(database, "g1", name, *grades)

    both = ["apart", "together"]
    assert selected(database, tool="add") == selected(database, reward="=1") == both
    assert selected(database, tool="add", reward="=1") == ["together"]
    assert selected(database, tool="add", text="pears") == ["together"]
    assert selected(database, text="pears", sample="one") == []
    assert selected(database, text="apples", reward="=0") == ["apart"]
    assert selected(database, text="apples", graded_by="Lenient", sample="two") == ["together"]


def test_a_text_is_found_as_people_see_it(database: Database) -> None:
    add_texts(database, 'She said "hi" and left.', "a\\b\nc\td", "half </b> 50% _x_", "nothing")

    assert saying(
        database, 'said "hi" and', "a\\b", "b\nc", "c\td", "</b>", "50%", "_x_", '"', "%", "_"
    ) == [[0], [1], [1], [1], [2], [2], [2], [0], [2], [2]]


@pytest.mark.parametrize(
    "text",
    ["北京烤鸭", "Привет, мир", "مرحبا بالعالم", "नमस्ते", "สวัสดี", "Grüße", "👩‍🔬🧪", "𐍈𐌰𐌹"],
)
def test_a_text_of_any_script_is_found(database: Database, text: str) -> None:
    inside = json.dumps({"query": text})  # escaped, as many models write arguments
    add_texts(database, f"so: {text}!", call("f", inside), call("f", f'{{"q":"{text}"}}'), "no")

    assert saying(database, text, text[1:], text[:2]) == [[0, 1, 2]] * 3


def test_only_a_to_z_match_in_either_case(database: Database) -> None:
    add_texts(database, "Straße in ÖSTERREICH", "STRASSE")

    assert saying(database, "STRAßE", "straSSe", "ÖsterReich", "österreich") == [[0], [1], [0], []]


def test_a_text_with_a_lone_surrogate_is_found(database: Database) -> None:
    add_texts(database, "broken \ud83d Grüße", "whole Grüße")

    assert saying(database, "Grüße", "\ud83d", "broken \ud83d g") == [[0, 1], [0], [0]]


def test_text_in_a_calls_arguments_is_found_without_its_escapes(database: Database) -> None:
    code = 'print("a\\n")\nif x:\n    y = "ü"'
    add_texts(database, call("run", json.dumps({"code": code})), "print")

    assert saying(database, 'print("a', '")\nif', '    y = "ü"', "RUN") == [[0]] * 4


def test_keys_ids_types_and_data_are_not_text(database: Database) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    add_texts(
        database,
        {"role": "user", "content": [image, {"type": "input_text", "text": "see"}]},
        {"id": "rs_77", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
        call("f", "{}"),
    )

    assert saying(
        database, "content", "role", "user", "input_image", "iVBOR", "rs_77", "gAAAA", "call_1",
        "function_call", '":"', "see",
    ) == [[]] * 10 + [[0]]  # fmt: skip


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(InvalidSelection):
        Selection(text="")


def test_a_text_is_looked_for_beyond_the_first_slice(database: Database) -> None:
    names = [f"r{at:03}" for at in range(450)]
    for at, name in enumerate(names):
        add_rollout(database, name, "main")
        add_items(database, name, {"role": "user", "content": "a-b" if at % 149 == 0 else "a+b"})

    hits = [names[0], names[149], names[298], names[447]]
    assert selected(database, text="a-b") == hits
    with database.reading() as tx:
        page = fetch_rollouts(tx, Selection(text="a-b"), after=hits[0], limit=2)
    assert [one.rollout_id for one in page] == hits[1:3]


def test_metadata_is_compared_as_json_or_as_text(database: Database) -> None:
    for at, metadata in enumerate(
        [{"split": "test", "n": 1}, {"split": "train", "n": "1"}, {"n": True, "a": {"b": [5]}}]
    ):
        add_rollout(database, f"r{at}", metadata=to_json_text(metadata))
    add_rollout(database, "none")

    def having(*meta: tuple[str, str]) -> list[str]:
        return selected(database, meta=meta)

    assert having(("split", "test")) == having(("split", '"test"')) == ["r0"]
    assert having(("n", "1")) == ["r0", "r1"]
    assert having(("n", "1.0")) == ["r0"]
    assert having(("n", "true")) == having(("a.b.0", "5")) == having(("a.b", "[5]")) == ["r2"]
    assert having(("n", "1"), ("split", "train")) == ["r1"]


@pytest.mark.parametrize(
    ("metadata", "key", "found"),
    [
        ({"a.b": 1}, "a.b", True),
        ({"a.b": {"c.d": 1}}, "a.b.c.d", True),
        ({"a": None}, "a", False),
        ([1], "0", True),
        ([1], "1", False),
        (None, "a", False),
    ],
)
def test_a_key_with_dots_names_all_that_it_may(metadata: Any, key: str, found: bool) -> None:
    assert has_meta(metadata, key, "1") is found


def test_a_selection_comes_back_from_json() -> None:
    selection = Selection(
        eval_run="e",
        rollout=("a", "b"),
        status="success",
        since=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        reward="0..1",
        graded_by="G",
        ungraded_by="H",
        tool="t",
        text="x",
        meta=(("k", "v"), ("k", "w")),
        sample="main",
    )

    assert Selection.from_json(json.loads(json.dumps(selection.to_json()))) == selection
    assert Selection.from_json({}) == Selection()


@pytest.mark.parametrize(
    "values",
    [{"colour": "red"}, {"since": "soon"}, {"meta": ["k"]}, {"since": "2026-01-01T00:00:00"}],
)
def test_json_that_is_no_selection_is_refused(values: dict[str, Sequence[str]]) -> None:
    with pytest.raises(InvalidSelection):
        Selection.from_json(values)
