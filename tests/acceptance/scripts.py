"""The two scripts as a user runs them: processes of their own, in a folder of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def environment(**more: str) -> dict[str, str]:
    """Return the tests' environment without the repository on Python's path."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **more}


def start(folder: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a script and return its process."""
    return subprocess.Popen(
        [BIN / script, *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(
    folder: Path, script: str, *arguments: str, prefix: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end."""
    return subprocess.run(
        [*prefix, str(BIN / script), *arguments],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
    )


def copy_example(folder: Path) -> Path:
    """Return a copy of the example workspace, without what a demo left in it."""
    workspace = folder / "multiply"
    ignore = shutil.ignore_patterns(".osmosis", "__pycache__")
    shutil.copytree(ROOT / "examples/multiply", workspace, ignore=ignore)
    return workspace
