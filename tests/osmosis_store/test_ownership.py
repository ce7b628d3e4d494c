"""The warning about a second distribution that owns `osmosis_ai`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from osmosis_store.ownership import SecondOwner, warn_of_second_owner


@pytest.fixture(autouse=True)
def forget_the_answer() -> Iterator[None]:
    warn_of_second_owner.cache_clear()
    yield
    warn_of_second_owner.cache_clear()


@pytest.fixture
def beside_the_published_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "osmosis_ai-0.9.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: osmosis-ai\nVersion: 0.9.1\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("beside_the_published_one")
def test_a_second_owner_is_named_with_the_commands_that_leave_one() -> None:
    with pytest.warns(SecondOwner, match=r"osmosis-ai 0\.9\.1.*pip uninstall osmosis-ai"):
        warn_of_second_owner()


@pytest.mark.usefixtures("beside_the_published_one")
def test_a_second_owner_is_named_once_per_process() -> None:
    with warnings.catch_warnings(record=True, action="always") as caught:
        warn_of_second_owner()
        warn_of_second_owner()

    assert [warning.category for warning in caught] == [SecondOwner]


def test_alone_there_is_no_warning() -> None:
    with warnings.catch_warnings(record=True, action="always") as caught:
        warn_of_second_owner()

    assert caught == []
