"""The tables, as `migrations/` makes them; a test compares the two."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect

__all__ = [
    "HEAD",
    "audit_log",
    "contents",
    "eval_runs",
    "grades",
    "grading_runs",
    "items",
    "metadata",
    "model_calls",
    "rollouts",
    "samples",
    "workers",
    "writer_batches",
]

HEAD = "0001"
"""The revision this version reads and writes; a test compares it with the newest migration."""

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcDateTime(sa.TypeDecorator[dt.datetime]):
    """An aware time in UTC with microseconds: timestamptz, or sortable text on SQLite."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        """Choose the database's own type."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.DateTime())

    def process_bind_param(self, value: dt.datetime | None, dialect: Dialect) -> Any:
        """Store UTC; a naive time is refused, since nobody can tell what it means."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without a zone: {value!r}")
        value = value.astimezone(dt.UTC)
        return value if dialect.name == "postgresql" else value.replace(tzinfo=None)

    def process_result_value(self, value: Any, dialect: Dialect) -> dt.datetime | None:
        """Hand out aware UTC."""
        if value is None:
            return None
        found: dt.datetime = value
        return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found.astimezone(dt.UTC)


# Order by key is the same on every database: byte order.
Key = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def _key(name: str, *args: Any, **kw: Any) -> sa.Column[str]:
    return sa.Column(name, Key, *args, **kw)


def _time(name: str, nullable: bool = True) -> sa.Column[dt.datetime]:
    return sa.Column(name, UtcDateTime(), nullable=nullable)


def _text(name: str, nullable: bool = True) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _digest(name: str, nullable: bool = True) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary(), nullable=nullable)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")


def _one_of(name: str, column: str, *values: str) -> sa.CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=name)


eval_runs = sa.Table(
    "eval_runs",
    metadata,
    _key("eval_run_id", primary_key=True),
    _text("config_path", nullable=False),
    _text("rollout_name", nullable=False),
    _text("settings", nullable=False),
    _text("dataset_path", nullable=False),
    _text("dataset_sha256", nullable=False),
    _text("workflow", nullable=False),
    _text("workflow_digest", nullable=False),
    _text("model", nullable=False),
    _text("versions", nullable=False),
    _key("worker_id"),
    _time("started_at", nullable=False),
    _time("ended_at"),
    sa.Index(None, "config_path", "eval_run_id"),
)

rollouts = sa.Table(
    "rollouts",
    metadata,
    _key("rollout_id", primary_key=True),
    _key("eval_run_id", sa.ForeignKey("eval_runs.eval_run_id")),
    sa.Column("row_index", sa.BigInteger()),
    sa.Column("attempt", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("retry_no", sa.Integer(), nullable=False, server_default="0"),
    _text("workflow"),
    _text("prompt"),
    _text("label"),
    _text("metadata"),
    _text("status", nullable=False),
    _text("error_category"),
    _text("error_message"),
    _text("error_traceback"),
    _key("worker_id"),
    sa.Column("lease_epoch", sa.BigInteger(), nullable=False, server_default="0"),
    _time("started_at", nullable=False),
    _time("ended_at"),
    _one_of("status", "status", "running", "success", "failure", "cancelled", "crashed", "open"),
    sa.Index(None, "eval_run_id", "row_index", "attempt", "retry_no", unique=True),
    sa.Index(None, "status"),
    sa.Index(None, "worker_id"),
)

samples = sa.Table(
    "samples",
    metadata,
    _key("rollout_id", sa.ForeignKey("rollouts.rollout_id"), primary_key=True),
    _key("sample_id", primary_key=True),
    sa.Column("sample_no", sa.Integer(), nullable=False),
    _count("item_count"),
    _digest("chain_head", nullable=False),
    _count("grade_count"),
    _digest("grade_chain_head", nullable=False),
    _text("extra_fields"),
    _time("created_at", nullable=False),
    _time("updated_at", nullable=False),
)

items = sa.Table(
    "items",
    metadata,
    _key("rollout_id", primary_key=True),
    _key("sample_id", primary_key=True),
    sa.Column("seq", sa.BigInteger(), primary_key=True, autoincrement=False),
    _text("body", nullable=False),
    _digest("nonce"),
    _digest("body_digest"),
    _digest("chain_digest", nullable=False),
    _text("type"),
    _text("role"),
    _text("tool_name"),
    _text("call_id"),
    sa.Column("call_no", sa.BigInteger()),
    _time("created_at", nullable=False),
    _time("tombstoned_at"),
    _text("tombstone_reason"),
    sa.Column("recovered", sa.Boolean(), nullable=False, server_default=sa.false()),
    sa.ForeignKeyConstraint(
        ["rollout_id", "sample_id"], ["samples.rollout_id", "samples.sample_id"]
    ),
    sa.Index(
        "ix_items_tool_name",
        "tool_name",
        sqlite_where=sa.text("tool_name IS NOT NULL"),
        postgresql_where=sa.text("tool_name IS NOT NULL"),
    ),
)

model_calls = sa.Table(
    "model_calls",
    metadata,
    _key("rollout_id", sa.ForeignKey("rollouts.rollout_id"), primary_key=True),
    sa.Column("call_no", sa.BigInteger(), primary_key=True, autoincrement=False),
    _key("sample_id", nullable=False),
    _text("agent"),
    _text("model"),
    _text("settings", nullable=False),
    _digest("instructions_digest"),
    _digest("tools_digest"),
    _digest("input_digest"),
    _count("input_item_count"),
    _text("state", nullable=False),
    _time("asked_at", nullable=False),
    _time("answered_at"),
    _text("response_id"),
    sa.Column("input_tokens", sa.BigInteger()),
    sa.Column("cached_tokens", sa.BigInteger()),
    sa.Column("output_tokens", sa.BigInteger()),
    sa.Column("reasoning_tokens", sa.BigInteger()),
    _text("output"),
    _text("error"),
    _one_of("state", "state", "asked", "answered", "saved", "withheld", "failed", "lost"),
)

contents = sa.Table(
    "contents",
    metadata,
    sa.Column("digest", sa.LargeBinary(), primary_key=True),
    _text("body", nullable=False),
    _time("created_at", nullable=False),
)

grading_runs = sa.Table(
    "grading_runs",
    metadata,
    _key("grading_run_id", primary_key=True),
    _key("eval_run_id", sa.ForeignKey("eval_runs.eval_run_id")),
    _text("kind", nullable=False),
    _text("grader", nullable=False),
    _text("code_digest"),
    _text("code_covers"),
    _text("config"),
    _text("author"),
    _text("reason"),
    _text("selection"),
    _text("versions", nullable=False),
    _count("graded_count"),
    _count("failed_count"),
    _count("skipped_count"),
    _count("policy_calls"),
    _count("connections_allowed"),
    _count("connections_refused"),
    _time("started_at", nullable=False),
    _time("ended_at"),
    _one_of("kind", "kind", "rollout", "regrade", "human", "imported"),
    sa.Index(None, "grader", "code_digest"),
)

grades = sa.Table(
    "grades",
    metadata,
    _key("rollout_id", primary_key=True),
    _key("sample_id", primary_key=True),
    sa.Column("grade_no", sa.BigInteger(), primary_key=True, autoincrement=False),
    _key("grading_run_id", sa.ForeignKey("grading_runs.grading_run_id"), nullable=False),
    sa.Column("reward", sa.Double()),
    _text("error"),
    sa.Column("removed", sa.Boolean(), nullable=False, server_default=sa.false()),
    _text("metrics"),
    _text("explanation"),
    _text("label"),
    _digest("chain_head", nullable=False),
    _digest("chain_digest", nullable=False),
    _time("created_at", nullable=False),
    sa.ForeignKeyConstraint(
        ["rollout_id", "sample_id"], ["samples.rollout_id", "samples.sample_id"]
    ),
    sa.CheckConstraint("removed OR (reward IS NULL) <> (error IS NULL)", name="reward_or_error"),
    sa.Index(None, "grading_run_id"),
)

workers = sa.Table(
    "workers",
    metadata,
    _key("worker_id", primary_key=True),
    _text("host", nullable=False),
    sa.Column("pid", sa.BigInteger(), nullable=False),
    _text("pid_started", nullable=False),
    _text("version", nullable=False),
    _time("started_at", nullable=False),
    _time("lease_until", nullable=False),
)

writer_batches = sa.Table(
    "writer_batches",
    metadata,
    _key("writer_id", primary_key=True),
    sa.Column("batch_no", sa.BigInteger(), nullable=False),
)

audit_log = sa.Table(
    "audit_log",
    metadata,
    sa.Column("entry_no", sa.BigInteger(), primary_key=True, autoincrement=False),
    _text("action", nullable=False),
    _key("rollout_id"),
    _key("sample_id"),
    _text("author"),
    _text("reason"),
    _text("detail"),
    _digest("chain_digest", nullable=False),
    _time("created_at", nullable=False),
)
