"""The errors of an eval run; each carries its data as attributes and the exit code it ends with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = [
    "ConfigError",
    "DatasetError",
    "EntrypointError",
    "EvalError",
    "EvalRunBusy",
    "EvalRunChanged",
    "ProviderError",
    "ScriptError",
]

_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class EvalError(Exception):
    """Base of an eval run's errors; the CLI prints it and exits with `exit_code`.

    Attributes:
        hint: What to do, one sentence a line; empty when the message says it.
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


class ConfigError(EvalError):
    """The eval TOML, or a flag that overrides it, is not usable.

    Attributes:
        config_path: The TOML as it was named.
        key: The table or key at fault as `[table] key`; None for the file as a whole.
    """

    def __init__(
        self, config_path: str, problem: str, *, key: str | None = None, hint: str = ""
    ) -> None:
        where = f"{config_path}: {key}" if key else config_path
        super().__init__(f"{where}: {problem}", hint=hint)
        self.config_path, self.key = config_path, key


class DatasetError(EvalError):
    """The dataset, or one of its rows, is not usable.

    Attributes:
        row: The row's absolute number from 0, whatever `offset` is; None for the file as a whole.
        line: The line of the file on which the row starts, from 1; None where there are no lines.
    """

    def __init__(
        self,
        path: str,
        problem: str,
        *,
        row: int | None = None,
        line: int | None = None,
        hint: str = "",
    ) -> None:
        where = path
        if row is not None:
            where += f" row {row}"
        if line is not None:
            where += f" (line {line})"
        super().__init__(f"{where}: {problem}", hint=hint)
        self.path, self.row, self.line = path, row, line


class EntrypointError(EvalError):
    """The rollout's entry point cannot be loaded or does not define what an eval run needs."""

    def __init__(self, path: str, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{path}: {problem}", hint=hint)
        self.path = path


class ScriptError(EvalError):
    """The scripted policy's file is broken.

    Attributes:
        line: The line at fault, from 1; None for the file as a whole.
    """

    def __init__(self, path: str, problem: str, *, line: int | None = None, hint: str = "") -> None:
        where = path if line is None else f"{path} line {line}"
        super().__init__(f"{where}: {problem}", hint=hint)
        self.path, self.line = path, line


class ProviderError(EvalError):
    """The model's provider answers no call: a wrong key, an unknown model, a server that is away.

    Attributes:
        model: The model as the TOML names it.
        status: The HTTP status that stands for the refusal.
    """

    def __init__(self, model: str, problem: str, *, status: int, hint: str = "") -> None:
        super().__init__(f"the model does not answer: {problem}", hint=hint)
        self.model, self.status = model, status


class EvalRunChanged(EvalError):
    """The stored eval run was made of other parts than those at hand, and is not mixed with them.

    Attributes:
        changed: What differs, of "workflow", "dataset" and "model".
    """

    def __init__(self, config_path: str, eval_run_id: str, changed: Sequence[str]) -> None:
        super().__init__(
            f"{' and '.join(changed)} changed since eval run {eval_run_id} of {config_path}",
            hint="undo the change to resume it, or start anew with --fresh (the old one stays)",
        )
        self.config_path, self.eval_run_id = config_path, eval_run_id
        self.changed = list(changed)


class EvalRunBusy(EvalError):
    """Another living process holds the eval run."""

    def __init__(self, eval_run_id: str, *, host: str, pid: int) -> None:
        super().__init__(
            f"eval run {eval_run_id} is being run by process {pid} on {host}",
            hint="wait for it or stop it; --fresh starts another eval run beside it",
        )
        self.eval_run_id, self.host, self.pid = eval_run_id, host, pid
