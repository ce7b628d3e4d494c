import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.eval.errors import ProviderError
from osmosis_store.database import Database
from tests.osmosis_ai.eval.provider import HELLO, Provider, serve_provider
from tests.policy_endpoint import LITELLM_WARNINGS

from .reading import rollouts_of, states
from .workspace import CONFIG_PATH, MAIN_PATH, Workspace, row

pytestmark = LITELLM_WARNINGS

PLAIN_KEY = "plain-key-0123456789"
BEARER = "bearer-token-abcdefgh"

ASKING = """\
from agents import Runner

from osmosis_ai.rollout import AgentWorkflow
from osmosis_ai.rollout.integrations.agents.openai_agents import OsmosisAgent, OsmosisRolloutModel
from osmosis_store import OsmosisSQLSession


class Ask(AgentWorkflow):
    async def run(self, ctx):
        agent = OsmosisAgent(name="asker", model=OsmosisRolloutModel())
        await Runner.run(agent, ctx.prompt, session=OsmosisSQLSession("main"))
"""


@pytest.fixture
def provider(workspace: Workspace) -> Iterator[Provider]:
    with serve_provider() as running:
        model = f'"openai/x"\nbase_url = "http://user:{PLAIN_KEY}@{running.url[7:]}"'
        workspace.edit(
            CONFIG_PATH,
            '"scripted"\nscript = "policies/echo.jsonl"',
            f'{model}\napi_key_env = "THE_KEY"',
        )
        workspace.write(MAIN_PATH, ASKING)
        yield running


def fail_after_preflight(provider: Provider, status: int) -> None:
    def answer(body: dict[str, Any]) -> list[dict[str, Any]]:
        message = f"bad call: key {PLAIN_KEY}, header Authorization: Bearer {BEARER}"
        provider.fail(status, message)
        return HELLO

    provider.answer = answer


def texts_of(folder: Path) -> str:
    """Return all that the store and the result files hold."""
    texts = [file.read_text() for file in folder.rglob("*.json*") if ".osmosis" in file.parts]
    with closing(sqlite3.connect(folder.parent / "store.db")) as connection:
        texts += connection.iterdump()
    return "\n".join(texts)


async def test_a_providers_error_is_stored_without_the_key(
    workspace: Workspace, provider: Provider, sqlite_database: Database
) -> None:
    fail_after_preflight(provider, 400)
    report = await workspace.run(
        sqlite_database, {"log_samples": True}, environ={"THE_KEY": PLAIN_KEY}
    )

    assert states(report) == ["failed"] * 3
    texts = texts_of(workspace.root)
    assert "bad call: key [secret], header Authorization: Bearer [secret]" in texts
    assert PLAIN_KEY not in texts
    assert BEARER not in texts


async def test_a_key_that_is_refused_later_leaves_the_rows_pending(
    workspace: Workspace, provider: Provider, sqlite_database: Database
) -> None:
    fail_after_preflight(provider, 401)
    with pytest.raises(ProviderError) as caught:
        await workspace.run(sqlite_database, environ={"THE_KEY": PLAIN_KEY})
    provider.error = provider.answer = None
    report = await workspace.run(sqlite_database, environ={"THE_KEY": PLAIN_KEY})

    assert PLAIN_KEY not in str(caught.value)
    assert caught.value.hint.startswith("check the key in THE_KEY")
    assert PLAIN_KEY not in texts_of(workspace.root)
    firsts = {one.status for one in await rollouts_of(sqlite_database) if one.retry_no == 0}
    assert firsts == {"cancelled"}
    assert (report.run_count, report.failed_count) == (3, 0)


@pytest.mark.parametrize("place", ["workflow", "grader"])
async def test_what_looks_like_a_key_is_cut_out_of_any_stored_error(
    workspace: Workspace, sqlite_database: Database, place: str
) -> None:
    key = "sk-judge-0123456789"
    message = json.dumps(f"judge says: Incorrect API key provided: {key}")
    old = {
        "workflow": "            raise ValueError(text)",
        "grader": '                raise KeyError("the grader broke")',
    }[place]
    indent = old[: len(old) - len(old.lstrip())]
    workspace.edit(MAIN_PATH, old, f"{indent}raise ValueError({message})")
    workspace.write_rows([row("raise") if place == "workflow" else row("1", "break")])
    report = await workspace.run(sqlite_database)

    assert report.verdicts[0].error is not None
    assert report.verdicts[0].error.endswith("Incorrect API key provided: [secret]")
    assert key not in texts_of(workspace.root)
