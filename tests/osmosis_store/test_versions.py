"""The commit of a folder of code, as grading runs are stored with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from osmosis_store import versions
from osmosis_store.versions import code_commit, code_versions, package_versions


@pytest.fixture(autouse=True)
def no_memory() -> None:
    versions._ask_for_commit.cache_clear()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with one committed and tagged file, whatever git is set to elsewhere."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, "/dev/null")
    git(tmp_path, "init", "--quiet")
    (tmp_path / "graders.py").write_text("strict = True\n")
    git(tmp_path, "add", "graders.py")
    git(tmp_path, "commit", "--quiet", "--message", "graders: strict")
    git(tmp_path, "tag", "v1")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_commit_is_the_whole_digest_whatever_tags_there_are(repository: Path) -> None:
    assert code_commit(repository) == git(repository, "rev-parse", "HEAD")


def test_a_changed_file_shows(repository: Path) -> None:
    (repository / "graders.py").write_text("strict = False\n")

    assert code_commit(repository) == git(repository, "rev-parse", "HEAD") + "-dirty"


def test_git_is_asked_once_for_a_folder(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = code_commit(repository)
    monkeypatch.setattr(subprocess, "run", None)

    assert code_commit(repository) == commit


def test_a_folder_outside_git_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    assert code_commit(tmp_path) is None
    assert code_versions(tmp_path) == package_versions()


def test_a_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")

    assert code_commit(tmp_path) is None


def test_a_machine_without_git_has_no_commit(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    assert code_commit(repository) is None


def test_the_versions_name_the_commit(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")

    assert code_versions(repository) == {**package_versions(), "git_commit": commit}
    assert code_versions(None) == package_versions()
