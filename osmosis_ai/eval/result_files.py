"""The files an eval run leaves: results as one JSON object, samples as JSON lines."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from osmosis_ai.eval.errors import EvalError

__all__ = ["RESULTS_NAME", "SAMPLES_NAME", "SamplesFile", "write_results"]

RESULTS_NAME = "results.json"
SAMPLES_NAME = "samples.jsonl"


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Write results so that a reader finds the old file or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(results, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(path)


class SamplesFile:
    """An append-only file of rollouts with their samples; a context manager.

    A later line about a rollout replaces an earlier one. Opening it cuts off a last line that an
    interrupted process left half-written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digests: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = self.path.open("a+b")
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, rollout_id: str, record: Mapping[str, Any]) -> None:
        """Append a rollout unless its last line says the same."""
        line = json.dumps({"rollout_id": rollout_id, **record}).encode() + b"\n"
        digest = hashlib.sha256(line).digest()
        if self._digests.get(rollout_id) != digest:
            self._file.write(line)
            self._digests[rollout_id] = digest

    def _read(self) -> None:
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                self._file.truncate(end)
                break
            end += len(line)
            self._digests[self._parse_id(number, line)] = hashlib.sha256(line).digest()

    def _parse_id(self, number: int, line: bytes) -> str:
        try:
            return str(json.loads(line)["rollout_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise EvalError(
                f"{self.path} line {number} is not a line of samples",
                hint="move the file away, or name another folder with --output-path",
            ) from error
