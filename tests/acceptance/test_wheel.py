"""The real wheel, installed into an empty environment outside the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from osmosis_store.version import __version__

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    run(*build, str(ROOT), cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the executables of an environment that holds only the wheel."""
    folder = tmp_path_factory.mktemp("empty") / "env"
    run(sys.executable, "-m", "venv", "--without-pip", str(folder), cwd=folder.parent)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    pins = ROOT / "constraints.txt"
    run(*pip, "--quiet", "--constraint", str(pins), str(wheel), cwd=folder.parent)
    return folder / "bin"


def test_the_wheel_holds_both_packages_their_types_and_the_migrations(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    assert {"osmosis_ai/py.typed", "osmosis_store/py.typed"} <= names
    migrations = {path.name for path in (ROOT / "migrations" / "versions").glob("*.py")}
    assert {f"osmosis_store/_migrations/versions/{name}" for name in migrations} <= names
    assert "osmosis_store/_migrations/env.py" in names


def test_the_wheel_holds_nothing_beside_its_two_packages(wheel: Path) -> None:
    folders = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}

    info = f"osmosis_store-{__version__}.dist-info"
    assert folders == {"osmosis_ai", "osmosis_store", info}


@pytest.mark.parametrize("script", ["osmosis", "osmosis-store"])
def test_both_scripts_say_how_they_are_used(scripts: Path, tmp_path: Path, script: str) -> None:
    assert "Usage" in run(str(scripts / script), "--help", cwd=tmp_path)


def test_the_installed_version_is_the_package_version(scripts: Path, tmp_path: Path) -> None:
    code = """
        import importlib.metadata, osmosis_ai, osmosis_store
        print(importlib.metadata.version("osmosis-store"))
    """

    assert run_python(scripts, code, tmp_path).split() == [__version__]


def test_a_new_store_opens_and_keeps_a_conversation(scripts: Path, tmp_path: Path) -> None:
    code = """
        import asyncio, json
        from osmosis_store import OsmosisSQLSession, Store

        async def main():
            async with Store.open("sqlite:///chats.db") as store:
                session = OsmosisSQLSession("chat-1", store=store)
                await session.add_items([{"role": "user", "content": "Hello"}])
                print(json.dumps(await session.get_items()))

        asyncio.run(main())
    """

    items = json.loads(run_python(scripts, code, tmp_path))
    assert items == [{"role": "user", "content": "Hello"}]
    assert (tmp_path / "chats.db").exists()


def run_python(scripts: Path, code: str, folder: Path) -> str:
    """Run a program with the installed package, with warnings as errors."""
    program = "if True:\n" + code
    return run(str(scripts / "python"), "-W", "error", "-c", program, cwd=folder)


def run(*command: str, cwd: Path) -> str:
    """Run a command outside the repository and return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
