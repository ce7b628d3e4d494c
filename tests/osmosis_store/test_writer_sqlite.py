"""The write path on SQLite: locked, full, read-only, replaced and failing files."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis_store import OsmosisSQLSession
from osmosis_store.codec import body_digest, chain_digest, first_chain_digest
from osmosis_store.database import Database
from osmosis_store.engine import Options, parse_url
from osmosis_store.errors import (
    OutcomeUnknown,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    StoreReplaced,
)
from osmosis_store.schema import items, samples
from osmosis_store.writes.items import Append, SeqRange, append_items
from osmosis_store.writes.samples import tombstone_items
from tests.osmosis_store.programs import start_program
from tests.osmosis_store.writing import (
    SAMPLE,
    an_append,
    break_commit,
    held_writer,
    make_sample,
    stored,
    user,
    writing_engine,
)

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("released", flush=True)
sys.stdin.readline()
"""


async def test_a_lock_that_stays_is_reported_with_who_holds_the_file(sqlite_store_url: str) -> None:
    place = parse_url(sqlite_store_url)
    database = Database.open(place, Options(busy_timeout_s=0.3), create=False)
    make_sample(database)
    with start_program(HOLD, str(place.path)) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"

        with pytest.raises(StoreBusy, match=f"locked for 0.3 s; .*process {holder.pid}") as busy:
            await database.append(an_append("a"))
        assert busy.value.waited_s == 0.3

        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "released\n"
        assert await database.append(an_append("b")) == SeqRange(0, 1)
        holder.communicate("\n", timeout=30)
    assert stored(database) == ["b"]
    database.close()


async def test_a_lock_that_goes_is_waited_for(
    sqlite_database: Database, sqlite_store_url: str
) -> None:
    make_sample(sqlite_database)
    other = sqlite3.connect(Path(sqlite_store_url.removeprefix("sqlite:///")), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    appending = asyncio.create_task(sqlite_database.append(an_append("a")))
    await asyncio.sleep(0.2)
    assert not appending.done()
    other.execute("ROLLBACK")
    other.close()
    await appending

    assert stored(sqlite_database) == ["a"]


async def test_a_full_store_says_so_keeps_what_it_has_and_goes_on(
    sqlite_database: Database,
) -> None:
    make_sample(sqlite_database)
    await sqlite_database.append(an_append("kept"))

    def limit(tx: sa.Connection, spare: int) -> None:
        pages = tx.execute(sa.text("PRAGMA page_count")).scalar_one()
        tx.execute(sa.text(f"PRAGMA max_page_count={pages + spare}"))

    await sqlite_database.write(lambda tx: limit(tx, 8))
    results = await asyncio.gather(
        *(sqlite_database.append(an_append("x" * 9000)) for _ in range(20)), return_exceptions=True
    )
    failed = [one for one in results if isinstance(one, StoreFull)]
    acknowledged = [one for one in results if isinstance(one, SeqRange)]
    assert failed
    assert len(failed) + len(acknowledged) == 20
    assert stored(sqlite_database) == ["kept", *["x" * 9000] * len(acknowledged)]

    await sqlite_database.write(lambda tx: limit(tx, 1000))
    await sqlite_database.append(an_append("after"))
    assert stored(sqlite_database)[-1] == "after"


async def test_a_store_that_is_open_for_reading_refuses_to_write(
    sqlite_database: Database, sqlite_store_url: str
) -> None:
    await OsmosisSQLSession("chat", store=sqlite_database).add_items([user("a")])
    readonly = Database.open(parse_url(sqlite_store_url), Options(readonly=True))
    session = OsmosisSQLSession("chat", store=readonly)

    assert await session.get_items() == [user("a")]
    with pytest.raises(StoreReadOnly, match="cannot be written"):
        await session.add_items([user("b")])
    readonly.close()


async def test_a_file_that_cannot_be_written_is_named(sqlite_database: Database) -> None:
    make_sample(sqlite_database)

    with pytest.raises(StoreReadOnly):  # it counts at once, for this very transaction too
        await sqlite_database.write(lambda tx: tx.execute(sa.text("PRAGMA query_only=ON")))
    with pytest.raises(StoreReadOnly, match=r"store\.db cannot be written"):
        await sqlite_database.append(an_append("a"))


@pytest.mark.parametrize("how", ["replaced", "deleted"])
async def test_a_file_that_is_no_longer_the_one_is_never_written_to(
    sqlite_database: Database, tmp_path: Path, how: str
) -> None:
    make_sample(sqlite_database)
    path = tmp_path / "store.db"
    copy = tmp_path / "copy.db"
    shutil.copyfile(path, copy)
    path.unlink()
    if how == "replaced":
        copy.rename(path)

    for _ in range(2):
        with pytest.raises(StoreReplaced, match="moved, deleted or replaced while it was open"):
            await sqlite_database.append(an_append("a"))
    assert sqlite_database.is_replaced()


def io_error() -> sqlite3.OperationalError:
    error: Any = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    return error


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_commit_that_breaks_is_found_out_and_stored_once(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    make_sample(sqlite_database)
    break_commit(sqlite_database, monkeypatch, io_error(), after=after)

    assert await sqlite_database.append(an_append("a")) == SeqRange(0, 1)
    assert await sqlite_database.append(an_append("b")) == SeqRange(1, 2)
    assert stored(sqlite_database) == ["a", "b"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_commit_of_no_items_that_breaks_is_found_out_and_done_once(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    make_sample(sqlite_database)
    await sqlite_database.append(an_append("a"))
    counter = sa.text("UPDATE samples SET sample_no = sample_no + 1")

    for write in (
        lambda: sqlite_database.write(lambda tx: tx.execute(counter).rowcount),
        lambda: sqlite_database.append(an_append()),
    ):
        break_commit(sqlite_database, monkeypatch, io_error(), after=after)
        await write()

    with sqlite_database.reading() as tx:
        assert tx.execute(sa.select(samples.c.sample_no)).scalar() == 1
    assert stored(sqlite_database) == ["a"]


async def test_a_commit_that_nobody_can_find_out_about_names_what_it_wrote(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sample(sqlite_database)
    engine = writing_engine(sqlite_database)

    def unreachable(*args: Any, **kwargs: Any) -> Any:
        raise io_error()

    def cut_off() -> None:
        monkeypatch.setattr(engine.pool, "_creator", unreachable)

    break_commit(sqlite_database, monkeypatch, io_error(), then=cut_off)

    with pytest.raises(OutcomeUnknown, match="2 items of sample 'chat' in rollout 'chat'"):
        await sqlite_database.append(an_append("a", "b"))


def check_chain(database: Database) -> None:
    """Recompute the sample's chain and compare its head."""
    with database.reading() as tx:
        rows = tx.execute(sa.select(items).order_by(items.c.seq)).all()
        count, head = tx.execute(sa.select(samples.c.item_count, samples.c.chain_head)).one()
    chain = first_chain_digest(*SAMPLE)
    for seq, row in enumerate(rows):
        chain = chain_digest(chain, seq, body_digest(row.nonce, row.body.encode()))
        assert (row.seq, row.chain_digest) == (seq, chain)
    assert (count, head) == (len(rows), chain)


async def test_heads_that_are_known_give_way_to_what_another_process_wrote(
    sqlite_database: Database, sqlite_store_url: str
) -> None:
    make_sample(sqlite_database)
    other = Database.open(parse_url(sqlite_store_url), create=False)

    for number in range(3):
        for database in (sqlite_database, other):
            await database.append(an_append(f"{number}"))
            await database.append(an_append(f"{number}", "again"))
    other.close()

    assert len(stored(sqlite_database)) == 18
    check_chain(sqlite_database)


async def test_heads_that_are_known_give_way_to_other_writes_of_the_same_batch(
    sqlite_database: Database,
) -> None:
    make_sample(sqlite_database)
    await sqlite_database.append(an_append("a"))

    def replace(tx: sa.Connection) -> None:
        now = sqlite_database.clock()
        tombstone_items(tx, SAMPLE, reason="cleared", now=now)
        append_items(tx, [an_append("b")], now=now)

    with held_writer(sqlite_database):
        submit = sqlite_database._require_writer().submit
        tickets = [
            submit(work, loop=None)
            for work in (an_append("c"), replace, an_append("d"), replace, an_append("e"))
        ]
    for ticket in tickets:
        ticket.result(30)

    assert stored(sqlite_database) == ["b", "c", "d", "e"]
    check_chain(sqlite_database)


async def test_heads_that_are_known_give_way_to_a_transaction_that_failed(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sample(sqlite_database)
    await sqlite_database.append(an_append("a"))
    unstorable = Append(SAMPLE, [an_append("x").items[0]._replace(type=object())])

    with held_writer(sqlite_database):
        submit = sqlite_database._require_writer().submit
        tickets = [submit(work, loop=None) for work in (an_append("b"), unstorable, an_append("c"))]
    assert [type(ticket.exception(30)) for ticket in tickets] == [
        type(None),
        sqlite3.ProgrammingError,
        type(None),
    ]

    assert stored(sqlite_database) == ["a", "b", "c"]
    check_chain(sqlite_database)


def log_size(database: Database) -> int:
    return Path(f"{database.place.path}-wal").stat().st_size


async def test_a_log_that_grows_gets_room_while_nobody_waits(sqlite_database: Database) -> None:
    make_sample(sqlite_database)
    for number in range(100):
        await sqlite_database.append(an_append(f"{number}"))
    await asyncio.sleep(0.2)  # the idle time in which the writer makes it
    await sqlite_database.write(lambda tx: None)
    room_until = log_size(sqlite_database)
    assert 2_000_000 < room_until < 6_000_000

    for number in range(100, 200):
        await sqlite_database.append(an_append(f"{number}"))

    assert log_size(sqlite_database) == room_until
    assert stored(sqlite_database) == [f"{number}" for number in range(200)]
    check_chain(sqlite_database)
    with sqlite_database.reading() as tx:
        assert tx.execute(sa.text("PRAGMA integrity_check")).scalar() == "ok"


async def test_no_room_for_the_log_is_no_harm(sqlite_database: Database) -> None:
    make_sample(sqlite_database)
    pages = "PRAGMA max_page_count=100"
    await sqlite_database.write(lambda tx: tx.execute(sa.text(pages)).close())

    for number in range(100):
        await sqlite_database.append(an_append(f"{number}"))

    assert log_size(sqlite_database) < 2_000_000
    assert len(stored(sqlite_database)) == 100
    check_chain(sqlite_database)
