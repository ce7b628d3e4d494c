"""What a regrade did: counted while it runs, added up over processes, reported at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from osmosis_store.records import NewGrade

__all__ = ["Failure", "GradingPassReport", "JudgeTokens", "RegradeReport", "Tally"]

_MOST_FAILURES = 100

Failure = tuple[str, str, str]
"""Rollout id, sample id and error of a sample that got no reward."""


@dataclass(frozen=True, kw_only=True)
class JudgeTokens:
    """What the graders' own models used, as far as the graders say."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, kw_only=True)
class GradingPassReport:
    """What one grader did in a regrade.

    Attributes:
        grading_run_id: None when there was nothing to grade: then no grading run is stored.
        skipped: By reason, how many samples were not graded: `graded` (this very grader has
            graded these very items with this label), `running` (the rollout still runs), `failed`
            or `not_failed` (with a resumed grading run, what is not to be tried now).
        removed_count: Of the graded ones, those that the grader takes out of every aggregate.
        mean_before: Over the samples graded now, of their newest reward before; None: there is
            none. `mean_after`: of the rewards given now.
        passed_to_failed: How many crossed the pass threshold downwards; `failed_to_passed`: up.
        policy_calls_refused: How often the grader tried to call the policy.
        judge: None: unknown, the grader does not say.
        failures: The first hundred.
    """

    grading_run_id: str | None
    grader: str
    code_digest: str | None
    graded_count: int
    failed_count: int
    skipped: dict[str, int]
    removed_count: int
    mean_before: float | None
    mean_after: float | None
    passed_to_failed: int
    failed_to_passed: int
    policy_calls_refused: int
    judge: JudgeTokens | None
    failures: list[Failure]


@dataclass(frozen=True, kw_only=True)
class RegradeReport:
    """What a regrade did.

    Attributes:
        passes: One for each grader, in the order in which they were given.
        rollout_count: Rollouts that were looked at.
        policy_calls: Always 0: while a grader runs, the policy refuses.
        connections_allowed: Connections, name lookups and programs that graders asked for and
            got, since the network was allowed; `connections_refused`: those they did not get.
        interrupted: It was told to stop; what was graded is stored.
        dry_run: Nothing was graded: `graded_count` is what would be.
    """

    passes: list[GradingPassReport]
    rollout_count: int
    policy_calls: int
    connections_allowed: int
    connections_refused: int
    interrupted: bool
    dry_run: bool
    duration_s: float

    @property
    def failed_count(self) -> int:
        """Samples that got no reward, over all passes."""
        return sum(one.failed_count for one in self.passes)


@dataclass
class _Mean:
    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value

    def merge(self, other: _Mean) -> None:
        self.count += other.count
        self.total += other.total

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass
class Tally:
    """One grader's counts, while they grow."""

    pass_threshold: float
    graded_count: int = 0
    failed_count: int = 0
    removed_count: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    passed_to_failed: int = 0
    failed_to_passed: int = 0
    policy_calls_refused: int = 0
    judge_input_tokens: int | None = None
    judge_output_tokens: int | None = None
    failures: list[Failure] = field(default_factory=list)
    before: _Mean = field(default_factory=_Mean)
    after: _Mean = field(default_factory=_Mean)

    def add(
        self, rollout_id: str, grades: Sequence[NewGrade], earlier: dict[str, float | None]
    ) -> None:
        """Count grades that are stored.

        Args:
            earlier: Each sample's newest reward before.
        """
        for grade in grades:
            if grade.error is not None:
                self.failed_count += 1
                if len(self.failures) < _MOST_FAILURES:
                    self.failures.append((rollout_id, grade.sample_id, grade.error))
                continue
            self.graded_count += 1
            if grade.removed or grade.reward is None:
                self.removed_count += 1
                continue
            self.after.add(grade.reward)
            before = earlier.get(grade.sample_id)
            if before is not None:
                self._compare(before, grade.reward)

    def _compare(self, before: float, after: float) -> None:
        self.before.add(before)
        passed, passes = before >= self.pass_threshold, after >= self.pass_threshold
        self.passed_to_failed += passed and not passes
        self.failed_to_passed += passes and not passed

    def add_judge(self, tokens: JudgeTokens | None) -> None:
        """Count what a grader's own model used."""
        if tokens is not None:
            self.judge_input_tokens = (self.judge_input_tokens or 0) + tokens.input_tokens
            self.judge_output_tokens = (self.judge_output_tokens or 0) + tokens.output_tokens

    def merge(self, other: Tally) -> None:
        """Add another process's counts."""
        for name in (
            "graded_count",
            "failed_count",
            "removed_count",
            "passed_to_failed",
            "failed_to_passed",
            "policy_calls_refused",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.skipped += other.skipped
        self.before.merge(other.before)
        self.after.merge(other.after)
        self.failures = [*self.failures, *other.failures][:_MOST_FAILURES]
        self.add_judge(other.judge)

    @property
    def judge(self) -> JudgeTokens | None:
        """The tokens, where the grader said any."""
        if self.judge_input_tokens is None or self.judge_output_tokens is None:
            return None
        return JudgeTokens(
            input_tokens=self.judge_input_tokens, output_tokens=self.judge_output_tokens
        )

    def to_report(
        self, grading_run_id: str | None, grader: str, code_digest: str | None
    ) -> GradingPassReport:
        """Return the counts as they are now."""
        return GradingPassReport(
            grading_run_id=grading_run_id if self.graded_count or self.failed_count else None,
            grader=grader,
            code_digest=code_digest,
            graded_count=self.graded_count,
            failed_count=self.failed_count,
            skipped=dict(self.skipped),
            removed_count=self.removed_count,
            mean_before=self.before.value,
            mean_after=self.after.value,
            passed_to_failed=self.passed_to_failed,
            failed_to_passed=self.failed_to_passed,
            policy_calls_refused=self.policy_calls_refused,
            judge=self.judge,
            failures=self.failures,
        )
