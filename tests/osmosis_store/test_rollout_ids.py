"""An id belongs to one rollout, on every database."""

from __future__ import annotations

import pytest

from osmosis_store.database import Database
from osmosis_store.errors import RolloutExists
from tests.osmosis_store.ledger import add_rollout


def test_an_id_that_is_taken_is_refused(database: Database) -> None:
    add_rollout(database, "r", "main", label="1")

    with pytest.raises(RolloutExists, match="'r'"):
        add_rollout(database, "r", "main", label="2")
