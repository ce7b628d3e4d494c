import json
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.eval.errors import EvalError
from osmosis_ai.eval.result_files import SamplesFile, write_results


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def add(path: Path, rollout_id: str, **record: Any) -> None:
    with SamplesFile(path) as file:
        file.add(rollout_id, record)


def test_a_half_written_last_line_is_cut_off_and_earlier_ones_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    add(path, "r1", reward=1.0)
    with path.open("ab") as file:
        file.write(b'{"rollout_id": "r2", "rew')

    add(path, "r3", reward=0.0)

    assert [line["rollout_id"] for line in lines(path)] == ["r1", "r3"]


def test_a_rollout_is_written_again_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "samples.jsonl"
    for reward in (1.0, 1.0, 0.5):
        add(path, "r1", reward=reward)

    assert [line["reward"] for line in lines(path)] == [1.0, 0.5]


def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text("not ours\n")

    with pytest.raises(EvalError, match="line 1 is not a line of samples"):
        add(path, "r1")
    assert path.read_text() == "not ours\n"


def test_results_replace_the_earlier_ones_and_leave_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out" / "results.json"
    write_results(path, {"a": 1})
    write_results(path, {"a": 2})

    assert json.loads(path.read_text()) == {"a": 2}
    assert list(path.parent.iterdir()) == [path]
