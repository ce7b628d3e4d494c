"""Running the two scripts as a user's shell does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
LIMIT_S = 60


@dataclass(frozen=True)
class Ended:
    """How a script ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, which is one JSON value and nothing else."""
        return json.loads(self.out)


def start(
    workspace: Path, *command: str, environ: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a script in a folder; the first word is its name."""
    return subprocess.Popen(
        [BIN / command[0], *command[1:]],
        cwd=workspace,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait(process: subprocess.Popen[str]) -> Ended:
    """Wait for a script's end."""
    with process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Ended(process.returncode, out, err)


def run(workspace: Path, *command: str, environ: Mapping[str, str] | None = None) -> Ended:
    """Run a script in a folder to its end."""
    return wait(start(workspace, *command, environ=environ))
