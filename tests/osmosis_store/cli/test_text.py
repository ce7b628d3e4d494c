from __future__ import annotations

import datetime as dt
import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_store.cli.conversation import tell_item
from osmosis_store.cli.output import Screen, duration, figure, to_json_value
from osmosis_store.cli.tables import format_table
from osmosis_store.cli.text import cut, to_one_line, to_visible, width_of, wrap


@pytest.mark.parametrize(
    ("text", "seen"),
    {
        "\x1b[31mred\x1b[0m": "␛[31mred␛[0m",
        "a\rb": "a␍b",
        "bell\x07": "bell␇",
        "\x9b31m": "<U+009B>31m",
        "abc\u202etxt": "abc<U+202E>txt",
        "\u2066a\u2069": "<U+2066>a<U+2069>",
        "a\u200bb": "a<U+200B>b",
        "hidden\U000e0041": "hidden<U+E0041>",
        "half \ud800": "half <U+D800>",
        "a\u2028b": "a<U+2028>b",
        "del\x7f": "del␡",
    }.items(),
)
def test_what_steers_a_terminal_is_seen_not_obeyed(text: str, seen: str) -> None:
    assert to_visible(text) == seen


@pytest.mark.parametrize("text", ["👩‍👩‍👧", "سلام", "می‌خواهم", "中文", "é", "a\nb", "naïve…"])
def test_text_of_any_language_stays_as_it_is(text: str) -> None:
    assert to_visible(text) == text


@given(st.text(st.characters(exclude_categories=[])))
def test_no_control_character_is_left_in_visible_text(text: str) -> None:
    left = {
        unicodedata.category(char)
        for char in to_visible(text)
        if char not in "\n\u00ad\u200c\u200d"
    }

    assert left.isdisjoint({"Cc", "Cf", "Cs", "Zl", "Zp"})


@given(st.text(), st.integers(1, 40))
def test_a_line_that_is_cut_fits(text: str, width: int) -> None:
    line = to_one_line(text)

    assert width_of(cut(line, width)) <= width
    assert cut(line, None) == line


@given(
    st.text(st.characters(exclude_categories=["Cc", "Cs", "Cf", "Zl", "Zp"])), st.integers(2, 40)
)
def test_wrapped_lines_fit_and_lose_nothing_but_spaces(text: str, width: int) -> None:
    lines = wrap(text, width)

    assert all(width_of(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


ITEMS = [
    ({"role": "user", "content": "Hello"}, ("user", "Hello", "")),
    (
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hi"}],
        },
        ("assistant", "Hi", ""),
    ),
    (
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ("assistant", "refused: no", ""),
    ),
    (
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}],
        },
        ("user", "[image image/png, 3 B]", ""),
    ),
    (
        {
            "type": "function_call",
            "name": "add",
            "arguments": '{"a": 1, "b": "x"}',
            "call_id": "c1",
        },
        ("call", 'add(a=1, b="x")', "c1"),
    ),
    (
        {"type": "function_call", "name": "add", "arguments": "{broken", "call_id": "c1"},
        ("call", "add({broken)", "c1"),
    ),
    ({"type": "function_call_output", "output": "3", "call_id": "c1"}, ("output", "3", "c1")),
    (
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "think"}]},
        ("reasoning", "think", ""),
    ),
    (
        {"type": "reasoning", "summary": [], "encrypted_content": "x" * 2000},
        ("reasoning", "[encrypted, 2.0 KB]", ""),
    ),
    (
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"query": "q"}},
        ("call", 'web_search(action={"query": "q"})', ""),
    ),
    ({"type": "unheard_of", "x": 1}, ("unheard_of", '{"x": 1}', "")),
    ({"id": "msg_1"}, ("item", '{"id": "msg_1"}', "")),
]


@pytest.mark.parametrize(("item", "told"), ITEMS, ids=[told[1] for _, told in ITEMS])
def test_an_item_is_told_in_words(item: dict[str, object], told: tuple[str, str, str]) -> None:
    assert tell_item(item) == told


def test_a_table_without_a_width_cuts_nothing() -> None:
    lines = format_table(Screen(), ("id", "text"), [("a", "x" * 300), ("b", "")])

    assert lines == ["id  text", "a   " + "x" * 300, "b"]


def test_a_table_fits_its_width_with_the_text_cut_last() -> None:
    lines = format_table(Screen(width=20), ("id", "text"), [("a", "x" * 300), ("b", "y")])

    assert lines == ["id  text", "a   " + "x" * 15 + "…", "b   y"]


def test_a_narrow_table_tells_once_what_is_the_same_in_all_rows() -> None:
    rows = [("a", "success", "x" * 50), ("b", "success", "y" * 50)]

    lines = format_table(Screen(width=30), ("id", "status", "text"), rows)

    assert lines[-1] == "all: status success"
    assert max(map(width_of, lines)) == 30


def test_a_column_without_room_is_named() -> None:
    rows = [("a" * 30, "b" * 30, "c" * 30), ("d" * 30, "e" * 30, "f" * 30)]

    lines = format_table(Screen(width=64), ("one", "two", "three"), rows)

    assert lines[-1] == "no room for three; --wide shows all"


def test_numbers_are_short_and_durations_as_people_say_them() -> None:
    assert [figure(value) for value in (1.0, 0.0, 0.8333, -1.5, 1234.5)] == [
        "1.0",
        "0.0",
        "0.833",
        "-1.5",
        "1,234",
    ]
    assert [duration(value) for value in (0.0031, 1.26, 75, 7260)] == [
        "3 ms",
        "1.3 s",
        "1 min 15 s",
        "2 h 1 min",
    ]


def test_a_time_says_when_it_is_utc() -> None:
    at = dt.datetime(2026, 11, 30, 20, 14, tzinfo=dt.UTC)

    assert Screen(zone=dt.UTC).time(at) == "2026-11-30 20:14Z"
    assert Screen(zone=dt.timezone(dt.timedelta(hours=2))).time(at).startswith("2026-11-30 22:14")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert not Screen.detect().coloured
    monkeypatch.setattr("sys.stdout", Terminal())
    assert Screen.detect().coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen.detect().paint("x", "green") == "x"


def test_a_pipe_is_never_cut_and_a_terminal_only_without_wide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Screen.detect().width is None
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "72")
    assert Screen.detect().width == 72
    assert Screen.detect(wide=True).width is None


def test_records_become_json_values() -> None:
    at = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)

    assert to_json_value({"at": at, "digest": b"\xff", "both": (1, None)}) == {
        "at": "2026-11-30T00:00:00+00:00",
        "digest": "ff",
        "both": [1, None],
    }
