"""The views that DuckDB has of the store, the same in memory and in `catalog.duckdb`.

A view for each table shows the rows of the current plan, in the order of the table's key; `funnel` counts the
candidates that passed each gate. A view reads whatever files are there when it is asked, so a duckdb shell
beside a run sees the run's progress. Paths in `catalog.duckdb` are absolute: after a work directory has been
moved, any `dragon status` or `dragon query` on it writes the catalog anew.
"""

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from littledragon.pipelines.errors import UserError
from littledragon.pipelines.files import disk_error, disk_error_of, is_disk_error_of, replace
from littledragon.schemas.gates import GATES, OK
from littledragon.schemas.tables import BOOL, BY_NAME, ENVIRONMENTS, FLOAT, INT, OUTCOMES, STRING, TABLES, Table
from littledragon.validators import scratch

COLUMNS_FILE = "columns.parquet"
"""A file without rows in each stage's directory. Read first, it gives the views their columns and types."""
FILE = "catalog.duckdb"
MOST_ROWS = 1_000_000
MOST_BYTES = 256 << 20
"""No answer of `ask` has more rows, or is larger in memory."""
BATCH_ROWS = 2048

_SQL_TYPES = {STRING: "VARCHAR", INT: "BIGINT", FLOAT: "DOUBLE", BOOL: "BOOLEAN"}
_STAGES = tuple(dict.fromkeys(table.stage for table in TABLES if table is not OUTCOMES))

FUNNEL_ABOUT = (
    "For each family and gate, how many proposed candidates passed it. The default schedule is not counted. "
    "Gates up to timed count what the search found, less what failed them again in verify; stable counts verify's."
)


def planned(path: Path) -> tuple[str, ...]:
    """The stages that have a manifest."""
    return tuple(stage for stage in _STAGES if (path / stage / "manifest.parquet").exists())


def tables_read(query: str) -> dict[str, list[str]]:
    """For each stage, the tables that a query may read: those it names, and those behind the views it names."""
    words = set(re.findall(r"\w+", query.lower()))
    if "funnel" in words:
        words |= {"workloads", "candidates", "verdicts"}
    words |= {part.name for table in TABLES if table.name in words for part in table.of}
    found: dict[str, list[str]] = {}
    hidden = any(word.startswith(("query", "store")) or "parquet" in word for word in words)
    for table in (table for table in TABLES if not table.of):
        if hidden and table is not OUTCOMES:  # query_table('lab' || 'els') names a table that no word names
            found.setdefault(table.stage, [OUTCOMES.name]).append(table.name)
        elif table is not OUTCOMES and (table.name in words or OUTCOMES.name in words):
            found.setdefault(table.stage, [OUTCOMES.name]).extend([table.name] if table.name in words else [])
    return found


def statements(path: Path, *, files: Mapping[str, Sequence[Path]] | None = None, public: bool = True) -> Iterator[str]:
    """The SQL that makes every view of the work directory at `path`.

    Public ones have comments, and show their rows in order. Ours leave the order to the query: sorting all columns
    takes the memory of all modules and traces, where a query may need a hash of each.

    The views of a stage in `files` read these data files, the others what is there when they are asked. A view looks
    twice, for the units and for their rows, so whoever looks on while files come and go should list them.
    """
    here = planned(path)
    listed = files or {}
    reads = {stage: _read(path, stage, listed.get(stage)) for stage in here}
    yield "create schema if not exists store"
    for stage in here:
        which = _stale if stage in listed else _units
        yield f"create or replace view store.{_name(stage)} as {which(path, stage, reads[stage])}"
    for table in TABLES:
        rows = {stage: _rows(stage, read, table, listed=stage in listed) for stage, read in reads.items()}
        yield f"create or replace view {_name(table.name)} as {_view(rows, table, ordered=public)}"
        if public:
            yield f"comment on view {_name(table.name)} is {_text(table.about)}"
            for field in table.arrow():
                about = field.metadata[b"about"].decode()
                yield f"comment on column {_name(table.name)}.{_name(field.name)} is {_text(about)}"
    yield f"create or replace view funnel as {_funnel()}"
    if public:
        yield f"comment on view funnel is {_text(FUNNEL_ABOUT)}"


def _read(path: Path, stage: str, files: Sequence[Path] | None) -> str:
    folder = _glob_free(path / stage)
    # One pattern that the units' files, the compacted ones and columns.parquet match, and the manifest does not.
    data = [f"{folder}/**/[0-9a-f]*.parquet"] if files is None else map(_glob_free, files)
    listed = ", ".join(map(_text, [f"{folder}/{COLUMNS_FILE}", *data]))
    return f"read_parquet([{listed}], filename=true, hive_partitioning=false)"


def _units(path: Path, stage: str, read: str) -> str:
    """The planned units, each with the one file whose rows count: that of its last attempt."""
    return (
        "select r.outcomes.unit_id as unit_id, "
        "max(struct_pack(attempt := r.outcomes.attempt, file := r.filename)).file as file "
        f"from {read} as r "
        f"where r.outcomes.unit_id in (select unit_id from {_manifest(path, stage)}) group by 1"
    )


def _stale(path: Path, stage: str, read: str) -> str:
    """The others, each with every file whose rows do not count. Mostly there are none."""
    ended = (
        "select r.outcomes.unit_id as unit_id, r.filename as file, "
        "max(struct_pack(attempt := r.outcomes.attempt, file := r.filename)) over (partition by r.outcomes.unit_id) "
        f"as last from {read} as r where r.outcomes.unit_id is not null"
    )
    planned = f"select unit_id from {_manifest(path, stage)}"
    return f"select unit_id, file from ({ended}) where file <> last.file or unit_id not in ({planned})"


def _manifest(path: Path, stage: str) -> str:
    return f"read_parquet({_text(f'{_glob_free(path / stage)}/manifest.parquet')}, hive_partitioning=false)"


def _rows(stage: str, read: str, table: Table, *, listed: bool) -> str:
    """The rows that count. Where files are listed, those of them that do not are left out, through which DuckDB hands
    a query's own conditions down to the files: rows of 64 of 50,000 units came in a thirtieth of the time. Where they
    are not, what came after the first look must not count, so that no unit counts twice."""
    own, which = f"r.{_name(table.name)}", f"store.{_name(stage)}"
    fields = ", ".join(f"{own}.{_name(field.name)} as {_name(field.name)}" for field in table.arrow())
    if listed:
        return (
            f"select {fields} from {read} as r anti join {which} as s "
            f"on s.unit_id = {own}.unit_id and s.file = r.filename where {own}.unit_id is not null"
        )
    return (
        f"select {fields} from {read} as r where ({own}.unit_id, r.filename) in (select (unit_id, file) from {which})"
    )


def _view(rows: Mapping[str, str], table: Table, *, ordered: bool) -> str:
    selects = [rows[stage] for stage in rows if table is OUTCOMES or stage == table.stage] or [_nothing(table)]
    whole = table.sql or " union all ".join(selects)
    if table is ENVIRONMENTS:  # every unit that measures writes the row of its environment: equal rows are one
        whole = f"select distinct on (environment_id) * from ({whole}) order by environment_id, unit_id"
    order = ", ".join(map(_name, dict.fromkeys((*table.key, "unit_id"))))
    return f"select * from ({whole}) order by {order}" if ordered else whole


def _nothing(table: Table) -> str:
    fields = ", ".join(f"null::{_sql_type(field.type)} as {_name(field.name)}" for field in table.arrow())
    return f"select {fields} where false"


def _sql_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"{_sql_type(kind.value_type)}[]"
    if pa.types.is_struct(kind):
        fields = (kind.field(i) for i in range(kind.num_fields))
        return "STRUCT(" + ", ".join(f"{_name(field.name)} {_sql_type(field.type)}" for field in fields) + ")"
    return _SQL_TYPES[kind]


def _funnel() -> str:
    gates = ", ".join(f"({place}, {_text(gate)})" for place, gate in enumerate(GATES))
    place = " ".join(f"when {_text(gate)} then {number}" for number, gate in enumerate(GATES))
    last = GATES.index("stable")
    # `reached` is the place of the first gate that a candidate did not pass.
    return f"""
with families as (select distinct family from workloads where workload_id is not null),
gates(place, gate) as (values {gates}),
proposed as (
    select candidate_id, any_value(workload_id) as workload_id,
           max(case status {place} when {_text(OK)} then {last} else 0 end) as reached
    from candidates where source <> 'default' group by candidate_id),
judged as (
    select candidate_id, max(case status {place} when {_text(OK)} then {last + 1} else 0 end) as reached
    from verdicts group by candidate_id),
homes as (select distinct workload_id, family from workloads where state = 'ok'),
ends as (
    select homes.family, case when judged.reached is null then proposed.reached
           when judged.reached > {last} then judged.reached else least(proposed.reached, judged.reached) end as reached
    from proposed join homes using (workload_id) left join judged using (candidate_id))
select families.family, gates.gate, count(ends.reached) as candidates
from families cross join gates left join ends on ends.family = families.family and ends.reached > gates.place
group by families.family, gates.gate, gates.place order by families.family, gates.place"""


def _name(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


def _text(words: str) -> str:
    return "'" + words.replace("'", "''") + "'"


def _glob_free(path: Path) -> str:
    """A path whose own letters are not read as a pattern."""
    return re.sub(r"([\[*?])", r"[\1]", str(path))


@contextmanager
def built(path: Path) -> Iterator[Path]:
    """A fresh catalog of the work directory in a scratch folder, for as long as the context lasts.

    Raises:
        UserError: the disk for temporary files refused, or a file that every view needs is damaged.
    """
    import duckdb

    # Built elsewhere, as DuckDB cannot write where the path holds a question mark, and a full disk aborts it.
    held = ExitStack()
    try:
        folder = held.enter_context(scratch.temporary("catalog"))
    except OSError as error:
        raise disk_error(Path(error.filename or os.environ.get("TMPDIR", "TMPDIR")), error) from error
    with held:
        file = folder / FILE
        try:
            # In the oldest layout, so that an older duckdb shell opens it too.
            with duckdb.connect(str(file), config={"storage_compatibility_version": "v1.0.0"}) as connection:
                connection.execute(f"begin; {'; '.join(statements(path))}; commit; checkpoint")
        except duckdb.Error as error:
            if isinstance(error, duckdb.IOException | duckdb.FatalException) or is_disk_error_of(error):
                raise disk_error_of(file, error) from error
            raise
        yield file


def write(path: Path) -> None:
    """Write `catalog.duckdb` aside and put it in the place of the old one.

    Raises:
        UserError: the disk refused; the old one stands.
    """
    with built(path) as file:
        replace(path / FILE, file.read_bytes())


def fetch(connection: Any, query: str, parameters: dict[str, Any] | None = None) -> pa.Table:
    """The answer of a connection to one query.

    Raises:
        KeyboardInterrupt: a signal came meanwhile, which DuckDB reports as an error of its own.
        duckdb.Error: the query is wrong.
    """
    try:
        return connection.sql(query, params=parameters or None).to_arrow_table()
    except RuntimeError as error:
        if "interrupted" in str(error).lower() and type(error) is RuntimeError:
            raise KeyboardInterrupt from None
        raise


def ask(path: Path, query: str, *, timeout_s: float, file: Path | None = None) -> pa.Table:
    """Ask the catalog of the work directory (or `file`, a catalog of it) one question, with no other file in reach.

    Raises:
        UserError: the query is wrong, is more than one SELECT, takes longer than `timeout_s`, or its answer is large.
    """
    import duckdb

    try:
        with duckdb.connect(str(file or path / FILE), read_only=True) as connection:
            _confine(connection, path)
            parsed = connection.extract_statements(query)
            if len(parsed) != 1 or parsed[0].type != duckdb.StatementType.SELECT:
                raise UserError("query: give one SELECT (or DESCRIBE, SHOW TABLES, SUMMARIZE)")
            # In a thread of its own: while a query runs, DuckDB may not look for signals at all.
            stop = threading.Event()
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(_fetch_bounded, connection, query, stop)
                try:
                    return answer.result(timeout=timeout_s)
                except TimeoutError:
                    raise too_late(timeout_s) from None
                finally:
                    stop.set()
                    connection.interrupt()
    except duckdb.Error as error:
        raise UserError(f"query: {' '.join(str(error).split())[:300]}") from None


def too_late(timeout_s: float) -> UserError:
    """The line for a query that did not end in time."""
    return UserError(f"query: stopped after {timeout_s:g} s: narrow it, or give --timeout")


def _fetch_bounded(connection: Any, query: str, stop: threading.Event) -> pa.Table:
    """The answer as it is computed, batch by batch, so that a large one is refused before it fills the memory."""
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    with connection.sql(query).to_arrow_reader(BATCH_ROWS) as reader:
        for batch in reader:
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows > MOST_ROWS or size > MOST_BYTES:
                raise UserError(
                    f"query: the answer has more than {MOST_ROWS:,} rows or {MOST_BYTES >> 20} MiB: add a limit, "
                    f"aggregate, or open {FILE} in the duckdb shell, which writes files of any size"
                )
            if stop.is_set():
                break
            batches.append(batch)
        return pa.Table.from_batches(batches, reader.schema)


def _confine(connection: Any, path: Path) -> None:
    folders = ", ".join(_text(f"{folder}/") for folder in (path, _glob_free(path)))
    connection.execute(f"set allowed_directories = [{folders}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set memory_limit = '4GB'")
    connection.execute("set lock_configuration = true")


def table_names() -> list[str]:
    """Every view that a user is meant to see."""
    return [*BY_NAME, "funnel"]
