"""Reading a session's last items: which way from a coroutine to SQLite is the fastest.

Each way reads the last 50 items (1 KB each) of a session of 1,000, one call after another; all
ways in every round, in turn, on the same file; ratios within a round. `one row` is the kind of
statement that the store uses, bodies joined by SQLite; `rows` fetches a row per item.

    python benchmarks/reading.py --rounds 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiosqlite
import msgspec
from agents import SQLiteSession
from sessions import make_items

from osmosis_store import OsmosisSQLSession, Store

LAST, TOTAL = 50, 1000
ROWS = (
    "SELECT seq, body FROM items WHERE rollout_id='chat' AND sample_id='chat'"
    f" AND tombstoned_at IS NULL ORDER BY seq DESC LIMIT {LAST}"
)
ONE_ROW = f"SELECT group_concat(body, ',') FROM (SELECT body FROM ({ROWS}) ORDER BY seq)"
Read = Callable[[], Awaitable[Any]]


async def measure(read: Read, count: int) -> float:
    """Return the median time of a call in µs."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        found = await read()
        times.append(time.perf_counter() - began)
        assert len(found) == LAST
    return statistics.median(times) * 1e6


async def run(rounds: int, count: int, folder: Path) -> None:
    path = folder / "store.db"
    items = [item for _ in range(TOTAL // 2) for item in make_items(1000)]
    store = await Store.open(f"sqlite:///{path}")
    ours = OsmosisSQLSession("chat", store=store)
    await ours.add_items(items)
    sdk = SQLiteSession("chat", folder / "sdk.db")
    await sdk.add_items(items)
    other = await aiosqlite.connect(path)
    raw = sqlite3.connect(path)

    async def aiosqlite_one_row() -> Any:
        ((bodies,),) = await other.execute_fetchall(ONE_ROW)
        return msgspec.json.decode(f"[{bodies}]")

    async def aiosqlite_rows() -> Any:
        rows = await other.execute_fetchall(ROWS)
        return [msgspec.json.decode(body) for _, body in rows]

    async def raw_rows() -> Any:
        return [json.loads(body) for _, body in raw.execute(ROWS)]

    ways: dict[str, Read] = {
        "osmosis-store get_items": lambda: ours.get_items(limit=LAST),
        "aiosqlite, one row": aiosqlite_one_row,
        "aiosqlite, rows": aiosqlite_rows,
        "SDK SQLiteSession": lambda: sdk.get_items(limit=LAST),
        "raw sqlite3 on the loop": raw_rows,
    }
    found = [
        {name: await measure(read, count) for name, read in ways.items()} for _ in range(rounds)
    ]
    print(f"{'way':26} {'median µs':>10} {'ours is':>9}")
    for name in ways:
        ratio = statistics.median(one[name] / one["osmosis-store get_items"] for one in found)
        print(f"{name:26} {statistics.median(one[name] for one in found):10,.0f} {ratio:8.2f}×")
    sdk.close()
    raw.close()
    await other.close()
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=200, help="calls of each way in a round")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(args.rounds, args.count, Path(folder)))


if __name__ == "__main__":
    main()
