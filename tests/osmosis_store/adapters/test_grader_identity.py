"""Which grader it is: its digest follows the code that is loaded."""

from __future__ import annotations

from typing import Any

from osmosis_store.adapters.osmosis_grader import identify_grader

CODE = """
from osmosis_ai.rollout import Grader

LIMIT = 3

class Strict(Grader):
    async def grade(self, ctx):
        ctx.set_reward(LIMIT)
"""


def test_a_grader_without_a_file_is_another_one_when_what_it_reaches_is_changed() -> None:
    namespace: dict[str, Any] = {"__name__": "made_up"}
    exec(CODE, namespace)
    before = identify_grader(namespace["Strict"], None)
    namespace["LIMIT"] = 4
    after = identify_grader(namespace["Strict"], None)

    assert before.reference == after.reference == "made_up:Strict"
    assert before.digest != after.digest
    assert "value of made_up.LIMIT" in before.covers
