"""What an error says, on one line where it can."""

from __future__ import annotations

from pydantic import ValidationError

__all__ = ["error_message"]


def error_message(error: BaseException) -> str:
    """Return an error's text; its type's name when it says nothing.

    Pydantic's own text has a heading, the input and an address of its documentation around it.
    """
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, (error.title, *one['loc'])))}: {one['msg']}"
            for one in error.errors(include_url=False, include_input=False)
        )
    return str(error) or type(error).__name__
