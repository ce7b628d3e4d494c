"""`osmosis eval run` as a function: resume what is stored, run and grade the rest, report."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from osmosis_ai.eval.config import EvalConfig
from osmosis_ai.eval.dataset import Dataset, load_dataset
from osmosis_ai.eval.entrypoint import Entrypoint, load_entrypoint
from osmosis_ai.eval.errors import EvalError
from osmosis_ai.eval.events import EvalEvent, RunOpened
from osmosis_ai.eval.plan import Plan, make_plan, pick_newest
from osmosis_ai.eval.policy import describe_policy, identify_policy
from osmosis_ai.eval.report import EvalReport, Verdict, judge_missing, judge_rollout, summarise
from osmosis_ai.eval.result_files import RESULTS_NAME, SAMPLES_NAME, SamplesFile, write_results
from osmosis_ai.eval.upstream import close_clients
from osmosis_ai.eval.work import EvalWork
from osmosis_ai.rollout.recording import EvalRun, EvalRunSpec, RolloutArchive, StoredRollout
from osmosis_ai.rollout.utils.digest import code_digest
from osmosis_ai.rollout.utils.traces import send_no_traces

__all__ = ["run_eval"]

RESULTS_DIR = Path(".osmosis", "results")
_ROLLOUT_MODEL = "osmosis_ai.rollout.integrations.agents.model"


def _ignore(event: EvalEvent) -> None:
    pass


async def run_eval(
    config: EvalConfig,
    archive: RolloutArchive,
    *,
    environ: Mapping[str, str],
    on_event: Callable[[EvalEvent], None] = _ignore,
) -> EvalReport:
    """Bring an eval run to its end, from wherever earlier commands left it.

    Finished rollouts are not run again, stored ones that the current grader has not graded are
    graded without a model, and a model is started only when a rollout has to run. A cancelled
    call leaves its unfinished rollouts to the next one.

    Args:
        archive: Where rollouts are kept.
        environ: Where the key of `[llm] api_key_env` is looked up.
        on_event: Told what happens; called in this event loop.

    Raises:
        EvalError: Dataset, entry point, script, key or model is not usable, or the stored eval
            run is of other parts or in use. Rollouts that a refusing model cut short stay pending.
    """
    started = time.monotonic()
    dataset, entrypoint = _load_parts(config)
    run = await archive.open_eval_run(_to_spec(config, dataset, entrypoint), fresh=config.fresh)
    try:
        stored = await run.fetch_rollouts(entrypoint.grader, entrypoint.grader_config)
        plan = make_plan(
            stored,
            dataset.rows,
            n=config.n,
            retry_failed=config.retry_failed,
            has_grader=entrypoint.grader is not None,
        )
        work = EvalWork(config, entrypoint, run, on_event)
        on_event(_to_opened(config, run, plan, work.concurrency))
        await work.regrade(plan.to_grade)
        await work.run_rollouts(plan.to_run, environ)
        results = _Results(config, entrypoint, dataset, run)
        return await results.report(plan, work, started)
    finally:
        await close_clients()  # the rollout model's
        await run.close()


def _load_parts(config: EvalConfig) -> tuple[Dataset, Entrypoint]:
    send_no_traces()
    dataset = load_dataset(
        config.dataset,
        name=config.shorten(config.dataset),
        offset=config.offset,
        limit=config.limit,
    )
    entrypoint = load_entrypoint(
        config.entrypoint,
        rollout_dir=config.rollout_dir,
        name=config.shorten(config.entrypoint),
    )
    _require_model_client()
    return dataset, entrypoint


def _require_model_client() -> None:
    """Check for what a workflow's rollout model will need, before each row fails for it."""
    if _ROLLOUT_MODEL in sys.modules and importlib.util.find_spec("litellm") is None:
        raise EvalError(
            "the workflow's model needs the package litellm, which is not installed",
            hint="pip install 'osmosis-store[litellm]'",
        )


def _to_spec(config: EvalConfig, dataset: Dataset, entrypoint: Entrypoint) -> EvalRunSpec:
    digest = code_digest(entrypoint.workflow, entrypoint.workflow_config, root=config.workspace)
    return EvalRunSpec(
        config_path=str(config.config_path),
        rollout_name=config.rollout,
        settings=config.to_settings(),
        dataset_path=config.shorten(config.dataset),
        dataset_sha256=dataset.sha256,
        workflow=entrypoint.workflow_path,
        workflow_digest=digest.digest,
        model=identify_policy(config),
    )


def _to_opened(config: EvalConfig, run: EvalRun, plan: Plan, concurrency: int) -> RunOpened:
    return RunOpened(
        eval_run_id=run.eval_run_id,
        resumed=run.resumed,
        policy=describe_policy(config),
        selected_count=len(plan.to_run) + plan.reused_count,
        reused_count=plan.reused_count,
        regrade_count=len(plan.to_grade),
        run_count=len(plan.to_run),
        concurrency=concurrency,
    )


class _Results:
    """Judges what the archive has after the work and writes the result files."""

    def __init__(
        self, config: EvalConfig, entrypoint: Entrypoint, dataset: Dataset, run: EvalRun
    ) -> None:
        self._config, self._entrypoint = config, entrypoint
        self._dataset, self._run = dataset, run
        folder = config.output_path or config.workspace / RESULTS_DIR / run.eval_run_id
        self._results_path = folder / RESULTS_NAME
        self._samples_path = folder / SAMPLES_NAME if config.log_samples else None

    async def report(self, plan: Plan, work: EvalWork, started: float) -> EvalReport:
        stored = await self._run.fetch_rollouts(
            self._entrypoint.grader, self._entrypoint.grader_config
        )
        newest = pick_newest(stored, self._dataset.rows, self._config.n)
        verdicts = [
            self._judge(newest, row.index, attempt, work.errors.get((row.index, attempt)))
            for row in self._dataset.rows
            for attempt in range(self._config.n)
        ]
        report = EvalReport(
            eval_run_id=self._run.eval_run_id,
            resumed=self._run.resumed,
            policy=describe_policy(self._config),
            grader=self._entrypoint.grader_path,
            run_count=len(plan.to_run),
            reused_count=plan.reused_count,
            regraded_count=len(plan.to_grade),
            upstream_calls=work.upstream_calls,
            duration_s=time.monotonic() - started,
            results_path=self._results_path,
            samples_path=self._samples_path,
            **summarise(verdicts),
        )
        if self._samples_path is not None:
            await self._write_samples(self._samples_path, list(newest.values()))
        settings = {"config": str(self._config.config_path), **self._config.to_settings()}
        write_results(self._results_path, {"settings": settings, **report.to_json()})
        return report

    def _judge(
        self,
        newest: Mapping[tuple[int, int], StoredRollout],
        row_index: int,
        attempt: int,
        error: str | None,
    ) -> Verdict:
        rollout = newest.get((row_index, attempt))
        if rollout is None:
            return judge_missing(row_index, attempt, error)
        return judge_rollout(
            rollout,
            pass_threshold=self._config.pass_threshold,
            has_grader=self._entrypoint.grader is not None,
            error=error,
        )

    async def _write_samples(self, path: Path, rollouts: list[StoredRollout]) -> None:
        with SamplesFile(path) as file:
            for rollout in rollouts:
                samples = await self._run.fetch_samples(rollout.rollout_id)
                file.add(rollout.rollout_id, self._to_record(rollout, samples))

    def _to_record(self, rollout: StoredRollout, samples: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "eval_run_id": self._run.eval_run_id,
            "row_index": rollout.row_index,
            "attempt": rollout.attempt,
            "retry_no": rollout.retry_no,
            "status": rollout.status,
            "error": rollout.error_message,
            "label": rollout.label,
            "metadata": rollout.metadata,
            "samples": {key: sample.messages for key, sample in samples.items()},
            "grades": {key: asdict(grade) for key, grade in rollout.grades.items()},
        }
