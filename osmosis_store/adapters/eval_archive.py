"""`StoreArchive`: where `osmosis eval run` finds what earlier processes finished."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy.engine import Connection

from osmosis_ai.eval.errors import EvalRunBusy, EvalRunChanged
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.recording import EvalRunSpec, StoredGrade, StoredRollout, TokenUsage
from osmosis_ai.rollout.types import GraderConfig, RolloutSample
from osmosis_store.adapters.osmosis_grader import identify_grader
from osmosis_store.adapters.recording import StoreRecorder
from osmosis_store.adapters.samples import fetch_rollout_samples
from osmosis_store.codec import to_json_text
from osmosis_store.database import Database, HasDatabase, to_database
from osmosis_store.ids import new_id
from osmosis_store.leases import hold_lease
from osmosis_store.queries.grades import fetch_grades
from osmosis_store.queries.items import fetch_samples_by_rollout
from osmosis_store.queries.rollouts import (
    fetch_eval_run_rollouts,
    fetch_newest_eval_run,
    fetch_usage,
)
from osmosis_store.queries.workers import fetch_living_workers
from osmosis_store.records import (
    EvalRunRecord,
    GradeRecord,
    RolloutRecord,
    SampleRecord,
    Usage,
)
from osmosis_store.versions import package_versions
from osmosis_store.writes.rollouts import hold_eval_run, insert_eval_run

__all__ = ["StoreArchive", "StoredEvalRun"]


class StoreArchive:
    """Eval runs in a store; implements `osmosis_ai.rollout.recording.RolloutArchive`.

    Args:
        store: An open `Store`, or the `Database` beneath one.
    """

    def __init__(self, store: Database | HasDatabase) -> None:
        self._database = to_database(store)

    async def open_eval_run(self, spec: EvalRunSpec, *, fresh: bool = False) -> StoredEvalRun:
        """Take up the newest eval run of `spec.config_path`, or start one.

        Raises:
            EvalRunChanged: Workflow, dataset or model differ from the stored ones.
            EvalRunBusy: Another living process holds it.
        """
        database = self._database
        lease = await hold_lease(database)
        new_eval_run_id = new_id("e_")

        def take(tx: Connection) -> tuple[str, bool]:
            living = {worker.worker_id: worker for worker in fetch_living_workers(tx)}
            found = None if fresh else fetch_newest_eval_run(tx, spec.config_path)
            if found is None:
                insert_eval_run(tx, _to_row(new_eval_run_id, spec), now=database.clock())
                hold_eval_run(tx, new_eval_run_id, worker_id=lease.worker_id)
                return new_eval_run_id, False
            if (holder := living.get(found.worker_id or "")) is not None:
                host = holder.host.split()[0]
                raise EvalRunBusy(found.eval_run_id, host=host, pid=holder.pid)
            if changed := _changes(found, spec):
                raise EvalRunChanged(spec.config_path, found.eval_run_id, changed)
            hold_eval_run(tx, found.eval_run_id, worker_id=lease.worker_id)
            return found.eval_run_id, True

        eval_run_id, resumed = await database.write(take)
        return StoredEvalRun(database, eval_run_id, spec.rollout_name, resumed=resumed)


class StoredEvalRun:
    """An eval run that this process holds; implements `osmosis_ai.rollout.recording.EvalRun`."""

    def __init__(
        self, database: Database, eval_run_id: str, rollout_name: str, *, resumed: bool
    ) -> None:
        self._database = database
        self._rollout_name = rollout_name
        self.eval_run_id = eval_run_id
        self.resumed = resumed
        self.recorder = StoreRecorder(database, eval_run_id=eval_run_id)
        self._closed = False

    def new_rollout_id(self, row_index: int, attempt: int, retry_no: int) -> str:
        """Return an id that is unique store-wide, sorts by time and names the row."""
        rollout_id = f"{new_id()}-{self._rollout_name}-{row_index}"
        rollout_id += f".a{attempt}" if attempt else ""
        return rollout_id + (f".r{retry_no}" if retry_no else "")

    async def fetch_rollouts(
        self, grader: type[Grader] | None, grader_config: GraderConfig | None
    ) -> list[StoredRollout]:
        """Return every stored rollout, by row, attempt and retry, with this grader's grades."""
        digest = (
            None
            if grader is None
            else (await asyncio.to_thread(identify_grader, grader, grader_config)).digest
        )
        return await self._database.read(
            partial(_fetch_rollouts, eval_run_id=self.eval_run_id, code_digest=digest)
        )

    async def fetch_samples(self, rollout_id: str) -> dict[str, RolloutSample]:
        """Return a rollout's stored samples in the order in which it registered them."""
        return await self._database.read(partial(fetch_rollout_samples, rollout_id=rollout_id))

    async def close(self) -> None:
        """Let go of the eval run; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        await self.recorder.close()
        await self._database.write(
            partial(
                hold_eval_run,
                eval_run_id=self.eval_run_id,
                worker_id=None,
                ended_at=self._database.clock(),
            )
        )


def _to_row(eval_run_id: str, spec: EvalRunSpec) -> dict[str, Any]:
    return {
        "eval_run_id": eval_run_id,
        "config_path": spec.config_path,
        "rollout_name": spec.rollout_name,
        "settings": to_json_text(dict(spec.settings)),
        "dataset_path": spec.dataset_path,
        "dataset_sha256": spec.dataset_sha256,
        "workflow": spec.workflow,
        "workflow_digest": spec.workflow_digest,
        "model": to_json_text(dict(spec.model)),
        "versions": to_json_text(package_versions()),
    }


def _changes(stored: EvalRunRecord, spec: EvalRunSpec) -> list[str]:
    """Name what makes this another eval run than the stored one."""
    found = []
    if (stored.workflow, stored.workflow_digest) != (spec.workflow, spec.workflow_digest):
        found.append("workflow")
    if stored.dataset_sha256 != spec.dataset_sha256:
        found.append("dataset")
    if stored.model != dict(spec.model):
        found.append("model")
    return found


def _fetch_rollouts(
    tx: Connection, eval_run_id: str, code_digest: str | None
) -> list[StoredRollout]:
    rollouts = fetch_eval_run_rollouts(tx, eval_run_id)
    usage = fetch_usage(tx, eval_run_id=eval_run_id)
    samples = fetch_samples_by_rollout(tx, eval_run_id=eval_run_id)
    grades: dict[str, list[GradeRecord]] = {}
    for grade in fetch_grades(tx, eval_run_id=eval_run_id):
        grades.setdefault(grade.rollout_id, []).append(grade)
    return [
        _to_stored(
            rollout,
            samples.get(rollout.rollout_id, ()),
            grades.get(rollout.rollout_id, ()),
            usage.get(rollout.rollout_id, Usage()),
            code_digest,
        )
        for rollout in rollouts
    ]


def _to_stored(
    rollout: RolloutRecord,
    samples: Sequence[SampleRecord],
    grades: Sequence[GradeRecord],
    usage: Usage,
    code_digest: str | None,
) -> StoredRollout:
    assert rollout.status != "open"  # an eval run has no open conversations
    heads = {sample.sample_id: sample.chain_head for sample in samples}
    # the newest comes last; one of other items or of another label says nothing
    current = {
        grade.sample_id: StoredGrade(reward=grade.reward, error=grade.error, removed=grade.removed)
        for grade in grades
        if code_digest is not None
        and grade.code_digest == code_digest
        and grade.chain_head == heads.get(grade.sample_id)
        and grade.label == rollout.label
    }
    return StoredRollout(
        rollout_id=rollout.rollout_id,
        row_index=rollout.row_index or 0,
        attempt=rollout.attempt,
        retry_no=rollout.retry_no,
        status=rollout.status,
        label=rollout.label,
        metadata=rollout.metadata,
        error_category=rollout.error_category,
        error_message=rollout.error_message,
        sample_ids=tuple(heads),
        grades=current,
        graded_before=bool(grades),
        usage=TokenUsage(
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        ),
        duration_s=rollout.duration_s,
    )
