"""`osmosis-store grades`: the ledger, old grades too, each with the grader that gave it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from osmosis_store.cli.csv_lines import CsvFlag, require_one_format
from osmosis_store.cli.flags import SelectionFlags, StoreFlags, ViewFlags, command
from osmosis_store.cli.grades_diff import diff_grades
from osmosis_store.cli.places import find_store_url, open_for_reading
from osmosis_store.cli.shell import new_group
from osmosis_store.errors import InvalidSelection

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from osmosis_store.cli.output import Screen
    from osmosis_store.queries.grades import PastGrade
    from osmosis_store.records import GradeRecord, GradingRunRecord, Selection

__all__ = ["app"]

app = new_group("Look at grades, compare grading runs, add a grade of your own.")

_DIGEST_CHARS = 8
_BY_ROLLOUT = "id"

RolloutId = Annotated[str, typer.Argument(metavar="ROLLOUT_ID", help="The rollout's id.")]


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
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="KEY",
            help="By id of the rollout, reward or time; with - before it from the greatest down.",
        ),
    ] = _BY_ROLLOUT,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            min=1,
            metavar="N",
            help="Of at most so many rollouts; in another order than theirs, so many grades.",
        ),
    ] = 100,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="ID", help="Of rollouts behind this id: the next page."),
    ] = None,
    as_csv: CsvFlag = False,
) -> None:
    """List every grade of the selected rollouts, and what each grading run gave them.

    A mean is over one grading run, hence over one grader's code and config; of a sample that it
    graded again the newest grade counts.
    """
    from osmosis_store.cli.output import Screen, counted, print_json, print_lines

    require_one_format(as_json=store.as_json, as_csv=as_csv)
    _require_order(sort, after)
    with open_for_reading(store.store) as database, database.reading() as tx:
        page = _fetch_page(
            tx,
            selection.to_selection(),
            grading_run,
            sort=sort,
            after=after,
            # a mean over a page would be nobody's mean
            limit=None if summary else limit,
        )
    if store.as_json:
        data = page._asdict()
        print_json({**data, "grades": []} if summary else data)
        return
    if as_csv:
        _print_csv(page, summary=summary)
        return
    screen = Screen.detect(wide=view.wide, utc=view.utc)
    if page.grades and not summary:
        print_lines([*_format_grades(screen, page.grades), ""])
    if page.grades:
        print_lines(_format_runs(screen, page.grades, page.grading_runs))
    more = ""
    if page.has_more:
        print("the means are over these grades only; --summary has them over all")
        more = f", and more: --after {page.last_id}" if page.last_id else ", and more: --limit"
    rollouts = counted(page.rollout_count, "rollout")
    print(f"{counted(len(page.grades), 'grade')} of {rollouts}{more}")


def _require_order(sort: str, after: str | None) -> None:
    from osmosis_store.queries.grades import GRADE_ORDERS

    orders = (_BY_ROLLOUT, *GRADE_ORDERS)
    if sort not in orders:
        raise InvalidSelection(
            f"grades cannot be sorted by {sort!r}", hint=f"known: {', '.join(orders)}"
        )
    if sort != _BY_ROLLOUT and after is not None:
        raise typer.BadParameter("pages are in the order of rollouts", param_hint="--after")


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
    sort: str,
    after: str | None,
    limit: int | None,
) -> _Page:
    """Fetch a page; without a limit it holds everything, and any order is the same."""
    from osmosis_store.queries.grades import (
        fetch_grades,
        fetch_grading_run,
        fetch_grading_runs,
        fetch_sorted_grades,
    )
    from osmosis_store.queries.rollouts import fetch_rollout_ids

    if grading_run is not None:
        fetch_grading_run(tx, grading_run)
    if sort == _BY_ROLLOUT or limit is None:
        more = None if limit is None else limit + 1
        found = fetch_rollout_ids(tx, selection, after=after, limit=more)
        ids = list(found[:limit])
        grades = [
            grade
            for grade in fetch_grades(tx, rollout_ids=ids, grading_run_id=grading_run)
            if selection.sample in (None, grade.sample_id)
        ]
        has_more, last_id = len(found) > len(ids), ids[-1] if ids else None
    else:
        grades = fetch_sorted_grades(
            tx, selection, order=sort, grading_run_id=grading_run, limit=limit + 1
        )
        has_more, last_id = len(grades) > limit, None
        grades = grades[:limit]
        ids = list({grade.rollout_id for grade in grades})
    runs = fetch_grading_runs(tx, ids={grade.grading_run_id for grade in grades})
    return _Page(grades, runs[::-1], len(ids), last_id, has_more)


def _print_csv(page: _Page, *, summary: bool) -> None:
    import dataclasses

    from osmosis_store.cli.csv_lines import print_csv
    from osmosis_store.records import GradeRecord

    if summary:
        results = [_result_of(run, page.grades) for run in page.grading_runs]
        names = ("grading_run_id", "kind", "grader", "code_digest", *_RunResult._fields[1:])
        print_csv(names, [{**vars(one.run), **one._asdict()} for one in results])
        return
    columns = tuple(one.name for one in dataclasses.fields(GradeRecord))
    print_csv(columns, [vars(grade) for grade in page.grades])


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


class _RunResult(NamedTuple):
    """What one grading run says of the samples shown: its newest grade of each."""

    run: GradingRunRecord
    sample_count: int
    failed_count: int
    mean_reward: float | None


def _result_of(run: GradingRunRecord, grades: Iterable[GradeRecord]) -> _RunResult:
    own = sorted(
        (grade for grade in grades if grade.grading_run_id == run.grading_run_id),
        key=lambda grade: grade.grade_no,
    )
    newest = {(grade.rollout_id, grade.sample_id): grade for grade in own}.values()
    rewards = [one.reward for one in newest if one.reward is not None and not one.removed]
    return _RunResult(
        run,
        len(newest),
        sum(one.error is not None for one in newest),
        statistics.fmean(rewards) if rewards else None,
    )


def _format_runs(
    screen: Screen, grades: Sequence[GradeRecord], runs: Sequence[GradingRunRecord]
) -> list[str]:
    """Return a line per grading run: no mean is over grades of two of them."""
    from osmosis_store.cli.output import count, figure
    from osmosis_store.cli.tables import format_table

    rows = [
        (
            run.grading_run_id,
            run.kind,
            count(result.sample_count),
            count(result.failed_count),
            "" if result.mean_reward is None else figure(result.mean_reward),
            count(run.policy_calls),
            screen.time(run.started_at),
            run.grader + (f" {run.code_digest[:_DIGEST_CHARS]}" if run.code_digest else ""),
        )
        for run, result in ((run, _result_of(run, grades)) for run in runs)
    ]
    titles = (
        "grading run",
        "kind",
        "samples",
        "failed",
        "mean",
        "policy calls",
        "started",
        "grader",
    )
    numbers = ("samples", "failed", "mean", "policy calls")
    return format_table(screen, titles, rows, right=numbers, spare=("started",))


@command(app, "show")
def show_grading_run(
    grading_run: Annotated[
        str, typer.Argument(metavar="GRADING_RUN_ID", help="The grading run's id.")
    ],
    store: StoreFlags,
    view: ViewFlags,
) -> None:
    """Show where the grades of a grading run came from: who or what gave them, how and why."""
    from osmosis_store.cli.grades_detail import format_grading_run
    from osmosis_store.cli.output import Screen, print_json, print_lines, to_json_value
    from osmosis_store.queries.grades import fetch_grading_run, fetch_run_result

    with open_for_reading(store.store) as database, database.reading() as tx:
        run = fetch_grading_run(tx, grading_run)
        result = fetch_run_result(tx, grading_run)
    if store.as_json:
        print_json({"grading_run": to_json_value(run), "result": result._asdict()})
    else:
        print_lines(format_grading_run(Screen.detect(wide=view.wide, utc=view.utc), run, result))


@command(app, "history")
def show_history(
    rollout_id: RolloutId,
    store: StoreFlags,
    view: ViewFlags,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="ID", help="Only this sample of it.")
    ] = None,
) -> None:
    """Show every grade that a rollout's samples ever got, in order, by whom and why."""
    from osmosis_store.cli.grades_detail import format_history
    from osmosis_store.cli.output import Screen, print_json, print_lines
    from osmosis_store.queries.grades import fetch_history
    from osmosis_store.queries.items import require_sample
    from osmosis_store.queries.rollouts import fetch_rollout
    from osmosis_store.records import SampleKey

    with open_for_reading(store.store) as database, database.reading() as tx:
        fetch_rollout(tx, rollout_id)
        if sample is not None:
            require_sample(tx, SampleKey(rollout_id, sample))
        found = fetch_history(tx, rollout_id, sample_id=sample)
    if store.as_json:
        print_json({"rollout_id": rollout_id, "grades": [_to_json(one) for one in found]})
    else:
        print_lines(format_history(Screen.detect(wide=view.wide, utc=view.utc), found))


def _to_json(past: PastGrade) -> dict[str, Any]:
    from osmosis_store.cli.output import to_json_value

    values = past._asdict()
    grade = values.pop("grade")
    return {**to_json_value(grade), **values}


@command(app, "add")
def add_grade(
    rollout_id: RolloutId,
    store: StoreFlags,
    reward: Annotated[
        float, typer.Option("--reward", metavar="NUMBER", help="The reward that you give.")
    ],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why you grade it; kept with the grade.")
    ],
    author: Annotated[
        str | None,
        typer.Option("--author", metavar="NAME", help="Who you are; else your login name."),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option("--sample", metavar="ID", help="Which of its samples, if it has several."),
    ] = None,
    explanation: Annotated[
        str | None, typer.Option("--explanation", metavar="TEXT", help="Why it is this reward.")
    ] = None,
) -> None:
    """Add a grade of your own to a sample: a grading run of kind human; old grades stay."""
    import asyncio

    from osmosis_store.cli.output import figure, print_json, to_json_value
    from osmosis_store.store import Store

    name = author if author is not None else _login_name()

    async def add() -> GradeRecord:
        async with Store.open(find_store_url(store.store), create=False) as opened:
            return await opened.add_grade(
                rollout_id,
                reward,
                author=name,
                reason=reason,
                sample_id=sample,
                explanation=explanation,
            )

    grade = asyncio.run(add())
    if store.as_json:
        print_json({"grade": to_json_value(grade)})
        return
    print(f"graded   {grade.rollout_id} {grade.sample_id}   {figure(reward)} by {grade.grader}")
    print(f"run      {grade.grading_run_id}   grade {grade.grade_no} of the sample")


def _login_name() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        raise typer.BadParameter(
            "this system has no name for you; say who you are", param_hint="--author"
        ) from None


command(app, "diff")(diff_grades)
