from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.eval.config import EvalConfig, load_config
from osmosis_ai.eval.errors import ConfigError


def config_path(workspace: Path) -> Path:
    return workspace / "configs/eval/adder.toml"


def load(workspace: Path, extra: str = "", **overrides: Any) -> EvalConfig:
    path = config_path(workspace)
    path.write_text(path.read_text() + extra)
    return load_config(path, overrides)


def edit(workspace: Path, old: str, new: str) -> Path:
    path = config_path(workspace)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return path


def test_defaults_are_the_contracts(workspace: Path) -> None:
    config = load(workspace)

    assert (config.n, config.batch_size, config.pass_threshold) == (1, 1, 1.0)
    assert (config.agent_workflow_timeout_s, config.grader_timeout_s) == (450.0, 150.0)
    assert (config.limit, config.offset, config.fresh, config.retry_failed) == (
        None,
        0,
        False,
        False,
    )
    assert (config.log_samples, config.quiet, config.debug) == (False, False, False)
    assert config.output_path is None


def test_paths_are_found_in_the_workspace_whatever_the_current_folder_is(workspace: Path) -> None:
    config = load(workspace)

    assert config.workspace == workspace
    assert config.entrypoint == workspace / "rollouts/adder/main.py"
    assert config.dataset == workspace / "data/adder.jsonl"
    assert config.script == workspace / "policies/adder.jsonl"
    assert config.store_url == f"sqlite:///{workspace}/.osmosis/rollouts.db"
    assert config.shorten(config.dataset) == "data/adder.jsonl"


def test_flags_win_over_the_file_and_an_absent_flag_does_not(workspace: Path) -> None:
    config = load(workspace, "[runs]\nbatch_size = 3\nn = 2\n", batch_size=8, limit=5, offset=None)

    assert (config.batch_size, config.n, config.limit, config.offset) == (8, 2, 5, 0)


def test_a_flags_paths_count_from_the_current_folder(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    config = load(workspace, output_path="out", store_url="sqlite:///here.db")

    assert (config.output_path, config.store_url) == (tmp_path / "out", "sqlite:///here.db")


def test_the_files_own_paths_count_from_the_workspace(workspace: Path) -> None:
    config = load(workspace, '[output]\noutput_path = "out"\n[store]\nurl = "sqlite:///kept.db"\n')

    assert config.output_path == workspace / "out"
    assert config.store_url == f"sqlite:///{workspace}/kept.db"


@pytest.mark.parametrize("url", ["postgresql://db/rollouts", "sqlite:////srv/rollouts.db"])
def test_an_absolute_store_url_stays_as_it_is(workspace: Path, url: str) -> None:
    assert load(workspace, f'[store]\nurl = "{url}"\n').store_url == url


def test_a_pass_threshold_of_zero_is_honoured(workspace: Path) -> None:
    assert load(workspace, "[runs]\npass_threshold = 0.0\n").pass_threshold == 0.0


@pytest.mark.parametrize(
    ("extra", "key", "words"),
    [
        ("[runs]\nbatchsize = 3\n", "[runs] batchsize", "batch_size"),
        ("[run]\nn = 3\n", "[run]", "runs"),
        ("[runs]\nn = 0\n", "[runs] n", "greater than or equal to 1"),
        ("[runs]\nn = true\n", "[runs] n", "integer"),
        ("[runs]\npass_threshold = nan\n", "[runs] pass_threshold", "finite"),
        ("[timeouts]\ngrader_timeout_s = 0\n", "[timeouts] grader_timeout_s", "greater than 0"),
        ("[output]\nquiet = 'yes'\n", "[output] quiet", "boolean"),
    ],
)
def test_an_unusable_key_is_named(workspace: Path, extra: str, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(workspace, extra)

    assert caught.value.key == key
    assert str(config_path(workspace)) in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("line", ['rollout = "adder"\n', 'model = "scripted"\n'])
def test_a_missing_required_key_is_named(workspace: Path, line: str) -> None:
    path = edit(workspace, line, "")

    with pytest.raises(ConfigError, match="is required") as caught:
        load_config(path)
    assert caught.value.key is not None
    assert line.split()[0] in caught.value.key


def test_the_platforms_layout_is_told_apart(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="platform's layout") as caught:
        load(workspace, "[experiment]\nrollout = 'adder'\n")

    assert "[eval] rollout, entrypoint, dataset" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('"main.py"', '"../adder/main.py"', "[eval] entrypoint"),
        ('"data/adder.jsonl"', '"/etc/passwd"', "[eval] dataset"),
        ('"policies/adder.jsonl"', '"policies/../policies/adder.jsonl"', "[llm] script"),
    ],
)
def test_a_path_that_leaves_its_folder_is_refused(
    workspace: Path, old: str, new: str, key: str
) -> None:
    path = edit(workspace, old, new)

    with pytest.raises(ConfigError, match="leaves its folder") as caught:
        load_config(path)
    assert caught.value.key == key


def test_a_link_that_leaves_its_folder_is_refused(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.jsonl").write_text('{"user_prompt": "x"}\n')
    (workspace / "data/adder.jsonl").unlink()
    (workspace / "data/adder.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")

    with pytest.raises(ConfigError, match="leaves its folder"):
        load(workspace)


@pytest.mark.parametrize("name", ["Adder", "1adder", "ad_der", "../adder", ""])
def test_a_rollouts_name_has_one_shape(workspace: Path, name: str) -> None:
    path = edit(workspace, 'rollout = "adder"', f'rollout = "{name}"')

    with pytest.raises(ConfigError, match=r"\[eval\] rollout"):
        load_config(path)


def test_a_missing_script_file_is_named(workspace: Path) -> None:
    (workspace / "policies/adder.jsonl").unlink()

    with pytest.raises(ConfigError, match=r"\[llm\] script: no file policies/adder.jsonl"):
        load(workspace)


def test_the_scripted_model_needs_a_script(workspace: Path) -> None:
    path = edit(workspace, 'script = "policies/adder.jsonl"\n', "")

    with pytest.raises(ConfigError, match='is required with model = "scripted"'):
        load_config(path)


def test_another_model_runs_from_the_same_file(workspace: Path) -> None:
    path = edit(workspace, 'model = "scripted"', 'model = "openai/gpt-5-mini"')

    assert load_config(path).script is None


def test_a_config_outside_its_folder_is_refused(workspace: Path) -> None:
    moved = config_path(workspace).rename(workspace / "adder.toml")

    with pytest.raises(ConfigError, match="configs/eval/"):
        load_config(moved)


def test_a_mistyped_config_name_lists_its_neighbours(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="no such file") as caught:
        load_config(workspace / "configs/eval/ader.toml")

    assert "adder.toml" in (caught.value.hint or "")


def test_text_that_is_not_toml_is_an_error_with_its_line(workspace: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not TOML.*line"):
        load(workspace, "[runs\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"[runs]\nn = {'9' * 5000}\n", r"is not TOML: Exceeds the limit .* has 5000 digits$"),
        (f"[runs]\nn = {'[' * 5000}\n", "is nested too deep"),
        (f"[runs]\nn = {10**30}\n", r"\[runs\] n: "),
        (f"[runs]\nbatch_size = {2**63}\n", r"\[runs\] batch_size: "),
        ('[store]\nurl = "sqlite:///a\\u0000b"\n', r"\[store\] url: holds a NUL character"),
        ('[output]\noutput_path = "a\\u0000b"\n', r"output_path: holds a NUL character"),
        ("[[runs]]\nn = 1\n", r"\[runs\]: is no table: write \[runs\] once"),
        ("store = 5\n", r"\[store\]: is no table"),
    ],
)
def test_what_no_value_can_be_is_named(workspace: Path, text: str, problem: str) -> None:
    path = config_path(workspace)
    path.write_text(f"{text}{path.read_text()}" if "store = 5" in text else path.read_text() + text)

    with pytest.raises(ConfigError, match=problem):
        load_config(path)


@pytest.mark.parametrize("key", ["rollout", "entrypoint", "dataset"])
@pytest.mark.parametrize("name", ["x" * 300, "a\\u0000b", "a/" * 5000 + "b"], ids=len)
def test_a_name_that_no_file_can_have_is_named(workspace: Path, key: str, name: str) -> None:
    path = config_path(workspace)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(f'{key} = "{name}"' if key in one else one for one in lines[:5]))
    path.write_text(f"{path.read_text()}\n" + "\n".join(lines[5:]) + "\n")

    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.key == f"[eval] {key}"


@pytest.mark.parametrize("place", ["data/rows.jsonl", "x" * 300])
def test_a_place_that_cannot_hold_results_is_refused_before_anything_runs(
    workspace: Path, place: str
) -> None:
    (workspace / "data").mkdir(exist_ok=True)
    (workspace / "data/rows.jsonl").touch()

    with pytest.raises(ConfigError, match=r"\[output\] output_path: .* cannot be a folder"):
        load(workspace, f'[output]\noutput_path = "{place}"\n')
