"""Bodies: an item comes back exactly as it was given, or is refused."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from openai import NOT_GIVEN
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from osmosis_store.codec import (
    decode_body,
    encode_items,
    item_facts,
    to_clean_text,
    to_json_text,
)
from osmosis_store.errors import ItemNotStorable
from tests.osmosis_store.json_values import items, same, values


def round_trip(item: Any) -> Any:
    return decode_body(encode_items([item])[0].body)


@given(items)
def test_any_json_object_comes_back_with_its_types_and_the_order_of_its_keys(item: Any) -> None:
    assert same(round_trip(item), item)


@given(items)
def test_every_body_is_text_that_any_database_takes(item: Any) -> None:
    (encoded,) = encode_items([item])

    assert encoded.body.encode() == encoded.data
    assert "\x00" not in encoded.body


@given(values)
def test_any_json_value_of_a_column_comes_back_exactly(value: Any) -> None:
    assert same(decode_body(to_json_text(value)), value)


@given(items)
def test_facts_are_text_that_any_database_takes_and_indexes(item: Any) -> None:
    for fact in item_facts({**item, "type": "x_call", "name": item.get("", "\x00\ud800" * 150)}):
        assert fact is None or (len(fact) <= 200 and "\x00" not in fact and fact.encode())


def test_text_is_kept_readable() -> None:
    (encoded,) = encode_items([{"role": "user", "content": "naïve 会话 🚀"}])

    assert encoded.body == '{"role":"user","content":"naïve 会话 🚀"}'


def test_nesting_deeper_than_the_fast_decoder_takes_comes_back() -> None:
    deep: Any = "end"
    for _ in range(300):
        deep = {"d": [deep]}

    assert round_trip(deep) == deep


def nested(depth: int) -> Any:
    value: Any = "end"
    for _ in range(depth):
        value = [value]
    return value


cyclic: dict[str, Any] = {}
cyclic["self"] = cyclic


@pytest.mark.parametrize(
    ("item", "path", "reason"),
    [
        (None, "", "it is None, not a mapping"),
        ("text", "", "it is a str, not a mapping"),
        (7, "", "it is an int, not a mapping"),
        ([["role", "user"]], "", "it is a list, not a mapping"),
        ({"content": [{"text": b"x"}]}, "content[0].text", "bytes has no JSON form"),
        ({"a": {"b": [1, {2, 3}]}}, "a.b[1]", "a set has no JSON form"),
        ({"a": ("x", 1)}, "a", "a tuple has no JSON form"),
        ({"at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, "at", "a datetime has no JSON form"),
        ({"x": NOT_GIVEN}, "x", "a NotGiven has no JSON form"),
        ({"x": object()}, "x", "an object has no JSON form"),
        ({"x": float("nan")}, "x", "nan is not a JSON number"),
        ({"x": [1.0, float("-inf")]}, "x[1]", "-inf is not a JSON number"),
        ({"x": {1: "a"}}, "x", "the key 1 is an int, not text"),
        ({"x": {None: "a"}}, "x", "the key None is None, not text"),
        ({"x": "\ud83d\ude00"}, "x", "a surrogate pair that is not joined"),
        ({"\ud83d\ude00": 1}, "", "a key holds a surrogate pair that is not joined"),
    ],
)
def test_what_would_not_come_back_is_refused_with_its_place(
    item: Any, path: str, reason: str
) -> None:
    with pytest.raises(ItemNotStorable) as refused:
        encode_items([{"role": "user", "content": "fine"}, item])

    assert (refused.value.index, refused.value.path) == (1, path)
    assert reason in refused.value.reason
    assert str(refused.value).startswith(f"item 1{f' at {path}' if path else ''} cannot be stored")


@pytest.mark.parametrize("item", [cyclic, {"x": nested(100_000)}], ids=["cycle", "too deep"])
def test_what_is_nested_without_end_is_refused(item: Any) -> None:
    with pytest.raises(ItemNotStorable, match=r"item 0 .* nested too deep, or holds itself"):
        encode_items([item])


class Text(str):
    __slots__ = ()


class Count(int):
    pass


def test_a_subclass_of_a_json_type_is_stored_as_the_value_that_it_equals() -> None:
    assert same(round_trip({"a": Text("x"), "n": Count(3)}), {"a": "x", "n": 3})


def test_other_mappings_are_stored_as_objects_in_their_order() -> None:
    item = OrderedDict(z=1, a=MappingProxyType({"y": [MappingProxyType({"b": 2})]}))

    assert same(round_trip(item), {"z": 1, "a": {"y": [{"b": 2}]}})


def test_a_pydantic_item_is_stored_as_the_sdk_dumps_it() -> None:
    part = ResponseOutputText(type="output_text", text="hello", annotations=[])
    message = ResponseOutputMessage(
        id="m", type="message", role="assistant", status="completed", content=[part]
    )

    assert same(round_trip(message), message.model_dump(exclude_unset=True))
    assert same(round_trip({"x": [part]}), {"x": [part.model_dump(exclude_unset=True)]})


@pytest.mark.parametrize(
    ("item", "facts"),
    [
        ({"role": "user", "content": "hi"}, ("message", "user", None, None)),
        ({"type": "message", "role": "assistant"}, ("message", "assistant", None, None)),
        ({"id": "m"}, ("item_reference", None, None, None)),
        ({"type": "function_call", "name": "f", "call_id": "c"}, ("function_call", None, "f", "c")),
        (
            {"type": "mcp_call", "name": "f", "server_label": "docs"},
            ("mcp_call", None, "docs.f", None),
        ),
        ({"type": "web_search_call"}, ("web_search_call", None, "web_search", None)),
        ({"type": "invented_in_2031", "x": 1}, ("invented_in_2031", None, None, None)),
        ({"type": 7, "role": [], "call_id": {}, "name": None}, (None, None, None, None)),
        ({}, (None, None, None, None)),
    ],
)
def test_facts_are_what_people_ask_by(item: dict[str, Any], facts: tuple[Any, ...]) -> None:
    assert item_facts(item) == facts


def test_a_text_for_people_loses_only_what_no_database_takes() -> None:
    assert to_clean_text("a\x00b\ud800c é\n") == "a\ufffdb?c é\n"
    assert to_clean_text(None) is None
