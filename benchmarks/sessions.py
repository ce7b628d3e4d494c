"""Many sessions at once on one SQLite file: ours, the Agents SDK's, and raw sqlite3 as the floor.

Every session does `--steps` times what the Runner does around a turn: get_items, then add_items
of two items of 1 KB. Each backend runs in a fresh process and database, all of them side by side
in every round, and ratios are taken within a round. SQLite runs with synchronous=FULL everywhere.

    python benchmarks/sessions.py --sessions 1,256 --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Items = list[Any]  # the SDK's item is one of thirty TypedDicts
PER_ADD = 2


def make_items(size: int) -> Items:
    """Return what a turn adds: an assistant message of about `size` bytes, twice."""
    text = "The quick brown fox jumps over the lazy dog. " * (size // 45)
    return [
        {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
        for number in range(PER_ADD)
    ]


async def open_ours(path: Path) -> tuple[Callable[[str], Any], Callable[[], Awaitable[Any]]]:
    from osmosis_store import OsmosisSQLSession, Store

    store = await Store.open(f"sqlite:///{path}")
    return lambda name: OsmosisSQLSession(name, store=store), store.close


async def open_sdk_sqlite(path: Path) -> tuple[Callable[[str], Any], Callable[[], Awaitable[Any]]]:
    from agents import SQLiteSession

    opened: list[SQLiteSession] = []

    def make(name: str) -> SQLiteSession:
        opened.append(SQLiteSession(name, path))
        return opened[-1]

    async def close() -> None:
        for session in opened:
            session.close()

    return make, close


async def open_sdk_sqlalchemy(
    path: Path,
) -> tuple[Callable[[str], Any], Callable[[], Awaitable[Any]]]:
    from agents.extensions.memory import SQLAlchemySession
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    await SQLAlchemySession("first", engine=engine, create_tables=True).get_items()
    return lambda name: SQLAlchemySession(name, engine=engine), engine.dispose


BACKENDS = {
    "osmosis-store": open_ours,
    "SDK SQLiteSession": open_sdk_sqlite,
    "SDK SQLAlchemySession": open_sdk_sqlalchemy,
}
FLOOR = "raw sqlite3, group commit"


async def run_backend(name: str, path: Path, args: argparse.Namespace) -> dict[str, float]:
    make, close = await BACKENDS[name](path)
    items, waits = make_items(args.size), []

    async def work(number: int) -> None:
        session = make(f"session-{number}")
        for step in range(args.steps):
            found = await session.get_items()
            if len(found) != step * PER_ADD:
                raise SystemExit(f"{name} has lost items: {len(found)} of {step * PER_ADD}")
            began = time.perf_counter()
            await session.add_items(items)
            waits.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(work(number) for number in range(args.count)))
    took_s = time.perf_counter() - began
    await close()
    waits.sort()
    return {
        "items_per_s": args.count * args.steps * PER_ADD / took_s,
        "add_p50_us": waits[len(waits) // 2] * 1e6,
        "add_p99_us": waits[len(waits) * 99 // 100] * 1e6,
    }


def run_floor(path: Path, args: argparse.Namespace) -> dict[str, float]:
    """Do the same calls in one thread, all sessions' adds of a step in one commit."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE items (session TEXT, id INTEGER PRIMARY KEY, body TEXT)")
    db.execute("CREATE INDEX items_by_session ON items (session, id)")
    items, waits = make_items(args.size), []
    names = [f"session-{number}" for number in range(args.count)]
    began = time.perf_counter()
    for _ in range(args.steps):
        for name in names:
            rows = db.execute("SELECT body FROM items WHERE session=? ORDER BY id", (name,))
            [json.loads(body) for (body,) in rows]
        step_began = time.perf_counter()
        db.execute("BEGIN IMMEDIATE")
        for name in names:
            db.executemany(
                "INSERT INTO items (session, body) VALUES (?, ?)",
                [(name, json.dumps(item)) for item in items],
            )
        db.execute("COMMIT")
        waits.append(time.perf_counter() - step_began)
    took_s = time.perf_counter() - began
    waits.sort()
    return {
        "items_per_s": args.count * args.steps * PER_ADD / took_s,
        "add_p50_us": waits[len(waits) // 2] * 1e6,
        "add_p99_us": waits[len(waits) * 99 // 100] * 1e6,
    }


def run_cell(name: str, count: int, args: argparse.Namespace) -> dict[str, float]:
    """Run one backend in a process of its own and return its figures."""
    command = [sys.executable, __file__, "--cell", name, "--count", str(count)]
    command += ["--steps", str(args.steps), "--size", str(args.size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def report(count: int, rounds: list[dict[str, dict[str, float]]]) -> None:
    """Print one table: the median of the rounds, ratios taken within each round."""
    print(f"\n{count} sessions, SQLite, synchronous=FULL, median of {len(rounds)} rounds")
    print(f"{'backend':28} {'items/s':>9} {'ours is':>9} {'add p50 µs':>11} {'add p99 µs':>11}")
    for name in rounds[0]:
        middle = {
            key: statistics.median(one[name][key] for one in rounds) for key in rounds[0][name]
        }
        ratio = statistics.median(
            one["osmosis-store"]["items_per_s"] / one[name]["items_per_s"] for one in rounds
        )
        print(
            f"{name:28} {middle['items_per_s']:9,.0f} {ratio:8.2f}× "
            f"{middle['add_p50_us']:11,.0f} {middle['add_p99_us']:11,.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", default="1,256", help="how many at once, by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", type=int, default=1000, help="bytes of an item")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bench.db"
            if args.cell == FLOOR:
                found = run_floor(path, args)
            else:
                found = asyncio.run(run_backend(args.cell, path, args))
        print(json.dumps(found), flush=True)
        os._exit(0)  # a backend's threads need not be waited for
    for count in map(int, args.sessions.split(",")):
        names = [*BACKENDS, FLOOR]
        rounds = [{name: run_cell(name, count, args) for name in names} for _ in range(args.rounds)]
        report(count, rounds)


if __name__ == "__main__":
    main()
