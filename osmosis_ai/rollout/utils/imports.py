"""The notation `module:attr` for a Python object, both ways."""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["resolve_object", "to_import_path"]


def resolve_object(ref: Any) -> Any:
    """Return the object that `module:attr` names; anything but text is returned as it is.

    Raises:
        ValueError: The text has no colon, or nothing on one side of it.
        ImportError: The module, or the attribute in it, does not exist.
    """
    if not isinstance(ref, str):
        return ref
    module_name, colon, attributes = ref.partition(":")
    if not (module_name and colon and attributes):
        raise ValueError(f"{ref!r} is not an import path: write it as 'module:attr'")
    found: Any = importlib.import_module(module_name)
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            raise ImportError(f"module {module_name!r} has no {attributes!r}") from None
    return found


def to_import_path(obj: Any) -> str:
    """Return `module:attr` for a class, a function or a module-level object.

    Raises:
        ValueError: Nothing at module level is this object.
    """
    if isinstance(obj, str):
        return obj
    qualname = getattr(obj, "__qualname__", None)
    if qualname is not None:
        path = f"{obj.__module__}:{qualname}"
        if "<" not in qualname:
            return path
        raise ValueError(f"{path} cannot be imported: define it at the top of its module")
    for module_name, module in sorted(sys.modules.items()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is obj:
                return f"{module_name}:{name}"
    raise ValueError(f"{obj!r} is neither a class nor a module-level object: it has no import path")
