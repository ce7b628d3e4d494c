"""Adapters for agent SDKs, one module each."""
