"""Searching items, with a text index and without one: the same answers."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis_store.codec import encode_items
from osmosis_store.database import Database
from osmosis_store.engine import parse_url
from osmosis_store.errors import InvalidSelection, TextIndexUnavailable
from osmosis_store.indexing import build_text_index, remove_text_index
from osmosis_store.queries import text_filter
from osmosis_store.queries.rollouts import fetch_rollout_ids
from osmosis_store.queries.search import FoundItem, fetch_items_saying
from osmosis_store.queries.text_filter import fetch_match
from osmosis_store.records import ItemKey, NewGrade, SampleKey, Selection
from osmosis_store.schema import items as items_table
from osmosis_store.texts import find_text, fold, item_texts
from osmosis_store.writes.items import Append
from osmosis_store.writes.samples import tombstone_items
from tests.osmosis_store.ledger import add_grades, add_rollout

ALPHABET = 'aAbB1 .:"\\\n\t/%_{}[]üÜß京都🧪é\u0301\x00\x1b\ud83d'


def append(database: Database, rollout_id: str, *items: Any, sample: str = "main") -> None:
    one = Append(SampleKey(rollout_id, sample), encode_items(list(items)))
    database._require_writer().submit(one, loop=None).wait()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def search(database: Database, text: str, **options: Any) -> list[FoundItem]:
    selection = options.pop("selection", Selection())
    with database.reading() as tx:
        return fetch_items_saying(tx, text, selection, **{"limit": 1000, **options})


def keys(database: Database, text: str, **options: Any) -> list[str]:
    return ["/".join(map(str, one.key)) for one in search(database, text, **options)]


def is_used(database: Database, text: str) -> bool:
    with database.reading() as tx:
        return fetch_match(tx, text) is not None


@pytest.fixture
def filled(database: Database) -> Database:
    """Return a store with two rollouts."""
    add_rollout(database, "a", "main", "other")
    add_rollout(database, "b", "main", label="no")
    append(database, "a", user("The quick fox"), user("a slow Fox jumps"))
    append(database, "a", user("no animal"), sample="other")
    append(database, "b", user("FOXES"), user("xyz"))
    return database


def test_items_are_found_by_what_they_say(filled: Database) -> None:
    assert keys(filled, "fox") == ["a/main/0", "a/main/1", "b/main/0"]
    (hit,) = {one.hit for one in search(filled, "quick")}
    assert (hit.text[hit.start : hit.end], hit.start) == ("quick", 4)
    assert keys(filled, "dog") == []


def test_a_search_goes_on_behind_the_last_item(filled: Database) -> None:
    pages, after = [], None
    while page := search(filled, "fox", after=after, limit=1):
        after = page[-1].key
        pages.append(after)

    assert pages == [ItemKey("a", "main", 0), ItemKey("a", "main", 1), ItemKey("b", "main", 0)]


def test_a_search_takes_a_selection(filled: Database) -> None:
    add_grades(filled, "g1", "a", NewGrade(sample_id="other", reward=1.0))

    assert keys(filled, "fox", selection=Selection(label="no")) == ["b/main/0"]
    assert keys(filled, "fox", selection=Selection(rollout=("a",), text="jumps")) == [
        "a/main/0",
        "a/main/1",
    ]
    assert keys(filled, "no", selection=Selection(reward="=1")) == ["a/other/0"]
    assert keys(filled, "fox", selection=Selection(meta=(("k", "v"),))) == []


def test_a_popped_item_is_found_and_says_so(filled: Database) -> None:
    filled.write_now(
        lambda tx: tombstone_items(
            tx, SampleKey("b", "main"), from_seq=1, reason="popped", now=filled.clock()
        )
    )

    assert [one.tombstoned_at is not None for one in search(filled, "xyz")] == [True]


def test_an_empty_search_is_refused(database: Database) -> None:
    with pytest.raises(InvalidSelection):
        search(database, "")


def random_text(random_: random.Random) -> str:
    return "".join(random_.choice(ALPHABET) for _ in range(random_.randint(0, 12)))


def random_item(random_: random.Random) -> dict[str, Any]:
    text = random_text(random_)
    ascii_only = random_.random() < 0.5
    return random_.choice(
        [
            user(text),
            user(f"data:{text};base64,{text}"),
            {"role": "assistant", "content": [{"type": "output_text", "text": text}, {"x": 1.5}]},
            {
                "type": "function_call",
                "call_id": text,
                "name": "f",
                "arguments": json.dumps({"a": [text], text: 1}, ensure_ascii=ascii_only),
            },
        ]
    )


def random_needle(random_: random.Random, items: list[dict[str, Any]]) -> str:
    """Return a part of what some item says, in some case."""
    text = random_.choice([text for text in item_texts(random_.choice(items)) if text] or ["a"])
    at = random_.randrange(len(text))
    part = text[at : at + random_.randint(1, 8)]
    return random_.choice([part, fold(part), part.upper() if part.isascii() else part])


def test_a_search_finds_what_looking_at_every_item_finds(database: Database) -> None:
    random_ = random.Random(7)
    items = [random_item(random_) for _ in range(1200)]
    for at in range(5):
        add_rollout(database, f"r{at}", "main")
        append(database, f"r{at}", *items[at:800:5])
    if database.place.is_sqlite:
        build_text_index(database)
    for at in range(5):
        append(database, f"r{at}", *items[800 + at :: 5])
    needles = [random_needle(random_, items) for _ in range(200)]
    expected = {
        needle: [
            f"r{at}/main/{seq}"
            for at in range(5)
            for seq, item in enumerate(items[at:800:5] + items[800 + at :: 5])
            if find_text(item, needle)
        ]
        for needle in needles
    }

    assert {needle: keys(database, needle) for needle in needles} == expected
    for needle in needles:
        assert saying(database, needle) == sorted({one[:2] for one in expected[needle]})
    if database.place.is_sqlite:
        assert sum(is_used(database, needle) for needle in needles) > 20
        remove_text_index(database)
        assert {needle: keys(database, needle) for needle in needles} == expected


def saying(database: Database, text: str) -> list[str]:
    with database.reading() as tx:
        return list(fetch_rollout_ids(tx, Selection(text=text)))


def test_an_index_follows_every_change(sqlite_database: Database) -> None:
    database = sqlite_database
    add_rollout(database, "a", "main")
    append(database, "a", user("before"), user("to be redacted"))
    assert build_text_index(database)
    append(database, "a", user("behind"))
    assert is_used(database, "redacted")
    assert [len(keys(database, text)) for text in ("before", "redacted", "behind")] == [1, 1, 1]

    change(database, 'UPDATE items SET body = \'{"role":"user","content":"gone"}\' WHERE seq = 1')
    change(database, "DELETE FROM items WHERE seq = 2")

    assert [keys(database, text) for text in ("redacted", "behind")] == [[], []]
    assert keys(database, "gone") == ["a/main/1"]
    assert indexed(database, "redacted") == indexed(database, "behind") == 0
    assert indexed(database, "gone") == 1


def change(database: Database, statement: str) -> None:
    database.write_now(lambda tx: tx.execute(sa.text(statement.replace(":", "\\:"))).rowcount)


def indexed(database: Database, text: str) -> int:
    with database.reading() as tx:
        match = fetch_match(tx, text)
        assert match is not None
        return len(tx.execute(text_filter.select_matching(match)).fetchall())


def test_an_index_is_made_once_and_anew_only_when_asked(sqlite_database: Database) -> None:
    add_rollout(sqlite_database, "a", "main")
    append(sqlite_database, "a", user("before"))
    told: list[tuple[int, int]] = []

    assert build_text_index(sqlite_database, on_progress=lambda *one: told.append(one))
    assert not build_text_index(sqlite_database)
    assert build_text_index(sqlite_database, rebuild=True)
    assert keys(sqlite_database, "before") == ["a/main/0"]
    assert told[-1] == (1, 1)


def test_an_index_that_was_cut_off_is_not_used_and_is_gone_on_with(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_store.indexing._SLICE", 2)
    add_rollout(sqlite_database, "a", "main")
    append(sqlite_database, "a", *(user(f"item {at}") for at in range(7)))

    class Killed(Exception):
        pass

    def kill(done: int, total: int) -> None:
        if done == 4:
            raise Killed

    with pytest.raises(Killed):
        build_text_index(sqlite_database, on_progress=kill)
    append(sqlite_database, "a", user("item 7"))
    assert not is_used(sqlite_database, "item")
    assert len(keys(sqlite_database, "item")) == 8

    assert build_text_index(sqlite_database)
    assert indexed(sqlite_database, "item") == len(keys(sqlite_database, "item")) == 8


def test_what_very_many_say_is_looked_for_in_order(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_filter, "_MANY", 3)
    add_rollout(sqlite_database, "a", "main")
    append(sqlite_database, "a", *(user("many") for _ in range(4)), user("few, many"))
    build_text_index(sqlite_database)

    assert (is_used(sqlite_database, "many"), is_used(sqlite_database, "few")) == (False, True)
    assert len(keys(sqlite_database, "many")) == 5


def test_a_store_without_an_index_has_nothing_of_it(sqlite_database: Database) -> None:
    build_text_index(sqlite_database)
    remove_text_index(sqlite_database)

    with sqlite_database.reading() as tx:
        left = tx.execute(
            sa.text("SELECT name FROM sqlite_master WHERE name LIKE 'item_search%'")
        ).fetchall()
    assert left == []


def test_postgresql_without_the_extension_says_so(postgres_database: Database) -> None:
    with postgres_database.reading() as tx:
        known = tx.execute(
            sa.text("SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_trgm'")
        ).scalar_one()
    if known:
        pytest.skip("this server has pg_trgm")

    with pytest.raises(TextIndexUnavailable, match="pg_trgm"):
        build_text_index(postgres_database)


DEBIAN = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture
def trigram_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Return a store on Debian's PostgreSQL, which has pg_trgm, where that is installed."""
    if not (DEBIAN / "initdb").exists() or os.geteuid() != 0:
        pytest.skip("Debian's postgresql is not here, or this user cannot start it")
    with tempfile.TemporaryDirectory(prefix="osmosis-pg-", ignore_cleanup_errors=True) as folder:
        shutil.chown(folder, "postgres")
        data = f"{folder}/data"
        as_postgres("initdb", "-D", data, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N")
        options = f"-c listen_addresses= -c fsync=off -k {folder}"
        as_postgres("pg_ctl", "-D", data, "-w", "-l", f"{folder}/log", "-o", options, "start")
        try:
            url = f"postgresql://postgres@/postgres?host={folder}"
            database = Database.open(parse_url(url))
            yield database
            database.close()
        finally:
            as_postgres("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")


def as_postgres(program: str, *arguments: str) -> None:
    command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    subprocess.run(
        [*command, str(DEBIAN / program), *arguments],
        check=True,
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=60,
    )


def test_postgresql_uses_an_index_of_pg_trgm(trigram_database: Database) -> None:
    database = trigram_database
    add_rollout(database, "a", "main")
    append(database, "a", *(user(f"item {at} of {at % 7} 京都へ") for at in range(3000)))
    needles = ["item 2999", "ITEM 77 ", "京都へ", "都", "m 5 o", "%"]
    before = {needle: keys(database, needle) for needle in needles}

    assert build_text_index(database)
    assert not build_text_index(database)
    append(database, "a", user("behind the index"))

    assert {needle: keys(database, needle) for needle in needles} == before
    assert keys(database, "behind the") == ["a/main/3000"]
    assert "ix_items_text" in plan(database, "item 2999")
    assert build_text_index(database, rebuild=True)
    remove_text_index(database)
    assert {needle: keys(database, needle) for needle in needles} == before


def plan(database: Database, text: str) -> str:
    with database.reading() as tx:
        tx.execute(sa.text("SET LOCAL enable_seqscan = off"))
        statement = sa.select(items_table.c.seq).where(text_filter.may_say(tx, text))
        literal = statement.compile(tx, compile_kwargs={"literal_binds": True})
        rows = tx.exec_driver_sql(f"EXPLAIN {literal}").scalars()
        return "\n".join(rows)
