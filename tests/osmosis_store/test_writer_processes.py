"""The write path when processes end, are killed or fork."""

from __future__ import annotations

import signal

from osmosis_store.database import Database
from tests.osmosis_store.programs import run_program
from tests.osmosis_store.writing import stored

OPEN = """
import os, signal, sys
from osmosis_store.database import Database
from osmosis_store.engine import parse_url
from tests.osmosis_store.writing import an_append, make_sample, stored

database = Database.open(parse_url(sys.argv[1]), create=False)
make_sample(database)
"""


def test_what_is_queued_when_the_process_ends_is_written(
    database: Database, store_url: str
) -> None:
    ended = run_program(
        OPEN
        + """
writer = database._require_writer()
for number in range(300):
    writer.submit(an_append(str(number)), loop=None)
""",
        store_url,
    )

    assert (ended.exit_code, ended.errors) == (0, "")
    assert stored(database) == [str(number) for number in range(300)]


def test_what_was_acknowledged_outlives_a_kill(database: Database, store_url: str) -> None:
    ended = run_program(
        OPEN
        + """
for number in range(5):
    database._require_writer().submit(an_append(str(number)), loop=None).wait()
    print(number, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""",
        store_url,
    )

    assert ended.exit_code == -signal.SIGKILL
    assert stored(database) == ended.output.split() == ["0", "1", "2", "3", "4"]


def test_a_forked_child_is_refused_and_its_parent_goes_on(
    database: Database, store_url: str
) -> None:
    ended = run_program(
        OPEN
        + """
import warnings

warnings.simplefilter("ignore")  # newer Pythons warn of any fork beside threads
write = lambda text: database._require_writer().submit(an_append(text), loop=None).wait()
write("before")
if os.fork() == 0:
    for use in (lambda: write("child"), lambda: stored(database)):
        try:
            use()
        except Exception as error:
            print(type(error).__name__, "Store.open" in error.hint, flush=True)
    database.close()
    os._exit(0)
os.wait()
write("after")
""",
        store_url,
    )

    assert (ended.exit_code, ended.errors) == (0, "")
    assert ended.output.splitlines() == ["StoreForked True"] * 2
    assert stored(database) == ["before", "after"]


def test_a_forked_child_that_just_ends_leaves_the_parents_store_alone(
    database: Database, store_url: str
) -> None:
    ended = run_program(
        OPEN
        + """
import warnings

warnings.simplefilter("ignore")  # newer Pythons warn of any fork beside threads
write = lambda text: database._require_writer().submit(an_append(text), loop=None).wait()
write("before")
if os.fork() == 0:
    sys.exit(0)
os.wait()
write("after")
print(*stored(database))
""",
        store_url,
    )

    assert (ended.exit_code, ended.errors, ended.output) == (0, "", "before after\n")
