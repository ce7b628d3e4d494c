"""What ran: the versions that eval runs and grading runs are stored with."""

from __future__ import annotations

import functools
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from osmosis_store.version import __version__

__all__ = ["GIT_COMMIT", "code_commit", "code_versions", "package_versions"]

GIT_COMMIT = "git_commit"
"""The key that the commit of a grader's or a workflow's folder has among the versions."""

_PACKAGES = ("openai-agents", "openai", "litellm", "sqlalchemy")
_GIT_TIMEOUT_S = 5.0
# The whole digest, whatever tags there are, with a mark when files differ from the commit.
_ASK_GIT = (
    *("git", "--no-optional-locks", "describe"),
    *("--always", "--abbrev=64", "--exclude=*", "--dirty=-dirty"),
)


@functools.cache
def package_versions() -> dict[str, Any]:
    """Return the versions of Python, of this package and of those that shape a rollout."""
    found = {"python": platform.python_version(), "osmosis-store": __version__}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def code_versions(folder: Path | None) -> dict[str, Any]:
    """Return the package versions and, where there is one, the commit of a folder of code.

    Args:
        folder: Where the grader or the workflow is; None: it is in no file.
    """
    commit = None if folder is None else code_commit(folder)
    return {**package_versions(), **({} if commit is None else {GIT_COMMIT: commit})}


def code_commit(folder: Path) -> str | None:
    """Return the git commit that a folder is at, or None where git knows none.

    It starts git, once per process and folder: ask before programs may not be started any more.

    Returns:
        The commit's full digest, with `-dirty` behind it when a file that git tracks was changed
        since.
    """
    return _ask_for_commit(folder.absolute())


@functools.cache
def _ask_for_commit(folder: Path) -> str | None:
    try:
        done = subprocess.run(
            _ASK_GIT,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    commit = done.stdout.strip()
    return commit if done.returncode == 0 and commit else None
