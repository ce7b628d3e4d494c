"""The interpreter's audit events that a regrade minds, and what is done there in words."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

__all__ = ["LOOK_UP", "THREAD_STARTS", "to_attempt"]

THREAD_STARTS = {"_thread.start_new_thread", "_thread.start_joinable_thread"}
LOOK_UP = "look up "


def to_attempt(event: str, args: tuple[Any, ...]) -> str | None:
    """Say what an event would do, as in "connect to 127.0.0.1:80"; None: nothing to mind.

    Looking up a name begins with `LOOK_UP`; a literal address is no lookup.
    """
    wording = _WORDINGS.get(event)
    return None if wording is None else wording(*args)


def _connect(_socket: object, address: object) -> str:
    return f"connect to {_to_text(address)}"


def _send(_socket: object, address: object) -> str | None:
    return None if address is None else f"send to {_to_text(address)}"


def _lookup(host: object, *_: object) -> str | None:
    name = host.decode("utf-8", "replace") if isinstance(host, bytes) else host
    if not isinstance(name, str) or not name:
        return None
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return f"{LOOK_UP}{name}"
    return None


def _reverse_lookup(address: object, *_: object) -> str:
    return f"{LOOK_UP}the name of {_to_text(address)}"


def _start(program: object, *_: object) -> str:
    # The name alone: arguments may hold secrets.
    name = os.fsdecode(program) if isinstance(program, str | bytes | os.PathLike) else "a program"
    return f"start {PurePath(name).name}"


def _start_listed(arguments: Any, *_: object) -> str:
    return _start(arguments if isinstance(arguments, str | bytes) else next(iter(arguments), None))


def _start_popen(executable: object, arguments: Any, *_: object) -> str:
    return _start_listed(arguments) if executable is None else _start(executable)


def _run_shell(*_: object) -> str:
    return "run a shell command"


def _spawn(_mode: object, program: object, *_: object) -> str:
    return _start(program)


_WORDINGS: dict[str, Callable[..., str | None]] = {
    "socket.connect": _connect,
    "socket.sendto": _send,
    "socket.sendmsg": _send,
    "socket.getaddrinfo": _lookup,
    "socket.gethostbyname": _lookup,
    "socket.gethostbyaddr": _reverse_lookup,
    "socket.getnameinfo": _reverse_lookup,
    "subprocess.Popen": _start_popen,
    "os.system": _run_shell,
    "os.exec": _start,
    "os.posix_spawn": _start,
    "os.spawn": _spawn,
    "pty.spawn": _start_listed,
}


def _to_text(address: object) -> str:
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    if isinstance(address, bytes):
        address = address.decode("utf-8", "replace")
    return str(address).replace("\0", "@")
