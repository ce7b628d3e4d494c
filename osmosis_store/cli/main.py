"""The script `osmosis-store`."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_store.cli import db, grades, imports, rollouts
from osmosis_store.cli.flags import command
from osmosis_store.cli.regrade import regrade
from osmosis_store.cli.shell import new_group, run
from osmosis_store.version import __version__

__all__ = ["app", "main"]

app = new_group("Look at stored rollouts, grade them again, look after the store.")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"osmosis-store {__version__}")
        raise typer.Exit


@app.callback()
def _take_global_flags(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


app.add_typer(rollouts.app, name="rollouts")
app.add_typer(grades.app, name="grades")
command(app, "regrade")(regrade)
app.add_typer(imports.app, name="import")
app.add_typer(db.app, name="db")


def main() -> int:
    """Run the script and return its exit code."""
    return run(app, "osmosis-store")
