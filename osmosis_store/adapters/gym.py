"""Import of NeMo Gym's rollouts JSONL: one rollout, its items and its reward per line."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from osmosis_store.adapters.gym_counts import Occurrences
from osmosis_store.adapters.gym_files import LineFile, RawLine, open_lines
from osmosis_store.adapters.gym_lines import GymRollout, read_gym_line
from osmosis_store.adapters.gym_rows import to_model_call, to_rollout_row, to_seen
from osmosis_store.codec import EncodedItem, encode_items, to_clean_text
from osmosis_store.database import Database
from osmosis_store.errors import RolloutExists
from osmosis_store.ids import new_id
from osmosis_store.queries.grades import fetch_grading_runs
from osmosis_store.queries.rollouts import fetch_rollout_ids
from osmosis_store.records import NewGrade, NewGradingRun, SampleKey, Selection
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
_DIGEST_LENGTH = 16
_SLICE_COUNT, _SLICE_BYTES = 100, 4 * 2**20


class LineNote(NamedTuple):
    """Why a line was not imported; lines count from 1."""

    line: int
    reason: str


@dataclass
class FileReport:
    """What became of one file's lines.

    Attributes:
        imported_count: Rollouts that are new in the store; in a dry run, that would be.
        item_count, grade_count: Of these.
        no_response_count: Those of these without a response: only what was asked is there.
        present_count: Lines whose rollout an earlier import stored.
        refused: Lines that are not what the format says; nothing of such a line is stored.
    """

    path: Path
    imported_count: int = 0
    item_count: int = 0
    grade_count: int = 0
    no_response_count: int = 0
    present_count: int = 0
    refused: list[LineNote] = field(default_factory=list)


class _Row(NamedTuple):
    """A line's rollout on its way into the store."""

    line: int
    rollout_id: str
    source: str
    values: dict[str, Any]
    rollout: GymRollout
    encoded: list[EncodedItem]


class GymImport:
    """Imports files one after the other, in slices of lines that are on disk together.

    A rollout's id is made of its file's name and its line's content: importing the same file
    again stores nothing, after an edit only the lines that changed; a line that stands in a
    file twice is two rollouts. What was stopped goes on when it is imported again.

    Args:
        database: None: there is no store yet; for a dry run only.
        dry_run: Reads and checks everything and stores nothing.
        on_progress: Told after each slice how many bytes of the file were read, and of how many;
            None: nobody knows.

    Attributes:
        reports: One per file that was begun, also when an error ended the import.
    """

    def __init__(
        self,
        database: Database | None,
        *,
        dry_run: bool = False,
        on_progress: Callable[[int, int | None], None] = lambda done, total: None,
    ) -> None:
        self.reports: list[FileReport] = []
        self._database, self._dry_run, self._on_progress = database, dry_run, on_progress
        self._grading_runs: dict[str, str] = {}

    def add_file(self, path: Path) -> FileReport:
        """Import a file, plain or gzipped, or standard input for `-`.

        A line that cannot be imported is noted, and the others are imported.

        Raises:
            StoreError: The store cannot take it; the report says how far the file got.
            OSError: The file cannot be read.
        """
        with open_lines(path) as file:
            report = FileReport(file.path)
            self.reports.append(report)
            self._add_lines(report, file)
        return report

    def close(self) -> None:
        """End the import's grading runs."""
        for grading_run_id in self._grading_runs.values():
            self._write(end_grading_run, grading_run_id=grading_run_id)
        self._grading_runs = {}

    def _write(self, write: Callable[..., Any], **arguments: Any) -> Any:
        assert self._database is not None  # only a dry run has none, and it writes nothing
        now = self._database.clock()
        return self._database.write_now(partial(write, **arguments, now=now))

    def _add_lines(self, report: FileReport, file: LineFile) -> None:
        seen = Occurrences()
        waiting: list[_Row] = []
        size = 0
        try:
            for line in file.lines():
                row = _read(report, seen, line)
                if row is not None:
                    waiting.append(row)
                    size += len(line.text)
                if len(waiting) >= _SLICE_COUNT or size >= _SLICE_BYTES:
                    self._store(report, waiting)
                    waiting, size = [], 0
                    self._on_progress(file.position, file.size)
            self._store(report, waiting)
        finally:
            seen.close()

    def _store(self, report: FileReport, rows: Sequence[_Row]) -> None:
        if not rows:
            return
        if self._dry_run:
            known = self._find_known(row.rollout_id for row in rows)
            added = [row.rollout_id not in known for row in rows]
        else:
            gradings = {row.source: self._to_grading(row.source, report.path) for row in rows}
            file = to_clean_text(report.path.name)
            added = self._write(_insert, rows=rows, file=file, gradings=gradings)
        for row, is_new in zip(rows, added, strict=True):
            report.present_count += not is_new
            if is_new:
                report.imported_count += 1
                report.item_count += len(row.encoded)
                report.grade_count += row.rollout.reward is not None
                report.no_response_count += row.rollout.response is None

    def _find_known(self, rollout_ids: Iterable[str]) -> set[str]:
        if self._database is None:
            return set()
        with self._database.reading() as tx:
            return set(fetch_rollout_ids(tx, Selection(rollout=tuple(rollout_ids))))

    def _to_grading(self, source: str, path: Path) -> tuple[str, NewGradingRun]:
        reason = f"rewards of {to_clean_text(path.name)}"
        if source not in self._grading_runs:
            self._grading_runs[source] = self._find_unfinished(source, reason) or new_id("g_")
        run = NewGradingRun(kind="imported", grader=source, reason=reason)
        return self._grading_runs[source], run

    def _find_unfinished(self, source: str, reason: str) -> str | None:
        """Return the grading run that a stopped import of this file left open."""
        assert self._database is not None  # only a dry run has none, and it grades nothing
        with self._database.reading() as tx:
            for run in fetch_grading_runs(tx):
                if (run.kind, run.grader, run.reason) == ("imported", source, reason):
                    return run.grading_run_id if run.ended_at is None else None
        return None


def _read(report: FileReport, seen: Occurrences, line: RawLine) -> _Row | None:
    try:
        if line.fault is not None:
            raise ValueError(line.fault)
        rollout = read_gym_line(line.text)
        encoded = encode_items([*rollout.prompt, *rollout.output])
        source = f"gym:{rollout.agent or _to_stem(report.path)}"
        values = to_rollout_row(rollout, workflow=source, attempt=_to_attempt(rollout, seen))
    except ValueError as error:  # ItemNotStorable is one
        broken = "" if line.is_whole else "; the file breaks off in this line"
        report.refused.append(LineNote(line.number, f"{error}{broken}"))
        return None
    return _Row(
        line=line.number,
        rollout_id=_to_rollout_id(report.path, rollout, seen.count(rollout.digest)),
        source=source,
        values=values,
        rollout=rollout,
        encoded=encoded,
    )


def _insert(
    tx: Connection,
    *,
    rows: Sequence[_Row],
    file: str,
    gradings: dict[str, tuple[str, NewGradingRun]],
    now: dt.datetime,
) -> list[bool]:
    """Store the rollouts that are new, and return for each whether it was."""
    added = [_insert_rollout(tx, row, file=file, now=now) for row in rows]
    new = [row for row, is_new in zip(rows, added, strict=True) if is_new]
    appends = [
        Append(SampleKey(row.rollout_id, SAMPLE_ID), row.encoded) for row in new if row.encoded
    ]
    if appends:
        append_items(tx, appends, now=now)
    for source, (grading_run_id, run) in gradings.items():
        grades = {
            row.rollout_id: [
                NewGrade(sample_id=SAMPLE_ID, reward=row.rollout.reward, label=row.rollout.label)
            ]
            for row in new
            if row.source == source and row.rollout.reward is not None
        }
        if grades:
            ensure_grading_run(tx, grading_run_id, run, versions=package_versions(), now=now)
            append_grades(tx, grading_run_id, grades, now=now)
    return added


def _insert_rollout(tx: Connection, row: _Row, *, file: str, now: dt.datetime) -> bool:
    rollout, key = row.rollout, SampleKey(row.rollout_id, SAMPLE_ID)
    try:
        insert_rollout(tx, {"rollout_id": row.rollout_id, **row.values}, now=now)
    except RolloutExists:
        return False
    place = {"file": file, "line": row.line, "sha256": rollout.digest.hex()}
    append_audit(tx, "rollout.imported", rollout_id=row.rollout_id, detail=place, now=now)
    ensure_sample(tx, key, now=now)
    call = to_model_call(key, rollout)
    if call is not None:
        insert_model_call(tx, call, **to_seen(rollout), now=now)
    return True


def _to_rollout_id(path: Path, rollout: GymRollout, occurrence: int) -> str:
    """Return the id that this line of a file of this name always gets."""
    parts = ["gym", _to_stem(path)]
    if rollout.task_index is not None and rollout.attempt is not None:
        parts += [f"t{rollout.task_index:06}", f"r{rollout.attempt:03}"]
    parts.append(rollout.digest.hex()[:_DIGEST_LENGTH])
    if occurrence:
        parts.append(str(occurrence + 1))
    return "-".join(parts)


def _to_stem(path: Path) -> str:
    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
    return re.sub(r"[^\w.-]+", "-", to_clean_text(name))[:_MAX_STEM_LENGTH]


def _to_attempt(rollout: GymRollout, seen: Occurrences) -> int:
    """Return which attempt at its task it is: as the line says, else counted in its file."""
    if rollout.attempt is not None:
        return rollout.attempt
    task = repr(rollout.prompt if rollout.task_index is None else rollout.task_index)
    return seen.count(b"task" + sha256(task.encode("utf-8", "surrogatepass")).digest())
