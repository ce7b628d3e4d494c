"""The rule for rollout and sample ids: one safe path segment that also fits an HTTP header."""

from __future__ import annotations

__all__ = ["ensure_single_path_segment", "is_single_path_segment"]

_MAX_BYTES = 255


def is_single_path_segment(value: str) -> bool:
    """Tell whether `value` names exactly one file in a folder, on any system.

    No empty text, `.` or `..`, no separator, no control character, no white space at the ends,
    and at most 255 bytes of UTF-8.
    """
    if not value or value in {".", ".."} or value != value.strip():
        return False
    if any(char in "/\\\x7f" or ord(char) < 0x20 for char in value):
        return False
    try:
        return len(value.encode()) <= _MAX_BYTES
    except UnicodeEncodeError:
        return False


def ensure_single_path_segment(value: str, *, label: str = "id") -> str:
    """Return `value` if it is one safe path segment.

    Args:
        label: What the value is, for the message.

    Raises:
        ValueError: It is not; the message shows it.
    """
    if not isinstance(value, str) or not is_single_path_segment(value):
        raise ValueError(
            f"{label} {value!r} is not one safe path segment: use 1 to 255 bytes without "
            "'/', '\\', control characters or white space at the ends, and neither '.' nor '..'"
        )
    return value
