from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from osmosis_store.adapters.gym import GymImport
from osmosis_store.cli import main
from osmosis_store.cli.shell import run
from osmosis_store.database import Database
from osmosis_store.engine import parse_url
from osmosis_store.migrate import backup

GYM = Path(__file__).parents[2] / "data/gym"


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> dict[str, Any]:
        """The one object on standard output."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.data["error"]
        return error


Command = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return `osmosis-store` as a function of its arguments, run in an empty folder."""

    def call(*arguments: object) -> Done:
        code = run(main.app, "osmosis-store", [str(one) for one in arguments])
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def gym_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with the gym files of tests/data; a test gets a copy of it."""
    path = tmp_path_factory.mktemp("gym") / "gym.db"
    database = Database.open(parse_url(f"sqlite:///{path}"))
    gym = GymImport(database)
    for file in sorted(GYM.glob("*.jsonl")):
        gym.add_file(file)
    gym.close()
    database.close()
    whole = path.with_name("whole.db")
    backup(database.place, whole)
    return whole


@pytest.fixture
def store_file(folder: Path, gym_store: Path) -> Path:
    """Return the working directory's own store, with the gym rollouts."""
    path = folder / ".osmosis" / "rollouts.db"
    path.parent.mkdir()
    shutil.copy(gym_store, path)
    return path
