"""Ids: those we make, and what may be one."""

from __future__ import annotations

import secrets
import time

from osmosis_store.errors import InvalidId

__all__ = ["new_id", "require_id", "to_key"]

_MAX_ID_LENGTH = 200
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_CHARS, _RANDOM_CHARS = 10, 6


def new_id(prefix: str = "") -> str:
    """Return an id that is unique and, behind its prefix, sorts by the time of its making.

    Ten characters hold the milliseconds since 1970 and six are random, in Crockford's base 32.
    """
    number = time.time_ns() // 1_000_000 << 5 * _RANDOM_CHARS | secrets.randbits(5 * _RANDOM_CHARS)
    chars = []
    for _ in range(_TIME_CHARS + _RANDOM_CHARS):
        number, digit = divmod(number, 32)
        chars.append(_ALPHABET[digit])
    return prefix + "".join(reversed(chars))


def require_id(kind: str, value: object) -> str:
    """Return `value` when it can be a key that is also one safe path segment.

    Raises:
        InvalidId: Empty, over 200 characters, `.`, `..`, or with `/`, `\\` or control characters.
    """
    reason = _id_reason(value)
    if reason:
        raise InvalidId(kind, value, reason)
    return str(value)


def _id_reason(value: object) -> str:
    if not isinstance(value, str):
        return f"it is {type(value).__name__}, not text"
    if not value:
        return "it is empty"
    if len(value) > _MAX_ID_LENGTH:
        return f"it has {len(value)} characters, {_MAX_ID_LENGTH} are allowed"
    if value in (".", ".."):
        return "it names a folder"
    for char in value:
        if char in "/\\" or char < " " or "\x7f" <= char <= "\x9f" or "\ud800" <= char <= "\udfff":
            return f"it holds {char!r}"
    return ""


def to_key(name: str) -> str:
    """Return the id under which a conversation of any name is kept; different for each name.

    A name that can be an id is its own id. `/`, `\\` and whatever else an id may not hold are
    percent-encoded as in a URL, and so is a percent sign that would read as such an encoding.

    Raises:
        InvalidId: The name is empty, too long, or not text.
    """
    if not isinstance(name, str) or not name or len(name) > _MAX_ID_LENGTH:
        require_id("session name", name)
    if name in (".", ".."):
        return name.replace(".", "%2E")
    parts = []
    for at, char in enumerate(name):
        encoded_already = char == "%" and _is_hex_pair(name[at + 1 : at + 3])
        if encoded_already or _id_reason(char) not in ("", "it names a folder"):
            data = char.encode("utf-8", "surrogatepass")
            parts.append("".join(f"%{byte:02X}" for byte in data))
        else:
            parts.append(char)
    return "".join(parts)


def _is_hex_pair(text: str) -> bool:
    return len(text) == 2 and all(char in "0123456789abcdefABCDEF" for char in text)
