"""The rollout model: which sample a call is for, and what is sent and returned."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelBehaviorError,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    Runner,
    function_tool,
    retry_policies,
)

from osmosis_ai.rollout import AgentWorkflowConfig, RolloutContext
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisLitellmModel,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)
from tests.policy_endpoint import (
    LITELLM_WARNINGS,
    Answer,
    PolicyCall,
    PolicyEndpoint,
    failing,
    text,
    tool_call,
    tool_calls,
)

pytestmark = LITELLM_WARNINGS


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


def build_agent(name: str = "assistant", **options: Any) -> OsmosisAgent[Any]:
    return OsmosisAgent(name=name, model=OsmosisRolloutModel(), **options)


def sample_ids(endpoint: PolicyEndpoint) -> list[str]:
    return [call.sample_id for call in endpoint.calls]


class TestPlaceholder:
    def test_it_becomes_the_model_of_the_active_rollout(self, rollout: RolloutContext) -> None:
        model = build_agent().model

        assert isinstance(model, OsmosisLitellmModel)
        assert model.base_url == rollout.chat_completions_url
        assert model.model == "openai/osmosis-rollout"

    def test_any_other_model_passes_through_untouched(self, rollout: RolloutContext) -> None:
        own = OsmosisLitellmModel()

        assert OsmosisAgent(name="a", model="gpt-5").model == "gpt-5"
        assert OsmosisAgent(name="a", model=own).model is own
        assert OsmosisAgent(name="a").model is None

    def test_a_clone_may_be_given_the_placeholder(self, rollout: RolloutContext) -> None:
        clone = OsmosisAgent(name="a", model="gpt-5").clone(model=OsmosisRolloutModel())

        assert isinstance(clone.model, OsmosisLitellmModel)

    def test_settings_of_the_agent_stay_as_given(self, rollout: RolloutContext) -> None:
        settings = ModelSettings(temperature=0.5)

        assert build_agent(model_settings=settings).model_settings == settings

    def test_it_lives_in_config_objects_and_is_copied_with_them(self) -> None:
        config = AgentWorkflowConfig(name="c", policy=OsmosisRolloutModel())

        assert isinstance(copy.deepcopy(config).policy, OsmosisRolloutModel)

    async def test_calling_it_is_an_error(self, rollout: RolloutContext) -> None:
        agent = Agent(name="plain", model=OsmosisRolloutModel())

        with pytest.raises(RuntimeError, match="is a placeholder"):
            await Runner.run(agent, "hi", session=OsmosisMemorySession())
        with pytest.raises(RuntimeError, match="is a placeholder"):
            OsmosisRolloutModel().stream_response()

    def test_outside_a_rollout_no_agent_can_be_built_with_it(self) -> None:
        with pytest.raises(RuntimeError, match="no rollout is active"):
            build_agent()


class TestRouting:
    async def test_a_call_carries_sample_and_rollout_id_and_the_key(
        self, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        await Runner.run(build_agent(), "hi", session=OsmosisMemorySession(name="s-1"))

        (call,) = endpoint.calls
        assert call.headers["x-sample-id"] == "s-1"
        assert call.headers["x-rollout-id"] == "r-1"
        assert call.headers["authorization"] == "Bearer rollout-key"
        assert call.body["stream"] is True
        assert call.body["stream_options"] == {"include_usage": True}

    async def test_the_users_headers_are_sent_and_lose_against_ours(
        self, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        settings = ModelSettings(
            extra_headers={"X-Sample-Id": "forged", "x-rollout-id": "forged", "x-team": "red"}
        )
        agent = build_agent(model_settings=settings)
        await Runner.run(agent, "hi", session=OsmosisMemorySession(name="s-1"))

        headers = endpoint.calls[0].headers
        assert (headers["x-sample-id"], headers["x-rollout-id"]) == ("s-1", "r-1")
        assert headers["x-team"] == "red"

    async def test_headers_among_the_extra_arguments_lose_too(
        self, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        headers = {"x-sample-id": "forged", "X-Rollout-Id": "forged"}
        agent = build_agent(model_settings=ModelSettings(extra_args={"headers": headers}))
        await Runner.run(agent, "hi", session=OsmosisMemorySession(name="s-1"))

        headers = endpoint.calls[0].headers
        assert (headers["x-sample-id"], headers["x-rollout-id"]) == ("s-1", "r-1")

    async def test_a_name_outside_ascii_is_percent_encoded(
        self, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        await Runner.run(build_agent(), "hi", session=OsmosisMemorySession(name="规划 1"))

        assert sample_ids(endpoint) == ["%E8%A7%84%E5%88%92 1"]

    async def test_without_a_key_no_other_key_is_sent(
        self, endpoint: PolicyEndpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
        with RolloutContext(endpoint.url, rollout_id="r-1"):
            await Runner.run(build_agent(), "hi", session=OsmosisMemorySession())

        assert "sk-of-the-user" not in endpoint.calls[0].headers["authorization"]

    async def test_a_rollout_without_an_endpoint_sends_nothing_anywhere(self) -> None:
        with (
            RolloutContext(rollout_id="r-1"),
            pytest.raises(RuntimeError, match="OSMOSIS_CHAT_COMPLETIONS_URL"),
        ):
            await Runner.run(build_agent(), "hi", session=OsmosisMemorySession())


@pytest.mark.parametrize("streamed", [False, True], ids=["run", "streamed"])
class TestWhichSample:
    """Each case with `Runner.run` and with `Runner.run_streamed`."""

    async def run(self, streamed: bool, agent: Agent[Any], prompt: Any = "hi", **kw: Any) -> Any:
        if not streamed:
            return await Runner.run(agent, prompt, **kw)
        result = Runner.run_streamed(agent, prompt, **kw)
        async for _ in result.stream_events():
            pass
        return result

    async def test_one_session_after_the_other(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        for name in ("planner", "executor"):
            session = OsmosisMemorySession(name=name)
            await self.run(streamed, build_agent(), session=session)
            await self.run(streamed, build_agent(), session=session)

        assert sample_ids(endpoint) == ["planner", "planner", "executor", "executor"]
        samples = await rollout.get_samples()
        assert [len(sample.messages) for sample in samples.values()] == [4, 4]

    async def test_sessions_side_by_side_each_stamp_their_own_id(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        def answer(call: PolicyCall) -> Answer:
            done = any(message["role"] == "tool" for message in call.body["messages"])
            return text(call.sample_id) if done else tool_call("multiply", a=2, b=3)

        endpoint.answer_with(answer)
        agent = build_agent(tools=[multiply])
        names = [f"s-{number}" for number in range(8)]
        results = await asyncio.gather(
            *(
                self.run(streamed, agent, name, session=OsmosisMemorySession(name=name))
                for name in names
            )
        )

        assert [result.final_output for result in results] == names
        for call in endpoint.calls:
            assert call.body["messages"][0]["content"] == call.sample_id

    async def test_without_a_session_nothing_is_sent(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        with pytest.raises(RuntimeError, match=r"Pass session=OsmosisMemorySession"):
            await self.run(streamed, build_agent())

        assert endpoint.calls == []

    async def test_a_later_run_without_a_session_is_not_stamped_with_an_earlier_one(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        agent = build_agent()
        await self.run(streamed, agent, session=OsmosisMemorySession(name="a"))

        with pytest.raises(RuntimeError, match="Pass session="):
            await self.run(streamed, agent)
        with pytest.raises(RuntimeError, match="Pass session="):
            await Runner.run(agent, "hi")
        assert sample_ids(endpoint) == ["a"]

        await self.run(streamed, agent, session=OsmosisMemorySession(name="b"))
        assert sample_ids(endpoint) == ["a", "b"]

    async def test_a_run_without_a_session_beside_one_that_has_one_is_refused(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        endpoint.answer_with(lambda call: text("ok", delay_s=0.05))
        with_one, without = await asyncio.gather(
            self.run(streamed, build_agent(), session=OsmosisMemorySession(name="a")),
            self.run(streamed, build_agent()),
            return_exceptions=True,
        )

        assert with_one.final_output == "ok"
        assert "Pass session=" in str(without)
        assert sample_ids(endpoint) == ["a"]

    async def test_a_session_of_another_rollout_is_refused(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        session = OsmosisMemorySession(name="a")
        await self.run(streamed, build_agent(), session=session)
        with RolloutContext(endpoint.url, "k", "r-2"):
            with pytest.raises(RuntimeError, match="belongs to rollout 'r-1'"):
                await self.run(streamed, build_agent(), session=session)
            with pytest.raises(RuntimeError, match="Pass session="):
                await self.run(streamed, build_agent())

        assert [call.headers["x-rollout-id"] for call in endpoint.calls] == ["r-1"]

    async def test_a_model_of_another_rollout_is_refused(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        agent = build_agent()
        with (
            RolloutContext(endpoint.url, "k", "r-2"),
            pytest.raises(RuntimeError, match=r"rollout model belongs to rollout 'r-1'"),
        ):
            await self.run(streamed, agent, session=OsmosisMemorySession())
        assert endpoint.calls == []

    async def test_a_handoff_stays_in_the_sample(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        endpoint.answer_with([tool_call("transfer_to_expert"), text("expert says")])
        expert = build_agent("expert", instructions="Know it all.")
        desk = build_agent("desk", handoffs=[expert])

        result = await self.run(streamed, desk, session=OsmosisMemorySession(name="talk"))

        assert result.last_agent is expert
        assert sample_ids(endpoint) == ["talk", "talk"]

    async def test_an_agent_as_a_tool_with_a_session_is_a_sample_of_its_own(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        endpoint.answer_with([tool_call("ask", input="q"), text("inner"), text("outer")])
        inner = build_agent("inner")
        tool = inner.as_tool("ask", "Ask.", session=OsmosisMemorySession(name="inner"))
        outer = build_agent("outer", tools=[tool])

        result = await self.run(streamed, outer, session=OsmosisMemorySession(name="outer"))

        assert result.final_output == "outer"
        assert sample_ids(endpoint) == ["outer", "inner", "outer"]

    async def test_an_agent_as_a_tool_without_a_session_is_refused(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        endpoint.answer_with([tool_call("ask", input="q")])
        tool = build_agent("inner").as_tool("ask", "Ask.", failure_error_function=None)
        outer = build_agent("outer", tools=[tool])

        with pytest.raises(Exception, match=r"'inner' runs without a session .* as_tool"):
            await self.run(streamed, outer, session=OsmosisMemorySession(name="outer"))
        assert sample_ids(endpoint) == ["outer"]

    async def test_one_model_for_all_agents_of_a_run(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        config = RunConfig(model=OsmosisLitellmModel())
        agent = OsmosisAgent(name="a", model="gpt-5")

        await self.run(streamed, agent, session=OsmosisMemorySession("s"), run_config=config)

        assert sample_ids(endpoint) == ["s"]

    async def test_a_plain_agent_cannot_tell_its_sample_and_is_refused(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        model = build_agent().model
        await self.run(streamed, build_agent(), session=OsmosisMemorySession("a"))
        plain = Agent(name="plain", model=model)

        with pytest.raises(RuntimeError, match="Use OsmosisAgent instead of Agent"):
            await self.run(streamed, plain)
        with pytest.raises(RuntimeError, match="Use OsmosisAgent instead of Agent"):
            await self.run(streamed, plain, session=OsmosisMemorySession("b"))
        assert sample_ids(endpoint) == ["a"]

    async def test_a_retry_is_for_the_same_sample(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        endpoint.answer_with([failing(500), text("at last")])
        retry = ModelRetrySettings(max_retries=1, policy=retry_policies.http_status([500]))
        settings = ModelSettings(retry=retry)

        result = await self.run(
            streamed,
            build_agent(model_settings=settings),
            session=OsmosisMemorySession(name="s"),
        )

        assert result.final_output == "at last"
        assert sample_ids(endpoint) == ["s", "s"]

    async def test_a_run_that_goes_on_after_an_approval_stays_in_its_sample(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        @function_tool(needs_approval=True)
        def pay() -> str:
            return "paid"

        endpoint.answer_with([tool_call("pay"), text("done")])
        agent, session = build_agent(tools=[pay]), OsmosisMemorySession(name="s")
        asked = await self.run(streamed, agent, session=session)
        state = asked.to_state()
        for interruption in asked.interruptions:
            state.approve(interruption)

        result = await self.run(streamed, agent, state, session=session)

        assert result.final_output == "done"
        assert sample_ids(endpoint) == ["s", "s"]

    async def test_a_session_that_hides_the_run_is_refused(
        self, streamed: bool, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        class Wrapping:
            session_id, session_settings = "w", None

            def __init__(self, inner: OsmosisMemorySession) -> None:
                self.inner = inner

            async def get_items(self, limit: int | None = None) -> Any:
                return await self.inner.get_items(limit)

            async def add_items(self, items: Any) -> None:
                await self.inner.add_items(items)

            async def pop_item(self) -> Any:
                return await self.inner.pop_item()

            async def clear_session(self) -> None:
                await self.inner.clear_session()

        with pytest.raises(RuntimeError, match="hand `wrapper` on"):
            await self.run(streamed, build_agent(), session=Wrapping(OsmosisMemorySession()))
        assert endpoint.calls == []


class TestAnswers:
    async def test_usage_is_what_the_endpoint_says(
        self, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        usage = {
            "prompt_tokens": 11,
            "completion_tokens": 5,
            "total_tokens": 16,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        }
        endpoint.answer_with([text("hi", usage=usage)])

        result = await Runner.run(build_agent(), "hi", session=OsmosisMemorySession())

        got = result.context_wrapper.usage
        assert (got.requests, got.input_tokens, got.output_tokens) == (1, 11, 5)
        assert got.input_tokens_details.cached_tokens == 4
        assert got.output_tokens_details.reasoning_tokens == 2

    async def test_missing_usage_details_are_zeros(
        self, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        endpoint.answer_with([text("hi")])

        result = await Runner.run(build_agent(), "hi", session=OsmosisMemorySession())

        got = result.context_wrapper.usage
        assert (got.input_tokens, got.output_tokens, got.total_tokens) == (7, 3, 10)
        assert got.input_tokens_details.cached_tokens == 0
        assert got.output_tokens_details.reasoning_tokens == 0

    async def test_several_tool_calls_in_one_answer_are_all_run(
        self, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        calls = [("multiply", f"call_{n}", {"a": n, "b": 10}) for n in range(3)]
        endpoint.answer_with([tool_calls(*calls), text("done")])
        session = OsmosisMemorySession()

        await Runner.run(build_agent(tools=[multiply]), "go", session=session)

        outputs = {
            item["call_id"]: item["output"]
            for item in await session.get_items()
            if item.get("type") == "function_call_output"
        }
        assert outputs == {"call_0": "0", "call_1": "10", "call_2": "20"}

    async def test_text_in_many_pieces_stays_whole(
        self, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        endpoint.answer_with([Answer([{"content": piece} for piece in ["a", "b", "c", "d"]])])

        result = await Runner.run(build_agent(), "hi", session=OsmosisMemorySession())

        assert result.final_output == "abcd"

    @pytest.mark.parametrize("raw", ["data: [DONE]\n\n", ""], ids=["only the end", "nothing"])
    async def test_an_answer_without_choices_is_an_error(
        self, raw: str, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        endpoint.answer_with(lambda call: Answer(raw=raw))

        with pytest.raises(ModelBehaviorError, match="without"):
            await Runner.run(build_agent(), "hi", session=OsmosisMemorySession())

    async def test_a_stream_without_a_completed_response_is_an_error(
        self, rollout: RolloutContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def broken_off(*args: Any) -> Any:
            for event in ():
                yield event

        agent = build_agent()
        monkeypatch.setattr(agent.model._inner, "stream_response", broken_off)

        with pytest.raises(ModelBehaviorError, match=r"without response\.completed"):
            await Runner.run(agent, "hi", session=OsmosisMemorySession())

    async def test_an_error_of_the_endpoint_reaches_the_workflow(
        self, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        endpoint.answer_with(lambda call: failing(400, "no such parameter: tempo"))

        with pytest.raises(Exception, match="no such parameter: tempo"):
            await Runner.run(build_agent(), "hi", session=OsmosisMemorySession())

    async def test_items_of_the_model_have_the_fake_id_and_are_kept_as_they_are(
        self, rollout: RolloutContext, endpoint: PolicyEndpoint
    ) -> None:
        session = OsmosisMemorySession()
        for _ in range(2):
            await Runner.run(build_agent(), "hi", session=session)

        ids = [item["id"] for item in await session.get_items() if "id" in item]
        assert ids == ["__fake_id__", "__fake_id__"]

    def test_a_model_is_a_model_of_the_sdk(self, rollout: RolloutContext) -> None:
        assert isinstance(OsmosisLitellmModel(), Model)

    async def test_closing_it_is_passed_on(self, rollout: RolloutContext) -> None:
        model = OsmosisLitellmModel()
        await model.close()
        await model._cleanup_on_run_end(object())
        assert model.get_retry_advice.__self__ is model
