"""The rollout SDK's graders as the ledger knows them: identity, loading, grades."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.recording import GradeReport
from osmosis_ai.rollout.types import GraderConfig, RolloutSample
from osmosis_ai.rollout.utils.digest import CodeDigest, code_digest
from osmosis_store.codec import to_clean_text, to_json_text
from osmosis_store.records import NewGrade

__all__ = ["GraderIdentity", "identify_grader", "to_new_grades"]

_EXPLANATION = "explanation"


@dataclass(frozen=True)
class GraderIdentity:
    """Which grader it is: its reference, and the digest of its code and config.

    Attributes:
        covers: What the digest is over, as qualified names.
        config: As JSON values; None: no config.
    """

    reference: str
    digest: str
    covers: tuple[str, ...]
    config: dict[str, Any] | None


def identify_grader(grader: type[Grader], config: GraderConfig | None) -> GraderIdentity:
    """Return a grader's identity; two with one digest give the same grades for the same items."""
    values = None if config is None else config.model_dump(mode="json", fallback=_type_name)
    code = _code_digest(grader)
    return GraderIdentity(
        reference=f"{grader.__module__}:{grader.__qualname__}",
        digest=sha256(f"{code.digest} {to_json_text(values)}".encode()).hexdigest(),
        covers=code.covers,
        config=values,
    )


@functools.cache
def _code_digest(grader: type[Grader]) -> CodeDigest:
    """Read the code once: what is loaded does not change when its file does."""
    return code_digest(grader)


def _type_name(value: object) -> str:
    """Stand for a config value that JSON cannot hold, the same in every process."""
    return f"{type(value).__module__}:{type(value).__qualname__}"


def to_new_grades(report: GradeReport) -> list[NewGrade]:
    """Return one grade per sample; a grading that failed is an error for each of them."""
    return [_to_new_grade(report, name, sample) for name, sample in report.samples.items()]


def _to_new_grade(report: GradeReport, sample_id: str, sample: RolloutSample) -> NewGrade:
    safe = sample.json_safe_copy()
    explanation = safe.extra_fields.get(_EXPLANATION)
    error = report.error
    if error is None and sample.reward is None and not sample.remove_sample:
        error = "the grader gave no reward"
    return NewGrade(
        sample_id=sample_id,
        reward=None if error is not None else sample.reward,
        error=to_clean_text(error),
        removed=sample.remove_sample and error is None,
        metrics=safe.metrics or None,
        explanation=to_clean_text(explanation) if isinstance(explanation, str) else None,
        label=report.label,
    )
