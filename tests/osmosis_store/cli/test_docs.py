from __future__ import annotations

import re
from pathlib import Path

import osmosis_store.errors
from osmosis_ai.eval import errors as eval_errors
from osmosis_store.cli.shell import BROKEN_PIPE, INTERRUPTED
from scripts import cli_docs

EXIT_CODES = Path(__file__).parents[3] / "docs/exit_codes.md"


def test_the_command_line_reference_is_what_the_commands_say() -> None:
    assert cli_docs.TARGET.read_text(encoding="utf-8") == cli_docs.render()


def test_every_exit_code_is_in_the_table() -> None:
    codes = {
        error.exit_code
        for module in (osmosis_store.errors, eval_errors)
        for error in vars(module).values()
        if isinstance(error, type) and hasattr(error, "exit_code")
    }

    table = re.findall(r"^\| (\d+) \|", EXIT_CODES.read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(code) for code in table} == codes | {0, INTERRUPTED, BROKEN_PIPE}
