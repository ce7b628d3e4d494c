"""`osmosis-store grades diff`: two grading runs on the same samples."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_store.cli.csv_lines import CsvFlag, require_one_format
from osmosis_store.cli.flags import SelectionFlags, StoreFlags, ViewFlags
from osmosis_store.cli.places import open_for_reading

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from osmosis_store.cli.output import Screen
    from osmosis_store.differences import ComparedSample, GradesDiff
    from osmosis_store.records import GradingRunRecord, Selection

__all__ = ["diff_grades"]

_FEW = 30
_CSV_NAMES = (
    *("rollout_id", "sample_id", "row_index", "attempt", "presence", "reward_a", "reward_b"),
    *("shift", "flip", "mixed", "error_a", "error_b", "show"),
)


def diff_grades(
    a: Annotated[str, typer.Argument(metavar="A", help="A grading run's id.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The one to compare with it.")],
    selection: SelectionFlags,
    store: StoreFlags,
    view: ViewFlags,
    allow_mixed: Annotated[
        bool,
        typer.Option(
            "--allow-mixed", help="Also compare grades that saw another label, or other items."
        ),
    ] = False,
    fail_on_regression: Annotated[
        bool,
        typer.Option(
            "--fail-on-regression", help="Exit with 1 when the mean shift is below -TOLERANCE."
        ),
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", metavar="NUMBER", help="How far it may go down: 0."),
    ] = None,
    pass_threshold: Annotated[
        float,
        typer.Option("--pass-threshold", metavar="REWARD", help="Passed with it or more."),
    ] = 1.0,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="So many of the biggest movers.")
    ] = 10,
    as_csv: CsvFlag = False,
) -> None:
    """Compare two grading runs on the samples that both have graded, B with A.

    Flips in both directions, the mean shift with a paired 95 % interval (clustered by dataset row
    where a row has several attempts), McNemar's exact test, the biggest movers. CSV has a line for
    each sample. Grades that saw another label or other items are not compared: the exit code is 3.
    """
    require_one_format(as_json=store.as_json, as_csv=as_csv)
    allowed = _require_tolerance(tolerance, fail_on_regression)
    if not math.isfinite(pass_threshold):
        raise typer.BadParameter("a finite number is needed", param_hint="--pass-threshold")
    from osmosis_store.cli.csv_lines import print_csv
    from osmosis_store.cli.output import Screen, print_json, print_lines
    from osmosis_store.differences import diff_grades as compare

    chosen = selection.to_selection()
    with open_for_reading(store.store) as database, database.reading() as tx:
        diff = compare(
            tx,
            a,
            b,
            selection=chosen,
            allow_mixed=allow_mixed,
            pass_threshold=pass_threshold,
            mover_limit=limit,
        )
        if as_csv:
            print_csv(_CSV_NAMES, _to_lines(tx, diff, chosen))
    regressed = diff.is_regression(allowed) if fail_on_regression else None
    if store.as_json:
        tolerated = allowed if fail_on_regression else None
        print_json({**_to_json(diff), "tolerance": tolerated, "regressed": regressed})
    elif not as_csv:
        print_lines(_format_diff(Screen.detect(wide=view.wide, utc=view.utc), diff))
    if regressed:
        _say_regression(diff, allowed)
        raise typer.Exit(1)


def _require_tolerance(tolerance: float | None, is_used: bool) -> float:
    if tolerance is None:
        return 0.0
    if not is_used:
        raise typer.BadParameter("it needs --fail-on-regression", param_hint="--tolerance")
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise typer.BadParameter("a finite number from 0 is needed", param_hint="--tolerance")
    return tolerance


def _say_regression(diff: GradesDiff, tolerance: float) -> None:
    from osmosis_store.cli.output import figure

    if diff.mean_shift is None:
        text = "no sample was compared, so a regression cannot be ruled out"
    else:
        least = figure(-tolerance) if tolerance else "0"
        text = f"the mean shift {figure(diff.mean_shift)} is below {least}"
    typer.echo(f"regression: {text}", err=True)


def _to_json(diff: GradesDiff) -> dict[str, Any]:
    from osmosis_store.cli.output import to_json_value

    movers = [{**to_json_value(one), "show": _show_command(one)} for one in diff.movers]
    return {**to_json_value(diff), "movers": movers}


def _to_lines(tx: Connection, diff: GradesDiff, selection: Selection) -> Iterator[dict[str, Any]]:
    from osmosis_store.differences import iterate_compared

    for one in iterate_compared(tx, diff, selection):
        yield {**vars(one), "show": _show_command(one)}


def _show_command(sample: ComparedSample) -> str:
    words = ("osmosis-store", "rollouts", "show", sample.rollout_id)
    return shlex.join((*words, "--sample", sample.sample_id))


def _format_diff(screen: Screen, diff: GradesDiff) -> list[str]:
    from osmosis_store.cli.output import count

    lines = [_tell_run(screen, "A", diff.a), _tell_run(screen, "B", diff.b)]
    lines.append(f"samples  {count(diff.compared_count)} compared")
    lines += _figures(diff)
    if diff.movers:
        lines += ["", *_movers(screen, diff)]
    doubts = list(_doubts(diff))
    return [*lines, *([""] if diff.movers and doubts else []), *doubts]


def _tell_run(screen: Screen, name: str, run: GradingRunRecord) -> str:
    from osmosis_store.cli.grades_detail import tell_grader
    from osmosis_store.cli.text import cut, to_one_line

    grader = to_one_line(tell_grader(run.grader, run.code_digest))
    facts = (run.grading_run_id, f"{run.kind} · {grader}", screen.time(run.started_at))
    return cut(f"{name}        " + "   ".join(facts), screen.width)


def _figures(diff: GradesDiff) -> Iterator[str]:
    from osmosis_store.cli.output import count, figure

    if diff.mean_a is None or diff.mean_b is None or diff.mean_shift is None:
        return
    shift = ("+" if diff.mean_shift > 0 else "") + figure(diff.mean_shift)
    yield f"reward   mean {figure(diff.mean_a)} → {figure(diff.mean_b)}   shift {shift}"
    if diff.interval_low is not None and diff.interval_high is not None:
        how = "by the central limit theorem"
        if diff.clustered:
            how = f"clustered by dataset row, {count(diff.cluster_count)} of them"
        yield (
            f"         95 % interval {figure(diff.interval_low)} to {figure(diff.interval_high)}, "
            f"paired, {how}"
        )
    yield (
        f"pass     {count(diff.passed_a)} → {count(diff.passed_b)} of "
        f"{count(diff.compared_count)}, with {figure(diff.pass_threshold)} or more"
    )
    yield (
        f"flips    {count(diff.passed_to_failed)} pass→fail, {count(diff.failed_to_passed)} "
        f"fail→pass   p = {diff.mcnemar_p:.3g} (McNemar, exact)"
    )
    yield f"moved    {count(diff.improved_count)} up, {count(diff.worsened_count)} down"


def _movers(screen: Screen, diff: GradesDiff) -> list[str]:
    from osmosis_store.cli.output import figure
    from osmosis_store.cli.tables import format_table

    rows = [
        (
            one.rollout_id,
            one.sample_id,
            "" if one.row_index is None else str(one.row_index),
            *(
                figure(value)
                for value in (one.reward_a, one.reward_b, one.shift)
                if value is not None
            ),
            one.flip or "",
            # where it would be cut, the line below the table says it for the first one
            _show_command(one) if screen.width is None else "",
        )
        for one in diff.movers
    ]
    titles = ("rollout", "sample", "row", "A", "B", "shift", "flip", "show")
    lines = format_table(screen, titles, rows, right=("row", "A", "B", "shift"))
    if screen.width is not None:
        lines.append(f"show one: {_show_command(diff.movers[0])}")
    return lines


def _doubts(diff: GradesDiff) -> Iterator[str]:
    """Say what was left out, mixed or rough, each in a line of its own."""
    from osmosis_store.cli.output import count, counted

    left_out = [
        f"{count(number)} {what}"
        for number, what in (
            (diff.only_in_a, "only in A"),
            (diff.only_in_b, "only in B"),
            (diff.errors_in_a, "failed in A"),
            (diff.errors_in_b, "failed in B"),
            (diff.removed_in_a, "removed in A"),
            (diff.removed_in_b, "removed in B"),
        )
        if number
    ]
    if left_out:
        yield f"not compared: {', '.join(left_out)}"
    if diff.mixed:
        yield f"mixed: {counted(len(diff.mixed), 'sample')} compared over other labels or items"
    if not diff.compared_count:
        return
    shown = diff.improved_count + diff.worsened_count - len(diff.movers)
    if shown:
        yield f"{counted(shown, 'mover')} more; --limit shows more, --csv all"
    if diff.standard_error is None:
        yield "no interval: that takes two samples, of different dataset rows"
    elif diff.cluster_count < _FEW:
        yield f"the interval is rough: {counted(diff.cluster_count, _unit(diff))} only"
    if diff.clustered and diff.passed_to_failed + diff.failed_to_passed:
        yield "McNemar's test takes attempts of a row as independent, which can make p too small"


def _unit(diff: GradesDiff) -> str:
    return "dataset row" if diff.clustered else "sample"
