#!/usr/bin/env python3
"""Write docs/cli.md from the commands themselves; `--check`: say whether it is stale."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from osmosis_store.cli import main, osmosis

TARGET = Path(__file__).parents[1] / "docs" / "cli.md"

HEAD = """\
# Command line

Written by `scripts/cli_docs.py` from the commands themselves; a test says when it is stale.
Exit codes are in [exit_codes.md](exit_codes.md). Flags come after the command.
"""


def render() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for name, app in (("osmosis", osmosis.app), ("osmosis-store", main.app)):
        parts += _tell(name, typer.main.get_command(app))
    return "\n".join(parts)


def _tell(path: str, command: Any) -> Iterator[str]:
    children = getattr(command, "commands", None)
    if children is not None:
        if " " not in path:
            yield f"## {path}\n\n{command.help}\n"
            yield _table(command.params)
        for name, child in children.items():
            yield from _tell(f"{path} {name}", child)
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    usage = " ".join([path, *(str(one.metavar) for one in arguments), "[flags]"])
    yield f"### {path}\n\n```\n{usage}\n```\n\n{_paragraphs(command.help)}\n"
    yield _table(command.params)


def _table(params: list[Any]) -> str:
    lines = ["| flag | meaning |", "|---|---|"]
    for one in (one for one in params if one.param_type_name == "option"):
        meaning = " ".join((getattr(one, "help", None) or "").split())
        if one.required:
            meaning += " Required."
        elif one.default is not None and one.default is not False and not callable(one.default):
            meaning += f" Default: {one.default}."
        lines.append(f"| `{_name(one)}` | {meaning} |")
    return "\n".join(lines) + "\n"


def _name(param: Any) -> str:
    flags = ", ".join(sorted(param.opts, key=len, reverse=True))
    return flags if param.is_flag else f"{flags} {param.metavar}"


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


if __name__ == "__main__":
    page = render()
    if sys.argv[1:] == ["--check"]:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != page:
            sys.exit(f"{TARGET.name} is stale: run scripts/cli_docs.py")
    else:
        TARGET.write_text(page, encoding="utf-8")
