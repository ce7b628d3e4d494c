"""The grade ledger as it is read: grades, grading runs, what was graded already."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import decode_body
from osmosis_store.errors import GradingRunNotFound
from osmosis_store.queries.selection import (
    Candidate,
    fetch_fulfilling,
    is_sql_alone,
    rollout_conditions,
)
from osmosis_store.records import GradeRecord, GradingRunRecord, Selection
from osmosis_store.schema import grades, grading_runs, rollouts, samples

__all__ = [
    "GRADE_ORDERS",
    "PastGrade",
    "RunResult",
    "fetch_grades",
    "fetch_grading_run",
    "fetch_grading_runs",
    "fetch_history",
    "fetch_newest_run_ids",
    "fetch_run_result",
    "fetch_sorted_grades",
]

GRADE_ORDERS = ("reward", "-reward", "time", "-time")
_ORDER_COLUMNS = {"reward": "reward", "time": "created_at"}
_SLICE = 500

_SELECT_GRADES = (
    sa.select(
        *(column for column in grades.c if column.name != "chain_digest"),
        grading_runs.c.grader,
        grading_runs.c.kind,
        grading_runs.c.code_digest,
    )
    .join(grading_runs, grading_runs.c.grading_run_id == grades.c.grading_run_id)
    .order_by(grades.c.rollout_id, grades.c.sample_id, grades.c.grade_no)
)


def fetch_grades(
    tx: Connection,
    *,
    rollout_id: str | None = None,
    rollout_ids: Sequence[str] | None = None,
    eval_run_id: str | None = None,
    grading_run_id: str | None = None,
    limit: int | None = None,
) -> list[GradeRecord]:
    """Return grades by rollout, sample and grade number.

    Args:
        rollout_id, rollout_ids, eval_run_id, grading_run_id: Only theirs; None: of all.
        limit: At most so many; None: all.
    """
    if rollout_ids is not None and len(rollout_ids) > _SLICE:  # a statement takes only so many
        ordered = sorted(rollout_ids)
        slices = (ordered[at : at + _SLICE] for at in range(0, len(ordered), _SLICE))
        found = (
            grade
            for part in slices
            for grade in fetch_grades(
                tx,
                rollout_id=rollout_id,
                rollout_ids=part,
                eval_run_id=eval_run_id,
                grading_run_id=grading_run_id,
                limit=limit,
            )
        )
        return list(itertools.islice(found, limit))
    statement = _SELECT_GRADES.limit(limit)
    if rollout_id is not None:
        statement = statement.where(grades.c.rollout_id == rollout_id)
    if rollout_ids is not None:
        statement = statement.where(grades.c.rollout_id.in_(rollout_ids))
    if eval_run_id is not None:
        of_run = sa.select(rollouts.c.rollout_id).where(rollouts.c.eval_run_id == eval_run_id)
        statement = statement.where(grades.c.rollout_id.in_(of_run))
    if grading_run_id is not None:
        statement = statement.where(grades.c.grading_run_id == grading_run_id)
    return [_to_grade(row._asdict()) for row in tx.execute(statement)]


def fetch_sorted_grades(
    tx: Connection,
    selection: Selection,
    *,
    order: str,
    grading_run_id: str | None = None,
    limit: int,
) -> list[GradeRecord]:
    """Return grades of the selected rollouts in another order than by rollout.

    Args:
        order: One of `GRADE_ORDERS`; with `-` in front the greatest comes first. Grades without a
            reward come last by reward.

    Raises:
        GradingRunNotFound: The selection names a grading run that does not exist.
    """
    column = grades.c[_ORDER_COLUMNS[order.removeprefix("-")]]
    by_value = column.desc() if order.startswith("-") else column.asc()
    statement = (
        _SELECT_GRADES.add_columns(rollouts.c.metadata)
        .join(rollouts, rollouts.c.rollout_id == grades.c.rollout_id)
        .where(*rollout_conditions(tx, selection))
        .order_by(None)
        .order_by(by_value.nulls_last(), grades.c.rollout_id, grades.c.sample_id, grades.c.grade_no)
    )
    if selection.sample is not None:
        statement = statement.where(grades.c.sample_id == selection.sample)
    if grading_run_id is not None:
        statement = statement.where(grades.c.grading_run_id == grading_run_id)
    if is_sql_alone(selection):
        statement = statement.limit(limit)
    found = _iterate_selected(tx, selection, statement)
    return [_to_grade(values) for values in itertools.islice(found, limit)]


def _iterate_selected(
    tx: Connection, selection: Selection, statement: sa.Select[Any]
) -> Iterator[dict[str, Any]]:
    """Yield rows as values, those of rollouts that Python finds not selected left out."""
    with tx.execute(statement.execution_options(yield_per=_SLICE)) as rows:
        for part in rows.partitions():
            found = {row.rollout_id: row.metadata for row in part}
            if not is_sql_alone(selection):
                candidates = [Candidate(*one) for one in found.items()]
                found = dict.fromkeys(fetch_fulfilling(tx, selection, candidates))
            for row in part:
                values = row._asdict()
                del values["metadata"]
                if row.rollout_id in found:
                    yield values


def fetch_grading_runs(
    tx: Connection, *, ids: Collection[str] | None = None, limit: int | None = None
) -> list[GradingRunRecord]:
    """Return grading runs, newest first.

    Args:
        ids: Only these; None: all.
    """
    statement = sa.select(grading_runs).order_by(grading_runs.c.grading_run_id.desc()).limit(limit)
    if ids is not None:
        statement = statement.where(grading_runs.c.grading_run_id.in_(ids))
    return [_to_grading_run(row) for row in tx.execute(statement)]


class RunResult(NamedTuple):
    """What a grading run says now: of each sample its newest grade in this run.

    Attributes:
        rewarded_count: Samples with a reward; `mean_reward` is over them, None without any.
    """

    sample_count: int
    rewarded_count: int
    failed_count: int
    removed_count: int
    mean_reward: float | None


def fetch_run_result(tx: Connection, grading_run_id: str) -> RunResult:
    """Return what a grading run says of its samples; grades that it replaced do not count."""
    of_run = grades.c.grading_run_id == grading_run_id
    newest = (
        sa.select(
            grades.c.rollout_id, grades.c.sample_id, sa.func.max(grades.c.grade_no).label("no")
        )
        .where(of_run)
        .group_by(grades.c.rollout_id, grades.c.sample_id)
        .subquery()
    )
    kept = grades.c.removed.is_(False)
    row = tx.execute(
        sa.select(
            sa.func.count(),
            sa.func.count(sa.case((kept, grades.c.reward))),
            sa.func.count(sa.case((kept, grades.c.error))),
            sa.func.count(sa.case((grades.c.removed.is_(True), 1))),
            sa.func.avg(sa.case((kept, grades.c.reward))),
        )
        .select_from(newest)
        .join(
            grades,
            sa.and_(
                grades.c.rollout_id == newest.c.rollout_id,
                grades.c.sample_id == newest.c.sample_id,
                grades.c.grade_no == newest.c.no,
            ),
        )
    ).one()
    return RunResult(*row)


class PastGrade(NamedTuple):
    """A grade in a sample's history, and whether what was graded is still so.

    Attributes:
        author, reason: Of the grading run.
        same_items: The sample has the items that were graded, no more and no others.
        same_label: The rollout has the label that the grader saw.
    """

    grade: GradeRecord
    author: str | None
    reason: str | None
    same_items: bool
    same_label: bool


def fetch_history(
    tx: Connection, rollout_id: str, *, sample_id: str | None = None
) -> list[PastGrade]:
    """Return every grade that a rollout's samples ever got, by sample, the oldest first."""
    statement = (
        _SELECT_GRADES.add_columns(
            grading_runs.c.author,
            grading_runs.c.reason,
            (samples.c.chain_head == grades.c.chain_head).label("same_items"),
            rollouts.c.label.is_not_distinct_from(grades.c.label).label("same_label"),
        )
        .join(
            samples,
            sa.and_(
                samples.c.rollout_id == grades.c.rollout_id,
                samples.c.sample_id == grades.c.sample_id,
            ),
        )
        .join(rollouts, rollouts.c.rollout_id == grades.c.rollout_id)
        .where(grades.c.rollout_id == rollout_id)
    )
    if sample_id is not None:
        statement = statement.where(grades.c.sample_id == sample_id)
    found = []
    for row in tx.execute(statement):
        values = row._asdict()
        more = [values.pop(name) for name in ("author", "reason", "same_items", "same_label")]
        found.append(PastGrade(_to_grade(values), more[0], more[1], bool(more[2]), bool(more[3])))
    return found


def fetch_newest_run_ids(tx: Connection, *, limit: int = 3) -> list[str]:
    """Return the ids of the newest grading runs, the newest first."""
    found = sa.select(grading_runs.c.grading_run_id).order_by(
        grading_runs.c.started_at.desc(), grading_runs.c.grading_run_id.desc()
    )
    return list(tx.execute(found.limit(limit)).scalars())


def fetch_grading_run(tx: Connection, grading_run_id: str) -> GradingRunRecord:
    """Return one grading run.

    Raises:
        GradingRunNotFound: Names the newest ones that there are.
    """
    row = tx.execute(
        sa.select(grading_runs).where(grading_runs.c.grading_run_id == grading_run_id)
    ).one_or_none()
    if row is None:
        raise GradingRunNotFound(grading_run_id, fetch_newest_run_ids(tx))
    return _to_grading_run(row)


def _to_grade(values: dict[str, Any]) -> GradeRecord:
    return GradeRecord(**{**values, "metrics": _decode(values["metrics"])})


def _to_grading_run(row: Any) -> GradingRunRecord:
    values = row._asdict()
    for name in ("config", "selection", "versions"):
        values[name] = _decode(values[name])
    values["code_covers"] = _decode(values["code_covers"]) or []
    return GradingRunRecord(**values)


def _decode(text: str | None) -> Any:
    return None if text is None else decode_body(text)
