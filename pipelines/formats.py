"""The answer to a query as text: a table for eyes, CSV or JSON for programs."""

import csv
import io
import json
import math
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa

Format = Literal["table", "csv", "json"]
CELL = 60
"""A cell of the table for eyes is cut at so many characters."""


def render(table: pa.Table, format: Format) -> str:
    """The whole answer, without a line end after it. Nested values are JSON in a cell."""
    rows = [[_plain(value) for value in row.values()] for row in _rows(table)]
    names = list(table.column_names)
    if format == "json":
        lines = (json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows)
        return "[" + ",\n ".join(lines) + "]"
    cells = [["" if value is None else _cell(value) for value in row] for row in rows]
    if format == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([names, *cells])
        return out.getvalue().rstrip("\n")
    return _table(names, cells, [_is_number(field.type) for field in table.schema])


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    # Two columns may have one name in SQL; dicts would lose one.
    renamed = table.rename_columns([str(place) for place in range(table.num_columns)])
    found: list[dict[str, Any]] = renamed.to_pylist()
    return found


def _plain(value: Any) -> Any:
    """A JSON value: no NaN, no infinity, no decimals."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _cell(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _table(names: list[str], cells: list[list[str]], right: list[bool]) -> str:
    lines = [[_visible(cell) for cell in row] for row in [names, *cells]]
    widths = [max(len(row[place]) for row in lines) for place in range(len(names))]

    def line(row: list[str]) -> str:
        padded = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    ruler = "  ".join("─" * width for width in widths)
    return "\n".join([line(lines[0]), ruler, *(line(row) for row in lines[1:]), f"({len(cells)} rows)"])


def _visible(text: str) -> str:
    """One line without control characters (a stored text could hold a terminal's), cut to a cell."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: CELL * 4])
    return shown if len(shown) <= CELL and len(text) <= CELL else shown[: CELL - 1] + "…"
