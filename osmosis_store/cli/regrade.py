"""`osmosis-store regrade`: stored samples graded again, without calling the model."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_store.cli.flags import SelectionFlags, StoreFlags
from osmosis_store.cli.output import output_of_user_code
from osmosis_store.cli.places import find_store_url
from osmosis_store.cli.progress import show_progress

if TYPE_CHECKING:
    from osmosis_store.records import SampleKey
    from osmosis_store.regrade_report import GradingPassReport, RegradeReport

__all__ = ["regrade"]

_SHOWN = 10
_INTERRUPTED = 130
_REASONS = {
    "graded": "graded already by this grader (--force grades them again)",
    "running": "of rollouts that still run",
    "failed": "failed in this grading run (--failed-only tries them again)",
    "not_failed": "have not failed",
}


def regrade(
    grader: Annotated[
        list[str],
        typer.Option(
            "--grader",
            metavar="REF",
            help="module:Class or file.py:Class. Many times: each under its own grading run.",
        ),
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
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config-file", metavar="FILE", help="Fields of the config, as TOML or .json."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be graded and skipped, and why.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Grade also what this grader has graded already.")
    ] = False,
    failed_only: Annotated[
        bool,
        typer.Option(
            "--failed-only",
            help="Try again what failed, under the same grading run: that of --resume, or the "
            "newest of this grader with failures.",
        ),
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="ID",
            help="Go on under this grading run; its selection holds unless another is given.",
        ),
    ] = None,
    allow_network: Annotated[
        bool,
        typer.Option(
            "--allow-network", help="The grader is a judge: count connections, refuse none."
        ),
    ] = False,
    workers: Annotated[
        int, typer.Option("--workers", min=1, metavar="N", help="Grade in so many processes.")
    ] = 1,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", min=1, metavar="N", help="Rollouts at once, in each process."
        ),
    ] = 8,
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="I/N", help="Only the I-th of N stable shares."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="What a grader may take for a rollout."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, metavar="N", help="At most so many rollouts with something to grade."
        ),
    ] = None,
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

    if timeout is not None and not 0 < timeout < math.inf:
        raise typer.BadParameter(f"{timeout} is no time to grade in", param_hint="--timeout")
    plan: list[tuple[int, SampleKey, str | None]] = []
    chosen = selection.to_selection()
    work = partial(
        _regrade,
        find_store_url(store.store),
        grader,
        {**_read_config(config_file), **_parse_config(config or [])},
        # with --resume the run's own selection holds
        selection=chosen if chosen.to_json() or resume is None else None,
        dry_run=dry_run,
        force=force,
        failed_only=failed_only,
        resume=resume,
        allow_network=allow_network,
        workers=workers,
        concurrency=concurrency,
        shard=shard,
        timeout_s=timeout,
        limit=limit,
        author=author,
        reason=reason,
        plan=lambda *told: plan.append(told),
    )
    with show_progress("graded") as advance, output_of_user_code(as_json=store.as_json):
        report = asyncio.run(work(on_progress=advance))
    if store.as_json:
        told = to_json_value(report)
        for one in told["passes"]:
            names = ("rollout_id", "sample_id", "error")
            one["failures"] = [dict(zip(names, row, strict=True)) for row in one["failures"]]
        print_json({**told, "plan": [_to_json_plan(report, *one) for one in plan]})
    else:
        print_lines(_format_report(report))
        print_lines(_format_plan(plan))
        _print_failures(report)
    if report.interrupted:
        _say_how_to_resume(report)
        raise typer.Exit(_INTERRUPTED)
    if report.failed_count and not dry_run:
        raise typer.Exit(1)


async def _regrade(
    url: str, references: list[str], config: dict[str, Any], **options: Any
) -> RegradeReport:
    from osmosis_store.adapters.osmosis_grader import load_grader
    from osmosis_store.adapters.regrade_processes import prepare_loop
    from osmosis_store.adapters.regrading import regrade as regrade_samples
    from osmosis_store.network_guard import NetworkGuard
    from osmosis_store.store import Store

    prepare_loop()
    async with Store.open(url, create=False) as store:
        graders = [load_grader(one, Path.cwd(), config) for one in dict.fromkeys(references)]
        guard = NetworkGuard(allow=options["allow_network"], whole_process=True)
        with _stopping() as is_stopped:
            return await regrade_samples(
                store, graders, guard=guard, is_stopped=is_stopped, **options
            )


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Take the first Ctrl-C or SIGTERM as a wish to stop; the second one ends at once."""
    import asyncio
    import signal

    loop = asyncio.get_running_loop()
    is_stopped = is_over = False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True
        typer.echo("stopping when what was begun is graded; again: at once", err=True)
        restore()

    def restore() -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(one)

    def forget() -> None:
        if is_over:
            return
        # a grader's forked child would hand its own signals to this loop
        signal.set_wakeup_fd(-1)
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_DFL)

    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, stop)
    os.register_at_fork(after_in_child=forget)
    try:
        yield lambda: is_stopped
    finally:
        is_over = True
        restore()


def _read_config(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        text = path.read_text("utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--config-file") from None
    if not isinstance(values, dict):
        raise typer.BadParameter(f"{path} holds no object", param_hint="--config-file")
    return values


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


def _to_json_plan(
    report: RegradeReport, pass_no: int, sample: SampleKey, reason: str | None
) -> dict[str, Any]:
    return {
        "grader": report.passes[pass_no].grader,
        **sample._asdict(),
        "skipped": reason,
    }


def _format_report(report: RegradeReport) -> list[str]:
    from osmosis_store.cli.output import count, duration

    lines = [line for one in report.passes for line in _format_pass(report, one)]
    refused = sum(one.policy_calls_refused for one in report.passes)
    network = (
        f"connections: {count(report.connections_allowed)} allowed, "
        f"{count(report.connections_refused)} refused"
    )
    lines.append(
        f"policy calls: {report.policy_calls}"
        + (f" ({count(refused)} refused)" if refused else "")
        + f"   {network}   {duration(report.duration_s)}"
    )
    ids = [one.grading_run_id for one in report.passes if one.grading_run_id is not None]
    if len(ids) > 1:
        lines.append(f"compare  osmosis-store grades diff {ids[0]} {ids[1]}")
    return lines


def _format_pass(report: RegradeReport, one: GradingPassReport) -> list[str]:
    from osmosis_store.cli.output import count, counted, figure

    total = one.graded_count + one.failed_count + sum(one.skipped.values())
    pace = ""
    if one.graded_count and report.duration_s > 0 and not report.dry_run:
        pace = f"   {one.graded_count / report.duration_s:,.0f}/s"
    what = "to grade" if report.dry_run else "graded  "
    lines = [f"{what} {count(one.graded_count)} of {counted(total, 'sample')}{pace}"]
    if one.mean_after is not None:
        before = f"{figure(one.mean_before)} → " if one.mean_before is not None else ""
        compared = ", against each sample's newest grade" if before else ""
        lines.append(
            f"reward   mean {before}{figure(one.mean_after)}"
            f"   flips: {count(one.passed_to_failed)} pass→fail, "
            f"{count(one.failed_to_passed)} fail→pass{compared}"
        )
    digest = f" {one.code_digest[:8]}" if one.code_digest else ""
    lines.append(f"run      {one.grading_run_id or '(none)'}   {one.grader}{digest}")
    for reason, number in one.skipped.items():
        lines.append(f"skipped  {counted(number, 'sample')}: {_REASONS[reason]}")
    if one.failed_count:
        lines.append(f"failed   {counted(one.failed_count, 'sample')}")
    if one.removed_count:
        lines.append(f"removed  {counted(one.removed_count, 'sample')} by the grader")
    if one.judge is not None:
        lines.append(
            f"judge    {count(one.judge.input_tokens)} tokens in, "
            f"{count(one.judge.output_tokens)} out"
        )
    elif report.connections_allowed:
        lines.append("judge    tokens unknown: the grader does not say")
    return lines


def _format_plan(plan: list[tuple[int, SampleKey, str | None]]) -> list[str]:
    lines = [
        f"  {'grade' if reason is None else 'skip '} {sample.rollout_id} {sample.sample_id}"
        + (f"   {_REASONS[reason]}" if reason else "")
        for _, sample, reason in plan[:_SHOWN]
    ]
    if len(plan) > _SHOWN:
        lines.append(f"  and {len(plan) - _SHOWN:,} more; --json lists all")
    return lines


def _print_failures(report: RegradeReport) -> None:
    from osmosis_store.cli.text import to_one_line

    for one in report.passes:
        for rollout_id, sample_id, error in one.failures[:_SHOWN]:
            typer.echo(f"failed   {rollout_id} {sample_id}: {to_one_line(error)}", err=True)
        if one.failed_count > _SHOWN:
            more = one.failed_count - _SHOWN
            command = f"osmosis-store grades list --grading-run {one.grading_run_id}"
            typer.echo(f"failed   and {more:,} more; `{command}` has all", err=True)


def _say_how_to_resume(report: RegradeReport) -> None:
    ids = [one.grading_run_id for one in report.passes if one.grading_run_id is not None]
    if len(report.passes) == len(ids) == 1:
        typer.echo(f"stopped; the same command with --resume {ids[0]} goes on", err=True)
    else:
        typer.echo("stopped; what was graded is stored, the same command grades the rest", err=True)
