"""A progress bar on standard error, where that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

__all__ = ["Advance", "show_progress"]

Advance: TypeAlias = Callable[[int, int | None], None]
"""Told how many are done, and of how many; None: nobody knows."""


@contextlib.contextmanager
def show_progress(title: str, *, quiet: bool = False) -> Iterator[Advance]:
    """Show how far something is, with its rate and the time left, until the block ends."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, rate="")

        def advance(done: int, total: int | None) -> None:
            speed = bar.tasks[0].speed
            rate = f"{speed:,.0f}/s" if speed else ""
            bar.update(task, completed=done, total=total, rate=rate)

        yield advance
