"""The answer to a query as text: a table for eyes, CSV or JSON for programs."""

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa

Format = Literal["table", "csv", "json"]
CELL = 60
"""A cell of the table for eyes is cut at so many characters."""


BATCH_ROWS = 1000


def render(table: pa.Table, format: Format) -> Iterator[str]:
    """The whole answer in pieces, without a line end after it. Nested values are JSON in a cell.

    Columns of one name are told apart as DuckDB does: a, a_1.
    """
    names = _unique(table.column_names)
    if format == "json":
        yield from _json(table, names)
    elif format == "csv":
        yield from _csv(table, names)
    else:
        yield from _table(table, names)


def _unique(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        new, number = name, 0
        while new in found or (number and new in names):
            number += 1
            new = f"{name}_{number}"
        found.append(new)
    return found


def _batches(table: pa.Table) -> Iterator[list[list[Any]]]:
    """JSON values, a list for each row, some rows at a time. By place, as dicts would lose columns of one name."""
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        columns = [[_plain(value) for value in column.to_pylist()] for column in batch.columns]
        yield [list(row) for row in zip(*columns, strict=True)]


def _json(table: pa.Table, names: list[str]) -> Iterator[str]:
    before = "["
    for rows in _batches(table):
        lines = (json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows)
        yield before + ",\n ".join(lines)
        before = ",\n "
    yield "[]" if before == "[" else "]"


def _csv(table: pa.Table, names: list[str]) -> Iterator[str]:
    held = [names]
    before = ""
    for rows in _batches(table):
        yield before + _csv_lines(held)
        held, before = [[_cell(value) for value in row] for row in rows], "\n"
    yield before + _csv_lines(held)


def _csv_lines(rows: list[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().removesuffix("\n")


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
    if value is None:
        return ""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _table(table: pa.Table, names: list[str]) -> Iterator[str]:
    """Twice over the rows, for the widths and for the lines, so that they need not all be text at once."""
    right = [_is_number(field.type) for field in table.schema]
    head = [_visible(name) for name in names]
    widths = [len(name) for name in head]
    for rows in _visible_batches(table):
        widths = [max(wide, *map(len, column)) for wide, column in zip(widths, zip(*rows, strict=True), strict=True)]

    def line(row: list[str]) -> str:
        padded = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip() + "\n"

    yield line(head) + "  ".join("─" * width for width in widths) + "\n"
    for rows in _visible_batches(table):
        yield "".join(map(line, rows))
    yield f"({table.num_rows} rows)"


def _visible_batches(table: pa.Table) -> Iterator[list[list[str]]]:
    for rows in _batches(table):
        yield [[_visible(_cell(value)) for value in row] for row in rows]


def _visible(text: str) -> str:
    """One line without control characters (a stored text could hold a terminal's), cut to a cell."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: CELL * 4])
    return shown if len(shown) <= CELL and len(text) <= CELL else shown[: CELL - 1] + "…"
