"""Adapters between rollouts and agent frameworks."""
