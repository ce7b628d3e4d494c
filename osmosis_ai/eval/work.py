"""The work of an eval run: grading stored rollouts, and running new ones at a local endpoint."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from osmosis_ai.eval.chat import UpstreamError
from osmosis_ai.eval.config import EvalConfig
from osmosis_ai.eval.endpoint import Endpoint
from osmosis_ai.eval.entrypoint import Entrypoint
from osmosis_ai.eval.errors import ProviderError
from osmosis_ai.eval.events import EvalEvent, RolloutEnded, RolloutRegraded
from osmosis_ai.eval.plan import Slot
from osmosis_ai.eval.policy import load_policy
from osmosis_ai.rollout.backend.local.backend import LocalBackend
from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.grading import grade_samples
from osmosis_ai.rollout.recording import EvalRun, GradeReport, StoredRollout
from osmosis_ai.rollout.types import (
    ExecutionOutcome,
    ExecutionRequest,
    GraderStatus,
    RolloutStatus,
)

__all__ = ["EvalWork"]

T = TypeVar("T")

INTEGRATION = "osmosis_ai.rollout.integrations.agents.openai_agents"
ROLLOUT_MODEL = "osmosis_ai.rollout.integrations.agents.endpoint_model"


class EvalWork:
    """What one command does on an open eval run.

    Attributes:
        concurrency: How many rollouts run at once.
        errors: By row and attempt, why a rollout of this command failed or was not graded.
        upstream_calls: Model calls so far, the preflight apart.
    """

    def __init__(
        self,
        config: EvalConfig,
        entrypoint: Entrypoint,
        run: EvalRun,
        on_event: Callable[[EvalEvent], None],
    ) -> None:
        self._config, self._entrypoint = config, entrypoint
        self._run, self._on_event = run, on_event
        self._backend = LocalBackend(
            workflow=entrypoint.workflow,
            workflow_config=entrypoint.workflow_config,
            grader=entrypoint.grader,
            grader_config=entrypoint.grader_config,
            recorder=run.recorder,
        )
        # A rollout that waited in the backend's queue would use up its own deadline there.
        self.concurrency = min(
            config.batch_size, self._backend.max_concurrency or config.batch_size
        )
        self.errors: dict[tuple[int, int], str] = {}
        self.upstream_calls = 0
        self._refusal: UpstreamError | None = None
        self._workers: list[asyncio.Task[None]] = []

    async def regrade(self, rollouts: Sequence[StoredRollout]) -> None:
        """Grade stored rollouts with the current grader; no model is called."""
        await self._each(rollouts, self._regrade)

    async def run_rollouts(self, slots: Sequence[Slot], environ: Mapping[str, str]) -> None:
        """Start the model's endpoint and run each slot; nothing is started for no slots.

        Raises:
            ProviderError: The model answers no call; rollouts that ran are cancelled.
        """
        if not slots:
            return
        policy = await asyncio.to_thread(load_policy, self._config, environ)
        await asyncio.to_thread(_import_rollout_model)
        loop = asyncio.get_running_loop()
        endpoint = Endpoint(
            policy, on_systemic=lambda error: loop.call_soon_threadsafe(self._stop, error)
        )
        try:
            async with endpoint:
                await self._each(slots, lambda slot: self._run_rollout(slot, endpoint))
        except UpstreamError as error:
            raise self._to_provider_error(error) from error
        finally:
            self.upstream_calls = endpoint.upstream_calls
        if self._refusal is not None:
            raise self._to_provider_error(self._refusal)

    async def _each(self, items: Sequence[T], work: Callable[[T], Awaitable[None]]) -> None:
        queue = iter(items)

        async def take_turns() -> None:
            for item in queue:
                await work(item)

        count = min(self.concurrency, len(items))
        self._workers = [asyncio.create_task(take_turns()) for _ in range(count)]
        if not self._workers:
            return
        try:
            await asyncio.wait(self._workers, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.wait(self._workers)
        for worker in self._workers:
            if not worker.cancelled():
                worker.result()

    def _stop(self, error: UpstreamError) -> None:
        # Cancelled before the refusal reaches them, rollouts stay pending instead of failing.
        self._refusal = self._refusal or error
        for worker in self._workers:
            worker.cancel()

    async def _run_rollout(self, slot: Slot, endpoint: Endpoint) -> None:
        row = slot.row
        rollout_id = self._run.new_rollout_id(row.index, slot.attempt, slot.retry_no)
        request = ExecutionRequest(
            id=rollout_id,
            prompt=row.prompt,
            label=row.label,
            metadata=row.metadata,
            agent_timeout_sec=self._config.agent_workflow_timeout_s,
            grader_timeout_sec=self._config.grader_timeout_s,
            row_index=row.index,
            attempt=slot.attempt,
            retry_no=slot.retry_no,
        )
        context = RolloutContext(
            chat_completions_url=endpoint.url,
            api_key=endpoint.api_key,
            rollout_id=rollout_id,
            recorder=self._run.recorder,
        )
        with context:
            outcome = await self._backend.execute(request)
        error = _find_error(outcome)
        if error is not None:
            self.errors[row.index, slot.attempt] = error
        self._on_event(
            RolloutEnded(
                rollout_id=rollout_id, row_index=row.index, attempt=slot.attempt, error=error
            )
        )

    async def _regrade(self, rollout: StoredRollout) -> None:
        grader, grader_config = self._entrypoint.grader, self._entrypoint.grader_config
        assert grader is not None  # without one the plan grades nothing
        result = await grade_samples(
            grader,
            grader_config,
            samples=await self._run.fetch_samples(rollout.rollout_id),
            label=rollout.label,
            metadata=rollout.metadata,
            timeout_s=self._config.grader_timeout_s,
        )
        report = GradeReport(
            grader=grader,
            grader_config=grader_config,
            label=rollout.label,
            samples=result.samples,
            error=result.err_message,
            error_category=result.err_category,
            kind="regrade" if rollout.graded_before else "rollout",
        )
        await self._run.recorder.graded(rollout.rollout_id, report)
        self._on_event(
            RolloutRegraded(
                rollout_id=rollout.rollout_id,
                row_index=rollout.row_index,
                attempt=rollout.attempt,
                error=result.err_message,
            )
        )

    def _to_provider_error(self, error: UpstreamError) -> ProviderError:
        config = self._config
        hint = "check the network, and [llm] base_url where it is set"
        if error.status == 404:
            hint = "check [llm] model"
        elif error.systemic and config.api_key_env:
            hint = f"check the key in {config.api_key_env}, and whether it may use this model"
        elif error.systemic:
            hint = "name the variable that holds the key: [llm] api_key_env"
        return ProviderError(config.model, str(error), status=error.status, hint=hint)


def _import_rollout_model() -> None:
    """Import what the placeholder model needs: seconds that are not a rollout's own time."""
    if INTEGRATION in sys.modules:
        # Where LiteLLM is missing, a workflow may do without it; one that cannot says so itself.
        with suppress(ImportError):
            importlib.import_module(ROLLOUT_MODEL)


def _find_error(outcome: ExecutionOutcome) -> str | None:
    if outcome.workflow.status is not RolloutStatus.SUCCESS:
        return outcome.workflow.err_message
    if outcome.grader_status is GraderStatus.FAILURE:
        return f"grader: {outcome.grader.err_message}"
    return None
