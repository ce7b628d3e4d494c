"""`osmosis-store stats`: figures over many rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_store.cli.csv_lines import CsvFlag, require_one_format
from osmosis_store.cli.flags import SelectionFlags, StoreFlags, ViewFlags
from osmosis_store.cli.places import open_for_reading

if TYPE_CHECKING:
    from osmosis_store.cli.output import Screen
    from osmosis_store.queries.stats import GraderStats, GroupStats

__all__ = ["stats"]

_DIGEST_CHARS = 8
_TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_CSV_NAMES = (
    "key",
    "rollout_count",
    "sample_count",
    "statuses",
    "failures",
    *_TOKENS,
    "grader",
    "code_digest",
    "graded_count",
    "failed_count",
    "removed_count",
    "mean_reward",
    "pass_rate",
)


def stats(
    selection: SelectionFlags,
    store: StoreFlags,
    view: ViewFlags,
    by: Annotated[
        str, typer.Option("--by", metavar="WHAT", help="eval-run, workflow or grader.")
    ] = "eval-run",
    pass_threshold: Annotated[
        float,
        typer.Option("--pass-threshold", metavar="REWARD", help="The reward that is a pass."),
    ] = 1.0,
    as_csv: CsvFlag = False,
) -> None:
    """Count the selected rollouts, their rewards, tokens and failures, by group.

    Rewards of different graders, or of different code or config of one, are never put together:
    each has a line. Of a sample that one has graded often, the newest grade counts.
    """
    from osmosis_store.cli.csv_lines import print_csv
    from osmosis_store.cli.output import Screen, print_json, print_lines
    from osmosis_store.queries.stats import fetch_stats

    require_one_format(as_json=store.as_json, as_csv=as_csv)
    chosen = selection.to_selection()
    with open_for_reading(store.store) as database, database.reading() as tx:
        groups = fetch_stats(tx, chosen, by=by, pass_threshold=pass_threshold)
    if store.as_json:
        found = [_to_json(one) for one in groups]
        print_json({"by": by, "pass_threshold": pass_threshold, "groups": found})
    elif as_csv:
        print_csv(_CSV_NAMES, _to_records(groups))
    else:
        screen = Screen.detect(wide=view.wide, utc=view.utc)
        print_lines(_format(screen, by, groups) if groups else ["no rollouts"])


def _to_json(group: GroupStats) -> dict[str, Any]:
    values = {**group._asdict(), "graders": [one._asdict() for one in group.graders]}
    return {**values, "usage": vars(group.usage)}


def _lines(groups: Sequence[GroupStats]) -> Iterator[tuple[GroupStats, GraderStats | None]]:
    for group in groups:
        yield from ((group, one) for one in group.graders or (None,))


def _to_records(groups: Sequence[GroupStats]) -> Iterator[dict[str, Any]]:
    """Yield a record per group and grader, the group's own figures in each."""
    for group, one in _lines(groups):
        values = dict.fromkeys(_CSV_NAMES)
        values.update(group._asdict(), **vars(group.usage))
        values.update({"code_digest": None} if one is None else one._asdict())
        yield values


def _format(screen: Screen, by: str, groups: Sequence[GroupStats]) -> list[str]:
    from osmosis_store.cli.output import count, figure
    from osmosis_store.cli.tables import format_table

    rows, before = [], None
    for group, one in _lines(groups):
        own = _own_cells(group) if group is not before else ("",) * 8
        before = group
        if one is None:
            rows.append((*own, "", "", "", "", ""))
            continue
        name = one.grader + (f" {one.code_digest[:_DIGEST_CHARS]}" if one.code_digest else "")
        rows.append(
            (
                *own,
                count(one.graded_count),
                "" if one.mean_reward is None else figure(one.mean_reward),
                "" if one.pass_rate is None else f"{one.pass_rate:.0%}",
                count(one.failed_count) if one.failed_count else "",
                name,
            )
        )
    if by == "grader":
        rows = [row[1:] for row in rows]
    titles = (
        *((by.replace("-", " "),) if by != "grader" else ()),
        "rollouts",
        "samples",
        "not success",
        "failures",
        "in",
        "out",
        "reasoning",
        "graded",
        "mean",
        "pass",
        "failed",
        "grader",
    )
    numbers = {"rollouts", "samples", "in", "out", "reasoning", "graded", "mean", "pass", "failed"}
    lines = format_table(
        screen, titles, rows, right=tuple(numbers), spare=("reasoning", "samples", "not success")
    )
    return [*lines, *_doubts(groups)]


def _own_cells(group: GroupStats) -> tuple[str, ...]:
    from osmosis_store.cli.output import count

    usage = group.usage
    others = {name: found for name, found in group.statuses.items() if name != "success"}
    return (
        group.key or "(none)",
        count(group.rollout_count),
        count(group.sample_count),
        _tell_counts(others),
        _tell_counts(group.failures),
        *(
            count(found) if found else ""
            for found in (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens)
        ),
    )


def _tell_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {found:,}" for name, found in counts.items())


def _doubts(groups: Sequence[GroupStats]) -> Iterator[str]:
    """Say what is not in the means."""
    from osmosis_store.cli.output import counted

    removed = sum(one.removed_count for group in groups for one in group.graders)
    failed = sum(one.failed_count for group in groups for one in group.graders)
    if removed:
        yield f"{counted(removed, 'sample')} removed by graders, in no mean"
    if failed:
        yield f"{counted(failed, 'grade')} failed, in no mean"
    if any(len(group.graders) > 1 for group in groups):
        yield "a group with many graders has a line for each: their rewards are not put together"
