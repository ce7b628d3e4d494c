from __future__ import annotations

import datetime as dt
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from osmosis_store.cli.detail import format_detail
from osmosis_store.cli.output import Screen
from osmosis_store.cli.text import width_of
from osmosis_store.database import Database
from osmosis_store.engine import Options, parse_url
from osmosis_store.queries.rollouts import fetch_rollout_detail
from osmosis_store.records import RolloutDetail

from .conftest import Command

pytestmark = pytest.mark.usefixtures("store_file")

FAILED = "gym-blackjack-t000000"


def change(store_file: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(store_file)) as connection, connection:
        assert connection.execute(statement, values).rowcount


def fetch(store_file: Path, rollout_id: str) -> RolloutDetail:
    database = Database.open(parse_url(f"sqlite:///{store_file}"), Options(readonly=True))
    with database.reading() as tx:
        detail = fetch_rollout_detail(tx, rollout_id)
    database.close()
    return detail


def ids(command: Command, *flags: object) -> list[str]:
    found = command("rollouts", "list", "--json", *flags).data["rollouts"]
    return [one["rollout_id"] for one in found]


def first_id(command: Command, part: str) -> str:
    return next(one for one in ids(command) if part in one)


def test_the_list_is_paged_by_the_last_id(command: Command) -> None:
    everything = ids(command)
    pages: list[str] = []
    after: list[str] = []
    while True:
        page = command("rollouts", "list", "--json", "--limit", 4, *after).data
        pages += [one["rollout_id"] for one in page["rollouts"]]
        after = ["--after", page["last_id"]]
        if not page["has_more"]:
            break

    assert pages == everything == sorted(everything)
    assert len(everything) == 13


def test_a_page_that_is_not_the_last_says_how_to_go_on(command: Command) -> None:
    last = ids(command)[1]

    assert f"2 rollouts, and more: --after {last}" in command("rollouts", "list", "--limit", 2).out
    assert "and more" not in command("rollouts", "list").out


def test_the_page_behind_the_last_one_is_empty(command: Command) -> None:
    page = command("rollouts", "list", "--json", "--after", ids(command)[-1]).data

    assert page == {"rollouts": [], "last_id": None, "has_more": False}
    assert command("rollouts", "list", "--tool", "no such tool").out == "no rollouts\n"


def test_a_row_of_the_list_shows_reward_label_and_what_was_asked(command: Command) -> None:
    rollout_id = first_id(command, "math_with_code")

    out = command("rollouts", "list", "--rollout", rollout_id).out

    assert rollout_id in out
    assert "1.0" in out
    assert out.splitlines()[0].split() == [
        "rollout",
        "status",
        "attempt",
        "reward",
        "started",
        "label",
        "about",
    ]


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--workflow", "gym:blackjack_gymnasium_agent"], ["blackjack", "blackjack"]),
        (["--tool", "get_weather"], ["mcp_weather"]),
        (["--sample", "main", "--limit", "1"], ["blackjack"]),
        (["--sample", "other"], []),
        (["--status", "failure"], ["multichallenge"]),
        (["--eval-run", "none"], []),
        (["--since", "2000-01-01", "--until", "2000-01-02T10:00+02:00"], []),
    ],
    ids=str,
)
def test_a_selection_chooses_rollouts(command: Command, flags: list[str], parts: list[str]) -> None:
    found = ids(command, *flags)

    assert len(found) == len(parts)
    assert all(part in one for part, one in zip(parts, found, strict=True))


def test_rollout_may_be_named_many_times(command: Command) -> None:
    one, _, two, *_ = ids(command)

    assert ids(command, "--rollout", two, "--rollout", one) == [one, two]


def test_since_takes_a_length_of_time(command: Command, store_file: Path) -> None:
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    chosen = ids(command)[3]
    change(store_file, "UPDATE rollouts SET started_at = '2001-01-01 00:00:00.000000'")
    ago = (now - dt.timedelta(minutes=30)).isoformat(" ", "microseconds")
    change(store_file, "UPDATE rollouts SET started_at = ? WHERE rollout_id = ?", ago, chosen)

    assert ids(command, "--since", "1h") == [chosen]
    assert ids(command, "--since", "10m") == []


def test_show_prints_the_conversation_usage_and_grades(command: Command) -> None:
    done = command("rollouts", "show", first_id(command, "math_with_code"), "--utc")

    assert done.code == 0
    lines = done.out.splitlines()
    assert " · success · " in lines[0]
    assert 'label "' in lines[0]
    assert [line.split()[1] for line in lines if line[:3].strip().isdigit()] == [
        "system",
        "user",
        "assistant",
        "call",
        "output",
        "assistant",
    ]
    assert "call_" in next(line for line in lines if " call " in line)
    assert any(line.startswith(" calls      0 gpt-4") and " in" in line for line in lines)
    assert any("imported · gym:math_with_code" in line and line.endswith("Z") for line in lines)


def test_show_as_json_gives_the_items_as_they_are(command: Command, store_file: Path) -> None:
    rollout_id = first_id(command, "calendar")

    data = command("rollouts", "show", rollout_id, "--json").data

    detail = fetch(store_file, rollout_id)
    (sample,) = data["samples"]
    assert json.dumps([one["item"] for one in sample["items"]]) == json.dumps(
        [record.item for record in detail.items["main"]]
    )
    assert data["rollout"]["rollout_id"] == rollout_id
    assert len(data["grades"]) == len(detail.grades) == 1


def test_show_of_one_sample_shows_only_it(command: Command) -> None:
    rollout_id = first_id(command, "calendar")

    samples = command("rollouts", "show", rollout_id, "--sample", "main", "--json").data["samples"]

    assert [one["sample_id"] for one in samples] == ["main"]


def test_what_is_gone_or_recovered_is_marked_and_counted(
    command: Command, store_file: Path
) -> None:
    rollout_id = first_id(command, "math_with_code")
    where = f"WHERE rollout_id = '{rollout_id}' AND seq = "
    change(
        store_file,
        "UPDATE items SET tombstoned_at = '2026-11-30 20:14:00.000000', "
        f"tombstone_reason = 'popped' {where} 4",
    )
    change(store_file, f"UPDATE items SET recovered = 1 {where} 3")

    out = command("rollouts", "show", rollout_id, "--utc").out

    assert "[popped 2026-11-30 20:14Z]" in out
    assert "[recovered]" in out
    assert " 1 item no longer in the conversation" in out
    assert " 1 item recovered from the journal" in out


def test_an_error_is_shown_with_its_traceback(command: Command, store_file: Path) -> None:
    rollout_id = ids(command)[0]
    change(
        store_file,
        "UPDATE rollouts SET status = 'failure', error_category = 'agent_error', "
        "error_message = 'it broke', error_traceback = ? WHERE rollout_id = ?",
        'Traceback\n  File "main.py"\nKeyError: 1',
        rollout_id,
    )

    out = command("rollouts", "show", rollout_id).out

    assert " error    agent_error: it broke" in out
    assert '     File "main.py"' in out
    assert "it broke" in command("rollouts", "list", "--status", "failure").out


def test_agent_text_cannot_steer_the_terminal(command: Command, store_file: Path) -> None:
    rollout_id = first_id(command, "calendar")
    evil = {"role": "user", "content": "\x1b]0;owned\x07 \u202e and \x9b2J"}
    change(
        store_file,
        "UPDATE items SET body = ? WHERE rollout_id = ? AND seq = 0",
        json.dumps(evil),
        rollout_id,
    )
    change(
        store_file,
        "UPDATE rollouts SET label = ?, error_message = ? WHERE rollout_id = ?",
        "\x1b[2J",
        "\x1b[31m",
        rollout_id,
    )

    for output in (
        command("rollouts", "show", rollout_id).out,
        command("rollouts", "list").out,
    ):
        assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(output)
    assert "␛]0;owned␇ <U+202E> and <U+009B>2J" in command("rollouts", "show", rollout_id).out


@pytest.mark.parametrize("width", [40, 72, 100])
def test_a_shown_rollout_fits_the_terminal(command: Command, store_file: Path, width: int) -> None:
    for rollout_id in ids(command):
        lines = format_detail(Screen(width=width), fetch(store_file, rollout_id))

        conversation = [line for line in lines if not line.startswith((" error", "gym-"))]
        assert max(width_of(line) for line in conversation) <= width


def test_long_texts_are_cut_on_a_terminal_and_counted(command: Command, store_file: Path) -> None:
    detail = fetch(store_file, first_id(command, "calendar"))

    narrow: list[Any] = format_detail(Screen(width=60), detail)
    whole = format_detail(Screen(), detail)

    assert any("more lines" in line for line in narrow)
    assert narrow[-1].endswith("cut; --wide shows all")
    assert not any("more lines" in line or "--wide" in line for line in whole)
