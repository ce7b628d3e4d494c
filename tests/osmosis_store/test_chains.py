"""The three chains, computed again from the rows: items, grades, the audit log."""

from __future__ import annotations

import json
import struct
from hashlib import sha256
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis_store import OsmosisSQLSession
from osmosis_store.database import Database
from osmosis_store.errors import SampleNotFound
from osmosis_store.records import NewGrade
from osmosis_store.schema import audit_log, grades, grading_runs, items, samples
from tests.osmosis_store.ledger import add_grades, add_rollout


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def rows(database: Database, table: sa.Table) -> list[dict[str, Any]]:
    """Return a table's rows in the order of its key."""
    with database.reading() as tx:
        found = tx.execute(sa.select(table).order_by(*table.primary_key.columns))
        return [dict(row) for row in found.mappings()]


def first_link(rollout_id: str, sample_id: str) -> bytes:
    parts = (part.encode() for part in (rollout_id, sample_id))
    identity = b"".join(struct.pack(">I", len(part)) + part for part in parts)
    return sha256(b"osmosis-store sample\x00" + identity).digest()


def link(previous: bytes, position: int, digest: bytes) -> bytes:
    return sha256(previous + struct.pack(">Q", position) + digest).digest()


def digest_of(row: dict[str, Any], *left_out: str) -> bytes:
    """Return the digest over a row's values by name, as JSON, in the order of its columns."""
    values = {name: to_plain(value) for name, value in row.items() if name not in left_out}
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode()).digest()


def to_plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else value


async def test_the_item_chain_follows_from_identity_nonces_and_bodies(database: Database) -> None:
    session = OsmosisSQLSession("chat", store=database, rollout_id="r")
    await session.add_items([user("naïve"), user("lone \ud800"), user("c")])
    await session.pop_item()
    await session.add_items([user("d")])
    await session.clear_session()
    await session._atomic_replace_items([user("e")])

    head = first_link("r", "chat")
    stored = rows(database, items)
    assert [row["seq"] for row in stored] == list(range(5))
    for row in stored:
        assert len(row["nonce"]) == 16
        assert row["body_digest"] is None  # kept only of a body that is no longer there
        head = link(head, row["seq"], sha256(row["nonce"] + row["body"].encode()).digest())
        assert row["chain_digest"] == head
    (sample,) = rows(database, samples)
    assert (sample["item_count"], sample["chain_head"]) == (5, head)


async def test_equal_items_have_nonces_of_their_own(database: Database) -> None:
    await OsmosisSQLSession("chat", store=database).add_items([user("yes")] * 50)

    assert len({row["nonce"] for row in rows(database, items)}) == 50


def test_the_grade_chain_follows_from_everything_that_grades_say(database: Database) -> None:
    add_rollout(database, "r", "main", "other")
    add_grades(database, "g1", "r", NewGrade(sample_id="main", reward=1, label="42"))
    add_grades(
        database,
        "g2",
        "r",
        NewGrade(sample_id="main", error="ValueError: naïve", label="\n"),
        NewGrade(sample_id="other", removed=True),
        NewGrade(sample_id="main", reward=-0.0, metrics={"z": 1, "a": [0.1]}, explanation="so"),
    )

    heads = {name: first_link("r", name) for name in ("main", "other")}
    stored = rows(database, grades)
    assert [(row["sample_id"], row["grade_no"], row["reward"]) for row in stored] == [
        ("main", 0, 1.0),
        ("main", 1, None),
        ("main", 2, 0.0),
        ("other", 0, None),
    ]
    for row in stored:
        name = row["sample_id"]
        digest = digest_of(row, "grade_no", "chain_digest")
        heads[name] = link(heads[name], row["grade_no"], digest)
        assert row["chain_digest"] == heads[name]
    for sample in rows(database, samples):
        assert sample["grade_chain_head"] == heads[sample["sample_id"]]


async def test_a_grade_names_the_items_that_were_graded(database: Database) -> None:
    session = OsmosisSQLSession("main", store=database, rollout_id="r")
    await session.add_items([user("a")])
    graded = rows(database, samples)[0]["chain_head"]
    add_grades(database, "g", "r", NewGrade(sample_id="main", reward=1.0))
    await session.add_items([user("b")])
    add_grades(database, "g", "r", NewGrade(sample_id="main", reward=0.0, graded_head=graded))
    add_grades(database, "g", "r", NewGrade(sample_id="main", reward=0.5))

    now = rows(database, samples)[0]["chain_head"]
    assert [row["chain_head"] for row in rows(database, grades)] == [graded, graded, now]


def test_a_grade_of_an_unknown_sample_takes_its_whole_call_with_it(database: Database) -> None:
    add_rollout(database, "r", "main")

    with pytest.raises(SampleNotFound, match="no sample 'x'"):
        add_grades(
            database,
            "g",
            "r",
            NewGrade(sample_id="main", reward=1.0),
            NewGrade(sample_id="x", reward=1.0),
        )

    assert rows(database, grades) == rows(database, grading_runs) == []


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_not_stored(database: Database, reward: float) -> None:
    add_rollout(database, "r", "main")

    with pytest.raises(ValueError, match="not JSON compliant"):
        add_grades(database, "g", "r", NewGrade(sample_id="main", reward=reward))
    assert rows(database, grades) == []


def test_a_grading_run_counts_its_grades(database: Database) -> None:
    add_rollout(database, "r", "main", "other")
    add_grades(
        database,
        "g",
        "r",
        NewGrade(sample_id="main", reward=1.0),
        NewGrade(sample_id="other", error="broken"),
    )

    (run,) = rows(database, grading_runs)
    assert (run["graded_count"], run["failed_count"], run["policy_calls"]) == (1, 1, 0)


async def test_the_audit_log_chains_everything_that_was_done(database: Database) -> None:
    add_rollout(database, "r", "main")
    add_grades(database, "g", "r", NewGrade(sample_id="main", reward=1.0))
    session = OsmosisSQLSession("chat", store=database)
    await session.add_items([user("a"), user("b"), user("c")])
    await session.pop_item()
    await session.clear_session()
    await session.clear_session()
    await session.add_items([user("d")])
    await session._atomic_replace_items([user("e")])

    head = sha256(b"osmosis-store audit log").digest()
    log = rows(database, audit_log)
    assert [row["entry_no"] for row in log] == list(range(len(log)))
    for row in log:
        head = link(head, row["entry_no"], digest_of(row, "entry_no", "chain_digest"))
        assert row["chain_digest"] == head
    assert [(row["action"], row["sample_id"], json.loads(row["detail"])) for row in log[2:]] == [
        ("sample.popped", "chat", {"from_seq": 2, "item_count": 1}),
        ("sample.cleared", "chat", {"from_seq": 0, "item_count": 2}),
        ("sample.compacted", "chat", {"from_seq": 0, "item_count": 1}),
    ]
    assert [row["action"] for row in log[:2]] == ["rollout.started", "grading_run.started"]
