"""The store's errors: one tree, each with its data as attributes and the exit code of the CLI."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from typing import Any

__all__ = [
    "CannotResume",
    "CorruptItem",
    "EvalRunNotFound",
    "ExtraMissing",
    "FolderMissing",
    "GraderNotLoadable",
    "GraderNotShareable",
    "GradingRunNotFound",
    "InvalidComparison",
    "InvalidGrade",
    "InvalidId",
    "InvalidSelection",
    "InvalidShard",
    "InvalidStoreUrl",
    "ItemNotStorable",
    "LabelNotStorable",
    "LeaseLost",
    "MixedGrades",
    "NetworkRefused",
    "NoStoreGiven",
    "NotAStore",
    "NothingSelected",
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
    "StoreIOFailed",
    "StoreIsNewer",
    "StoreNeedsUpgrade",
    "StoreNotFound",
    "StoreReadOnly",
    "StoreReplaced",
    "StoreUnreachable",
    "WorkerDied",
]

_NAMED = 5
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
            hint="check the permissions of the file and its folder, whether the file system is "
            "mounted read-only, and whether it was opened read-only",
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


class StoreIOFailed(StoreError):
    """The operating system failed to read or write the database file."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"cannot read or write {place}: {reason}",
            hint="a limit on file sizes, the disk, or a network file system may be the cause; "
            "what was acknowledged is kept",
        )
        self.place, self.reason = place, reason


class FolderMissing(StoreError, LookupError):
    """The folder in which a database is to be made does not exist."""

    exit_code = 4

    def __init__(self, place: str, folder: str) -> None:
        super().__init__(
            f"no database can be made at {place}: there is no folder {folder}",
            hint="make the folder first, or name another place with --store",
        )
        self.place, self.folder = place, folder


class StoreReplaced(StoreError):
    """The database file is no longer the one that was opened."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} was moved, deleted or replaced while it was open",
            hint="nothing was written to the file that is there now; open the store again",
        )
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


class ExtraMissing(StoreError, ImportError):
    """Something needs a package that an extra of this one installs."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"{what} need the package {package}, which is not installed",
            hint=f"pip install 'osmosis-store[{extra}]'",
        )
        self.what, self.package, self.extra = what, package, extra


class InvalidId(StoreError, ValueError):
    """An id that cannot be a key."""

    def __init__(self, kind: str, value: object, reason: str) -> None:
        super().__init__(f"{value!r} cannot be a {kind}: {reason}")
        self.kind, self.value, self.reason = kind, str(value), reason


class InvalidSelection(StoreError, ValueError):
    """A selection's value has no meaning."""

    exit_code = 2


class InvalidShard(StoreError, ValueError):
    """A shard is not I/N with I from 1 to N."""

    exit_code = 2

    def __init__(self, shard: str) -> None:
        super().__init__(
            f"{shard!r} is no shard", hint="write I/N, as 1/4 for the first of four shares"
        )
        self.shard = shard


class NothingSelected(StoreError, LookupError):
    """No rollout fits a selection that something was to be done with."""

    exit_code = 4

    def __init__(self, selection: dict[str, Any]) -> None:
        given = ", ".join(f"{name}={value}" for name, value in selection.items())
        super().__init__(
            f"no rollout fits {given}" if given else "the store has no rollout",
            hint="`osmosis-store rollouts list` with the same flags shows what fits",
        )
        self.selection = selection


class CannotResume(StoreError, ValueError):
    """A grading run cannot be gone on with, or is not known to have failures to try again."""

    def __init__(self, grading_run_id: str | None, reason: str, *, hint: str = "") -> None:
        what = (
            "nothing to go on with" if grading_run_id is None else f"{grading_run_id} cannot go on"
        )
        super().__init__(f"{what}: {reason}", hint=hint)
        self.grading_run_id, self.reason = grading_run_id, reason


class WorkerDied(StoreError):
    """A process that was grading ended without a word; what it had stored is kept."""

    def __init__(self, worker: int, exit_code: int | None) -> None:
        super().__init__(
            f"grading process {worker} ended with code {exit_code}",
            hint="what was graded is stored; the same command grades the rest",
        )
        self.worker, self.process_exit_code = worker, exit_code


class GraderNotShareable(StoreError):
    """A grader cannot be loaded in another process."""

    def __init__(self, grader: str) -> None:
        super().__init__(
            f"{grader} cannot be graded with in other processes: it is defined in the main program",
            hint="move it to a file of its own, or grade without workers",
        )
        self.grader = grader


class TextIndexUnavailable(StoreError):
    """The database has nothing to make a text index of."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"no text index can be made: {reason}",
            hint="searches give the same answers without one, slower",
        )
        self.reason = reason


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

    def __init__(self, grading_run_id: str, newest: Sequence[str] = ()) -> None:
        super().__init__(
            f"no grading run {grading_run_id!r}",
            hint=f"the newest are {', '.join(newest)}" if newest else "",
        )
        self.grading_run_id, self.newest = grading_run_id, list(newest)


class InvalidGrade(StoreError, ValueError):
    """A grade that somebody wants to add says nothing that can be kept; nothing is stored."""

    exit_code = 2


class InvalidComparison(StoreError, ValueError):
    """Two grading runs cannot be compared like this."""

    exit_code = 2


class MixedGrades(StoreError, ValueError):
    """Grades were to be compared of which some are not of the same: other labels, other items.

    Attributes:
        compared_count: Samples that both grading runs gave a reward to, those named included.
        samples: The ones that differ: ids, `labels_differ`, `items_differ`, and the labels.
    """

    exit_code = 3

    def __init__(
        self, a: str, b: str, compared_count: int, samples: Sequence[dict[str, Any]]
    ) -> None:
        labels = sum(one["labels_differ"] for one in samples)
        items = sum(one["items_differ"] for one in samples)
        reasons = [
            f"{count:,} graded with {what}"
            for count, what in ((labels, "another label"), (items, "other items"))
            if count
        ]
        super().__init__(
            f"cannot compare {a} with {b}: of {compared_count:,} samples {' and '.join(reasons)}",
            hint="\n".join(
                [
                    *map(_tell_mixed, samples[:_NAMED]),
                    *([f"and {len(samples) - _NAMED:,} more"] if len(samples) > _NAMED else []),
                    "regrade them with both graders, or compare them all the same: --allow-mixed",
                ]
            ),
        )
        self.a, self.b, self.compared_count = a, b, compared_count
        self.samples = list(samples)


def _tell_mixed(sample: dict[str, Any]) -> str:
    reasons = []
    if sample["labels_differ"]:
        reasons.append(f"label {sample['label_a']!r} and {sample['label_b']!r}")
    if sample["items_differ"]:
        reasons.append("other items")
    return f"{sample['rollout_id']} {sample['sample_id']}: {', '.join(reasons)}"


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


class NetworkRefused(StoreError, PermissionError):
    """A grader tried to reach the network or to start a program.

    An `OSError`, so that HTTP clients take it for a connection that failed and keep its text.
    """

    def __init__(self, attempt: str) -> None:
        message = (
            f"the grader tried to {attempt}; refused, since a regrade uses no network "
            "(a judge may: --allow-network)"
        )
        super().__init__(message)
        # aiohttp and others show these instead of the text
        self.errno, self.strerror = errno.EACCES, message
        self.attempt = attempt

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[type[NetworkRefused], tuple[str]]:
        return type(self), (self.attempt,)


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
