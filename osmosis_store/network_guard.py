"""Refusing connections and programs while a regrade runs; a guard against mistakes, no sandbox."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import json
import os
import platform
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from osmosis_store.audit_events import LOOK_UP, THREAD_STARTS, to_attempt
from osmosis_store.errors import NetworkRefused

__all__ = ["ContextThreadPool", "NetworkGuard", "Watch", "store_connection"]

P = ParamSpec("P")
T = TypeVar("T")

_KEPT_REFUSALS = 8
_NOBODY = 0
_keys = itertools.count(1)

_active: tuple[NetworkGuard, ...] = ()
_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)
_for_the_store: ContextVar[bool] = ContextVar("for_the_store", default=False)
_watch_of_thread: weakref.WeakKeyDictionary[threading.Thread, Watch] = weakref.WeakKeyDictionary()
# Reentrant: a finalizer that the collector runs under it may connect as well.
_lock = threading.RLock()


class Watch:
    """What was refused to one grading.

    Attributes:
        is_open: Whether the grading still goes on.
        refused: What it tried, the first few, as `NetworkRefused` words it.
        overlapped_unattributed: The first few refusals while it was open that may have been its
            own or those of another grading: a thread that several share asked.
    """

    def __init__(self, guard: NetworkGuard, on_refused: Callable[[], None] | None) -> None:
        self.guard, self.key, self.is_open = guard, next(_keys), True
        self.refused: list[str] = []
        self.overlapped_unattributed: list[str] = []
        self._on_refused = on_refused

    @property
    def error(self) -> str | None:
        """Why the grading cannot be trusted, even if it swallowed the refusal; None: it can."""
        if self.refused:
            return self.refused[0]
        if self.overlapped_unattributed:
            return (
                f"{self.overlapped_unattributed[0]}; it came from a thread that gradings share, "
                "so it may have been this one"
            )
        return None

    def _note(self, texts: list[str], text: str) -> None:
        is_first = self.error is None
        if len(texts) < _KEPT_REFUSALS:
            texts.append(text)
        if is_first and self._on_refused is not None:
            self._on_refused()


class NetworkGuard:
    """Refuses connections, lookups of names and starting programs while it is active.

    Sees what the interpreter's audit events show: everything that Python's own sockets and
    processes do, stock asyncio included; nothing of C libraries that open sockets themselves, such
    as libpq or uvloop. A child made by fork is guarded too; one made by spawn counts as a program.

    Args:
        allow: Count instead of refusing.
        whole_process: Refuse whichever thread asks; False: only where a grading is watched, as
            far as its context reaches (tasks, `asyncio.to_thread`, threads that it starts).
    """

    def __init__(self, *, allow: bool = False, whole_process: bool = True) -> None:
        self.allow, self.whole_process = allow, whole_process
        self._allowed = self._refused = self._unattributed = 0
        self._watches: dict[int, Watch] = {}
        self._pid = os.getpid()
        self._from_children: tuple[int, int] | None = None

    @property
    def allowed(self) -> int:
        """How often a connection, a datagram or a program was let through."""
        self._hear_children()
        return self._allowed

    @property
    def refused(self) -> int:
        """How often something was refused; lookups of names count."""
        self._hear_children()
        return self._refused

    @property
    def unattributed(self) -> int:
        """How many of the refused ones no open watch could be named for."""
        self._hear_children()
        return self._unattributed

    @contextmanager
    def active(self) -> Iterator[None]:
        """Guard until the block is left.

        Raises:
            RuntimeError: Another guard is active and one of the two is for the whole process.
        """
        global _active
        _install()
        with _lock:
            others = [guard for guard in _active if self.whole_process or guard.whole_process]
            if others or self in _active:
                raise RuntimeError("a regrade that guards the whole process runs alone in it")
            self._pid, self._from_children = os.getpid(), _open_pipe()
            _active = (*_active, self)
        try:
            yield
        finally:
            with _lock:
                _active = tuple(guard for guard in _active if guard is not self)
                self._hear_children()
                self._close_pipe()

    @contextmanager
    def watching(self, on_refused: Callable[[], None] | None = None) -> Iterator[Watch]:
        """Attribute to one grading what is refused in the block and what the block starts.

        Args:
            on_refused: Called at the first refusal that makes the result untrustworthy, in the
                thread that asked.
        """
        watch = Watch(self, on_refused)
        with _lock:
            self._watches[watch.key] = watch
        token = _watch.set(watch)
        try:
            yield watch
        finally:
            _watch.reset(token)
            with _lock:
                self._hear_children()
                watch.is_open = False
                del self._watches[watch.key]

    def _meet(self, watch: Watch | None, what: str, *, is_lookup: bool) -> None:
        key = _NOBODY if watch is None else watch.key
        text = "" if self.allow else str(NetworkRefused(what))
        if not (self.allow and is_lookup):
            if os.getpid() == self._pid:
                self._count(key, text)
            elif self._from_children is not None:
                _tell_parent(self._from_children[1], key, text)
        if not self.allow:
            raise NetworkRefused(what)

    def _count(self, key: int, text: str) -> None:
        with _lock:
            if not text:
                self._allowed += 1
                return
            self._refused += 1
            watch = self._watches.get(key)
            if watch is not None:
                watch._note(watch.refused, text)
                return
            self._unattributed += 1
            for other in list(self._watches.values()):
                other._note(other.overlapped_unattributed, text)

    def _close_pipe(self) -> None:
        pipe, self._from_children = self._from_children, None
        for end in pipe or ():
            os.close(end)

    def _hear_children(self) -> None:
        if not _has_forked:  # a read of the pipe for each grading costs more than a short grading
            return
        with _lock:
            if self._from_children is None or os.getpid() != self._pid:
                return
            received = b""
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(self._from_children[0], 65536):
                    received += chunk
            for line in received.splitlines():
                key, text = json.loads(line)
                self._count(key, text)


class ContextThreadPool(ThreadPoolExecutor):
    """Threads that run each call in its caller's context: as an event loop's default executor,
    it lets the guard say whose lookup or connection it was."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in a thread, in a copy of the present context."""
        context = contextvars.copy_context()
        return super().submit(lambda: context.run(fn, *args, **kwargs))


@contextmanager
def store_connection() -> Iterator[None]:
    """Let the store's own driver look its server up, in the calling thread."""
    token = _for_the_store.set(True)
    try:
        yield
    finally:
        _for_the_store.reset(token)


def _open_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


def _tell_parent(writer: int, key: int, text: str) -> None:
    # Short enough to be written as one piece; OSError: the parent is gone or does not listen.
    with contextlib.suppress(OSError):
        os.write(writer, json.dumps([key, text[:500]]).encode()[:2000] + b"\n")


_installed = False


def _install() -> None:
    """Add the hook; nothing can take it away again, and without an active guard it is idle."""
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
        platform.processor()  # starts a program once; HTTP clients ask for it on their first call
        sys.addaudithook(_hook)
        os.register_at_fork(before=_note_fork, after_in_child=_renew_lock)
        if sys.version_info < (3, 12):
            _audit_thread_starts()
        _refuse_spawning()


_has_forked = False


def _note_fork() -> None:
    global _has_forked
    _has_forked = True


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


def _audit_thread_starts() -> None:
    """Raise on Python 3.11 the event with which later versions announce a thread."""
    start: Callable[..., int] = threading._start_new_thread  # type: ignore[attr-defined] # private

    def start_audited(function: Callable[..., object], *args: Any) -> int:
        sys.audit("_thread.start_new_thread", function, *args)
        return start(function, *args)

    threading._start_new_thread = start_audited  # type: ignore[attr-defined] # private


def _refuse_spawning() -> None:
    """Ask when a process is pickled for its new interpreter: starting that raises no event."""
    # Imported here: opening a store imports this module and does not pay for them.
    from multiprocessing import context
    from multiprocessing.reduction import ForkingPickler

    for kind in (context.Process, context.SpawnProcess, context.ForkServerProcess):
        ForkingPickler.register(kind, _reduce_process)


def _reduce_process(process: Any) -> Any:
    """Pickle a process that is to be spawned, unless programs are refused here."""
    if _active:
        _judge("start a process by spawn", is_lookup=False)
    return process.__reduce_ex__(2)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _active:
        return
    if event in THREAD_STARTS:
        _hand_down(args[0])
    elif (attempt := to_attempt(event, args)) is not None and not _for_the_store.get():
        _judge(attempt, is_lookup=attempt.startswith(LOOK_UP))


def _judge(what: str, *, is_lookup: bool) -> None:
    watch = _current_watch()
    if watch is not None and watch.guard in _active:
        watch.guard._meet(watch, what, is_lookup=is_lookup)
        return
    for guard in _active:
        if guard.whole_process:
            guard._meet(None, what, is_lookup=is_lookup)


def _current_watch() -> Watch | None:
    watch = _watch.get()
    if watch is None:
        thread = threading.current_thread()
        with _lock:
            watch = _watch_of_thread.get(thread)
    return watch


def _hand_down(function: Any) -> None:
    """Remember whose grading starts a thread, unless the thread may come to be shared."""
    watch = _current_watch()
    thread = getattr(function, "__self__", None)
    if watch is None or not isinstance(thread, threading.Thread):
        return
    target = getattr(thread, "_target", None)
    if getattr(target, "__module__", None) != "concurrent.futures.thread":
        with _lock:
            _watch_of_thread[thread] = watch
