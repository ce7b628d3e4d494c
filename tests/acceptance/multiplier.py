"""A model provider that answers questions of `examples/multiply`, slowly, and counts its calls."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.osmosis_ai.eval.provider import HELLO, USAGE, Provider, chunk, serve_provider

QUESTION = re.compile(r"What is (\d+) times (\d+)\?")


class Multiplier:
    """Asks for the tool on a question, and answers with what the tool gave.

    Attributes:
        calls: Calls by question; a preflight is none.
        preflights: How many of those came.
    """

    def __init__(self, provider: Provider, *, delay_s: float) -> None:
        self.provider = provider
        self.calls: Counter[str] = Counter()
        self.preflights = 0
        self._delay_s = delay_s
        self._changed = threading.Condition()
        provider.answer = self._answer

    def wait_for_calls(self, count: int) -> None:
        """Block until so many calls came."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.calls.total() >= count, timeout=60)

    def _answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        messages = body["messages"]
        asked = [m["content"] for m in messages if m["role"] == "user"][-1]
        question = QUESTION.search(str(asked))
        with self._changed:
            if question is None:
                self.preflights += 1
                return HELLO
            self.calls[question[0]] += 1
            self._changed.notify_all()
        time.sleep(self._delay_s)
        if messages[-1]["role"] == "tool":
            return [
                chunk({"content": f"It is {messages[-1]['content']}."}),
                chunk({}, "stop"),
                USAGE,
            ]
        arguments = json.dumps({"a": int(question[1]), "b": int(question[2])})
        function = {"name": "multiply", "arguments": arguments}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        return [chunk({"tool_calls": [call]}), chunk({}, "tool_calls"), USAGE]


@contextmanager
def serve_multiplier(*, delay_s: float = 0.0) -> Iterator[Multiplier]:
    """Serve one on a free loopback port."""
    with serve_provider() as provider:
        yield Multiplier(provider, delay_s=delay_s)
