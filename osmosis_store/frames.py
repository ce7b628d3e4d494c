"""Rollouts, items and grades as pandas data frames, read in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection

from osmosis_store.database import Database
from osmosis_store.errors import ExtraMissing
from osmosis_store.queries.frames import fetch_grade_rows, fetch_item_rows, fetch_rollout_rows
from osmosis_store.queries.rollouts import fetch_rollout_ids
from osmosis_store.records import Selection

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "GRADE_COLUMNS",
    "ITEM_COLUMNS",
    "ROLLOUT_COLUMNS",
    "read_grades",
    "read_items",
    "read_rollouts",
]

_TIME = "datetime64[us, UTC]"
_CHUNK = 500

ROLLOUT_COLUMNS = {
    "rollout_id": "string",
    "eval_run_id": "string",
    "row_index": "Int64",
    "attempt": "int64",
    "retry_no": "int64",
    "workflow": "string",
    "label": "string",
    "status": "string",
    "error_category": "string",
    "error_message": "string",
    "started_at": _TIME,
    "ended_at": _TIME,
    "duration_s": "float64",
    "sample_count": "int64",
    "live_item_count": "int64",
    "model_call_count": "int64",
    "input_tokens": "Int64",
    "cached_tokens": "Int64",
    "output_tokens": "Int64",
    "reasoning_tokens": "Int64",
    "reward": "float64",
    "metadata": "string",
}
"""Column and dtype; `reward` is the mean of what the samples were given last, `metadata` JSON."""

ITEM_COLUMNS = {
    "rollout_id": "string",
    "sample_id": "string",
    "seq": "int64",
    "type": "string",
    "role": "string",
    "tool_name": "string",
    "call_id": "string",
    "call_no": "Int64",
    "created_at": _TIME,
    "recovered": "bool",
    "body": "string",
}
"""Column and dtype; `body` is the item as JSON, byte for byte as it is stored."""

GRADE_COLUMNS = {
    "rollout_id": "string",
    "sample_id": "string",
    "grade_no": "int64",
    "grading_run_id": "string",
    "grader": "string",
    "kind": "string",
    "code_digest": "string",
    "author": "string",
    "reward": "float64",
    "error": "string",
    "removed": "bool",
    "metrics": "string",
    "explanation": "string",
    "label": "string",
    "created_at": _TIME,
    "is_current": "bool",
}
"""Column and dtype; `is_current`: the grader's newest of the sample; `metrics` is JSON."""


async def read_rollouts(database: Database, selection: Selection) -> pd.DataFrame:
    """Return the selected rollouts by id, with the columns of `ROLLOUT_COLUMNS`.

    Raises:
        ExtraMissing: pandas is not installed.
    """
    frame = await _read(database, selection, fetch_rollout_rows, ROLLOUT_COLUMNS)
    frame["duration_s"] = (frame["ended_at"] - frame["started_at"]).dt.total_seconds()
    return frame


async def read_items(database: Database, selection: Selection) -> pd.DataFrame:
    """Return the live items of the selected rollouts, with the columns of `ITEM_COLUMNS`.

    Raises:
        ExtraMissing: pandas is not installed.
    """
    fetch = partial(fetch_item_rows, sample_id=selection.sample)
    return await _read(database, selection, fetch, ITEM_COLUMNS)


async def read_grades(database: Database, selection: Selection) -> pd.DataFrame:
    """Return every grade of the selected rollouts, with the columns of `GRADE_COLUMNS`.

    Raises:
        ExtraMissing: pandas is not installed.
    """
    fetch = partial(fetch_grade_rows, sample_id=selection.sample)
    return await _read(database, selection, fetch, GRADE_COLUMNS)


async def _read(
    database: Database,
    selection: Selection,
    fetch: Callable[[Connection, Sequence[str]], list[dict[str, Any]]],
    columns: Mapping[str, str],
) -> pd.DataFrame:
    pandas = await asyncio.to_thread(_import_pandas)
    parts = [_to_frame(pandas, [], columns)]
    last: str | None = None

    def read_chunk(tx: Connection) -> tuple[Sequence[str], pd.DataFrame]:
        ids = fetch_rollout_ids(tx, selection, after=last, limit=_CHUNK)
        return ids, _to_frame(pandas, fetch(tx, ids) if ids else [], columns)

    while True:
        ids, part = await database.read(read_chunk)
        parts.append(part)
        if len(ids) < _CHUNK:
            break
        last = ids[-1]
    frame: pd.DataFrame = await asyncio.to_thread(pandas.concat, parts, ignore_index=True)
    return frame


def _import_pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ExtraMissing("data frames", "pandas", "dataframes") from error
    return pandas


def _to_frame(
    pandas: Any, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]
) -> pd.DataFrame:
    """Return rows as columns of these very dtypes; a value that no row has is missing."""
    return pandas.DataFrame(  # type: ignore[no-any-return]  # pandas is imported late
        {
            name: pandas.Series([row.get(name) for row in rows], dtype=dtype)
            for name, dtype in columns.items()
        }
    )
