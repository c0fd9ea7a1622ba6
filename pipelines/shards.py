"""One Parquet file of a stage: the rows of one unit, or of many.

A file has a struct column for each of the stage's tables and one for `outcomes`; a row fills exactly one of
them. `unit_id` stands inside each row, so that a file of one unit and a file of many are read alike.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from littledragon.pipelines.errors import UserError
from littledragon.pipelines.files import disk_error
from littledragon.schemas.tables import OUTCOMES, TABLES, Table

ROWS_PER_GROUP = 10_000
LEVEL, PAGE = 9, 1 << 24
"""Of zstd, and the bytes of a page. Traces of one workload are much alike: samples/h200 takes three tenths less than at
pyarrow's own settings, and is read as fast; a file of some thousand rows is written in a tenth of a second more."""


class RowError(Exception):
    """A row that does not fit its table: a mistake of the stage that made it."""


@cache
def tables_of(stage: str) -> tuple[Table, ...]:
    """The tables whose rows a file of this stage may hold, `outcomes` last."""
    return (*(table for table in TABLES if table.stage == stage and not table.of), OUTCOMES)


@cache
def schema(stage: str) -> pa.Schema:
    """The Arrow schema of the stage's files. Struct fields are nullable: a row fills only one struct."""

    def struct(table: Table) -> pa.DataType:
        return pa.struct([pa.field(field.name, field.type) for field in table.arrow()])

    return pa.schema([pa.field(table.name, struct(table)) for table in tables_of(stage)])


def encode(stage: str, unit_id: str, rows: dict[str, list[dict[str, Any]]], outcome: dict[str, Any]) -> pa.Table:
    """The rows of one unit as one Arrow table.

    Raises:
        RowError: an unknown table, a missing or unknown column, a null where none may be, or a value of another type.
    """
    tables = {table.name: table for table in tables_of(stage)}
    lines: list[dict[str, Any]] = []
    for name, group in {**rows, OUTCOMES.name: [outcome]}.items():
        if name not in tables:
            raise RowError(f"stage {stage} has no table '{name}'")
        lines += [{name: {"unit_id": unit_id, **_checked(tables[name], row)}} for row in group]
    try:
        return pa.Table.from_pylist(lines, schema=schema(stage))
    except UnicodeEncodeError:
        return pa.Table.from_pylist(_encodable(lines), schema=schema(stage))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RowError(f"stage {stage}: {' '.join(str(error).split())}") from error


def _checked(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    names = {column.name for column in table.columns}
    if row.keys() - {"unit_id"} != names:
        wrong = sorted((row.keys() - {"unit_id"}) ^ names)
        raise RowError(f"table {table.name}: missing or unknown columns: {', '.join(wrong)}")
    for column in table.columns:
        if row[column.name] is None and not column.null:
            raise RowError(f"table {table.name}: column {column.name} may not be null")
    return {column.name: row[column.name] for column in table.columns}


def _encodable(value: Any) -> Any:
    """The same value with every lone surrogate, which no UTF-8 text can hold, as a question mark."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {key: _encodable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(inner) for inner in value]
    return value


def write(stream: BinaryIO, tables: Iterable[pa.Table], stage: str) -> None:
    """Write Arrow tables of the stage's schema as one Parquet file, with page checksums."""
    options: dict[str, Any] = {"compression": "zstd", "compression_level": LEVEL, "data_page_size": PAGE}
    with pq.ParquetWriter(stream, schema(stage), write_page_checksum=True, **options) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=ROWS_PER_GROUP)


def read(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a file, or these leaf or struct columns of it, every page compared with its checksum.

    Raises:
        UserError: the file is damaged, or cannot be read.
        FileNotFoundError: it is not there (any more).
    """
    return pa.concat_tables(pieces(path, columns))


def pieces(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The same, one row group after the other, so that a large file is never whole in memory. At least one piece.

    Raises:
        UserError, FileNotFoundError: as `read`.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, memory_map=False, pre_buffer=False) as file:
            present = set(file.schema_arrow.names)
            wanted = None if columns is None else [c for c in columns if c.split(".")[0] in present]
            yield file.read_row_groups([], columns=wanted)
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=wanted)
    except FileNotFoundError:
        raise
    except OSError as error:
        # Arrow reports a wrong checksum as an OSError without a number.
        raise (disk_error(path, error) if error.errno else damaged(path, error)) from error
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, why: Exception | str) -> UserError:
    """The line for a file that is not what was written."""
    said = " ".join(str(why).split())[:160]
    return UserError(
        f"{path}: damaged ({said}): restore it from a copy, or remove it and run again: "
        "then the work in it is redone, and what was measured is measured anew"
    )
