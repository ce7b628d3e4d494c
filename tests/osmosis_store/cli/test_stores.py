"""What every command says of a store that it cannot use, and what `db` does."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path

import pytest

from osmosis_store.errors import NotAStore
from osmosis_store.schema import HEAD
from osmosis_store.version import __version__

from .conftest import GYM, Command

READING = [
    ["rollouts", "list"],
    ["rollouts", "show", "x"],
    ["grades", "list"],
    ["regrade", "--grader", "graders.py:Any"],
    ["db", "check"],
]
ALL = [*READING, ["db", "current"], ["db", "upgrade"], ["db", "backup", "copy.db"]]


def set_revision(path: Path, revision: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))


@pytest.mark.parametrize("arguments", ALL, ids=" ".join)
def test_a_missing_store_is_named_with_those_nearby_and_not_made(
    command: Command, folder: Path, store_file: Path, arguments: list[str]
) -> None:
    (folder / "folder.db").mkdir()
    with closing(sqlite3.connect(folder / "other.db")) as connection:
        connection.execute("CREATE TABLE t (x)")

    done = command(*arguments, "--store", "sqlite:///rolouts.db")

    assert done.code == 4
    assert done.err.splitlines()[:2] == [
        "error: no database at rolouts.db",
        "  stores in this folder: .osmosis/rollouts.db",
    ]
    assert not (folder / "rolouts.db").exists()


@pytest.mark.parametrize("arguments", ALL, ids=" ".join)
def test_without_any_store_it_says_how_to_name_one(
    command: Command, folder: Path, arguments: list[str]
) -> None:
    done = command(*arguments)

    assert done.code == 1
    assert "error: no store given, and there is no .osmosis/rollouts.db" in done.err
    assert "--store sqlite:///path.db" in done.err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("arguments", ALL, ids=" ".join)
def test_a_file_that_is_no_database_is_not_a_store(
    command: Command, folder: Path, arguments: list[str]
) -> None:
    (folder / "notes.txt").write_text("these are no rollouts, " * 100)

    done = command(*arguments, "--store", "sqlite:///notes.txt", "--json")

    assert done.code == 1
    assert done.error["code"] == NotAStore("notes.txt", "").code
    assert "notes.txt is not an osmosis store" in done.error["message"]
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt"]


@pytest.mark.parametrize("arguments", ALL, ids=" ".join)
def test_another_programs_database_is_not_a_store(
    command: Command, folder: Path, arguments: list[str]
) -> None:
    with closing(sqlite3.connect(folder / "other.db")) as connection:
        connection.execute("CREATE TABLE t (x)")

    done = command(*arguments, "--store", "sqlite:///other.db")

    assert done.code == 1
    assert "error: other.db is not an osmosis store: it has no revision table" in done.err


@pytest.mark.parametrize(
    "arguments", [*READING, ["import", "gym", str(GYM / "blackjack.jsonl")]], ids=" ".join
)
def test_a_store_of_a_newer_release_is_refused(
    command: Command, store_file: Path, arguments: list[str]
) -> None:
    set_revision(store_file, "9999")

    done = command(*arguments)

    assert done.code == 1
    assert done.err.splitlines() == [
        f"error: .osmosis/rollouts.db is at revision 9999, which this version (at {HEAD}) "
        "does not know",
        "  upgrade osmosis-store to the version that made it",
    ]


@pytest.mark.parametrize(
    "arguments", [*READING, ["import", "gym", str(GYM / "blackjack.jsonl")]], ids=" ".join
)
def test_a_store_that_needs_an_upgrade_says_which_command_to_run(
    command: Command, store_file: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_store.migrate.HEAD", "0002")

    done = command(*arguments)

    assert done.code == 1
    assert done.err.splitlines() == [
        f"error: .osmosis/rollouts.db is at revision {HEAD}, this version needs 0002",
        "  run `osmosis-store db upgrade` (a copy is kept beside a SQLite file)",
    ]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("rollouts.db", "it is not a URL; a file is sqlite:///rollouts.db"),
        ("mysql://host/db", "mysql is neither sqlite nor postgresql"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
    ],
)
def test_a_wrong_url_says_why_and_what_to_write(command: Command, url: str, reason: str) -> None:
    done = command("rollouts", "list", "--store", url)

    assert done.code == 1
    assert reason in done.err.splitlines()[0]
    assert "  write sqlite:///relative/path.db" in done.err


def test_a_password_is_not_in_the_error(command: Command) -> None:
    done = command("rollouts", "list", "--store", "mysql://me:secret@host/db", "--json")

    assert done.error["code"] == "invalid_store_url"
    assert "secret" not in done.out + done.err


def test_the_flag_wins_over_the_environment_which_wins_over_the_folder(
    command: Command, store_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("rollouts", "list", "--json").data["rollouts"]

    monkeypatch.setenv("OSMOSIS_STORE_URL", "sqlite:///named.db")
    command("import", "gym", GYM / "blackjack.jsonl")
    assert len(command("rollouts", "list", "--json").data["rollouts"]) == 2

    flags = ["--store", "sqlite:///.osmosis/rollouts.db"]
    assert len(command("rollouts", "list", "--json", *flags).data["rollouts"]) == 13


@pytest.mark.usefixtures("store_file")
class TestNotFound:
    def test_an_unknown_rollout(self, command: Command) -> None:
        done = command("rollouts", "show", "nope")

        assert done.code == 4
        assert done.out == ""
        assert done.err == (
            "error: no rollout 'nope'\n  see `osmosis-store rollouts list` for the ids\n"
        )

    def test_an_unknown_sample_names_those_that_there_are(self, command: Command) -> None:
        rollout_id = command("rollouts", "list", "--json").data["rollouts"][0]["rollout_id"]

        done = command("rollouts", "show", rollout_id, "--sample", "nope")

        assert done.code == 4
        assert done.err.splitlines() == [
            f"error: no sample 'nope' in rollout '{rollout_id}'",
            "  it has main",
        ]

    def test_the_json_envelope_has_code_message_and_details(self, command: Command) -> None:
        done = command("rollouts", "show", "nope", "--json")

        assert done.code == 4
        assert done.err == ""
        assert done.data == {
            "error": {
                "code": "rollout_not_found",
                "message": "no rollout 'nope'",
                "details": {
                    "rollout_id": "nope",
                    "hint": "see `osmosis-store rollouts list` for the ids",
                },
            }
        }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rollouts", "list", "--nope"], "no such option"),
        (["rollouts", "nope"], "no such command"),
        (["rollouts", "list", "--limit", "0"], "invalid value for '--limit'"),
        (["rollouts", "list", "--limit", "9" * 20], "invalid value for --limit: the number is too"),
        (["rollouts", "show", "x", "--tail", "9" * 30], "invalid value for --tail: the number is"),
        (["items", "search", "x", "--limit", "9" * 20], "invalid value for --limit: the number"),
        (["grades", "list", "--limit", str(2**63)], "invalid value for --limit: the number is too"),
        (
            ["rollouts", "list", "--since", "yesterday"],
            "invalid value for --since: 'yesterday' is no time",
        ),
        (
            ["rollouts", "list", "--since", "999999999999w"],
            "invalid value for --since: '999999999999w' is no time",
        ),
        (["rollouts", "list", "--status", "bad"], "there is no status 'bad'"),
        (["regrade"], "missing option '--grader'"),
        (["rollouts"], "a command is missing"),
        ([], "a command is missing"),
    ],
    ids=str,
)
def test_wrong_usage_exits_with_2(command: Command, arguments: list[str], message: str) -> None:
    done = command(*arguments)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {message}")


def test_a_flag_before_the_command_is_told_where_it_goes(command: Command) -> None:
    for arguments in (["--store", "x", "rollouts", "list"], ["rollouts", "--store", "x", "list"]):
        done = command(*arguments)

        assert done.code == 2
        assert "flags come after the command's name; see `osmosis-store" in done.err


def test_wrong_usage_has_an_envelope_too(command: Command) -> None:
    done = command("rollouts", "list", "--limit", "x", "--json")

    assert done.code == 2
    assert done.error["code"] == "usage_error"
    assert done.error["details"]["hint"] == "see `osmosis-store rollouts list --help`"


def test_the_traceback_is_shown_only_with_debug(command: Command) -> None:
    assert "Traceback" not in command("rollouts", "list").err
    assert "Traceback" in command("rollouts", "list", "--debug").err


def test_a_bug_is_an_error_without_a_traceback(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(flag: str | None) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("osmosis_store.cli.db.find_place", fail)

    done = command("db", "current")
    assert done.code == 1
    assert done.err.splitlines() == [
        "error: KeyError: 'surprise'",
        "  this should not happen; --debug shows where it did",
    ]
    assert command("db", "current", "--json").error["code"] == "internal_error"


def test_an_interrupted_command_exits_with_130(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(flag: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("osmosis_store.cli.db.find_place", interrupt)

    assert command("db", "current").code == 130
    assert command("db", "current", "--json").error["code"] == "interrupted"


def test_a_second_owner_of_the_package_is_warned_of_in_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn() -> None:
        warnings.warn("two owners", RuntimeWarning, stacklevel=1)

    monkeypatch.setattr("osmosis_store.ownership.warn_of_second_owner", warn)

    assert command("rollouts", "list").err.startswith("warning: two owners\nerror: ")


class TestDb:
    def test_current_tells_the_revision_also_of_a_newer_store(
        self, command: Command, store_file: Path
    ) -> None:
        assert f"is at revision {HEAD}, this version's is {HEAD}" in command("db", "current").out

        set_revision(store_file, "9999")
        data = command("db", "current", "--json").data
        assert data == {"store": ".osmosis/rollouts.db", "revision": "9999", "head": HEAD}

    def test_check_is_content_with_a_store_at_head(
        self, command: Command, store_file: Path
    ) -> None:
        assert command("db", "check").code == 0
        assert command("db", "check", "--json").data["ok"] is True

    @pytest.mark.parametrize("part", [0.3, 0.5, 0.8])
    def test_check_finds_pages_that_were_overwritten(
        self, command: Command, store_file: Path, part: float
    ) -> None:
        data = bytearray(store_file.read_bytes())
        page = int(len(data) * part) // 4096 * 4096
        data[page : page + 8192] = b"\xa5" * 8192
        store_file.write_bytes(data)

        done = command("db", "check")

        assert done.code == 1
        assert done.err.splitlines()[0].startswith("error: .osmosis/rollouts.db is damaged: ")
        assert "restore it from a backup" in done.err
        assert command("db", "check", "--json").error["code"] == "store_corrupt"

    def test_upgrade_of_a_store_at_head_does_nothing(
        self, command: Command, store_file: Path
    ) -> None:
        before = store_file.read_bytes()

        assert f"is at revision {HEAD} already" in command("db", "upgrade").out
        assert command("db", "upgrade", "--json").data["kept_copy"] is None
        assert store_file.read_bytes() == before

    def test_upgrade_tells_what_it_did_and_where_the_copy_is(
        self, command: Command, store_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def upgrade(place: object, options: object) -> tuple[str, str, Path]:
            return "0001", "0002", Path("rollouts.db.0001")

        monkeypatch.setattr("osmosis_store.migrate.upgrade", upgrade)

        assert command("db", "upgrade").out.splitlines() == [
            ".osmosis/rollouts.db is upgraded from revision 0001 to 0002",
            "  as it was before: rollouts.db.0001",
        ]

    def test_upgrade_refuses_a_newer_store(self, command: Command, store_file: Path) -> None:
        set_revision(store_file, "9999")

        assert command("db", "upgrade", "--json").error["code"] == "store_is_newer"

    def test_a_backup_is_a_store_with_the_same_rollouts(
        self, command: Command, store_file: Path
    ) -> None:
        assert command("db", "backup", "copy.db").code == 0

        same = command("rollouts", "list", "--json").out
        assert command("rollouts", "list", "--json", "--store", "sqlite:///copy.db").out == same

    def test_a_backup_never_overwrites_a_file(
        self, command: Command, store_file: Path, folder: Path
    ) -> None:
        (folder / "copy.db").write_text("precious")

        done = command("db", "backup", "copy.db")

        assert (done.code, done.err) == (1, "error: copy.db exists already\n  name a new file\n")
        assert (folder / "copy.db").read_text() == "precious"

    def test_a_backup_into_a_folder_that_is_not_there_is_refused(
        self, command: Command, store_file: Path
    ) -> None:
        assert "there is no folder nowhere" in command("db", "backup", "nowhere/copy.db").err


def test_the_version_is_printed(command: Command) -> None:
    assert command("--version").out == f"osmosis-store {__version__}\n"


def test_a_reading_command_works_on_postgresql(command: Command, postgres_store_url: str) -> None:
    file = str(GYM / "blackjack.jsonl")

    assert (
        "stored   2 rollouts" in command("import", "gym", file, "--store", postgres_store_url).out
    )
    found = command("rollouts", "list", "--json", "--store", postgres_store_url).data
    assert len(found["rollouts"]) == 2
    shown = command("rollouts", "show", found["last_id"], "--store", postgres_store_url)
    assert shown.code == 0
    backup = command("db", "backup", "copy.db", "--store", postgres_store_url)
    assert "pg_dump" in backup.err


def test_help_needs_neither_the_database_nor_the_agents_sdk(folder: Path) -> None:
    program = """if True:
        import sys
        from osmosis_store.cli.main import main
        sys.argv = ["osmosis-store", "--help"]
        main()
        heavy = {"sqlalchemy", "alembic", "agents", "litellm", "rich", "pydantic", "msgspec"}
        print(sorted(heavy & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout.endswith("\n[]\n"), done.stdout + done.stderr
