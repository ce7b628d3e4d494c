"""`osmosis-store regrade`: stored samples graded again, without calling the model."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_store.cli.flags import SelectionFlags, StoreFlags
from osmosis_store.cli.output import output_of_user_code
from osmosis_store.cli.places import find_store_url
from osmosis_store.cli.progress import show_progress

if TYPE_CHECKING:
    from osmosis_store.regrade import RegradeReport

__all__ = ["regrade"]

_SHOWN = 10


def regrade(
    grader: Annotated[
        str, typer.Option("--grader", metavar="REF", help="module:Class or file.py:Class.")
    ],
    selection: SelectionFlags,
    store: StoreFlags,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            metavar="KEY=VALUE",
            help="A field of the grader's config; the value as JSON, else as text. Many times.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Grade also what this grader has graded already.")
    ] = False,
    author: Annotated[
        str | None, typer.Option("--author", metavar="NAME", help="Who; kept with the grades.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept with the grades.")
    ] = None,
) -> None:
    """Grade stored samples again; no model is called, and the old grades stay.

    What the same grader, by its code and config, has graded already is skipped. The exit code is
    1 when a sample could not be graded.
    """
    import asyncio

    from osmosis_store.cli.output import print_json, print_lines, to_json_value

    work = partial(
        _regrade,
        find_store_url(store.store),
        grader,
        _parse_config(config or []),
        selection=selection.to_selection(),
        force=force,
        author=author,
        reason=reason,
    )
    with show_progress("graded") as advance, output_of_user_code(as_json=store.as_json):
        report = asyncio.run(work(on_progress=advance))
    if store.as_json:
        names = ("rollout_id", "sample_id", "error")
        failures = [dict(zip(names, failure, strict=True)) for failure in report.failures]
        print_json({**to_json_value(report), "failures": failures})
    else:
        print_lines(_format_report(report))
        _print_failures(report)
    if report.failed_count:
        raise typer.Exit(1)


async def _regrade(
    url: str, reference: str, config: dict[str, Any], **options: Any
) -> RegradeReport:
    from osmosis_store.adapters.osmosis_grader import load_grader
    from osmosis_store.adapters.regrading import regrade as regrade_samples
    from osmosis_store.store import Store

    async with Store.open(url, create=False) as store:
        grader, grader_config = load_grader(reference, Path.cwd(), config)
        return await regrade_samples(store, grader, config=grader_config, **options)


def _parse_config(pairs: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not (key and equals):
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--config")
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    return values


def _format_report(report: RegradeReport) -> list[str]:
    from osmosis_store.cli.output import count, counted, duration, figure

    rate = report.graded_count / report.duration_s if report.duration_s > 0 else 0.0
    pace = f"   {rate:,.0f}/s" if report.graded_count else ""
    lines = [
        f"graded   {count(report.graded_count)} of {counted(report.sample_count, 'sample')}{pace}"
        f"   {duration(report.duration_s)}"
    ]
    if report.mean_after is not None:
        before = f"{figure(report.mean_before)} → " if report.mean_before is not None else ""
        lines.append(
            f"reward   mean {before}{figure(report.mean_after)}"
            f"   flips: {count(report.passed_to_failed)} pass→fail, "
            f"{count(report.failed_to_passed)} fail→pass"
        )
    refused = report.policy_calls_refused
    lines.append(
        f"policy calls: {report.policy_calls}" + (f"   {count(refused)} refused" if refused else "")
    )
    if report.grading_run_id is not None:
        digest = f" {report.code_digest[:8]}" if report.code_digest else ""
        lines.append(f"run      {report.grading_run_id}   {report.grader}{digest}")
    if report.skipped_count:
        lines.append(
            f"skipped  {counted(report.skipped_count, 'sample')}: graded already by this grader, "
            "or still running (--force grades what was graded)"
        )
    if report.removed_count:
        lines.append(f"removed  {counted(report.removed_count, 'sample')} by the grader")
    return lines


def _print_failures(report: RegradeReport) -> None:
    from osmosis_store.cli.text import to_one_line

    for rollout_id, sample_id, error in report.failures[:_SHOWN]:
        typer.echo(f"failed   {rollout_id} {sample_id}: {to_one_line(error)}", err=True)
    if len(report.failures) > _SHOWN:
        more = len(report.failures) - _SHOWN
        typer.echo(f"failed   and {more} more; `osmosis-store grades list` has all", err=True)
