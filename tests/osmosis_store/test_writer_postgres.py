"""The write path on PostgreSQL: connections that the server cuts."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.database import Database
from osmosis_store.engine import Options, parse_url
from osmosis_store.errors import OutcomeUnknown, StoreBusy
from osmosis_store.records import SampleKey
from osmosis_store.schema import samples
from osmosis_store.writes.items import SeqRange
from tests.conftest import execute
from tests.osmosis_store.writing import (
    an_append,
    break_commit,
    make_sample,
    stored,
    writing_engine,
)

CUT_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE pid <> pg_backend_pid() AND datname = current_database()"
)


async def test_connections_cut_at_any_moment_lose_nothing_and_write_nothing_twice(
    postgres_database: Database, postgres_store_url: str
) -> None:
    make_sample(postgres_database)

    async def cut() -> None:
        for _ in range(4):
            await asyncio.sleep(0.03)
            await asyncio.to_thread(execute, postgres_store_url, CUT_ALL)

    async def write(writer: int) -> None:
        for number in range(20):
            await postgres_database.append(an_append(f"{writer}.{number}"))

    await asyncio.gather(cut(), *(write(writer) for writer in range(8)))

    found = await asyncio.to_thread(stored, postgres_database)
    for writer in range(8):
        mine = [text for text in found if text.startswith(f"{writer}.")]
        assert mine == [f"{writer}.{number}" for number in range(20)]


async def test_a_connection_cut_while_idle_is_made_anew(
    postgres_database: Database, postgres_store_url: str
) -> None:
    make_sample(postgres_database)
    assert await asyncio.to_thread(stored, postgres_database) == []
    execute(postgres_store_url, CUT_ALL)

    assert await postgres_database.append(an_append("a")) == SeqRange(0, 1)
    assert stored(postgres_database) == ["a"]


async def test_a_read_survives_a_cut_connection(
    postgres_database: Database, postgres_store_url: str
) -> None:
    make_sample(postgres_database)
    count = sa.select(sa.func.count()).select_from(samples)
    for _ in range(2):
        assert await postgres_database.read(lambda tx: tx.execute(count).scalar()) == 1
        execute(postgres_store_url, CUT_ALL)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_commit_that_breaks_is_found_out_and_stored_once(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    make_sample(postgres_database)
    error = psycopg.OperationalError("server closed the connection unexpectedly")
    break_commit(postgres_database, monkeypatch, error, after=after)

    assert await postgres_database.append(an_append("a")) == SeqRange(0, 1)
    assert stored(postgres_database) == ["a"]


async def test_a_commit_that_nobody_can_find_out_about_names_what_it_wrote(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sample(postgres_database)
    dialect = writing_engine(postgres_database).dialect
    error = psycopg.OperationalError("server closed the connection unexpectedly")

    def unreachable(*args: Any, **kwargs: Any) -> Any:
        raise psycopg.OperationalError("connection refused")

    def cut_off() -> None:
        monkeypatch.setattr(dialect, "connect", unreachable)

    break_commit(postgres_database, monkeypatch, error, after=True, then=cut_off)

    with pytest.raises(OutcomeUnknown, match="2 items of sample 'chat' in rollout 'chat'"):
        await postgres_database.append(an_append("a", "b"))


async def test_a_commit_that_the_server_has_not_ended_is_not_written_again(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sample(postgres_database)
    dialect = writing_engine(postgres_database).dialect
    error = psycopg.OperationalError("could not receive data from server")
    left_open: list[psycopg.Connection] = []

    def leave_the_first_open(connection: psycopg.Connection) -> None:
        if left_open:
            connection.close()
        else:
            left_open.append(connection)

    monkeypatch.setattr(dialect, "do_rollback", lambda connection: None)
    monkeypatch.setattr(dialect, "do_terminate", leave_the_first_open)
    monkeypatch.setattr(dialect, "do_close", leave_the_first_open)
    break_commit(postgres_database, monkeypatch, error)

    with pytest.raises(OutcomeUnknown):
        await postgres_database.append(an_append("a"))

    left_open[0].commit()
    assert stored(postgres_database) == ["a"]
    left_open[0].close()


async def test_two_writers_that_deadlock_both_get_through(
    postgres_database: Database, postgres_store_url: str
) -> None:
    keys = [SampleKey("chat", "a"), SampleKey("chat", "b")]
    for key in keys:
        make_sample(postgres_database, key)
    other = Database.open(parse_url(postgres_store_url), create=False)

    def touch(tx: Connection, order: list[SampleKey]) -> None:
        for key in order:
            tx.execute(
                sa.update(samples)
                .where(samples.c.sample_id == key.sample_id)
                .values(grade_count=samples.c.grade_count + 1)
            )
            tx.execute(sa.text("SELECT pg_sleep(0.1)"))

    await asyncio.gather(
        postgres_database.write(lambda tx: touch(tx, keys)),
        other.write(lambda tx: touch(tx, keys[::-1])),
    )

    counts = sa.select(samples.c.grade_count)
    assert await other.read(lambda tx: tx.execute(counts).scalars().all()) == [2, 2]
    other.close()


async def test_a_lock_that_stays_is_reported(postgres_store_url: str) -> None:
    database = Database.open(parse_url(postgres_store_url), Options(busy_timeout_s=0.2))
    make_sample(database)
    with psycopg.connect(postgres_store_url) as holder:
        holder.execute("SELECT 1 FROM samples FOR UPDATE")

        with pytest.raises(StoreBusy, match=r"stayed locked for 0\.2 s"):
            await database.append(an_append("a"))
        holder.rollback()
    assert await database.append(an_append("b")) == SeqRange(0, 1)
    database.close()
