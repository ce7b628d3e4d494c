"""Python programs that tests run in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    exit_code: int
    output: str
    errors: str


def start_program(body: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a program; its `sys.argv[1:]` are the arguments."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(body), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_program(body: str, *arguments: str) -> Ended:
    """Run a program to its end."""
    with start_program(body, *arguments) as process:
        output, errors = process.communicate(timeout=60)
        return Ended(process.returncode, output, errors)
