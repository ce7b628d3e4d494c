"""`osmosis-store` as processes: pipes, permissions, terminals."""

from __future__ import annotations

import errno
import json
import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from osmosis_store.version import __version__

from .scripts import BIN, ROOT, call, environment

GYM = sorted((ROOT / "tests/data/gym").glob("*.jsonl"))


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported")
    (folder / ".osmosis").mkdir()
    store = ["--store", "sqlite:///.osmosis/rollouts.db"]
    done = call(folder, "osmosis-store", "import", "gym", *map(str, GYM), *store)
    assert done.returncode == 0, done.stderr
    call(folder, "osmosis-store", "db", "backup", "whole.db", *store)
    return folder / "whole.db"


@pytest.fixture
def folder(tmp_path: Path, imported: Path) -> Path:
    """Return a folder with a store of its own."""
    (tmp_path / ".osmosis").mkdir()
    shutil.copy(imported, tmp_path / ".osmosis/rollouts.db")
    return tmp_path


@pytest.mark.parametrize("script", ["osmosis", "osmosis-store"])
def test_both_scripts_tell_version_and_usage(tmp_path: Path, script: str) -> None:
    assert __version__ in call(tmp_path, script, "--version").stdout
    assert f"Usage: {script} [OPTIONS] COMMAND" in call(tmp_path, script, "--help").stdout


def test_an_error_goes_to_standard_error_and_sets_the_exit_code(folder: Path) -> None:
    done = call(folder, "osmosis-store", "rollouts", "show", "nope")

    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("error: no rollout 'nope'\n")


def test_with_json_an_error_is_one_object_on_standard_output(folder: Path) -> None:
    done = call(folder, "osmosis-store", "rollouts", "show", "nope", "--json")

    assert (done.returncode, done.stderr) == (4, "")
    assert json.loads(done.stdout)["error"]["code"] == "rollout_not_found"


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    with subprocess.Popen(
        [BIN / "osmosis-store", "rollouts", "list", "--json"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        stderr = process.stderr.read()
        code = process.wait()

    assert (code, stderr) == (141, b"")


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")


@FULL
@pytest.mark.parametrize(
    "arguments",
    [
        ["rollouts", "list"],
        ["rollouts", "list", "--json"],
        ["rollouts", "show", "nope", "--json"],
        ["grades", "list", "--json"],
        ["items", "search", "a", "--json", "--limit", "1000"],
        ["db", "check"],
        ["--help"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_cannot_be_written_is_one_error_line(
    folder: Path, arguments: list[str], unbuffered: str
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [BIN / "osmosis-store", *arguments],
            cwd=folder,
            env=environment(PYTHONUNBUFFERED=unbuffered),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    expected = (
        (4, "error: no rollout 'nope'")
        if "nope" in arguments
        else (1, "error: standard output cannot be written: No space left on device")
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == expected
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("arguments", [["rollouts", "list"], ["rollouts", "show", "nope"]])
def test_closed_streams_are_no_error(folder: Path, arguments: list[str]) -> None:
    command = f"{BIN / 'osmosis-store'} {' '.join(arguments)}"
    code = 4 if "nope" in arguments else 0

    for closed in (">&-", "2>&-", ">&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f"{command} {closed}"], cwd=folder, env=environment(), capture_output=True
        )
        assert done.returncode == code
        assert b"Traceback" not in done.stderr
    assert sorted(one.name for one in folder.rglob("*.db")) == ["rollouts.db"]


@pytest.mark.parametrize(
    "arguments", [["rollouts", "show"], ["rollouts", "list", "--label"], ["items", "search"]]
)
def test_an_argument_that_is_no_text_is_wrong_usage(folder: Path, arguments: list[str]) -> None:
    done = call(folder, "osmosis-store", *arguments, os.fsdecode(b"a\xff"))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: 'a\\udcff' is not UTF-8 text\n"


def without_root(folder: Path) -> tuple[str, ...]:
    """Return what to put before a command so that permissions hold for it, also as root."""
    assert folder.exists()
    return ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()


def test_a_store_that_cannot_be_written_can_be_read_and_says_so_when_written(
    folder: Path,
) -> None:
    path = folder / ".osmosis/rollouts.db"
    path.chmod(0o444)
    path.parent.chmod(0o555)
    prefix = without_root(folder)

    read = call(folder, "osmosis-store", "rollouts", "list", "--json", prefix=prefix)
    written = call(folder, "osmosis-store", "import", "gym", str(GYM[0]), prefix=prefix)
    path.parent.chmod(0o755)

    assert len(json.loads(read.stdout)["rollouts"]) == 13
    assert written.returncode == 1
    assert "error: .osmosis/rollouts.db cannot be written" in written.stderr
    assert "check the permissions" in written.stderr


def test_a_store_that_cannot_be_written_can_be_backed_up_and_needs_no_upgrade(
    folder: Path, tmp_path: Path
) -> None:
    path = folder / ".osmosis/rollouts.db"
    path.chmod(0o444)
    path.parent.chmod(0o555)
    prefix = without_root(folder)

    copied = call(folder, "osmosis-store", "db", "backup", "copy.db", prefix=prefix)
    upgraded = call(folder, "osmosis-store", "db", "upgrade", prefix=prefix)
    path.parent.chmod(0o755)

    assert (copied.returncode, copied.stderr) == (0, "")
    assert (upgraded.returncode, upgraded.stderr) == (0, "")
    listed = call(folder, "osmosis-store", "rollouts", "list", "--store", "sqlite:///copy.db")
    assert listed.returncode == 0


MOUNTING = ("unshare", "--mount", "sh", "-ec")


def can_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return (
        subprocess.run([*MOUNTING, "mount -t tmpfs tmpfs /mnt"], capture_output=True).returncode
        == 0
    )


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a file system")
@pytest.mark.parametrize(
    "arguments", ["db index", f"import gym {GYM[0]}", "regrade --grader g.py:G"]
)
def test_a_read_only_file_system_is_named_as_that(folder: Path, arguments: str) -> None:
    (folder / "g.py").write_text(
        "from osmosis_ai.rollout import Grader\n"
        "class G(Grader):\n    async def grade(self, ctx):\n        ...\n"
    )
    script = (
        "mount --bind .osmosis .osmosis; mount -o remount,bind,ro .osmosis; "
        f"{BIN / 'osmosis-store'} {arguments}"
    )

    done = subprocess.run(
        [*MOUNTING, script], cwd=folder, env=environment(), capture_output=True, text=True
    )

    assert done.returncode == 1
    assert "error: .osmosis/rollouts.db cannot be written\n" in done.stderr
    assert "file system is mounted read-only" in done.stderr


def test_a_backup_that_does_not_fit_names_its_target_and_leaves_nothing(folder: Path) -> None:
    command = f"ulimit -f 200; {BIN / 'osmosis-store'} db backup copy.db"

    for _ in range(2):
        done = subprocess.run(
            ["sh", "-c", command], cwd=folder, env=environment(), capture_output=True, text=True
        )
        assert done.returncode == 1
        assert " write to copy.db" in done.stderr or " write copy.db" in done.stderr
    assert not (folder / "copy.db").exists()
    assert call(folder, "osmosis-store", "db", "backup", "copy.db").returncode == 0


def test_a_store_in_a_folder_that_cannot_be_written_is_not_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    flags = ["import", "gym", str(GYM[0]), "--store", "sqlite:///new.db", "--json"]

    done = call(tmp_path, "osmosis-store", *flags, prefix=without_root(tmp_path))
    tmp_path.chmod(0o755)

    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "store_read_only"


def test_an_encoding_that_lacks_a_character_is_no_error(folder: Path) -> None:
    rollout_id = next(
        one["rollout_id"]
        for one in json.loads(call(folder, "osmosis-store", "rollouts", "list", "--json").stdout)[
            "rollouts"
        ]
        if "wmt" in one["rollout_id"]
    )

    done = call(folder, "osmosis-store", "rollouts", "show", rollout_id, PYTHONIOENCODING="ascii")

    assert done.returncode == 0
    assert "\\xb7 success \\xb7" in done.stdout


def test_on_a_terminal_lines_fit_and_have_colour_and_in_a_pipe_neither(folder: Path) -> None:
    shown = read_terminal(folder, ["rollouts", "list"], columns=60)
    piped = call(folder, "osmosis-store", "rollouts", "list").stdout

    assert "\x1b[" in shown
    assert "\x1b[" not in piped
    plain = shown.replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert max(map(len, plain.splitlines())) <= 60 < max(map(len, piped.splitlines()))
    assert "\x1b[" not in read_terminal(folder, ["rollouts", "list"], columns=60, NO_COLOR="1")


def read_terminal(folder: Path, arguments: list[str], *, columns: int, **more: str) -> str:
    """Return what a script prints on a terminal of that width."""
    ours, theirs = pty.openpty()
    variables = environment(COLUMNS=str(columns), TERM="xterm", **more)
    if "NO_COLOR" not in more:
        variables.pop("NO_COLOR", None)
    with subprocess.Popen(
        [BIN / "osmosis-store", *arguments], cwd=folder, env=variables, stdout=theirs
    ):
        os.close(theirs)
        parts = []
        while part := read_part(ours):
            parts.append(part)
    os.close(ours)
    return b"".join(parts).decode()


def read_part(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError as error:
        if error.errno != errno.EIO:  # what Linux says when the other end is closed
            raise
        return b""
