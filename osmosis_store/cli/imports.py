"""`osmosis-store import`: rollouts that other programs recorded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_store.cli.flags import StoreFlags, command
from osmosis_store.cli.places import find_place, open_for_import, open_for_reading
from osmosis_store.cli.progress import show_progress
from osmosis_store.cli.shell import new_group

if TYPE_CHECKING:
    from osmosis_store.adapters.gym import FileReport
    from osmosis_store.database import Database

__all__ = ["app"]

app = new_group("Import rollouts that other programs recorded.")

_SHOWN = 20
_COUNTS = ("imported_count", "item_count", "grade_count", "no_response_count", "present_count")


@app.callback()
def _keep_the_group() -> None:
    """Import rollouts that other programs recorded."""


@command(app, "gym")
def import_gym(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="NeMo Gym rollouts, JSON lines, plain or gzipped; - is standard input.",
        ),
    ],
    store: StoreFlags,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check everything, store nothing.")
    ] = False,
) -> None:
    """Import NeMo Gym rollouts: a rollout per line, its reward as a grade.

    A line without a response is a rollout that failed: what was asked is there. A line that was
    imported before is left as it is: the same content in a file of the same name. A line that is
    not of the format is refused and named, the others are imported, and the exit code is 1. An
    import that was stopped goes on when it is run again.
    """
    from osmosis_store.adapters.gym import GymImport

    _require_readable(files)
    opened = _open_for_dry_run if dry_run else open_for_import
    with opened(store.store) as database, show_progress("MB") as advance:
        gym = GymImport(database, dry_run=dry_run, on_progress=_in_megabytes(advance))
        try:
            for path in files:
                gym.add_file(path)
            gym.close()
        except BaseException:
            _print_unfinished(gym.reports)
            raise
    name = find_place(store.store).name
    _print_reports(gym.reports, name, dry_run=dry_run, as_json=store.as_json)
    if any(report.refused for report in gym.reports):
        raise typer.Exit(1)


def _require_readable(files: Sequence[Path]) -> None:
    """Check all files before the first one is imported; a pipe will do.

    Raises:
        typer.BadParameter: One is missing, a folder or not readable.
    """
    for path in files:
        reason = ""
        if str(path) == "-":
            continue
        if not path.exists():
            reason = "does not exist"
        elif path.is_dir():
            reason = "is a folder"
        elif not os.access(path, os.R_OK):
            reason = "cannot be read"
        if reason:
            raise typer.BadParameter(f"{path} {reason}", param_hint="FILE")


@contextlib.contextmanager
def _open_for_dry_run(flag: str | None) -> Iterator[Database | None]:
    """Open the store to read; None where an import would make it."""
    from osmosis_store.errors import StoreNotFound

    with contextlib.ExitStack() as stack:
        try:
            database: Database | None = stack.enter_context(open_for_reading(flag))
        except StoreNotFound:
            database = None
        yield database


def _in_megabytes(advance: Any) -> Any:
    def on_progress(done: int, total: int | None) -> None:
        advance(done // 10**6, None if total is None else total // 10**6)

    return on_progress


def _print_unfinished(reports: Sequence[FileReport]) -> None:
    for report in reports:
        typer.echo(f"{report.path}: {report.imported_count} imported before the error", err=True)


def _print_reports(
    reports: Sequence[FileReport], name: str, *, dry_run: bool, as_json: bool
) -> None:
    from osmosis_store.cli.output import Screen, print_json, print_lines
    from osmosis_store.cli.text import to_one_line

    if as_json:
        files = [_to_json(report) for report in reports]
        print_json({"store": name, "dry_run": dry_run, "files": files, **_sums(reports)})
        return
    print_lines(_format_reports(Screen.detect(), reports, name, dry_run=dry_run))
    refused = [(report.path, note) for report in reports for note in report.refused]
    for path, note in refused[:_SHOWN]:
        typer.echo(to_one_line(f"error: {path}:{note.line}: {note.reason}"), err=True)
    if len(refused) > _SHOWN:
        typer.echo(f"error: and {len(refused) - _SHOWN} more lines; --json names all", err=True)


def _sums(reports: Sequence[FileReport]) -> dict[str, int]:
    sums = {name: sum(getattr(report, name) for report in reports) for name in _COUNTS}
    return {**sums, "refused_count": sum(len(report.refused) for report in reports)}


def _to_json(report: FileReport) -> dict[str, Any]:
    return {
        "path": report.path,
        **_sums([report]),
        "refused": [note._asdict() for note in report.refused],
    }


def _format_reports(
    screen: Any, reports: Sequence[FileReport], name: str, *, dry_run: bool
) -> list[str]:
    from osmosis_store.cli.output import count, counted
    from osmosis_store.cli.tables import format_table

    rows = [
        (report.path.name, *(count(number) for number in _sums([report]).values()))
        for report in reports
    ]
    verb = "new" if dry_run else "imported"
    numbers = (verb, "items", "rewards", "without response", "already there", "refused")
    lines = format_table(screen, ("file", *numbers), rows, right=numbers)
    sums = _sums(reports)
    found = f"{counted(sums['imported_count'], 'rollout')}, {counted(sums['item_count'], 'item')}"
    lines.append(f"would store {found}   {name}" if dry_run else f"stored   {found}   {name}")
    doubts = [
        f"{counted(sums[key], 'line')} {what}"
        for key, what in (
            ("present_count", "already there"),
            ("no_response_count", "without a response, as failed rollouts"),
            ("refused_count", "refused, nothing of them is stored"),
        )
        if sums[key]
    ]
    return [*lines, *(f"         {doubt}" for doubt in doubts)]
