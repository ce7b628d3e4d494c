"""What both scripts do around a command: errors as text or JSON, exit codes, quiet pipes."""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import typer

from osmosis_store.cli.flags import DEBUG_FLAG, JSON_FLAG
from osmosis_store.cli.output import print_json
from osmosis_store.cli.streams import OutputFailed, lend_streams

__all__ = ["new_group", "new_script", "run"]

# Typer ships its own Click from 0.26 on, and uses the installed one before that.
USAGE_ERROR: Any = typer.BadParameter.__base__
INTERRUPTED, BROKEN_PIPE = 130, 141


def new_group(help_text: str) -> typer.Typer:
    """Return a group of commands: plain help, and no local variables in a traceback."""
    return typer.Typer(
        help=help_text,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def new_script(help_text: str, version: str) -> typer.Typer:
    """Return a script's commands, with a `--version` that prints the given line."""
    app = new_group(help_text)

    def print_version(wanted: bool) -> None:
        if wanted:
            print(version)
            raise typer.Exit

    @app.callback()
    def take_global_flags(
        _version: bool = typer.Option(
            False, "--version", callback=print_version, is_eager=True, help="Print the version."
        ),
    ) -> None:
        pass

    return app


def run(app: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a script and return its exit code.

    Args:
        name: The script's name in help and errors.
        arguments: Without the script's name; None: those of this process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json, debug = JSON_FLAG in given, DEBUG_FLAG in given
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with lend_streams():
        try:
            code = _invoke(app, name, given)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            _drop_output()
            return BROKEN_PIPE
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                traceback.print_exc()
            return _tell(error, as_json=as_json)


def _open_closed_streams() -> None:
    """Let what is printed go nowhere where a stream was closed, and no file take its number."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 # open to the process's end
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def _drop_output() -> None:
    """Give up what is still buffered: it has nowhere to go, and Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(error: BaseException, *, as_json: bool) -> int:
    """Print an error and return its exit code."""
    if isinstance(error, OutputFailed):
        _drop_output()
        _print_error(f"standard output cannot be written: {error.strerror}", "")
        return 1
    envelope, code = _to_envelope(error)
    if as_json:
        try:
            print_json({"error": {key: envelope[key] for key in ("code", "message", "details")}})
        except OSError:
            _drop_output()
        else:
            return code
    _print_error(envelope["message"], envelope["hint"])
    return code


def _invoke(app: typer.Typer, name: str, arguments: list[str]) -> int:
    if "--help" not in arguments:
        _say_second_owner()
    for argument in arguments:
        if not argument.isascii() and argument != argument.encode("utf-8", "replace").decode():
            raise USAGE_ERROR(f"{argument!r} is not UTF-8 text")
    command: Any = typer.main.get_command(app)
    try:
        with command.make_context(name, arguments) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return 0


def _say_second_owner() -> None:
    """Show what the ownership check warns of as one of our lines."""
    from osmosis_store.ownership import warn_of_second_owner

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_of_second_owner()
    for one in found:
        print(f"warning: {one.message}", file=sys.stderr)


def _to_envelope(error: BaseException) -> tuple[dict[str, Any], int]:
    from osmosis_ai.eval.errors import EvalError
    from osmosis_store.errors import StoreError

    if isinstance(error, StoreError | EvalError):
        return _envelope(error.code, str(error), error.hint, error.details), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        hint = "what was stored is kept; the same command goes on from there"
        return _envelope("interrupted", "interrupted", hint), INTERRUPTED
    if isinstance(error, USAGE_ERROR):
        return _usage_envelope(error), 2
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return _envelope("os_error", f"{error.strerror}{where}", ""), 1
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = f"this should not happen; {DEBUG_FLAG} shows where it did"
    return _envelope("internal_error", message, hint), 1


def _usage_envelope(error: Any) -> dict[str, Any]:
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        return _envelope("usage_error", "a command is missing", message)
    path = error.ctx.command_path if error.ctx is not None else ""
    hint = f"see `{path} --help`" if path else ""
    if type(error).__name__ == "NoSuchOption" and hasattr(error.ctx.command, "commands"):
        hint = f"flags come after the command's name; {hint}"
    return _envelope("usage_error", message[:1].lower() + message[1:].rstrip("."), hint)


def _envelope(
    code: str, message: str, hint: str, details: dict[str, Any] | None = None
) -> dict[str, Any]:
    named = {"hint": hint} if hint else {}
    return {"code": code, "message": message, "hint": hint, "details": {**(details or {}), **named}}


def _print_error(message: str, hint: str) -> None:
    from osmosis_store.cli.text import to_visible

    first, *more = to_visible(message).splitlines() or [""]
    print(f"error: {first}", file=sys.stderr)
    for line in [*more, *to_visible(hint).splitlines()]:
        print(f"  {line}" if line else "", file=sys.stderr)
