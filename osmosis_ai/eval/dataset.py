"""Dataset rows from .jsonl, .csv and .parquet files; an error names the absolute row."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from osmosis_ai.eval.errors import DatasetError

__all__ = ["Dataset", "DatasetRow", "load_dataset"]

BOM = b"\xef\xbb\xbf"
NO_PYARROW = "install osmosis-store[parquet], or convert the file to .jsonl"
CELL_LIMIT = 2**31 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DEPTH = 100
_SHOWN = 80


@dataclass(frozen=True, kw_only=True)
class DatasetRow:
    """One row as a rollout needs it.

    Attributes:
        index: The row's number in the whole file, from 0.
        prompt: Chat messages: the system prompt where there is one, and the user prompt.
        label: The ground truth; None where the row has none. An empty text is a
            label, an empty CSV cell is none.
        metadata: None where the row has none or an empty object.
    """

    index: int
    prompt: list[dict[str, Any]]
    label: str | None
    metadata: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The rows of one eval run, and the digest of the file's bytes in hexadecimal."""

    rows: list[DatasetRow]
    sha256: str


@dataclass(frozen=True)
class _Place:
    path: str
    row: int
    line: int | None

    def error(self, problem: str, hint: str = "") -> DatasetError:
        return DatasetError(self.path, problem, row=self.row, line=self.line, hint=hint)


_RawRow: TypeAlias = "tuple[_Place, Mapping[str, Any] | str]"


def load_dataset(path: Path, *, name: str, offset: int = 0, limit: int | None = None) -> Dataset:
    """Read a dataset's rows from `offset` on; rows outside the window are not checked.

    Args:
        name: The path as error texts show it.
        limit: How many rows; None: all.

    Raises:
        DatasetError: The file or a row is not usable, or the window holds no row.
    """
    reader = {".jsonl": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}.get(path.suffix)
    if reader is None:
        raise DatasetError(name, "is neither .jsonl nor .csv nor .parquet")
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    stop = None if limit is None else min(offset + limit, sys.maxsize)
    rows = [_to_row(place, raw) for place, raw in islice(reader(path, name), offset, stop)]
    if not rows:
        raise DatasetError(name, f"has no row from offset {offset} on" if offset else "has no rows")
    return Dataset(rows=rows, sha256=sha256)


def _read_jsonl(path: Path, name: str) -> Iterator[_RawRow]:
    with path.open("rb") as file:
        row = 0
        for line, raw in enumerate(file, start=1):
            if line == 1 and raw.startswith(BOM):
                raise DatasetError(
                    name, "starts with a byte order mark", hint="save it as UTF-8 without BOM"
                )
            if raw.strip():
                place = _Place(name, row, line)
                yield place, _decode(place, raw)
                row += 1


def _decode(place: _Place, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise place.error(f"is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _read_csv(path: Path, name: str) -> Iterator[_RawRow]:
    with path.open("rb") as binary:
        if binary.read(len(BOM)) == BOM:
            raise DatasetError(
                name, "starts with a byte order mark", hint="save it as UTF-8 without BOM"
            )
    csv.field_size_limit(CELL_LIMIT)
    # a byte that is no UTF-8 becomes a lone surrogate, so that the cell that holds it can be named
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        columns = _read_header(reader, name)
        if len(set(columns)) < len(columns):
            raise DatasetError(name, f"names a column twice: {', '.join(columns)}")
        place = _Place(name, 0, reader.line_num + 1)
        while (cells := _next_cells(reader, place)) is not None:
            # An empty cell is how CSV says that there is no value.
            yield place, {column: cell or None for column, cell in cells.items()}
            place = _Place(name, place.row + 1, reader.line_num + 1)


def _read_header(reader: csv.DictReader[str], name: str) -> list[str]:
    try:
        columns = list(reader.fieldnames or ())
    except csv.Error as error:
        raise DatasetError(name, f"is not CSV: {error}") from error
    for column in columns:
        if not _is_text(column):
            raise DatasetError(name, f"the column {column!r} is not UTF-8 text", line=1)
    return columns


def _next_cells(reader: csv.DictReader[str], place: _Place) -> Mapping[str, str] | None:
    try:
        cells = next(reader, None)
    except csv.Error as error:
        raise place.error(f"is not CSV: {error}") from error
    if cells is None:
        return None
    if None in cells:
        extra = len(cells[None])  # csv.DictReader's key for a surplus
        raise place.error(f"has {extra} more cells than the header has columns")
    if None in cells.values():
        raise place.error("has fewer cells than the header has columns")
    for column, cell in cells.items():
        if not _is_text(cell):
            raise place.error(f"{column} is not UTF-8 text: {cell[:_SHOWN]!r}")
    return cells


def _is_text(text: str) -> bool:
    """Whether a text is made of characters: none of it is half of a surrogate pair."""
    return text.isascii() or not _SURROGATE.search(text)


def _read_parquet(path: Path, name: str) -> Iterator[_RawRow]:
    try:
        from pyarrow import ArrowInvalid, parquet  # type: ignore[import-untyped]  # has no stubs
    except ModuleNotFoundError as error:
        raise DatasetError(name, "needs the package pyarrow", hint=NO_PYARROW) from error
    try:
        with parquet.ParquetFile(path) as file:
            row = 0
            for batch in file.iter_batches():
                for cells in batch.to_pylist():
                    yield _Place(name, row, None), cells
                    row += 1
    except ArrowInvalid as error:
        raise DatasetError(name, f"is not a parquet file: {error}") from error


def _to_row(place: _Place, raw: Mapping[str, Any] | str) -> DatasetRow:
    cells = _parse_object(place, "the row", raw) if isinstance(raw, str) else raw
    user_prompt = _text(place, cells, "user_prompt")
    if not user_prompt:
        raise place.error(
            "has no user_prompt", hint=f"columns: {', '.join(map(str, cells)) or 'none'}"
        )
    prompt = [{"role": "user", "content": user_prompt}]
    if system_prompt := _text(place, cells, "system_prompt"):
        prompt.insert(0, {"role": "system", "content": system_prompt})
    return DatasetRow(
        index=place.row, prompt=prompt, label=_label(place, cells), metadata=_metadata(place, cells)
    )


def _text(place: _Place, cells: Mapping[str, Any], key: str) -> str | None:
    value = cells.get(key)
    if value is not None and not isinstance(value, str):
        raise place.error(f"{key} is {_kind(value)}, not text", hint="write it as a text")
    return value


def _label(place: _Place, cells: Mapping[str, Any]) -> str | None:
    ground_truth, label = _text(place, cells, "ground_truth"), _text(place, cells, "label")
    if ground_truth is not None and label is not None and ground_truth != label:
        raise place.error("has a ground_truth and another label; they are one thing: keep one")
    for key in ("ground_truth", "label"):
        text = cells.get(key) or ""
        if "\0" in text or not _is_text(text):
            raise place.error(f"{key} holds NUL or a lone surrogate, which cannot be stored")
    return label if ground_truth is None else ground_truth


def _metadata(place: _Place, cells: Mapping[str, Any]) -> dict[str, Any] | None:
    value = cells.get("metadata")
    if value is None or value == "":
        return None
    if isinstance(value, str):
        value = _parse_object(place, "metadata", value)
    if not isinstance(value, Mapping):
        raise place.error(f"metadata is {_kind(value)}, not an object")
    _require_json(place, "metadata", value, depth=0)
    return dict(value) or None


def _require_json(place: _Place, path: str, value: Any, *, depth: int) -> None:
    """Check that a value can be stored and copied."""
    if depth > _MAX_DEPTH:
        raise place.error(f"{path[:_SHOWN]}… is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        for key, part in value.items():
            _require_json(place, f"{path}.{key}", part, depth=depth + 1)
    elif isinstance(value, list):
        for at, part in enumerate(value):
            _require_json(place, f"{path}[{at}]", part, depth=depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise place.error(f"{path} is {value}: not a number that JSON has, or one that is too big")
    elif value is not None and not isinstance(value, str | int | float):
        raise place.error(f"{path} is {_kind(value)}, which JSON cannot hold")


def _parse_object(place: _Place, what: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except ValueError as error:  # also an integer of thousands of digits
        raise place.error(f"{what} is not JSON: {str(error).split(';')[0]}") from error
    except RecursionError:
        raise place.error(f"{what} is nested too deep") from None
    if not isinstance(value, dict):
        raise place.error(f"{what} is {_kind(value)}, not a JSON object")
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(k for k in keys if keys.count(k) > 1)!r} appears twice")
    return value


def _kind(value: Any) -> str:
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")
