"""`osmosis-store items`: stored items by what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_store.cli.flags import SelectionFlags, StoreFlags, ViewFlags, command
from osmosis_store.cli.places import open_for_reading
from osmosis_store.cli.shell import new_group

if TYPE_CHECKING:
    from osmosis_store.cli.output import Screen
    from osmosis_store.queries.search import FoundItem
    from osmosis_store.records import ItemKey
    from osmosis_store.texts import Hit

__all__ = ["app"]

app = new_group("Search stored items.")

_BEFORE, _AFTER = 30, 60


@command(app, "search")
def search_items(
    wanted: Annotated[
        str, typer.Argument(metavar="TEXT", help="A to Z in either case, all else exactly.")
    ],
    selection: SelectionFlags,
    store: StoreFlags,
    view: ViewFlags,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="At most so many items.")
    ] = 50,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="KEY", help="Only those behind this rollout/sample/seq: next page."
        ),
    ] = None,
) -> None:
    """Search the items of the selected rollouts for a text, popped items too.

    It is looked for in what items say, a call's arguments included, not in keys, ids, types and
    the data of images. `db index` makes it fast in a large store.
    """
    from osmosis_store.cli.output import Screen, counted, print_json, print_lines
    from osmosis_store.queries.search import fetch_items_saying

    chosen, behind = selection.to_selection(), _parse_key(after)
    with open_for_reading(store.store) as database, database.reading() as tx:
        found = fetch_items_saying(tx, wanted, chosen, after=behind, limit=limit + 1)
    page, has_more = found[:limit], len(found) > limit
    last_id = _to_text(page[-1].key) if page else None
    if store.as_json:
        print_json(
            {"items": [_to_json(one) for one in page], "last_id": last_id, "has_more": has_more}
        )
        return
    if page:
        print_lines(_format(Screen.detect(wide=view.wide, utc=view.utc), page))
    more = f", and more: --after {last_id}" if has_more else ""
    print(f"{counted(len(page), 'item')}{more}" if page else "no items")


def _parse_key(text: str | None) -> ItemKey | None:
    from osmosis_store.records import ItemKey

    if text is None:
        return None
    rollout_id, _, rest = text.partition("/")
    sample_id, _, seq = rest.partition("/")
    if not (rollout_id and sample_id and seq.isascii() and seq.isdigit()):
        raise typer.BadParameter(f"{text!r} is not rollout/sample/seq", param_hint="--after")
    return ItemKey(rollout_id, sample_id, int(seq))


def _to_text(key: ItemKey) -> str:
    return "/".join(map(str, key))


def _to_json(found: FoundItem) -> dict[str, Any]:
    from osmosis_store.cli.output import to_json_value

    values: dict[str, Any] = to_json_value(found)
    del values["hit"]
    before, hit, after = _snippet(found.hit)
    return {**values, "snippet": {"before": before, "hit": hit, "after": after}}


def _snippet(hit: Hit) -> tuple[str, str, str]:
    """Return what was found and what stands around it, cut with … where there is more."""
    start, end = max(hit.start - _BEFORE, 0), hit.end + _AFTER
    before, after = hit.text[start : hit.start], hit.text[hit.end : end]
    return (
        f"…{before}" if start else before,
        hit.text[hit.start : hit.end],
        f"{after}…" if end < len(hit.text) else after,
    )


def _format(screen: Screen, page: Sequence[FoundItem]) -> list[str]:
    from osmosis_store.cli.tables import format_table

    rows = [
        (
            one.rollout_id,
            one.sample_id,
            str(one.seq),
            one.tool_name or one.role or one.type or "",
            "" if one.tombstoned_at is None else "gone",
            "".join(_snippet(one.hit)),
        )
        for one in page
    ]
    titles = ("rollout", "sample", "seq", "by", "now", "text")
    return format_table(screen, titles, rows, right=("seq",))
