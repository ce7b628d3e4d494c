"""Importing on every database, and import that is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_store.adapters.gym import GymImport
from osmosis_store.database import Database
from osmosis_store.engine import parse_url
from osmosis_store.queries.grades import fetch_grades, fetch_grading_runs
from osmosis_store.queries.rollouts import fetch_rollouts
from osmosis_store.records import Selection

GYM = Path(__file__).parents[2] / "data/gym"
FILES = sorted(GYM.glob("*.jsonl"))
IMPORT = """
import sys
from pathlib import Path
from osmosis_store.adapters import gym
from osmosis_store.database import Database
from osmosis_store.engine import parse_url

gym._SLICE_COUNT = 10
url, path = sys.argv[1:]
database = Database.open(parse_url(url), create=False)
say = lambda done, total: print(done, flush=True)
gym.GymImport(database, on_progress=say).add_file(Path(path))
"""


def write(path: Path, *, rows: int) -> Path:
    with path.open("w") as file:
        for at in range(rows):
            data = {
                "responses_create_params": {"input": f"question {at}"},
                "response": {"output": [{"role": "assistant", "content": "2"}]},
                "reward": at % 2,
            }
            file.write(json.dumps(data) + "\n")
    return path


def import_all(database: Database, *paths: Path) -> GymImport:
    gym = GymImport(database)
    for path in paths:
        gym.add_file(path)
    gym.close()
    return gym


def test_the_same_rows_come_in_on_every_database(database: Database) -> None:
    first = import_all(database, *FILES)
    again = import_all(database, *FILES)

    rows = sum(len(file.read_text().splitlines()) for file in FILES)
    with database.reading() as tx:
        assert len(fetch_rollouts(tx, Selection())) == rows
        assert len(fetch_grades(tx)) == sum(one.grade_count for one in first.reports)
        assert all(run.kind == "imported" and run.ended_at for run in fetch_grading_runs(tx))
    assert [one.imported_count for one in again.reports] == [0] * len(FILES)
    assert sum(one.present_count for one in again.reports) == rows


def test_an_import_that_was_killed_goes_on_and_stores_nothing_twice(
    store_url: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "f.jsonl", rows=2000)
    process = subprocess.Popen(
        [sys.executable, "-c", IMPORT, store_url, str(path)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()

    database = Database.open(parse_url(store_url), create=False)
    with database.reading() as tx:
        kept = len(fetch_rollouts(tx, Selection()))
        (stopped,) = fetch_grading_runs(tx)
    report = import_all(database, path).reports[0]
    with database.reading() as tx:
        grades = fetch_grades(tx)
        (run,) = fetch_grading_runs(tx)
        rollouts = fetch_rollouts(tx, Selection())
    database.close()

    assert 30 <= kept < 2000
    assert kept % 10 == 0
    assert stopped.ended_at is None
    assert (report.present_count, report.imported_count) == (kept, 2000 - kept)
    assert len(rollouts) == len(grades) == run.graded_count == 2000
    assert run.grading_run_id == stopped.grading_run_id
    assert run.ended_at is not None


def test_a_reader_sees_a_slice_whole_or_not_at_all(
    sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_store.adapters.gym._SLICE_COUNT", 7)
    path = write(tmp_path / "f.jsonl", rows=20)
    seen: list[tuple[int, int]] = []

    def look(done: int, total: int | None) -> None:
        with sqlite_database.reading() as tx:
            seen.append((len(fetch_rollouts(tx, Selection())), len(fetch_grades(tx))))

    GymImport(sqlite_database, on_progress=look).add_file(path)

    assert seen == [(7, 7), (14, 14)]


def test_progress_is_told_in_bytes_of_the_file(
    sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_store.adapters.gym._SLICE_COUNT", 10)
    path = write(tmp_path / "f.jsonl", rows=500)
    told: list[tuple[int, int | None]] = []

    GymImport(sqlite_database, on_progress=lambda *at: told.append(at)).add_file(path)

    assert told == sorted(told)
    assert {total for _, total in told} == {path.stat().st_size}
    assert told[-1][0] == path.stat().st_size


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(sqlite_store_url: str, tmp_path: Path) -> None:
    def peak_kb(rows: int) -> int:
        path = write(tmp_path / f"{rows}.jsonl", rows=rows)
        code = IMPORT + "import resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        done = subprocess.run(
            [sys.executable, "-c", code, sqlite_store_url, str(path)],
            capture_output=True,
            check=True,
        )
        return int(done.stdout.split()[-1])

    assert peak_kb(8000) < peak_kb(500) + 8000


def test_a_dry_run_stores_nothing(sqlite_database: Database, tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", rows=3)
    report = GymImport(sqlite_database, dry_run=True).add_file(path)

    assert (report.imported_count, report.grade_count) == (3, 3)
    with sqlite_database.reading() as tx:
        assert fetch_rollouts(tx, Selection()) == []
