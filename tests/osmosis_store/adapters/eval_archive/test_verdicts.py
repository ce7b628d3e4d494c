import json
from collections.abc import Callable
from typing import Any

from osmosis_ai.eval.config import Override
from osmosis_store.database import Database

from .reading import counts, grades_of, rollouts_of, states
from .workspace import CONFIG_PATH, MAIN_PATH, Workspace, row

BROKEN = "'the grader broke'"


class TestFailures:
    """A row that fails is counted, the others go on."""

    async def test_a_failed_workflow_is_finished_until_a_retry_is_asked_for(
        self, workspace: Workspace, database: Database
    ) -> None:
        workspace.write_rows([row("raise it", "1"), row("2", "2")])
        first = await workspace.run(database)
        same = await workspace.run(database)
        retried = await workspace.run(database, {"retry_failed": True})

        assert states(first) == ["failed", "graded"]
        assert first.verdicts[0].error == "raise it"
        assert (first.pass_at_k, first.exit_code) == ({1: 0.5}, 0)
        assert (counts(same), counts(retried)) == ((0, 2, 0), (1, 1, 0))
        assert workspace.take_ran() == ["2", "raise it", "raise it"]
        statuses = [(one.retry_no, one.status) for one in await rollouts_of(database)]
        assert statuses == [(0, "failure"), (1, "failure"), (0, "success")]

    async def test_only_when_all_fail_is_the_exit_code_one(
        self, workspace: Workspace, database: Database
    ) -> None:
        workspace.write_rows([row("raise"), row("raise it too")])

        assert (await workspace.run(database)).exit_code == 1

    async def test_a_grader_that_raises_fails_its_row_and_is_not_asked_again(
        self, workspace: Workspace, database: Database
    ) -> None:
        workspace.write_rows([row("1", "break"), row("2", "2")])
        first = await workspace.run(database)
        same = await workspace.run(database)

        assert states(first) == states(same) == ["failed", "graded"]
        assert first.verdicts[0].error == same.verdicts[0].error == f"grader: {BROKEN}"
        assert counts(same) == (0, 2, 0)
        assert first.rewards is not None
        assert first.rewards.mean == 1.0
        found = [(grade.reward, grade.error) for grade in await grades_of(database)]
        assert found == [(None, BROKEN), (1.0, None)]

    async def test_a_retry_grades_again_what_the_grader_failed_on_and_runs_nothing(
        self, workspace: Workspace, database: Database, forbid_model: Callable[[], None]
    ) -> None:
        workspace.write_rows([row("1", "break"), row("2", "2")])
        await workspace.run(database)
        workspace.take_ran()
        forbid_model()
        report = await workspace.run(database, {"retry_failed": True})

        assert (counts(report), workspace.take_ran()) == ((0, 2, 1), [])
        assert [grade.error for grade in await grades_of(database)] == [BROKEN, BROKEN, None]

    async def test_a_grader_has_its_deadline_in_a_regrade_too(
        self, workspace: Workspace, database: Database
    ) -> None:
        await workspace.run(database)
        workspace.edit(CONFIG_PATH, "[runs]", "[timeouts]\ngrader_timeout_s = 0.05\n[runs]")
        grade = "async def grade(self, ctx):"
        workspace.edit(MAIN_PATH, grade, f"{grade}\n        await asyncio.sleep(9)")
        report = await workspace.run(database)

        assert states(report) == ["failed"] * 3
        assert report.verdicts[0].error == "grader: the grader was not done in 0.05 s"
        assert report.exit_code == 1

    async def test_a_workflow_past_its_deadline_has_failed_with_a_timeout(
        self, workspace: Workspace, database: Database
    ) -> None:
        timeouts = "[timeouts]\nagent_workflow_timeout_s = 0.2\n[runs]"
        workspace.edit(CONFIG_PATH, "[runs]", timeouts)
        workspace.write_rows([row("wait"), row("2", "2")])
        report = await workspace.run(database)

        assert states(report) == ["failed", "graded"]
        assert [one.error_category for one in await rollouts_of(database)] == ["timeout", None]

    async def test_a_rollout_without_a_sample_has_failed_in_every_later_command_too(
        self, workspace: Workspace, database: Database
    ) -> None:
        workspace.write_rows([row("samples", "x"), row("samples")])
        reports = [await workspace.run(database), await workspace.run(database)]

        for report in reports:
            assert states(report) == ["failed", "ungraded"]
            assert "no sample" in (report.verdicts[0].error or "")


class TestWhatIsGraded:
    """A label or metadata is needed; a removed sample counts nowhere."""

    async def test_metadata_is_enough_and_nothing_is_not(
        self, workspace: Workspace, database: Database
    ) -> None:
        workspace.write_rows([row("1", metadata={"a": 1}), row("2"), row("3", ""), row("4", "4")])
        report = await workspace.run(database)

        assert states(report) == ["graded", "ungraded", "graded", "graded"]
        assert (report.ungraded_count, report.counted_count) == (1, 3)
        assert report.verdicts[1].not_graded == "the row has neither a label nor metadata"
        assert len(await grades_of(database)) == 3

    async def test_a_removed_sample_is_outside_mean_and_pass_rate(
        self, workspace: Workspace, database: Database
    ) -> None:
        text = "samples main draft"
        workspace.write_rows([row(text, text), row("samples draft", "x")])
        report = await workspace.run(database)

        assert states(report) == ["graded", "removed"]
        assert [verdict.reward for verdict in report.verdicts] == [1.0, None]
        assert (report.removed_sample_count, report.counted_count) == (2, 1)
        assert report.pass_at_k == {1: 1.0}
        assert [grade.removed for grade in await grades_of(database)] == [True, False, True]

    async def test_a_reward_of_zero_passes_a_threshold_of_zero(
        self, workspace: Workspace, database: Database
    ) -> None:
        workspace.edit(CONFIG_PATH, "[runs]", "[runs]\npass_threshold = 0.0")

        assert (await workspace.run(database)).passed_count == 3

    async def test_another_threshold_grades_nothing_again(
        self, workspace: Workspace, database: Database
    ) -> None:
        await workspace.run(database)
        workspace.edit(CONFIG_PATH, "[runs]", "[runs]\npass_threshold = 0.0")
        report = await workspace.run(database)

        assert (counts(report), report.passed_count) == ((0, 3, 0), 3)

    async def test_rewards_at_the_float_limits_are_reported(
        self, workspace: Workspace, database: Database
    ) -> None:
        workspace.edit(
            MAIN_PATH,
            "float(sample.messages[-1]['content'] == ctx.label)".replace("'", '"'),
            "float(ctx.label)",
        )
        workspace.write_rows([row("1", "1.7e308"), row("2", "1.7e308"), row("3", "-1.7e308")])
        rewards = (await workspace.run(database)).rewards

        assert rewards is not None
        assert (rewards.min, rewards.median, rewards.max) == (-1.7e308, 1.7e308, 1.7e308)
        assert 5e307 < rewards.mean < 6e307


class TestResultFiles:
    """`results.json`, and `samples.jsonl` where it is asked for."""

    async def test_the_results_are_the_report(
        self, workspace: Workspace, database: Database
    ) -> None:
        report = await workspace.run(database)

        folder = workspace.root / ".osmosis/results" / report.eval_run_id
        assert (report.results_path, report.samples_path) == (folder / "results.json", None)
        assert [file.name for file in folder.iterdir()] == ["results.json"]
        results = json.loads(report.results_path.read_text())
        assert {**results, "settings": None} == {
            **json.loads(json.dumps(report.to_json())),
            "settings": None,
        }
        assert results["settings"]["config"] == str(workspace.root / CONFIG_PATH)
        assert results["rewards"]["mean"] == 2 / 3
        assert [one["reward"] for one in results["rollouts"]] == [1.0, 1.0, 0.0]

    async def test_each_line_of_samples_is_a_rollout_with_conversation_and_grades(
        self, workspace: Workspace, database: Database
    ) -> None:
        workspace.write_rows([row("samples zeta alpha", "x", metadata={"k": [1]}), row("raise")])
        out = workspace.root / "out"
        await workspace.run(database, {"log_samples": True, "output_path": out})

        good, bad = map(json.loads, (out / "samples.jsonl").read_text().splitlines())
        assert list(good["samples"]) == ["zeta", "alpha"]
        assert good["samples"]["zeta"][-1] == {"role": "assistant", "content": "samples zeta alpha"}
        assert good["grades"]["alpha"] == {"reward": 0.0, "error": None, "removed": False}
        assert (good["row_index"], good["status"], good["label"]) == (0, "success", "x")
        assert good["metadata"] == {"k": [1]}
        assert (bad["row_index"], bad["status"], bad["error"]) == (1, "failure", "raise")

    async def test_a_half_written_line_of_a_killed_command_is_replaced(
        self, workspace: Workspace, database: Database
    ) -> None:
        flags: dict[Override, Any] = {
            "log_samples": True,
            "output_path": workspace.root / "out",
        }
        await workspace.run(database, {**flags, "limit": 2})
        path = workspace.root / "out/samples.jsonl"
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
        await workspace.run(database, flags)

        lines = path.read_bytes().splitlines(keepends=True)
        assert b"".join(lines[:2]) == whole
        assert [json.loads(line)["row_index"] for line in lines] == [0, 1, 2]
