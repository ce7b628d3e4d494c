"""Lines of NeMo Gym's rollouts JSONL as plain values, checked and with nothing lost."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from osmosis_store.codec import Item, to_clean_text, to_json_text

__all__ = ["GymRollout", "read_gym_line"]

_MAX_INTEGER = 2**31 - 1
_MAX_NAME_LENGTH = 200
_FAILED = ("failed", "cancelled")


@dataclass(frozen=True, kw_only=True)
class GymRollout:
    """One rollout of a NeMo Gym file.

    Attributes:
        digest: sha256 of the line.
        prompt: The input items; a bare text as the user message that the Runner makes of it.
        output: What the model and its tools did; empty where nobody ran the task.
        label: `expected_answer` of the line or its response; other values than text as JSON text.
        metadata: The line without the items: all other fields, those of the environment too.
            Turns that were nested are there as the positions of their items.
        reward: None where the line has none.
        agent: The name of the agent that ran it; None where the line does not say.
        task_index: `_ng_task_index`; None where the line has no such number.
        attempt: `_ng_rollout_index`; None where the line has no such number.
        response: The response without its output; None where the line has none.
    """

    digest: bytes
    prompt: list[Item]
    output: list[Item]
    label: str | None
    metadata: dict[str, Any]
    reward: float | None
    agent: str | None
    task_index: int | None
    attempt: int | None
    response: dict[str, Any] | None

    @property
    def created_at(self) -> dt.datetime | None:
        """When the response was begun; None where it does not say."""
        return _to_time((self.response or {}).get("created_at"))

    @property
    def completed_at(self) -> dt.datetime | None:
        """When the response was complete; None where it does not say."""
        return _to_time((self.response or {}).get("completed_at"))


def read_gym_line(line: bytes) -> GymRollout:
    """Understand one line.

    Raises:
        ValueError: It is not a rollout; says why.
    """
    try:
        return _to_rollout(line, _parse(line))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _to_rollout(line: bytes, data: dict[str, Any]) -> GymRollout:
    params = _require_object(data, "responses_create_params")
    response = None if data.get("response") is None else _require_object(data, "response")
    asked, turns = _find_prompt(params, required=response is None)
    output, output_turns = _find_output(response)
    rest = {**data, "responses_create_params": _replace(params, "input", turns)}
    if response is not None:
        response = rest["response"] = _replace(response, "output", output_turns)
    return GymRollout(
        digest=sha256(line).digest(),
        prompt=asked,
        output=output,
        label=_find_label(data, response or {}),
        metadata=rest,
        reward=_find_reward(data),
        agent=_find_agent(data),
        task_index=_find_index(data, "_ng_task_index"),
        attempt=_find_index(data, "_ng_rollout_index"),
        response=response,
    )


def _parse(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(
            line.decode(),
            parse_constant=_to_float,
            parse_float=_to_float,
            object_pairs_hook=_to_object,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg} at character {error.colno}") from None
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    return data


def _to_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number that JSON gives back")
    return value


def _to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


def _require_object(data: dict[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{name} is missing" if value is None else f"{name} is not an object")
    return value


def _replace(data: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    """Return the fields with another value in the place of one; None: without it."""
    return {
        name: value if name == key else part
        for name, part in data.items()
        if name != key or value is not None
    }


def _find_prompt(params: dict[str, Any], *, required: bool) -> tuple[list[Item], object]:
    value = params.get("input")
    if value is None and not required:
        return [], None
    return _to_items([value] if isinstance(value, str) else value, "responses_create_params.input")


def _find_output(response: dict[str, Any] | None) -> tuple[list[Item], object]:
    if response is None:
        return [], None
    failed = response.get("error") is not None or response.get("status") in _FAILED
    if response.get("output") is None and failed:
        return [], None
    return _to_items(response.get("output"), "response.output", role="assistant")


def _to_items(value: object, name: str, *, role: str = "user") -> tuple[list[Item], object]:
    """Return items in their order, and how their turns were nested: None where they were not.

    Args:
        role: Of the message that a bare text stands for.
    """
    if not isinstance(value, list):
        raise ValueError(f"{name} is missing" if value is None else f"{name} is not an array")
    items: list[Item] = []

    def add(part: object, place: str) -> object:
        if isinstance(part, list):
            return [add(inner, f"{place}[{at}]") for at, inner in enumerate(part)]
        if isinstance(part, str):
            part = {"content": part, "role": role}
        if not isinstance(part, dict):
            raise ValueError(f"{place} is not an object")
        items.append(part)
        return len(items) - 1

    turns = add(value, name)
    is_nested = any(isinstance(part, list) for part in value)
    return items, turns if is_nested else None


def _find_label(data: dict[str, Any], response: dict[str, Any]) -> str | None:
    value = data.get("expected_answer")
    if value is None:
        value = response.get("expected_answer")
    if value is None:
        return None
    label = value if isinstance(value, str) else to_json_text(value)
    if to_clean_text(label) != label:
        raise ValueError("expected_answer holds NUL or a lone surrogate, which no label can")
    return label


def _find_reward(data: dict[str, Any]) -> float | None:
    value = data.get("reward")
    if value is None:
        return None
    try:
        reward = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        reward = math.inf
    if not math.isfinite(reward):
        raise ValueError(f"reward is not a finite number: {to_json_text(value)[:80]}")
    return reward


def _find_agent(data: dict[str, Any]) -> str | None:
    agent = data.get("agent_ref")
    name = agent.get("name") if isinstance(agent, dict) else agent
    return to_clean_text(name)[:_MAX_NAME_LENGTH] if isinstance(name, str) and name else None


def _find_index(data: dict[str, Any], name: str) -> int | None:
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= _MAX_INTEGER else None


def _to_time(value: object) -> dt.datetime | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return None
    try:
        return dt.datetime.fromtimestamp(value, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return None
