"""Identifiers, import paths, rewards of whole rollouts, slots."""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath

import pytest

from osmosis_ai.rollout import GraderConfig, RolloutSample
from osmosis_ai.rollout.utils.concurrency import ConcurrencyLimiter
from osmosis_ai.rollout.utils.identifiers import (
    ensure_single_path_segment,
    is_single_path_segment,
)
from osmosis_ai.rollout.utils.imports import resolve_object, to_import_path
from osmosis_ai.rollout.utils.rewards import (
    validate_sample_has_reward,
    validate_samples_have_rewards,
)

some_config = GraderConfig(name="some")


class Outer:
    class Inner: ...


class TestIdentifiers:
    @pytest.mark.parametrize("value", ["a", "row-1", "规划", "a b", "...", "x" * 255, "a.b", "~"])
    def test_one_safe_path_segment_is_returned(self, value: str) -> None:
        assert ensure_single_path_segment(value) == value
        assert PurePosixPath("folder", value).name == value

    @pytest.mark.parametrize(
        "value",
        [
            "",
            ".",
            "..",
            "a/b",
            "/",
            "a\\b",
            "a\0b",
            "a\nb",
            "a\x7f",
            " a",
            "a ",
            "é" * 128,
            "\ud800",
        ],
    )
    def test_anything_else_is_refused_and_named(self, value: str) -> None:
        assert not is_single_path_segment(value)
        with pytest.raises(ValueError, match=r"sample id .* is not one safe path segment"):
            ensure_single_path_segment(value, label="sample id")


class TestImportPaths:
    @pytest.mark.parametrize("thing", [Outer, Outer.Inner, some_config, is_single_path_segment])
    def test_a_path_leads_back_to_its_object(self, thing: object) -> None:
        assert resolve_object(to_import_path(thing)) is thing

    def test_what_is_no_text_is_returned_as_it_is(self) -> None:
        assert resolve_object(Outer) is Outer
        assert resolve_object(None) is None

    @pytest.mark.parametrize("path", ["json.loads", "", ":loads", "json:"])
    def test_a_path_without_a_colon_is_refused(self, path: str) -> None:
        with pytest.raises(ValueError, match="'module:attr'"):
            resolve_object(path)

    def test_a_missing_attribute_is_an_import_error(self) -> None:
        with pytest.raises(ImportError, match="'json' has no 'nothing'"):
            resolve_object("json:nothing")
        with pytest.raises(ImportError):
            resolve_object("no_such_module_at_all:x")

    def test_what_cannot_be_imported_again_has_no_path(self) -> None:
        class Local: ...

        with pytest.raises(ValueError, match="top of its module"):
            to_import_path(Local)
        with pytest.raises(ValueError, match="no import path"):
            to_import_path(object())


class TestRewardsOfARollout:
    def test_every_sample_has_a_reward_or_is_removed(self) -> None:
        validate_samples_have_rewards(
            {
                "a": RolloutSample(id="a", reward=0.0),
                "b": RolloutSample(id="b", remove_sample=True),
            }
        )
        validate_sample_has_reward(RolloutSample(id="a", reward=0.0))

    def test_all_that_have_none_are_named(self) -> None:
        with pytest.raises(ValueError, match="'a', 'c'"):
            validate_samples_have_rewards(
                {
                    "a": RolloutSample(id="a"),
                    "b": RolloutSample(id="b", reward=1.0),
                    "c": RolloutSample(id="c"),
                }
            )
        with pytest.raises(ValueError, match="'a' has no reward"):
            validate_sample_has_reward(RolloutSample(id="a"))

    def test_no_sample_at_all_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="no sample to reward"):
            validate_samples_have_rewards({})
        with pytest.raises(ValueError, match="no sample to reward"):
            validate_sample_has_reward(None)


class TestLimiter:
    async def test_it_counts_who_runs_and_who_waits(self) -> None:
        limiter = ConcurrencyLimiter(max_concurrent=1)

        async def hold() -> None:
            async with limiter.acquire():
                await release.wait()

        release = asyncio.Event()
        tasks = [asyncio.create_task(hold()) for _ in range(3)]
        await asyncio.sleep(0)
        assert limiter.snapshot() == {"max_concurrent": 1, "queued": 2, "running": 1}
        tasks[1].cancel()
        release.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert limiter.snapshot() == {"max_concurrent": 1, "queued": 0, "running": 0}

    async def test_without_a_limit_nobody_waits(self) -> None:
        limiter = ConcurrencyLimiter(max_concurrent=None)
        async with limiter.acquire(), limiter.acquire():
            assert limiter.snapshot() == {"max_concurrent": None, "queued": 0, "running": 2}

    async def test_a_slot_is_given_back_after_an_error(self) -> None:
        limiter = ConcurrencyLimiter(max_concurrent=1)
        with pytest.raises(KeyError):
            async with limiter.acquire():
                raise KeyError
        async with limiter.acquire():
            assert limiter.running == 1

    def test_a_limit_below_one_is_refused(self) -> None:
        with pytest.raises(ValueError, match="max_concurrent is 0"):
            ConcurrencyLimiter(max_concurrent=0)
