import datetime as dt
import hashlib
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]  # has no stubs
import pyarrow.parquet  # type: ignore[import-untyped]  # has no stubs
import pytest

from osmosis_ai.eval.dataset import Dataset, load_dataset
from osmosis_ai.eval.errors import DatasetError


def load(folder: Path, name: str, content: str | bytes, **window: Any) -> Dataset:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return load_dataset(path, name=f"data/{name}", **window)


def parquet(folder: Path, name: str, rows: list[dict[str, Any]]) -> Dataset:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / name)
    return load_dataset(folder / name, name=name)


def test_a_row_becomes_prompt_label_and_metadata(tmp_path: Path) -> None:
    text = (
        '{"system_prompt": "Be brief.", "user_prompt": "1+1?", '
        '"ground_truth": "2", "metadata": {"a": 1}}\n'
    )

    dataset = load(tmp_path, "rows.jsonl", text)

    (row,) = dataset.rows
    assert row.prompt == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1?"},
    ]
    assert (row.index, row.label, row.metadata) == (0, "2", {"a": 1})
    assert dataset.sha256 == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("rest", "label", "metadata"),
    [
        ("", None, None),
        (', "label": "2"', "2", None),
        (', "ground_truth": ""', "", None),
        (', "ground_truth": null, "label": "2"', "2", None),
        (', "metadata": "{\\"a\\": 1}"', None, {"a": 1}),
        (', "metadata": {}', None, None),
        (', "metadata": "{}"', None, None),
    ],
)
def test_optional_cells(tmp_path: Path, rest: str, label: str | None, metadata: Any) -> None:
    (row,) = load(tmp_path, "rows.jsonl", '{"user_prompt": "x"' + rest + "}").rows

    assert (row.label, row.metadata) == (label, metadata)


def test_blank_lines_are_no_rows_and_an_error_names_row_and_line(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as caught:
        load(tmp_path, "rows.jsonl", '{"user_prompt": "a"}\n\n  \n{"user_prompt": 5}\n')

    assert (caught.value.row, caught.value.line) == (1, 4)
    assert str(caught.value) == "data/rows.jsonl row 1 (line 4): user_prompt is a number, not text"


def test_rows_keep_their_absolute_number_behind_an_offset(tmp_path: Path) -> None:
    text = "".join(f'{{"user_prompt": "{n}"}}\n' for n in range(6)) + "broken\n"

    rows = load(tmp_path, "rows.jsonl", text, offset=3, limit=2).rows

    assert [row.index for row in rows] == [3, 4]
    with pytest.raises(DatasetError, match=r"row 6 \(line 7\)"):
        load(tmp_path, "rows.jsonl", text, offset=5)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[1]", "is a list, not a JSON object"),
        ('{"ground_truth": "2"}', "has no user_prompt"),
        ('{"user_prompt": "x", "ground_truth": 2}', "ground_truth is a number, not text"),
        ('{"user_prompt": "x", "ground_truth": "2", "label": "3"}', "one thing"),
        ('{"user_prompt": "x", "metadata": [1]}', "metadata is a list, not an object"),
        ('{"user_prompt": "x", "metadata": "nope"}', "metadata is not JSON"),
        ('{"user_prompt": "x", "metadata": {"a": NaN}}', "NaN is not a JSON number"),
        ('{"user_prompt": "x", "user_prompt": "y"}', "appears twice"),
        ('{"user_prompt": "x", "label": "a\\u0000"}', "label holds NUL or a lone surrogate"),
        ('{"user_prompt": "x", "ground_truth": "\\ud800"}', "ground_truth holds NUL or a lone"),
        ('{"user_prompt": "x", "metadata": {"a": [1, 1e999]}}', r"metadata\.a\[1\] is inf"),
        ('{"user_prompt": "x", "metadata": "{\\"a\\": -1e999}"}', r"metadata\.a is -inf"),
        (f'{{"user_prompt": "x", "metadata": {{"a": {"9" * 5000}}}}}', r"5000 digits$"),
        (f'{{"user_prompt": "x", "other": {"[" * 3000}{"]" * 3000}}}', "row is nested too deep"),
        (f'{{"user_prompt": "x", "metadata": "{"[" * 3000}"}}', "metadata is nested too deep"),
        (f'{{"user_prompt": "x", "metadata": {{"a": {"[" * 300}{"]" * 300}}}}}', "100 levels"),
    ],
)
def test_a_broken_row_is_an_error(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(DatasetError, match=problem) as caught:
        load(tmp_path, "rows.jsonl", line)

    assert caught.value.row == 0


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_a_byte_order_mark_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(DatasetError, match="byte order mark"):
        load(tmp_path, name, b"\xef\xbb\xbfuser_prompt\nx\n")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_bytes_that_are_not_utf_8_are_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(DatasetError, match="UTF-8"):
        load(tmp_path, name, b'"user_prompt \xff"\n')


@pytest.mark.parametrize("cell", ["label", "metadata", "other"])
def test_a_csv_cell_that_is_not_utf_8_names_its_row_and_column(tmp_path: Path, cell: str) -> None:
    text = f"user_prompt,{cell}\nfirst,\nsecond,".encode() + b"caf\xe9\n"

    with pytest.raises(DatasetError, match=rf"row 1 \(line 3\): {cell} is not UTF-8 text"):
        load(tmp_path, "rows.csv", text)


def test_a_csv_header_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"\(line 1\): the column 'caf.*' is not UTF-8 text"):
        load(tmp_path, "rows.csv", b"user_prompt,caf\xe9\nx,y\n")


def test_csv_rows_may_span_lines_and_empty_cells_are_none(tmp_path: Path) -> None:
    text = 'user_prompt,ground_truth,metadata\n"a\nb",2,"{""k"": 1}"\nc,,\n'

    first, second = load(tmp_path, "rows.csv", text).rows

    assert (first.prompt[0]["content"], first.label, first.metadata) == ("a\nb", "2", {"k": 1})
    assert (second.label, second.metadata) == (None, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('user_prompt,label\n"a\nb",1\nx,1,2,3\n', r"row 1 \(line 4\): has 2 more cells"),
        ("user_prompt,label\nx\n", r"row 0 \(line 2\): has fewer cells"),
        ('user_prompt\n"x\n', r"row 0 \(line 2\): is not CSV"),
        ("label,label\nx,y\n", "names a column twice"),
        ("", "has no rows"),
    ],
)
def test_broken_csv_is_an_error(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(DatasetError, match=problem):
        load(tmp_path, "rows.csv", text)


def test_parquet_rows_are_read_with_object_metadata(tmp_path: Path) -> None:
    rows = parquet(
        tmp_path, "rows.parquet", [{"user_prompt": "x", "label": "1", "metadata": {"k": [1]}}]
    ).rows

    assert (rows[0].label, rows[0].metadata) == ("1", {"k": [1]})


def test_a_parquet_cell_that_is_not_text_names_its_row(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"rows.parquet row 0: label is a number, not text"):
        parquet(tmp_path, "rows.parquet", [{"user_prompt": "x", "label": 1}])


@pytest.mark.parametrize("value", [float("nan"), b"x", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)])
def test_parquet_metadata_that_json_cannot_hold_names_row_and_key(
    tmp_path: Path, value: object
) -> None:
    with pytest.raises(DatasetError, match=r"row 0: metadata\.k is "):
        parquet(tmp_path, "rows.parquet", [{"user_prompt": "x", "metadata": {"k": value}}])


def test_a_file_that_only_claims_to_be_parquet_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is not a parquet file"):
        load(tmp_path, "rows.parquet", "nope")


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is neither"):
        load(tmp_path, "rows.json", "{}")


def test_an_offset_behind_the_last_row_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no row from offset 4 on"):
        load(tmp_path, "rows.jsonl", '{"user_prompt": "x"}\n', offset=4)
