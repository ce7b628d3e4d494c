"""JSON as hypothesis makes it up, and an equality that sees what `==` does not."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

# Lone surrogates included; what they must not form is a pair, which JSON joins to one character.
surrogates = st.characters(categories=["Cs"])
texts = st.text() | st.text(st.characters() | surrogates).filter(
    lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") == text
)
numbers = (
    st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=10
)
items = st.dictionaries(texts, values, max_size=4)


def same(one: Any, two: Any) -> bool:
    """Compare with types (1, 1.0 and True differ), the sign of zero and the order of keys."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    return repr(one) == repr(two) if isinstance(one, float) else bool(one == two)
