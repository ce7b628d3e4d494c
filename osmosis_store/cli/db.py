"""`osmosis-store db`: the store's revision, its text index, and copies of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_store.cli.flags import StoreFlags, command
from osmosis_store.cli.output import print_json
from osmosis_store.cli.places import find_place, open_for_reading, require_file
from osmosis_store.cli.shell import new_group

if TYPE_CHECKING:
    from osmosis_store.engine import Place

__all__ = ["app"]

app = new_group("Upgrade, check, index and copy a store.")


@command(app, "upgrade")
def upgrade_store(store: StoreFlags) -> None:
    """Bring a store to this version's revision; a copy of a SQLite file is kept beside it."""
    from osmosis_store.engine import Options
    from osmosis_store.migrate import upgrade

    place = find_place(store.store)
    require_file(place)
    before, after, kept = upgrade(place, Options())
    if store.as_json:
        print_json({"store": place.name, "before": before, "after": after, "kept_copy": kept})
    elif before == after:
        print(f"{place.name} is at revision {after} already")
    else:
        print(f"{place.name} is upgraded from revision {before} to {after}")
        if kept is not None:
            print(f"  as it was before: {kept}")


@command(app, "current")
def show_current(store: StoreFlags) -> None:
    """Print the revision that a store is at; also that of one this version cannot open."""
    from osmosis_store.schema import HEAD

    place = find_place(store.store)
    revision = _fetch_revision(place)
    if store.as_json:
        print_json({"store": place.name, "revision": revision, "head": HEAD})
    else:
        print(f"{place.name} is at revision {revision}, this version's is {HEAD}")


@command(app, "check")
def check_store(store: StoreFlags) -> None:
    """Check that this version can use a store; else say what to do, with an exit code not 0.

    Of a SQLite file every page is read, and that its structure is whole is checked; not what the
    rows say.
    """
    from osmosis_store.migrate import require_intact
    from osmosis_store.schema import HEAD

    with open_for_reading(store.store) as database, database.reading() as tx:
        name = database.place.name
        require_intact(tx, database.place)
    if store.as_json:
        print_json({"store": name, "revision": HEAD, "ok": True})
    else:
        print(f"{name} is at revision {HEAD}, as this version needs it")


@command(app, "index")
def index_store(
    store: StoreFlags,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make an index that is there anew.")
    ] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Take the index away.")] = False,
) -> None:
    """Make the text index of a store, while others use it; from then on it stays current.

    It changes how fast `items search` and `--text` are, never what they find. It makes adding
    items slower. One whose making was cut off is gone on with.
    """
    from osmosis_store.cli.progress import show_progress
    from osmosis_store.database import Database
    from osmosis_store.indexing import build_text_index, remove_text_index

    if rebuild and drop:
        raise typer.BadParameter("--rebuild and --drop: give one of them")
    database = Database.open(find_place(store.store), create=False)
    try:
        if drop:
            remove_text_index(database)
            state = "dropped"
        else:
            with show_progress("indexed", quiet=store.as_json) as advance:
                made = build_text_index(database, rebuild=rebuild, on_progress=advance)
            state = "made" if made else "kept"
        name = database.place.name
    finally:
        database.close()
    if store.as_json:
        print_json({"store": name, "text_index": state})
        return
    told = {"dropped": "has no text index now", "made": "has a text index now"}
    print(f"{name} {told.get(state, 'has a text index already')}")


@command(app, "backup")
def backup_store(
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="The new file; it must not exist.")
    ],
    store: StoreFlags,
) -> None:
    """Copy a SQLite store into one new file, also while others write to it."""
    from osmosis_store.errors import StoreError
    from osmosis_store.migrate import backup

    place = find_place(store.store)
    if place.path is None:
        raise StoreError(
            f"{place.name} is no SQLite file", hint="copy a PostgreSQL store with pg_dump"
        )
    _fetch_revision(place)
    if target.exists():
        raise StoreError(f"{target} exists already", hint="name a new file")
    if not target.parent.is_dir():
        raise StoreError(f"there is no folder {target.parent}")
    backup(place, target)
    size = target.stat().st_size
    if store.as_json:
        print_json({"store": place.name, "target": target, "bytes": size})
    else:
        print(f"{place.name} is copied to {target} ({size / 1e6:,.1f} MB)")


def _fetch_revision(place: Place) -> str:
    """Return a store's revision, whichever it is.

    Raises:
        StoreNotFound, NotAStore, StoreUnreachable
    """
    from osmosis_store.driver_errors import translate_errors
    from osmosis_store.engine import Options, make_engine
    from osmosis_store.errors import NotAStore
    from osmosis_store.migrate import fetch_revision

    require_file(place)
    options = Options(readonly=True)
    engine = make_engine(place, options, write=False)
    try:
        with translate_errors(place, options), engine.connect() as tx:
            revision = fetch_revision(tx)
    finally:
        engine.dispose()
    if revision is None:
        raise NotAStore(place.name, "it has no revision table")
    return revision
