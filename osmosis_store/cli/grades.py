"""`osmosis-store grades`: the ledger, old grades too, each with the grader that gave it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from osmosis_store.cli.flags import SelectionFlags, StoreFlags, ViewFlags, command
from osmosis_store.cli.places import open_for_reading
from osmosis_store.cli.shell import new_group

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from osmosis_store.cli.output import Screen
    from osmosis_store.records import GradeRecord, GradingRunRecord, Selection

__all__ = ["app"]

app = new_group("Look at grades.")

_DIGEST_CHARS = 8


@command(app, "list")
def list_grades(
    selection: SelectionFlags,
    store: StoreFlags,
    view: ViewFlags,
    grading_run: Annotated[
        str | None, typer.Option("--grading-run", metavar="ID", help="Of this grading run.")
    ] = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="Only what each grading run gave them.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Of at most so many rollouts.")
    ] = 100,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="ID", help="Of rollouts behind this id: the next page."),
    ] = None,
) -> None:
    """List every grade of the selected rollouts, and what each grading run gave them."""
    from osmosis_store.cli.output import Screen, counted, print_json, print_lines

    with open_for_reading(store.store) as database, database.reading() as tx:
        page = _fetch_page(tx, selection.to_selection(), grading_run, after=after, limit=limit)
    if store.as_json:
        data = page._asdict()
        print_json({**data, "grades": []} if summary else data)
        return
    screen = Screen.detect(wide=view.wide, utc=view.utc)
    if page.grades and not summary:
        print_lines([*_format_grades(screen, page.grades), ""])
    if page.grades:
        print_lines(_format_runs(screen, page.grades, page.grading_runs))
    more = f", and more: --after {page.last_id}" if page.has_more else ""
    rollouts = counted(page.rollout_count, "rollout")
    print(f"{counted(len(page.grades), 'grade')} of {rollouts}{more}")


class _Page(NamedTuple):
    grades: list[GradeRecord]
    grading_runs: list[GradingRunRecord]
    rollout_count: int
    last_id: str | None
    has_more: bool


def _fetch_page(
    tx: Connection,
    selection: Selection,
    grading_run: str | None,
    *,
    after: str | None,
    limit: int,
) -> _Page:
    from osmosis_store.queries.grades import fetch_grades, fetch_grading_run
    from osmosis_store.queries.rollouts import fetch_rollouts

    if grading_run is not None:
        fetch_grading_run(tx, grading_run)
    found = fetch_rollouts(tx, selection, after=after, limit=limit + 1)
    ids = [rollout.rollout_id for rollout in found[:limit]]
    grades = [
        grade
        for grade in fetch_grades(tx, rollout_ids=ids, grading_run_id=grading_run)
        if selection.sample in (None, grade.sample_id)
    ]
    runs = [
        fetch_grading_run(tx, run_id) for run_id in sorted({one.grading_run_id for one in grades})
    ]
    return _Page(grades, runs, len(ids), ids[-1] if ids else None, len(found) > limit)


def _format_grades(screen: Screen, grades: Sequence[GradeRecord]) -> list[str]:
    from osmosis_store.cli.detail import tell_grade
    from osmosis_store.cli.tables import format_table

    rows = [
        (
            grade.rollout_id,
            grade.sample_id,
            str(grade.grade_no),
            "error" if grade.error is not None else tell_grade(grade),
            grade.grading_run_id,
            grade.grader,
            grade.error or grade.explanation or "",
        )
        for grade in grades
    ]
    titles = ("rollout", "sample", "no", "reward", "grading run", "grader", "note")
    return format_table(screen, titles, rows, right=("no", "reward"))


def _format_runs(
    screen: Screen, grades: Sequence[GradeRecord], runs: Sequence[GradingRunRecord]
) -> list[str]:
    """Return a line per grading run: no mean is over grades of two of them."""
    from osmosis_store.cli.output import count, figure
    from osmosis_store.cli.tables import format_table

    rows = []
    for run in runs:
        own = [grade for grade in grades if grade.grading_run_id == run.grading_run_id]
        rewards = [one.reward for one in own if one.reward is not None and not one.removed]
        rows.append(
            (
                run.grading_run_id,
                run.kind,
                count(len(own)),
                count(sum(one.error is not None for one in own)),
                figure(statistics.fmean(rewards)) if rewards else "",
                count(run.policy_calls),
                screen.time(run.started_at),
                run.grader + (f" {run.code_digest[:_DIGEST_CHARS]}" if run.code_digest else ""),
            )
        )
    titles = (
        "grading run",
        "kind",
        "grades",
        "failed",
        "mean",
        "policy calls",
        "started",
        "grader",
    )
    return format_table(
        screen, titles, rows, right=("grades", "failed", "mean", "policy calls"), spare=("started",)
    )
