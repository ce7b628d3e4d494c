"""Revisions: what a database is at, making a new one, upgrading an old one."""

from __future__ import annotations

import contextlib
import datetime as dt
import sqlite3
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from osmosis_store.driver_errors import is_busy, to_store_error, translate_errors
from osmosis_store.engine import Options, Place, make_engine, parse_url, reading_uri
from osmosis_store.errors import (
    FolderMissing,
    NotAStore,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreIOFailed,
    StoreIsNewer,
    StoreNeedsUpgrade,
    StoreReadOnly,
)
from osmosis_store.schema import HEAD

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = [
    "backup",
    "create_if_new",
    "fetch_revision",
    "known_revisions",
    "require_head",
    "require_intact",
    "upgrade",
]

# Any number that no other program of the database uses for an advisory lock.
_ADVISORY_LOCK = 0x05305315
_RETRY_S = 0.02


def fetch_revision(tx: Connection) -> str | None:
    """Return the revision a database is at; None when it has none of our tables."""
    if not sa.inspect(tx).has_table("alembic_version"):
        return None
    found: str | None = tx.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return found


def require_head(tx: Connection, place: Place) -> None:
    """Check that a database is one of ours and at this version's revision.

    Raises:
        NotAStore, StoreNeedsUpgrade, StoreIsNewer
    """
    revision = fetch_revision(tx)
    if revision is None:
        raise NotAStore(place.name, "it has no revision table")
    if revision == HEAD:
        return
    if revision in known_revisions():
        raise StoreNeedsUpgrade(place.name, revision, HEAD)
    if revision.isdigit():
        raise StoreIsNewer(place.name, revision, HEAD)
    raise NotAStore(place.name, f"revision {revision!r} is another program's")


def require_intact(tx: Connection, place: Place) -> None:
    """Check that SQLite can read every page of its file; PostgreSQL looks after its own.

    Raises:
        StoreCorrupt: Says what SQLite found first.
    """
    if tx.dialect.name != "sqlite":
        return
    found = tx.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if found != "ok":
        raise StoreCorrupt(place.name, " ".join(str(found).split()))


def known_revisions() -> list[str]:
    """Return this version's revisions, oldest first."""
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(_config())
    return [found.revision for found in reversed(list(script.walk_revisions()))]


def create_if_new(place: Place, options: Options) -> bool:
    """Make the tables where there is an empty database, or no file yet; safe to run at once.

    Returns:
        Whether this call made them.
    """
    if place.path is not None and not (place.path.is_file() and place.path.stat().st_size):
        _prepare_file(place, options)
    engine = make_engine(place, options, write=True, create=True)
    try:
        with translate_errors(place, options), _exclusive(engine.connect()) as tx:
            if sa.inspect(tx).get_table_names():
                return False
            _run(tx, "head")
            return True
    finally:
        engine.dispose()


def _prepare_file(place: Place, options: Options) -> None:
    """Make the file private to its user and put it into WAL mode, which no transaction can."""
    assert place.path is not None
    if not place.path.parent.is_dir():
        raise FolderMissing(place.name, str(place.path.parent))
    if place.path.is_dir():
        raise NotAStore(place.name, "it is a folder")
    try:
        place.path.touch(mode=0o600, exist_ok=True)
    except OSError:
        raise StoreReadOnly(place.name) from None
    engine = make_engine(place, options, write=True, create=True)
    deadline = time.monotonic() + options.busy_timeout_s
    try:
        while True:
            try:
                with contextlib.closing(engine.raw_connection()) as raw:
                    raw.cursor().execute("PRAGMA journal_mode=WAL").close()
                return
            except sqlite3.OperationalError as error:  # the busy timeout does not cover this switch
                if not is_busy(error):
                    raise to_store_error(error, place, options) or error from error
                if time.monotonic() > deadline:
                    raise StoreBusy(place.name, options.busy_timeout_s) from None
                time.sleep(_RETRY_S)
    finally:
        engine.dispose()


def upgrade(place: Place, options: Options) -> tuple[str, str, Path | None]:
    """Bring an existing database to this version's revision.

    Returns:
        The revision before, the one after, and the copy that was kept of a SQLite file (None on
        PostgreSQL, and when there was nothing to do).
    """
    before = _fetch_ours(place, options)
    if before == HEAD:
        return before, HEAD, None
    engine = make_engine(place, options, write=True)
    try:
        with translate_errors(place, options):
            kept = _keep_copy(place, before)
            with _exclusive(engine.connect()) as tx:
                _require_ours(tx, place)
                _run(tx, "head")
        return before, HEAD, kept
    finally:
        engine.dispose()


def _fetch_ours(place: Place, options: Options) -> str:
    engine = make_engine(place, options, write=False)
    try:
        with translate_errors(place, options), engine.connect() as tx:
            return _require_ours(tx, place)
    finally:
        engine.dispose()


def _require_ours(tx: Connection, place: Place) -> str:
    revision = fetch_revision(tx)
    if revision is None:
        raise NotAStore(place.name, "it has no revision table")
    if revision not in known_revisions():
        raise StoreIsNewer(place.name, revision, HEAD)
    return revision


def _keep_copy(place: Place, revision: str) -> Path | None:
    if place.path is None:
        return None
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S")
    kept = place.path.with_name(f"{place.path.name}.{revision}.{stamp}")
    backup(place, kept)
    return kept


def backup(place: Place, target: Path) -> None:
    """Copy a SQLite store, also while it is written, into a new file that stands alone.

    Raises:
        FileExistsError: There is a file already.
        OSError: No file can be made there.
        StoreError: The store cannot be read, or the copy not be written; then it is removed again.
    """
    assert place.path is not None
    target.touch(mode=0o600, exist_ok=False)
    try:
        with (
            translate_errors(place, Options()),
            contextlib.closing(sqlite3.connect(reading_uri(place.path), uri=True)) as source,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            source.execute("PRAGMA schema_version").close()  # what fails from here on is the copy
            try:
                source.backup(copy)
            except sqlite3.Error as error:
                found = to_store_error(
                    error, parse_url(f"sqlite:///{target.absolute()}"), Options()
                )
                raise found if isinstance(found, StoreFull | StoreIOFailed) else error from error
    except BaseException:
        target.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _exclusive(connection: Connection) -> Iterator[Connection]:
    """Hold the database against every other process that would migrate it."""
    with connection as tx:
        if tx.dialect.name == "postgresql":
            tx.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        else:
            # table rebuilds would cascade into the tables that refer to them
            tx.connection.cursor().execute("PRAGMA foreign_keys=OFF").close()
        with tx.begin() if not tx.in_transaction() else contextlib.nullcontext():
            yield tx
        tx.commit()


def _run(tx: Connection, revision: str) -> None:
    from alembic import command

    config = _config()
    config.attributes["connection"] = tx
    command.upgrade(config, revision)


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_path()))
    return config


def migrations_path() -> Path:
    """Return the migrations' folder: packaged in a wheel, else the repository's."""
    packaged = Path(str(resources.files("osmosis_store"))) / "_migrations"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "migrations"
