"""One rollout as `rollouts show` prints it: conversation, model calls, grades, error."""

from __future__ import annotations

from collections.abc import Iterator

from osmosis_store.cli.conversation import tell_item
from osmosis_store.cli.output import Screen, count, counted, duration, figure
from osmosis_store.cli.text import cut, pad, to_one_line, to_visible, width_of, wrap
from osmosis_store.records import (
    GradeRecord,
    ItemRecord,
    ModelCallRecord,
    RolloutDetail,
    RolloutRecord,
    SampleRecord,
)

__all__ = ["format_detail", "tell_grade"]

_MAX_LINES = 6
_KIND_WIDTH = 10
_KIND_STYLES = {"user": "cyan", "assistant": "green", "call": "yellow", "output": "yellow"}
_DIGEST_CHARS = 8


def format_detail(screen: Screen, detail: RolloutDetail) -> list[str]:
    """Return the lines that show a rollout; the last ones say what they left out."""
    lines = list(_head(screen, detail.rollout))
    cut_count = 0
    for sample in detail.samples:
        items = detail.items[sample.sample_id]
        if len(detail.samples) > 1:
            lines.append(screen.paint(f"sample {to_one_line(sample.sample_id)}", "bold"))
        lines += _earlier(sample, items)
        for item in _beside(items):
            shown, was_cut = _format_item(screen, item)
            lines += shown
            cut_count += was_cut
    lines += _calls(screen, detail.model_calls)
    lines += _grades(screen, detail.grades, many=len(detail.samples) > 1)
    lines += _error(detail.rollout)
    lines += _doubts(detail, cut_count)
    return lines


def _head(screen: Screen, rollout: RolloutRecord) -> Iterator[str]:
    facts: list[str] = [rollout.status]
    if rollout.eval_run_id is not None or rollout.row_index is not None:
        facts.append(f"attempt {rollout.attempt}")
    if rollout.retry_no:
        facts.append(f"retry {rollout.retry_no}")
    if rollout.row_index is not None:
        facts.append(f"row {rollout.row_index}")
    if rollout.duration_s is not None:
        facts.append(duration(rollout.duration_s))
    facts.append(screen.time(rollout.started_at))
    if rollout.label is not None:
        facts.append(f'label "{to_one_line(rollout.label)}"')
    if rollout.workflow is not None:
        facts.append(to_one_line(rollout.workflow))
    width = None if screen.width is None else screen.width - width_of(rollout.rollout_id) - 3
    yield screen.paint(rollout.rollout_id, "bold") + " · " + cut(" · ".join(facts), width)


def _earlier(sample: SampleRecord, items: list[ItemRecord]) -> Iterator[str]:
    """Say how many items there are before the first one that is shown."""
    if count := (items[0].seq if items else sample.item_count):
        yield f"  … {counted(count, 'earlier item')}"


def _beside(items: list[ItemRecord]) -> Iterator[ItemRecord]:
    """Yield items in order, but the output of a tool call right behind its call."""
    outputs: dict[str, list[ItemRecord]] = {}
    for item in items:
        if _is_output(item):
            outputs.setdefault(item.call_id or "", []).append(item)
    shown: set[int] = set()
    for item in items:
        if item.seq in shown:
            continue
        yield item
        shown.add(item.seq)
        if item.call_id is not None and not _is_output(item):
            later = [one for one in outputs.get(item.call_id, ()) if one.seq > item.seq]
            if later and later[0].seq not in shown:
                yield later[0]
                shown.add(later[0].seq)


def _is_output(item: ItemRecord) -> bool:
    return item.call_id is not None and (item.type or "").endswith("_output")


def _format_item(screen: Screen, record: ItemRecord) -> tuple[list[str], bool]:
    """Return an item's lines, and whether something was cut from it."""
    told = tell_item(record.item)
    marks = ["recovered"] if record.recovered else []
    if record.tombstoned_at is not None:
        marks.append(f"{record.tombstone_reason or 'gone'} {screen.time(record.tombstoned_at)}")
    text = "".join(f"[{mark}] " for mark in marks) + to_visible(told.text)
    kind = to_one_line(told.kind)
    start = (
        f"{record.seq:>3} {screen.paint(pad(kind, _KIND_WIDTH), _KIND_STYLES.get(kind, 'dim'))} "
    )
    indent = 4 + max(width_of(kind), _KIND_WIDTH) + 1
    call_id = to_one_line(told.call_id)
    if screen.width is None:
        first, *more = wrap(text, None)
        tail = f"  {call_id}" if call_id else ""
        return [start + first + tail, *_indented(more, indent)], False
    call_id = cut(call_id, screen.width // 4)
    space = screen.width - indent - (width_of(call_id) + 2 if call_id else 0)
    parts = wrap(text.strip(), space)
    was_cut = len(parts) > _MAX_LINES
    if was_cut:
        parts = [*parts[: _MAX_LINES - 1], f"… {counted(len(parts) - _MAX_LINES + 1, 'more line')}"]
    first = pad(parts[0], space) + screen.paint(f"  {call_id}", "dim") if call_id else parts[0]
    return [start + first, *_indented(parts[1:], indent)], was_cut


def _indented(lines: list[str], indent: int) -> Iterator[str]:
    return ((" " * indent + line).rstrip() for line in lines)


def _calls(screen: Screen, calls: list[ModelCallRecord]) -> Iterator[str]:
    title = " calls    "
    for call in calls:
        facts = [f"{call.call_no:>3} {to_one_line(call.model or 'model')}"]
        if call.input_tokens is not None:
            cached = f" ({count(call.cached_tokens)} cached)" if call.cached_tokens else ""
            facts.append(f"{count(call.input_tokens)} in{cached}")
        if call.output_tokens is not None:
            thought = (
                f" ({count(call.reasoning_tokens)} reasoning)" if call.reasoning_tokens else ""
            )
            facts.append(f"{count(call.output_tokens)} out{thought}")
        if call.latency_s is not None:
            facts.append(duration(call.latency_s))
        if call.state != "saved":
            facts.append(call.state)
        if call.error is not None:
            facts.append(to_one_line(call.error))
        yield cut(title + "   ".join(facts), screen.width)
        title = " " * len(title)


def _grades(screen: Screen, grades: list[GradeRecord], *, many: bool) -> Iterator[str]:
    title = " grades   "
    for grade in grades:
        digest = f" {grade.code_digest[:_DIGEST_CHARS]}" if grade.code_digest else ""
        facts = [
            tell_grade(grade),
            f"{grade.kind} · {to_one_line(grade.grader)}{digest}",
            screen.time(grade.created_at),
        ]
        if many:
            facts.insert(0, to_one_line(grade.sample_id))
        if grade.explanation is not None:
            facts.append(to_one_line(grade.explanation))
        yield cut(title + "   ".join(facts), screen.width)
        title = " " * len(title)


def tell_grade(grade: GradeRecord) -> str:
    """Return a grade in a word or two: the reward, removed, or the error."""
    if grade.removed:
        return "removed"
    if grade.reward is None:
        return f"error: {to_one_line(grade.error or '')}"
    return figure(grade.reward)


def _error(rollout: RolloutRecord) -> Iterator[str]:
    if rollout.error_message is not None or rollout.error_category is not None:
        category = f"{rollout.error_category}: " if rollout.error_category else ""
        first, *more = to_visible(category + (rollout.error_message or "")).splitlines() or [""]
        yield f" error    {first}"
        yield from (f"          {line}" for line in more)
    for line in to_visible(rollout.error_traceback or "").splitlines():
        yield f"   {line}"


def _doubts(detail: RolloutDetail, cut_count: int) -> Iterator[str]:
    """Say what was left out, taken away or recovered, each in a line of its own."""
    items = [item for found in detail.items.values() for item in found]
    gone = sum(item.tombstoned_at is not None for item in items)
    recovered = sum(item.recovered for item in items)
    unsaved = sum(call.output is not None for call in detail.model_calls)
    if gone:
        yield f" {counted(gone, 'item')} no longer in the conversation, marked with the reason"
    if recovered:
        yield f" {counted(recovered, 'item')} recovered from the journal"
    if unsaved:
        yield f" {counted(unsaved, 'model answer')} in the journal that the session never got"
    if cut_count:
        yield f" {counted(cut_count, 'text')} cut; --wide shows all"
