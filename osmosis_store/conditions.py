"""What a condition's text means: a range of rewards, a value in a rollout's metadata."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from osmosis_store.errors import InvalidSelection

__all__ = ["Bound", "Comparison", "has_meta", "parse_meta", "parse_reward"]

Comparison: TypeAlias = Literal["<", "<=", ">", ">=", "=", "!="]
Bound: TypeAlias = tuple[Comparison, float]

_COMPARED = re.compile(r"\s*(<=|>=|!=|==|<|>|=)?\s*(\S+)\s*")
_RANGE = re.compile(r"\s*(\S+?)\s*\.\.\s*(\S+)\s*")
_REWARD_HINT = "write <0.5, <=0.5, >0.5, >=1, =1, !=0, or 0.2..0.8 for both ends and all between"


def parse_reward(text: str) -> list[Bound]:
    """Return what a reward is compared with; each comparison must hold.

    Args:
        text: `<0.5`, `<=0.5`, `>0.5`, `>=1`, `=1` or just `1`, `!=0`, or `0.2..0.8`, which has
            both ends in it.

    Raises:
        InvalidSelection: It is none of these, not finite, or a range from high to low.
    """
    if found := _RANGE.fullmatch(text):
        low, high = (_to_number(text, part) for part in found.groups())
        if low > high:
            raise InvalidSelection(
                f"the reward range {text!r} is empty", hint=f"write {found[2]}..{found[1]}"
            )
        return [(">=", low), ("<=", high)]
    if found := _COMPARED.fullmatch(text):
        how: Any = "=" if found[1] in (None, "==") else found[1]
        return [(how, _to_number(text, found[2]))]
    raise InvalidSelection(f"{text!r} is no reward expression", hint=_REWARD_HINT)


def _to_number(text: str, part: str) -> float:
    try:
        number = float(part)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidSelection(f"{text!r} is no reward expression", hint=_REWARD_HINT)
    return number


def parse_meta(text: str) -> tuple[str, str]:
    """Return key and value of `key=value`.

    Raises:
        InvalidSelection: There is no `=`, or nothing before it.
    """
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InvalidSelection(
            f"{text!r} is no key=value", hint="write --meta split=test, or --meta source.name=gym"
        )
    return key, value


def has_meta(metadata: object, key: str, value: str) -> bool:
    """Tell whether metadata has this value under this key.

    Args:
        key: With dots into nested objects and lists (by position); a key that has dots in its
            name is found too.
        value: Equal as JSON, or as the text that it is: `1` is the number and the text.
    """
    wanted: list[object] = [value]
    with contextlib.suppress(ValueError, RecursionError):
        wanted.append(json.loads(value))
    return any(_equal(found, one) for found in _values_at(metadata, key) for one in wanted)


def _values_at(value: object, key: str) -> Iterator[object]:
    if isinstance(value, list):
        first, _, rest = key.partition(".")
        if first.isascii() and first.isdigit() and int(first) < len(value):
            yield from _values_at(value[int(first)], rest) if rest else (value[int(first)],)
    if not isinstance(value, dict):
        return
    if key in value:
        yield value[key]
    for at, char in enumerate(key):
        if char == "." and key[:at] in value:
            yield from _values_at(value[key[:at]], key[at + 1 :])


def _equal(found: object, wanted: object) -> bool:
    """Compare as JSON does: true is not 1, but 1.0 is."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_equal, found, wanted))
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(
            _equal(part, wanted[key]) for key, part in found.items()
        )
    return found == wanted
