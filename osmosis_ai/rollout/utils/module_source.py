"""What a Python file defines and imports at its top level, without running it."""

from __future__ import annotations

import ast
import symtable
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

__all__ = ["ImportedName", "ModuleSource", "canonical", "global_names", "parse_module"]

_FOREIGN_FOLDERS = {"site-packages", "dist-packages"}


@dataclass(frozen=True)
class ImportedName:
    """What an import binds: a module, or one attribute of it.

    Attributes:
        module: Absolute, or relative with `level` leading dots.
        attribute: None for `import module`.
    """

    module: str
    level: int = 0
    attribute: str | None = None

    def __str__(self) -> str:
        module = "." * self.level + self.module
        return module if self.attribute is None else f"{module}:{self.attribute}"


@dataclass
class ModuleSource:
    """A parsed file.

    Attributes:
        definitions: The top-level statements that bind each name.
        imports: What each imported name stands for.
        stars: The modules of `from module import *`.
        effects: Top-level statements that bind no name, such as calls.
    """

    path: Path
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, ImportedName] = field(default_factory=dict)
    stars: list[ImportedName] = field(default_factory=list)
    effects: list[ast.stmt] = field(default_factory=list)

    def find_module(self, imported: ImportedName, root: Path) -> Path | None:
        """Return the workspace file of an imported module; None: it is from elsewhere."""
        parts = [part for part in imported.module.split(".") if part]
        if imported.level:
            folders = [self.path.parents[imported.level - 1]]
        else:
            loaded = getattr(sys.modules.get(imported.module), "__file__", None)
            if loaded and _in_workspace(Path(loaded).resolve(), root):
                return Path(loaded).resolve()
            folders = [self.path.parent, root]
        for folder in folders:
            target = folder.joinpath(*parts)
            for file in (target.with_suffix(".py"), target / "__init__.py"):
                if (parts or file.name == "__init__.py") and _in_workspace(file, root):
                    return file
        return None


def _in_workspace(file: Path, root: Path) -> bool:
    return (
        file.is_relative_to(root)
        and file.suffix == ".py"
        and not _FOREIGN_FOLDERS & set(file.relative_to(root).parts)
        and file.is_file()
    )


def parse_module(path: Path) -> ModuleSource:
    """Read and parse one file, encoding declarations included."""
    return _parse(path, path.read_bytes())


@lru_cache(maxsize=256)
def _parse(path: Path, content: bytes) -> ModuleSource:
    source = ModuleSource(path)
    for statement in ast.parse(content, filename=str(path)).body:
        if not _is_main_guard(statement):
            _add(source, statement)
    return source


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def _add(source: ModuleSource, statement: ast.stmt) -> None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return
    names = _bound_names(statement)
    for name in names:
        source.definitions.setdefault(name, []).append(statement)
    found = imports_in(statement, nested=False)
    source.imports.update(found.names)
    source.stars += found.stars
    if not names and not found.names and not found.stars:
        source.effects.append(statement)


@dataclass
class FoundImports:
    """The imports inside a statement."""

    names: dict[str, ImportedName] = field(default_factory=dict)
    stars: list[ImportedName] = field(default_factory=list)


def imports_in(statement: ast.AST, *, nested: bool) -> FoundImports:
    """Return what a statement imports; `nested`: also inside functions and classes."""
    found = FoundImports()
    for node in _walk(statement, nested=nested):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                module = alias.name if alias.asname else top
                found.names[alias.asname or top] = ImportedName(module)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imported = ImportedName(node.module or "", node.level, alias.name)
                if alias.name == "*":
                    found.stars.append(imported)
                else:
                    found.names[alias.asname or alias.name] = imported
    return found


def _walk(node: ast.AST, *, nested: bool) -> list[ast.AST]:
    nodes = [node]
    opaque = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    if nested or not isinstance(node, opaque):
        for child in ast.iter_child_nodes(node):
            nodes += _walk(child, nested=nested)
    return nodes


def _bound_names(statement: ast.stmt) -> list[str]:
    names: dict[str, None] = {}
    for node in _walk(statement, nested=False):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] = None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
    return list(names)


def global_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement looks up at its module's level."""
    table = symtable.symtable(ast.unparse(statement), "<digest>", "exec")
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    pending = table.get_children()
    while pending:
        scope = pending.pop()
        names |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
        pending += scope.get_children()
    return names


def canonical(node: object, *, keep_docstrings: bool = True) -> str:
    """Return a text that is equal for equal code, whatever its formatting and Python's version.

    `ast.dump` and `ast.unparse` differ between versions; here empty fields are left out, so
    fields that newer versions add do not show.
    """
    if isinstance(node, ast.AST):
        fields = []
        for name, value in ast.iter_fields(node):
            if name == "body" and not keep_docstrings:
                value = _without_docstring(node, value)
            if isinstance(node, ast.JoinedStr):
                value = [part for part in value if not _is_empty_text(part)]
            if value in (None, []) or name in {"kind", "type_comment", "ctx"}:
                continue
            fields.append(f"{name}={canonical(value, keep_docstrings=keep_docstrings)}")
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(canonical(item, keep_docstrings=keep_docstrings) for item in node)}]"
    return f"{type(node).__name__}:{node!r}"


def _is_empty_text(node: ast.AST) -> bool:
    """Tell the empty parts that some releases of 3.12 put into format specifications."""
    return isinstance(node, ast.Constant) and node.value == ""


def _without_docstring(node: ast.AST, body: list[ast.stmt]) -> list[ast.stmt]:
    bare = isinstance(node, ast.ClassDef) or not getattr(node, "decorator_list", ["?"])
    if bare and ast.get_docstring(node, clean=False) is not None:  # type: ignore[arg-type] # a def
        return body[1:]
    return body
