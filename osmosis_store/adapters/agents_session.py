"""`OsmosisSQLSession`: the Agents SDK's session protocol over one stored sample."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, cast

from agents.memory import SessionSettings
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit

from osmosis_ai.rollout.context import RolloutContext, get_rollout_context
from osmosis_ai.rollout.integrations.agents.registration import SampleRegistration
from osmosis_ai.rollout.integrations.agents.session import SessionSampleSource
from osmosis_ai.rollout.types import DEFAULT_SAMPLE_ID
from osmosis_store.adapters.conversation import (
    Conversation,
    OpenConversation,
    ReopenedSample,
    RolloutSampleConversation,
)
from osmosis_store.adapters.recording import StoreRecorder
from osmosis_store.adapters.run_usage import RunUsage
from osmosis_store.codec import EncodedItem, Item, encode_items, to_json_text
from osmosis_store.database import Database, HasDatabase, to_database
from osmosis_store.engine import parse_url
from osmosis_store.errors import NoStoreGiven, StoreError
from osmosis_store.ids import new_id, require_id, to_key
from osmosis_store.records import SampleKey

if TYPE_CHECKING:
    from agents import RunContextWrapper, TResponseInputItem

try:
    from agents.memory.session import _CompactionSnapshot
except ImportError:  # before openai-agents 0.23
    _CompactionSnapshot = None  # type: ignore[assignment,misc]

__all__ = ["OsmosisSQLSession"]


class OsmosisSQLSession:
    """A durable session for the Agents SDK's Runner.

    Built inside `AgentWorkflow.run()` of a rollout that is recorded in a store, it registers
    itself as the sample of its name, like `OsmosisMemorySession`. Elsewhere it needs `store` and
    keeps a conversation of its own, for any `Agent`. Building one does no I/O. What `add_items`
    was given is on disk when it returns, all of it or, when it raises, none.

    Args:
        name: The session's name; in a rollout the sample id, "main" by default. Outside, the
            conversation's name, one that never existed by default.
        store: An open `Store`, or a URL of one that is opened (or made) on first use, shared by
            the process and closed at exit. None: the store that records the active rollout.
        rollout_id: Under which id the conversation is kept; None: under its name. Inside a rollout
            another id than the rollout's makes a conversation beside it, which is no sample of it.
        metadata: JSON values kept with a new conversation outside a rollout.
        session_settings: The Agents SDK's, or their fields; the `limit` counts when `get_items`
            is given none.

    Raises:
        NoStoreGiven: There is neither `store` nor a rollout that is recorded in one.
        InvalidId: The name or the rollout id cannot be a key.
        ValueError: The rollout has a sample of this name already.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        store: HasDatabase | Database | str | None = None,
        rollout_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_settings: SessionSettings | None = coerce_session_settings(
            session_settings or SessionSettings()
        )
        self._usage = RunUsage()
        self._recorder: StoreRecorder | None = None
        ctx = get_rollout_context()
        beside = ctx is not None and rollout_id not in (None, ctx.rollout_id)
        if ctx is None or beside:
            self.session_id = new_id("s_") if name is None else name
            key = to_key(self.session_id)
            sample = SampleKey(key if rollout_id is None else to_key(rollout_id), key)
            self._conversation: Conversation = OpenConversation(
                _to_source(store), sample, _to_text(metadata)
            )
        else:
            self.session_id = require_id("sample id", DEFAULT_SAMPLE_ID if name is None else name)
            self._rollout_id = ctx.rollout_id
            self._conversation, self._recorder = _join(ctx, self.session_id, store, metadata)
        self._registration = (
            None if beside else SampleRegistration(self.session_id, SessionSampleSource(self))
        )

    @classmethod
    def reopen(cls, database: Database, sample: SampleKey) -> Self:
        """Return the session of a stored sample; see `Store.session`."""
        session = cls.__new__(cls)
        session.session_id = sample.sample_id
        session.session_settings = SessionSettings()
        session._registration = session._recorder = None
        session._usage = RunUsage()
        session._conversation = ReopenedSample(database, sample)
        return session

    async def get_items(
        self, limit: int | None = None, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """Return the live items, oldest first, as new objects.

        Args:
            limit: Only this many of the newest; None: what `session_settings` say, else all;
                0: none.

        Raises:
            ValueError: The limit is negative.
            TypeError: The limit is no integer.
            CorruptItem: A body does not decode; names its row.
            RolloutFinished: The name belongs to a rollout that was run.
        """
        self._touch(wrapper)
        last = resolve_session_limit(limit, self.session_settings)
        if last is not None:
            last = min(operator.index(last), sys.maxsize)
        with self._failing():
            found = await self._conversation.read(last)
        return cast("list[TResponseInputItem]", found.items)

    async def add_items(
        self,
        items: list[TResponseInputItem],
        wrapper: RunContextWrapper[Any] | None = None,
    ) -> None:
        """Append the items in one piece; they are on disk when this returns.

        Raises:
            ItemNotStorable: An item would not come back equal; nothing is stored.
            RolloutFinished: The name belongs to a rollout that was run.
        """
        self._touch(wrapper)
        with self._failing():
            encoded = encode_items(items)
            if not encoded:
                return
            if self._recorder is not None:
                await self._append_recorded(self._recorder, encoded)
                return
            await self._conversation.append(encoded, usage=self._usage.since_last(wrapper))
            self._usage.mark_stored(wrapper)

    async def _append_recorded(self, recorder: StoreRecorder, encoded: list[EncodedItem]) -> None:
        """Append the items and let the journal's copies of them go, in one transaction."""
        rollout = (self._rollout_id, self.session_id)
        saved, numbers = recorder.match_calls(*rollout, encoded)
        await self._conversation.append(encoded, saved_calls=saved, call_numbers=numbers)
        recorder.forget_calls(*rollout, saved)

    async def pop_item(
        self, wrapper: RunContextWrapper[Any] | None = None
    ) -> TResponseInputItem | None:
        """Take the newest item away and return it, its row kept; None when there is none.

        Raises:
            CorruptItem: It does not decode; it stays.
        """
        self._touch(wrapper)
        with self._failing():
            return cast("TResponseInputItem | None", await self._conversation.pop())

    async def clear_session(self, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Take every item away, their rows kept."""
        self._touch(wrapper)
        with self._failing():
            await self._conversation.clear()

    async def _get_compaction_snapshot(
        self,
        limit: int,
        *,
        prune_prefix: Callable[[TResponseInputItem], bool] | None = None,
    ) -> Any | None:
        """Give the SDK's compaction the newest items and a way to replace them in one step."""
        if _CompactionSnapshot is None or type(self) is not OsmosisSQLSession:
            return None  # a subclass may transform items, which this would bypass
        self._touch(None)
        found = await self._conversation.read(limit + 1)
        complete = len(found.items) <= limit
        first = max(0, len(found.items) - limit)
        positions = found.positions[first:]

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            is_expired = cast("Callable[[Item], bool] | None", prune_prefix)
            seen = positions[start:]
            with self._failing():
                new = encode_items(output)
                return bool(seen) and await self._conversation.replace(seen, new, is_expired)

        items = cast("list[TResponseInputItem]", found.items[first:])
        return _CompactionSnapshot(items, complete, replace_suffix)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace every item in one transaction, for the SDK's compaction."""
        if type(self) is not OsmosisSQLSession:
            return False
        self._touch(None)
        with self._failing():
            await self._conversation.replace_all(encode_items(items))
        return True

    def _touch(self, wrapper: RunContextWrapper[Any] | None) -> None:
        if self._registration is not None:
            self._registration.touch(wrapper)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Let a store that fails fail the rollout, whoever swallows the error on its way."""
        try:
            yield
        except StoreError as error:
            if self._registration is not None:
                self._registration.fail(error)
            raise


def _join(
    ctx: RolloutContext,
    name: str,
    store: HasDatabase | Database | str | None,
    metadata: Mapping[str, Any] | None,
) -> tuple[Conversation, StoreRecorder | None]:
    """Return the conversation of a session that is a sample of the active rollout."""
    recorder = ctx.recorder
    if isinstance(recorder, StoreRecorder) and _is_recorded_in(store, recorder.database):
        recorder.expect_session(ctx.rollout_id, name)
        sample = SampleKey(recorder.stored_id(ctx.rollout_id), name)
        return RolloutSampleConversation(recorder.database, sample), recorder
    if store is None:
        raise NoStoreGiven(
            f"rollout {ctx.rollout_id!r} is not recorded in a store",
            hint="give LocalBackend or RolloutContext a StoreRecorder(store), or pass store=…",
        )
    sample = SampleKey(to_key(ctx.rollout_id), name)
    return OpenConversation(_to_source(store), sample, _to_text(metadata)), None


def _is_recorded_in(store: HasDatabase | Database | str | None, database: Database) -> bool:
    """Whether the store that a session was given, if any, is the one that records its rollout."""
    if isinstance(store, str):
        return parse_url(store).url == database.place.url
    return store is None or to_database(store) is database


def _to_source(store: HasDatabase | Database | str | None) -> Database | str:
    if store is None:
        raise NoStoreGiven(
            "a session outside a rollout needs a store",
            hint="pass store=…, an open Store or a URL such as sqlite:///chats.db",
        )
    if isinstance(store, str):
        parse_url(store)
        return store
    return to_database(store)


def _to_text(metadata: Mapping[str, Any] | None) -> str | None:
    return None if metadata is None else to_json_text(dict(metadata))
