"""The write path: group commit, who fails, cancellation, closing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store import OsmosisSQLSession
from osmosis_store.database import Database
from osmosis_store.engine import parse_url
from osmosis_store.errors import SampleNotFound, StoreClosed
from osmosis_store.records import SampleKey
from osmosis_store.schema import contents
from osmosis_store.writes.items import SeqRange
from tests.osmosis_store.writing import (
    an_append,
    count_commits,
    held_writer,
    make_sample,
    stored,
    user,
)


async def start(*coroutines: Any) -> list[asyncio.Task[Any]]:
    """Start tasks and let them come as far as their first wait."""
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_calls_that_wait_share_one_transaction(database: Database) -> None:
    make_sample(database)
    commits = count_commits(database)

    with held_writer(database):
        tasks = await start(*(database.append(an_append(f"{n}a", f"{n}b")) for n in range(20)))
    ranges = await asyncio.gather(*tasks)

    assert len(commits) == 2  # the one that held it, and all of these
    assert ranges == [SeqRange(2 * n, 2 * n + 2) for n in range(20)]
    assert stored(database) == [f"{n}{part}" for n in range(20) for part in "ab"]


async def test_the_write_that_fails_fails_alone(database: Database) -> None:
    make_sample(database)

    def fail(tx: Connection) -> None:
        tx.execute(sa.insert(contents), {"digest": b"x", "body": "half a write", "created_at": now})
        raise ZeroDivisionError("its own fault")

    now = database.clock()
    with held_writer(database):
        tasks = await start(
            database.append(an_append("a")), database.write(fail), database.append(an_append("b"))
        )
    before, failed, after = await asyncio.gather(*tasks, return_exceptions=True)

    assert (before, after) == (SeqRange(0, 1), SeqRange(1, 2))
    assert isinstance(failed, ZeroDivisionError)
    assert stored(database) == ["a", "b"]
    with database.reading() as tx:
        assert tx.execute(sa.select(sa.func.count()).select_from(contents)).scalar() == 0


async def test_an_append_to_a_sample_that_is_not_there_fails_alone(database: Database) -> None:
    make_sample(database)

    with held_writer(database):
        tasks = await start(
            database.append(an_append("a")),
            database.append(an_append("x", sample=SampleKey("chat", "other"))),
            database.append(an_append("b")),
        )
    _, failed, _ = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(failed, SampleNotFound)
    assert stored(database) == ["a", "b"]


async def test_a_call_cancelled_in_the_queue_is_withdrawn(database: Database) -> None:
    make_sample(database)

    with held_writer(database):
        kept, cancelled = await start(
            database.append(an_append("kept")), database.append(an_append("cancelled"))
        )
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert cancelled.cancelled()
    await kept

    assert stored(database) == ["kept"]


async def test_a_call_cancelled_while_it_is_written_is_settled_first(database: Database) -> None:
    make_sample(database)
    taken, release = threading.Event(), threading.Event()

    def write(tx: Connection) -> None:
        taken.set()
        release.wait(30)
        tx.execute(sa.insert(contents), {"digest": b"x", "body": "x", "created_at": now})

    now = database.clock()
    (task,) = await start(database.write(write))
    await asyncio.to_thread(taken.wait, 30)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    assert not task.done()
    release.set()
    await asyncio.wait([task])

    assert task.cancelled()
    with database.reading() as tx:
        assert tx.execute(sa.select(contents.c.body)).scalars().all() == ["x"]


async def test_an_error_of_a_cancelled_call_is_not_left_unseen(database: Database) -> None:
    taken, release = threading.Event(), threading.Event()

    def write(tx: Connection) -> None:
        taken.set()
        release.wait(30)
        raise ZeroDivisionError

    (task,) = await start(database.write(write))
    await asyncio.to_thread(taken.wait, 30)
    task.cancel()
    release.set()
    await asyncio.wait([task])

    assert task.cancelled()


def test_an_event_loop_that_is_closed_does_not_stop_the_writer(database: Database) -> None:
    make_sample(database)
    loop = asyncio.new_event_loop()

    with held_writer(database):
        queued = loop.create_task(database.append(an_append("queued")))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    asyncio.run(database.append(an_append("after")))

    assert stored(database) == ["queued", "after"]
    queued._log_destroy_pending = False  # its loop went away: meant


async def test_closing_writes_what_is_queued(database: Database, store_url: str) -> None:
    make_sample(database)

    with held_writer(database):
        tasks = await start(*(database.append(an_append(str(n))) for n in range(50)))
        closing = threading.Thread(target=database.close)
        closing.start()
    closing.join(30)
    await asyncio.gather(*tasks)

    again = Database.open(parse_url(store_url), create=False)
    assert stored(again) == [str(n) for n in range(50)]
    again.close()


async def test_a_closed_store_says_so(database: Database) -> None:
    session = OsmosisSQLSession("chat", store=database)
    await session.add_items([user("a")])
    database.close()
    database.close()

    for use in (session.get_items, lambda: session.add_items([user("b")]), session.pop_item):
        with pytest.raises(StoreClosed, match="is closed"):
            await use()
    with pytest.raises(StoreClosed), database.reading():
        pass


async def test_positions_are_given_out_once_under_many_writers(
    database: Database, store_url: str
) -> None:
    make_sample(database)
    other = Database.open(parse_url(store_url), create=False)
    doors = [database, other] * 20

    ranges = await asyncio.gather(
        *(door.append(an_append(str(n), str(n))) for n, door in enumerate(doors))
    )

    assert sorted(ranges) == [SeqRange(first, first + 2) for first in range(0, 80, 2)]
    texts = stored(database)
    assert texts[::2] == texts[1::2]
    assert sorted(texts[::2], key=int) == [str(n) for n in range(40)]
    other.close()
