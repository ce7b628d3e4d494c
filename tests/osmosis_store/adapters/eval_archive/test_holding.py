import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

import pytest

from osmosis_ai.eval.errors import EvalRunBusy
from osmosis_ai.rollout.recording import EvalRunSpec, RolloutStart
from osmosis_store.adapters.eval_archive import StoreArchive, StoredEvalRun
from osmosis_store.database import Database
from osmosis_store.engine import parse_url
from osmosis_store.queries.rollouts import fetch_eval_run

from .reading import counts, grades_of, gradings_of, rollouts_of
from .workspace import MAIN_PATH, Workspace

SPEC = EvalRunSpec(
    config_path="/workspace/configs/eval/x.toml",
    rollout_name="x",
    settings={},
    dataset_path="data/x.jsonl",
    dataset_sha256="00",
    workflow="rollouts.x.main:X",
    workflow_digest="00",
    model={"model": "scripted"},
)

HOLDER = """\
import asyncio, sys
from osmosis_ai.rollout.recording import EvalRunSpec, RolloutStart
from osmosis_store.adapters.eval_archive import StoreArchive
from osmosis_store.database import Database
from osmosis_store.engine import parse_url

async def main():
    database = Database.open(parse_url(sys.argv[1]), create=False)
    run = await StoreArchive(database).open_eval_run({spec})
    for row in range(2):
        start = RolloutStart(
            rollout_id=f"row-{{row}}", prompt=[], workflow="x:X", label="2", row_index=row
        )
        await run.recorder.rollout_started(start)
        if row == 0:
            await run.recorder.samples_collected("row-0", {{}})
            await run.recorder.rollout_finished("row-0")
    print("holding", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@contextmanager
def holder(url: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds the eval run, with one finished rollout and one that runs."""
    command = [sys.executable, "-c", HOLDER.format(spec=SPEC), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "holding\n"
            yield process
        finally:
            process.kill()


async def open_run(database: Database, *, fresh: bool = False) -> StoredEvalRun:
    return await StoreArchive(database).open_eval_run(SPEC, fresh=fresh)


async def test_a_second_process_is_told_who_holds_it_until_the_first_is_killed(
    store_url: str,
) -> None:
    database = Database.open(parse_url(store_url), create=False)
    with closing(database), holder(store_url) as process:
        with pytest.raises(EvalRunBusy) as busy:
            await open_run(database)
        assert busy.value.pid == process.pid
        assert f"process {process.pid} on" in str(busy.value)
        process.send_signal(signal.SIGKILL)
        process.wait()

        run = await asyncio.wait_for(open_run(database), timeout=5)
        found = await run.fetch_rollouts(None, None)

    assert run.resumed
    assert run.eval_run_id == busy.value.eval_run_id
    assert [(one.row_index, one.status) for one in found] == [(0, "success"), (1, "crashed")]


async def test_what_another_process_runs_is_running_to_a_reader(
    sqlite_store_url: str, sqlite_database: Database
) -> None:
    with holder(sqlite_store_url):
        found = await rollouts_of(sqlite_database)

    assert [one.status for one in found] == ["success", "running"]


async def test_another_eval_run_can_be_started_beside_a_held_one(
    sqlite_store_url: str, sqlite_database: Database
) -> None:
    first = await open_run(sqlite_database)
    other = Database.open(parse_url(sqlite_store_url), create=False)
    second = await open_run(other, fresh=True)

    assert second.eval_run_id != first.eval_run_id
    await first.close()
    await second.close()
    other.close()


async def test_closing_lets_go_of_it_and_can_be_done_twice(sqlite_database: Database) -> None:
    run = await open_run(sqlite_database)
    with pytest.raises(EvalRunBusy):
        await open_run(sqlite_database)
    await run.close()
    again = await open_run(sqlite_database)
    await run.close()

    with pytest.raises(EvalRunBusy):
        await open_run(sqlite_database)
    assert again.eval_run_id == run.eval_run_id


async def test_closing_the_store_lets_go_of_it(
    sqlite_store_url: str, sqlite_database: Database
) -> None:
    other = Database.open(parse_url(sqlite_store_url), create=False)
    await open_run(other)
    other.close()

    assert (await open_run(sqlite_database)).resumed


async def test_ids_of_one_row_differ_and_sort_by_time(sqlite_database: Database) -> None:
    run = await open_run(sqlite_database)
    ids = []
    for _ in range(20):
        ids.append(run.new_rollout_id(0, 0, 0))
        await asyncio.sleep(0.002)

    assert len(set(ids)) == 20
    assert ids == sorted(ids)


async def test_a_rollout_is_filed_under_its_eval_run_row_and_attempt(
    sqlite_database: Database,
) -> None:
    run = await open_run(sqlite_database)
    start = RolloutStart(
        rollout_id="r", prompt=[], workflow="x:X", row_index=3, attempt=1, retry_no=2
    )
    await run.recorder.rollout_started(start)

    (found,) = await rollouts_of(sqlite_database)
    assert (found.eval_run_id, found.row_index) == (run.eval_run_id, 3)
    assert (found.attempt, found.retry_no) == (1, 2)


async def test_an_eval_run_keeps_what_it_was_made_of(sqlite_database: Database) -> None:
    run = await open_run(sqlite_database)
    kept = await sqlite_database.read(partial(fetch_eval_run, eval_run_id=run.eval_run_id))

    assert (kept.config_path, kept.dataset_sha256) == (SPEC.config_path, SPEC.dataset_sha256)
    assert (kept.workflow, kept.model) == (SPEC.workflow, SPEC.model)
    assert kept.ended_at is None
    assert "osmosis-store" in kept.versions


async def test_postgresql_runs_resumes_and_grades_again(
    workspace: Workspace, postgres_database: Database
) -> None:
    first = await workspace.run(postgres_database, {"limit": 2})
    second = await workspace.run(postgres_database)
    workspace.edit(MAIN_PATH, "== ctx.label)", "!= ctx.label)")
    third = await workspace.run(postgres_database)

    assert [counts(one) for one in (first, second, third)] == [(2, 0, 0), (1, 2, 0), (0, 3, 3)]
    assert workspace.take_ran() == ["1", "2", "3"]
    assert [one.passed_count for one in (first, second, third)] == [2, 2, 1]
    assert await gradings_of(postgres_database) == ["rollout", "rollout", "regrade"]
    rewards = [grade.reward for grade in await grades_of(postgres_database)]
    assert rewards == [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
