"""Error texts as they are stored."""

from __future__ import annotations

from typing import overload

from osmosis_ai.rollout.utils.redaction import redact
from osmosis_store.codec import to_clean_text

__all__ = ["to_error_text"]


@overload
def to_error_text(text: str) -> str: ...
@overload
def to_error_text(text: None) -> None: ...
def to_error_text(text: str | None) -> str | None:
    """Return a text without what looks like a secret and what a database cannot hold."""
    return None if text is None else redact(to_clean_text(text))
