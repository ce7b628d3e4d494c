"""The rollout SDK's graders as the ledger knows them: identity, loading, grades."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.recording import GradeReport
from osmosis_ai.rollout.types import GraderConfig, RolloutSample
from osmosis_ai.rollout.utils.digest import CodeDigest, code_digest, source_file
from osmosis_ai.rollout.utils.fresh_imports import import_file, make_importable
from osmosis_store.adapters.error_text import to_error_text
from osmosis_store.codec import to_clean_text, to_json_text
from osmosis_store.errors import GraderNotLoadable
from osmosis_store.records import NewGrade

__all__ = [
    "GraderIdentity",
    "GraderSource",
    "folder_of",
    "identify_grader",
    "load_grader",
    "source_of",
    "to_new_grade",
    "to_new_grades",
]

_EXPLANATION = "explanation"


class GraderSource(NamedTuple):
    """Where a grader can be loaded from: what `load_grader` takes."""

    reference: str
    folder: Path


# The file as it was named and its folder, by the module that was made of it.
_files: dict[str, tuple[str, Path]] = {}


@dataclass(frozen=True)
class GraderIdentity:
    """Which grader it is: its reference, and the digest of its code and config.

    Attributes:
        covers: What the digest is over, as qualified names.
        config: As JSON values; None: no config.
    """

    reference: str
    digest: str
    covers: tuple[str, ...]
    config: dict[str, Any] | None


def identify_grader(grader: type[Grader], config: GraderConfig | None) -> GraderIdentity:
    """Return a grader's identity; two with one digest give the same grades for the same items."""
    values = None if config is None else config.model_dump(mode="json", fallback=_type_name)
    code = _code_digest(grader)
    return GraderIdentity(
        reference=source_of(grader).reference,
        digest=sha256(f"{code.digest} {to_json_text(values)}".encode()).hexdigest(),
        covers=code.covers,
        config=values,
    )


def source_of(grader: type[Grader]) -> GraderSource:
    """Return where a grader is from; a module without a file is looked for in this folder."""
    module = grader.__module__
    where, folder = _files.get(module, (module, Path.cwd()))
    return GraderSource(f"{where}:{grader.__qualname__}", folder)


def folder_of(grader: type[Grader]) -> Path | None:
    """Return the folder that a grader's file is in; None: it is in no file."""
    file = getattr(sys.modules.get(grader.__module__), "__file__", None)
    return Path(file).resolve().parent if file else None


def _code_digest(grader: type[Grader]) -> CodeDigest:
    """Read a file's code once: what is loaded does not change with it, as a notebook's does."""
    return code_digest(grader) if source_file(grader) is None else _read_once(grader)


@functools.cache
def _read_once(grader: type[Grader]) -> CodeDigest:
    return code_digest(grader)


def _type_name(value: object) -> str:
    """Stand for a config value that JSON cannot hold, the same in every process."""
    return f"{type(value).__module__}:{type(value).__qualname__}"


def load_grader(
    reference: str, folder: Path, config: dict[str, Any]
) -> tuple[type[Grader], GraderConfig | None]:
    """Find a grader and the config that it is given.

    The config is the module's only `GraderConfig` instance, if it has one, with the given values
    over it; without an instance the values make a plain `GraderConfig`.

    Args:
        reference: `module:Class`, or `file.py:Class` with the file relative to `folder`.
        config: Values by field name; empty: the module's own, or none.

    Raises:
        GraderNotLoadable: Names what is missing, and the graders that are there.
    """
    where, colon, name = reference.rpartition(":")
    if not (where and colon and name):
        raise GraderNotLoadable(
            f"{reference!r} names no grader", hint="write file.py:Class or module:Class"
        )
    module = _load_file(folder, where) if where.endswith(".py") else _load_module(where, folder)
    grader = getattr(module, name, None)
    if not (isinstance(grader, type) and issubclass(grader, Grader)):
        what = "no class" if grader is None else "no grader"
        raise GraderNotLoadable(f"{where} has {what} {name}", hint=_graders_of(module))
    return grader, _config_of(module, where, config)


def _load_file(folder: Path, file: str) -> ModuleType:
    path = folder / file
    if not path.is_file():
        raise GraderNotLoadable(f"there is no file {path}")
    # a name of its own for each file: two graders.py in one process are two modules
    name = f"osmosis_grader_{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    _files[name] = (file, folder)
    try:
        make_importable(path.resolve().parent)
        return import_file(path.resolve(), name)
    except (Exception, SystemExit) as error:
        raise _not_importable(str(path), error) from error


def _load_module(name: str, folder: Path) -> ModuleType:
    try:
        make_importable(folder.resolve())
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _not_importable(name, error) from error


def _not_importable(name: str, error: BaseException) -> GraderNotLoadable:
    return GraderNotLoadable(
        f"{name} cannot be imported: {type(error).__name__}: {error}",
        hint="--debug shows the traceback",
    )


def _graders_of(module: ModuleType) -> str:
    found = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Grader) and not inspect.isabstract(value)
    ]
    return f"it defines {', '.join(found)} (Grader)" if found else "it defines no Grader"


def _config_of(module: ModuleType, where: str, values: dict[str, Any]) -> GraderConfig | None:
    own = {id(value): value for value in vars(module).values() if isinstance(value, GraderConfig)}
    if len(own) > 1:
        raise GraderNotLoadable(f"{where} has {len(own)} GraderConfig instances; keep one")
    config = next(iter(own.values()), None)
    if not values:
        return config
    kind = GraderConfig if config is None else type(config)
    base = {"name": where} if config is None else config.model_dump()
    try:
        return kind.model_validate({**base, **values})
    except ValueError as error:
        raise GraderNotLoadable(f"the config does not fit {kind.__name__}: {error}") from error


def to_new_grades(report: GradeReport) -> list[NewGrade]:
    """Return one grade per sample; a grading that failed is an error for each of them."""
    return [
        to_new_grade(name, sample, label=report.label, error=report.error)
        for name, sample in report.samples.items()
    ]


def to_new_grade(
    sample_id: str,
    sample: RolloutSample,
    *,
    label: str | None,
    error: str | None,
    graded_head: bytes | None = None,
) -> NewGrade:
    """Return what a grader said of a sample.

    Args:
        error: Why the grading failed; then the sample's reward counts for nothing.
        graded_head: The chain head of the items that it saw; None: that of those stored now.
    """
    explanation = sample.extra_fields.get(_EXPLANATION)
    if error is None and sample.reward is None and not sample.remove_sample:
        error = "the grader gave no reward"
    return NewGrade(
        sample_id=sample_id,
        reward=None if error is not None else sample.reward,
        error=to_error_text(error),
        removed=sample.remove_sample and error is None,
        metrics=(sample.json_safe_copy().metrics or None) if sample.metrics else None,
        explanation=to_clean_text(explanation) if isinstance(explanation, str) else None,
        label=label,
        graded_head=graded_head,
    )
