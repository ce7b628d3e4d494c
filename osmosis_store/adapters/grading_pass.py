"""One rollout SDK grader as a pass over stored samples, policy and network refused."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from osmosis_ai.rollout.context import GradingScope
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.grading import run_grader
from osmosis_ai.rollout.types import GraderConfig, RolloutSample
from osmosis_ai.rollout.utils.error_message import error_message
from osmosis_store.adapters.osmosis_grader import to_new_grade
from osmosis_store.adapters.samples import require_readable, to_rollout_samples
from osmosis_store.database import Database
from osmosis_store.errors import CorruptItem
from osmosis_store.network_guard import NetworkGuard
from osmosis_store.queries.grading import GradableRollout
from osmosis_store.regrade_passes import GradedRollout, JoinedItems
from osmosis_store.regrade_report import JudgeTokens

__all__ = ["GraderPass"]

_JUDGE_METRICS = ("judge_input_tokens", "judge_output_tokens")
"""Under these a grader with a client of its own may say what its judge used for a sample."""


class GraderPass:
    """Grades the samples of one rollout after the other, and raises for nothing a grader does.

    Args:
        database: Asked only which row it is that cannot be read.
        timeout_s: Seconds that the grader may take for one rollout; None: no limit.
    """

    def __init__(
        self,
        database: Database,
        guard: NetworkGuard,
        grader: type[Grader],
        config: GraderConfig | None,
        *,
        timeout_s: float | None,
    ) -> None:
        self._database, self._guard = database, guard
        self._grader, self._config, self._timeout_s = grader, config, timeout_s

    async def grade(self, rollout: GradableRollout, joined: JoinedItems) -> GradedRollout:
        """Return a grade for every sample: a reward, an error, or that it is removed."""
        try:
            samples = to_rollout_samples(rollout, joined)
        except (ValueError, RecursionError) as unreadable:
            return GradedRollout.failed(rollout, await self._which_row(rollout, unreadable))
        scope = GradingScope()
        metadata = None if rollout.metadata is None else copy.deepcopy(rollout.metadata)
        error = await self._run(samples, rollout.label, metadata, scope)
        grades = [
            to_new_grade(
                one.key.sample_id,
                samples[one.key.sample_id],
                label=rollout.label,
                error=error,
                graded_head=one.chain_head,
            )
            for one in rollout.samples
        ]
        return GradedRollout(grades, scope.policy_calls_refused, _judge_tokens(scope, samples))

    async def _run(
        self,
        samples: dict[str, RolloutSample],
        label: str | None,
        metadata: dict[str, Any] | None,
        scope: GradingScope,
    ) -> str | None:
        """Run the grader; return why none of its rewards counts."""
        if not samples:
            return "no sample to reward: the rollout produced none"
        stop = _Stop()
        with self._guard.watching(stop.from_any_thread) as watch:
            try:
                with stop.once():
                    await run_grader(
                        self._grader,
                        self._config,
                        samples=samples,
                        label=label,
                        metadata=metadata,
                        scope=scope,
                        timeout_s=self._timeout_s,
                    )
            except (asyncio.CancelledError, KeyboardInterrupt):
                raise
            except BaseException as error:  # whatever a grader raises is its sample's error
                return watch.error or _describe(error)
            return watch.error

    async def _which_row(self, rollout: GradableRollout, error: Exception) -> str:
        try:
            await self._database.read(partial(require_readable, rollout=rollout))
        except CorruptItem as found:
            return str(found)
        return str(error)


class _Stop:
    """Ends a grading whose result is void already: a client may go on trying for a while."""

    def __init__(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._is_over = self._is_asked = False

    def from_any_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._is_over and self._task is not None:
            self._is_asked = True
            self._task.cancel()

    @contextmanager
    def once(self) -> Iterator[None]:
        """Take our own cancellation for the end of the block; anybody else's goes on."""
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_asked or (self._task is not None and self._task.cancelling() > 1):
                raise
        finally:
            self._is_over = True
            if self._is_asked and self._task is not None:
                self._task.uncancel()


def _describe(error: BaseException) -> str:
    """Return an error's text, or its type where it has none or cannot say it."""
    try:
        return error_message(error)
    except Exception:
        return type(error).__name__


def _judge_tokens(scope: GradingScope, samples: Mapping[str, RolloutSample]) -> JudgeTokens | None:
    """Return what the grader's own model used, as our judge client or its metrics say."""
    if scope.judge_calls_without_usage:
        return None
    totals, is_known = [scope.judge_input_tokens, scope.judge_output_tokens], scope.judge_calls > 0
    for sample in samples.values():
        told = [sample.metrics.get(name) for name in _JUDGE_METRICS]
        if not scope.judge_calls and all(isinstance(one, int) for one in told):
            totals = [total + int(one or 0) for total, one in zip(totals, told, strict=True)]
            is_known = True
    return JudgeTokens(input_tokens=totals[0], output_tokens=totals[1]) if is_known else None
