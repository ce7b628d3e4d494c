"""What a command prints: JSON for machines, tables and figures for people."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "Screen",
    "count",
    "counted",
    "duration",
    "figure",
    "output_of_user_code",
    "print_json",
    "print_lines",
    "to_json_value",
]

_STYLES = {"dim": "2", "bold": "1", "green": "32", "cyan": "36", "yellow": "33"}
_MIN_WIDTH = 40


def print_json(value: Any) -> None:
    """Print one object on a line; only ASCII, so that no terminal and no encoding changes it."""
    print(json.dumps(to_json_value(value), allow_nan=False), flush=True)


@contextlib.contextmanager
def output_of_user_code(*, as_json: bool) -> Iterator[None]:
    """Send what graders and workflows print to standard error where the other one carries JSON."""
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        yield


def print_lines(lines: Sequence[str]) -> None:
    """Print lines."""
    for line in lines:
        print(line)


def to_json_value(value: Any) -> Any:
    """Return a record as JSON values: times in ISO 8601, digests in hexadecimal."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            one.name: to_json_value(getattr(value, one.name)) for one in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {str(key): to_json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(part) for part in value]
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value) if isinstance(value, Path | BaseException) else repr(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Screen:
    """Where people read: its width, whether it has colours, in which zone times are shown.

    Attributes:
        width: Columns; None: nothing is cut or wrapped.
        zone: None: the local one.
    """

    width: int | None = None
    coloured: bool = False
    zone: dt.tzinfo | None = None

    @classmethod
    def detect(cls, *, wide: bool = False, utc: bool = False) -> Screen:
        """Return what standard output is: a terminal, or a pipe, in which nothing is cut."""
        is_terminal = sys.stdout.isatty()
        width = None
        if is_terminal and not wide:
            width = max(shutil.get_terminal_size().columns, _MIN_WIDTH)
        coloured = is_terminal and not os.environ.get("NO_COLOR")
        return cls(
            width=width,
            coloured=coloured and os.environ.get("TERM") != "dumb",
            zone=dt.UTC if utc else None,
        )

    def paint(self, text: str, *styles: str) -> str:
        """Return a text with colours, which mean nothing that the words do not say."""
        if not self.coloured or not text:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"

    def time(self, at: dt.datetime) -> str:
        """Return a time to the minute; in UTC it says so."""
        return at.astimezone(self.zone).strftime("%Y-%m-%d %H:%M") + ("Z" if self.zone else "")


def count(number: int) -> str:
    """Return a number with its thousands separated."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def figure(value: float) -> str:
    """Return a reward or a mean to three significant digits; whole numbers as they are."""
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.3g}"
    return f"{value:.1f}" if value == int(value) else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
