"""Make the first release's tables: rollouts, samples, items, the journal, the grade ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Byte order on every database, whatever its locale.
KEY = sa.Text().with_variant(sa.TEXT(collation="C"), "postgresql")
TIME = sa.DateTime().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")

# The database's clock in the form in which times are stored.
NOW = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'",
    "postgresql": "clock_timestamp()",
}

# From start to end, in seconds to the millisecond, which is as exact as julianday is.
DURATION = {
    "sqlite": "round((julianday(r.ended_at) - julianday(r.started_at)) * 86400.0, 3)",
    "postgresql": "round(extract(epoch FROM r.ended_at - r.started_at), 3)::double precision",
}

LIVE_ITEMS = """
CREATE VIEW live_items AS
SELECT rollout_id, sample_id, seq, body, type, role, tool_name, call_id, call_no, created_at,
       recovered
FROM items
WHERE tombstoned_at IS NULL
"""

CURRENT_GRADES = """
CREATE VIEW current_grades AS
SELECT rollout_id, sample_id, grader, grade_no, grading_run_id, kind, reward, error, removed,
       metrics, explanation, label, created_at
FROM (
    SELECT g.rollout_id, g.sample_id, r.grader, g.grade_no, g.grading_run_id, r.kind, g.reward,
           g.error, g.removed, g.metrics, g.explanation, g.label, g.created_at,
           row_number() OVER (
               PARTITION BY g.rollout_id, g.sample_id, r.grader ORDER BY g.grade_no DESC
           ) AS age
    FROM grades AS g
    JOIN grading_runs AS r ON r.grading_run_id = g.grading_run_id
) AS ranked
WHERE age = 1
"""

ROLLOUT_SUMMARY = """
CREATE VIEW rollout_summary AS
SELECT r.rollout_id, r.eval_run_id, r.row_index, r.attempt, r.retry_no, r.workflow, r.label,
       CASE
           WHEN r.status = 'running' AND NOT EXISTS (
               SELECT 1 FROM workers AS w
               WHERE w.worker_id = r.worker_id AND w.lease_until > {now}
           ) THEN 'crashed'
           ELSE r.status
       END AS status,
       r.error_category, r.error_message, r.started_at, r.ended_at,
       (SELECT count(*) FROM samples AS s WHERE s.rollout_id = r.rollout_id) AS sample_count,
       (SELECT count(*) FROM items AS i
        WHERE i.rollout_id = r.rollout_id AND i.tombstoned_at IS NULL) AS live_item_count,
       (SELECT count(*) FROM model_calls AS c
        WHERE c.rollout_id = r.rollout_id) AS model_call_count,
       (SELECT sum(c.input_tokens) FROM model_calls AS c
        WHERE c.rollout_id = r.rollout_id) AS input_tokens,
       (SELECT sum(c.output_tokens) FROM model_calls AS c
        WHERE c.rollout_id = r.rollout_id) AS output_tokens,
       {duration} AS duration_s,
       (SELECT avg(g.reward) FROM grades AS g
        WHERE g.rollout_id = r.rollout_id AND NOT g.removed AND g.grade_no = (
            SELECT max(n.grade_no) FROM grades AS n
            WHERE n.rollout_id = g.rollout_id AND n.sample_id = g.sample_id
        )) AS reward
FROM rollouts AS r
"""

MODEL_USAGE = """
CREATE VIEW model_usage AS
SELECT c.rollout_id, c.sample_id, r.eval_run_id, c.model, count(*) AS call_count,
       CAST(sum(c.input_tokens) AS BIGINT) AS input_tokens,
       CAST(sum(c.cached_tokens) AS BIGINT) AS cached_tokens,
       CAST(sum(c.output_tokens) AS BIGINT) AS output_tokens,
       CAST(sum(c.reasoning_tokens) AS BIGINT) AS reasoning_tokens
FROM model_calls AS c
JOIN rollouts AS r ON r.rollout_id = c.rollout_id
GROUP BY c.rollout_id, c.sample_id, r.eval_run_id, c.model
"""


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("entry_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("rollout_id", KEY, nullable=True),
        sa.Column("sample_id", KEY, nullable=True),
        sa.Column("author", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("chain_digest", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("entry_no", name=op.f("pk_audit_log")),
    )
    op.create_table(
        "contents",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_contents")),
    )
    op.create_table(
        "eval_runs",
        sa.Column("eval_run_id", KEY, nullable=False),
        sa.Column("config_path", sa.Text(), nullable=False),
        sa.Column("rollout_name", sa.Text(), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("dataset_path", sa.Text(), nullable=False),
        sa.Column("dataset_sha256", sa.Text(), nullable=False),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("workflow_digest", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.Column("worker_id", KEY, nullable=True),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("eval_run_id", name=op.f("pk_eval_runs")),
    )
    op.create_index(
        op.f("ix_eval_runs_config_path_eval_run_id"),
        "eval_runs",
        ["config_path", "eval_run_id"],
        unique=False,
    )
    op.create_table(
        "workers",
        sa.Column("worker_id", KEY, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("pid_started", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("lease_until", TIME, nullable=False),
        sa.PrimaryKeyConstraint("worker_id", name=op.f("pk_workers")),
    )
    op.create_table(
        "writer_batches",
        sa.Column("writer_id", KEY, nullable=False),
        sa.Column("batch_no", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("writer_id", name=op.f("pk_writer_batches")),
    )
    op.create_table(
        "grading_runs",
        sa.Column("grading_run_id", KEY, nullable=False),
        sa.Column("eval_run_id", KEY, nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("grader", sa.Text(), nullable=False),
        sa.Column("code_digest", sa.Text(), nullable=True),
        sa.Column("code_covers", sa.Text(), nullable=True),
        sa.Column("config", sa.Text(), nullable=True),
        sa.Column("author", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("selection", sa.Text(), nullable=True),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.Column("graded_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("failed_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("skipped_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("policy_calls", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("connections_allowed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("connections_refused", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.CheckConstraint(
            "kind IN ('rollout', 'regrade', 'human', 'imported')", name=op.f("ck_grading_runs_kind")
        ),
        sa.ForeignKeyConstraint(
            ["eval_run_id"], ["eval_runs.eval_run_id"], name=op.f("fk_grading_runs_eval_run_id")
        ),
        sa.PrimaryKeyConstraint("grading_run_id", name=op.f("pk_grading_runs")),
    )
    op.create_index(
        op.f("ix_grading_runs_grader_code_digest"),
        "grading_runs",
        ["grader", "code_digest"],
        unique=False,
    )
    op.create_table(
        "rollouts",
        sa.Column("rollout_id", KEY, nullable=False),
        sa.Column("eval_run_id", KEY, nullable=True),
        sa.Column("row_index", sa.BigInteger(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("retry_no", sa.Integer(), server_default="0", nullable=False),
        sa.Column("workflow", sa.Text(), nullable=True),
        sa.Column("prompt", sa.Text(), nullable=True),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error_category", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("error_traceback", sa.Text(), nullable=True),
        sa.Column("worker_id", KEY, nullable=True),
        sa.Column("lease_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.CheckConstraint(
            "status IN ('running', 'success', 'failure', 'cancelled', 'crashed', 'open')",
            name=op.f("ck_rollouts_status"),
        ),
        sa.ForeignKeyConstraint(
            ["eval_run_id"], ["eval_runs.eval_run_id"], name=op.f("fk_rollouts_eval_run_id")
        ),
        sa.PrimaryKeyConstraint("rollout_id", name=op.f("pk_rollouts")),
    )
    op.create_index(
        op.f("ix_rollouts_eval_run_id_row_index_attempt_retry_no"),
        "rollouts",
        ["eval_run_id", "row_index", "attempt", "retry_no"],
        unique=True,
    )
    op.create_index(op.f("ix_rollouts_status"), "rollouts", ["status"], unique=False)
    op.create_index(op.f("ix_rollouts_worker_id"), "rollouts", ["worker_id"], unique=False)
    op.create_table(
        "model_calls",
        sa.Column("rollout_id", KEY, nullable=False),
        sa.Column("call_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sample_id", KEY, nullable=False),
        sa.Column("agent", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("instructions_digest", sa.LargeBinary(), nullable=True),
        sa.Column("tools_digest", sa.LargeBinary(), nullable=True),
        sa.Column("input_digest", sa.LargeBinary(), nullable=True),
        sa.Column("input_item_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("asked_at", TIME, nullable=False),
        sa.Column("answered_at", TIME, nullable=True),
        sa.Column("response_id", sa.Text(), nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('asked', 'answered', 'saved', 'withheld', 'failed', 'lost')",
            name=op.f("ck_model_calls_state"),
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.rollout_id"], name=op.f("fk_model_calls_rollout_id")
        ),
        sa.PrimaryKeyConstraint("rollout_id", "call_no", name=op.f("pk_model_calls")),
    )
    op.create_table(
        "samples",
        sa.Column("rollout_id", KEY, nullable=False),
        sa.Column("sample_id", KEY, nullable=False),
        sa.Column("sample_no", sa.Integer(), nullable=False),
        sa.Column("item_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("chain_head", sa.LargeBinary(), nullable=False),
        sa.Column("grade_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("grade_chain_head", sa.LargeBinary(), nullable=False),
        sa.Column("extra_fields", sa.Text(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollouts.rollout_id"], name=op.f("fk_samples_rollout_id")
        ),
        sa.PrimaryKeyConstraint("rollout_id", "sample_id", name=op.f("pk_samples")),
    )
    op.create_table(
        "grades",
        sa.Column("rollout_id", KEY, nullable=False),
        sa.Column("sample_id", KEY, nullable=False),
        sa.Column("grade_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("grading_run_id", KEY, nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("removed", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=True),
        sa.Column("explanation", sa.Text(), nullable=True),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("chain_head", sa.LargeBinary(), nullable=False),
        sa.Column("chain_digest", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.CheckConstraint(
            "removed OR (reward IS NULL) <> (error IS NULL)", name=op.f("ck_grades_reward_or_error")
        ),
        sa.ForeignKeyConstraint(
            ["grading_run_id"],
            ["grading_runs.grading_run_id"],
            name=op.f("fk_grades_grading_run_id"),
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id", "sample_id"],
            ["samples.rollout_id", "samples.sample_id"],
            name=op.f("fk_grades_rollout_id_sample_id"),
        ),
        sa.PrimaryKeyConstraint("rollout_id", "sample_id", "grade_no", name=op.f("pk_grades")),
    )
    op.create_index(op.f("ix_grades_grading_run_id"), "grades", ["grading_run_id"], unique=False)
    op.create_table(
        "items",
        sa.Column("rollout_id", KEY, nullable=False),
        sa.Column("sample_id", KEY, nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("nonce", sa.LargeBinary(), nullable=True),
        sa.Column("body_digest", sa.LargeBinary(), nullable=True),
        sa.Column("chain_digest", sa.LargeBinary(), nullable=False),
        sa.Column("type", sa.Text(), nullable=True),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("tool_name", sa.Text(), nullable=True),
        sa.Column("call_id", sa.Text(), nullable=True),
        sa.Column("call_no", sa.BigInteger(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("tombstoned_at", TIME, nullable=True),
        sa.Column("tombstone_reason", sa.Text(), nullable=True),
        sa.Column("recovered", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(
            ["rollout_id", "sample_id"],
            ["samples.rollout_id", "samples.sample_id"],
            name=op.f("fk_items_rollout_id_sample_id"),
        ),
        sa.PrimaryKeyConstraint("rollout_id", "sample_id", "seq", name=op.f("pk_items")),
    )
    op.create_index(
        "ix_items_tool_name",
        "items",
        ["tool_name"],
        unique=False,
        sqlite_where=sa.text("tool_name IS NOT NULL"),
        postgresql_where=sa.text("tool_name IS NOT NULL"),
    )

    op.execute(LIVE_ITEMS)
    op.execute(CURRENT_GRADES)
    name = op.get_bind().dialect.name
    op.execute(ROLLOUT_SUMMARY.format(now=NOW[name], duration=DURATION[name]))
    op.execute(MODEL_USAGE)


def downgrade() -> None:
    for view in ("model_usage", "rollout_summary", "current_grades", "live_items"):
        op.execute(f"DROP VIEW {view}")
    for table in (
        "items",
        "grades",
        "samples",
        "model_calls",
        "rollouts",
        "grading_runs",
        "writer_batches",
        "workers",
        "eval_runs",
        "contents",
        "audit_log",
    ):
        op.drop_table(table)
