"""Flags that many commands take, in groups: a command asks for a group and gets one value."""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_type_hints

import typer

from osmosis_store.conditions import parse_meta
from osmosis_store.records import Selection

__all__ = [
    "DEBUG_FLAG",
    "JSON_FLAG",
    "SelectionFlags",
    "StoreFlags",
    "ViewFlags",
    "command",
]

JSON_FLAG, DEBUG_FLAG = "--json", "--debug"

# The biggest that a database takes.
MAX_INTEGER = 2**63 - 2

_AGO = re.compile(r"(\d+)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_TIME_HELP = "an ISO time (local unless it has a zone), or as 30m, 12h, 7d: so long ago"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreFlags:
    """Which store, and how the outcome is told."""

    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="sqlite:///path or postgresql://…; without it OSMOSIS_STORE_URL, then "
            ".osmosis/rollouts.db.",
        ),
    ] = None
    as_json: Annotated[
        bool, typer.Option(JSON_FLAG, help="Print one JSON object, also for an error.")
    ] = False
    debug: Annotated[bool, typer.Option(DEBUG_FLAG, help="Show the traceback of an error.")] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViewFlags:
    """How people are shown what was found."""

    wide: Annotated[
        bool, typer.Option("--wide", help="Cut nothing to the terminal's width; as in a pipe.")
    ] = False
    utc: Annotated[bool, typer.Option("--utc", help="Show times in UTC, not local.")] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionFlags:
    """Which rollouts are meant: each condition that is given must hold.

    Those on samples hold together for one of the rollout's samples.
    """

    eval_run: Annotated[
        str | None, typer.Option("--eval-run", metavar="ID", help="Of this eval run.")
    ] = None
    rollout: Annotated[
        list[str] | None,
        typer.Option("--rollout", metavar="ID", help="This rollout; may be given many times."),
    ] = None
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="running, success, failure, cancelled, crashed or open.",
        ),
    ] = None
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help=f"Started then or after: {_TIME_HELP}."),
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Started before: as --since.")
    ] = None
    workflow: Annotated[
        str | None, typer.Option("--workflow", metavar="NAME", help="Of this module:Class.")
    ] = None
    label: Annotated[
        str | None, typer.Option("--label", metavar="TEXT", help="With exactly this label.")
    ] = None
    reward: Annotated[
        str | None,
        typer.Option(
            "--reward",
            metavar="RANGE",
            help="A sample's newest reward is so: '<0.5', '>=1', '=0', '!=0' or 0.2..0.8.",
        ),
    ] = None
    graded_by: Annotated[
        str | None,
        typer.Option(
            "--graded-by",
            metavar="GRADER",
            help="Graded by this: a grading run's id, module:Class, Class, or 8 or more characters "
            "of the code digest.",
        ),
    ] = None
    ungraded_by: Annotated[
        str | None,
        typer.Option("--ungraded-by", metavar="GRADER", help="Not graded by this: as --graded-by."),
    ] = None
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="NAME", help="Called this tool.")
    ] = None
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            metavar="TEXT",
            help="An item says this: A to Z in either case, all else exactly.",
        ),
    ] = None
    meta: Annotated[
        list[str] | None,
        typer.Option(
            "--meta",
            metavar="KEY=VALUE",
            help="The rollout's metadata has this value, as JSON or as text; nested keys with "
            "dots. May be given many times.",
        ),
    ] = None
    sample: Annotated[
        str | None,
        typer.Option("--sample", metavar="ID", help="Has this sample; only it is meant."),
    ] = None

    def to_selection(self) -> Selection:
        """Return the conditions as the store takes them.

        Raises:
            InvalidSelection: A value has no meaning.
            typer.BadParameter: A time cannot be read.
        """
        return Selection(
            eval_run=self.eval_run,
            rollout=tuple(self.rollout or ()),
            status=self.status,
            since=_to_time("--since", self.since),
            until=_to_time("--until", self.until),
            workflow=self.workflow,
            label=self.label,
            reward=self.reward,
            graded_by=self.graded_by,
            ungraded_by=self.ungraded_by,
            tool=self.tool,
            text=self.text,
            meta=tuple(parse_meta(one) for one in self.meta or ()),
            sample=self.sample,
        )


def _to_time(flag: str, text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    try:
        if ago:
            length = dt.timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]])
            return dt.datetime.now(dt.UTC) - length
        return dt.datetime.fromisoformat(text).astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is no time: give {_TIME_HELP}", param_hint=flag
        ) from None


def command(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command; a parameter of a flag group's type stands for that group's flags."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name)(_spread(function))
        return function

    return register


def _spread(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with a parameter for each flag, as Typer reads commands."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {
        name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)
    }
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(function).parameters.values():
        if one.name in groups:
            parameters += _to_parameters(groups[one.name])
        else:
            parameters.append(
                one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name])
            )

    def run(**values: Any) -> None:
        _check_integers(values)
        gathered = {
            name: group(**{one.name: values.pop(one.name) for one in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        function(**values, **gathered)

    run.__doc__, run.__name__ = function.__doc__, function.__name__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # for Typer
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _check_integers(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            flag = f"--{name.replace('_', '-')}"
            raise typer.BadParameter("the number is too big", param_hint=flag)


def _to_parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=hints[one.name],
        )
        for one in dataclasses.fields(group)
    ]
