"""Import of NeMo Gym's rollouts JSONL: one rollout, its items and its reward per line."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from osmosis_store.adapters.gym_lines import GymRollout, read_gym_line, read_gym_lines
from osmosis_store.codec import EncodedItem, encode_items, to_clean_text, to_json_text
from osmosis_store.database import Database
from osmosis_store.errors import RolloutExists
from osmosis_store.ids import new_id
from osmosis_store.records import NewGrade, NewGradingRun, SampleKey
from osmosis_store.versions import package_versions
from osmosis_store.writes.audit import append_audit
from osmosis_store.writes.grades import append_grades, end_grading_run, ensure_grading_run
from osmosis_store.writes.items import Append, append_items
from osmosis_store.writes.journal import insert_model_call
from osmosis_store.writes.rollouts import insert_rollout
from osmosis_store.writes.samples import ensure_sample

__all__ = ["SAMPLE_ID", "FileReport", "GymImport", "LineNote"]

SAMPLE_ID = "main"
"""The id of an imported rollout's one sample."""

_MAX_STEM_LENGTH = 80
_DIGEST_LENGTH = 12


class LineNote(NamedTuple):
    """Why a line was not imported; lines count from 1."""

    line: int
    reason: str


@dataclass
class FileReport:
    """What became of one file's lines.

    Attributes:
        imported: Ids of the rollouts that are new in the store.
        present_count: Lines whose rollout an earlier import stored.
        skipped: Lines that hold no rollout.
        refused: Lines that are not what the format says; nothing of such a line is stored.
    """

    path: Path
    imported: list[str] = field(default_factory=list)
    item_count: int = 0
    grade_count: int = 0
    present_count: int = 0
    skipped: list[LineNote] = field(default_factory=list)
    refused: list[LineNote] = field(default_factory=list)


class GymImport:
    """Imports files one after the other; each line is on disk before the next one is read.

    The same line of a file of the same name is the same rollout: importing it again stores
    nothing.

    Attributes:
        reports: One per file that was begun, also when an error ended the import.
    """

    def __init__(self, database: Database, *, on_line: Callable[[], None] = lambda: None) -> None:
        self.reports: list[FileReport] = []
        self._database, self._on_line = database, on_line
        self._grading_runs: dict[str, str] = {}

    def add_file(self, path: Path) -> FileReport:
        """Import a file; a line that cannot be is noted, and the others are imported.

        Raises:
            StoreError: The store cannot take it; the report says how far the file got.
            OSError: The file cannot be read.
        """
        report = FileReport(path)
        self.reports.append(report)
        for number, line in read_gym_lines(path):
            self._add_line(report, number, line)
            self._on_line()
        return report

    def close(self) -> None:
        """End the import's grading runs."""
        for grading_run_id in self._grading_runs.values():
            self._database.write_now(
                partial(
                    end_grading_run,
                    grading_run_id=grading_run_id,
                    now=self._database.clock(),
                )
            )
        self._grading_runs = {}

    def _add_line(self, report: FileReport, number: int, line: bytes) -> None:
        try:
            rollout = read_gym_line(line)
            encoded = [] if rollout is None else encode_items([*rollout.prompt, *rollout.output])
        except ValueError as error:  # ItemNotStorable is one
            report.refused.append(LineNote(number, str(error)))
            return
        if rollout is None:
            report.skipped.append(LineNote(number, "no response: a task, not a rollout"))
        else:
            self._store(report, number, rollout, encoded)

    def _store(
        self, report: FileReport, number: int, rollout: GymRollout, encoded: list[EncodedItem]
    ) -> None:
        rollout_id = _to_rollout_id(report.path, number, rollout)
        source = f"gym:{to_clean_text(rollout.agent or report.path.stem)}"
        write = partial(
            _insert,
            values=_to_row(rollout_id, source, rollout),
            rollout=rollout,
            encoded=encoded,
            place={"file": report.path.name, "line": number, "sha256": rollout.digest},
            grading=self._to_grading(source, report.path),
            now=self._database.clock(),
        )
        try:
            self._database.write_now(write)
        except RolloutExists:
            report.present_count += 1
            return
        report.imported.append(rollout_id)
        report.item_count += len(encoded)
        report.grade_count += rollout.reward is not None

    def _to_grading(self, grader: str, path: Path) -> tuple[str, NewGradingRun]:
        grading_run_id = self._grading_runs.setdefault(grader, new_id("g_"))
        reason = f"rewards of {to_clean_text(path.name)}"
        return grading_run_id, NewGradingRun(kind="imported", grader=grader, reason=reason)


def _insert(
    tx: Connection,
    *,
    values: dict[str, Any],
    rollout: GymRollout,
    encoded: list[EncodedItem],
    place: dict[str, Any],
    grading: tuple[str, NewGradingRun],
    now: dt.datetime,
) -> None:
    key = SampleKey(values["rollout_id"], SAMPLE_ID)
    insert_rollout(tx, values, now=now)
    append_audit(tx, "rollout.imported", rollout_id=key.rollout_id, detail=place, now=now)
    ensure_sample(tx, key, now=now)
    append_items(tx, [Append(key, encoded)], now=now)
    call = _to_model_call(key, rollout)
    if call is not None:
        insert_model_call(tx, call, **_to_seen(rollout), now=now)
    if rollout.reward is not None:
        grading_run_id, run = grading
        grade = NewGrade(sample_id=SAMPLE_ID, reward=rollout.reward, label=rollout.label)
        ensure_grading_run(tx, grading_run_id, run, versions=package_versions(), now=now)
        append_grades(tx, grading_run_id, {key.rollout_id: [grade]}, now=now)


def _to_rollout_id(path: Path, number: int, rollout: GymRollout) -> str:
    """Return the id that this line of a file of this name always gets."""
    stem = re.sub(r"[^\w.-]+", "-", to_clean_text(path.stem))[:_MAX_STEM_LENGTH]
    position = f"l{number:06}"
    if rollout.task_index is not None and rollout.attempt is not None:
        position = f"t{rollout.task_index:06}-r{rollout.attempt:03}"
    return f"gym-{stem}-{position}-{rollout.digest[:_DIGEST_LENGTH]}"


def _to_row(rollout_id: str, source: str, rollout: GymRollout) -> dict[str, Any]:
    row = {
        "rollout_id": rollout_id,
        "row_index": rollout.task_index,
        "attempt": rollout.attempt or 0,
        "workflow": source,
        "prompt": to_json_text(rollout.prompt),
        "label": rollout.label,
        "metadata": to_json_text(rollout.metadata),
        "ended_at": rollout.completed_at,
        **_to_outcome(rollout.response),
    }
    return row if rollout.created_at is None else {**row, "started_at": rollout.created_at}


def _to_outcome(response: dict[str, Any]) -> dict[str, Any]:
    """Return status and error as the response tells them; one that tells nothing succeeded."""
    error, status = response.get("error"), response.get("status")
    if error is None and status not in ("failed", "cancelled"):
        return {"status": "success"}
    message = error.get("message") if isinstance(error, dict) else error
    text = message if isinstance(message, str) else to_json_text(message or status)
    return {
        "status": "cancelled" if status == "cancelled" else "failure",
        "error_message": to_clean_text(text),
    }


def _to_model_call(key: SampleKey, rollout: GymRollout) -> dict[str, Any] | None:
    """Return the response as one model call, which carries its usage; None when it has none."""
    model, usage = rollout.response.get("model"), rollout.response.get("usage")
    if not isinstance(model, str) or not isinstance(usage, dict):
        return None
    response_id = rollout.response.get("id")
    return {
        **key._asdict(),
        "agent": rollout.agent,
        "model": to_clean_text(model),
        "settings": "{}",
        "input_item_count": len(rollout.prompt),
        "state": "saved",
        "answered_at": rollout.completed_at,
        "response_id": to_clean_text(response_id) if isinstance(response_id, str) else None,
        "input_tokens": _to_tokens(usage, "input_tokens"),
        "cached_tokens": _to_tokens(usage, "input_tokens_details", "cached_tokens"),
        "output_tokens": _to_tokens(usage, "output_tokens"),
        "reasoning_tokens": _to_tokens(usage, "output_tokens_details", "reasoning_tokens"),
        **({} if rollout.created_at is None else {"asked_at": rollout.created_at}),
    }


def _to_tokens(usage: dict[str, Any], *path: str) -> int | None:
    value: Any = usage
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, int) and 0 <= value < 2**63 else None


def _to_seen(rollout: GymRollout) -> dict[str, str | None]:
    """Return the instructions and tool schemas that the model saw, as texts."""
    params = rollout.metadata["responses_create_params"]
    instructions, tools = params.get("instructions"), params.get("tools")
    return {
        "instructions": to_clean_text(instructions) if isinstance(instructions, str) else None,
        "tools": to_json_text(tools) if tools else None,
    }
