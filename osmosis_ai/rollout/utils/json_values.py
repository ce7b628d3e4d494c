"""Turning a mapping of arbitrary values into one that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

__all__ = ["to_json_mapping"]

_DROPPED = object()


def to_json_mapping(values: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a copy that JSON can hold, and the paths of what was changed or dropped.

    Numpy-like scalars and arrays become numbers and lists, tuples and sets become lists, enums
    their values. NaN, infinities, objects, cycles and keys that are not text or scalars go.
    """
    changed: list[str] = []
    converted = _convert(values, "", changed, ())
    return converted, changed


def _convert(value: Any, path: str, changed: list[str], parents: tuple[int, ...]) -> Any:
    if id(value) in parents:
        return _drop(path, changed)
    if isinstance(value, Mapping):
        return _convert_mapping(value, path, changed, (*parents, id(value)))
    if isinstance(value, list | tuple | set | frozenset):
        return _convert_list(value, path, changed, (*parents, id(value)))
    return _convert_scalar(value, path, changed, parents)


def _convert_scalar(value: Any, path: str, changed: list[str], parents: tuple[int, ...]) -> Any:
    if value is None or type(value) in {bool, int, str}:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else _drop(path, changed)
    plain = _plain(value)
    if plain is _DROPPED:
        return _drop(path, changed)
    changed.append(path)
    return _convert(plain, path, changed, (*parents, id(value)))


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else _DROPPED


def _convert_mapping(
    value: Mapping[Any, Any], path: str, changed: list[str], parents: tuple[int, ...]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        if not isinstance(key, str | int | float | bool | None):
            _drop(where, changed)
            continue
        converted = _convert(item, where, changed, parents)
        if converted is not _DROPPED:
            result[str(key)] = converted
    return result


def _convert_list(value: Any, path: str, changed: list[str], parents: tuple[int, ...]) -> list[Any]:
    if not isinstance(value, list | tuple):
        changed.append(path)
    items = (_convert(item, f"{path}[{i}]", changed, parents) for i, item in enumerate(value))
    return [item for item in items if item is not _DROPPED]


def _drop(path: str, changed: list[str]) -> Any:
    changed.append(path)
    return _DROPPED
