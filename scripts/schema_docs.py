#!/usr/bin/env python3
"""Write docs/schema.md from a migrated database; `--check`: say whether it is stale."""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from osmosis_store.engine import Options, make_engine, parse_url
from osmosis_store.migrate import create_if_new

TARGET = Path(__file__).parents[1] / "docs" / "schema.md"
NOTES = Path(__file__).with_name("schema_notes.toml")
INTERNAL = {"alembic_version"}

HEAD = """\
# Tables and views

Written by `scripts/schema_docs.py` from a new database and `scripts/schema_notes.toml`; a test says
when it is stale.

The views are meant for you: their columns stay, whatever becomes of the tables. Read with any SQL
client; write with `osmosis-store` only, which keeps the chains whole.

Types are SQLite's; PostgreSQL has its counterparts (`BYTEA`, `TIMESTAMPTZ`, …) and sorts ids by
bytes, as SQLite does. Times are UTC with microseconds. A digest is 32 bytes of SHA-256.
"""


def render() -> str:
    """Return the whole page."""
    notes = tomllib.loads(NOTES.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        place = parse_url(f"sqlite:///{folder}/store.db")
        create_if_new(place, Options())
        engine = make_engine(place, Options(), write=False)
        with engine.connect() as connection:
            inspector = sa.inspect(connection)
            views = sorted(inspector.get_view_names())
            tables = sorted(set(inspector.get_table_names()) - INTERNAL)
            parts = [HEAD, "## Views\n"]
            parts += [describe_view(inspector, notes, name) for name in views]
            parts.append("## Tables\n")
            parts += [describe_table(inspector, notes, name) for name in tables]
        engine.dispose()
    return "\n".join(parts)


def describe_view(inspector: sa.Inspector, notes: Mapping[str, Any], name: str) -> str:
    """Return the section about one view."""
    lines = [f"### {name}\n", notes["tables"][name]["about"] + "\n"]
    lines += ["| column | meaning |", "|---|---|"]
    for column in inspector.get_columns(name):
        lines.append(f"| `{column['name']}` | {meaning(notes, name, column['name'])} |")
    return "\n".join(lines) + "\n"


def describe_table(inspector: sa.Inspector, notes: Mapping[str, Any], name: str) -> str:
    """Return the section about one table."""
    lines = [f"### {name}\n", notes["tables"][name]["about"] + "\n"]
    lines.append(f"Key: {code(inspector.get_pk_constraint(name)['constrained_columns'])}.\n")
    for reference in inspector.get_foreign_keys(name):
        columns = code(reference["constrained_columns"])
        lines.append(f"{columns} → `{reference['referred_table']}`.\n")
    lines += ["| column | type | meaning |", "|---|---|---|"]
    for column in inspector.get_columns(name):
        kind = str(column["type"]).lower() + (" or NULL" if column["nullable"] else "")
        lines.append(f"| `{column['name']}` | {kind} | {meaning(notes, name, column['name'])} |")
    return "\n".join(lines) + "\n"


def meaning(notes: Mapping[str, Any], table: str, column: str) -> str:
    """Return what a column means; a table's own note goes before the common one."""
    found: str | None = notes["tables"][table].get(column, notes["columns"].get(column))
    if found is None:
        raise SystemExit(f"{NOTES.name} says nothing about {table}.{column}")
    return found


def code(names: list[str]) -> str:
    """Return names as a list in code style."""
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    page = render()
    if sys.argv[1:] == ["--check"]:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != page:
            sys.exit(f"{TARGET.name} is stale: run scripts/schema_docs.py")
    else:
        TARGET.write_text(page, encoding="utf-8")
