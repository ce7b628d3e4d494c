"""`StoreRecorder`: what a backend reports of a rollout, written down as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from sqlalchemy.engine import Connection

from osmosis_ai.rollout.recording import (
    GradeReport,
    ModelAnswer,
    ModelAsk,
    RolloutEnd,
    RolloutStart,
)
from osmosis_ai.rollout.types import RolloutSample, RolloutStatus
from osmosis_store.adapters.error_text import to_error_text
from osmosis_store.adapters.osmosis_grader import folder_of, identify_grader, to_new_grades
from osmosis_store.adapters.samples import STORE_FIELD
from osmosis_store.codec import EncodedItem, encode_items, to_clean_text, to_json_text
from osmosis_store.database import Database, HasDatabase, to_database
from osmosis_store.errors import LabelNotStorable, RolloutExists
from osmosis_store.ids import new_id, require_id
from osmosis_store.leases import hold_lease
from osmosis_store.queries.rollouts import fetch_rollout
from osmosis_store.records import NewGradingRun, SampleKey
from osmosis_store.versions import code_versions
from osmosis_store.writes.grades import append_grades, end_grading_run, ensure_grading_run
from osmosis_store.writes.items import Append, append_items
from osmosis_store.writes.journal import end_model_call, insert_model_call
from osmosis_store.writes.rollouts import (
    finish_rollout,
    insert_rollout,
    order_samples,
    set_extra_fields,
)
from osmosis_store.writes.samples import ensure_sample

__all__ = ["StoreRecorder"]

_UNSUCCESSFUL = ("failure", "cancelled", "crashed")


@dataclass
class _Running:
    """What the recorder knows of a rollout that this process runs.

    Attributes:
        sessions: Samples that a SQL session writes itself.
        unsaved: By sample, model calls whose output no session has yet: number and bodies.
    """

    sessions: set[str] = field(default_factory=set)
    unsaved: dict[str, list[tuple[int, list[str]]]] = field(default_factory=dict)


class StoreRecorder:
    """Records rollouts in a store, in an eval run or in training.

    Implements `osmosis_ai.rollout.RolloutRecorder`: each method returns when what it was told is
    on disk, and raises `StoreError` when it could not be stored.

    Args:
        store: An open `Store`, or the `Database` beneath one.
        eval_run_id: The eval run that the rollouts belong to; None: none, as in training.
    """

    def __init__(self, store: Database | HasDatabase, *, eval_run_id: str | None = None) -> None:
        self.database = to_database(store)
        self.eval_run_id = eval_run_id
        self._running: dict[str, _Running] = {}
        self._renamed: dict[str, str] = {}
        self._grading_runs: dict[tuple[str, str], str] = {}
        self._versions: dict[str, dict[str, Any]] = {}

    def stored_id(self, rollout_id: str) -> str:
        """Return the id under which a rollout that this recorder was told of is stored."""
        return self._renamed.get(rollout_id, rollout_id)

    def expect_session(self, rollout_id: str, sample_id: str) -> None:
        """Note that a session writes this sample's items itself."""
        self._of(rollout_id).sessions.add(sample_id)

    def match_calls(
        self, rollout_id: str, sample_id: str, items: Sequence[EncodedItem]
    ) -> tuple[list[int], list[int | None]]:
        """Find the model calls that gave these items.

        Returns:
            The calls whose whole output is among them, and for each item its call or None.
        """
        unsaved = self._of(rollout_id).unsaved.get(sample_id, [])
        saved: list[int] = []
        numbers: list[int | None] = [None] * len(items)
        for call_no, bodies in unsaved:
            places = _find_in_order(bodies, items)
            if places is not None:
                saved.append(call_no)
                for place in places:
                    numbers[place] = call_no
        return saved, numbers

    def forget_calls(self, rollout_id: str, sample_id: str, saved: Iterable[int]) -> None:
        """Note that a session has the output of these calls."""
        unsaved = self._of(rollout_id).unsaved
        done = set(saved)
        unsaved[sample_id] = [one for one in unsaved.get(sample_id, []) if one[0] not in done]

    async def rollout_started(self, start: RolloutStart) -> None:
        """Store the rollout's row and take its lease.

        Raises:
            RolloutExists: The id is taken by a rollout that runs or succeeded. After one that
                failed, this is its next retry and gets an id of its own.
            LabelNotStorable
        """
        require_id("rollout id", start.rollout_id)
        if start.label is not None and to_clean_text(start.label) != start.label:
            raise LabelNotStorable(start.rollout_id, start.label)
        lease = await hold_lease(self.database)
        values = {
            "eval_run_id": self.eval_run_id,
            "row_index": start.row_index,
            "attempt": start.attempt,
            "workflow": start.workflow,
            "prompt": to_json_text(start.prompt),
            "label": start.label,
            "metadata": None if start.metadata is None else to_json_text(dict(start.metadata)),
            "status": "running",
            "worker_id": lease.worker_id,
            "lease_epoch": 1,
        }
        clock = self.database.clock

        def insert(tx: Connection) -> str:
            rollout_id, retry_no = _free_id(tx, start)
            row = {**values, "rollout_id": rollout_id, "retry_no": retry_no}
            insert_rollout(tx, row, now=clock())
            return rollout_id

        self._running[start.rollout_id] = _Running()
        stored_id = await self.database.write(insert)
        if stored_id != start.rollout_id:
            self._renamed[start.rollout_id] = stored_id

    async def model_asked(self, rollout_id: str, ask: ModelAsk) -> int:
        """Store the intent of a model call and return its number in the rollout."""
        values = {
            "rollout_id": self.stored_id(rollout_id),
            "sample_id": ask.sample_id,
            "agent": to_clean_text(ask.agent),
            "model": to_clean_text(ask.model),
            "settings": to_json_text(dict(ask.settings)),
            "input_item_count": len(ask.input),
        }
        tools = to_json_text([dict(tool) for tool in ask.tools]) if ask.tools else None
        now = self.database.clock()
        return await self.database.write(
            partial(
                insert_model_call,
                values=values,
                instructions=to_clean_text(ask.instructions),
                tools=tools,
                now=now,
            )
        )

    async def model_answered(self, rollout_id: str, call_no: int, answer: ModelAnswer) -> None:
        """Store the answer; the journal keeps it until the session has the same items."""
        encoded = encode_items(answer.output)
        values = {
            "state": "answered",
            "response_id": to_clean_text(answer.response_id),
            "output": "[" + ",".join(item.body for item in encoded) + "]",
            **asdict(answer.usage),
        }
        sample_id = await self._end_call(rollout_id, call_no, values)
        unsaved = self._of(rollout_id).unsaved.setdefault(sample_id, [])
        unsaved.append((call_no, [item.body for item in encoded]))

    async def model_failed(self, rollout_id: str, call_no: int, error: BaseException) -> None:
        """Store why a model call gave no answer."""
        text = to_error_text(f"{type(error).__name__}: {error}")
        await self._end_call(rollout_id, call_no, {"state": "failed", "error": text})

    async def _end_call(self, rollout_id: str, call_no: int, values: dict[str, Any]) -> str:
        now = self.database.clock()
        return await self.database.write(
            partial(
                end_model_call,
                rollout_id=self.stored_id(rollout_id),
                call_no=call_no,
                values=values,
                now=now,
            )
        )

    async def samples_collected(
        self, rollout_id: str, samples: Mapping[str, RolloutSample]
    ) -> None:
        """Store what no session has stored, and the order of the samples.

        Raises:
            ItemNotStorable: A message would not come back equal; nothing of the call is stored.
        """
        stored_id, sessions = self.stored_id(rollout_id), self._of(rollout_id).sessions
        encoded = {
            sample_id: encode_items(sample.messages)
            for sample_id, sample in samples.items()
            if sample_id not in sessions
        }
        extras = {sample_id: _extra_fields(sample) for sample_id, sample in samples.items()}
        clock = self.database.clock

        def store(tx: Connection) -> None:
            now = clock()
            for sample_id in samples:
                key = SampleKey(stored_id, require_id("sample id", sample_id))
                ensure_sample(tx, key, now=now)
                if encoded.get(sample_id):
                    append_items(
                        tx, [self._to_append(rollout_id, key, encoded[sample_id])], now=now
                    )
                if (extra := extras[sample_id]) is not None:
                    set_extra_fields(tx, *key, extra)
            order_samples(tx, stored_id, list(samples))

        await self.database.write(store)

    def _to_append(self, rollout_id: str, key: SampleKey, items: list[EncodedItem]) -> Append:
        saved, numbers = self.match_calls(rollout_id, key.sample_id, items)
        return Append(key, items, saved_calls=saved, call_numbers=numbers)

    async def rollout_finished(self, rollout_id: str) -> None:
        """Mark the rollout a success."""
        await self._finish(rollout_id, {"status": "success"})

    async def rollout_failed(self, rollout_id: str, end: RolloutEnd) -> None:
        """Mark the rollout failed or cancelled, with category, message and traceback."""
        status = "cancelled" if end.status is RolloutStatus.CANCELLED else "failure"
        values = {
            "status": status,
            "error_category": None if end.error_category is None else str(end.error_category),
            "error_message": to_error_text(end.error_message),
            "error_traceback": to_error_text(end.error_traceback),
        }
        await self._finish(rollout_id, values)

    async def _finish(self, rollout_id: str, values: dict[str, Any]) -> None:
        lease = await hold_lease(self.database)
        await self.database.write(
            partial(
                finish_rollout,
                rollout_id=self.stored_id(rollout_id),
                now=self.database.clock(),
                worker_id=lease.worker_id,
                lease_epoch=1,
                **values,
            )
        )
        self._running.pop(rollout_id, None)

    async def graded(self, rollout_id: str, report: GradeReport) -> None:
        """Add a grade for each sample of the rollout to the ledger."""
        identity = identify_grader(report.grader, report.grader_config)
        run_id = self._grading_runs.setdefault((report.kind, identity.digest), new_id("g_"))
        run = NewGradingRun(
            kind=report.kind,
            grader=identity.reference,
            code_digest=identity.digest,
            code_covers=identity.covers,
            config=identity.config,
            eval_run_id=self.eval_run_id,
        )
        stored_id, new, clock = (
            self.stored_id(rollout_id),
            to_new_grades(report),
            self.database.clock,
        )
        versions = self._versions.get(run_id)
        if versions is None:
            versions = await asyncio.to_thread(code_versions, folder_of(report.grader))
            self._versions[run_id] = versions

        def store(tx: Connection) -> None:
            now = clock()
            ensure_grading_run(tx, run_id, run, versions=versions, now=now)
            append_grades(tx, run_id, {stored_id: new}, now=now)

        await self.database.write(store)

    async def close(self) -> None:
        """End this recorder's grading runs."""
        runs, self._grading_runs = self._grading_runs, {}
        for run_id in runs.values():
            await self.database.write(
                partial(
                    end_grading_run,
                    grading_run_id=run_id,
                    now=self.database.clock(),
                )
            )

    def _of(self, rollout_id: str) -> _Running:
        return self._running.setdefault(rollout_id, _Running())


def _free_id(tx: Connection, start: RolloutStart) -> tuple[str, int]:
    """Return the id and retry number under which a starting rollout can be stored."""
    rollout_id, retry_no = start.rollout_id, start.retry_no
    while True:
        try:
            taken = fetch_rollout(tx, rollout_id)
        except LookupError:
            return rollout_id, retry_no
        if taken.status not in _UNSUCCESSFUL or taken.eval_run_id is not None:
            raise RolloutExists(start.rollout_id)
        retry_no = taken.retry_no + 1
        rollout_id = f"{start.rollout_id}.r{retry_no}"


def _find_in_order(bodies: list[str], items: Sequence[EncodedItem]) -> list[int] | None:
    """Return where all the bodies stand among the items, in their order; None when they do not."""
    places, at = [], 0
    for body in bodies:
        while at < len(items) and items[at].body != body:
            at += 1
        if at == len(items):
            return None
        places.append(at)
        at += 1
    return places


def _extra_fields(sample: RolloutSample) -> str | None:
    extra = {
        name: value
        for name, value in sample.json_safe_copy().extra_fields.items()
        if name != STORE_FIELD
    }
    return to_json_text(extra) if extra else None
