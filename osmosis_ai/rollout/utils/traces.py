"""Keeping the Agents SDK from sending conversations away."""

from __future__ import annotations

import os

__all__ = ["send_no_traces"]


def send_no_traces() -> None:
    """Switch tracing off unless it was set: with a key around, the SDK sends every conversation."""
    os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
