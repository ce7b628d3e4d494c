#!/usr/bin/env python3
"""How long a search over many stored items takes, with the text index and without it.

The same answers are asked for from the index and from a look at every item; also what the index
costs: its size, the time to make it, and adding items with it.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from osmosis_store.codec import encode_items
from osmosis_store.database import Database
from osmosis_store.engine import Options, parse_url
from osmosis_store.indexing import build_text_index
from osmosis_store.queries.rollouts import fetch_rollouts
from osmosis_store.queries.search import fetch_items_saying
from osmosis_store.records import SampleKey, Selection
from osmosis_store.writes.items import Append
from osmosis_store.writes.rollouts import insert_rollout
from osmosis_store.writes.samples import ensure_sample

SEED = 20261201
ITEMS_A_SAMPLE = 20
PAGE = 50
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=1000, help="of text in an item")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        place = parse_url(f"sqlite:///{path}")
        database = Database.open(place, Options(synchronous="off"))
        words = Words(random.Random(SEED))
        took = timed(lambda: fill(database, words, options.items, options.bytes))
        print(f"{options.items:,} items in {took:.0f} s, {size(database):,.0f} MB")
        needles = {
            "in one item": "needle IN item",
            "a rare word": words.rare,
            "京都 in one of 10,000": "京都へ",
            "in every item": "a",
            "a common word": words.common,
            "in no item": "nobody says this",
            "a part of a key": "content",
        }
        scanned = {name: search(database, needle, 1) for name, needle in needles.items()}
        plain = timed(lambda: add(database, words, options.bytes))
        before = size(database)
        took = timed(lambda: build_text_index(database))
        print(f"index made in {took:.0f} s, {size(database) - before:,.0f} MB more")
        indexed = timed(lambda: add(database, words, options.bytes))
        print(f"1,000 appends of an item: {plain:.2f} s without, {indexed:.2f} s with the index")
        print(f"\n{'':28}{'every item':>12}{'index':>12}{'ratio':>9}{'--text':>12}")
        for name, needle in needles.items():
            slow = scanned[name]
            fast = search(database, needle, options.rounds)
            rollouts = select(database, needle, options.rounds)
            print(f"{name:28}{slow:10.3f} s{fast:10.3f} s{slow / fast:8.1f}×{rollouts:10.3f} s")
        database.close()


class Words:
    """Texts of a vocabulary in which few words are common and most are rare."""

    def __init__(self, random_: random.Random) -> None:
        self._random = random_
        words = ["".join(random_.choices(SYLLABLES, k=3)) for _ in range(20_000)]
        weights = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
        self._sentences = [
            " ".join(random_.choices(words, cum_weights=weights, k=14)) for _ in range(20_000)
        ]
        self.common, self.rare = words[50], "-".join(words[-2:])

    def text(self, length: int, number: int) -> str:
        """Return an item's text; that of few numbers has what is searched for."""
        found = self._random.choices(self._sentences, k=length // 98)
        if number % 10_000 == 7:
            found += ["京都へ", self.rare]
        if number % 1_000_000 == 7:
            found.append(f"the needle in item {number}")
        return ". ".join(found)


def fill(database: Database, words: Words, count: int, length: int) -> None:
    """Store so many items, twenty to a rollout."""
    for first in range(0, count, 50 * ITEMS_A_SAMPLE):
        samples = [
            SampleKey(f"r{at:08}", "main")
            for at in range(first, min(first + 50 * ITEMS_A_SAMPLE, count), ITEMS_A_SAMPLE)
        ]

        def begin(tx: object, samples: list[SampleKey] = samples) -> None:
            for sample in samples:
                row = {"rollout_id": sample.rollout_id, "status": "success"}
                insert_rollout(tx, row, now=database.clock())  # type: ignore[arg-type]
                ensure_sample(tx, sample, now=database.clock())  # type: ignore[arg-type]

        database.write_now(begin)
        tickets = [
            database._require_writer().submit(
                Append(sample, encode_items(new_items(words, at, length))), loop=None
            )
            for at, sample in enumerate(samples, first // ITEMS_A_SAMPLE)
        ]
        for ticket in tickets:
            ticket.wait()


def new_items(words: Words, sample_no: int, length: int) -> list[dict[str, str]]:
    numbers = range(sample_no * ITEMS_A_SAMPLE, (sample_no + 1) * ITEMS_A_SAMPLE)
    return [{"role": "user", "content": words.text(length, number)} for number in numbers]


def add(database: Database, words: Words, length: int) -> None:
    """Add 1,000 items, one after another."""
    for number in range(1000):
        item = {"role": "user", "content": words.text(length, 0)}
        append = Append(SampleKey(f"r{number % 10 * 20:08}", "main"), encode_items([item]))
        database._require_writer().submit(append, loop=None).wait()


def search(database: Database, needle: str, rounds: int) -> float:
    def run() -> None:
        with database.reading() as tx:
            fetch_items_saying(tx, needle, Selection(), limit=PAGE)

    return statistics.median(timed(run) for _ in range(rounds))


def select(database: Database, needle: str, rounds: int) -> float:
    def run() -> None:
        with database.reading() as tx:
            fetch_rollouts(tx, Selection(text=needle), limit=PAGE)

    return statistics.median(timed(run) for _ in range(rounds))


def size(database: Database) -> float:
    """Return the megabytes of a store, its log included."""
    path = database.place.path
    assert path is not None
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")) / 1e6


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
