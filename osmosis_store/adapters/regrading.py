"""`regrade`: the rollout SDK's graders over stored samples, the policy refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.grading import POLICY_CALLS_REFUSED, grade_samples
from osmosis_ai.rollout.recording import GradeReport
from osmosis_ai.rollout.types import GraderConfig, RolloutStatus
from osmosis_store.adapters.osmosis_grader import identify_grader, to_new_grades
from osmosis_store.adapters.samples import fetch_rollout_samples
from osmosis_store.database import Database, HasDatabase, to_database
from osmosis_store.records import NewGradingRun, RolloutRecord, Selection
from osmosis_store.regrade import GradedRollout, RegradeReport, regrade_rollouts

__all__ = ["regrade"]


async def regrade(
    store: Database | HasDatabase,
    grader: type[Grader],
    *,
    selection: Selection | None = None,
    config: GraderConfig | None = None,
    force: bool = False,
    author: str | None = None,
    reason: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    concurrency: int = 8,
    timeout_s: float | None = None,
    pass_threshold: float = 1.0,
) -> RegradeReport:
    """Grade stored samples again under a new grading run; the old grades stay.

    No model is called: while the grader runs, the rollout model refuses. What this very grader,
    by its code and config, has graded without error is skipped as long as items and label are
    the same.

    Args:
        store: An open `Store`.
        selection: Which rollouts; None: all.
        config: Handed to the grader; part of its identity.
        force: Also grade what would be skipped.
        author, reason: Kept with the grading run.
        on_progress: Called with the rollouts done and all of them.
        concurrency: How many rollouts are graded at once.
        timeout_s: Seconds that the grader may take for one rollout; None: no limit.
        pass_threshold: The reward from which a sample counts as passed in the report's flips.

    Returns:
        The counts and the failures; a sample that fails ends nothing.
    """
    database = to_database(store)
    identity, chosen = identify_grader(grader, config), selection or Selection()

    async def grade(rollout: RolloutRecord) -> GradedRollout:
        samples = await database.read(partial(fetch_rollout_samples, rollout_id=rollout.rollout_id))
        result = await grade_samples(
            grader,
            config,
            samples=samples,
            label=rollout.label,
            metadata=rollout.metadata,
            timeout_s=timeout_s,
        )
        failed = result.status is not RolloutStatus.SUCCESS
        report = GradeReport(
            grader=grader,
            grader_config=config,
            label=rollout.label,
            samples=result.samples,
            error=(result.err_message or "the grading failed") if failed else None,
            error_category=result.err_category,
            kind="regrade",
        )
        refused = (result.extra_fields or {}).get(POLICY_CALLS_REFUSED, 0)
        return GradedRollout(to_new_grades(report), refused)

    run = NewGradingRun(
        kind="regrade",
        grader=identity.reference,
        code_digest=identity.digest,
        code_covers=identity.covers,
        config=identity.config,
        author=author,
        reason=reason,
        selection=chosen.to_json(),
    )
    return await regrade_rollouts(
        database,
        run,
        grade,
        selection=chosen,
        force=force,
        concurrency=concurrency,
        pass_threshold=pass_threshold,
        on_progress=on_progress,
    )
