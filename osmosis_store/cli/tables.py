"""Tables that fit a terminal: ids first, the last columns cut with … where space ends."""

from __future__ import annotations

from collections.abc import Sequence

from osmosis_store.cli.output import Screen
from osmosis_store.cli.text import cut, pad, to_one_line, width_of

__all__ = ["format_table"]

_GAP = "  "
_NARROWEST = 6


def format_table(
    screen: Screen,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
) -> list[str]:
    """Return a table's lines, titles first.

    Args:
        right: Titles of the columns that are aligned to the right.
    """
    cells = [[to_one_line(cell) for cell in row] for row in rows]
    widths = [
        max(width_of(line[at]) for line in [list(titles), *cells]) for at in range(len(titles))
    ]
    if screen.width is not None:
        widths = _shrink(widths, screen.width - len(_GAP) * (len(titles) - 1))
    sides = [title in right for title in titles]

    def to_line(line: Sequence[str]) -> str:
        parts = (
            pad(cut(cell, width), width, right=side)
            for cell, width, side in zip(line, widths, sides, strict=True)
        )
        return cut(_GAP.join(parts).rstrip(), screen.width)

    return [screen.paint(to_line(titles), "dim"), *(to_line(line) for line in cells)]


def _shrink(widths: list[int], space: int) -> list[int]:
    """Take what is too much from the last column, then from the one before it, and so on."""
    found = list(widths)
    for at in reversed(range(1, len(found))):
        excess = sum(found) - space
        if excess > 0:
            found[at] = max(found[at] - excess, min(found[at], _NARROWEST))
    return found
