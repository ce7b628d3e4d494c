from collections.abc import Iterator
from pathlib import Path

import pytest

from .provider import Provider, serve_provider

CONFIG = """\
[eval]
rollout = "adder"
entrypoint = "main.py"
dataset = "data/adder.jsonl"

[llm]
model = "scripted"
script = "policies/adder.jsonl"
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Return a workspace with one rollout, one dataset row and one scripted rule."""
    root = tmp_path / "workspace"
    for name, text in {
        "configs/eval/adder.toml": CONFIG,
        "data/adder.jsonl": '{"user_prompt": "1 + 1?", "ground_truth": "2"}\n',
        "policies/adder.jsonl": '{"match": "1 + 1", "replies": [{"content": "2"}]}\n',
        "rollouts/adder/main.py": '"""Empty."""\n',
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def provider() -> Iterator[Provider]:
    """Return a running stand-in for a model provider."""
    with serve_provider() as running:
        yield running
