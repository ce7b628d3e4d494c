from typing import Any

from osmosis_ai.rollout.recording import StoredGrade, StoredRollout, TokenUsage


def stored(row_index: int = 0, **values: Any) -> StoredRollout:
    """Return a stored rollout: a success with the label "2" and one ungraded sample."""
    defaults: dict[str, Any] = {
        "rollout_id": f"r-{row_index}-{values.get('attempt', 0)}-{values.get('retry_no', 0)}",
        "attempt": 0,
        "retry_no": 0,
        "status": "success",
        "label": "2",
        "metadata": None,
        "error_category": None,
        "error_message": None,
        "sample_ids": ("main",),
        "grades": {},
        "graded_before": False,
        "usage": TokenUsage(input_tokens=10, output_tokens=2),
        "duration_s": 0.5,
    }
    return StoredRollout(row_index=row_index, **{**defaults, **values})


def graded(row_index: int = 0, reward: float | None = 1.0, **values: Any) -> StoredRollout:
    return stored(
        row_index, grades={"main": StoredGrade(reward=reward)}, graded_before=True, **values
    )
