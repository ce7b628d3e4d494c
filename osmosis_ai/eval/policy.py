"""Which policy an eval run's config names: its description, what identifies it, how it starts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from osmosis_ai.eval.chat import Policy
from osmosis_ai.eval.config import EvalConfig
from osmosis_ai.eval.errors import ConfigError
from osmosis_ai.eval.scripted import load_script
from osmosis_ai.eval.upstream import LiteLLMPolicy
from osmosis_ai.rollout.utils.redaction import redact

__all__ = ["describe_policy", "identify_policy", "load_policy"]


def describe_policy(config: EvalConfig) -> str:
    """Return how people are told which model answers; starts nothing."""
    if config.script is not None:
        return f"scripted ({config.shorten(config.script)}), no network, no key"
    return f"{config.model} at {redact(config.base_url)}" if config.base_url else config.model


def identify_policy(config: EvalConfig) -> dict[str, Any]:
    """Return what shapes the model's answers as JSON values, without secrets."""
    if config.script is not None:
        sha256 = hashlib.sha256(config.script.read_bytes()).hexdigest()
        return {"model": config.model, "script_sha256": sha256}
    return {"model": config.model, "base_url": config.base_url and redact(config.base_url)}


def load_policy(config: EvalConfig, environ: Mapping[str, str]) -> Policy:
    """Return the policy, ready to be served.

    Args:
        environ: Where the key is looked up under the name that the config gives.

    Raises:
        ConfigError: The named variable is not set.
        ScriptError: The scripted policy's file is broken.
        EvalError: LiteLLM is needed and not installed.
    """
    if config.script is not None:
        return load_script(config.script, name=config.shorten(config.script))
    api_key = environ.get(config.api_key_env) if config.api_key_env else None
    if config.api_key_env and not api_key:
        raise ConfigError(
            config.shorten(config.config_path),
            f"the environment variable {config.api_key_env} is not set",
            key="[llm] api_key_env",
            hint=f"set {config.api_key_env}, or remove api_key_env where no key is needed",
        )
    return LiteLLMPolicy(
        config.model,
        base_url=config.base_url,
        api_key=api_key,
        timeout_s=config.agent_workflow_timeout_s,
    )
