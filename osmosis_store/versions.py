"""What ran: the versions that eval runs and grading runs are stored with."""

from __future__ import annotations

import functools
import platform
from importlib import metadata
from typing import Any

from osmosis_store.version import __version__

__all__ = ["package_versions"]

_PACKAGES = ("openai-agents", "openai", "litellm", "sqlalchemy")


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
