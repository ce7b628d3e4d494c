"""Store URLs, and what the engines make of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_store.engine import parse_url
from osmosis_store.errors import InvalidStoreUrl


def test_a_relative_path_is_resolved_when_the_url_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    place = parse_url("sqlite:///chats.db")

    assert (place.path, place.name, place.is_sqlite) == (tmp_path / "chats.db", "chats.db", True)


def test_an_absolute_path_has_four_slashes() -> None:
    assert parse_url("sqlite:////var/lib/chats.db").path == Path("/var/lib/chats.db")


def test_a_password_is_not_part_of_the_name() -> None:
    place = parse_url("postgresql://me:secret@db.example:5433/rollouts?sslmode=require")

    assert place.name == "postgresql://me@db.example:5433/rollouts"
    assert place.url.password == "secret"
    assert not place.is_sqlite


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("chats.db", "it is not a URL; a file is sqlite:///chats.db"),
        ("sqlite://", "in memory each connection would have its own"),
        ("sqlite:///:memory:", "in memory each connection would have its own"),
        ("sqlite:///file:x?mode=memory", "in memory each connection would have its own"),
        ("mysql://me:secret@db/rollouts", "mysql is neither sqlite nor postgresql"),
        ("postgresql://me:secret@db:port/rollouts", "invalid literal"),
    ],
)
def test_a_url_that_names_no_store_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(InvalidStoreUrl, match=reason) as refused:
        parse_url(url)

    assert "secret" not in str(refused.value)
    assert "sqlite:///relative/path.db" in refused.value.hint
