"""`osmosis eval run`: a dataset's rollouts into the store, resumed where they were left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_store.cli.flags import StoreFlags
from osmosis_store.cli.output import output_of_user_code
from osmosis_store.cli.places import STORE_VARIABLE, make_store_folder
from osmosis_store.cli.progress import Advance, show_progress

if TYPE_CHECKING:
    from osmosis_ai.eval.config import EvalConfig, Override
    from osmosis_ai.eval.events import EvalEvent, RunOpened
    from osmosis_ai.eval.report import EvalReport
    from osmosis_store.queries.counts import Counts

__all__ = ["run_eval"]

_SHOWN = 5


def run_eval(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="A file in configs/eval/.")],
    store: StoreFlags,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new eval run; the old one stays.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run and grade again what failed.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Only so many rows.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", min=0, metavar="N", help="From this row on, from 0.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, metavar="N", help="So many rollouts at once."),
    ] = None,
    output_path: Annotated[
        Path | None,
        typer.Option("--output-path", "-o", metavar="FOLDER", help="For the result files."),
    ] = None,
    log_samples: Annotated[
        bool, typer.Option("--log-samples", help="Write the conversations to samples.jsonl too.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the reward and what failed, no more.")
    ] = False,
) -> None:
    """Run the rollouts of an eval config, grade them and keep them in a store.

    The same command goes on where an earlier one ended: finished rollouts are not run again, and
    when only the grader changed they are graded again without calling the model. The store is
    --store, else OSMOSIS_STORE_URL, else [store] url, else .osmosis/rollouts.db of the workspace.
    """
    from osmosis_ai.eval.config import load_config

    overrides: dict[Override, Any] = {
        "fresh": fresh or None,
        "retry_failed": retry_failed or None,
        "limit": limit,
        "offset": offset,
        "batch_size": batch_size,
        "output_path": output_path,
        "log_samples": log_samples or None,
        "quiet": quiet or None,
        "debug": store.debug or None,
        "store_url": store.store or os.environ.get(STORE_VARIABLE) or None,
    }
    settings = load_config(config, overrides)
    try:
        report, counts, place = _run(settings, as_json=store.as_json)
    except Exception:
        if settings.debug and not store.debug:  # asked for in the TOML
            import traceback

            traceback.print_exc()
        raise
    _print_report(report, counts, place, quiet=settings.quiet, as_json=store.as_json)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _run(config: EvalConfig, *, as_json: bool) -> tuple[EvalReport, Counts, str]:
    import asyncio

    from osmosis_ai.eval.run import run_eval as bring_to_its_end
    from osmosis_store.adapters.eval_archive import StoreArchive
    from osmosis_store.engine import parse_url
    from osmosis_store.queries.counts import fetch_counts
    from osmosis_store.store import Store

    place = parse_url(config.store_url)
    make_store_folder(place)

    async def run(advance: Advance) -> tuple[EvalReport, Counts]:
        async with Store.open(config.store_url) as store:
            report = await bring_to_its_end(
                config,
                StoreArchive(store),
                environ=os.environ,
                on_event=_Listener(advance, silent=config.quiet or as_json),
            )
            counts = await store.database.read(
                lambda tx: fetch_counts(tx, eval_run_id=report.eval_run_id)
            )
        return report, counts

    with (
        show_progress("rollouts", quiet=config.quiet) as advance,
        output_of_user_code(as_json=as_json),
    ):
        report, counts = asyncio.run(run(advance))
    return report, counts, place.name


class _Listener:
    """Prints what is about to happen and moves the progress bar."""

    def __init__(self, advance: Advance, *, silent: bool) -> None:
        self._advance, self._silent = advance, silent
        self._done = self._total = 0

    def __call__(self, event: EvalEvent) -> None:
        from osmosis_ai.eval.events import RunOpened

        if isinstance(event, RunOpened):
            self._total = event.run_count + event.regrade_count
            if not self._silent:
                for line in _format_opened(event):
                    print(line, flush=True)
        else:
            self._done += 1
        self._advance(self._done, self._total)


def _format_opened(event: RunOpened) -> list[str]:
    from osmosis_store.cli.output import count, counted

    lines = [f"policy   {event.policy}"]
    if event.resumed:
        lines.append(
            f"resumed  eval run {event.eval_run_id}: {count(event.reused_count)} of "
            f"{counted(event.selected_count, 'rollout')} stored already"
        )
    return lines


def _print_report(
    report: EvalReport, counts: Counts, store: str, *, quiet: bool, as_json: bool
) -> None:
    from osmosis_store.cli.output import print_json, print_lines

    if as_json:
        print_json({"store": store, **report.to_json()})
        return
    lines = [*_format_work(report), *_format_reward(report), *_format_places(report, counts, store)]
    print_lines(list(_format_reward(report)) if quiet else lines)
    _print_failures(report)


def _format_work(report: EvalReport) -> list[str]:
    from osmosis_store.cli.output import count, counted, duration

    rate = report.run_count / report.duration_s if report.duration_s > 0 else 0.0
    selected = len(report.verdicts)
    pace = f"   {rate:,.1f}/s" if report.run_count else ""
    lines = [
        f"rollouts {count(report.run_count)} run, {count(report.reused_count)} reused, "
        f"of {count(selected)}{pace}   {duration(report.duration_s)}"
    ]
    if report.regraded_count:
        lines.append(
            f"regraded {counted(report.regraded_count, 'stored rollout')} with {report.grader}"
        )
    lines.append(f"upstream {counted(report.upstream_calls, 'model call')}")
    return lines


def _format_reward(report: EvalReport) -> list[str]:
    from osmosis_store.cli.output import count, figure

    usage = report.usage
    tokens = f"tokens {count(usage.input_tokens)} in, {count(usage.output_tokens)} out"
    if report.rewards is None:
        return [f"reward   none   {tokens}"]
    passed = f"pass {count(report.passed_count)}/{count(report.counted_count)}"
    chances = [f"pass@{k} {figure(value)}" for k, value in report.pass_at_k.items() if k > 1]
    return ["   ".join([f"reward   mean {figure(report.rewards.mean)}", passed, *chances, tokens])]


def _format_places(report: EvalReport, counts: Counts, store: str) -> list[str]:
    from osmosis_store.cli.output import counted

    stored = ", ".join(
        (
            counted(counts.rollout_count, "rollout"),
            counted(counts.sample_count, "sample"),
            counted(counts.item_count, "item"),
        )
    )
    lines = [f"stored   {stored}   {store}", f"results  {_shorten(report.results_path)}"]
    if report.samples_path is not None:
        lines.append(f"samples  {_shorten(report.samples_path)}")
    doubts = [
        counted(number, what)
        for number, what in (
            (report.ungraded_count, "ungraded rollout"),
            (report.removed_count, "removed rollout"),
            (report.removed_sample_count, "removed sample"),
        )
        if number
    ]
    return [*lines, f"apart    {', '.join(doubts)}"] if doubts else lines


def _shorten(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _print_failures(report: EvalReport) -> None:
    from osmosis_store.cli.text import to_one_line

    failed = [verdict for verdict in report.verdicts if verdict.state == "failed"]
    for verdict in failed[:_SHOWN]:
        attempt = f" attempt {verdict.attempt}" if verdict.attempt else ""
        where = f"row {verdict.row_index}{attempt}"
        name = f" {verdict.rollout_id}" if verdict.rollout_id else ""
        typer.echo(f"failed   {where}{name}: {to_one_line(verdict.error or '')}", err=True)
    if len(failed) > _SHOWN:
        more = len(failed) - _SHOWN
        typer.echo(f"failed   and {more} more; `osmosis-store rollouts list` has all", err=True)
    if failed and report.reused_count:
        typer.echo("         what failed before is not run again; --retry-failed does", err=True)
