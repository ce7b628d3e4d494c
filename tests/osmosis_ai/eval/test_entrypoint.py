import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from osmosis_ai.eval.entrypoint import Entrypoint, load_entrypoint
from osmosis_ai.eval.errors import EntrypointError

HEAD = """\
from abc import abstractmethod
from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, Grader, GraderConfig
"""
WORKFLOW = """\
class Adder(AgentWorkflow):
    async def run(self, ctx):
        return None
"""
GRADER = """\
class Right(Grader):
    async def grade(self, ctx):
        return None
"""


@pytest.fixture(autouse=True)
def import_state() -> Iterator[None]:
    """Leave no test's modules importable for the next one."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def load(workspace: Path, *parts: str, **helpers: str) -> Entrypoint:
    folder = workspace / "rollouts/adder"
    (folder / "main.py").write_text(HEAD + "".join(parts))
    for name, text in helpers.items():
        (folder / f"{name}.py").write_text(text)
    return load_entrypoint(folder / "main.py", rollout_dir=folder, name="rollouts/adder/main.py")


def test_workflow_grader_and_configs_are_found(workspace: Path) -> None:
    entrypoint = load(
        workspace,
        WORKFLOW,
        GRADER,
        "w = AgentWorkflowConfig(name='w')\n",
        "g = GraderConfig(name='g')\n",
    )

    assert entrypoint.workflow_path == "rollouts.adder.main:Adder"
    assert entrypoint.grader_path == "rollouts.adder.main:Right"
    assert entrypoint.workflow_config is not None
    assert entrypoint.workflow_config.name == "w"
    assert entrypoint.grader_config is not None
    assert entrypoint.grader_config.name == "g"


def test_grader_and_configs_may_be_missing(workspace: Path) -> None:
    entrypoint = load(workspace, WORKFLOW)

    assert entrypoint.grader is None
    assert entrypoint.grader_path is None
    assert entrypoint.workflow_config is None


def test_abstract_classes_and_second_names_do_not_count(workspace: Path) -> None:
    base = "class Base(AgentWorkflow):\n    @abstractmethod\n    def tool(self): ...\n"

    assert load(workspace, base, WORKFLOW, "Alias = Adder\n").workflow.__name__ == "Adder"


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([], "defines no AgentWorkflow"),
        (
            [WORKFLOW, WORKFLOW.replace("Adder", "Other")],
            "2 concrete AgentWorkflow classes: Adder, Other",
        ),
        ([WORKFLOW, GRADER, GRADER.replace("Right", "Wrong")], "2 concrete Grader classes"),
        (
            [WORKFLOW, *(f"{n} = AgentWorkflowConfig(name='{n}')\n" for n in "ab")],
            "2 AgentWorkflowConfig instances: a, b",
        ),
        ([WORKFLOW.replace("async ", "")], r"Adder\.run is an ordinary function"),
        ([WORKFLOW, GRADER.replace("async ", "")], r"Right\.grade is an ordinary function"),
        (["1 / 0\n"], "cannot be imported: ZeroDivisionError"),
        (["def broken(:\n"], "cannot be imported: SyntaxError"),
        (["raise SystemExit(3)\n"], "cannot be imported: SystemExit"),
        (["import no_such_module_here\n"], "No module named 'no_such_module_here'"),
    ],
)
def test_an_unusable_entry_point_is_an_error_that_names_it(
    workspace: Path, parts: list[str], problem: str
) -> None:
    with pytest.raises(EntrypointError, match=problem) as caught:
        load(workspace, *parts)

    assert "rollouts/adder/main.py" in str(caught.value)


def test_a_method_that_a_decorator_wraps_may_give_something_to_await(workspace: Path) -> None:
    wrap = "import functools\ndef wrap(f):\n    return functools.wraps(f)(lambda *a: f(*a))\n"
    workflow = WORKFLOW.replace("    async", "    @wrap\n    async")

    assert load(workspace, wrap, workflow).workflow.__name__ == "Adder"


def test_modules_beside_the_entry_point_are_importable_also_while_it_runs(workspace: Path) -> None:
    load(workspace, "import adder_tools\n", WORKFLOW, adder_tools="VALUE = 1\n", adder_late="")

    assert sys.modules["rollouts.adder.main"].adder_tools.VALUE == 1
    __import__("adder_late")


def test_a_second_rollout_gets_its_own_modules(workspace: Path, tmp_path: Path) -> None:
    load(workspace, "import adder_tools\n", WORKFLOW, adder_tools="VALUE = 1\n")
    other = tmp_path / "other/rollouts/adder"
    other.mkdir(parents=True)
    (other / "main.py").write_text(HEAD + "import adder_tools\n" + WORKFLOW)
    (other / "adder_tools.py").write_text("VALUE = 2\n")

    load_entrypoint(other / "main.py", rollout_dir=other, name="main.py")

    assert sys.modules["rollouts.adder.main"].adder_tools.VALUE == 2


def test_a_module_that_another_one_hides_is_an_error(workspace: Path) -> None:
    with pytest.raises(EntrypointError, match=r"json.py beside it cannot be imported"):
        load(workspace, WORKFLOW, json="")
