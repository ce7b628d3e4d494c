"""A stored item as a person reads it: what it is, and its text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["Told", "tell_item"]

_TEXT_KEYS = ("text", "refusal", "transcript")
_MEDIA_KEYS = ("image_url", "file_data", "data", "image", "result", "file_url", "url")
_HIDDEN = ("id", "type", "status", "call_id", "name")


class Told(NamedTuple):
    """What kind of item it is, what it says, and the id of the call that it belongs to."""

    kind: str
    text: str
    call_id: str


def tell_item(item: Mapping[str, Any]) -> Told:
    """Return an item in words; one of an unknown type as its JSON."""
    kind = item.get("type")
    call_id = item.get("call_id")
    shown_id = call_id if isinstance(call_id, str) else ""
    if kind in (None, "message") and isinstance(item.get("role"), str):
        return Told(item["role"], _tell_content(item.get("content")), shown_id)
    if kind == "reasoning":
        return Told("reasoning", _tell_reasoning(item), shown_id)
    if kind == "function_call":
        return Told("call", _tell_call(str(item.get("name")), item.get("arguments")), shown_id)
    if isinstance(kind, str) and kind.endswith("_output"):
        return Told("output", _tell_content(item.get("output")), shown_id)
    if isinstance(kind, str) and kind.endswith("_call"):
        name = item.get("name")
        return Told(
            "call", _tell_hosted_call(str(name or kind.removesuffix("_call")), item), shown_id
        )
    rest = {key: value for key, value in item.items() if key != "type"}
    return Told(str(kind or "item"), _to_json(rest), shown_id)


def _tell_content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part for block in content for part in _tell_block(block))
    return "" if content is None else _to_json(content)


def _tell_block(block: Any) -> Iterator[str]:
    if not isinstance(block, dict):
        yield block if isinstance(block, str) else _to_json(block)
        return
    for key in _TEXT_KEYS:
        if isinstance(block.get(key), str):
            yield f"refused: {block[key]}" if key == "refusal" else block[key]
            return
    media = _tell_media(block)
    yield media or _to_json(block)


def _tell_media(block: Mapping[str, Any]) -> str:
    """Return an image or a file in brackets; nothing where the block has none."""
    what = str(block.get("type", "file")).removeprefix("input_").removeprefix("output_")
    name = block.get("filename") or block.get("file_id")
    for key in _MEDIA_KEYS:
        value = block.get(key)
        value = value.get("url") if isinstance(value, dict) else value
        if isinstance(value, str):
            name = name or _name_of(value)
            break
    return f"[{what} {name}]" if name else ""


def _name_of(source: str) -> str:
    if source.startswith("data:"):
        kind, _, data = source[5:].partition(",")
        return f"{kind.split(';')[0] or 'data'}, {_size_of_data(data, kind)}"
    return source if source.startswith(("http://", "https://")) else _size_of_data(source, "base64")


def _size_of_data(data: str, encoding: str) -> str:
    if "base64" not in encoding:
        return _size(len(data))
    return _size(len(data.rstrip("=")) * 3 // 4)


def _size(bytes_count: int) -> str:
    for limit, unit in ((1e6, "MB"), (1e3, "KB")):
        if bytes_count >= limit:
            return f"{bytes_count / limit:,.{1 if bytes_count < 10 * limit else 0}f} {unit}"
    return f"{bytes_count} B"


def _tell_call(name: str, arguments: Any) -> str:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return f"{name}({arguments})"
    if isinstance(arguments, dict):
        return f"{name}({', '.join(f'{key}={_to_json(part)}' for key, part in arguments.items())})"
    return f"{name}({'' if arguments is None else _to_json(arguments)})"


def _tell_hosted_call(name: str, item: Mapping[str, Any]) -> str:
    media = _tell_media(item) if isinstance(item.get("result"), str) else ""
    arguments = item.get("arguments")
    if arguments is None:
        shown = {key: value for key, value in item.items() if key not in _HIDDEN}
        arguments = {key: value for key, value in shown.items() if not (media and key == "result")}
    return _tell_call(name, arguments) + (f" {media}" if media else "")


def _tell_reasoning(item: Mapping[str, Any]) -> str:
    parts = list(_texts(item.get("summary"))) + list(_texts(item.get("content")))
    encrypted = item.get("encrypted_content")
    if not parts and isinstance(encrypted, str):
        return f"[encrypted, {_size(len(encrypted))}]"
    return "\n".join(parts)


def _texts(blocks: Any) -> Iterable[str]:
    for block in blocks if isinstance(blocks, list) else ():
        yield from _tell_block(block)


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
