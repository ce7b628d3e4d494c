"""The script `osmosis`."""

from __future__ import annotations

from osmosis_store.cli import eval_run
from osmosis_store.cli.flags import command
from osmosis_store.cli.shell import new_group, new_script, run
from osmosis_store.version import __version__

__all__ = ["app", "main"]

app = new_script(
    "Run agents over datasets; what they do is kept in a store.",
    f"osmosis {__version__} (osmosis-store)",
)
evals = new_group("Run rollouts over a dataset and grade them.")


@evals.callback()
def _keep_the_group() -> None:
    """Run rollouts over a dataset and grade them."""


command(evals, "run")(eval_run.run_eval)
app.add_typer(evals, name="eval")


def main() -> int:
    """Run the script and return its exit code."""
    return run(app, "osmosis")
