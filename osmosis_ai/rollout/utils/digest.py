"""A digest of a workflow's or grader's code: everything of the workspace that it reaches."""

from __future__ import annotations

import ast
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from osmosis_ai.rollout.utils.live_code import LiveCode, has_code_in, name_chains
from osmosis_ai.rollout.utils.module_source import (
    ImportedName,
    ModuleSource,
    canonical,
    global_names,
    imports_in,
    parse_module,
)

__all__ = ["CodeDigest", "code_digest", "source_file"]


@dataclass(frozen=True)
class CodeDigest:
    """What a program is made of.

    Attributes:
        digest: SHA-256 of code and config, hexadecimal.
        covers: The qualified names that it takes in, sorted. `module:name` are the module's
            top-level statements that act on that name, `import …` is outside the workspace,
            and what has no file of its own is there as `source of …`, `bytecode of …` where no
            source is known, `value of …`, or `type of …` for a value that has no stable text.
    """

    digest: str
    covers: tuple[str, ...]


def code_digest(
    obj: type, config: BaseModel | None = None, *, root: Path | None = None
) -> CodeDigest:
    """Return the digest of a class with all functions, classes and constants that it reaches.

    Names are followed through the syntax trees of the workspace's files, imports included; what
    lies outside the workspace counts by name only. From a class without a file (a notebook's) they
    are followed through its namespace as it is now, across cells, constants by their values.
    Formatting, comments and unreached code do not count. Docstrings count, since those of tools
    and output types reach the model; only the class's own and its plain methods' do not. Top-level
    calls and attribute assignments of a reached module count when they act on something reached
    or on something outside.

    Args:
        config: Counts with all its fields.
        root: The workspace; None: the folder that the class's module or top package is in, or
            the working directory for a class without a file.
    """
    file = source_file(obj)
    folder = root or (Path.cwd() if file is None else _default_root(file))
    collector = _Collector(folder.resolve())
    if file is None:
        live = LiveCode(collector)
        live.reach_class(obj, own=True)
        texts = collector.finish() | live.texts
    else:
        collector.reach(file, obj.__qualname__.partition(".")[0], own=True)
        texts = collector.finish()
    parts = sorted(texts.values())
    parts.append("" if config is None else f"{type(config).__name__}{config.model_dump_json()}")
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return CodeDigest(digest, tuple(sorted(texts)))


def source_file(obj: type) -> Path | None:
    """Return the module's file that defines a class at its top level; None: no file does.

    A class without one lives in a notebook, an interactive session, exec'd code or under
    `if __name__ == "__main__"`; what it reaches may change while the process runs.
    """
    file = getattr(sys.modules.get(obj.__module__), "__file__", None)
    path = Path(file).resolve() if file else None
    if path is None or path.suffix != ".py" or not path.is_file():
        return None
    name = obj.__qualname__.partition(".")[0]
    return path if name in parse_module(path).definitions and has_code_in(obj, path) else None


def _default_root(file: Path) -> Path:
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


class _Collector:
    """Follows names through the workspace's files; `texts` maps qualified names to code."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.texts: dict[str, str] = {}
        self._modules: dict[Path, ModuleSource] = {}
        self._effects_done: set[int] = set()

    def reach(self, file: Path, name: str, *, own: bool = False) -> None:
        """Take in a name of a module and all that it reaches."""
        source = self._module(file)
        label = f"{self._label(file)}.{name}"
        if label in self.texts:
            return
        statements = source.definitions.get(name, [])
        imported = source.imports.get(name)
        if imported is not None:
            self._reach_import(source, imported, ())
        if not statements:
            if imported is None:
                self._reach_through_star(source, name)
            return
        self.texts[label] = "\n".join(canonical(s, keep_docstrings=not own) for s in statements)
        for statement in statements:
            self._reach_names(source, statement)

    def reach_module(self, module: ModuleType, attributes: tuple[str, ...]) -> None:
        """Take in a name of a loaded module, as if a file in the workspace's root imported it."""
        self.reach_imported(ImportedName(module.__name__), attributes)

    def reach_imported(self, imported: ImportedName, attributes: tuple[str, ...]) -> None:
        """Take in what is imported, as if by a file in the workspace's root."""
        self._reach_import(ModuleSource(self.root / "_.py"), imported, attributes)

    def finish(self) -> dict[str, str]:
        """Take in top-level effects until nothing new is reached, and return the texts."""
        while True:
            pending = [
                (source, effect)
                for source in list(self._modules.values())
                for effect in source.effects
                if id(effect) not in self._effects_done and self._matters(source, effect)
            ]
            if not pending:
                return self.texts
            for source, effect in pending:
                self._effects_done.add(id(effect))
                receiver = _receiver(effect)
                label = f"{self._label(source.path)}:{receiver}"
                self.texts[label] = self.texts.get(label, "") + canonical(effect)
                if self._is_reached(source, receiver):
                    self._reach_names(source, effect)

    def _matters(self, source: ModuleSource, effect: ast.stmt) -> bool:
        receiver = _receiver(effect)
        return self._is_reached(source, receiver) or self._is_foreign(source, receiver)

    def _is_reached(self, source: ModuleSource, name: str) -> bool:
        return f"{self._label(source.path)}.{name}" in self.texts

    def _is_foreign(self, source: ModuleSource, name: str) -> bool:
        imported = source.imports.get(name)
        if imported is None:
            return name not in source.definitions
        return source.find_module(imported, self.root) is None

    def _reach_names(self, source: ModuleSource, statement: ast.stmt) -> None:
        local = imports_in(statement, nested=True).names
        names = global_names(statement) | set(local)
        for name, attributes in name_chains(statement, names):
            imported = local.get(name)
            if imported is None and name not in source.definitions:
                imported = source.imports.get(name)
            if imported is None:
                self.reach(source.path, name)
            else:
                self._reach_import(source, imported, attributes)

    def _reach_import(
        self, source: ModuleSource, imported: ImportedName, attributes: tuple[str, ...]
    ) -> None:
        file = source.find_module(imported, self.root)
        if imported.attribute is not None:
            if file is not None and self._has(file, imported.attribute):
                self.reach(file, imported.attribute)
                return
            prefix = f"{imported.module}." if imported.module else ""
            submodule = ImportedName(f"{prefix}{imported.attribute}", imported.level)
            imported, file = submodule, source.find_module(submodule, self.root)
        if file is None:
            name = ".".join([str(imported), *attributes[:1]])
            self.texts[f"import {name}"] = f"import {name}"
        elif attributes and self._has(file, attributes[0]):
            self.reach(file, attributes[0])
        elif attributes:
            deeper = ImportedName(f"{imported.module}.{attributes[0]}", imported.level)
            self._reach_import(source, deeper, attributes[1:])
        else:
            self._reach_all(file)

    def _reach_all(self, file: Path) -> None:
        source = self._module(file)
        for name in [*source.definitions, *source.imports]:
            self.reach(file, name)

    def _reach_through_star(self, source: ModuleSource, name: str) -> None:
        for star in source.stars:
            file = source.find_module(star, self.root)
            if file is not None and self._has(file, name):
                self.reach(file, name)

    def _has(self, file: Path, name: str) -> bool:
        source = self._module(file)
        return name in source.definitions or name in source.imports or bool(source.stars)

    def _module(self, file: Path) -> ModuleSource:
        if file not in self._modules:
            self._modules[file] = parse_module(file)
        return self._modules[file]

    def _label(self, file: Path) -> str:
        relative = (
            file.relative_to(self.root) if file.is_relative_to(self.root) else Path(file.name)
        )
        parts = relative.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _receiver(effect: ast.stmt) -> str:
    """Return the name that a top-level statement acts on, or an empty text."""
    node: Any = effect
    if isinstance(effect, ast.Assign):
        node = effect.targets[0]
    elif isinstance(effect, ast.AugAssign | ast.AnnAssign):
        node = effect.target
    elif isinstance(effect, ast.Expr):
        node = effect.value
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Await):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
