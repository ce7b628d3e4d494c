"""The tokens of a run as its wrapper counts them, taken once per saved turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from osmosis_store.records import Usage

if TYPE_CHECKING:
    from agents import RunContextWrapper

__all__ = ["RunUsage"]


class RunUsage:
    """What of each run's usage is stored already.

    The Runner hands a session its run's wrapper, whose usage includes the turn that is being
    saved: the difference to the last time is the model calls that gave these items.
    """

    def __init__(self) -> None:
        self._stored: WeakKeyDictionary[RunContextWrapper[Any], tuple[int, Usage]] = (
            WeakKeyDictionary()
        )

    def since_last(self, wrapper: RunContextWrapper[Any] | None) -> Usage | None:
        """Return the tokens since `mark_stored`; None without a wrapper or a new model call."""
        if wrapper is None:
            return None
        requests, before = self._stored.get(wrapper, (0, Usage()))
        if wrapper.usage.requests <= requests:
            return None
        now = _to_usage(wrapper)
        return Usage(
            input_tokens=now.input_tokens - before.input_tokens,
            cached_tokens=now.cached_tokens - before.cached_tokens,
            output_tokens=now.output_tokens - before.output_tokens,
            reasoning_tokens=now.reasoning_tokens - before.reasoning_tokens,
        )

    def mark_stored(self, wrapper: RunContextWrapper[Any] | None) -> None:
        """Note that everything up to now is stored."""
        if wrapper is not None:
            self._stored[wrapper] = (wrapper.usage.requests, _to_usage(wrapper))


def _to_usage(wrapper: RunContextWrapper[Any]) -> Usage:
    usage = wrapper.usage
    return Usage(
        input_tokens=usage.input_tokens,
        cached_tokens=usage.input_tokens_details.cached_tokens or 0,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.output_tokens_details.reasoning_tokens or 0,
    )
