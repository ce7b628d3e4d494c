"""Alembic's entry point; the caller hands the connection over in `config.attributes`."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=None,
    transaction_per_migration=False,
    version_table_schema=context.config.attributes.get("schema"),
)
with context.begin_transaction():
    context.run_migrations()
