"""The pages of docs/ and the examples of the README hold what they promise."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import agents
import pytest
from agents import Agent, ModelResponse, Usage
from agents.models.interface import Model
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from osmosis_ai.eval.tables import read_tables
from scripts import schema_docs

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def test_the_schema_page_is_what_a_new_database_has() -> None:
    assert schema_docs.TARGET.read_text(encoding="utf-8") == schema_docs.render()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readmes_session_keeps_the_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def agent_with_a_model(**options: Any) -> Agent[Any]:
        return Agent(model=Greeter(), **options)

    (program,) = [block for block in blocks("python") if "asyncio.run" in block]
    monkeypatch.setattr(agents, "Agent", agent_with_a_model)
    monkeypatch.chdir(tmp_path)

    exec(compile(program, "README.md", "exec"), {})

    assert capsys.readouterr().out == "Hello to you.\n"
    with sqlite3.connect(tmp_path / "chats.db") as connection:
        roles = connection.execute("SELECT role FROM live_items ORDER BY seq").fetchall()
    connection.close()
    assert roles == [("user",), ("assistant",)]


def test_the_readmes_eval_toml_is_one(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    path = tmp_path / "multiply.toml"
    path.write_text(text)

    assert read_tables(path, {}).eval.rollout == "multiply"


def blocks(language: str) -> list[str]:
    """Return the README's code blocks in a language."""
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


class Greeter(Model):
    """A model that answers every input alike, without a network."""

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        text = ResponseOutputText(type="output_text", text="Hello to you.", annotations=[])
        message = ResponseOutputMessage(
            id="msg_1", type="message", role="assistant", status="completed", content=[text]
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise AssertionError("the README's example does not stream")
