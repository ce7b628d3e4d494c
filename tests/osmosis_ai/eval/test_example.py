import importlib.util
import sys
from pathlib import Path

import pytest

from osmosis_ai.eval.config import load_config
from osmosis_ai.eval.dataset import load_dataset
from osmosis_ai.eval.endpoint import Endpoint
from osmosis_ai.eval.entrypoint import load_entrypoint
from osmosis_ai.eval.policy import load_policy
from osmosis_ai.rollout import ExecutionRequest, Grader, LocalBackend, RolloutContext
from osmosis_ai.rollout.grading import grade_samples

EXAMPLE = Path(__file__).parents[3] / "examples/multiply"

# LiteLLM itself reads attributes that pydantic deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning")


def load_strict_grader() -> type[Grader]:
    spec = importlib.util.spec_from_file_location("strict", EXAMPLE / "graders/strict.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["strict"] = module
    spec.loader.exec_module(module)
    grader: type[Grader] = module.ExactAnswer
    return grader


async def test_the_example_gets_20_of_24_and_the_strict_grader_gives_17() -> None:
    config = load_config(EXAMPLE / "configs/eval/multiply.toml")
    dataset = load_dataset(config.dataset, name="data")
    entrypoint = load_entrypoint(config.entrypoint, rollout_dir=config.rollout_dir, name="main.py")
    backend = LocalBackend(workflow=entrypoint.workflow, grader=entrypoint.grader)
    lenient, strict = [], []
    async with Endpoint(load_policy(config, {}), on_systemic=print) as endpoint:
        for row in dataset.rows:
            rollout_id = f"row-{row.index}"
            with RolloutContext(endpoint.url, endpoint.api_key, rollout_id):
                outcome = await backend.execute(
                    ExecutionRequest(id=rollout_id, prompt=row.prompt, label=row.label)
                )
            (sample,) = outcome.grader.samples.values()
            lenient.append(sample.reward)
            again = await grade_samples(
                load_strict_grader(),
                None,
                samples=outcome.workflow.samples,
                label=row.label,
                metadata=row.metadata,
            )
            strict.append(again.samples["multiply-agent"].reward)

    assert (len(lenient), sum(filter(None, lenient))) == (24, 20.0)
    assert (len(strict), sum(filter(None, strict))) == (24, 17.0)
    assert endpoint.upstream_calls == 24 + 22  # two rows answer without the tool
