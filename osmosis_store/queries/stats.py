"""Figures over many rollouts: by eval run, by workflow or by grader, one line per grader's code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.errors import InvalidSelection
from osmosis_store.queries.rollouts import fetch_rollout_ids
from osmosis_store.queries.selection import is_sql_alone, rollout_conditions, seen_status
from osmosis_store.records import Selection, Usage
from osmosis_store.schema import grades, grading_runs, model_calls, rollouts, samples

__all__ = ["GROUPINGS", "GraderStats", "GroupStats", "fetch_stats"]

GROUPINGS = ("eval-run", "workflow", "grader")

_CHUNK = 500
_USAGE = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_FAILED = ("failure", "crashed")

Scope: TypeAlias = Callable[[sa.ColumnElement[str]], sa.ColumnElement[bool]]


class GraderStats(NamedTuple):
    """What one grader, by its code and config, said of a group's samples, each one's newest grade.

    Attributes:
        code_digest: None for people, and for imported grades without one.
        graded_count: Samples with a reward: those that mean and pass rate are over.
        pass_rate: Share of the rewards from the threshold up; None: there is no reward.
    """

    grader: str
    code_digest: str | None
    graded_count: int
    failed_count: int
    removed_count: int
    mean_reward: float | None
    pass_rate: float | None


class GroupStats(NamedTuple):
    """A group's figures.

    Attributes:
        key: The eval run's id, the workflow or the grader; None: rollouts that have none.
        statuses: Rollouts by status, retries included.
        failures: Failed and crashed rollouts by error category; without one, by status.
        graders: Never added up: rewards of different graders or digests are different things.
    """

    key: str | None
    code_digest: str | None
    rollout_count: int
    sample_count: int
    statuses: dict[str, int]
    failures: dict[str, int]
    usage: Usage
    graders: list[GraderStats]


def fetch_stats(
    tx: Connection, selection: Selection, *, by: str, pass_threshold: float = 1.0
) -> list[GroupStats]:
    """Return the figures of the selected rollouts, a group each, ordered by key.

    Args:
        by: "eval-run" or "workflow"; "grader": a group per grader and digest, of the rollouts
            that it graded, which therefore are counted in each of theirs.
        pass_threshold: The reward from which a sample counts as passed.

    Raises:
        InvalidSelection: There is no such grouping.
        GradingRunNotFound: The selection names a grading run that does not exist.
    """
    if by not in GROUPINGS:
        raise InvalidSelection(
            f"there are no figures by {by!r}", hint=f"known: {', '.join(GROUPINGS)}"
        )
    found: dict[_Key, _Sums] = {}
    for scope in _scopes(tx, selection):
        groups = _Groups(by, scope, selection.sample)
        _add_rollouts(tx, groups, found)
        _add_samples(tx, groups, found)
        _add_usage(tx, groups, found)
        _add_grades(tx, groups, found, pass_threshold)
    ordered = sorted(found.items(), key=lambda one: tuple(part or "" for part in one[0]))
    return [sums.to_stats(key) for key, sums in ordered]


def _scopes(tx: Connection, selection: Selection) -> Iterator[Scope]:
    """Yield conditions on a rollout's id that together are true of each selected one once."""
    if selection == Selection():
        yield lambda column: sa.true()
    elif is_sql_alone(selection):
        chosen = sa.select(rollouts.c.rollout_id).where(*rollout_conditions(tx, selection))
        yield lambda column: column.in_(chosen)
    else:
        ids = fetch_rollout_ids(tx, selection)
        for at in range(0, len(ids), _CHUNK):
            chunk = ids[at : at + _CHUNK]
            yield lambda column, chunk=chunk: column.in_(chunk)  # type: ignore[misc]


class _Key(NamedTuple):
    key: str | None
    code_digest: str | None


class _Groups:
    """Which rollouts are in which group: rows of rollout id, key and digest."""

    def __init__(self, by: str, scope: Scope, sample_id: str | None) -> None:
        self.by, self.scope, self.sample_id = by, scope, sample_id
        if by == "grader":
            pairs = (
                sa.select(grades.c.rollout_id, grading_runs.c.grader, grading_runs.c.code_digest)
                .join(grading_runs, grading_runs.c.grading_run_id == grades.c.grading_run_id)
                .where(scope(grades.c.rollout_id), *self._of_sample(grades))
                .distinct()
                .subquery("graded")
            )
            self.rollout_id, self.key, self.digest = pairs.c
            self.source: sa.FromClause = pairs
        else:
            column = rollouts.c.eval_run_id if by == "eval-run" else rollouts.c.workflow
            self.rollout_id, self.key = rollouts.c.rollout_id, column
            self.digest = sa.cast(sa.null(), sa.Text).label("code_digest")
            self.source = rollouts

    def _of_sample(self, table: Any) -> list[sa.ColumnElement[bool]]:
        return [] if self.sample_id is None else [table.c.sample_id == self.sample_id]

    def select(self, table: Any, *columns: Any) -> sa.Select[Any]:
        """Select key, digest and columns of a table's rows that belong to a group."""
        source = self.source
        if table is not source:
            source = source.join(table, table.c.rollout_id == self.rollout_id)
        of_sample = self._of_sample(table) if "sample_id" in table.c else []
        return (
            sa.select(self.key, self.digest, *columns)
            .select_from(source)
            .where(self.scope(self.rollout_id), *of_sample)
        )


@dataclass
class _GradeSums:
    graded: int = 0
    failed: int = 0
    removed: int = 0
    passed: int = 0
    rewards: list[float] = field(default_factory=list)
    """Sums of rewards, one from each statement."""


@dataclass
class _Sums:
    rollouts: int = 0
    samples: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    usage: list[int] = field(default_factory=lambda: [0] * len(_USAGE))
    graders: dict[tuple[str, str | None], _GradeSums] = field(default_factory=dict)

    def to_stats(self, key: _Key) -> GroupStats:
        graders = sorted(self.graders.items(), key=lambda one: (one[0][0], one[0][1] or ""))
        return GroupStats(
            key=key.key,
            code_digest=key.code_digest,
            rollout_count=self.rollouts,
            sample_count=self.samples,
            statuses=dict(sorted(self.statuses.items())),
            failures=dict(sorted(self.failures.items())),
            usage=Usage(**dict(zip(_USAGE, self.usage, strict=True))),
            graders=[
                GraderStats(
                    *grader,
                    graded_count=one.graded,
                    failed_count=one.failed,
                    removed_count=one.removed,
                    mean_reward=math.fsum(one.rewards) / one.graded if one.graded else None,
                    pass_rate=one.passed / one.graded if one.graded else None,
                )
                for grader, one in graders
            ],
        )


def _add_rollouts(tx: Connection, groups: _Groups, found: dict[_Key, _Sums]) -> None:
    status, category = seen_status(tx).label("seen"), rollouts.c.error_category
    inner = groups.select(rollouts, status, category).subquery()
    for key, digest, seen, why, count in tx.execute(_grouped(inner, 4, sa.func.count())):
        sums = found.setdefault(_Key(key, digest), _Sums())
        sums.rollouts += count
        sums.statuses[seen] = sums.statuses.get(seen, 0) + count
        if seen in _FAILED:
            name = why or seen
            sums.failures[name] = sums.failures.get(name, 0) + count


def _add_samples(tx: Connection, groups: _Groups, found: dict[_Key, _Sums]) -> None:
    inner = groups.select(samples, samples.c.sample_id).subquery()
    for key, digest, count in tx.execute(_grouped(inner, 2, sa.func.count())):
        found[_Key(key, digest)].samples += count


def _add_usage(tx: Connection, groups: _Groups, found: dict[_Key, _Sums]) -> None:
    inner = groups.select(model_calls, *(model_calls.c[name] for name in _USAGE)).subquery()
    sums = (sa.func.coalesce(sa.func.sum(inner.c[name]), 0) for name in _USAGE)
    for key, digest, *counts in tx.execute(_grouped(inner, 2, *sums)):
        usage = found[_Key(key, digest)].usage
        usage[:] = [one + int(more) for one, more in zip(usage, counts, strict=True)]


def _add_grades(
    tx: Connection, groups: _Groups, found: dict[_Key, _Sums], pass_threshold: float
) -> None:
    """Add the newest grade of each sample by each grader's code."""
    newest = _select_newest(groups).subquery()
    has_reward = sa.and_(~newest.c.removed, newest.c.reward.is_not(None))
    figures = (
        _count_if(has_reward),
        _count_if(newest.c.error.is_not(None)),
        _count_if(newest.c.removed),
        _count_if(sa.and_(has_reward, newest.c.reward >= pass_threshold)),
        sa.func.sum(sa.case((has_reward, newest.c.reward), else_=0.0)),
    )
    rows = tx.execute(_grouped(newest, 4, *figures).where(newest.c.age == 1))
    for key, digest, grader, code_digest, graded, failed, removed, passed, rewards in rows:
        sums = found[_Key(key, digest)].graders.setdefault((grader, code_digest), _GradeSums())
        sums.graded += int(graded)
        sums.failed += int(failed)
        sums.removed += int(removed)
        sums.passed += int(passed)
        sums.rewards.append(float(rewards))


def _grouped(inner: sa.Subquery, key_count: int, *figures: Any) -> sa.Select[Any]:
    """Select figures over the rows that agree in the first columns."""
    columns: list[Any] = list(inner.c)[:key_count]
    return sa.select(*columns, *figures).group_by(*columns)


def _select_newest(groups: _Groups) -> sa.Select[Any]:
    grader, code_digest = grading_runs.c.grader, grading_runs.c.code_digest
    age = sa.func.row_number().over(
        partition_by=(grades.c.rollout_id, grades.c.sample_id, grader, code_digest),
        order_by=grades.c.grade_no.desc(),
    )
    own = (grader.label("by_grader"), code_digest.label("by_digest"))
    statement = groups.select(
        grades, *own, grades.c.reward, grades.c.error, grades.c.removed, age.label("age")
    ).join(grading_runs, grading_runs.c.grading_run_id == grades.c.grading_run_id)
    if groups.by == "grader":
        statement = statement.where(
            grader == groups.key, code_digest.is_not_distinct_from(groups.digest)
        )
    return statement


def _count_if(condition: Any) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))
