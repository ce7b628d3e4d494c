"""A policy's chunks made into one well-formed chat-completions stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from osmosis_ai.eval.chat import UpstreamError

__all__ = ["tidy_chunks"]


async def tidy_chunks(
    chunks: AsyncGenerator[Mapping[str, Any]], *, include_usage: bool
) -> AsyncGenerator[dict[str, Any]]:
    """Yield chunks with every text part in `content` and one index per tool call.

    Args:
        include_usage: Whether the closing usage chunk is passed on.

    Raises:
        UpstreamError: The answer has no choice, or ends without a finish reason.
    """
    indexes = _ToolCallIndexes()
    answered = finished = False
    async with aclosing(chunks):
        async for chunk in chunks:
            choices = [
                {**choice, "delta": _tidy_delta(choice.get("delta") or {}, indexes)}
                for choice in chunk.get("choices") or ()
            ]
            answered = answered or bool(choices)
            finished = finished or any(choice.get("finish_reason") for choice in choices)
            tidy = {**chunk, "choices": choices}
            if not include_usage:
                tidy.pop("usage", None)
            if choices or (answered and tidy.get("usage")):
                yield tidy
    if not answered:
        raise UpstreamError("the model's answer has no choices", status=502)
    if not finished:
        raise UpstreamError("the model's answer broke off: it has no finish reason", status=502)


def _tidy_delta(delta: Mapping[str, Any], indexes: _ToolCallIndexes) -> dict[str, Any]:
    tidy = dict(delta)
    if isinstance(tidy.get("content"), list):
        tidy["content"] = "".join(part.get("text") or "" for part in tidy["content"])
    if tidy.get("tool_calls"):
        tidy["tool_calls"] = [
            {**call, "index": indexes.place(call.get("index") or 0, call.get("id"))}
            for call in tidy["tool_calls"]
        ]
    return tidy


class _ToolCallIndexes:
    """Numbers tool calls by their ids: some providers give every call the index 0."""

    def __init__(self) -> None:
        self._ids: list[str | None] = []
        self._latest: dict[int, int] = {}

    def place(self, index: int, call_id: str | None) -> int:
        known = self._latest.get(index)
        if known is not None and (not call_id or self._ids[known] == call_id):
            return known
        self._ids.append(call_id)
        self._latest[index] = len(self._ids) - 1
        return self._latest[index]
