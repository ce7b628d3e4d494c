"""The journal: each model call before it is sent, and its answer before any tool runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.schema import contents, model_calls
from osmosis_store.statements import insert_if_absent

__all__ = ["end_model_call", "insert_model_call"]


def insert_model_call(
    tx: Connection,
    values: dict[str, Any],
    *,
    instructions: str | None,
    tools: str | None,
    now: dt.datetime,
) -> int:
    """Add the intent of a model call and return its number in the rollout.

    Args:
        values: Columns of `model_calls`; JSON ones as text.
        instructions, tools: What the model sees, kept once per content; None: none.
    """
    rollout_id = values["rollout_id"]
    call_no: int = tx.execute(
        sa.select(sa.func.coalesce(sa.func.max(model_calls.c.call_no), -1) + 1).where(
            model_calls.c.rollout_id == rollout_id
        )
    ).scalar_one()
    tx.execute(
        sa.insert(model_calls),
        {
            "state": "asked",
            "asked_at": now,
            **values,
            "call_no": call_no,
            "instructions_digest": _digest(instructions),
            "tools_digest": _digest(tools),
        },
    )
    _keep_contents(tx, (text for text in (instructions, tools) if text is not None), now)
    return call_no


def _keep_contents(tx: Connection, texts: Iterable[str], now: dt.datetime) -> None:
    rows = [{"digest": _digest(text), "body": text, "created_at": now} for text in texts]
    if rows:
        tx.execute(insert_if_absent(contents), rows)


def _digest(text: str | None) -> bytes | None:
    return None if text is None else sha256(text.encode()).digest()


def end_model_call(
    tx: Connection, rollout_id: str, call_no: int, values: dict[str, Any], *, now: dt.datetime
) -> str:
    """Set a call's answer or error and return its sample's id.

    Args:
        values: Columns of `model_calls`; JSON ones as text.
    """
    call = sa.and_(model_calls.c.rollout_id == rollout_id, model_calls.c.call_no == call_no)
    tx.execute(sa.update(model_calls).where(call).values(answered_at=now, **values))
    sample_id: str = tx.execute(sa.select(model_calls.c.sample_id).where(call)).scalar_one()
    return sample_id
