"""Tables that fit a terminal: ids first, the last column cut with … where space ends."""

from __future__ import annotations

from collections.abc import Sequence

from osmosis_store.cli.output import Screen
from osmosis_store.cli.text import cut, pad, to_one_line, width_of

__all__ = ["format_table"]

_GAP = "  "
_NARROWEST = 12


def format_table(
    screen: Screen,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> list[str]:
    """Return a table's lines, titles first; a column without any cell filled is left out.

    On a terminal that is too narrow, columns that are the same in all rows are told in one line
    at the end, the last column is cut, and what has no room at all is named.

    Args:
        right: Titles of the columns that are aligned to the right.
        spare: Titles of the columns that give way first.
    """
    columns = [
        _Column(title, [to_one_line(row[at]) for row in rows], title in right)
        for at, title in enumerate(titles)
        if any(row[at] for row in rows)
    ]
    notes: list[str] = []
    if screen.width is not None and _total(columns) > screen.width:
        same = [one for one in columns[1:] if len(rows) > 1 and len(set(one.cells)) == 1]
        columns = [one for one in columns if one not in same]
        hidden = [one for one in columns if one.title in spare and _total(columns) > screen.width]
        columns = [one for one in columns if one not in hidden]
        hidden += _fit(columns, screen.width)
        if same:
            notes.append("all: " + ", ".join(f"{one.title} {one.cells[0]}" for one in same))
        if hidden:
            names = ", ".join(one.title for one in hidden)
            notes.append(f"no room for {names}; --wide shows all")
    head, *lines = (
        cut(_GAP.join(cells).rstrip(), screen.width)
        for cells in zip(*(one.padded() for one in columns), strict=True)
    )
    return [
        screen.paint(head, "dim"),
        *lines,
        *(screen.paint(cut(note, screen.width), "dim") for note in notes),
    ]


class _Column:
    def __init__(self, title: str, cells: list[str], right: bool) -> None:
        self.title, self.cells, self.right = title, cells, right
        self.width = max(map(width_of, (title, *cells)))

    def padded(self) -> list[str]:
        return [
            pad(cut(cell, self.width), self.width, right=self.right)
            for cell in (self.title, *self.cells)
        ]


def _total(columns: Sequence[_Column]) -> int:
    return sum(one.width for one in columns) + len(_GAP) * (len(columns) - 1)


def _fit(columns: list[_Column], space: int) -> list[_Column]:
    """Narrow the last column that can be; take those behind it away and return them."""
    taken: list[_Column] = []
    while len(columns) > 1 and (excess := _total(columns) - space) > 0:
        last = columns[-1]
        if last.width - excess >= min(last.width, _NARROWEST):
            last.width -= excess
        else:
            taken.insert(0, columns.pop())
    return taken
