"""The store's errors: one tree, each with its data as attributes and the exit code of the CLI."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = [
    "CorruptItem",
    "EvalRunNotFound",
    "GraderNotLoadable",
    "GradingRunNotFound",
    "InvalidId",
    "InvalidSelection",
    "InvalidStoreUrl",
    "ItemNotStorable",
    "LabelNotStorable",
    "LeaseLost",
    "NoStoreGiven",
    "NotAStore",
    "OutcomeUnknown",
    "RolloutExists",
    "RolloutFinished",
    "RolloutNotFound",
    "SampleNotFound",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreForked",
    "StoreFull",
    "StoreIsNewer",
    "StoreNeedsUpgrade",
    "StoreNotFound",
    "StoreReadOnly",
    "StoreReplaced",
    "StoreUnreachable",
]

_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class StoreError(Exception):
    """Base of the store's errors; the CLI prints it on one line and exits with `exit_code`.

    Attributes:
        hint: What to do, one sentence a line; empty when the message says it.
        code: The error's name for machines, stable across releases.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def code(self) -> str:
        """The class name in snake case, as the JSON error envelope carries it."""
        return _WORDS.sub("_", type(self).__name__).lower()

    @property
    def details(self) -> dict[str, Any]:
        """The error's data as JSON values."""
        return {name: value for name, value in vars(self).items() if name != "hint"}


class InvalidStoreUrl(StoreError, ValueError):
    """A store URL has a form or a driver that this store does not serve."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"cannot use {url} as a store: {reason}",
            hint="write sqlite:///relative/path.db, sqlite:////absolute/path.db or "
            "postgresql://user@host/database",
        )
        self.url, self.reason = url, reason


class NoStoreGiven(StoreError, ValueError):
    """Nothing says which store to use."""


class StoreNotFound(StoreError, LookupError):
    """There is no database at this place."""

    exit_code = 4

    def __init__(self, place: str, nearby: Sequence[str] = ()) -> None:
        known = f"stores in this folder: {', '.join(nearby)}\n" if nearby else ""
        super().__init__(
            f"no database at {place}",
            hint=known + "create one with `osmosis eval run …`, or name it with --store",
        )
        self.place, self.nearby = place, list(nearby)


class NotAStore(StoreError):
    """The database is not one of ours, or the file is no database at all."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place} is not an osmosis store: {reason}")
        self.place, self.reason = place, reason


class StoreNeedsUpgrade(StoreError):
    """The database was made by an older version; opening never migrates."""

    def __init__(self, place: str, revision: str, head: str) -> None:
        super().__init__(
            f"{place} is at revision {revision}, this version needs {head}",
            hint="run `osmosis-store db upgrade` (a copy is kept beside a SQLite file)",
        )
        self.place, self.revision, self.head = place, revision, head


class StoreIsNewer(StoreError):
    """The database was made by a newer version of this package."""

    def __init__(self, place: str, revision: str, head: str) -> None:
        super().__init__(
            f"{place} is at revision {revision}, which this version (at {head}) does not know",
            hint="upgrade osmosis-store to the version that made it",
        )
        self.place, self.revision, self.head = place, revision, head


class StoreReadOnly(StoreError):
    """Something wants to write where writing is not possible."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} cannot be written",
            hint="check the permissions of the file and its folder, and whether it was opened "
            "read-only",
        )
        self.place = place


class StoreBusy(StoreError, TimeoutError):
    """Another process held the database for longer than the busy timeout."""

    def __init__(self, place: str, waited_s: float, holders: str = "") -> None:
        who = f"; open in {holders}" if holders else ""
        super().__init__(f"{place} stayed locked for {waited_s:g} s{who}")
        self.place, self.waited_s, self.holders = place, waited_s, holders


class StoreFull(StoreError):
    """The disk, or the database's own size limit, leaves no room; nothing was stored."""

    def __init__(self, place: str) -> None:
        super().__init__(f"no room left to write to {place}", hint="free space, then run it again")
        self.place = place


class StoreCorrupt(StoreError):
    """The database engine found its file damaged."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place} is damaged: {reason}", hint="restore it from a backup")
        self.place, self.reason = place, reason


class StoreReplaced(StoreError):
    """The database file is no longer the one that was opened."""

    def __init__(self, place: str) -> None:
        super().__init__(f"{place} was moved, deleted or replaced while it was open")
        self.place = place


class StoreUnreachable(StoreError):
    """The database server cannot be reached or refuses the connection."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"cannot reach {place}: {reason}")
        self.place, self.reason = place, reason


class StoreClosed(StoreError):
    """The store was closed."""

    def __init__(self, place: str) -> None:
        super().__init__(f"the store at {place} is closed", hint="open it again with Store.open")
        self.place = place


class StoreForked(StoreError):
    """An open store came into a child process by fork."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"the store at {place} was opened before this process was forked",
            hint="open it again with Store.open in the child",
        )
        self.place = place


class OutcomeUnknown(StoreError):
    """A commit's connection broke and the database cannot say whether it took effect."""

    def __init__(self, place: str, writes: Sequence[str]) -> None:
        super().__init__(
            f"the connection to {place} broke during a commit whose outcome cannot be known: "
            + "; ".join(writes),
            hint="look at the samples named before writing the same again",
        )
        self.place, self.writes = place, list(writes)


class InvalidId(StoreError, ValueError):
    """An id that cannot be a key."""

    def __init__(self, kind: str, value: object, reason: str) -> None:
        super().__init__(f"{value!r} cannot be a {kind}: {reason}")
        self.kind, self.value, self.reason = kind, str(value), reason


class InvalidSelection(StoreError, ValueError):
    """A selection's value has no meaning."""

    exit_code = 2


class EvalRunNotFound(StoreError, LookupError):
    """No eval run has this id."""

    exit_code = 4

    def __init__(self, eval_run_id: str) -> None:
        super().__init__(f"no eval run {eval_run_id!r}")
        self.eval_run_id = eval_run_id


class RolloutNotFound(StoreError, LookupError):
    """No rollout has this id."""

    exit_code = 4

    def __init__(self, rollout_id: str) -> None:
        super().__init__(
            f"no rollout {rollout_id!r}", hint="see `osmosis-store rollouts list` for the ids"
        )
        self.rollout_id = rollout_id


class SampleNotFound(StoreError, LookupError):
    """No sample has this id."""

    exit_code = 4

    def __init__(self, rollout_id: str, sample_id: str, known: Sequence[str] = ()) -> None:
        super().__init__(
            f"no sample {sample_id!r} in rollout {rollout_id!r}",
            hint=f"it has {', '.join(known)}" if known else "",
        )
        self.rollout_id, self.sample_id = rollout_id, sample_id


class GradingRunNotFound(StoreError, LookupError):
    """No grading run has this id."""

    exit_code = 4

    def __init__(self, grading_run_id: str) -> None:
        super().__init__(f"no grading run {grading_run_id!r}")
        self.grading_run_id = grading_run_id


class RolloutExists(StoreError, ValueError):
    """A rollout with this id is stored already."""

    def __init__(self, rollout_id: str) -> None:
        super().__init__(
            f"a rollout {rollout_id!r} exists already", hint="give each rollout its own id"
        )
        self.rollout_id = rollout_id


class RolloutFinished(StoreError, ValueError):
    """A conversation was to be opened by a name that belongs to a rollout that was run."""

    def __init__(self, rollout_id: str, status: str) -> None:
        super().__init__(
            f"{rollout_id!r} is a rollout with status {status}, not an open conversation",
            hint="to continue its conversation use store.session(rollout_id, sample_id)",
        )
        self.rollout_id, self.status = rollout_id, status


class LeaseLost(StoreError):
    """A worker writes to a rollout that another one has taken over."""

    def __init__(self, rollout_id: str) -> None:
        super().__init__(f"this worker no longer holds rollout {rollout_id!r}; nothing was stored")
        self.rollout_id = rollout_id


class ItemNotStorable(StoreError, ValueError):
    """An item would not come back as it was given; nothing of its call is stored.

    Attributes:
        index: The item's position in the call, from 0.
        path: Where inside the item, as `content[0].text`; empty for the item itself.
    """

    def __init__(self, index: int, path: str, reason: str) -> None:
        where = f"item {index}" + (f" at {path}" if path else "")
        super().__init__(f"{where} cannot be stored: {reason}")
        self.index, self.path, self.reason = index, path, reason


class LabelNotStorable(StoreError, ValueError):
    """A rollout's label would not come back as it was given; the rollout is not run."""

    def __init__(self, rollout_id: str, label: str) -> None:
        super().__init__(
            f"the label of rollout {rollout_id!r} cannot be stored: {label!r} holds NUL or a lone "
            "surrogate"
        )
        self.rollout_id, self.label = rollout_id, label


class CorruptItem(StoreError, ValueError):
    """A stored body does not decode."""

    def __init__(self, rollout_id: str, sample_id: str, seq: int, reason: str) -> None:
        super().__init__(
            f"item {seq} of sample {sample_id!r} in rollout {rollout_id!r} does not decode: "
            f"{reason}"
        )
        self.rollout_id, self.sample_id, self.seq = rollout_id, sample_id, seq
        self.reason = reason


class GraderNotLoadable(StoreError):
    """A grader reference does not lead to a Grader class."""
