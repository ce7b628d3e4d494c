"""A stricter grader for stored multiply rollouts."""

import re

from osmosis_ai.rollout import Grader, GraderContext, RolloutSample

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class ExactAnswer(Grader):
    """The last number of the last answer is the label, whatever else was said before it."""

    async def grade(self, ctx: GraderContext) -> None:
        """Reward every sample with 1.0 or 0.0."""
        for sample_id, sample in ctx.samples.items():
            numbers = NUMBER.findall(_last_answer(sample))
            ctx.set_sample_reward(sample_id, float(numbers[-1:] == [ctx.label]))


def _last_answer(sample: RolloutSample) -> str:
    for item in reversed(sample.messages):
        if item.get("role") == "assistant":
            content = item["content"]
            blocks = [{"text": content}] if isinstance(content, str) else content
            return " ".join(block.get("text") or "" for block in blocks)
    return ""
