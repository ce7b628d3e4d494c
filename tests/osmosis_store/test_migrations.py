"""The migrations themselves: they make what `schema.py` says, and undo it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from sqlalchemy.engine import Connection

from osmosis_store import migrate
from osmosis_store.engine import Options, make_engine, parse_url
from osmosis_store.schema import HEAD, metadata

VIEWS = {"current_grades", "live_items", "model_usage", "rollout_summary"}
COLLATIONS = sa.text(
    "SELECT table_name, column_name, collation_name FROM information_schema.columns "
    "WHERE table_schema = 'public' ORDER BY 1, 2"
)


def describe(tx: Connection) -> dict[str, Any]:
    """Return everything that the database says of its tables, in an order of its own."""
    inspector = sa.inspect(tx)
    return {
        table: {
            "columns": [
                (
                    column["name"],
                    column["type"].compile(tx.dialect),
                    column["nullable"],
                    column["default"],
                )
                for column in inspector.get_columns(table)
            ],
            "primary key": inspector.get_pk_constraint(table),
            "foreign keys": in_order(inspector.get_foreign_keys(table)),
            "indexes": in_order(inspector.get_indexes(table)),
            "unique": in_order(inspector.get_unique_constraints(table)),
            "checks": in_order(inspector.get_check_constraints(table)),
        }
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }


def in_order(constraints: Any) -> list[Any]:
    return sorted((as_text(one) for one in constraints), key=lambda one: str(one["name"]))


def as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: as_text(part) for name, part in value.items()}
    return str(value)


def collations(tx: Connection) -> list[Any]:
    if tx.dialect.name == "sqlite":
        return []  # its text has byte order anyway
    own = set(metadata.tables)
    return [tuple(row) for row in tx.execute(COLLATIONS) if row[0] in own]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_migrated_database_is_what_the_schema_says(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if kind == "sqlite":
        first, second = (
            request.getfixturevalue("sqlite_store_url"),
            f"sqlite:///{tmp_path / 'b.db'}",
        )
    else:
        first, second = (
            request.getfixturevalue(name) for name in ("postgres_store_url", "postgres_url")
        )
    migrated = make_engine(parse_url(first), Options(), write=False)
    created = make_engine(parse_url(second), Options(), write=True, create=True)
    with migrated.connect() as one, created.begin() as two:
        metadata.create_all(two)

        assert describe(one) == describe(two)
        assert collations(one) == collations(two)
    migrated.dispose()
    created.dispose()


def test_keys_have_byte_order_on_postgresql(postgres_store_url: str) -> None:
    engine = make_engine(parse_url(postgres_store_url), Options(), write=False)
    with engine.connect() as tx:
        keys = {
            (table, column)
            for table in metadata.tables
            for column in sa.inspect(tx).get_pk_constraint(table)["constrained_columns"]
        }
        collated = {row[:2]: row[2] for row in collations(tx)}
    engine.dispose()

    texts = {key for key in keys if collated[key] is not None}
    assert ("rollouts", "rollout_id") in texts
    assert {collated[key] for key in texts} == {"C"}


def test_the_views_are_there(store_url: str) -> None:
    engine = make_engine(parse_url(store_url), Options(), write=False)
    with engine.connect() as tx:
        assert set(sa.inspect(tx).get_view_names()) == VIEWS
    engine.dispose()


def test_head_is_the_newest_revision() -> None:
    assert migrate.known_revisions()[-1] == HEAD


def test_revisions_are_numbered_in_order() -> None:
    revisions = migrate.known_revisions()

    assert revisions == [f"{number:04}" for number in range(1, len(revisions) + 1)]


@pytest.mark.parametrize(
    "path", sorted(migrate.migrations_path().rglob("*.py")), ids=lambda path: path.stem
)
def test_a_migration_imports_nothing_that_may_change_under_it(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])

    assert imported <= {"alembic", "sqlalchemy"}


def test_going_back_to_before_the_first_release_drops_everything(store_url: str) -> None:
    engine = make_engine(parse_url(store_url), Options(), write=True)
    config = migrate._config()
    with engine.begin() as tx:
        config.attributes["connection"] = tx
        command.downgrade(config, "base")
    with engine.connect() as tx:
        assert sa.inspect(tx).get_table_names() == ["alembic_version"]
        assert sa.inspect(tx).get_view_names() == []
    engine.dispose()
