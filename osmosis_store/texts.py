"""What an item says: the texts in it that a search looks at, and where a text occurs in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["DATA_HEAD", "SILENT_KEYS", "Hit", "find_text", "fold", "item_texts"]

SILENT_KEYS = frozenset(
    {
        "call_id",
        "container_id",
        "encrypted_content",
        "file_data",
        "file_id",
        "id",
        "item_id",
        "phase",
        "response_id",
        "role",
        "signature",
        "status",
        "type",
    }
)
"""Keys of an item whose texts are for machines: a search does not look at them."""

DATA_HEAD = 100
"""In so many characters a data URL says that it is one."""

_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_FOLDED = str.maketrans(_UPPER, _UPPER.lower())
_JSON_INSIDE = re.compile(r"\s*[\[{]")


class Hit(NamedTuple):
    """Where a text was found: in which of an item's texts, from where to where."""

    text: str
    start: int
    end: int


def fold(text: str) -> str:
    """Return a text as it is compared: A to Z as a to z, every other character as it is."""
    return text.translate(_FOLDED)


def item_texts(item: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of an item: all in it but keys, machine values and data of images and files.

    A text that itself is a JSON object or list, as a call's arguments are, is followed by the
    texts in it, in which escapes are resolved.
    """
    for text in _leaves(item, SILENT_KEYS):
        yield text
        if "\\" in text and _JSON_INSIDE.match(text):
            try:
                inside = json.loads(text)
            except (ValueError, RecursionError):
                continue
            yield from _leaves(inside, frozenset())


def find_text(item: Mapping[str, Any], text: str) -> Hit | None:
    """Return where an item says a text first; None: nowhere.

    Letters A to Z match in either case, every other character only itself.
    """
    wanted = fold(text)
    for one in item_texts(item):
        at = fold(one).find(wanted)
        if at >= 0:
            return Hit(one, at, at + len(wanted))
    return None


def _leaves(value: object, silent: frozenset[str]) -> Iterator[str]:
    """Yield the strings in a value, in order; a list instead of recursion: nesting has no limit."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if not (silent and _is_data(one)):
                yield one
        elif isinstance(one, dict):
            hidden = silent and _data_key(one)
            waiting += [
                part
                for key, part in reversed(one.items())
                if key not in silent and not (hidden and key == hidden)
            ]
        elif isinstance(one, list):
            waiting += reversed(one)


def _is_data(text: str) -> bool:
    head = text[:DATA_HEAD]
    return head.startswith("data:") and ";base64," in head and " " not in head


def _data_key(block: Mapping[str, Any]) -> str | None:
    """Return which key of a block holds the bytes of an image or a sound."""
    kind = block.get("type")
    if kind == "image_generation_call":
        return "result"
    return "data" if "format" in block or kind in ("input_audio", "image", "audio") else None
