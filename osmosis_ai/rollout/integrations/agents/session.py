"""A session in memory that is a sample of the active rollout."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agents.memory import Session, SessionSettings
from agents.models.chatcmpl_converter import Converter

from osmosis_ai.rollout.context import SampleSource
from osmosis_ai.rollout.integrations.agents.registration import SampleRegistration
from osmosis_ai.rollout.types import DEFAULT_SAMPLE_ID, RolloutSample

if TYPE_CHECKING:
    from agents import RunContextWrapper, TResponseInputItem

__all__ = ["OsmosisMemorySession", "SessionSampleSource"]

# The SDK's own "all": with None a session applies the limit of its settings.
_ALL = 2_147_483_647

logger = logging.getLogger(__name__)


class SessionSampleSource(SampleSource):
    """Makes a sample of any session's items, as they are."""

    def __init__(self, session: Session) -> None:
        self.session = session

    async def get_sample(self, name: str = DEFAULT_SAMPLE_ID) -> RolloutSample:
        """Return the session's items as the sample `name`."""
        items = [dict(item) for item in await self.session.get_items(limit=_ALL)]
        return RolloutSample(
            id=name, messages=items, trajectory_messages=to_trajectory_messages(items)
        )


def to_trajectory_messages(items: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return the items as chat messages; None, with a warning, where they cannot be converted."""
    try:
        messages = Converter.items_to_messages(
            copy.deepcopy(items),  # type: ignore[arg-type] # plain dicts of the same shape
            preserve_tool_output_all_content=True,
        )
    except Exception as error:  # best effort by contract: the items themselves are kept
        logger.warning("no trajectory messages: items do not convert to chat messages: %s", error)
        return None
    return [dict(message) for message in messages]


class OsmosisMemorySession:
    """An Agents SDK session in memory; built inside `AgentWorkflow.run()`, it is a sample.

    Args:
        name: The sample's id; None: "main".

    Raises:
        ValueError: The rollout has a session of that name already.
    """

    def __init__(self, name: str | None = None) -> None:
        self.session_id = DEFAULT_SAMPLE_ID if name is None else name
        self.session_settings: SessionSettings | None = SessionSettings()
        self._items: list[TResponseInputItem] = []
        self._registration = SampleRegistration(self.session_id, SessionSampleSource(self))

    async def get_items(
        self, limit: int | None = None, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """Return copies of the items, oldest first.

        Args:
            limit: Only this many of the newest; None: what the session's settings say, else
                all; 0: none.

        Raises:
            ValueError: The limit is negative.
        """
        self._registration.touch(wrapper)
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is not None and limit < 0:
            raise ValueError(f"limit is {limit}: use 0 or more, or None for all items")
        items = self._items if limit is None else self._items[max(0, len(self._items) - limit) :]
        return copy.deepcopy(items)

    async def add_items(
        self,
        items: list[TResponseInputItem],
        wrapper: RunContextWrapper[Any] | None = None,
    ) -> None:
        """Append copies of the items, all or none.

        Raises:
            TypeError, ValueError: JSON cannot hold one of them; names its position.
        """
        self._registration.touch(wrapper)
        for index, item in enumerate(items):
            _require_json(index, item)
        self._items += copy.deepcopy(items)

    async def pop_item(
        self, wrapper: RunContextWrapper[Any] | None = None
    ) -> TResponseInputItem | None:
        """Remove the newest item and return it; None when there is none."""
        self._registration.touch(wrapper)
        return self._items.pop() if self._items else None

    async def clear_session(self, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Remove all items."""
        self._registration.touch(wrapper)
        self._items.clear()


def _require_json(index: int, item: object) -> None:
    if not isinstance(item, Mapping):
        raise TypeError(f"items[{index}] is {type(item).__name__}: session items are mappings")
    try:
        json.dumps(item, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise type(error)(f"items[{index}] cannot be held by JSON: {error}") from error
