"""A `Selection` as SQL, and the part of it that is looked at in Python: texts and metadata."""

from __future__ import annotations

import operator
import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import decode_body
from osmosis_store.conditions import has_meta, parse_reward
from osmosis_store.errors import GradingRunNotFound
from osmosis_store.queries.items import to_item
from osmosis_store.queries.text_filter import (
    fetch_match,
    holds_runs,
    lowered,
    may_say,
    runs_of,
    select_matching,
)
from osmosis_store.queries.workers import fetch_living_workers
from osmosis_store.records import SampleKey, Selection
from osmosis_store.schema import grades, grading_runs, items, rollouts, samples
from osmosis_store.texts import find_text

__all__ = [
    "Candidate",
    "fetch_fulfilling",
    "is_sql_alone",
    "rollout_conditions",
    "sample_conditions",
    "seen_status",
]

_MIN_DIGEST_CHARS = 8
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


def seen_status(tx: Connection) -> sa.ColumnElement[str]:
    """Return a rollout's status as a reader sees it now.

    A running rollout is crashed from the moment when its worker does not live any more.
    """
    living = [worker.worker_id for worker in fetch_living_workers(tx)]
    is_lost = sa.or_(rollouts.c.worker_id.is_(None), rollouts.c.worker_id.not_in(living))
    return sa.case(
        (sa.and_(rollouts.c.status == "running", is_lost), "crashed"), else_=rollouts.c.status
    )


def rollout_conditions(tx: Connection, selection: Selection) -> list[sa.ColumnElement[bool]]:
    """Return what a rollout must fulfil to be selected.

    With a text or metadata some rollouts fulfil it that are not selected: `fetch_fulfilling` tells.

    Raises:
        GradingRunNotFound: A grading run is named that does not exist.
    """
    table = rollouts.c
    found: list[sa.ColumnElement[bool]] = []
    if selection.rollout:
        found.append(table.rollout_id.in_(selection.rollout))
    for column, value in (
        (table.eval_run_id, selection.eval_run),
        (table.workflow, selection.workflow),
        (table.label, selection.label),
        (seen_status(tx), selection.status),
    ):
        if value is not None:
            found.append(column == value)
    if selection.since is not None:
        found.append(table.started_at >= selection.since)
    if selection.until is not None:
        found.append(table.started_at < selection.until)
    for key, _ in selection.meta:
        name = re.split(r"\.\d", key)[0]  # a number may be a position in a list
        runs = [run for part in name.split(".") for run in runs_of(part, ascii_only=True)]
        found.append(holds_runs(lowered(tx, table.metadata), runs))
    of_sample = sample_conditions(tx, selection)
    if selection.text is not None:
        if (match := fetch_match(tx, selection.text)) is not None:
            matching = select_matching(match).subquery()
            found.append(table.rollout_id.in_(sa.select(matching.c.rollout_id)))
        of_sample.append(
            sa.exists().where(*_same_sample(items), may_say(tx, selection.text)).correlate(samples)
        )
    if of_sample:
        found.append(
            sa.exists()
            .where(samples.c.rollout_id == table.rollout_id, *of_sample)
            .correlate(rollouts)
        )
    return found


def sample_conditions(tx: Connection, selection: Selection) -> list[sa.ColumnElement[bool]]:
    """Return what a row of `samples` must fulfil, but for the text.

    Raises:
        GradingRunNotFound: A grading run is named that does not exist.
    """
    found: list[sa.ColumnElement[bool]] = []
    if selection.sample is not None:
        found.append(samples.c.sample_id == selection.sample)
    if selection.tool is not None:
        found.append(
            sa.exists()
            .where(*_same_sample(items), items.c.tool_name == selection.tool)
            .correlate(samples)
        )
    graded_by = None
    if selection.graded_by is not None:
        graded_by = _runs_of_grader(tx, selection.graded_by)
        found.append(_has_grade(graded_by))
    if selection.ungraded_by is not None:
        found.append(~_has_grade(_runs_of_grader(tx, selection.ungraded_by)))
    if selection.reward is not None:
        found.append(_has_reward(selection.reward, graded_by))
    return found


def _same_sample(table: Any) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return (
        table.c.rollout_id == samples.c.rollout_id,
        table.c.sample_id == samples.c.sample_id,
    )


def _has_grade(of_runs: sa.Select[Any]) -> sa.ColumnElement[bool]:
    return (
        sa.exists()
        .where(
            *_same_sample(grades), grades.c.error.is_(None), grades.c.grading_run_id.in_(of_runs)
        )
        .correlate(samples)
    )


def _has_reward(reward: str, of_runs: sa.Select[Any] | None) -> sa.ColumnElement[bool]:
    """Compare the reward of a sample's newest grade, which may have none."""
    newer = grades.alias("newer_grades")
    newest = sa.select(sa.func.max(newer.c.grade_no)).where(
        newer.c.rollout_id == grades.c.rollout_id, newer.c.sample_id == grades.c.sample_id
    )
    if of_runs is not None:
        newest = newest.where(newer.c.grading_run_id.in_(of_runs))
    return (
        sa.exists()
        .where(
            *_same_sample(grades),
            grades.c.grade_no == newest.correlate(grades).scalar_subquery(),
            grades.c.removed.is_(False),
            *(_COMPARE[how](grades.c.reward, number) for how, number in parse_reward(reward)),
        )
        .correlate(samples)
    )


def _runs_of_grader(tx: Connection, grader: str) -> sa.Select[Any]:
    """Return the ids of the grading runs that a grader's name or digest, or an id, stands for.

    Raises:
        GradingRunNotFound: It looks like a grading run's id, and there is none.
    """
    ids = sa.select(grading_runs.c.grading_run_id)
    by_id = ids.where(grading_runs.c.grading_run_id == grader)
    if tx.execute(by_id).first() is not None:
        return by_id
    known = tx.execute(
        sa.select(grading_runs.c.grader, grading_runs.c.code_digest).distinct()
    ).fetchall()
    names = {name for name, _ in known if grader in (name, name.rpartition(":")[2])}
    digests = {
        digest
        for _, digest in known
        if digest is not None and _may_be_digest(grader) and digest.startswith(grader.lower())
    }
    if grader.startswith("g_") and not names:
        raise GradingRunNotFound(grader)
    return ids.where(
        sa.or_(grading_runs.c.grader.in_(names), grading_runs.c.code_digest.in_(digests))
    )


def _may_be_digest(text: str) -> bool:
    return len(text) >= _MIN_DIGEST_CHARS and set(text) <= set(string.hexdigits)


class Candidate(NamedTuple):
    """A rollout that fulfils the conditions in SQL, and its metadata as stored."""

    rollout_id: str
    metadata: str | None


def is_sql_alone(selection: Selection) -> bool:
    """Tell whether the conditions in SQL are all there are."""
    return selection.text is None and not selection.meta


def fetch_fulfilling(
    tx: Connection, selection: Selection, candidates: Iterable[Candidate]
) -> set[str]:
    """Return which of the rollouts that fulfil the conditions in SQL are selected.

    Raises:
        CorruptItem: A body does not decode; names its row.
    """
    ids = [one.rollout_id for one in candidates if _fulfils_meta(one.metadata, selection)]
    if selection.text is None:
        return set(ids)
    return _fetch_saying(tx, selection, selection.text, ids)


def _fulfils_meta(metadata: str | None, selection: Selection) -> bool:
    if not selection.meta:
        return True
    value = None if metadata is None else decode_body(metadata)
    return all(has_meta(value, *pair) for pair in selection.meta)


def _fetch_saying(tx: Connection, selection: Selection, text: str, ids: Sequence[str]) -> set[str]:
    rows = tx.execute(
        sa.select(items.c.rollout_id, items.c.sample_id, items.c.seq, items.c.body)
        .join(samples, sa.and_(*_same_sample(items)))
        .where(items.c.rollout_id.in_(ids), *sample_conditions(tx, selection), may_say(tx, text))
        .execution_options(yield_per=100)
    )
    found: set[str] = set()
    for rollout_id, sample_id, seq, body in rows:
        if rollout_id not in found:
            item = to_item(SampleKey(rollout_id, sample_id), seq, body)
            if find_text(item, text) is not None:
                found.add(rollout_id)
    return found
