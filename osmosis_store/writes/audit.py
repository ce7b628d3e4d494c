"""The chained record of what was done to the store."""

from __future__ import annotations

import datetime as dt
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.codec import chain_digest, to_json_text
from osmosis_store.records import SampleKey
from osmosis_store.schema import audit_log

__all__ = ["append_audit"]

_FIRST = sha256(b"osmosis-store audit log").digest()
# Any number that no other program of the database uses for an advisory lock.
_ADVISORY_LOCK = 0x05305316

_SELECT_HEAD = (
    sa.select(audit_log.c.entry_no, audit_log.c.chain_digest)
    .order_by(audit_log.c.entry_no.desc())
    .limit(1)
)
_INSERT = sa.insert(audit_log)


def append_audit(
    tx: Connection,
    action: str,
    *,
    now: dt.datetime,
    sample: SampleKey | None = None,
    rollout_id: str | None = None,
    author: str | None = None,
    reason: str | None = None,
    detail: dict[str, Any] | None = None,
) -> int:
    """Add one entry and return its number.

    Args:
        action: What was done, as `sample.popped`.
        sample: The sample it was done to; or only `rollout_id`.
    """
    if tx.dialect.name == "postgresql":  # SQLite has one writer at a time anyway
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    head = tx.execute(_SELECT_HEAD).one_or_none()
    entry_no, previous = (0, _FIRST) if head is None else (head[0] + 1, head[1])
    entry = {
        "action": action,
        "rollout_id": sample.rollout_id if sample else rollout_id,
        "sample_id": sample.sample_id if sample else None,
        "author": author,
        "reason": reason,
        "detail": None if detail is None else to_json_text(detail),
    }
    digest = sha256(to_json_text({**entry, "created_at": now.isoformat()}).encode()).digest()
    tx.execute(
        _INSERT,
        {
            **entry,
            "entry_no": entry_no,
            "created_at": now,
            "chain_digest": chain_digest(previous, entry_no, digest),
        },
    )
    return entry_no
