"""Text of agents on a terminal: nothing that steers it, cut or wrapped to its width."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from rich.cells import cell_len, chop_cells, set_cell_size

__all__ = ["cut", "pad", "to_one_line", "to_visible", "width_of", "wrap"]

ELLIPSIS = "…"

# Joiners shape letters and emoji; a soft hyphen only allows a break.
_HARMLESS = "\n\u00ad\u200c\u200d"
_SUSPECT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u0600-\u06ff\u070f\u0890-\u08ff\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd-\U000e007f]"
)
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")


def to_visible(text: str) -> str:
    """Return a text in which control characters are seen, not obeyed.

    Terminal escapes, carriage returns, bidirectional marks, invisible tags and lone surrogates
    turn into pictures or `<U+…>`; line breaks stay, tabs are four spaces.
    """
    return _SUSPECT.sub(_show, text.replace("\r\n", "\n").replace("\t", "    "))


def _show(found: re.Match[str]) -> str:
    char = found[0]
    if char in _HARMLESS or unicodedata.category(char) not in _STEERING:
        return char
    if char < " ":
        return chr(0x2400 + ord(char))
    return "␡" if char == "\x7f" else f"<U+{ord(char):04X}>"


def to_one_line(text: str) -> str:
    """Return a visible text on one line, runs of white space as one space."""
    return " ".join(to_visible(text).split())


def width_of(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    return cell_len(text)


def cut(text: str, width: int | None) -> str:
    """Return a line cut to a width, the cut marked with …; None: not cut."""
    if width is None or cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + ELLIPSIS


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return a line filled with spaces to a width."""
    space = " " * max(width - cell_len(text), 0)
    return space + text if right else text + space


def wrap(text: str, width: int | None) -> list[str]:
    """Return a visible text's lines, those that are wider than `width` broken at spaces."""
    lines = text.splitlines() or [""]
    if width is None:
        return lines
    return [part for line in lines for part in _wrap_line(line, max(width, 1))]


def _wrap_line(line: str, width: int) -> Iterator[str]:
    while cell_len(line) > width:
        piece = chop_cells(line, width)[0]
        at = piece.rfind(" ") if line[len(piece) : len(piece) + 1] != " " else len(piece)
        if at <= len(piece) // 2:
            at = len(piece)
        yield line[:at].rstrip()
        line = line[at:].lstrip(" ")
    yield line
