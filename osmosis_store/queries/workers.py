"""Who works on the store now."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.processes import fetch_start, host_name
from osmosis_store.schema import workers
from osmosis_store.statements import utc_now

__all__ = ["LivingWorker", "fetch_living_workers"]


class LivingWorker(NamedTuple):
    """A worker whose rollouts run."""

    worker_id: str
    host: str
    pid: int
    pid_started: str


def fetch_living_workers(tx: Connection) -> list[LivingWorker]:
    """Return the workers whose lease is not over, by the database's clock.

    A process of this host that is gone has lost its lease at once.
    """
    rows = tx.execute(
        sa.select(workers.c.worker_id, workers.c.host, workers.c.pid, workers.c.pid_started)
        .where(workers.c.lease_until > utc_now(tx))
        .order_by(workers.c.worker_id)
    )
    return [worker for row in rows if not _is_gone(worker := LivingWorker(*row))]


def _is_gone(worker: LivingWorker) -> bool:
    return worker.host == host_name() and fetch_start(worker.pid) != (worker.pid_started or None)
