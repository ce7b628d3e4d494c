"""This process's lease: its right to the rollouts that it runs, renewed while it lives."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from functools import partial

from sqlalchemy.engine import Connection

from osmosis_store.database import Database
from osmosis_store.errors import StoreError
from osmosis_store.ids import new_id
from osmosis_store.processes import fetch_start, host_name
from osmosis_store.version import __version__
from osmosis_store.writes.workers import end_leases, insert_worker, renew_lease

__all__ = ["Lease", "hold_lease"]

_MIN_TERM_S = 60.0


class Lease:
    """A row in `workers`, kept alive by a thread so that a blocked event loop does not lose it."""

    def __init__(self, database: Database) -> None:
        self.worker_id = new_id("w_")
        # a renewal may have to wait as long as any other write
        self._term_s = max(_MIN_TERM_S, 2 * database.options.busy_timeout_s)
        self._database = weakref.ref(database)
        self.begun = False

    def begin(self, tx: Connection) -> None:
        """Write the row, unless it is there."""
        values = {
            "worker_id": self.worker_id,
            "host": host_name(),
            "pid": os.getpid(),
            "pid_started": fetch_start(os.getpid()) or "",
            "version": __version__,
        }
        insert_worker(tx, values, term_s=self._term_s)

    def keep(self) -> None:
        """Renew it until the store is closed, and let it be over then; once is enough."""
        with _lock:
            if self.begun:
                return
            self.begun = True
        if (database := self._database()) is not None:
            database.last_writes.append(partial(end_leases, worker_ids=[self.worker_id]))
        threading.Thread(target=self._renew, name="osmosis-store lease", daemon=True).start()

    def _renew(self) -> None:
        renew = partial(renew_lease, worker_id=self.worker_id, term_s=self._term_s)
        while True:
            time.sleep(self._term_s / 3)
            database = self._database()
            if database is None or database.closed:
                return
            # a store that fails now fails the rollout's own writes, which report it
            with contextlib.suppress(StoreError):
                database.write_now(renew)
            del database


_held: weakref.WeakKeyDictionary[Database, Lease] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


async def hold_lease(database: Database) -> Lease:
    """Return this process's lease on a store, begun on first use; over when the store closes."""
    with _lock:
        lease = _held.get(database)
        if lease is None:
            lease = _held[database] = Lease(database)
    if not lease.begun:
        # who comes while it begins writes it too: nobody goes on before it is on disk
        await database.write(lease.begin)
        lease.keep()
    return lease
