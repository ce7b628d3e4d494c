"""Leases: a process's right to its rollouts, and what readers see when it is gone."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
import sqlalchemy as sa

from osmosis_store import Selection, Store
from osmosis_store.database import Database
from osmosis_store.engine import Options, parse_url
from osmosis_store.errors import StoreFull
from osmosis_store.leases import Lease, hold_lease
from osmosis_store.queries.workers import fetch_living_workers
from osmosis_store.schema import workers
from osmosis_store.version import __version__
from osmosis_store.writes.workers import renew_lease
from tests.osmosis_store.ledger import add_rollout
from tests.osmosis_store.programs import start_program

RUN = """
import asyncio, sys
from osmosis_store.database import Database
from osmosis_store.engine import Options, parse_url
from osmosis_store.errors import StoreFull
from osmosis_store.leases import hold_lease
from tests.osmosis_store.ledger import add_rollout

database = Database.open(parse_url(sys.argv[1]))
lease = asyncio.run(hold_lease(database))
add_rollout(database, "r", status="running", worker_id=lease.worker_id, lease_epoch=1)
print(lease.worker_id, flush=True)
sys.stdin.readline()
"""


def living(database: Database) -> list[str]:
    with database.reading() as tx:
        return [worker.worker_id for worker in fetch_living_workers(tx)]


async def status_of(database: Database, rollout_id: str) -> str:
    return (await Store(database).rollout(rollout_id)).rollout.status


async def test_a_process_has_one_lease_on_a_store_however_often_it_asks(
    database: Database,
) -> None:
    leases = await asyncio.gather(*(hold_lease(database) for _ in range(5)))

    assert len({id(lease) for lease in leases}) == 1
    with database.reading() as tx:
        (row,) = tx.execute(sa.select(workers)).mappings()
    assert (row["worker_id"], row["pid"], row["version"]) == (
        leases[0].worker_id,
        os.getpid(),
        __version__,
    )
    assert (row["lease_until"] - row["started_at"]).total_seconds() >= 60


async def test_a_lease_that_could_not_begin_begins_the_next_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise StoreFull("the disk")

    with monkeypatch.context() as broken:
        broken.setattr("osmosis_store.leases.insert_worker", fail)
        with pytest.raises(StoreFull):
            await hold_lease(database)
    assert living(database) == []

    lease = await hold_lease(database)
    assert living(database) == [lease.worker_id]


async def test_a_lease_is_over_when_the_store_closes(database: Database, store_url: str) -> None:
    lease = await hold_lease(database)
    add_rollout(database, "r", status="running", worker_id=lease.worker_id, lease_epoch=1)
    assert living(database) == [lease.worker_id]
    assert await status_of(database, "r") == "running"
    database.close()

    again = Database.open(parse_url(store_url))
    assert living(again) == []
    assert await status_of(again, "r") == "crashed"
    again.close()


async def test_a_killed_process_has_lost_its_lease_at_once_to_every_reader(
    database: Database, store_url: str
) -> None:
    reader = Database.open(parse_url(store_url), Options(readonly=True))
    with start_program(RUN, store_url) as process:
        assert process.stdout is not None
        worker_id = process.stdout.readline().strip()
        assert living(reader) == [worker_id]
        assert await status_of(reader, "r") == "running"
        process.kill()
    mine = await hold_lease(database)

    assert living(reader) == [mine.worker_id]
    assert await status_of(reader, "r") == "crashed"
    selected = [one.rollout_id async for one in Store(reader).rollouts(Selection(status="crashed"))]
    assert selected == ["r"]
    reader.close()


async def test_a_process_that_ends_lets_its_lease_go(database: Database, store_url: str) -> None:
    with start_program(RUN, store_url) as process:
        output, errors = process.communicate("\n", timeout=60)

    assert errors == ""
    assert output
    assert living(database) == []
    assert await status_of(database, "r") == "crashed"


async def test_the_lease_of_another_host_lasts_until_its_time(database: Database) -> None:
    def insert(tx: sa.Connection) -> None:
        tx.execute(sa.update(workers).values(host="elsewhere", pid=2**22 + 1))

    lease = await hold_lease(database)
    await database.write(insert)
    assert living(database) == [lease.worker_id]

    await database.write(lambda tx: renew_lease(tx, lease.worker_id, term_s=-1))
    assert living(database) == []


async def test_a_lease_is_renewed_while_the_event_loop_is_blocked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_store.leases._MIN_TERM_S", 0.3)
    monkeypatch.setattr(database, "options", type(database.options)(busy_timeout_s=0.1))
    lease: Lease = await hold_lease(database)

    for _ in range(3):
        time.sleep(0.25)  # noqa: ASYNC251 - it blocks: meant
        assert living(database) == [lease.worker_id]
