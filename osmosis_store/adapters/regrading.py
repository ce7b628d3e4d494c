"""`regrade`: the rollout SDK's graders over stored samples, policy and network refused."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy.engine import Connection

from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import GraderConfig
from osmosis_store.adapters.grading_pass import GraderPass
from osmosis_store.adapters.osmosis_grader import folder_of, identify_grader
from osmosis_store.adapters.regrade_processes import Job, run_processes
from osmosis_store.database import Database, HasDatabase, to_database
from osmosis_store.errors import CannotResume, NothingSelected
from osmosis_store.ids import new_id
from osmosis_store.network_guard import NetworkGuard
from osmosis_store.queries.grades import fetch_grading_run
from osmosis_store.queries.grading import fetch_failed_run
from osmosis_store.queries.rollouts import fetch_rollout_count, fetch_rollout_ids
from osmosis_store.records import GradingRunRecord, NewGradingRun, Selection
from osmosis_store.regrade_passes import ALL, GradingPass, PassTerms, Plan, Share, regrade_rollouts
from osmosis_store.regrade_report import RegradeReport, Tally
from osmosis_store.versions import code_versions
from osmosis_store.writes.grades import end_grading_run

__all__ = ["GraderChoice", "regrade"]

GraderChoice = type[Grader] | tuple[type[Grader], GraderConfig | None]
"""A grader, and the config that it is given where it has one of its own."""


async def regrade(
    store: Database | HasDatabase,
    graders: type[Grader] | Sequence[GraderChoice],
    *,
    selection: Selection | None = None,
    config: GraderConfig | None = None,
    force: bool = False,
    failed_only: bool = False,
    resume: str | None = None,
    dry_run: bool = False,
    limit: int | None = None,
    shard: str | None = None,
    workers: int = 1,
    allow_network: bool = False,
    author: str | None = None,
    reason: str | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
    concurrency: int = 8,
    timeout_s: float | None = None,
    pass_threshold: float = 1.0,
    is_stopped: Callable[[], bool] = lambda: False,
    guard: NetworkGuard | None = None,
    plan: Plan | None = None,
) -> RegradeReport:
    """Grade stored samples again, each grader under a new grading run; the old grades stay.

    No model is called: while a grader runs, the rollout model refuses, and so do connections,
    lookups of names and starting programs. What a grader, by its code and config, has graded
    without error is skipped as long as items and label are the same. All samples of a rollout are
    graded together; one that fails ends nothing.

    In this process the network is refused as far as a grading's context reaches: a thread that a
    grader did not start itself may connect. The command line and worker processes refuse it to
    the whole process.

    Args:
        store: An open `Store`.
        graders: A grader class, or several, each with its config if it has one of its own.
        selection: Which rollouts; None: all, or those of the grading run to resume.
        config: For graders without one of their own; part of a grader's identity.
        force: Also grade what would be skipped.
        failed_only: Only the samples whose grade failed, under the same grading run: that to
            resume, or the newest of this very grader that has failures.
        resume: Id of a grading run of this very grader: go on under it.
        dry_run: Grade nothing; the report says what would be.
        limit: At most so many rollouts that have something to grade.
        shard: `I/N`: the I-th of N stable shares of the rollouts.
        workers: Processes to grade in, started by spawn; 1: this one.
        allow_network: The grader is a judge: count connections instead of refusing them.
        author, reason: Kept with the grading run.
        on_progress: Called with how many rollouts are done, and of how many; None: nobody knows.
        concurrency: How many rollouts are graded at once, in each process.
        timeout_s: Seconds that a grader may take for one rollout; None: no limit.
        pass_threshold: The reward from which a sample counts as passed in the report's flips.
        is_stopped: Asked before each rollout; True: finish what was begun and return.
        guard: Refuses the network; None: one for the gradings of this call.
        plan: In a dry run, told of each sample.

    Returns:
        The counts and the first failures.

    Raises:
        NothingSelected: No rollout fits the selection.
        GradingRunNotFound, CannotResume, InvalidShard, GraderNotShareable, WorkerDied
    """
    began = time.monotonic()
    database = to_database(store)
    choices = [_to_choice(one, config) for one in _listed(graders)]
    share = ALL if shard is None else Share.parse(shard)
    guard = guard or NetworkGuard(allow=allow_network, whole_process=False)
    runs = await database.read(
        partial(_find_runs, choices=choices, resume=resume, failed_only=failed_only)
    )
    chosen = selection or _selection_of(runs) or Selection()
    if not await database.read(partial(fetch_rollout_ids, selection=chosen, limit=1)):
        raise NothingSelected(chosen.to_json())
    total = None
    if on_progress is not None and share == ALL and limit is None:
        total = await database.read(partial(fetch_rollout_count, selection=chosen))

    def advance(done: int) -> None:
        if on_progress is not None:
            on_progress(done, total)

    passes = [
        GradingPass(
            PassTerms(
                grading_run_id=new_id("g_") if run is None else run.grading_run_id,
                run=_to_run(choice, chosen, author, reason),
                versions=code_versions(folder_of(choice[0])),
                resumed=run is not None,
                failed_only=failed_only,
                force=force,
            ),
            GraderPass(database, guard, *choice, timeout_s=timeout_s).grade,
        )
        for choice, run in zip(choices, runs, strict=True)
    ]
    if workers > 1 and not dry_run:
        job = Job.of(
            database,
            choices,
            passes,
            selection=chosen,
            share=share,
            limit=limit,
            allow_network=allow_network,
            concurrency=concurrency,
            timeout_s=timeout_s,
            pass_threshold=pass_threshold,
        )
        done = await run_processes(job, workers, on_progress=advance, is_stopped=is_stopped)
        tallies, count, allowed, refused = done
    else:
        with guard.active():
            tallies, count = await regrade_rollouts(
                database,
                passes,
                selection=chosen,
                share=share,
                limit=limit,
                concurrency=concurrency,
                pass_threshold=pass_threshold,
                on_progress=advance,
                is_stopped=is_stopped,
                plan=(plan or _ignore) if dry_run else None,
            )
        allowed, refused = guard.allowed, guard.refused
    if not dry_run:
        await database.write(
            partial(
                _end,
                passes=passes,
                tallies=tallies,
                allowed=allowed,
                refused=refused,
                now=database.clock(),
            )
        )
    return RegradeReport(
        passes=[
            tally.to_report(
                None if dry_run else one.grading_run_id, one.run.grader, one.run.code_digest
            )
            for (one, _), tally in zip(passes, tallies, strict=True)
        ],
        rollout_count=count,
        policy_calls=0,
        connections_allowed=allowed,
        connections_refused=refused,
        interrupted=is_stopped(),
        dry_run=dry_run,
        duration_s=time.monotonic() - began,
    )


_Choice = tuple[type[Grader], GraderConfig | None]


def _listed(graders: type[Grader] | Sequence[GraderChoice]) -> Sequence[GraderChoice]:
    return [graders] if isinstance(graders, type) else graders


def _to_choice(choice: GraderChoice, config: GraderConfig | None) -> _Choice:
    return choice if isinstance(choice, tuple) else (choice, config)


def _ignore(*_: object) -> None:
    pass


def _to_run(
    choice: _Choice, selection: Selection, author: str | None, reason: str | None
) -> NewGradingRun:
    identity = identify_grader(*choice)
    return NewGradingRun(
        kind="regrade",
        grader=identity.reference,
        code_digest=identity.digest,
        code_covers=identity.covers,
        config=identity.config,
        author=author,
        reason=reason,
        selection=selection.to_json(),
    )


def _find_runs(
    tx: Connection, choices: Sequence[_Choice], resume: str | None, failed_only: bool
) -> list[GradingRunRecord | None]:
    """Return for each grader the grading run that is gone on with; None: a new one.

    Raises:
        GradingRunNotFound, CannotResume
    """
    if resume is not None:
        if len(choices) > 1:
            raise CannotResume(resume, "one grading run is of one grader", hint="name only that")
        return [_require_same(fetch_grading_run(tx, resume), choices[0])]
    if not failed_only:
        return [None] * len(choices)
    found: list[GradingRunRecord | None] = []
    for choice in choices:
        identity = identify_grader(*choice)
        run = fetch_failed_run(tx, code_digest=identity.digest)
        if run is None:
            raise CannotResume(
                None, f"no regrade with {identity.reference}, as it is now, has failed grades"
            )
        found.append(run)
    return found


def _require_same(run: GradingRunRecord, choice: _Choice) -> GradingRunRecord:
    identity = identify_grader(*choice)
    if run.kind != "regrade":
        raise CannotResume(run.grading_run_id, f"it is of kind {run.kind}")
    if run.code_digest != identity.digest:
        what = "config" if run.config != identity.config else "code"
        raise CannotResume(
            run.grading_run_id,
            f"it graded with {run.grader} {(run.code_digest or '')[:8]}, and {identity.reference} "
            f"is {identity.digest[:8]} now: its {what} is another",
            hint="without --resume it grades under a grading run of its own",
        )
    return run


def _selection_of(runs: Sequence[GradingRunRecord | None]) -> Selection | None:
    """Return what the grading run to go on with had selected."""
    stored = [run.selection for run in runs if run is not None and run.selection is not None]
    return Selection.from_json(stored[0]) if len(stored) == len(runs) == 1 else None


def _end(
    tx: Connection,
    passes: Sequence[GradingPass],
    tallies: Sequence[Tally],
    *,
    allowed: int,
    refused: int,
    now: dt.datetime,
) -> None:
    """Mark the grading runs as ended; one that graded nothing was never begun."""
    for (one, _), tally in zip(passes, tallies, strict=True):
        if tally.graded_count or tally.failed_count or one.resumed:
            end_grading_run(
                tx,
                one.grading_run_id,
                now=now,
                skipped_count=0 if one.resumed else tally.skipped.total(),
                connections_allowed=allowed,
                connections_refused=refused,
            )
