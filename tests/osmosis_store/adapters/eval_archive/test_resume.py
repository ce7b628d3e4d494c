import asyncio
from collections.abc import Callable

import pytest

from osmosis_ai.eval.errors import EvalRunChanged
from osmosis_ai.eval.events import EvalEvent, RolloutEnded, RolloutRegraded, RunOpened
from osmosis_store.database import Database
from osmosis_store.queries.rollouts import fetch_eval_runs

from .reading import counts, grades_of, gradings_of, rollouts_of, states
from .workspace import CONFIG_PATH, MAIN_PATH, Workspace, row


async def test_every_row_runs_once_and_the_same_command_runs_nothing_again(
    workspace: Workspace, database: Database, forbid_model: Callable[[], None]
) -> None:
    first = await workspace.run(database)
    ran = workspace.take_ran()
    forbid_model()
    second = await workspace.run(database)

    assert (ran, workspace.take_ran()) == (["1", "2", "3"], [])
    assert (counts(first), counts(second)) == ((3, 0, 0), (0, 3, 0))
    assert (first.resumed, second.resumed) == (False, True)
    assert second.eval_run_id == first.eval_run_id
    assert (first.passed_count, second.passed_count) == (2, 2)
    assert first.rewards == second.rewards
    assert await gradings_of(database) == ["rollout"]
    assert len(await grades_of(database)) == 3


async def test_what_is_about_to_happen_and_what_happened_is_told(
    workspace: Workspace, database: Database
) -> None:
    events: list[EvalEvent] = []
    await workspace.run(database, {"limit": 2})
    workspace.edit(MAIN_PATH, "== ctx.label)", "!= ctx.label)")
    report = await workspace.run(database, on_event=events.append)

    first = events[0]
    assert isinstance(first, RunOpened)
    assert (first.eval_run_id, first.resumed, first.concurrency) == (report.eval_run_id, True, 4)
    assert first.policy == "scripted (policies/echo.jsonl), no network, no key"
    assert (first.selected_count, first.reused_count) == (3, 2)
    assert (first.regrade_count, first.run_count) == (2, 1)
    assert [type(event) for event in events[1:]] == [RolloutRegraded] * 2 + [RolloutEnded]


async def test_a_rollout_id_names_the_rollout_row_attempt_and_retry(
    workspace: Workspace, database: Database
) -> None:
    workspace.edit(CONFIG_PATH, "[runs]", "[runs]\nn = 2")
    workspace.write_rows([row("raise")])
    await workspace.run(database)
    await workspace.run(database, {"retry_failed": True})

    tails = [one.rollout_id.partition("-")[2] for one in await rollouts_of(database)]
    assert tails == ["echo-0", "echo-0.r1", "echo-0.a1", "echo-0.a1.r1"]


async def test_a_wider_selection_runs_only_what_is_new(
    workspace: Workspace, database: Database
) -> None:
    await workspace.run(database, {"limit": 1, "offset": 1})
    ran = [workspace.take_ran()]
    await workspace.run(database, {"limit": 2})
    ran.append(workspace.take_ran())
    workspace.edit(CONFIG_PATH, "[runs]", "[runs]\nn = 2")
    report = await workspace.run(database, {"offset": 1})
    ran.append(workspace.take_ran())

    assert ran == [["2"], ["1"], ["2", "3", "3"]]
    attempts = [(one.row_index, one.attempt) for one in report.verdicts]
    assert attempts == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert report.pass_at_k == {1: 0.5, 2: 0.5}


async def test_interrupted_rollouts_are_cancelled_and_run_as_the_next_retry(
    workspace: Workspace, database: Database
) -> None:
    workspace.write_rows([row("1", "1"), row("wait 2", "wait 2"), row("wait 3", "wait 3")])
    ended = asyncio.Event()

    def on_event(event: EvalEvent) -> None:
        if isinstance(event, RolloutEnded):
            ended.set()

    task = asyncio.create_task(workspace.run(database, on_event=on_event))
    await ended.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    before = [(one.row_index, one.status) for one in await rollouts_of(database)]
    ran = workspace.take_ran()
    workspace.write("rollouts/echo/go", "")
    report = await workspace.run(database)

    assert before == [(0, "success"), (1, "cancelled"), (2, "cancelled")]
    assert (ran, workspace.take_ran()) == (["1", "wait 2", "wait 3"], ["wait 2", "wait 3"])
    assert (counts(report), report.passed_count) == ((2, 1, 0), 3)
    retries = [(one.row_index, one.retry_no, one.status) for one in await rollouts_of(database)]
    assert retries[3:] == [(2, 0, "cancelled"), (2, 1, "success")]


class TestGraderChanged:
    """Only the grader is another one than that of the stored eval run."""

    async def test_stored_rollouts_are_graded_again_and_no_model_is_started(
        self, workspace: Workspace, database: Database, forbid_model: Callable[[], None]
    ) -> None:
        first = await workspace.run(database)
        workspace.take_ran()
        workspace.edit(MAIN_PATH, "== ctx.label)", "!= ctx.label)")
        forbid_model()
        second = await workspace.run(database)

        assert workspace.take_ran() == []
        assert (counts(second), second.upstream_calls) == ((0, 3, 3), 0)
        assert (first.passed_count, second.passed_count) == (2, 1)
        assert await gradings_of(database) == ["rollout", "regrade"]
        rewards = [(grade.grade_no, grade.reward) for grade in await grades_of(database)]
        assert rewards == [(0, 1.0), (1, 0.0), (0, 1.0), (1, 0.0), (0, 0.0), (1, 1.0)]

    async def test_its_old_grades_count_again_when_it_is_changed_back(
        self, workspace: Workspace, database: Database
    ) -> None:
        first = await workspace.run(database)
        workspace.edit(MAIN_PATH, "== ctx.label)", "!= ctx.label)")
        await workspace.run(database)
        workspace.edit(MAIN_PATH, "!= ctx.label)", "== ctx.label)")
        third = await workspace.run(database)

        assert counts(third) == (0, 3, 0)
        assert third.rewards == first.rewards
        assert len(await grades_of(database)) == 6

    async def test_a_comment_is_no_change(self, workspace: Workspace, database: Database) -> None:
        await workspace.run(database)
        workspace.edit(MAIN_PATH, "class Exact", "# compares\nclass Exact")

        assert counts(await workspace.run(database)) == (0, 3, 0)

    async def test_rollouts_that_were_never_graded_get_a_grading_of_their_own(
        self, workspace: Workspace, database: Database, forbid_model: Callable[[], None]
    ) -> None:
        source = (workspace.root / MAIN_PATH).read_text()
        workspace.write(MAIN_PATH, source.partition("class Exact")[0])
        ungraded = await workspace.run(database)
        workspace.write(MAIN_PATH, source)
        forbid_model()
        report = await workspace.run(database)

        assert (states(ungraded), ungraded.rewards) == (["ungraded"] * 3, None)
        assert ungraded.verdicts[0].not_graded == "there is no grader"
        assert (counts(report), report.passed_count) == ((0, 3, 3), 2)
        assert await gradings_of(database) == ["rollout"]


class TestOtherPartsChanged:
    """An eval run is not continued with other parts than it began with."""

    async def refused(self, workspace: Workspace, database: Database) -> list[str]:
        before = len(await rollouts_of(database))
        workspace.take_ran()
        with pytest.raises(EvalRunChanged) as caught:
            await workspace.run(database)
        assert workspace.take_ran() == []
        assert len(await rollouts_of(database)) == before
        assert "--fresh" in caught.value.hint
        return caught.value.changed

    async def test_a_changed_workflow_is_named(
        self, workspace: Workspace, database: Database
    ) -> None:
        await workspace.run(database)
        workspace.edit(MAIN_PATH, '"content": text}', '"content": text.strip()}')

        assert await self.refused(workspace, database) == ["workflow"]

    async def test_a_changed_dataset_is_named(
        self, workspace: Workspace, database: Database
    ) -> None:
        await workspace.run(database)
        workspace.write_rows([row("1", "one")])

        assert await self.refused(workspace, database) == ["dataset"]

    async def test_a_changed_model_is_named(self, workspace: Workspace, database: Database) -> None:
        await workspace.run(database)
        workspace.edit(CONFIG_PATH, '"scripted"', '"openai/x"')

        assert await self.refused(workspace, database) == ["model"]

    async def test_a_changed_script_is_a_changed_model_and_all_changes_are_named(
        self, workspace: Workspace, database: Database
    ) -> None:
        await workspace.run(database)
        workspace.write("policies/echo.jsonl", '{"replies": [{"content": "other"}]}\n')
        workspace.write_rows([row("9")])

        assert await self.refused(workspace, database) == ["dataset", "model"]

    async def test_a_refused_command_does_not_keep_the_eval_run(
        self, workspace: Workspace, database: Database
    ) -> None:
        await workspace.run(database)
        text = (workspace.root / MAIN_PATH).read_text()
        workspace.edit(MAIN_PATH, '"content": text}', '"content": text.strip()}')
        await self.refused(workspace, database)
        workspace.write(MAIN_PATH, text)

        assert counts(await workspace.run(database)) == (0, 3, 0)

    async def test_fresh_starts_anew_and_the_old_one_stays(
        self, workspace: Workspace, database: Database
    ) -> None:
        old = await workspace.run(database)
        workspace.write_rows([row("9", "9")])
        new = await workspace.run(database, {"fresh": True})
        again = await workspace.run(database)

        assert (new.resumed, counts(new)) == (False, (1, 0, 0))
        assert (again.eval_run_id, counts(again)) == (new.eval_run_id, (0, 1, 0))
        assert len(await rollouts_of(database)) == 4
        runs = await database.read(fetch_eval_runs)
        assert [run.eval_run_id for run in runs] == [new.eval_run_id, old.eval_run_id]
