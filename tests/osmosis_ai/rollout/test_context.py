"""Contexts: which rollout is active, where its samples come from, what a grader may do."""

from __future__ import annotations

import asyncio

import pytest

from osmosis_ai.rollout import (
    GraderContext,
    RolloutContext,
    RolloutSample,
    SampleSource,
    get_rollout_context,
)


class Fixed(SampleSource):
    async def get_sample(self, name: str) -> RolloutSample:
        return RolloutSample(id=name, messages=[{"from": name}])


class Nameless:
    async def get_sample(self) -> RolloutSample:
        return RolloutSample(messages=[{"from": "nameless"}])


class TestActiveContext:
    def test_leaving_an_inner_context_restores_the_outer(self) -> None:
        with RolloutContext(rollout_id="outer") as outer:
            with RolloutContext(rollout_id="inner") as inner:
                assert get_rollout_context() is inner
            assert get_rollout_context() is outer
        assert get_rollout_context() is None

    def test_an_error_restores_the_outer_too(self) -> None:
        with pytest.raises(KeyError), RolloutContext(rollout_id="r"):
            raise KeyError
        assert get_rollout_context() is None

    async def test_one_context_entered_by_several_tasks_is_left_by_each_on_its_own(self) -> None:
        shared = RolloutContext(rollout_id="shared")

        async def enter(number: int) -> RolloutContext | None:
            with RolloutContext(rollout_id=f"own-{number}") as own:
                with shared:
                    await asyncio.sleep(0.001 * (3 - number))
                return get_rollout_context() if get_rollout_context() is own else None

        assert None not in await asyncio.gather(*map(enter, range(3)))

    def test_empty_fields_fall_back_to_the_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OSMOSIS_CHAT_COMPLETIONS_URL", "http://env/v1")
        monkeypatch.setenv("OSMOSIS_API_KEY", "env-key")
        monkeypatch.setenv("OSMOSIS_ROLLOUT_ID", "env-id")

        empty, given = RolloutContext(), RolloutContext("http://given/v1", "key", "id")

        assert (empty.chat_completions_url, empty.api_key, empty.rollout_id) == (
            "http://env/v1",
            "env-key",
            "env-id",
        )
        assert (given.chat_completions_url, given.api_key, given.rollout_id) == (
            "http://given/v1",
            "key",
            "id",
        )

    def test_without_an_environment_they_stay_empty(self) -> None:
        context = RolloutContext()

        assert (context.chat_completions_url, context.api_key, context.rollout_id) == ("", None, "")

    @pytest.mark.parametrize("rollout_id", ["a/b", "..", "a\0b"])
    def test_an_unsafe_rollout_id_is_refused(self, rollout_id: str) -> None:
        with pytest.raises(ValueError, match="rollout id"):
            RolloutContext(rollout_id=rollout_id)

    def test_the_key_is_not_in_its_text(self) -> None:
        assert "hush" not in repr(RolloutContext(api_key="hush"))


class TestSampleSources:
    async def test_samples_come_in_registration_order(self) -> None:
        context = RolloutContext(sample_sources={"z": Fixed()})
        context.register_sample_source("b", Fixed())
        context.register_sample_source("a", Nameless())

        samples = await context.get_samples()

        assert list(samples) == ["z", "b", "a"]
        assert [sample.id for sample in samples.values()] == ["z", "b", "a"]
        assert samples["a"].messages == [{"from": "nameless"}]

    def test_a_name_is_taken_once(self) -> None:
        context = RolloutContext()
        context.register_sample_source("a", first := Fixed())

        with pytest.raises(ValueError, match="'a' already exists"):
            context.register_sample_source("a", Fixed())
        assert context.sample_sources == {"a": first}

    async def test_something_else_than_a_sample_is_refused_by_name(self) -> None:
        class Odd:
            async def get_sample(self) -> dict[str, str]:
                return {}

        context = RolloutContext()
        context.register_sample_source("odd", Odd())

        with pytest.raises(TypeError, match="'odd' gave dict"):
            await context.get_samples()

    async def test_the_single_sample_contract(self) -> None:
        context = RolloutContext()
        assert context.sample_source is None
        assert await context.get_sample() is None

        context.set_sample_source(source := Nameless())

        assert context.sample_source is source
        sample = await context.get_sample()
        assert sample is not None
        assert sample.id == "main"
        with pytest.raises(ValueError, match="already exists"):
            context.set_sample_source(Nameless())

    async def test_several_sources_have_no_single_sample(self) -> None:
        context = RolloutContext(sample_sources={"a": Fixed(), "b": Fixed()})

        with pytest.raises(ValueError, match="'a', 'b'"):
            _ = context.sample_source
        with pytest.raises(ValueError, match="'a', 'b'"):
            await context.get_sample()


class TestGraderContext:
    def test_samples_are_rewarded_by_id(self) -> None:
        ctx = GraderContext("42", {"a": RolloutSample(id="a"), "b": RolloutSample(id="b")})

        ctx.set_sample_reward("b", 0.5)

        assert ctx.label == "42"
        assert [sample.reward for sample in ctx.get_samples().values()] == [None, 0.5]

    def test_an_unknown_id_is_refused_and_the_known_ones_are_named(self) -> None:
        ctx = GraderContext(samples={"a": RolloutSample(id="a")})

        with pytest.raises(ValueError, match=r"no sample 'x' .* 'a'"):
            ctx.set_sample_reward("x", 1.0)

    @pytest.mark.parametrize("reward", [float("nan"), float("inf"), "good"])
    def test_a_reward_that_is_no_number_is_refused_where_it_is_set(self, reward: float) -> None:
        ctx = GraderContext(samples={"a": RolloutSample(id="a")})

        with pytest.raises(ValueError, match="reward"):
            ctx.set_sample_reward("a", reward)

    def test_the_only_sample_is_rewarded_without_its_id(self) -> None:
        for ctx in (
            GraderContext(sample=RolloutSample(id="a")),
            GraderContext(samples={"a": RolloutSample(id="a")}),
        ):
            ctx.set_reward("0.5")
            assert ctx.sample is ctx.samples["a"]
            assert ctx.samples["a"].reward == 0.5

    def test_no_sample_cannot_be_rewarded(self) -> None:
        assert GraderContext().sample is None
        with pytest.raises(ValueError, match="no sample to reward"):
            GraderContext().set_reward(1.0)

    def test_several_samples_are_named_with_the_method_to_use(self) -> None:
        ctx = GraderContext(samples={"a": RolloutSample(id="a"), "b": RolloutSample(id="b")})

        with pytest.raises(ValueError, match=r"'a', 'b'.*set_sample_reward"):
            ctx.set_reward(1.0)
        with pytest.raises(ValueError, match="'a', 'b'"):
            _ = ctx.sample

    def test_sample_and_samples_exclude_each_other(self) -> None:
        with pytest.raises(ValueError, match="not both"):
            GraderContext(samples={"a": RolloutSample()}, sample=RolloutSample())
