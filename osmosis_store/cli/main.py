"""The script `osmosis-store`."""

from __future__ import annotations

from osmosis_store.cli import db, grades, imports, items, rollouts
from osmosis_store.cli.flags import command
from osmosis_store.cli.regrade import regrade
from osmosis_store.cli.shell import new_script, run
from osmosis_store.cli.stats import stats
from osmosis_store.version import __version__

__all__ = ["app", "main"]

app = new_script(
    "Look at stored rollouts, grade them again, look after the store.",
    f"osmosis-store {__version__}",
)

app.add_typer(rollouts.app, name="rollouts")
app.add_typer(items.app, name="items")
app.add_typer(grades.app, name="grades")
command(app, "stats")(stats)
command(app, "regrade")(regrade)
app.add_typer(imports.app, name="import")
app.add_typer(db.app, name="db")


def main() -> int:
    """Run the script and return its exit code."""
    return run(app, "osmosis-store")
