"""A workspace whose workflow does what each dataset row says, and notes every run of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from osmosis_ai.eval.config import Override, load_config
from osmosis_ai.eval.report import EvalReport
from osmosis_ai.eval.run import run_eval
from osmosis_store.adapters.eval_archive import StoreArchive
from osmosis_store.database import Database

CONFIG_PATH = "configs/eval/echo.toml"
MAIN_PATH = "rollouts/echo/main.py"
CONFIG = """\
[eval]
rollout = "echo"
entrypoint = "main.py"
dataset = "data/echo.jsonl"

[llm]
model = "scripted"
script = "policies/echo.jsonl"

[runs]
batch_size = 4
"""

MAIN = '''\
"""Answers with what the row says, or does it."""

import asyncio
from pathlib import Path

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowOutput, Grader

HERE = Path(__file__).parent


class Echo(AgentWorkflow):
    async def run(self, ctx):
        text = ctx.prompt[-1]["content"]
        with (HERE / "ran.log").open("a") as log:
            log.write(text + "\\n")
        if text.startswith("raise"):
            raise ValueError(text)
        while text.startswith("wait") and not (HERE / "go").exists():
            await asyncio.sleep(0.01)
        answer = [*ctx.prompt, {"role": "assistant", "content": text}]
        names = text.split()[1:] if text.startswith("samples") else ["main"]
        return AgentWorkflowOutput(samples={name: answer for name in names})


class Exact(Grader):
    async def grade(self, ctx):
        for name, sample in ctx.samples.items():
            if ctx.label == "break":
                raise KeyError("the grader broke")
            if name == "draft":
                sample.remove_sample = True
                continue
            ctx.set_sample_reward(name, float(sample.messages[-1]["content"] == ctx.label))
'''


class Workspace:
    """Its files, and `osmosis eval run` on them over a store."""

    def __init__(self, root: Path, rows: list[dict[str, Any]]) -> None:
        self.root = root
        self.write(CONFIG_PATH, CONFIG)
        self.write("policies/echo.jsonl", '{"replies": [{"content": "ok"}]}\n')
        self.write(MAIN_PATH, MAIN)
        self.write_rows(rows)

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text that is there exactly once in a file."""
        text = (self.root / name).read_text()
        assert text.count(old) == 1
        self.write(name, text.replace(old, new))

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        """Write the dataset."""
        self.write("data/echo.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    async def run(
        self, database: Database, flags: Mapping[Override, Any] | None = None, **options: Any
    ) -> EvalReport:
        """Do what the command does, with its flags; `options` are those of `run_eval`."""
        config = load_config(self.root / CONFIG_PATH, flags)
        return await run_eval(config, StoreArchive(database), **{"environ": {}, **options})

    def take_ran(self) -> list[str]:
        """Return the texts of the rollouts that ran since the last call, sorted."""
        log = self.root / "rollouts/echo/ran.log"
        with suppress(FileNotFoundError):
            lines = log.read_text().splitlines()
            log.unlink()
            return sorted(lines)
        return []


def row(text: str, label: str | None = None, **values: Any) -> dict[str, Any]:
    """Return a dataset row."""
    return {"user_prompt": text} | ({} if label is None else {"ground_truth": label}) | values
