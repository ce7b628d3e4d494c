"""Files of JSON lines: plain, gzipped or standard input, one line in memory at a time."""

from __future__ import annotations

import contextlib
import gzip
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

__all__ = ["MAX_LINE_LENGTH", "STDIN", "LineFile", "RawLine", "open_lines"]

STDIN = Path("-")
"""Stands for standard input."""

MAX_LINE_LENGTH = 256 * 2**20
"""Bytes; no database takes one much longer, and none is worth the memory."""

_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


class RawLine(NamedTuple):
    """A line that is not blank.

    Attributes:
        number: From 1.
        text: Without white space around it; empty where there is a fault.
        is_whole: It has a line end; the last line of a file that breaks off has none.
        fault: Why it cannot be read at all; None: it can.
    """

    number: int
    text: bytes
    is_whole: bool = True
    fault: str | None = None


class LineFile:
    """An open file of lines.

    Attributes:
        size: Bytes on disk; None: nobody knows.
    """

    def __init__(self, path: Path, raw: IO[bytes], size: int | None) -> None:
        self.path, self.size = path, size
        self._raw, self._read = raw, 0

    @property
    def position(self) -> int:
        """How many bytes on disk were read, nearly."""
        return self._read if self.size is None else self._raw.tell()

    def lines(self) -> Iterator[RawLine]:
        """Yield the lines; what is damaged yields its fault, and ends the file if it must."""
        number = 0
        try:
            plain = self._decompressed()
            while raw := plain.readline(MAX_LINE_LENGTH):
                number += 1
                self._read += len(raw)
                is_whole = raw.endswith(b"\n")
                if len(raw) == MAX_LINE_LENGTH and not is_whole:
                    self._skip_line(plain)
                    yield RawLine(number, b"", fault=f"it is longer than {MAX_LINE_LENGTH:,} bytes")
                    continue
                text = (raw.removeprefix(_BOM) if number == 1 else raw).strip()
                if text:
                    yield RawLine(number, text, is_whole)
        except _DAMAGED as error:
            yield RawLine(number + 1, b"", fault=f"the gzip file is damaged from here on: {error}")

    def _decompressed(self) -> IO[bytes]:
        start = self._raw.peek(len(_GZIP_MAGIC))  # type: ignore[attr-defined]  # it is buffered
        if start.startswith(_GZIP_MAGIC):
            return gzip.open(self._raw)  # type: ignore[return-value]  # it reads bytes
        return self._raw

    def _skip_line(self, plain: IO[bytes]) -> None:
        while (raw := plain.readline(2**20)) and not raw.endswith(b"\n"):
            self._read += len(raw)


@contextlib.contextmanager
def open_lines(path: Path) -> Iterator[LineFile]:
    """Open a file, or standard input for `STDIN`.

    Raises:
        OSError: It cannot be read.
    """
    if path == STDIN:
        yield LineFile(Path("stdin"), sys.stdin.buffer, None)
        return
    with path.open("rb") as raw:
        yield LineFile(path, raw, path.stat().st_size if path.is_file() else None)
