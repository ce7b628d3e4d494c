"""`osmosis-store rollouts`: which rollouts there are, and one of them in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_store.cli.csv_lines import CsvFlag, require_one_format
from osmosis_store.cli.flags import SelectionFlags, StoreFlags, ViewFlags, command
from osmosis_store.cli.places import open_for_reading
from osmosis_store.cli.shell import new_group

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from osmosis_store.cli.output import Screen
    from osmosis_store.records import GradeRecord, RolloutDetail, RolloutRecord

__all__ = ["app"]

app = new_group("Look at stored rollouts.")

_LABEL_WIDTH = 24
_CSV_NAMES = (
    "rollout_id",
    "eval_run_id",
    "row_index",
    "attempt",
    "retry_no",
    "workflow",
    "status",
    "label",
    "error_category",
    "error_message",
    "started_at",
    "ended_at",
    "duration_s",
    "reward",
)

Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most so many.")]
After = Annotated[
    str | None,
    typer.Option("--after", metavar="ID", help="Only those behind this id: the next page."),
]


@command(app, "list")
def list_rollouts(
    selection: SelectionFlags,
    store: StoreFlags,
    view: ViewFlags,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="KEY",
            help="By id, started, duration or reward; with - before it from the greatest down.",
        ),
    ] = "id",
    limit: Limit = 50,
    after: After = None,
    as_csv: CsvFlag = False,
) -> None:
    """List rollouts, page by page."""
    from osmosis_store.cli.output import Screen, print_json, print_lines
    from osmosis_store.queries.grades import fetch_grades
    from osmosis_store.queries.rollouts import fetch_rollouts

    require_one_format(as_json=store.as_json, as_csv=as_csv)
    chosen = selection.to_selection()
    with open_for_reading(store.store) as database, database.reading() as tx:
        found = fetch_rollouts(tx, chosen, sort=sort, after=after, limit=limit + 1)
        page = found[:limit]
        grades = fetch_grades(tx, rollout_ids=[rollout.rollout_id for rollout in page])
    newest = {(grade.rollout_id, grade.sample_id): grade for grade in grades}
    has_more = len(found) > limit
    if store.as_json:
        last_id = page[-1].rollout_id if page else None
        rollouts = _to_json_page(page, list(newest.values()))
        print_json({"rollouts": rollouts, "last_id": last_id, "has_more": has_more})
    elif as_csv:
        _print_csv(page, list(newest.values()))
        if has_more:
            typer.echo(f"more: --after {page[-1].rollout_id}", err=True)
    else:
        screen = Screen.detect(wide=view.wide, utc=view.utc)
        print_lines(_format_page(screen, page, list(newest.values()), has_more=has_more))


def _to_json_page(
    page: Sequence[RolloutRecord], grades: Sequence[GradeRecord]
) -> list[dict[str, Any]]:
    from osmosis_store.cli.output import to_json_value

    rewards: dict[str, dict[str, float | None]] = {one.rollout_id: {} for one in page}
    for grade in grades:
        rewards[grade.rollout_id][grade.sample_id] = _reward(grade)
    return [
        {
            **to_json_value(rollout),
            "duration_s": rollout.duration_s,
            "rewards": rewards[rollout.rollout_id],
        }
        for rollout in page
    ]


def _print_csv(page: Sequence[RolloutRecord], grades: Sequence[GradeRecord]) -> None:
    """Print a row per rollout; the reward is the mean of its samples' newest."""
    import statistics

    from osmosis_store.cli.csv_lines import print_csv

    rewards: dict[str, list[float]] = {one.rollout_id: [] for one in page}
    for grade in grades:
        if (reward := _reward(grade)) is not None:
            rewards[grade.rollout_id].append(reward)
    own = [rewards[one.rollout_id] for one in page]
    print_csv(
        _CSV_NAMES,
        [
            {
                **vars(rollout),
                "duration_s": rollout.duration_s,
                "reward": statistics.fmean(found) if found else None,
            }
            for rollout, found in zip(page, own, strict=True)
        ],
    )


def _reward(grade: GradeRecord) -> float | None:
    return None if grade.removed else grade.reward


def _format_page(
    screen: Screen,
    page: Sequence[RolloutRecord],
    grades: Sequence[GradeRecord],
    *,
    has_more: bool,
) -> list[str]:
    from osmosis_store.cli.output import counted, duration
    from osmosis_store.cli.tables import format_table
    from osmosis_store.cli.text import cut, to_one_line

    rewards: dict[str, list[str]] = {}
    for grade in grades:
        rewards.setdefault(grade.rollout_id, []).append(_short(grade))
    rows = [
        (
            rollout.rollout_id,
            rollout.status,
            "" if rollout.row_index is None else str(rollout.row_index),
            str(rollout.attempt) + (f" r{rollout.retry_no}" if rollout.retry_no else ""),
            ", ".join(rewards.get(rollout.rollout_id, ())),
            "" if rollout.duration_s is None else duration(rollout.duration_s),
            screen.time(rollout.started_at),
            cut(to_one_line(rollout.label or ""), None if screen.width is None else _LABEL_WIDTH),
            _about(rollout),
        )
        for rollout in page
    ]
    if not rows:
        return ["no rollouts"]
    titles = ("rollout", "status", "row", "attempt", "reward", "time", "started", "label", "about")
    lines = format_table(screen, titles, rows, right=("row", "reward", "time"), spare=("started",))
    end = f"{counted(len(page), 'rollout')}"
    if has_more:
        end += f", and more: --after {page[-1].rollout_id}"
    return [*lines, end]


def _short(grade: GradeRecord) -> str:
    from osmosis_store.cli.output import figure

    if grade.removed:
        return "removed"
    return "error" if grade.reward is None else figure(grade.reward)


def _about(rollout: RolloutRecord) -> str:
    """Return what tells a rollout from others: its error, else the last thing that was asked."""
    from osmosis_store.cli.conversation import tell_item

    if rollout.error_message is not None:
        return rollout.error_message
    return tell_item(rollout.prompt[-1]).text if rollout.prompt else ""


@command(app, "show")
def show_rollout(
    rollout_id: Annotated[str, typer.Argument(metavar="ROLLOUT_ID", help="The rollout's id.")],
    store: StoreFlags,
    view: ViewFlags,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="ID", help="Only this sample of it.")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option("--tail", min=1, metavar="N", help="Only the last N items of each sample."),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Print the live items alone, each on a line, byte for byte as stored."
        ),
    ] = False,
) -> None:
    """Show one rollout: its conversation, model calls, grades and error."""
    import dataclasses

    from osmosis_store.cli.detail import format_detail
    from osmosis_store.cli.output import Screen, print_json, print_lines
    from osmosis_store.queries.items import require_sample
    from osmosis_store.queries.rollouts import fetch_rollout_detail
    from osmosis_store.records import SampleKey

    if raw and store.as_json:
        raise typer.BadParameter("--raw and --json are two forms: give one of them")
    with open_for_reading(store.store) as database, database.reading() as tx:
        if raw:
            _print_raw(tx, rollout_id, sample, tail)
            return
        detail = fetch_rollout_detail(tx, rollout_id)
        if sample is not None:
            require_sample(tx, SampleKey(rollout_id, sample))
            detail = _only(detail, sample)
    if tail is not None:
        items = {name: found[-tail:] for name, found in detail.items.items()}
        detail = dataclasses.replace(detail, items=items)
    if store.as_json:
        print_json(_to_json(detail))
    else:
        print_lines(format_detail(Screen.detect(wide=view.wide, utc=view.utc), detail))


def _print_raw(tx: Connection, rollout_id: str, sample: str | None, tail: int | None) -> None:
    import sys

    from osmosis_store.queries.items import require_sample
    from osmosis_store.queries.rollouts import fetch_bodies, fetch_rollout
    from osmosis_store.records import SampleKey

    fetch_rollout(tx, rollout_id)
    if sample is not None:
        require_sample(tx, SampleKey(rollout_id, sample))
    sys.stdout.flush()
    for body in fetch_bodies(tx, rollout_id, sample_id=sample, last=tail):
        sys.stdout.buffer.write(body.encode() + b"\n")


def _only(detail: RolloutDetail, sample_id: str) -> RolloutDetail:
    from osmosis_store.records import RolloutDetail

    return RolloutDetail(
        rollout=detail.rollout,
        samples=[one for one in detail.samples if one.sample_id == sample_id],
        items={sample_id: detail.items[sample_id]},
        model_calls=[one for one in detail.model_calls if one.sample_id == sample_id],
        grades=[one for one in detail.grades if one.sample_id == sample_id],
    )


def _to_json(detail: RolloutDetail) -> dict[str, Any]:
    from osmosis_store.cli.output import to_json_value

    rollout = detail.rollout
    return {
        "rollout": {**to_json_value(rollout), "duration_s": rollout.duration_s},
        "samples": [
            {**to_json_value(one), "items": to_json_value(detail.items[one.sample_id])}
            for one in detail.samples
        ],
        "model_calls": [
            {**to_json_value(call), "latency_s": call.latency_s} for call in detail.model_calls
        ],
        "grades": to_json_value(detail.grades),
    }
