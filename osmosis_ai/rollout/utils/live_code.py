"""What a class without a file of its own reaches: notebook cells, interactive and exec'd code."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol

from osmosis_ai.rollout.utils.module_source import (
    ImportedName,
    canonical,
    global_names,
    imports_in,
)

__all__ = ["LiveCode", "WorkspaceCode", "has_code_in", "name_chains"]

_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class _Found:
    statement: ast.stmt
    place: str


class WorkspaceCode(Protocol):
    """What takes in names of files."""

    def reach_module(self, module: ModuleType, attributes: tuple[str, ...]) -> None:
        """Take in a name of a loaded module, or note that it lies outside the workspace."""

    def reach_imported(self, imported: ImportedName, attributes: tuple[str, ...]) -> None:
        """Take in what an import statement names."""


class LiveCode:
    """Follows names through a namespace: code by its source or bytecode, constants by value.

    Attributes:
        texts: Code and values by what they are.
    """

    def __init__(self, files: WorkspaceCode) -> None:
        self.texts: dict[str, str] = {}
        self._files = files

    def reach_class(self, cls: type, *, own: bool = False) -> None:
        """Take in a class and all that it reaches."""
        name = f"{cls.__module__}.{cls.__qualname__}"
        functions = _own_functions(cls)
        namespace = functions[0].__globals__ if functions else _namespace(cls)
        found = next(filter(None, (_find(f.__code__, cls) for f in functions)), None)
        found = found or _find_in_cells(cls, functions)
        if found is not None:
            self._add_source(name, found, own=own)
            self._reach_names(found.statement, namespace)
        elif not self._seen(f"bytecode of {name}"):
            self.texts[f"bytecode of {name}"] = _class_text(cls)
            for base in cls.__bases__:
                if base is not object:
                    self._reach(base.__name__, base, (), namespace)
            for function in functions:
                self._reach_code(function)
        for function in functions:
            self._reach_closure(function)

    def _add_source(self, name: str, found: _Found, *, own: bool = False) -> None:
        label = f"source of {name} ({found.place})"
        self.texts[label] = canonical(found.statement, keep_docstrings=not own)

    def _seen(self, label: str) -> bool:
        return any(text == label or text.startswith(f"{label} (") for text in self.texts)

    def _reach_names(self, statement: ast.stmt, namespace: Mapping[str, Any]) -> None:
        local = imports_in(statement, nested=True).names
        for name, attributes in name_chains(statement, global_names(statement) | set(local)):
            if name in local:
                self._files.reach_imported(local[name], attributes)
            elif name in namespace:
                self._reach(name, namespace[name], attributes, namespace)

    def _reach(
        self, name: str, value: Any, attributes: tuple[str, ...], namespace: Mapping[str, Any]
    ) -> None:
        value = _unwrapped(value)
        if isinstance(value, ModuleType):
            self._files.reach_module(value, attributes)
        elif isinstance(value, FunctionType) and value.__globals__ is namespace:
            self._reach_function(value)
        elif isinstance(value, type) and _is_of(value, namespace):
            label = f"{value.__module__}.{value.__qualname__}"
            if not self._seen(f"source of {label}"):
                self.reach_class(value)
        elif isinstance(value, type | FunctionType) or inspect.isbuiltin(value):
            imported = ImportedName(value.__module__ or "builtins", 0, value.__name__)
            self._files.reach_imported(imported, ())
        else:
            self._add_value(f"{namespace.get('__name__', 'builtins')}.{name}", value)
            if _is_of(type(value), namespace):
                self._reach(type(value).__name__, type(value), (), namespace)

    def _reach_function(self, function: FunctionType) -> None:
        name = f"{function.__module__}.{function.__qualname__}"
        if self._seen(f"source of {name}") or self._seen(f"bytecode of {name}"):
            return
        found = _find(function.__code__, function)
        if found is None:
            self.texts[f"bytecode of {name}"] = _code_text(function.__code__)
            self._reach_code(function)
        else:
            self._add_source(name, found)
            self._reach_names(found.statement, function.__globals__)
        self._reach_closure(function)

    def _reach_code(self, function: FunctionType) -> None:
        namespace = function.__globals__
        for name in sorted(_code_names(function.__code__)):
            if name in namespace:
                self._reach(name, namespace[name], (), namespace)

    def _reach_closure(self, function: FunctionType) -> None:
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                value = _unwrapped(cell.cell_contents)
            except ValueError:  # not bound yet
                continue
            if isinstance(value, FunctionType):
                self._reach_function(value)
            elif not isinstance(value, type | ModuleType):
                self._add_value(f"{function.__module__}.{function.__qualname__}.{name}", value)

    def _add_value(self, name: str, value: Any) -> None:
        try:
            text = _value_text(value)
        except RecursionError:  # it holds itself
            text = None
        label = "type" if text is None else "value"
        if text is None:
            text = f"{type(value).__module__}.{type(value).__qualname__}"
        self.texts[f"{label} of {name}"] = f"{name.rpartition('.')[2]}={text}"


def _own_functions(cls: type) -> list[FunctionType]:
    """Return the functions in a class's body, in order, without what decorators made of them."""
    return [
        function
        for value in vars(cls).values()
        for part in (
            (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)
        )
        if isinstance(function := _unwrapped(part), FunctionType)
        and function.__qualname__.startswith(f"{cls.__qualname__}.")
    ]


def _value_text(value: Any) -> str | None:
    """Return a text that is equal for equal values in every process; None: there is none."""
    if isinstance(value, dict):
        return _joined("{}", (part for pair in value.items() for part in pair))
    if isinstance(value, list | tuple):
        return _joined("[]" if isinstance(value, list) else "()", value)
    if isinstance(value, set | frozenset):
        texts = [_value_text(part) for part in value]
        return None if None in texts else f"{{{','.join(sorted(map(str, texts)))}}}"
    if isinstance(value, CodeType):
        return _code_text(value)
    text = repr(value)
    return None if _ADDRESS.search(text) else text


def _joined(brackets: str, values: Iterable[Any]) -> str | None:
    texts = [_value_text(value) for value in values]
    return None if None in texts else f"{brackets[0]}{','.join(map(str, texts))}{brackets[1]}"


def name_chains(statement: ast.stmt, names: set[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each used module-level name with the attributes that are read from it."""
    inner: set[int] = set()
    for node in ast.walk(statement):
        attributes: list[str] = []
        base: ast.AST = node
        while isinstance(base, ast.Attribute):
            attributes.append(base.attr)
            inner.add(id(base.value))
            base = base.value
        if isinstance(base, ast.Name) and base.id in names and id(node) not in inner:
            yield base.id, tuple(reversed(attributes))


def _unwrapped(value: Any) -> Any:
    for _ in range(20):
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, functools.partial):
            value = value.func
        elif not isinstance(value, type) and "__wrapped__" in getattr(value, "__dict__", ()):
            value = value.__wrapped__
        else:
            break
    return value


def _namespace(cls: type) -> Mapping[str, Any]:
    return getattr(sys.modules.get(cls.__module__), "__dict__", {})


def _is_of(cls: type, namespace: Mapping[str, Any]) -> bool:
    """Tell whether a class was defined by the code whose globals these are."""
    functions = _own_functions(cls)
    if functions:
        return functions[0].__globals__ is namespace
    is_bound = namespace.get(cls.__name__) is cls
    return is_bound and cls.__module__ == namespace.get("__name__", "builtins")


def _is_cell(filename: str) -> bool:
    return "ipython-input" in filename or "ipykernel" in filename


def _to_place(filename: str) -> str:
    if _is_cell(filename):
        return "notebook cell"
    return Path(filename).name if Path(filename).is_file() else "no file"


def _find(code: CodeType, obj: Callable[..., Any]) -> _Found | None:
    """Return the statement that defined what this code belongs to, if its source is known."""
    linecache.checkcache(code.co_filename)
    found = _at_line(_parse(code.co_filename), code.co_firstlineno)
    if found is None or obj.__qualname__.split(".")[0] not in ast.unparse(found):
        return None
    return _Found(found, _to_place(code.co_filename))


def _find_in_cells(cls: type, functions: Sequence[FunctionType]) -> _Found | None:
    """Return the newest cell's definition of a class whose code has no lines: an enum, a model."""
    if any(function.__code__.co_filename != "<string>" for function in functions):
        return None
    for filename in reversed(list(linecache.cache)):
        if _is_cell(filename) and cls.__module__ == "__main__":
            for statement in _parse(filename):
                if isinstance(statement, ast.ClassDef) and statement.name == cls.__qualname__:
                    return _Found(statement, _to_place(filename))
    return None


def _parse(filename: str) -> list[ast.stmt]:
    try:
        return ast.parse("".join(linecache.getlines(filename))).body
    except (SyntaxError, ValueError):
        return []


def _at_line(statements: Iterable[ast.stmt], line: int) -> ast.stmt | None:
    for statement in statements:
        decorators = getattr(statement, "decorator_list", ())
        first = min([statement.lineno, *(node.lineno for node in decorators)])
        if not first <= line <= (statement.end_lineno or first):
            continue
        if isinstance(statement, _DEFINITIONS):
            return statement
        for block in _blocks(statement):
            if (inner := _at_line(block, line)) is not None:
                return inner
        return statement
    return None


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in _BLOCKS:
        for node in getattr(statement, name, ()):
            yield [node] if isinstance(node, ast.stmt) else node.body


def _class_text(cls: type) -> str:
    functions = {function.__qualname__: function.__code__ for function in _own_functions(cls)}
    parts = [f"{name}={_code_text(code)}" for name, code in sorted(functions.items())]
    for name, value in sorted(vars(cls).items()):
        if not name.startswith("__") and not callable(_unwrapped(value)):
            parts.append(f"{name}={_value_text(value)}")
    return "\n".join(parts)


def _code_names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _code_names(constant)
    return names


def _code_text(code: CodeType) -> str:
    constants = ",".join(str(_value_text(constant)) for constant in code.co_consts)
    return f"{code.co_code.hex()}{code.co_names}{code.co_varnames}[{constants}]"


def has_code_in(cls: type, file: Path) -> bool:
    """Tell whether a class's functions come from this file; also true where it has none.

    Those that `dataclass` and its like make are from nowhere.
    """
    names = {function.__code__.co_filename for function in _own_functions(cls)} - {"<string>"}
    names = {name for name in names if not name.startswith("<attrs ")}
    return not names or any(Path(name).resolve() == file for name in names)
