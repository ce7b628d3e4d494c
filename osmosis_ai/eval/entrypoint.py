"""Loading a rollout's entry point: its workflow, its grader and their configs."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from osmosis_ai.eval.errors import EntrypointError
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import AgentWorkflowConfig, GraderConfig
from osmosis_ai.rollout.utils.fresh_imports import import_file, make_importable

__all__ = ["Entrypoint", "load_entrypoint"]

T = TypeVar("T")

_importable_dirs: list[Path] = []


@dataclass(frozen=True, kw_only=True)
class Entrypoint:
    """What an entry point defines; `grader` and the configs are None where it has none."""

    workflow: type[AgentWorkflow[Any]]
    workflow_config: AgentWorkflowConfig | None
    grader: type[Grader] | None
    grader_config: GraderConfig | None

    @property
    def workflow_path(self) -> str:
        """The workflow as `module:Class`."""
        return f"{self.workflow.__module__}:{self.workflow.__qualname__}"

    @property
    def grader_path(self) -> str | None:
        """The grader as `module:Class`."""
        if self.grader is None:
            return None
        return f"{self.grader.__module__}:{self.grader.__qualname__}"


def load_entrypoint(path: Path, *, rollout_dir: Path, name: str) -> Entrypoint:
    """Import an entry point and find its workflow, grader and configs.

    The modules beside it become importable by their plain names, and those of a rollout that was
    loaded before are forgotten.

    Args:
        rollout_dir: The folder whose modules become importable.
        name: The path as error texts show it.

    Raises:
        EntrypointError: It cannot be imported, or does not define exactly one concrete workflow,
            at most one grader and at most one config of each kind.
    """
    _make_importable(rollout_dir, path, name)
    module = _import(path, f"rollouts.{rollout_dir.name}.{path.stem}", name)
    workflow = _find_class(module, AgentWorkflow, name)  # type: ignore[type-abstract]  # a base
    if workflow is None:
        raise EntrypointError(
            name,
            "defines no AgentWorkflow",
            hint="subclass it and define `async def run(self, ctx)`",
        )
    grader = _find_class(module, Grader, name)  # type: ignore[type-abstract]  # a base
    _require_async(workflow, "run", name)
    if grader is not None:
        _require_async(grader, "grade", name)
    return Entrypoint(
        workflow=workflow,
        workflow_config=_find_config(module, AgentWorkflowConfig, name),
        grader=grader,
        grader_config=_find_config(module, GraderConfig, name),
    )


def _make_importable(rollout_dir: Path, entrypoint: Path, name: str) -> None:
    for folder in [*_importable_dirs, rollout_dir]:
        for key, module in sys.modules.copy().items():
            if (file := getattr(module, "__file__", None)) and Path(file).is_relative_to(folder):
                del sys.modules[key]
        while str(folder) in sys.path:
            sys.path.remove(str(folder))
    for path in rollout_dir.iterdir():
        is_module = path.suffix == ".py" or (path / "__init__.py").is_file()
        if is_module and path != entrypoint and path.stem in sys.modules:
            raise EntrypointError(
                name,
                f"the module {path.name} beside it cannot be imported: another module named "
                f"{path.stem!r} is loaded",
                hint="rename it",
            )
    _importable_dirs[:] = [rollout_dir]
    make_importable(rollout_dir)


def _import(path: Path, module_name: str, name: str) -> ModuleType:
    if path.suffix != ".py":
        raise EntrypointError(name, "is not a Python file")
    try:
        return import_file(path, module_name)
    except (Exception, SystemExit) as error:
        raise EntrypointError(
            name,
            f"cannot be imported: {type(error).__name__}: {error}",
            hint="--debug shows the traceback",
        ) from error


def _find_class(module: ModuleType, base: type[T], name: str) -> type[T] | None:
    found: dict[str, type[T]] = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and not inspect.isabstract(value)
    }
    return _require_one(name, f"concrete {base.__name__} classes", found)


def _require_async(owner: type, method: str, name: str) -> None:
    """Refuse an ordinary function: each row's model calls would be paid before it fails."""
    function = getattr(owner, method)
    is_wrapped = hasattr(function, "__wrapped__")  # what a decorator returns may be awaitable
    if inspect.isfunction(function) and not (inspect.iscoroutinefunction(function) or is_wrapped):
        raise EntrypointError(
            name,
            f"{owner.__name__}.{method} is an ordinary function",
            hint=f"write `async def {method}(self, ctx)`",
        )


def _find_config(module: ModuleType, kind: type[T], name: str) -> T | None:
    found = {key: value for key, value in vars(module).items() if isinstance(value, kind)}
    return _require_one(name, f"{kind.__name__} instances", found)


def _require_one(name: str, what: str, found: dict[str, T]) -> T | None:
    distinct = {id(value): key for key, value in found.items()}
    if len(distinct) > 1:
        raise EntrypointError(
            name,
            f"defines {len(distinct)} {what}: {', '.join(distinct.values())}",
            hint="keep one of them",
        )
    return next(iter(found.values()), None)
