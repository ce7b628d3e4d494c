"""The standard streams as commands and the user code in them get them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

__all__ = ["OutputFailed", "lend_streams"]


class OutputFailed(OSError):
    """Standard output cannot be written."""


class _Lent:
    """A stream that its borrower cannot close: the outcome has still to be told."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _Lent:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, text: str) -> int:
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self.flush()


class _Output(_Lent):
    """Standard output, whose failures are told from those of any other file."""

    def write(self, text: str) -> int:
        with _failing_as_output():
            return self._stream.write(text)

    def flush(self) -> None:
        with _failing_as_output():
            self._stream.flush()


@contextlib.contextmanager
def _failing_as_output() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(*error.args) from error


@contextlib.contextmanager
def lend_streams() -> Iterator[None]:
    """Let whoever prints in this block use the standard streams, and nobody close them."""
    with (
        contextlib.redirect_stdout(cast("TextIO", _Output(sys.stdout))),
        contextlib.redirect_stderr(cast("TextIO", _Lent(sys.stderr))),
    ):
        yield
