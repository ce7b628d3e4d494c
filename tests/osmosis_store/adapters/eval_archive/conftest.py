from collections.abc import Callable
from pathlib import Path

import pytest

from osmosis_store.database import Database

from .workspace import Workspace, row


@pytest.fixture
def database(sqlite_database: Database) -> Database:
    return sqlite_database


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Return a workspace of three rows, of which the first two pass."""
    return Workspace(tmp_path / "workspace", [row("1", "1"), row("2", "2"), row("3", "three")])


@pytest.fixture
def forbid_model(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function; once it is called, starting an endpoint or a policy is an error."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was started")

    def forbid() -> None:
        monkeypatch.setattr("osmosis_ai.eval.work.load_policy", refuse)
        monkeypatch.setattr("osmosis_ai.eval.work.Endpoint", refuse)

    return forbid
