"""Agent rollouts in SQL: durable sessions, samples and grades that outlive their process."""

from typing import TYPE_CHECKING, Any

from osmosis_store.version import __version__

if TYPE_CHECKING:
    from osmosis_store.adapters.agents_session import OsmosisSQLSession
    from osmosis_store.adapters.recording import StoreRecorder
    from osmosis_store.adapters.regrading import regrade
    from osmosis_store.errors import StoreError
    from osmosis_store.records import Selection
    from osmosis_store.store import Store

__all__ = [
    "OsmosisSQLSession",
    "Selection",
    "Store",
    "StoreError",
    "StoreRecorder",
    "__version__",
    "regrade",
]

# Handed out on first use: the Agents SDK alone takes two seconds to import.
_HOMES = {
    "OsmosisSQLSession": "osmosis_store.adapters.agents_session",
    "Selection": "osmosis_store.records",
    "Store": "osmosis_store.store",
    "StoreError": "osmosis_store.errors",
    "StoreRecorder": "osmosis_store.adapters.recording",
    "regrade": "osmosis_store.adapters.regrading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
