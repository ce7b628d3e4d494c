"""Workers' leases, in the database's own time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.schema import workers
from osmosis_store.statements import insert_if_absent, utc_now

__all__ = ["end_leases", "insert_worker", "renew_lease"]


def insert_worker(tx: Connection, values: dict[str, Any], *, term_s: float) -> None:
    """Add a worker whose lease begins now, unless it is there already."""
    tx.execute(
        insert_if_absent(workers).values(
            **values, started_at=utc_now(tx), lease_until=utc_now(tx, plus_s=term_s)
        )
    )


def renew_lease(tx: Connection, worker_id: str, *, term_s: float) -> None:
    """Let a worker's lease run for another term from now."""
    tx.execute(
        sa.update(workers)
        .where(workers.c.worker_id == worker_id)
        .values(lease_until=utc_now(tx, plus_s=term_s))
    )


def end_leases(tx: Connection, worker_ids: Sequence[str]) -> None:
    """Let leases be over now."""
    tx.execute(
        sa.update(workers)
        .where(workers.c.worker_id.in_(worker_ids))
        .values(lease_until=utc_now(tx))
    )
