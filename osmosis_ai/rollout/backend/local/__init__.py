"""The backend that executes rollouts in this process."""

from osmosis_ai.rollout.backend.local.backend import LocalBackend

__all__ = ["LocalBackend"]
