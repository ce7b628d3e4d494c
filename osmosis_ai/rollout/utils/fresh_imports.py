"""Importing user code as its files are now, never from bytecode that Python cached.

Python takes cached bytecode for current when size and whole second of the last change agree, so
a file that was edited right after it had been run could be run once more as it was before.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

__all__ = ["import_file", "make_importable"]

INSTALLED = {"site-packages", "dist-packages"}

_folders: set[Path] = set()


class _FreshLoader(SourceFileLoader):
    """Compiles a file each time and leaves no cache behind."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def import_file(path: Path, name: str) -> ModuleType:
    """Import a Python file as a new module of that name.

    Raises:
        Exception: Whatever the file raises, SystemExit included; then there is no such module.
    """
    spec = spec_from_file_location(name, path, loader=_FreshLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def make_importable(folder: Path) -> None:
    """Let a folder's modules and packages be imported by their plain names, before all others."""
    if _find_fresh not in sys.path_hooks:
        sys.path_hooks.insert(0, _find_fresh)
    _folders.add(folder)
    for path in list(sys.path_importer_cache):
        if Path(path).is_relative_to(folder):
            del sys.path_importer_cache[path]
    while str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def _find_fresh(path: str) -> FileFinder:
    place = Path(path)
    if INSTALLED.intersection(place.parts) or not any(map(place.is_relative_to, _folders)):
        raise ImportError(f"{path} holds no code of the workspace", path=path)
    return FileFinder(
        path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_FreshLoader, SOURCE_SUFFIXES)
    )
