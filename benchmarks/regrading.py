"""Regrading stored samples: samples per second and memory, beside Inspect's `score()`.

Each sample has 12 items of about 1 KB, and the grader looks at the last one. Each cell is a fresh
process; ours grades `--samples` under `synchronous=FULL`, grades stored, in one process. With
`--inspect PYTHON`, an interpreter that has inspect_ai, the same content is scored from a log of
`--inspect-samples`, in turn with ours. `raw read` is sqlite3 and json without a grader.

    python benchmarks/regrading.py --samples 10000,100000 --inspect /path/to/python
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from osmosis_ai.rollout import Grader, GraderConfig
from osmosis_store import Store, regrade
from osmosis_store.codec import encode_items
from osmosis_store.database import Database
from osmosis_store.engine import Options, parse_url
from osmosis_store.records import SampleKey
from osmosis_store.writes.items import Append, append_items
from osmosis_store.writes.rollouts import insert_rollout
from osmosis_store.writes.samples import ensure_sample

ITEMS, SIZE, SLICE = 12, 1000, 500

INSPECT = """
import json, resource, sys, time
from inspect_ai import Task, eval as run_eval, score
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log, write_eval_log
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser
from inspect_ai.scorer import Score, accuracy, includes, scorer
from inspect_ai.solver import solver

what, folder, count, texts = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])

@solver
def replay():
    async def solve(state, generate):
        kinds = (ChatMessageUser, ChatMessageAssistant)
        state.messages += [kinds[at % 2](content=text) for at, text in enumerate(texts)]
        return state
    return solve

@scorer(metrics=[accuracy()])
def says_answer():
    async def grade(state, target):
        return Score(value=float("answer" in state.messages[-1].text))
    return grade

if what == "build":
    task = Task(dataset=[Sample(id=i, input="go", target="answer") for i in range(count)],
                solver=replay(), scorer=includes(), name="rollouts")
    print(run_eval(task, model="mockllm/model", log_dir=folder, display="none")[0].location)
else:
    began = time.perf_counter()
    scored = score(read_eval_log(folder), says_answer(), action="overwrite", display="none")
    write_eval_log(scored, folder + ".scored.eval")
    took = time.perf_counter() - began
    assert len(scored.samples) == count
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rate": count / took, "mib": rss}))
"""


class SaysAnswer(Grader):
    """The last item speaks of the answer."""

    async def grade(self, ctx: Any) -> None:
        """Reward what ends with an answer."""
        for name, sample in ctx.samples.items():
            ctx.set_sample_reward(name, float("answer" in sample.messages[-1]["content"]))


def make_texts() -> list[str]:
    text = "the question, a tool's output and what follows from it; "
    return [(f"{at}: " + text * SIZE)[: SIZE - 40] for at in range(ITEMS - 1)] + [
        ("the answer is 42 " * SIZE)[: SIZE - 40]
    ]


def fill(path: Path, count: int) -> None:
    """Store so many rollouts with one sample each."""
    encoded = encode_items([{"role": "user", "content": text} for text in make_texts()])
    database = Database.open(parse_url(f"sqlite:///{path}"), Options(synchronous="off"))

    def insert(tx: Any, first: int, end: int) -> None:
        keys = [SampleKey(f"r{number:08}", "main") for number in range(first, end)]
        for key in keys:
            row = {"rollout_id": key.rollout_id, "status": "success", "label": "42"}
            insert_rollout(tx, row, now=database.clock())
            ensure_sample(tx, key, now=database.clock())
        append_items(tx, [Append(key, encoded) for key in keys], now=database.clock())

    for first in range(0, count, SLICE):
        end = min(count, first + SLICE)
        database.write_now(functools.partial(insert, first=first, end=end))
    database.close()


async def grade(path: str) -> dict[str, float]:
    async with Store.open(f"sqlite:///{path}", create=False) as store:
        # a config of its own each time: nothing is settled
        report = await regrade(store, SaysAnswer, config=GraderConfig(name=f"{time.time_ns()}"))
    [one] = report.passes
    assert (one.failed_count, one.mean_after) == (0, 1.0)
    return {"rate": one.graded_count / report.duration_s}


def read(path: str) -> dict[str, float]:
    connection = sqlite3.connect(path)
    keys = connection.execute("SELECT rollout_id, sample_id FROM samples ORDER BY 1, 2").fetchall()
    statement = "SELECT body FROM items WHERE rollout_id=? AND sample_id=? ORDER BY seq"
    began = time.perf_counter()
    for key in keys:
        found = [json.loads(body) for (body,) in connection.execute(statement, key)]
        assert len(found) == ITEMS
    return {"rate": len(keys) / (time.perf_counter() - began)}


def cell(what: str, path: str) -> None:
    found = asyncio.run(grade(path)) if what == "grade" else read(path)
    found["mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found))


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[:3]} failed:\n{done.stderr}")
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", default="10000,100000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inspect", metavar="PYTHON", help="an interpreter that has inspect_ai")
    parser.add_argument("--inspect-samples", type=int, default=1000)
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        cell(*args.cell)
        return
    counts = [int(one) for one in args.samples.split(",")]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=Path.cwd()) as folder:
        ways: dict[str, tuple[str, ...]] = {}
        for count in counts:
            path = Path(folder) / f"{count}.db"
            fill(path, count)
            ours = (sys.executable, __file__, "--cell")
            ways[f"osmosis-store regrade, {count:,} samples"] = (*ours, "grade", str(path))
            if count == counts[0]:
                ways[f"raw read, {count:,} samples"] = (*ours, "read", str(path))
        if args.inspect:
            rest = (str(args.inspect_samples), json.dumps(make_texts()))
            log = run(args.inspect, "-c", INSPECT, "build", folder, *rest)
            name = f"Inspect score(), {args.inspect_samples:,} samples"
            ways[name] = (args.inspect, "-c", INSPECT, "score", log, *rest)
        rounds = [
            {name: json.loads(run(*way)) for name, way in ways.items()} for _ in range(args.rounds)
        ]
    first = next(iter(ways))
    print(f"{'way':44} {'samples/s':>10} {'ours is':>9} {'peak MiB':>9}")
    for name in ways:
        rate, peak = (
            statistics.median(one[name][key] for one in rounds) for key in ("rate", "mib")
        )
        ratio = statistics.median(one[first]["rate"] / one[name]["rate"] for one in rounds)
        print(f"{name:44} {rate:10,.0f} {ratio:8.2f}× {peak:9,.0f}")


if __name__ == "__main__":
    main()
