"""Whether another installed distribution owns the import package `osmosis_ai` too."""

from __future__ import annotations

import functools
import importlib.metadata
import warnings

__all__ = ["SecondOwner", "warn_of_second_owner"]

OTHER = "osmosis-ai"


class SecondOwner(RuntimeWarning):
    """Two installed distributions put their files into one import package."""


@functools.cache
def warn_of_second_owner() -> None:
    """Warn, once per process, when the distribution `osmosis-ai` is installed beside this one.

    Looks the one name up (a millisecond or two); asking who owns every package takes a hundred
    times as long.
    """
    try:
        version = importlib.metadata.version(OTHER)
    except importlib.metadata.PackageNotFoundError:
        return
    warnings.warn(
        f"{OTHER} {version} is installed beside osmosis-store and both own the import package "
        "osmosis_ai: which files are used depends on the order of installation. Keep one: "
        f"`pip uninstall {OTHER}`, then `pip install --force-reinstall --no-deps osmosis-store`",
        SecondOwner,
        stacklevel=2,
    )
