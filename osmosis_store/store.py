"""`Store`: the facade that users hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from osmosis_store.database import Database
from osmosis_store.engine import Options, Synchronous, parse_url
from osmosis_store.ids import new_id
from osmosis_store.queries.grades import fetch_grades, fetch_grading_runs
from osmosis_store.queries.items import fetch_item_records, require_sample
from osmosis_store.queries.rollouts import (
    fetch_eval_runs,
    fetch_rollout_detail,
    fetch_rollouts,
)
from osmosis_store.queries.search import FoundItem, fetch_items_saying
from osmosis_store.queries.stats import GroupStats, fetch_stats
from osmosis_store.records import (
    EvalRunRecord,
    GradeRecord,
    GradingRunRecord,
    ItemKey,
    ItemRecord,
    RolloutDetail,
    RolloutRecord,
    SampleKey,
    Selection,
)

if TYPE_CHECKING:
    import pandas as pd

    from osmosis_store.adapters.agents_session import OsmosisSQLSession
    from osmosis_store.differences import GradesDiff

__all__ = ["Store"]

_PAGE = 500


class Store:
    """Rollouts, conversations and grades in one database.

    Open it with `await Store.open(url)` or `async with Store.open(url) as store`; use it from any
    event loop and thread. It is closed at exit at the latest, with nothing lost.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(
        cls,
        url: str,
        *,
        create: bool = True,
        readonly: bool = False,
        synchronous: Synchronous = "full",
        busy_timeout_s: float = 30.0,
    ) -> _Opening:
        """Open a store: awaitable, and an async context manager that closes it.

        Args:
            url: `sqlite:///path` or `postgresql://…`.
            create: Make it where there is none; an existing one is never migrated.
            readonly: The database itself refuses every write.
            synchronous: SQLite's setting; below "full" a power cut may take the last commits.
            busy_timeout_s: How long a write waits for other processes.

        Raises:
            InvalidStoreUrl: At once.
            StoreNotFound, NotAStore, StoreNeedsUpgrade, StoreIsNewer, StoreUnreachable: When
                awaited.
        """
        place = parse_url(url)
        options = Options(synchronous=synchronous, busy_timeout_s=busy_timeout_s, readonly=readonly)
        return _Opening(lambda: cls(Database.open(place, options, create=create)))

    async def close(self) -> None:
        """Write what is queued and close; safe to call twice."""
        await asyncio.to_thread(self.database.close)

    def session(self, rollout_id: str, sample_id: str) -> OsmosisSQLSession:
        """Reopen a stored sample's conversation, whatever became of its rollout, to go on with it.

        That it exists is checked on first use, which raises `SampleNotFound`.
        """
        from osmosis_store.adapters.agents_session import OsmosisSQLSession

        return OsmosisSQLSession.reopen(self.database, SampleKey(rollout_id, sample_id))

    async def rollouts(self, selection: Selection | None = None) -> AsyncIterator[RolloutRecord]:
        """Yield the selected rollouts in the order of their ids, read page by page.

        Raises:
            GradingRunNotFound: The selection names a grading run that does not exist.
        """
        chosen = selection or Selection()
        last: str | None = None
        while True:
            page = await self.database.read(
                partial(fetch_rollouts, selection=chosen, after=last, limit=_PAGE)
            )
            for rollout in page:
                yield rollout
            if len(page) < _PAGE:
                return
            last = page[-1].rollout_id

    async def rollouts_df(self, selection: Selection | None = None) -> pd.DataFrame:
        """Return the selected rollouts as a data frame; columns: `frames.ROLLOUT_COLUMNS`.

        Raises:
            ExtraMissing: Without the extra `dataframes`.
        """
        from osmosis_store.frames import read_rollouts

        return await read_rollouts(self.database, selection or Selection())

    async def items_df(self, selection: Selection | None = None) -> pd.DataFrame:
        """Return the selected rollouts' live items as a data frame: `frames.ITEM_COLUMNS`.

        Raises:
            ExtraMissing: Without the extra `dataframes`.
        """
        from osmosis_store.frames import read_items

        return await read_items(self.database, selection or Selection())

    async def grades_df(self, selection: Selection | None = None) -> pd.DataFrame:
        """Return every grade of the selected rollouts as a data frame: `frames.GRADE_COLUMNS`.

        Raises:
            ExtraMissing: Without the extra `dataframes`.
        """
        from osmosis_store.frames import read_grades

        return await read_grades(self.database, selection or Selection())

    async def rollout(self, rollout_id: str) -> RolloutDetail:
        """Return one rollout with its samples, items, model calls and grades.

        Raises:
            RolloutNotFound, CorruptItem
        """
        return await self.database.read(lambda tx: fetch_rollout_detail(tx, rollout_id))

    async def search(
        self,
        text: str,
        selection: Selection | None = None,
        *,
        after: ItemKey | None = None,
        limit: int = 100,
    ) -> list[FoundItem]:
        """Return the items of the selected rollouts that say a text, popped ones too.

        Args:
            text: A substring: A to Z in either case, all else exactly.
            after: Only those behind this item: the `key` of the last one of the page before.

        Raises:
            InvalidSelection: The text is empty.
        """
        chosen = selection or Selection()
        return await self.database.read(
            partial(fetch_items_saying, text=text, selection=chosen, after=after, limit=limit)
        )

    async def stats(
        self, selection: Selection | None = None, *, by: str, pass_threshold: float = 1.0
    ) -> list[GroupStats]:
        """Return figures of the selected rollouts by "eval-run", "workflow" or "grader".

        Raises:
            InvalidSelection: There is no such grouping.
        """
        chosen = selection or Selection()
        return await self.database.read(
            partial(fetch_stats, selection=chosen, by=by, pass_threshold=pass_threshold)
        )

    async def items(self, rollout_id: str, sample_id: str) -> list[ItemRecord]:
        """Return all of a sample's items in order, tombstoned ones too.

        Raises:
            SampleNotFound, CorruptItem
        """
        key = SampleKey(rollout_id, sample_id)

        def fetch(tx: Any) -> list[ItemRecord]:
            require_sample(tx, key)
            return fetch_item_records(tx, key)

        return await self.database.read(fetch)

    async def grades(
        self, *, rollout_id: str | None = None, grading_run_id: str | None = None
    ) -> list[GradeRecord]:
        """Return grades by rollout, sample and grade number; old ones too."""
        return await self.database.read(
            lambda tx: fetch_grades(tx, rollout_id=rollout_id, grading_run_id=grading_run_id)
        )

    async def grading_runs(self) -> list[GradingRunRecord]:
        """Return every grading run, newest first."""
        return await self.database.read(fetch_grading_runs)

    async def add_grade(
        self,
        rollout_id: str,
        reward: float,
        *,
        author: str,
        reason: str,
        sample_id: str | None = None,
        explanation: str | None = None,
    ) -> GradeRecord:
        """Add a person's grade of a sample, a grading run of kind human; return it as stored.

        Args:
            reward: Finite.
            author: Who gives it; `reason`: why. Both are kept with the grading run.
            sample_id: None: the only sample that the rollout has.

        Raises:
            RolloutNotFound, SampleNotFound
            InvalidGrade: A reward that is not finite, an empty author or reason, or several
                samples of which none is named.
        """
        from osmosis_store.human_grades import HumanGrade, insert_human_grade

        grade = HumanGrade(
            rollout_id=rollout_id,
            sample_id=sample_id,
            reward=reward,
            author=author,
            reason=reason,
            explanation=explanation,
        )
        grading_run_id = new_id("g_")
        return await self.database.write(
            lambda tx: insert_human_grade(tx, grade, grading_run_id, now=self.database.clock())
        )

    async def diff(
        self,
        a: str,
        b: str,
        *,
        selection: Selection | None = None,
        allow_mixed: bool = False,
        pass_threshold: float = 1.0,
        mover_limit: int = 10,
    ) -> GradesDiff:
        """Compare grading run `b` with grading run `a` on the samples that both have graded.

        Args:
            a, b: Ids of grading runs; of a sample graded again, each one's newest grade counts.
            selection: Only these samples; None: all.
            allow_mixed: Also compare grades that saw another label, or other items.
            pass_threshold: A sample passes with this reward or more.
            mover_limit: How many of the samples whose reward moved most to name.

        Raises:
            GradingRunNotFound
            InvalidComparison: Both are the same grading run, or a number has no meaning.
            MixedGrades: Two grades saw another label or other items, and `allow_mixed` is not set.
        """
        from osmosis_store.differences import diff_grades

        return await self.database.read(
            partial(
                diff_grades,
                a=a,
                b=b,
                selection=selection,
                allow_mixed=allow_mixed,
                pass_threshold=pass_threshold,
                mover_limit=mover_limit,
            )
        )

    async def eval_runs(self) -> list[EvalRunRecord]:
        """Return every eval run, newest first."""
        return await self.database.read(fetch_eval_runs)


class _Opening:
    """A store on its way; opening may make the database, hence not on the event loop."""

    def __init__(self, open_now: Any) -> None:
        self._open_now = open_now
        self._store: Store | None = None

    def __await__(self) -> Generator[Any, None, Store]:
        return self._open().__await__()

    async def _open(self) -> Store:
        store: Store = await asyncio.to_thread(self._open_now)
        return store

    async def __aenter__(self) -> Store:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._store is not None:
            await self._store.close()
