"""The script `osmosis`."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_store.cli import eval_run
from osmosis_store.cli.flags import command
from osmosis_store.cli.shell import new_group, run
from osmosis_store.version import __version__

__all__ = ["app", "main"]

app = new_group("Run agents over datasets; what they do is kept in a store.")
evals = new_group("Run rollouts over a dataset and grade them.")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"osmosis {__version__} (osmosis-store)")
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


@evals.callback()
def _keep_the_group() -> None:
    """Run rollouts over a dataset and grade them."""


command(evals, "run")(eval_run.run_eval)
app.add_typer(evals, name="eval")


def main() -> int:
    """Run the script and return its exit code."""
    return run(app, "osmosis")
