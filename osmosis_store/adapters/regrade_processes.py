"""A regrade in several processes: each has its own connection, graders and guard."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import GraderConfig
from osmosis_ai.rollout.utils.traces import send_no_traces
from osmosis_store.adapters.grading_pass import GraderPass
from osmosis_store.adapters.osmosis_grader import (
    GraderSource,
    identify_grader,
    load_grader,
    source_of,
)
from osmosis_store.database import Database
from osmosis_store.engine import Options, parse_url
from osmosis_store.errors import GraderNotShareable, StoreError, WorkerDied
from osmosis_store.network_guard import ContextThreadPool, NetworkGuard
from osmosis_store.records import Selection
from osmosis_store.regrade_passes import GradingPass, PassTerms, Share, regrade_rollouts
from osmosis_store.regrade_report import Tally

__all__ = ["Job", "Outcome", "prepare_loop", "run_processes"]

_POLL_S = 0.1
_GRACE_S = 10.0


class Outcome(NamedTuple):
    """What a regrade counted: per pass, rollouts looked at, connections allowed and refused."""

    tallies: list[Tally]
    rollout_count: int
    connections_allowed: int
    connections_refused: int


@dataclass(frozen=True)
class _SharedPass:
    """A `GradingPass` as another process can be given it."""

    terms: PassTerms
    source: GraderSource
    config: bytes


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one process is to do."""

    url: str
    options: Options
    passes: list[_SharedPass]
    selection: Selection
    share: Share
    limit: int | None
    allow_network: bool
    concurrency: int
    timeout_s: float | None
    pass_threshold: float

    @classmethod
    def of(
        cls,
        database: Database,
        choices: Sequence[tuple[type[Grader], GraderConfig | None]],
        passes: Sequence[GradingPass],
        **options: Any,
    ) -> Job:
        """Return the job for all processes together.

        Raises:
            GraderNotShareable: A grader is defined in the main program.
        """
        for grader, _ in choices:
            if grader.__module__ == "__main__" or "<locals>" in grader.__qualname__:
                raise GraderNotShareable(source_of(grader).reference)
        return cls(
            url=database.place.url.render_as_string(hide_password=False),
            options=database.options,
            passes=[
                _SharedPass(one.terms, source_of(grader), pickle.dumps(config))
                for (grader, config), one in zip(choices, passes, strict=True)
            ],
            **options,
        )

    def part(self, worker: int, workers: int) -> Job:
        """Return one process's part; a limit is dealt out evenly."""
        limit = self.limit
        if limit is not None:
            limit = limit // workers + (worker < limit % workers)
        share = replace(self.share, worker=worker, workers=workers)
        return replace(self, share=share, limit=limit)


def prepare_loop() -> None:
    """Make the running loop of a process that grades tell whose lookup or connection it was.

    A trace that the Agents SDK sends for a grader would be one more that is refused.
    """
    send_no_traces()
    asyncio.get_running_loop().set_default_executor(ContextThreadPool())


async def run_processes(
    job: Job,
    workers: int,
    *,
    on_progress: Callable[[int], None],
    is_stopped: Callable[[], bool],
) -> Outcome:
    """Do a job in so many processes and return what they counted together.

    Raises:
        WorkerDied: One ended without a word; the others were stopped, what they graded is stored.
        StoreError: What one of them met.
    """
    spawn = multiprocessing.get_context("spawn")
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    try:
        for worker in range(workers):
            ours, theirs = spawn.Pipe()
            process: BaseProcess = spawn.Process(
                target=_work, args=(job.part(worker, workers), theirs), daemon=True
            )
            process.start()
            theirs.close()
            running[ours] = (worker, process)
        return await _gather(running, on_progress, is_stopped)
    finally:
        for connection, (_, process) in running.items():
            _tell_to_stop(connection)
            connection.close()
            await asyncio.to_thread(process.join)


async def _gather(
    running: dict[Connection, tuple[int, BaseProcess]],
    on_progress: Callable[[int], None],
    is_stopped: Callable[[], bool],
) -> Outcome:
    progress = dict.fromkeys(running, 0)
    outcomes: list[Outcome] = []
    waiting, is_told = set(running), False
    while waiting:
        if is_stopped() and not is_told:
            is_told = True
            for connection in waiting:
                _tell_to_stop(connection)
        for ready in await asyncio.to_thread(wait, list(waiting), _POLL_S):
            assert isinstance(ready, Connection)
            worker, process = running[ready]
            try:
                kind, value = ready.recv()
            except (EOFError, OSError):
                await asyncio.to_thread(process.join)
                raise WorkerDied(worker + 1, process.exitcode) from None
            if kind == "progress":
                progress[ready] = value
                on_progress(sum(progress.values()))
                continue
            waiting.discard(ready)
            if kind == "error":
                raise value
            outcomes.append(value)
    return _merge(outcomes)


def _tell_to_stop(connection: Connection) -> None:
    try:
        connection.send("stop")
    except OSError:
        return  # it has ended


def _merge(outcomes: Sequence[Outcome]) -> Outcome:
    first, *others = outcomes
    for other in others:
        for tally, more in zip(first.tallies, other.tallies, strict=True):
            tally.merge(more)
    return Outcome(
        first.tallies,
        sum(one.rollout_count for one in outcomes),
        sum(one.connections_allowed for one in outcomes),
        sum(one.connections_refused for one in outcomes),
    )


def _work(job: Job, connection: Connection) -> None:
    """Be a grading process: Ctrl-C is the parent's affair, which says when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(sys.stderr.fileno(), 1)  # what graders print is no part of the parent's answer
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        connection.send(("done", asyncio.run(_regrade(job, connection))))
    except StoreError as error:
        # as a plain one: an error with arguments of its own does not survive the way
        connection.send(("error", StoreError(str(error), hint=error.hint)))
    except Exception as error:
        connection.send(("error", StoreError(f"{type(error).__name__}: {error}")))
    connection.close()
    sys.stderr.flush()
    os._exit(0)  # whatever a grader left running


def _end_with_parent() -> None:
    """End this process some time after its parent, whatever a grader has left running."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        time.sleep(_GRACE_S)
        os._exit(1)


async def _regrade(job: Job, connection: Connection) -> Outcome:
    guard = NetworkGuard(allow=job.allow_network, whole_process=True)
    prepare_loop()
    database = Database.open(parse_url(job.url), job.options, create=False)
    is_told = False

    def is_stopped() -> bool:
        nonlocal is_told
        try:
            while not is_told and connection.poll():
                is_told = connection.recv() == "stop"
        except (EOFError, OSError):
            is_told = True  # the parent is gone
        return is_told

    def report(done: int) -> None:
        if done % 64 == 0:
            connection.send(("progress", done))

    try:
        passes = [_load(database, guard, job, one) for one in job.passes]
        with guard.active():
            tallies, count = await regrade_rollouts(
                database,
                passes,
                selection=job.selection,
                share=job.share,
                limit=job.limit,
                concurrency=job.concurrency,
                pass_threshold=job.pass_threshold,
                on_progress=report,
                is_stopped=is_stopped,
            )
        return Outcome(tallies, count, guard.allowed, guard.refused)
    finally:
        database.close()


def _load(database: Database, guard: NetworkGuard, job: Job, one: _SharedPass) -> GradingPass:
    """Load a grader as the parent did; a file that changed meanwhile is refused."""
    grader, _ = load_grader(*one.source, {})
    config: GraderConfig | None = pickle.loads(one.config)
    digest = identify_grader(grader, config).digest
    if digest != one.terms.run.code_digest:
        raise StoreError(
            f"{one.terms.run.grader} changed while the grading processes started",
            hint="run the same command again",
        )
    graded = GraderPass(database, guard, grader, config, timeout_s=job.timeout_s)
    return GradingPass(one.terms, graded.grade)
