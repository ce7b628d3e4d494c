"""An eval run's effective settings: the TOML and the flags, paths resolved inside the workspace."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from osmosis_ai.eval.errors import ConfigError
from osmosis_ai.eval.tables import SCRIPTED_MODEL, Override, Tables, read_tables

__all__ = ["EvalConfig", "Override", "load_config"]

NAME = re.compile(r"[a-z][a-z0-9-]*")
NAME_RULE = "a name being lower-case letters, digits and hyphens after a first letter"
DEFAULT_STORE_PATH = PurePath(".osmosis", "rollouts.db")
SQLITE_FILE_URL = re.compile(r"sqlite:///(?!/|:memory:)(?P<path>.+)")


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """One eval run's effective settings; every path is absolute, and what is read exists.

    Attributes:
        rollout_dir: `rollouts/<rollout>` of the workspace; `entrypoint` lies in it.
        limit: How many rows to run, from `offset` on; None: all.
        script: The scripted policy's file; None unless `model` is "scripted".
        n: Attempts per row.
        batch_size: Rollouts that run at the same time.
        pass_threshold: The least reward that passes.
        output_path: The folder for result files; None: a folder per eval run in `.osmosis/results`.
        store_url: Where rollouts are kept, as a database URL.
    """

    config_path: Path
    workspace: Path
    rollout: str
    rollout_dir: Path
    entrypoint: Path
    dataset: Path
    limit: int | None
    offset: int
    fresh: bool
    retry_failed: bool
    model: str
    base_url: str | None
    api_key_env: str | None
    script: Path | None
    n: int
    batch_size: int
    pass_threshold: float
    agent_workflow_timeout_s: float
    grader_timeout_s: float
    log_samples: bool
    quiet: bool
    debug: bool
    output_path: Path | None
    store_url: str

    def shorten(self, path: Path) -> str:
        """Return a path as people write it: relative to the workspace where it lies inside."""
        return str(
            path.relative_to(self.workspace) if path.is_relative_to(self.workspace) else path
        )

    def to_settings(self) -> dict[str, Any]:
        """Return what shapes the eval run as JSON values, paths relative to the workspace."""
        return {
            "rollout": self.rollout,
            "entrypoint": self.shorten(self.entrypoint),
            "dataset": self.shorten(self.dataset),
            "limit": self.limit,
            "offset": self.offset,
            "n": self.n,
            "batch_size": self.batch_size,
            "pass_threshold": self.pass_threshold,
            "agent_workflow_timeout_s": self.agent_workflow_timeout_s,
            "grader_timeout_s": self.grader_timeout_s,
        }


def load_config(path: Path, overrides: Mapping[Override, Any] | None = None) -> EvalConfig:
    """Read an eval TOML and lay command-line values over it.

    Args:
        path: The TOML; it lies in `configs/eval/` of its workspace.
        overrides: Values that win over the file's. A relative `output_path` counts from the
            current folder, the file's own from the workspace. None as a value: not given.

    Raises:
        ConfigError: File, table, key, value or a named path is not usable; names which.
    """
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    workspace = _find_workspace(path)
    tables = read_tables(path, given)
    place = _Places(path, workspace)
    rollout_dir = place.rollout_dir(tables.eval.rollout)
    values = {
        key: value
        for table in (tables.eval, tables.llm, tables.runs, tables.timeouts, tables.output)
        for key, value in table.model_dump().items()
    }
    values |= {
        "entrypoint": place.file("[eval] entrypoint", rollout_dir, tables.eval.entrypoint),
        "dataset": place.file("[eval] dataset", workspace, tables.eval.dataset),
        "script": _find_script(place, tables),
        "output_path": _place_output(path, tables, None if "output_path" in given else workspace),
        "store_url": _place_store(workspace, tables, from_file="store_url" not in given),
    }
    return EvalConfig(
        config_path=path.resolve(), workspace=workspace, rollout_dir=rollout_dir, **values
    )


def _find_workspace(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(str(path), "no such file", hint=_nearby_configs(path))
    folder = path.parent.resolve()
    if (folder.parent.name, folder.name) != ("configs", "eval"):
        raise ConfigError(str(path), "an eval config lies in configs/eval/ of its workspace")
    if not path.resolve().is_relative_to(folder):
        raise ConfigError(str(path), "is a link that leaves configs/eval/")
    if path.suffix != ".toml" or not NAME.fullmatch(path.stem):
        raise ConfigError(str(path), f"an eval config is named <name>.toml, {NAME_RULE}")
    return folder.parent.parent


def _nearby_configs(path: Path) -> str:
    names = sorted(str(found) for found in path.parent.glob("*.toml"))
    return f"configs in this folder: {', '.join(names)}" if names else ""


def _find_script(place: _Places, tables: Tables) -> Path | None:
    if tables.llm.model != SCRIPTED_MODEL:
        return None
    if tables.llm.script is None:
        raise ConfigError(
            str(place.config_path),
            f'is required with model = "{SCRIPTED_MODEL}"',
            key="[llm] script",
        )
    return place.file("[llm] script", place.workspace, tables.llm.script)


def _place_output(config_path: Path, tables: Tables, workspace: Path | None) -> Path | None:
    """Return the folder of the results, which can be made now: not only after the last rollout."""
    output_path = tables.output.output_path
    if output_path is None:
        return None
    folder = ((workspace or Path.cwd()) / output_path).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        problem = f"{str(output_path)[:200]!r} cannot be a folder for results: {reason}"
        raise ConfigError(str(config_path), problem, key="[output] output_path") from None
    return folder


def _place_store(workspace: Path, tables: Tables, *, from_file: bool) -> str:
    url = tables.store.url or f"sqlite:///{DEFAULT_STORE_PATH}"
    relative = SQLITE_FILE_URL.fullmatch(url) if from_file else None
    return f"sqlite:///{workspace / relative['path']}" if relative else url


@dataclass(frozen=True)
class _Places:
    """Resolves the paths that a config names and refuses those that leave their folder."""

    config_path: Path
    workspace: Path

    def rollout_dir(self, name: str) -> Path:
        key = "[eval] rollout"
        if not NAME.fullmatch(name):
            raise self._error(key, f"{name!r} is not a rollout's name, {NAME_RULE}")
        folder = self._inside(key, self.workspace / "rollouts", name)
        if not os.path.isdir(folder):  # False where a name is too long
            raise self._error(key, f"no folder rollouts/{name} in {self.workspace}")
        return folder

    def file(self, key: str, folder: Path, name: str) -> Path:
        path = self._inside(key, folder, name)
        if not os.path.isfile(path):  # False where a name is too long
            raise self._error(key, f"no file {name} in {folder}")
        return path

    def _inside(self, key: str, folder: Path, name: str) -> Path:
        path = (folder / name).resolve()
        if ".." in PurePath(name).parts or not path.is_relative_to(folder):
            raise self._error(key, f"{name!r} leaves its folder {folder}")
        return path

    def _error(self, key: str, problem: str) -> ConfigError:
        return ConfigError(str(self.config_path), problem, key=key)
