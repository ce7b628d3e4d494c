"""Two grading runs side by side: the newest grade that each of them gave a sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from osmosis_store.queries.selection import (
    Candidate,
    fetch_fulfilling,
    is_sql_alone,
    rollout_conditions,
)
from osmosis_store.records import Selection
from osmosis_store.schema import eval_runs, grades, rollouts

__all__ = ["GradePair", "GradeSide", "iterate_grade_pairs"]

_SLICE = 500


@dataclass(frozen=True, slots=True)
class GradeSide:
    """What one grading run says of a sample: its newest grade of it.

    Attributes:
        label: The label that the grader saw.
        chain_head: Of the items that the grader saw.
    """

    reward: float | None
    error: str | None
    removed: bool
    label: str | None
    chain_head: bytes


@dataclass(frozen=True, slots=True)
class GradePair:
    """One sample that at least one of two grading runs has graded.

    Attributes:
        dataset: What the row index counts in: the dataset's sha256, else the workflow.
        a: None when the first grading run has no grade of it; `b`: the second one.
    """

    rollout_id: str
    sample_id: str
    dataset: str | None
    row_index: int | None
    attempt: int
    a: GradeSide | None
    b: GradeSide | None


def iterate_grade_pairs(
    tx: Connection, a: str, b: str, selection: Selection
) -> Iterator[GradePair]:
    """Yield the samples that the grading runs `a` and `b` have graded, by rollout and sample.

    Rows come from the database slice by slice: memory does not grow with their number.

    Raises:
        GradingRunNotFound: The selection names a grading run that does not exist.
        CorruptItem: The selection has a text, and a body does not decode.
    """
    statement = _select_pairs(a, b, sample_id=selection.sample)
    statement = statement.where(*rollout_conditions(tx, selection))
    with tx.execute(statement.execution_options(yield_per=_SLICE)) as rows:
        for part in rows.partitions():
            yield from map(_to_pair, _only_selected(tx, selection, part))


def _select_pairs(a: str, b: str, *, sample_id: str | None) -> sa.Select[Any]:
    newest = _select_newest(a, b, sample_id=sample_id).subquery("newest")
    of_a, of_b = grades.alias("of_a"), grades.alias("of_b")
    return (
        sa.select(
            newest.c.rollout_id,
            newest.c.sample_id,
            sa.func.coalesce(eval_runs.c.dataset_sha256, rollouts.c.workflow).label("dataset"),
            rollouts.c.row_index,
            rollouts.c.attempt,
            rollouts.c.metadata,
            *_side("a", of_a),
            *_side("b", of_b),
        )
        .select_from(newest)
        .join(rollouts, rollouts.c.rollout_id == newest.c.rollout_id)
        .outerjoin(eval_runs, eval_runs.c.eval_run_id == rollouts.c.eval_run_id)
        .outerjoin(of_a, _is_grade(of_a, newest, newest.c.a_no))
        .outerjoin(of_b, _is_grade(of_b, newest, newest.c.b_no))
        .order_by(newest.c.rollout_id, newest.c.sample_id)
    )


def _select_newest(a: str, b: str, *, sample_id: str | None) -> sa.Select[Any]:
    """Select a line per sample with the number of its newest grade in each of the two."""
    table = grades.c
    number_in_a, number_in_b = (
        sa.func.max(sa.case((table.grading_run_id == run_id, table.grade_no))) for run_id in (a, b)
    )
    found = sa.select(
        table.rollout_id, table.sample_id, number_in_a.label("a_no"), number_in_b.label("b_no")
    ).where(table.grading_run_id.in_((a, b)))
    if sample_id is not None:
        found = found.where(table.sample_id == sample_id)
    return found.group_by(table.rollout_id, table.sample_id)


def _is_grade(
    table: Any, newest: sa.Subquery, number: sa.ColumnElement[int]
) -> sa.ColumnElement[bool]:
    return sa.and_(
        table.c.rollout_id == newest.c.rollout_id,
        table.c.sample_id == newest.c.sample_id,
        table.c.grade_no == number,
    )


def _side(name: str, table: Any) -> list[sa.ColumnElement[Any]]:
    columns = ("grade_no", "reward", "error", "removed", "label", "chain_head")
    return [table.c[column].label(f"{name}_{column}") for column in columns]


def _only_selected(
    tx: Connection, selection: Selection, rows: Sequence[Row[Any]]
) -> Sequence[Row[Any]]:
    """Leave out the rows of rollouts that fulfil the conditions in SQL and not the others."""
    if is_sql_alone(selection):
        return rows
    found = {row.rollout_id: row.metadata for row in rows}
    fulfilling = fetch_fulfilling(tx, selection, [Candidate(*one) for one in found.items()])
    return [row for row in rows if row.rollout_id in fulfilling]


def _to_pair(row: Row[Any]) -> GradePair:
    values: Sequence[Any] = row
    rollout_id, sample_id, dataset, row_index, attempt, _metadata, *sides = values
    a, b = _to_side(*sides[:6]), _to_side(*sides[6:])
    return GradePair(rollout_id, sample_id, dataset, row_index, attempt, a, b)


def _to_side(
    grade_no: int | None,
    reward: float | None,
    error: str | None,
    removed: bool | None,
    label: str | None,
    chain_head: bytes | None,
) -> GradeSide | None:
    if grade_no is None or chain_head is None:
        return None
    return GradeSide(reward, error, bool(removed), label, bytes(chain_head))
