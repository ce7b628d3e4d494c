"""`osmosis-store import`: rollouts that other programs recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_store.cli.flags import StoreFlags, command
from osmosis_store.cli.places import open_for_import
from osmosis_store.cli.progress import show_progress
from osmosis_store.cli.shell import new_group

if TYPE_CHECKING:
    from osmosis_store.adapters.gym import FileReport

__all__ = ["app"]

app = new_group("Import rollouts that other programs recorded.")

_SHOWN = 20


@app.callback()
def _keep_the_group() -> None:
    """Import rollouts that other programs recorded."""


@command(app, "gym")
def import_gym(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", exists=True, dir_okay=False, help="NeMo Gym rollouts, JSON lines."
        ),
    ],
    store: StoreFlags,
) -> None:
    """Import NeMo Gym rollouts: a rollout per line, its reward as a grade.

    A line that was imported before is left as it is. A line without a response is a task that
    nobody has run: it is skipped. A line that is not of the format is refused and named, the
    others are imported, and the exit code is 1.
    """
    from osmosis_store.adapters.gym import GymImport

    done = 0
    with open_for_import(store.store) as database, show_progress("lines") as advance:

        def on_line() -> None:
            nonlocal done
            done += 1
            advance(done, None)

        gym = GymImport(database, on_line=on_line)
        try:
            for path in files:
                gym.add_file(path)
            gym.close()
        except BaseException:
            _print_unfinished(gym.reports)
            raise
        name = database.place.name
    _print_reports(gym.reports, name, as_json=store.as_json)
    if any(report.refused for report in gym.reports):
        raise typer.Exit(1)


def _print_unfinished(reports: Sequence[FileReport]) -> None:
    for report in reports:
        typer.echo(f"{report.path}: {len(report.imported)} imported before the error", err=True)


def _print_reports(reports: Sequence[FileReport], name: str, *, as_json: bool) -> None:
    from osmosis_store.cli.output import Screen, print_json, print_lines
    from osmosis_store.cli.text import to_one_line

    if as_json:
        print_json({"store": name, "files": [_to_json(report) for report in reports]})
        return
    print_lines(_format_reports(Screen.detect(), reports, name))
    refused = [(report.path, note) for report in reports for note in report.refused]
    for path, note in refused[:_SHOWN]:
        typer.echo(to_one_line(f"error: {path}, line {note.line}: {note.reason}"), err=True)
    if len(refused) > _SHOWN:
        typer.echo(f"error: and {len(refused) - _SHOWN} more lines; --json names all", err=True)


def _to_json(report: FileReport) -> dict[str, Any]:
    return {
        "path": report.path,
        "imported": report.imported,
        "item_count": report.item_count,
        "grade_count": report.grade_count,
        "present_count": report.present_count,
        "skipped": [note._asdict() for note in report.skipped],
        "refused": [note._asdict() for note in report.refused],
    }


def _format_reports(screen: Any, reports: Sequence[FileReport], name: str) -> list[str]:
    from osmosis_store.cli.output import count, counted
    from osmosis_store.cli.tables import format_table

    rows = [
        (
            report.path.name,
            count(len(report.imported)),
            count(report.item_count),
            count(report.grade_count),
            count(report.present_count),
            count(len(report.skipped)),
            count(len(report.refused)),
            "; ".join(sorted({note.reason for note in report.skipped})),
        )
        for report in reports
    ]
    numbers = ("imported", "items", "rewards", "already there", "skipped", "refused")
    lines = format_table(screen, ("file", *numbers, "why skipped"), rows, right=numbers)
    imported = sum(len(report.imported) for report in reports)
    items = sum(report.item_count for report in reports)
    lines.append(f"stored   {counted(imported, 'rollout')}, {counted(items, 'item')}   {name}")
    present = sum(report.present_count for report in reports)
    skipped = sum(len(report.skipped) for report in reports)
    refused = sum(len(report.refused) for report in reports)
    doubts = [
        f"{counted(number, 'line')} {what}"
        for number, what in (
            (present, "already there"),
            (skipped, "skipped"),
            (refused, "refused, nothing of them is stored"),
        )
        if number
    ]
    return [*lines, *(f"         {doubt}" for doubt in doubts)]
