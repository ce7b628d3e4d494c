"""A small client for graders that ask a model; its tokens are counted for the grading."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from osmosis_ai.rollout.context import get_grading_scope

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["Judge", "JudgeAnswer"]


@dataclass(frozen=True)
class JudgeAnswer:
    """What a judge said.

    Attributes:
        text: Empty when the model answered without text.
        input_tokens: None: the endpoint did not say; `output_tokens` likewise.
    """

    text: str
    input_tokens: int | None
    output_tokens: int | None


class Judge:
    """A model that a grader asks, over an OpenAI-compatible chat-completions endpoint.

    One at module level serves all gradings. It opens no connection before it is asked, and asking
    needs `--allow-network` in a regrade.

    Args:
        base_url: None: OpenAI's, or what `OPENAI_BASE_URL` says.
        api_key: None: `OPENAI_API_KEY` where `base_url` is None too, else none is sent, so that
            no other endpoint gets OpenAI's key.
        timeout_s: For one request.
        max_retries: How often a request is repeated after errors that may pass.
        settings: Further fields of each request, such as `temperature`.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        max_retries: int = 2,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.base_url = model, base_url
        self._api_key = api_key if api_key or base_url is None else "no-key"
        self._timeout_s, self._max_retries = timeout_s, max_retries
        self._settings = dict(settings or {})
        # Connections belong to the event loop that made them.
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = (
            weakref.WeakKeyDictionary()
        )

    def __deepcopy__(self, _: object) -> Self:
        """Be shared by copies of a config that holds it."""
        return self

    async def ask(
        self, messages: str | Sequence[Mapping[str, Any]], **settings: Any
    ) -> JudgeAnswer:
        """Ask once and count the tokens for the grading that goes on here, if any.

        Args:
            messages: Chat messages; a text is one of the user's.
            settings: Fields of this request, over the judge's own.

        Raises:
            ValueError: The endpoint answered without any choice.
            openai.OpenAIError: The request failed, or there is no key.
        """
        said: Any = messages
        if isinstance(messages, str):
            said = [{"role": "user", "content": messages}]
        completion = await self._client().chat.completions.create(
            model=self.model, messages=list(said), **{**self._settings, **settings}
        )
        usage = completion.usage
        answer = JudgeAnswer(
            text=(completion.choices[0].message.content or "") if completion.choices else "",
            input_tokens=None if usage is None else usage.prompt_tokens,
            output_tokens=None if usage is None else usage.completion_tokens,
        )
        scope = get_grading_scope()
        if scope is not None:
            scope.count_judge_call(answer.input_tokens, answer.output_tokens)
        if not completion.choices:
            raise ValueError(f"the judge {self.model} answered without any choice")
        return answer

    async def aclose(self) -> None:
        """Let go of the connections of the running event loop; it can be asked again."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _client(self) -> AsyncOpenAI:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            # Imported here: it takes most of a second, and most graders ask nobody.
            from openai import AsyncOpenAI

            client = self._clients[loop] = AsyncOpenAI(
                api_key=self._api_key,
                base_url=self.base_url,
                timeout=self._timeout_s,
                max_retries=self._max_retries,
            )
        return client
