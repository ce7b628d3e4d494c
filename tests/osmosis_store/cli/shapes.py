"""Schemas of what commands print with `--json`."""

from __future__ import annotations

from typing import Any

__all__ = ["COUNT", "ID", "NUMBER", "TEXT", "TIME", "list_of", "or_null", "shape"]

COUNT = {"type": "integer", "minimum": 0}
ID = {"type": "string", "minLength": 1}
NUMBER = {"type": "number"}
TEXT = {"type": "string"}
TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00$"}


def shape(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has just these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def list_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}
