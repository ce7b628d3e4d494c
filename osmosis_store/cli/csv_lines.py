"""CSV for spreadsheets and notebooks: a line of names, then a line per record."""

from __future__ import annotations

import csv
import datetime as dt
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

__all__ = ["CSV_FLAG", "CsvFlag", "print_csv", "require_one_format"]

CSV_FLAG = "--csv"
CsvFlag = Annotated[bool, typer.Option(CSV_FLAG, help="Print CSV: names, then a line for each.")]


def require_one_format(*, as_json: bool, as_csv: bool) -> None:
    """Check that not both formats are asked for.

    Raises:
        typer.BadParameter
    """
    if as_json and as_csv:
        raise typer.BadParameter("give one of --json and --csv", param_hint=CSV_FLAG)


def print_csv(names: Sequence[str], records: Iterable[Mapping[str, Any]]) -> None:
    """Print records as they come; nothing is an empty cell, a time ISO 8601, an object JSON."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for record in records:
        writer.writerow([_to_cell(record[name]) for name in names])


def _to_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return json.dumps(value) if isinstance(value, dict | list | tuple) else value
