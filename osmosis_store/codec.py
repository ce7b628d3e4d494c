"""Items to text and back, exactly: bodies, the facts that people ask by, and digests."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias, overload

import msgspec
from pydantic import BaseModel

from osmosis_store.errors import ItemNotStorable

__all__ = [
    "EncodedItem",
    "Item",
    "body_digest",
    "chain_digest",
    "decode_body",
    "encode_items",
    "first_chain_digest",
    "item_facts",
    "to_clean_text",
    "to_json_text",
]

Item: TypeAlias = dict[str, Any]

_encode_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_encode_ascii = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode
_decode_fast = msgspec.json.Decoder().decode

_MAX_FACT_LENGTH = 200


class EncodedItem(NamedTuple):
    """An item as it goes to the database: the body, and copies of what people ask by."""

    body: str
    data: bytes  # the body in UTF-8: what the digest covers
    type: str | None
    role: str | None
    tool_name: str | None
    call_id: str | None


def encode_items(items: Sequence[object]) -> list[EncodedItem]:
    """Serialise the items of one call, or none of them.

    Args:
        items: Mappings or pydantic objects, the latter dumped as the Agents SDK dumps them.

    Raises:
        ItemNotStorable: An item would not come back equal; names its index and the path in it.
    """
    return [_encode_item(index, item) for index, item in enumerate(items)]


def decode_body(body: str | bytes) -> Any:
    """Return the value that a body holds.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return _decode_fast(body)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        # msgspec refuses lone surrogates and very deep nesting, which json takes
        return json.loads(body)


def _encode_item(index: int, item: object) -> EncodedItem:
    if type(item) is dict:
        try:
            text, data = _encode_exactly(item)
        except (TypeError, ValueError, RecursionError):
            pass  # it may hold pydantic objects: take the longer way, which also explains
        else:
            return EncodedItem(text, data, *item_facts(item))
    try:
        return _encode_foreign(index, item)
    except RecursionError:
        reason = "it is nested too deep, or holds itself"
        raise ItemNotStorable(index, "", reason) from None


def _encode_foreign(index: int, item: object) -> EncodedItem:
    plain = _to_plain(item)
    if not isinstance(plain, dict):
        raise ItemNotStorable(index, "", f"it is {_kind(item)}, not a mapping")
    try:
        text, data = _encode_exactly(plain)
    except (TypeError, ValueError) as error:
        path, reason = _find_culprit(plain, "")
        raise ItemNotStorable(index, path, reason or str(error)) from None
    return EncodedItem(text, data, *item_facts(plain))


def _encode_exactly(value: Item) -> tuple[str, bytes]:
    text = _encode_text(value)
    try:
        data = text.encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8
        text = _encode_ascii(value)
        data = text.encode()
    if decode_body(text) != value:
        raise ValueError("it would not come back equal")
    return text, data


def _to_plain(value: object) -> Any:
    """Turn pydantic objects and foreign mappings, at any depth, into dicts."""
    if isinstance(value, BaseModel):
        # the form in which the Agents SDK turns output into input items
        return _to_plain(value.model_dump(exclude_unset=True))
    if isinstance(value, Mapping):
        return {key: _to_plain(part) for key, part in value.items()}
    if type(value) is list:
        return [_to_plain(part) for part in value]
    return value


def _find_culprit(value: object, path: str) -> tuple[str, str]:
    """Return the path and the reason of the first part that JSON would not give back."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                return path, f"the key {key!r} is {_kind(key)}, not text"
            if reason := _text_reason(key):
                return path, f"a key {reason}"
            found = _find_culprit(part, f"{path}.{key}" if path else key)
            if found[1]:
                return found
    elif isinstance(value, list):
        for at, part in enumerate(value):
            found = _find_culprit(part, f"{path}[{at}]")
            if found[1]:
                return found
    elif isinstance(value, str):
        return path, _text_reason(value)
    elif isinstance(value, float):
        return path, "" if value - value == 0 else f"{value} is not a JSON number"
    elif value is not None and not isinstance(value, int):
        return path, f"{_kind(value)} has no JSON form that comes back equal"
    return path, ""


def _text_reason(text: str) -> str:
    """Say why a text would come back changed, or nothing."""
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return "" if joined == text else "holds a surrogate pair that is not joined to one character"


def _kind(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def item_facts(item: Mapping[str, Any]) -> tuple[str | None, str | None, str | None, str | None]:
    """Return an item's type, role, tool name and call id as people ask by them."""
    get = item.get
    kind, role = get("type"), get("role")
    if kind is None:
        if role is not None:
            kind = "message"
        elif item.keys() == {"id"}:
            kind = "item_reference"
    return _fact(kind), _fact(role), _fact(_tool_name(kind, item)), _fact(get("call_id"))


def _tool_name(kind: object, item: Mapping[str, Any]) -> object:
    name = item.get("name")
    if isinstance(name, str) and name:
        server = item.get("server_label")
        return f"{server}.{name}" if isinstance(server, str) else name
    if isinstance(kind, str) and kind.endswith("_call"):
        return kind.removesuffix("_call")
    return None


def _fact(value: object) -> str | None:
    """Return a copy that every database can hold and index; the body keeps the original."""
    if not isinstance(value, str):
        return None
    if value.isascii() and len(value) <= _MAX_FACT_LENGTH and "\x00" not in value:
        return value
    return to_clean_text(value)[:_MAX_FACT_LENGTH]


@overload
def to_clean_text(text: str) -> str: ...
@overload
def to_clean_text(text: None) -> None: ...
def to_clean_text(text: str | None) -> str | None:
    """Return a message for people with what no database takes replaced: NUL, lone surrogates."""
    if text is None:
        return None
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def to_json_text(value: object) -> str:
    """Serialise a JSON column (metadata, settings, metrics) by the rules that bodies follow.

    Raises:
        TypeError, ValueError: JSON cannot hold it.
    """
    text = _encode_text(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return _encode_ascii(value)
    return text


def first_chain_digest(rollout_id: str, sample_id: str) -> bytes:
    """Return what a sample's chain starts from: the digest of its identity."""
    identity = b"".join(
        struct.pack(">I", len(part)) + part for part in (rollout_id.encode(), sample_id.encode())
    )
    return sha256(b"osmosis-store sample\x00" + identity).digest()


def body_digest(nonce: bytes, data: bytes) -> bytes:
    """Return sha256(nonce ‖ body); the nonce keeps a short body from being guessed."""
    return sha256(nonce + data).digest()


def chain_digest(previous: bytes, position: int, digest: bytes) -> bytes:
    """Return sha256(previous ‖ position ‖ digest), the position as 8 bytes, big-endian."""
    return sha256(previous + position.to_bytes(8, "big") + digest).digest()
