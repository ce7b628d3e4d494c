"""The eval TOML's tables and keys, and the check that names the nearest known one."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StringConstraints,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from osmosis_ai.eval.errors import ConfigError

__all__ = ["SCRIPTED_MODEL", "Override", "Tables", "read_tables"]

SCRIPTED_MODEL = "scripted"

# TOML's own, and SQL's.
MAX_INTEGER = 2**63 - 1


def _refuse_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "holds a NUL character")
    return text


Text = Annotated[str, StringConstraints(min_length=1), AfterValidator(_refuse_nul)]
Count = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Positive = Annotated[FiniteFloat, Field(gt=0)]
Override = Literal[
    "fresh",
    "retry_failed",
    "limit",
    "offset",
    "batch_size",
    "output_path",
    "log_samples",
    "quiet",
    "debug",
    "store_url",
]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Eval(_Table):
    rollout: Text
    entrypoint: Text
    dataset: Text
    limit: Count | None = None
    offset: int = Field(default=0, ge=0, le=MAX_INTEGER)
    fresh: bool = False
    retry_failed: bool = False


class _Llm(_Table):
    model: Text
    base_url: Text | None = None
    api_key_env: Text | None = None
    script: Text | None = None


class _Runs(_Table):
    n: Count = 1
    batch_size: Count = 1
    pass_threshold: FiniteFloat = 1.0


class _Timeouts(_Table):
    agent_workflow_timeout_s: Positive = 450.0
    grader_timeout_s: Positive = 150.0


class _Output(_Table):
    log_samples: bool = False
    quiet: bool = False
    debug: bool = False
    output_path: Text | None = None


class _Store(_Table):
    url: Text | None = None


class Tables(_Table):
    """Every table of an eval TOML, in the contract's order."""

    eval: _Eval
    llm: _Llm
    runs: _Runs = _Runs()
    timeouts: _Timeouts = _Timeouts()
    output: _Output = _Output()
    store: _Store = _Store()


def read_tables(path: Path, overrides: Mapping[Override, Any]) -> Tables:
    """Read an eval TOML's tables with command-line values laid over them.

    Raises:
        ConfigError: A table, key or value is not usable; names which.
    """
    return _check(path, _merge(_read_toml(path), overrides))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), f"is not UTF-8 text: {error.reason}") from error
    except ValueError as error:  # also an integer of thousands of digits
        raise ConfigError(str(path), f"is not TOML: {str(error).split(';')[0]}") from error
    except RecursionError:
        raise ConfigError(str(path), "is nested too deep") from None


_TABLE_OF: dict[str, tuple[str, str]] = {
    **{key: ("eval", key) for key in ("fresh", "retry_failed", "limit", "offset")},
    **{key: ("output", key) for key in ("output_path", "log_samples", "quiet", "debug")},
    "batch_size": ("runs", "batch_size"),
    "store_url": ("store", "url"),
}


def _merge(data: dict[str, Any], overrides: Mapping[Override, Any]) -> dict[str, Any]:
    merged = {name: dict(t) if isinstance(t, dict) else t for name, t in data.items()}
    for name, value in overrides.items():
        table, key = _TABLE_OF[name]
        target = merged.setdefault(table, {})
        if isinstance(target, dict):
            target[key] = str(value) if isinstance(value, PurePath) else value
    return merged


def _check(path: Path, data: dict[str, Any]) -> Tables:
    if "experiment" in data:
        raise ConfigError(
            str(path),
            "is the platform's layout (`osmosis eval submit`), not one for a local eval run",
            key="[experiment]",
            hint="`osmosis eval run` reads [eval] rollout, entrypoint, dataset and [llm] model; "
            "[runs], [timeouts], [output] and [store] are optional",
        )
    try:
        return Tables.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _to_config_error(path, first["type"], first["loc"], first["msg"]) from None


def _to_config_error(
    path: Path, kind: str, loc: tuple[int | str, ...], message: str
) -> ConfigError:
    table, *keys = (str(part) for part in loc)
    key = f"[{table}] {keys[0]}" if keys else f"[{table}]"
    if kind == "extra_forbidden":
        known = _known_keys(table) if keys else list(Tables.model_fields)
        near = difflib.get_close_matches(keys[0] if keys else table, known, n=1, cutoff=0.0)
        what = "key" if keys else "table"
        return ConfigError(
            str(path),
            f"unknown {what}; the nearest known one is {near[0]}",
            key=key,
            hint=f"known {what}s: {', '.join(known)}",
        )
    if kind == "model_type":
        return ConfigError(str(path), f"is no table: write {key} once, with its keys", key=key)
    if kind == "missing":
        return ConfigError(str(path), "is required", key=key)
    return ConfigError(str(path), message[:1].lower() + message[1:], key=key)


def _known_keys(table: str) -> list[str]:
    annotation = Tables.model_fields[table].annotation
    (model,) = get_args(annotation) or (annotation,)
    return list(model.model_fields)
