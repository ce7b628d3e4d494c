"""Whether a process of this host still lives."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

__all__ = ["fetch_start", "host_name"]


def host_name() -> str:
    """Name this machine's run and process numbering: a process id means something only within."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot[:8]} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def fetch_start(pid: int) -> str | None:
    """Return when a living process was started, in the kernel's ticks; None: it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else rest[18]
