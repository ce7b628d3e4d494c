"""Stores for tests: migrated once per test process, then copied for each test."""

from __future__ import annotations

import shutil
import sqlite3
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from osmosis_ai.eval.upstream import close_clients
from osmosis_store.database import Database
from osmosis_store.engine import Options, parse_url
from osmosis_store.migrate import create_if_new
from osmosis_store.store import Store
from tests.conftest import execute
from tests.policy_endpoint import PolicyEndpoint, text


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a SQLite store without rows, everything of it in the one file."""
    path = tmp_path_factory.mktemp("template") / "store.db"
    create_if_new(parse_url(f"sqlite:///{path}"), Options(synchronous="off"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture(scope="session")
def migrated_database(postgres_server: str) -> str:
    """Return the name of a PostgreSQL database with our tables and no rows."""
    name = f"osmosis_template_{uuid.uuid4().hex}"
    execute(postgres_server, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    create_if_new(parse_url(beside(postgres_server, name)), Options())
    return name


@pytest.fixture
def sqlite_store_url(migrated_file: Path, tmp_path: Path) -> str:
    """Return the URL of a SQLite store without rows."""
    path = tmp_path / "store.db"
    shutil.copyfile(migrated_file, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_store_url(postgres_server: str, migrated_database: str) -> Iterator[str]:
    """Return the URL of a PostgreSQL store without rows, dropped after the test."""
    name = f"osmosis_test_{uuid.uuid4().hex}"
    execute(postgres_server, f"CREATE DATABASE {name} TEMPLATE {migrated_database}")
    yield beside(postgres_server, name)
    execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a store without rows, once per database."""
    fixture = {"sqlite": "sqlite_store_url", "postgresql": "postgres_store_url"}[request.param]
    url: str = request.getfixturevalue(fixture)
    return url


@pytest.fixture
def database(store_url: str) -> Iterator[Database]:
    """Return an open store beneath the facade, once per database."""
    opened = Database.open(parse_url(store_url), create=False)
    yield opened
    opened.close()


@pytest.fixture
def store(database: Database) -> Store:
    """Return an open store, once per database."""
    return Store(database)


@pytest.fixture
def sqlite_database(sqlite_store_url: str) -> Iterator[Database]:
    """Return an open SQLite store beneath the facade."""
    opened = Database.open(parse_url(sqlite_store_url), create=False)
    yield opened
    opened.close()


@pytest.fixture
def postgres_database(postgres_store_url: str) -> Iterator[Database]:
    """Return an open PostgreSQL store beneath the facade."""
    opened = Database.open(parse_url(postgres_store_url), create=False)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def running_endpoint() -> Iterator[PolicyEndpoint]:
    """Return the scripted policy, one server for all tests."""
    endpoint = PolicyEndpoint()
    endpoint.start()
    yield endpoint
    endpoint.stop()


@pytest.fixture
async def endpoint(
    running_endpoint: PolicyEndpoint, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PolicyEndpoint]:
    """Return the scripted policy, which answers "ok"; the environment says where it is."""
    running_endpoint.answer_with(lambda call: text("ok"))
    monkeypatch.setenv("OSMOSIS_CHAT_COMPLETIONS_URL", running_endpoint.url)
    monkeypatch.setenv("OSMOSIS_API_KEY", "key-of-the-environment")
    yield running_endpoint
    await close_clients()


def beside(url: str, name: str) -> str:
    """Return the URL of another database of the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
