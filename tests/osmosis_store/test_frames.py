"""Data frames of rollouts, items and grades."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest

from osmosis_store import Store, frames
from osmosis_store.database import Database
from osmosis_store.errors import ExtraMissing
from osmosis_store.records import NewGrade, Selection
from tests.osmosis_store.ledger import add_grades, add_rollout
from tests.osmosis_store.test_views import add_model_call

CALL = {"type": "function_call", "name": "add", "call_id": "c1", "arguments": "{ }"}


def dtypes(frame: pd.DataFrame) -> dict[str, str]:
    return {str(name): str(dtype) for name, dtype in frame.dtypes.items()}


async def fill(store: Store) -> None:
    database = store.database
    metadata = '{"b":1,"a":{"é":[1.0]}}'
    add_rollout(database, "a", "main", "other", label="1", metadata=metadata, row_index=3)
    add_rollout(database, "b", "main", status="failure", error_category="timeout")
    await store.session("a", "main").add_items([{"role": "user", "content": "é"}, CALL, CALL])
    await store.session("a", "main").pop_item()
    for tokens in (10, 20):
        add_model_call(database, "a", tokens)
    for reward, run in ((0.0, "g1"), (1.0, "g2")):
        add_grades(database, run, "a", NewGrade(sample_id="main", reward=reward, metrics={"x": 1}))
    add_grades(database, "g2", "a", NewGrade(sample_id="other", reward=0.5))
    add_grades(database, "g3", "b", NewGrade(sample_id="main", error="broken"), grader="g:Other")


@pytest.mark.parametrize("selection", [None, Selection(label="nobody has it")], ids=str)
async def test_an_empty_result_has_all_columns_and_dtypes(
    store: Store, selection: Selection | None
) -> None:
    if selection is not None:
        await fill(store)

    for frame, columns in (
        (await store.rollouts_df(selection), frames.ROLLOUT_COLUMNS),
        (await store.items_df(selection), frames.ITEM_COLUMNS),
        (await store.grades_df(selection), frames.GRADE_COLUMNS),
    ):
        assert len(frame) == 0
        assert dtypes(frame) == columns


async def test_rows_have_the_same_columns_and_dtypes(store: Store) -> None:
    await fill(store)

    assert dtypes(await store.rollouts_df()) == frames.ROLLOUT_COLUMNS
    assert dtypes(await store.items_df()) == frames.ITEM_COLUMNS
    assert dtypes(await store.grades_df()) == frames.GRADE_COLUMNS


async def test_a_rollout_has_its_counts_tokens_and_newest_rewards(store: Store) -> None:
    await fill(store)

    frame = (await store.rollouts_df()).set_index("rollout_id")

    names = ["sample_count", "live_item_count", "model_call_count", "input_tokens", "row_index"]
    assert list(frame.loc["a", names]) == [2, 2, 2, 30, 3]
    assert frame.loc["a", "reward"] == 0.75
    assert json.loads(frame.loc["a", "metadata"]) == {"b": 1, "a": {"é": [1.0]}}
    assert frame.loc["b", "error_category"] == "timeout"
    assert frame.loc["b", ["input_tokens", "reward", "duration_s", "label"]].isna().all()


async def test_items_are_the_live_ones_as_they_are_stored(store: Store) -> None:
    await fill(store)

    frame = await store.items_df(Selection(sample="main"))

    assert list(frame["seq"]) == [0, 1]
    assert list(frame["tool_name"].fillna("")) == ["", "add"]
    assert frame["body"][0] == '{"role":"user","content":"é"}'
    assert frame["created_at"].dt.tz is not None


async def test_grades_are_all_there_and_the_newest_of_each_grader_is_marked(store: Store) -> None:
    await fill(store)

    frame = await store.grades_df()

    assert list(frame["grading_run_id"]) == ["g1", "g2", "g2", "g3"]
    assert list(frame["is_current"]) == [False, True, True, True]
    assert list(frame["reward"].fillna(-1)) == [0.0, 1.0, 0.5, -1]
    assert json.loads(frame["metrics"][0]) == {"x": 1}
    one = await store.grades_df(Selection(sample="other"))
    assert list(one["reward"]) == [0.5]


async def test_many_rollouts_come_in_chunks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_CHUNK", 3)
    for at in range(7):
        add_rollout(store.database, f"r{at}", label="even" if at % 2 == 0 else None)

    frame = await store.rollouts_df()

    assert list(frame["rollout_id"]) == [f"r{at}" for at in range(7)]
    assert list(frame.index) == list(range(7))
    assert dtypes(frame) == frames.ROLLOUT_COLUMNS
    assert len(await store.rollouts_df(Selection(label="even"))) == 4


async def test_without_pandas_the_error_says_what_to_install(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(ExtraMissing, match="data frames need the package pandas") as caught:
        await Store(sqlite_database).rollouts_df()

    assert caught.value.hint == "pip install 'osmosis-store[dataframes]'"
