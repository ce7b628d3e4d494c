"""What tests of the write path share: a held writer, a count of commits, commits that break."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.engine import Connection, Engine

from osmosis_store.codec import encode_items
from osmosis_store.database import Database
from osmosis_store.queries.items import fetch_items
from osmosis_store.records import SampleKey
from osmosis_store.writes.items import Append
from osmosis_store.writes.samples import ensure_conversation

SAMPLE = SampleKey("chat", "chat")


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def an_append(*texts: str, sample: SampleKey = SAMPLE) -> Append:
    return Append(sample, encode_items([user(text) for text in texts]))


def make_sample(database: Database, sample: SampleKey = SAMPLE) -> None:
    database.write_now(
        lambda tx: ensure_conversation(tx, sample, metadata=None, now=database.clock())
    )


def stored(database: Database, sample: SampleKey = SAMPLE) -> list[str]:
    with database.reading() as tx:
        return [item["content"] for item in fetch_items(tx, sample)]


def writing_engine(database: Database) -> Engine:
    return database._require_writer()._engine


def count_commits(database: Database) -> list[None]:
    """Return a list that grows by one with each commit of the writer."""
    commits: list[None] = []
    dialect: Any = writing_engine(database).dialect
    commit = dialect.do_commit

    def do_commit(connection: Any) -> None:
        commits.append(None)
        commit(connection)

    dialect.do_commit = do_commit
    return commits


@contextmanager
def held_writer(database: Database) -> Iterator[None]:
    """Keep the writer busy, so that what is queued meanwhile becomes its next batch."""
    taken, release = threading.Event(), threading.Event()

    def hold(tx: Connection) -> None:
        taken.set()
        release.wait(30)

    holding = threading.Thread(target=database.write_now, args=(hold,))
    holding.start()
    taken.wait(30)
    try:
        yield
    finally:
        release.set()
        holding.join(30)


def break_commit(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    *,
    after: bool = False,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Let the writer's next commit raise an error, before it takes effect or after."""
    dialect = writing_engine(database).dialect
    commit = dialect.do_commit
    broken: list[bool] = []

    def do_commit(connection: Any) -> None:
        if broken or threading.current_thread() is threading.main_thread():
            return commit(connection)
        broken.append(True)
        if after:
            commit(connection)
        then()
        raise error

    monkeypatch.setattr(dialect, "do_commit", do_commit)
