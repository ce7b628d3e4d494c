"""The session contract, kept by ours on both databases and, where it says so, by the SDK's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import SQLiteSession

from osmosis_store import OsmosisSQLSession
from osmosis_store.database import Database
from osmosis_store.testing import DurableSessionContract, OpenSession, SessionContract


class TestOsmosisSQLSession(DurableSessionContract):
    @pytest.fixture
    def open_session(self, database: Database) -> OpenSession:
        return lambda name: OsmosisSQLSession(name, store=database)


class TestSQLiteSessionOfTheSDK(SessionContract):
    @pytest.fixture
    def open_session(self, tmp_path: Path) -> Iterator[OpenSession]:
        opened: list[SQLiteSession] = []

        def open_one(name: str) -> SQLiteSession:
            opened.append(SQLiteSession(name, tmp_path / "chats.db"))
            return opened[-1]

        yield open_one
        for session in opened:
            session.close()
