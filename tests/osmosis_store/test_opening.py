"""Opening a store: what is made, what is refused, and what to do then."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from osmosis_store import OsmosisSQLSession, Store, migrate
from osmosis_store.engine import Options, make_engine, parse_url
from osmosis_store.errors import (
    FolderMissing,
    InvalidStoreUrl,
    NotAStore,
    StoreIsNewer,
    StoreNeedsUpgrade,
    StoreNotFound,
    StoreReadOnly,
    StoreUnreachable,
)
from osmosis_store.schema import HEAD
from tests.osmosis_store.conftest import beside
from tests.osmosis_store.programs import run_program, start_program
from tests.osmosis_store.writing import an_append, make_sample, stored

NEXT_REVISION = """
import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "{head}"


def upgrade():
    op.add_column("rollouts", sa.Column("colour", sa.Text(), nullable=True))
"""


def execute(url: str, statement: str) -> None:
    engine = make_engine(parse_url(url), Options(), write=True, create=True)
    with engine.begin() as tx:
        tx.exec_driver_sql(statement)
    engine.dispose()


@pytest.fixture
def later_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let this be a version with one more migration."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrate.migrations_path(), folder)
    (folder / "versions" / "next.py").write_text(NEXT_REVISION.format(head=HEAD))
    monkeypatch.setattr(migrate, "migrations_path", lambda: folder)
    monkeypatch.setattr(migrate, "HEAD", "next")


async def test_an_empty_place_becomes_a_store_that_stays(empty_url: str) -> None:
    async with Store.open(empty_url) as store:
        make_sample(store.database)
        await store.database.append(an_append("a"))

    again = await Store.open(empty_url, create=False)
    assert stored(again.database) == ["a"]
    await again.close()
    await again.close()


async def test_a_new_file_is_private_and_in_wal_mode(sqlite_url: str, tmp_path: Path) -> None:
    async with Store.open(sqlite_url):
        path = tmp_path / "store.db"
        assert path.stat().st_mode & 0o777 == 0o600
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_processes_that_make_one_store_at_the_same_time_share_it(empty_url: str) -> None:
    body = """
        import sys
        from osmosis_store.database import Database
        from osmosis_store.engine import parse_url
        from tests.osmosis_store.writing import an_append, make_sample

        print("ready", flush=True)
        sys.stdin.readline()
        database = Database.open(parse_url(sys.argv[1]))
        make_sample(database)
        database._require_writer().submit(an_append(sys.argv[2]), loop=None).wait()
    """
    processes = [start_program(body, empty_url, str(number)) for number in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        with process:
            assert process.communicate(timeout=60) == ("", "")

    database = Store.open(empty_url, create=False)._open_now().database
    assert sorted(stored(database)) == ["0", "1", "2"]
    database.close()


async def test_a_file_that_is_not_there_is_not_made_when_that_is_unwanted(
    sqlite_url: str, tmp_path: Path, migrated_file: Path
) -> None:
    shutil.copyfile(migrated_file, tmp_path / "stored.db")
    (tmp_path / "empty.db").touch()
    (tmp_path / "folder.db").mkdir()
    with closing(sqlite3.connect(tmp_path / "recipes.db")) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    for options in ({"create": False}, {"readonly": True}):
        with pytest.raises(StoreNotFound, match=r"no database at .*store\.db") as missing:
            await Store.open(sqlite_url, **options)
        assert [Path(one).name for one in missing.value.nearby] == ["stored.db"]
    assert not (tmp_path / "store.db").exists()


async def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FolderMissing, match=r"there is no folder .*missing"):
        await Store.open(f"sqlite:///{tmp_path / 'missing' / 'store.db'}")


async def test_a_folder_is_no_store_and_that_is_said_at_once(tmp_path: Path) -> None:
    began = time.monotonic()

    with pytest.raises(NotAStore, match="it is a folder"):
        await Store.open(f"sqlite:///{tmp_path}")

    assert time.monotonic() - began < 5


async def test_a_file_that_is_no_database_is_refused_and_left_alone(
    sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "store.db").write_text("a shopping list, longer than any file header\n" * 100)
    before = (tmp_path / "store.db").read_bytes()

    with pytest.raises(NotAStore, match="the file is not a SQLite database"):
        await Store.open(sqlite_url)
    assert (tmp_path / "store.db").read_bytes() == before


async def test_another_programs_database_is_refused_and_left_alone(empty_url: str) -> None:
    execute(empty_url, "CREATE TABLE recipes (name TEXT)")

    for create in (True, False):
        with pytest.raises(NotAStore, match="it has no revision table"):
            await Store.open(empty_url, create=create)

    engine = make_engine(parse_url(empty_url), Options(), write=False)
    assert sa.inspect(engine).get_table_names() == ["recipes"]
    engine.dispose()


async def test_another_programs_revision_is_refused(store_url: str) -> None:
    execute(store_url, "UPDATE alembic_version SET version_num = 'abc123'")

    with pytest.raises(NotAStore, match="revision 'abc123' is another program's"):
        await Store.open(store_url)


async def test_a_newer_versions_store_is_refused(store_url: str) -> None:
    execute(store_url, "UPDATE alembic_version SET version_num = '9999'")

    with pytest.raises(StoreIsNewer, match="at revision 9999") as newer:
        await Store.open(store_url)
    assert "upgrade osmosis-store" in newer.value.hint
    with pytest.raises(StoreIsNewer):
        migrate.upgrade(parse_url(store_url), Options())


@pytest.mark.usefixtures("later_version")
async def test_an_older_store_is_refused_with_the_command_to_run(store_url: str) -> None:
    with pytest.raises(
        StoreNeedsUpgrade, match=f"at revision {HEAD}, this version needs next"
    ) as old:
        await Store.open(store_url)
    assert "osmosis-store db upgrade" in old.value.hint


@pytest.mark.usefixtures("later_version")
def test_an_upgrade_keeps_the_rows_and_a_copy_of_the_file(store_url: str) -> None:
    execute(
        store_url,
        "INSERT INTO rollouts (rollout_id, status, started_at) "
        "VALUES ('chat', 'open', '2026-01-01 00:00:00.000000')",
    )
    place = parse_url(store_url)

    before, after, kept = migrate.upgrade(place, Options())

    assert (before, after) == (HEAD, "next")
    execute(store_url, "UPDATE rollouts SET colour = 'red' WHERE rollout_id = 'chat'")
    assert migrate.upgrade(place, Options()) == ("next", "next", None)
    assert (kept is None) == (place.path is None)
    if kept is not None:
        assert kept.stat().st_mode & 0o777 == 0o600
        with closing(sqlite3.connect(kept)) as copy:
            assert copy.execute("SELECT rollout_id FROM rollouts").fetchall() == [("chat",)]
            assert copy.execute("SELECT version_num FROM alembic_version").fetchone() == (HEAD,)


def test_what_is_no_store_is_not_upgraded(empty_url: str) -> None:
    execute(empty_url, "CREATE TABLE recipes (name TEXT)")

    with pytest.raises(NotAStore, match="it has no revision table"):
        migrate.upgrade(parse_url(empty_url), Options())


async def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(
        StoreUnreachable, match=r"cannot reach postgresql://me@127\.0\.0\.1:1/x"
    ) as e:
        await Store.open("postgresql://me:secret@127.0.0.1:1/x")
    assert "secret" not in str(e.value)


async def test_a_database_that_is_not_there_is_named(postgres_url: str) -> None:
    with pytest.raises(StoreUnreachable, match="does not exist"):
        await Store.open(beside(postgres_url, "missing"))


def test_a_folder_that_cannot_be_written_is_named(migrated_file: Path) -> None:
    ended = run_program(
        """
        import os, shutil, sys, tempfile
        import alembic.config, alembic.script
        from osmosis_store.database import Database
        from osmosis_store.engine import Options, parse_url
        from osmosis_store.errors import StoreError
        from osmosis_store.queries.rollouts import fetch_rollout_ids
        from osmosis_store.records import Selection

        folder = tempfile.mkdtemp()
        shutil.copyfile(sys.argv[1], f"{folder}/store.db")
        os.chmod(f"{folder}/store.db", 0o444)
        os.chmod(folder, 0o555)
        if os.getuid() == 0 and os.fork() == 0:  # no permission binds root
            os.setuid(65534)
        elif os.getuid() == 0:
            status = os.wait()[1]
            shutil.rmtree(folder)
            sys.exit(status)
        try:
            Database.open(parse_url(f"sqlite:///{folder}/new.db"))
        except StoreError as error:
            print(type(error).__name__)
        database = Database.open(parse_url(f"sqlite:///{folder}/store.db"), Options(readonly=True))
        with database.reading() as tx:
            print(fetch_rollout_ids(tx, Selection()))
        """,
        str(migrated_file),
    )

    assert (ended.exit_code, ended.errors) == (0, "")
    assert ended.output.splitlines() == [StoreReadOnly.__name__, "[]"]


FILLING = """
import asyncio, resource, sys
from osmosis_store import OsmosisSQLSession, Store
from osmosis_store.errors import StoreError

async def main():
    async with Store.open(sys.argv[1]) as store:
        session = OsmosisSQLSession("s", store=store)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
        for number in range(10_000):
            try:
                await session.add_items([{"role": "user", "content": "x" * 5000}])
            except StoreError as error:
                print(type(error).__name__, number, "damaged" in str(error))
                return

asyncio.run(main())
"""


async def test_a_limit_on_file_sizes_is_not_taken_for_damage(sqlite_store_url: str) -> None:
    ended = run_program(FILLING, sqlite_store_url)

    name, kept, damaged = ended.output.split()
    assert name in ("StoreIOFailed", "StoreFull")
    assert damaged == "False"
    async with Store.open(sqlite_store_url) as store:
        assert len(await store.session("s", "s").get_items()) == int(kept)


@pytest.mark.parametrize("given", [5, object(), Store.open("sqlite:///never.db")])
def test_what_is_no_open_store_is_named(given: object) -> None:
    with pytest.raises(TypeError, match=r"is no open store: give what `await Store.open"):
        OsmosisSQLSession("s", store=given)


@pytest.mark.parametrize("name", ["x" * 300, "é" * 130, "a/" * 3000 + "b"], ids=len)
def test_a_url_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidStoreUrl, match="longer than"):
        parse_url(f"sqlite:///{name}.db")


def test_a_url_with_a_nul_is_refused() -> None:
    with pytest.raises(InvalidStoreUrl, match="NUL"):
        parse_url("sqlite:///a\0b.db")


async def test_a_limit_may_be_of_any_size_and_has_to_be_an_integer(sqlite_store_url: str) -> None:
    async with Store.open(sqlite_store_url) as store:
        session = OsmosisSQLSession("s", store=store)
        await session.add_items([{"role": "user", "content": "one"}])

        assert len(await session.get_items(10**30)) == 1
        with pytest.raises(TypeError):
            await session.get_items(1.5)
