"""Ids: ours sort by time, and any session name has a key of its own."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from osmosis_store.errors import InvalidId
from osmosis_store.ids import new_id, require_id, to_key

names = st.text(
    st.sampled_from("a%2fF/\\.\n\x00é🚀\ud800") | st.characters(), min_size=1, max_size=30
)


@given(names, names)
@example("a/b", "a%2Fb")
@example("%", "%25")
@example(".", "%2E")
@example("%2", "%252")
def test_two_names_never_share_a_key(one: str, two: str) -> None:
    assert (to_key(one) == to_key(two)) == (one == two)


@given(names)
def test_a_key_is_one_safe_path_segment(name: str) -> None:
    assert require_id("session name", to_key(name)) == to_key(name)


@pytest.mark.parametrize("name", ["chat-7", "A b", " a", "100%", "%zz", "会话🚀", "n" * 200])
def test_a_name_that_can_be_an_id_is_its_own_key(name: str) -> None:
    assert to_key(name) == name


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "it is empty"),
        ("x" * 201, "it has 201 characters, 200 are allowed"),
        (".", "it names a folder"),
        ("..", "it names a folder"),
        ("a/b", "it holds '/'"),
        ("a\\b", r"it holds '\\\\'"),
        ("a\nb", r"it holds '\\n'"),
        ("a\x85b", r"it holds '\\x85'"),
        ("a\ud800", r"it holds '\\ud800'"),
        (7, "it is int, not text"),
        (None, "it is NoneType, not text"),
    ],
)
def test_what_cannot_be_an_id_is_refused_with_the_reason(value: object, reason: str) -> None:
    with pytest.raises(InvalidId, match=f"cannot be a rollout id: {reason}") as refused:
        require_id("rollout id", value)

    assert refused.value.kind == "rollout id"


@pytest.mark.parametrize("name", ["", "x" * 201, 7])
def test_a_session_name_that_has_no_key_is_refused(name: str) -> None:
    with pytest.raises(InvalidId, match="cannot be a session name"):
        to_key(name)


def test_ids_of_ours_sort_by_the_time_of_their_making() -> None:
    made = []
    for _ in range(5):
        made.append(new_id("r_"))
        time.sleep(0.002)

    assert made == sorted(made)
    assert all(require_id("rollout id", one).startswith("r_") and len(one) == 18 for one in made)


def test_ids_of_ours_are_unique() -> None:
    assert len({new_id() for _ in range(5000)}) == 5000
