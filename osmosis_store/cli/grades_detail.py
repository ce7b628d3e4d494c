"""Where grades came from, as `grades show` and `grades history` print it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from osmosis_store.cli.detail import tell_grade
from osmosis_store.cli.output import Screen, count, counted, duration, figure
from osmosis_store.cli.tables import format_table
from osmosis_store.cli.text import pad, to_one_line, wrap
from osmosis_store.queries.grades import PastGrade, RunResult
from osmosis_store.records import GradingRunRecord
from osmosis_store.versions import GIT_COMMIT

__all__ = ["format_grading_run", "format_history", "tell_grader"]

_DIGEST_CHARS = 8
_TITLE_WIDTH = 10


def format_grading_run(screen: Screen, run: GradingRunRecord, result: RunResult) -> list[str]:
    """Return the lines that show a grading run, facts that it does not have left out."""
    head = [run.kind, to_one_line(run.grader), _tell_times(screen, run)]
    lines = [screen.paint(run.grading_run_id, "bold") + " · " + " · ".join(head)]
    for title, text in _facts(run, result):
        lines += _format_fact(screen, title, text)
    return lines


def _facts(run: GradingRunRecord, result: RunResult) -> Iterator[tuple[str, str]]:
    versions = {name: value for name, value in run.versions.items() if name != GIT_COMMIT}
    for title, value in (
        ("digest", run.code_digest),
        ("covers", ", ".join(run.code_covers)),
        ("config", None if run.config is None else json.dumps(run.config, ensure_ascii=False)),
        ("commit", run.versions.get(GIT_COMMIT)),
        ("versions", ", ".join(f"{name} {value}" for name, value in versions.items())),
        ("author", run.author),
        ("reason", run.reason),
        ("eval run", run.eval_run_id),
        ("selection", _tell_selection(run)),
    ):
        if value:
            yield title, str(value)
    yield "samples", _tell_result(run, result)
    yield "ledger", f"{counted(run.graded_count + run.failed_count, 'grade')} in all"
    yield (
        "network",
        f"policy calls: {count(run.policy_calls)}   connections: "
        f"{count(run.connections_allowed)} allowed, {count(run.connections_refused)} refused",
    )
    yield "see", f"osmosis-store grades list --grading-run {run.grading_run_id}"


def _tell_times(screen: Screen, run: GradingRunRecord) -> str:
    if run.ended_at is None:
        return f"{screen.time(run.started_at)}, not ended"
    took = (run.ended_at - run.started_at).total_seconds()
    return f"{screen.time(run.started_at)} · {duration(took)}"


def _tell_selection(run: GradingRunRecord) -> str | None:
    if run.selection is None:
        return None
    told = [f"{name}={_tell_value(value)}" for name, value in run.selection.items()]
    return ", ".join(told) or "all rollouts"


def _tell_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tell_result(run: GradingRunRecord, result: RunResult) -> str:
    facts = [f"{count(result.rewarded_count)} of {count(result.sample_count)} with a reward"]
    if result.mean_reward is not None:
        facts.append(f"mean {figure(result.mean_reward)}")
    for number, what in (
        (result.failed_count, "failed"),
        (result.removed_count, "removed"),
        (run.skipped_count, "skipped"),
    ):
        if number:
            facts.append(f"{count(number)} {what}")
    return ", ".join(facts)


def _format_fact(screen: Screen, title: str, text: str) -> list[str]:
    space = None if screen.width is None else screen.width - _TITLE_WIDTH - 2
    first, *more = wrap(to_one_line(text), space)
    start = " " + screen.paint(pad(title, _TITLE_WIDTH), "dim") + " "
    return [start + first, *(" " * (_TITLE_WIDTH + 2) + line for line in more)]


def format_history(screen: Screen, history: Sequence[PastGrade]) -> list[str]:
    """Return a line per grade, and what of them no longer fits what is stored."""
    if not history:
        return ["no grades"]
    rows = [
        (
            past.grade.sample_id,
            str(past.grade.grade_no),
            "error" if past.grade.error is not None else tell_grade(past.grade),
            screen.time(past.grade.created_at),
            past.grade.kind,
            _tell_stale(past),
            past.grade.grading_run_id,
            past.author or "",
            tell_grader(past.grade.grader, past.grade.code_digest),
            past.reason or past.grade.error or past.grade.explanation or "",
        )
        for past in history
    ]
    titles = (
        *("sample", "no", "reward", "given", "kind", "since then", "grading run", "author"),
        *("grader", "why"),
    )
    lines = format_table(screen, titles, rows, right=("no", "reward"), spare=("given", "kind"))
    stale = sum(not (past.same_items and past.same_label) for past in history)
    end = counted(len(history), "grade")
    if stale:
        end += f", {count(stale)} of items or a label that changed since"
    return [*lines, end]


def tell_grader(grader: str, code_digest: str | None) -> str:
    """Return a grader's name with the beginning of its digest."""
    return grader + (f" {code_digest[:_DIGEST_CHARS]}" if code_digest else "")


def _tell_stale(past: PastGrade) -> str:
    changed = [
        what for what, same in (("items", past.same_items), ("label", past.same_label)) if not same
    ]
    return f"other {', '.join(changed)}" if changed else ""
