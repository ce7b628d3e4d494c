"""What imports what: the rollout package alone, the integration, and what is missing."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import osmosis_ai.rollout

PUBLIC = """
AgentWorkflow AgentWorkflowConfig AgentWorkflowContext AgentWorkflowOutput BaseConfig
ConcurrencyConfig ExecutionBackend ExecutionOutcome ExecutionRequest ExecutionResult Grader
GraderConfig GraderContext GraderStatus LocalBackend MessageDict RolloutContext
RolloutErrorCategory RolloutRecorder RolloutSample RolloutStatus SampleSource get_rollout_context
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )


def test_the_package_exports_what_the_contract_lists() -> None:
    assert osmosis_ai.rollout.__all__ == PUBLIC.split()
    for name in PUBLIC.split():
        assert hasattr(osmosis_ai.rollout, name)


def test_the_package_imports_without_agents_and_litellm() -> None:
    done = run_python(
        """
        import sys
        sys.modules["agents"] = sys.modules["litellm"] = None
        import osmosis_ai.rollout.grading
        import osmosis_ai.rollout.utils.digest
        import osmosis_ai.rollout.integrations.agents.registration
        from osmosis_ai.rollout import *
        from osmosis_ai.rollout.backend.local.backend import LocalBackend
        """
    )
    assert done.returncode == 0, done.stderr


def test_the_integration_needs_litellm_only_when_a_model_is_built() -> None:
    done = run_python(
        """
        import sys
        sys.modules["litellm"] = None
        from osmosis_ai.rollout import RolloutContext
        from osmosis_ai.rollout.integrations.agents.openai_agents import (
            OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel,
        )
        with RolloutContext("http://127.0.0.1:9/v1", "k", "r"):
            OsmosisMemorySession()
            OsmosisAgent(name="a", model="gpt-5")
            OsmosisAgent(name="b", model=OsmosisRolloutModel())
        """
    )
    assert "pip install 'osmosis-store[litellm]'" in done.stderr
    assert "ImportError: the rollout model needs the package litellm" in done.stderr


def test_without_the_agents_sdk_the_integration_names_what_to_install() -> None:
    done = run_python(
        """
        import sys
        sys.modules["agents"] = None
        import osmosis_ai.rollout.integrations.agents.openai_agents
        """
    )
    assert "needs the package openai-agents: pip install 'osmosis-store[litellm]'" in done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "agent_workflow",
        "grader",
        "context",
        "types",
        "backend",
        "backend.base",
        "backend.local.backend",
        "utils.concurrency",
        "utils.rewards",
        "utils.imports",
        "utils.identifiers",
    ],
)
def test_modules_that_users_import_say_what_is_public(module: str) -> None:
    imported = __import__(f"osmosis_ai.rollout.{module}", fromlist=["__all__"])

    assert imported.__all__
    assert all(hasattr(imported, name) for name in imported.__all__)
