import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from osmosis_ai.rollout.utils.fresh_imports import import_file, make_importable


@pytest.fixture(autouse=True)
def bytecode_is_cached(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(path: Path, text: str) -> Path:
    """Write a file as if always in the same second."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def test_an_edit_within_a_second_counts(tmp_path: Path) -> None:
    found = []
    for value in "12":
        found.append(import_file(write(tmp_path / "one.py", f"X = {value}\n"), "fresh_one").X)

    assert found == [1, 2]
    assert list(tmp_path.iterdir()) == [tmp_path / "one.py"]


def test_so_does_one_in_a_module_beside_it_or_in_a_package(tmp_path: Path) -> None:
    make_importable(tmp_path)
    found = []
    for value in "12":
        write(tmp_path / "fresh_two.py", f"X = {value}\n")
        write(tmp_path / "fresh_pack/__init__.py", "")
        write(tmp_path / "fresh_pack/inner.py", f"Y = {value}\n")
        two = importlib.import_module("fresh_two")
        inner = importlib.import_module("fresh_pack.inner")
        found.append((two.X, inner.Y))
        for name in ("fresh_two", "fresh_pack.inner", "fresh_pack"):
            del sys.modules[name]

    assert found == [(1, 1), (2, 2)]
    assert list(tmp_path.rglob("__pycache__")) == []


def test_what_is_installed_below_the_folder_keeps_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    write(installed / "fresh_library.py", "X = 1\n")
    make_importable(tmp_path)
    monkeypatch.syspath_prepend(installed)

    assert importlib.import_module("fresh_library").X == 1
    assert (installed / "__pycache__").is_dir()


def test_a_file_that_raises_leaves_no_module(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.py", "raise SystemExit(3)\n")

    with pytest.raises(SystemExit):
        import_file(path, "fresh_bad")
    assert "fresh_bad" not in sys.modules
