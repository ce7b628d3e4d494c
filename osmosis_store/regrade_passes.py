"""Grading stored samples again: choosing them, skipping what is settled, adding to the ledger."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy.engine import Connection

from osmosis_store.database import Database
from osmosis_store.errors import InvalidShard
from osmosis_store.queries.grading import (
    GradableRollout,
    GradableSample,
    fetch_gradable,
    fetch_graded_in_run,
    fetch_joined_items,
    fetch_settled,
)
from osmosis_store.queries.rollouts import fetch_rollout_ids
from osmosis_store.records import NewGrade, NewGradingRun, SampleKey, Selection
from osmosis_store.regrade_report import JudgeTokens, Tally
from osmosis_store.writes.grades import append_grades, ensure_grading_run

__all__ = [
    "ALL",
    "GradeRollout",
    "GradedRollout",
    "GradingPass",
    "JoinedItems",
    "PassTerms",
    "Plan",
    "Share",
    "regrade_rollouts",
]

_PAGE_ROLLOUTS = 256
_CHUNK_ITEMS = 1024
_MOST_LANDED = 1024
# Grades wait for others so long before they are stored: a commit costs more than a quick grading.
_GATHER_S = 0.02
_TURN_S = 0.005

JoinedItems: TypeAlias = Mapping[SampleKey, str | bytes | None]
"""The live items of a rollout's samples, each sample's as one text for `decode_joined`."""

Plan: TypeAlias = Callable[[int, SampleKey, str | None], None]
"""Told of each sample by pass number and key: why it is skipped; None: it is to be graded."""


@dataclass(frozen=True)
class GradedRollout:
    """What a grader said of one rollout's samples, and what it did for that.

    Attributes:
        grades: Each with the chain head of the items that the grader saw.
    """

    grades: Sequence[NewGrade]
    policy_calls_refused: int = 0
    judge: JudgeTokens | None = None

    @classmethod
    def failed(cls, rollout: GradableRollout, error: str) -> GradedRollout:
        """Return an error for each of a rollout's samples."""
        return cls(
            [
                NewGrade(
                    sample_id=sample.key.sample_id,
                    error=error,
                    label=rollout.label,
                    graded_head=sample.chain_head,
                )
                for sample in rollout.samples
            ]
        )


GradeRollout: TypeAlias = Callable[[GradableRollout, JoinedItems], Awaitable[GradedRollout]]
"""Grades the samples of one rollout, and does not raise for what a grader does."""


@dataclass(frozen=True, kw_only=True)
class PassTerms:
    """What a grader is run under; the same in every process.

    Attributes:
        grading_run_id: Under which the grades are stored; begun with the first of them.
        resumed: The grading run is there already: what it has tried is not tried again.
        failed_only: Of a resumed run, only what failed last.
        force: Grade also what this very grader has graded already.
    """

    grading_run_id: str
    run: NewGradingRun
    versions: dict[str, Any]
    resumed: bool = False
    failed_only: bool = False
    force: bool = False


class GradingPass(NamedTuple):
    """One grader's way through the selected rollouts."""

    terms: PassTerms
    grade: GradeRollout


@dataclass(frozen=True)
class Share:
    """A stable part of all rollouts, by a hash of their ids: the part `index`, from 0, of `count`.

    Within it a worker process takes the part `worker` of `workers`.
    """

    index: int = 0
    count: int = 1
    worker: int = 0
    workers: int = 1

    @classmethod
    def parse(cls, text: str) -> Share:
        """Return the share that `I/N` names, with I from 1 to N.

        Raises:
            InvalidShard
        """
        first, slash, second = text.partition("/")
        if not (slash and first.isdecimal() and second.isdecimal()):
            raise InvalidShard(text)
        index, count = int(first), int(second)
        if not 1 <= index <= count:
            raise InvalidShard(text)
        return cls(index - 1, count)

    def has(self, rollout_id: str) -> bool:
        """Whether a rollout is in this part."""
        if self.count == self.workers == 1:
            return True
        number = int.from_bytes(sha256(rollout_id.encode()).digest()[:8], "big")
        inner, index = divmod(number, self.count)
        return index == self.index and inner % self.workers == self.worker


ALL = Share()


async def regrade_rollouts(
    database: Database,
    passes: Sequence[GradingPass],
    *,
    selection: Selection,
    share: Share = ALL,
    limit: int | None = None,
    concurrency: int = 8,
    pass_threshold: float = 1.0,
    on_progress: Callable[[int], None] | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    plan: Plan | None = None,
) -> tuple[list[Tally], int]:
    """Grade the selected rollouts, each pass's grades under its own grading run.

    A grade is stored as soon as it is given, together with whatever else was given meanwhile; one
    that fails is a grade with an error and ends nothing. Memory does not grow with the number of
    rollouts.

    Args:
        limit: At most so many rollouts that have something to grade.
        concurrency: How many rollouts are graded at once.
        on_progress: Called with how many rollouts are done.
        is_stopped: Asked before each rollout: True ends the passes when what was begun is done.
        plan: Called instead of grading, and nothing is stored.

    Returns:
        Each pass's counts, and how many rollouts were looked at.
    """
    tallies = [Tally(pass_threshold) for _ in passes]
    regrade = _Regrade(
        database, passes, selection, share, limit, is_stopped, plan, tallies, on_progress
    )
    try:
        await regrade.run(max(1, concurrency))
    except BaseExceptionGroup as group:
        raise _first_of(group) from None
    return regrade.tallies, regrade.rollout_count


def _first_of(error: BaseException) -> BaseException:
    """Return what made a group of tasks end; the others' errors follow from it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Task(NamedTuple):
    """One rollout for one pass: what is graded, and which of its samples' grades are wanted."""

    pass_no: int
    rollout: GradableRollout
    wanted: dict[str, GradableSample]
    items: JoinedItems


class _Landed(NamedTuple):
    """Grades that are given and not stored yet."""

    task: _Task
    graded: GradedRollout
    grades: list[NewGrade]


@dataclass(frozen=True)
class _Page:
    """Some rollouts in the order of their ids, and why their samples are skipped, pass by pass."""

    rollouts: list[GradableRollout]
    reasons: list[dict[SampleKey, str]]
    last_id: str
    is_last: bool


@dataclass
class _Regrade:
    database: Database
    passes: Sequence[GradingPass]
    selection: Selection
    share: Share
    limit: int | None
    is_stopped: Callable[[], bool]
    plan: Plan | None
    tallies: list[Tally]
    on_progress: Callable[[int], None] | None
    rollout_count: int = 0
    done_count: int = 0
    _open: Counter[str] = field(default_factory=Counter)
    _ready: deque[_Task] = field(default_factory=deque)
    _chunks: asyncio.Queue[list[_Task] | None] = field(default_factory=lambda: asyncio.Queue(1))
    _refilling: asyncio.Lock = field(default_factory=asyncio.Lock)
    _landed: list[_Landed] = field(default_factory=list)
    _has_landed: asyncio.Event = field(default_factory=asyncio.Event)
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)
    _begun: set[int] = field(default_factory=set)
    _done: bool = False
    _yield_at: float = 0.0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _is_ending: bool = False

    async def run(self, concurrency: int) -> None:
        self._has_room.set()
        try:
            async with asyncio.TaskGroup() as everything:
                everything.create_task(self._store_what_lands())
                async with asyncio.TaskGroup() as grading:
                    self._start(grading, self._read())
                    for _ in range(concurrency):
                        self._start(grading, self._grade_all(grading))
                    await self._watch()
                self._done = True
                self._has_landed.set()
        finally:
            if self._landed:  # cancelled: what is paid for is kept
                await self._store_landed()

    def _start(
        self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, None], context: Any = None
    ) -> None:
        task = group.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        """Wait for the tasks, and let them know whether a cancellation is everybody's."""
        try:
            while self._tasks and not self._is_ending:
                await asyncio.wait(set(self._tasks), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._is_ending = True
            raise

    # reading ahead, a chunk at a time

    async def _read(self) -> None:
        after, planned = "", 0
        is_last = False
        while not (is_last or self.is_stopped()):
            page = await self.database.read(partial(self._fetch_page, after=after))
            after, is_last = page.last_id, page.is_last
            tasks: list[_Task] = []
            for rollout in page.rollouts:
                if planned == self.limit:
                    is_last = True
                    break
                found = list(self._to_tasks(rollout, page.reasons))
                planned += bool(found)
                self.rollout_count += 1
                if found and self.plan is None:
                    self._open[rollout.rollout_id] = len(found)
                    tasks += found
                else:
                    self._finish(rollout.rollout_id)
            for chunk in _chunks_of(tasks):
                await self._chunks.put(await self.database.read(partial(_with_items, chunk=chunk)))
        await self._chunks.put(None)

    def _fetch_page(self, tx: Connection, after: str) -> _Page:
        ids = fetch_rollout_ids(tx, self.selection, after=after, limit=_PAGE_ROLLOUTS)
        mine = [rollout_id for rollout_id in ids if self.share.has(rollout_id)]
        rollouts = fetch_gradable(tx, mine) if mine else []
        reasons = [_fetch_reasons(tx, one.terms, rollouts) for one in self.passes]
        return _Page(rollouts, reasons, ids[-1] if ids else "", len(ids) < _PAGE_ROLLOUTS)

    def _to_tasks(
        self, rollout: GradableRollout, reasons: Sequence[Mapping[SampleKey, str]]
    ) -> Iterator[_Task]:
        meant = [one for one in rollout.samples if self.selection.sample in (None, one.key[1])]
        for pass_no, why in enumerate(reasons):
            wanted = {}
            for sample in meant:
                reason = why.get(sample.key)
                if self.plan is not None:
                    self.plan(pass_no, sample.key, reason)
                if reason is None:
                    wanted[sample.key.sample_id] = sample
                else:
                    self.tallies[pass_no].skipped[reason] += 1
            if self.plan is not None:
                self.tallies[pass_no].graded_count += len(wanted)
            if wanted:
                yield _Task(pass_no, rollout, wanted, {})

    def _finish(self, rollout_id: str) -> None:
        """Count one pass over a rollout as done, and with the last one the rollout."""
        self._open[rollout_id] -= 1
        if self._open[rollout_id] <= 0:
            del self._open[rollout_id]
            self.done_count += 1
            if self.on_progress is not None:
                self.on_progress(self.done_count)

    # grading

    async def _grade_all(self, group: asyncio.TaskGroup) -> None:
        """Grade one rollout after the other, each in the context that the first one began with.

        A task for each rollout would cost more than a quick grading: there is a new one only where
        a grader changed a context variable, which the next rollout must not see.
        """
        context = copy_context()
        clean = context.copy()
        while (task := await self._take()) is not None:
            await self._has_room.wait()
            try:
                await self._grade(task)
            except asyncio.CancelledError:
                me = asyncio.current_task()
                if self._is_ending or me is None:
                    raise
                while me.cancelling():
                    me.uncancel()
                error = "the grader cancelled its own task"
                self._land(task, GradedRollout.failed(task.rollout, error))
            except BaseException:
                self._is_ending = True
                raise
            if copy_context() != context:
                self._start(group, self._grade_all(group), clean)
                return

    async def _grade(self, task: _Task) -> None:
        self._land(task, await self.passes[task.pass_no].grade(task.rollout, task.items))
        if time.monotonic() > self._yield_at:  # graders that never wait leave others no turn
            await asyncio.sleep(0)
            self._yield_at = time.monotonic() + _TURN_S

    def _land(self, task: _Task, graded: GradedRollout) -> None:
        grades = [grade for grade in graded.grades if grade.sample_id in task.wanted]
        self._landed.append(_Landed(task, graded, grades))
        self._has_landed.set()
        if len(self._landed) >= _MOST_LANDED:
            self._has_room.clear()
        self._finish(task.rollout.rollout_id)

    async def _take(self) -> _Task | None:
        while not self._ready or self.is_stopped():
            async with self._refilling:
                if self._ready and not self.is_stopped():
                    break
                self._ready.clear()
                chunk = await self._chunks.get()
                if chunk is None:
                    self._chunks.put_nowait(None)  # for whoever waits too
                    return None
                self._ready.extend(chunk)
        return self._ready.popleft()

    # storing

    async def _store_what_lands(self) -> None:
        while not (self._done and not self._landed):
            await self._has_landed.wait()
            if not self._done and len(self._landed) < _MOST_LANDED // 2:
                await asyncio.sleep(_GATHER_S)
            self._has_landed.clear()
            if self._landed:
                await self._store_landed()

    async def _store_landed(self) -> None:
        landed, self._landed = self._landed, []
        self._has_room.set()
        try:
            stored = await self.database.write(partial(self._insert, landed=landed))
        except asyncio.CancelledError:
            self._landed = landed + self._landed
            raise
        for (task, graded, grades), kept in zip(landed, stored, strict=True):
            tally = self.tallies[task.pass_no]
            if kept:
                self._begun.add(task.pass_no)
            tally.policy_calls_refused += graded.policy_calls_refused
            tally.add_judge(graded.judge)
            if len(kept) < len(grades):
                tally.skipped["graded"] += len(grades) - len(kept)
            earlier = {name: sample.reward for name, sample in task.wanted.items()}
            tally.add(task.rollout.rollout_id, kept, earlier)

    def _insert(self, tx: Connection, landed: Sequence[_Landed]) -> list[list[NewGrade]]:
        """Store grades, but for samples that another process has graded meanwhile."""
        now = self.database.clock()
        kept: list[list[NewGrade]] = [[] for _ in landed]
        for pass_no, (one, _) in enumerate(self.passes):
            mine = [at for at, entry in enumerate(landed) if entry.task.pass_no == pass_no]
            settled = _fetch_done(tx, one, [landed[at].task.rollout.rollout_id for at in mine])
            new: dict[str, list[NewGrade]] = {}
            for at in mine:
                rollout_id = landed[at].task.rollout.rollout_id
                kept[at] = [
                    grade
                    for grade in landed[at].grades
                    if SampleKey(rollout_id, grade.sample_id) not in settled
                ]
                if kept[at]:
                    new[rollout_id] = kept[at]
            if not new:
                continue
            run_id = one.grading_run_id
            if pass_no not in self._begun:
                ensure_grading_run(tx, run_id, one.run, versions=one.versions, now=now)
            append_grades(tx, run_id, new, now=now)
        return kept


def _fetch_done(tx: Connection, one: PassTerms, rollout_ids: Sequence[str]) -> set[SampleKey]:
    """Return the samples that this very grader has graded without error, unless that is wanted."""
    if one.force or one.run.code_digest is None or not rollout_ids:
        return set()
    return fetch_settled(tx, rollout_ids, code_digest=one.run.code_digest)


def _fetch_reasons(
    tx: Connection, one: PassTerms, rollouts: Sequence[GradableRollout]
) -> dict[SampleKey, str]:
    """Return the samples that a pass skips, and why."""
    ids = [rollout.rollout_id for rollout in rollouts]
    reasons: dict[SampleKey, str] = {}
    if not ids:
        return reasons
    reasons.update(dict.fromkeys(_fetch_done(tx, one, ids), "graded"))
    if one.resumed:
        tried = fetch_graded_in_run(tx, ids, grading_run_id=one.grading_run_id)
        for rollout in rollouts:
            for sample in rollout.samples:
                failed = tried.get(sample.key)
                if one.failed_only and not failed:
                    reasons[sample.key] = "not_failed"
                elif not one.failed_only and failed is not None:
                    reasons[sample.key] = "failed" if failed else "graded"
    for rollout in rollouts:
        if rollout.status == "running":
            reasons.update({sample.key: "running" for sample in rollout.samples})
    return reasons


def _chunks_of(tasks: Sequence[_Task]) -> Iterator[list[_Task]]:
    """Part tasks so that not too many items are in memory at once."""
    chunk: list[_Task] = []
    size = 0
    for task in tasks:
        count = sum(sample.item_count for sample in task.rollout.samples)
        if chunk and size + count > _CHUNK_ITEMS:
            yield chunk
            chunk, size = [], 0
        chunk.append(task)
        size += count
    if chunk:
        yield chunk


def _with_items(tx: Connection, chunk: Sequence[_Task]) -> list[_Task]:
    keys = {sample.key for task in chunk for sample in task.rollout.samples}
    items = fetch_joined_items(tx, sorted(keys))
    return [
        task._replace(items={one.key: items[one.key] for one in task.rollout.samples})
        for task in chunk
    ]
