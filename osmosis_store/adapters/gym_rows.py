"""A NeMo Gym rollout as the values of our columns."""

from __future__ import annotations

from typing import Any

from osmosis_store.adapters.gym_lines import GymRollout
from osmosis_store.codec import to_clean_text, to_json_text
from osmosis_store.records import SampleKey

__all__ = ["to_model_call", "to_rollout_row", "to_seen"]

_NOT_RUN = "no response: a task that nobody has run"
_FAILURE_REASONS = (
    "_ng_failure_message",
    "_ng_failure_judge_error",
    "failure_reason",
    "error_message",
)


def to_rollout_row(rollout: GymRollout, *, workflow: str, attempt: int) -> dict[str, Any]:
    """Return columns of `rollouts`."""
    row = {
        "row_index": rollout.task_index,
        "attempt": attempt,
        "workflow": workflow,
        "prompt": to_json_text(rollout.prompt),
        "label": rollout.label,
        "metadata": to_json_text(rollout.metadata),
        "ended_at": rollout.completed_at,
        **_to_outcome(rollout),
    }
    return row if rollout.created_at is None else {**row, "started_at": rollout.created_at}


def _to_outcome(rollout: GymRollout) -> dict[str, Any]:
    """Return status and error as the line tells them; a response that tells nothing succeeded."""
    kind = rollout.metadata.get("_ng_failure_class")
    if isinstance(kind, str):  # a row of the file `…_failures.jsonl`
        reasons = (rollout.metadata.get(name) for name in _FAILURE_REASONS)
        reason = next((one for one in reasons if isinstance(one, str) and one), "")
        text = f"{kind}: {reason}" if reason else kind
        return _failure("timeout" if "timeout" in kind else "agent_error", text)
    if rollout.response is None:
        return {"status": "failure", "error_message": _NOT_RUN}
    error, status = rollout.response.get("error"), rollout.response.get("status")
    if error is None and status not in ("failed", "cancelled"):
        return {"status": "success"}
    message = error.get("message") if isinstance(error, dict) else error
    text = message if isinstance(message, str) else to_json_text(message or status)
    if status == "cancelled":
        return {"status": "cancelled", "error_message": to_clean_text(text)}
    return _failure("agent_error", text)


def _failure(category: str, text: str) -> dict[str, Any]:
    return {
        "status": "failure",
        "error_category": category,
        "error_message": to_clean_text(text),
    }


def to_model_call(key: SampleKey, rollout: GymRollout) -> dict[str, Any] | None:
    """Return the response as one model call, which carries its usage; None when it has none."""
    response = rollout.response or {}
    model, usage = response.get("model"), response.get("usage")
    if not isinstance(model, str) or not isinstance(usage, dict):
        return None
    response_id = response.get("id")
    return {
        **key._asdict(),
        "agent": rollout.agent,
        "model": to_clean_text(model),
        "settings": "{}",
        "input_item_count": len(rollout.prompt),
        "state": "saved",
        "answered_at": rollout.completed_at,
        "response_id": to_clean_text(response_id) if isinstance(response_id, str) else None,
        "input_tokens": _to_tokens(usage, "input_tokens"),
        "cached_tokens": _to_tokens(usage, "input_tokens_details", "cached_tokens"),
        "output_tokens": _to_tokens(usage, "output_tokens"),
        "reasoning_tokens": _to_tokens(usage, "output_tokens_details", "reasoning_tokens"),
        **({} if rollout.created_at is None else {"asked_at": rollout.created_at}),
    }


def _to_tokens(usage: dict[str, Any], *path: str) -> int | None:
    value: Any = usage
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, int) and 0 <= value < 2**63 else None


def to_seen(rollout: GymRollout) -> dict[str, str | None]:
    """Return the instructions and tool schemas that the model saw, as texts."""
    params = rollout.metadata["responses_create_params"]
    instructions, tools = params.get("instructions"), params.get("tools")
    return {
        "instructions": to_clean_text(instructions) if isinstance(instructions, str) else None,
        "tools": to_json_text(tools) if tools else None,
    }
