"""Grades that people give: each is a grading run of its own, of kind human."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from osmosis_store.codec import to_clean_text
from osmosis_store.errors import InvalidGrade, SampleNotFound
from osmosis_store.queries.grades import fetch_grades
from osmosis_store.queries.items import fetch_samples
from osmosis_store.queries.rollouts import fetch_rollout
from osmosis_store.records import GradeRecord, NewGrade, NewGradingRun, SampleRecord
from osmosis_store.versions import package_versions
from osmosis_store.writes.grades import append_grades, end_grading_run, ensure_grading_run

__all__ = ["HumanGrade", "insert_human_grade"]


@dataclass(frozen=True, kw_only=True)
class HumanGrade:
    """What a person says of one sample, about to be stored.

    Attributes:
        sample_id: None: the only one that the rollout has.
        reward: Finite.
        author: Who says so; the grader of the grading run is `human:` and this name.

    Raises:
        InvalidGrade: The reward is not finite, or author or reason is empty.
    """

    rollout_id: str
    sample_id: str | None = None
    reward: float
    author: str
    reason: str
    explanation: str | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward):
            raise InvalidGrade(f"a reward is a finite number, not {self.reward}")
        for name in ("author", "reason"):
            if not getattr(self, name).strip():
                raise InvalidGrade(f"a grade that a person gives needs its {name}")

    @property
    def grader(self) -> str:
        """The name under which the views and selections know this person's grades."""
        return f"human:{to_clean_text(self.author)}"


def insert_human_grade(
    tx: Connection, grade: HumanGrade, grading_run_id: str, *, now: dt.datetime
) -> GradeRecord:
    """Add a person's grade of a sample's items and label as they are now.

    Raises:
        RolloutNotFound, SampleNotFound
        InvalidGrade: The rollout has several samples and none is named, or it has none.
    """
    rollout = fetch_rollout(tx, grade.rollout_id)
    sample_id = _choose_sample(grade, fetch_samples(tx, grade.rollout_id))
    run = NewGradingRun(
        kind="human",
        grader=grade.grader,
        author=to_clean_text(grade.author),
        reason=to_clean_text(grade.reason),
        selection={"rollout": [grade.rollout_id], "sample": sample_id},
    )
    ensure_grading_run(tx, grading_run_id, run, versions=package_versions(), now=now)
    given = NewGrade(
        sample_id=sample_id,
        reward=grade.reward,
        explanation=to_clean_text(grade.explanation),
        label=rollout.label,
    )
    append_grades(tx, grading_run_id, {grade.rollout_id: [given]}, now=now)
    end_grading_run(tx, grading_run_id, now=now)
    (stored,) = fetch_grades(tx, rollout_id=grade.rollout_id, grading_run_id=grading_run_id)
    return stored


def _choose_sample(grade: HumanGrade, samples: Sequence[SampleRecord]) -> str:
    known = [sample.sample_id for sample in samples]
    if grade.sample_id is not None:
        if grade.sample_id not in known:
            raise SampleNotFound(grade.rollout_id, grade.sample_id, known)
        return grade.sample_id
    if not known:
        raise InvalidGrade(f"rollout {grade.rollout_id!r} has no sample to grade")
    if len(known) > 1:
        raise InvalidGrade(
            f"rollout {grade.rollout_id!r} has {len(known)} samples",
            hint=f"name one with --sample: {', '.join(known)}",
        )
    return known[0]
