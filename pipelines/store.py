"""The store: everything that a run has found, as Parquet files in one work directory.

A unit of work is one small file (many units, once there are many, in one larger file), and it is done when
its id stands in either. A stage's manifest names the units of its current plan; views show only those.
Nothing is ever half-written: see files.py.
"""

import json
import re
import reprlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from littledragon.pipelines import catalog, shards
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.files import (
    disk_error,
    disk_error_of,
    is_disk_error_of,
    is_temporary,
    make_directory,
    read_regular,
    replace,
    replace_text,
    require_unicode,
)
from littledragon.pipelines.stage import Result, Unit
from littledragon.schemas.gates import STATES, State
from littledragon.schemas.ids import canonical_json, digest
from littledragon.schemas.tables import BY_NAME, OUTCOMES, TABLES

FORMAT = 1
HEAD_BYTES = 1 << 16
"""`dragon.json` is no longer than that."""
STAGES = tuple(dict.fromkeys(table.stage for table in TABLES if table.stage != "*"))
SMALL_FILES = 512
"""A stage with so many files of one unit is compacted."""
TRIES = 5
"""How often a query is asked again whose files were compacted away meanwhile."""
GATHER_BYTES = 16 << 20
"""Rows that compaction holds at once, bytes."""

_UNIT = re.compile(r"[0-9a-f]{16}")
_OUTCOME_COLUMNS = [f"{OUTCOMES.name}.{name}" for name in ("unit_id", "state", "reason", "attempt")]
_Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Outcome:
    """How a unit ended, and in which file it stands."""

    state: State
    reason: str | None
    attempt: int
    file: Path


class Store:
    """A work directory. Safe to read from several threads; written by the one driver that holds the lease."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._outcomes: dict[Path, tuple[_Stamp, dict[str, Outcome]]] = {}
        self._verified: dict[tuple[Path, str], _Stamp] = {}
        self._manifests: dict[str, tuple[_Stamp, list[str]]] = {}
        self._views: Any = None
        self._views_of: tuple[tuple[str, ...] | None, dict[str, list[Path]]] = (None, {})

    @staticmethod
    def open(path: Path, *, create: bool = False) -> "Store":
        """Open a work directory; with `create`, make one where there is nothing yet.

        Raises:
            UserError: it is missing, of another format, or a directory that is something else.
        """
        path = Path(path).absolute()
        require_unicode(path)
        if "\\" in str(path):
            raise UserError(f"{path}: DuckDB reads no path with a backslash in it: choose another --workdir")
        head = path / "dragon.json"
        try:
            names = [entry.name for entry in path.iterdir()] if path.exists() else []
            text = read_regular(head, HEAD_BYTES).decode() if head.name in names else None
        except (OSError, UnicodeDecodeError) as error:
            if isinstance(error, NotADirectoryError):
                raise UserError(f"{path}: is a file: give --workdir a directory") from None
            raise _unreadable_head(head, error) from None
        if text is not None:
            _require_format(head, text)
            return Store(path)
        if any(not is_temporary(name) and name != "lost+found" for name in names):
            raise UserError(f"{path}: not a work directory (it has no dragon.json) and not empty: choose another")
        if not create:
            raise UserError(f"{path}: no work directory there: make one with `dragon run --workdir {path}`")
        make_directory(path)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        replace_text(head, json.dumps({"format": FORMAT, "created": created}) + "\n")
        return Store(path)

    # -- writing -----------------------------------------------------------------------------------

    def commit(self, unit: Unit, result: Result, observed: dict[str, Any]) -> None:
        """Keep a unit's rows and outcome: afterwards it is done, whatever happens.

        observed: attempt, started_at (UTC, ISO 8601), wall_s, host.

        Raises:
            shards.RowError: a row does not fit its table.
            UserError: the disk refused; the unit is as it was.
        """
        if result.state not in STATES:
            raise shards.RowError(f"stage {unit.stage}: no such state '{result.state}'")
        ended = {"state": result.state, "reason": result.reason, "detail": result.detail}
        outcome = {"stage": unit.stage, **ended, "inputs": canonical_json(unit.inputs), **observed}
        table = shards.encode(unit.stage, unit.id, result.rows, outcome)
        path = self.path / unit.stage / unit.id[:2] / f"{unit.id}.parquet"
        self._prepare(unit.stage)
        make_directory(path.parent)
        replace(path, lambda stream: shards.write(stream, [table], unit.stage))
        with self._lock:
            stamp = _stamp(path)
            self._outcomes[path] = (stamp, {unit.id: Outcome(result.state, result.reason, observed["attempt"], path)})
            self._verified |= {(path, name): stamp for name in table.column_names}

    def plan(self, stage: str, units: Sequence[Unit]) -> None:
        """Make these units, in this order, the stage's current plan: its manifest.

        Raises:
            UserError: the disk refused; the former manifest stands.
        """
        ids = [unit.id for unit in units]
        about = {"stage": stage, "units": str(len(ids))}
        if units:
            about |= {"version": str(units[0].version), "params": canonical_json(units[0].params)}
        columns = {"unit_id": pa.array(ids, pa.string()), "position": pa.array(range(len(ids)), pa.int64())}
        columns["inputs"] = pa.array([canonical_json(unit.inputs) for unit in units], pa.string())
        table = pa.table(columns).replace_schema_metadata(about)
        self._prepare(stage)
        path = self.path / stage / "manifest.parquet"
        replace(path, lambda stream: pq.write_table(table, stream, compression="zstd", write_page_checksum=True))

    def _prepare(self, stage: str) -> None:
        """Make the stage's directory, and the file without rows that gives the views their columns."""
        path = self.path / stage / catalog.COLUMNS_FILE
        with self._lock:
            if self._verified.get((path, "")) is not None:
                return
            make_directory(path.parent)
            if not self._has_current_columns(stage):
                replace(path, lambda stream: shards.write(stream, [], stage))
            self._verified[(path, "")] = (0, 0, 0)

    def prepare(self) -> None:
        """Make sure that what every view reads is there and whole: the manifests, and the files of columns.

        Raises:
            UserError: a damaged manifest, or columns that are missing where the disk cannot be written.
        """
        for stage in catalog.planned(self.path):
            self.manifest(stage)
            self._prepare(stage)

    def _has_current_columns(self, stage: str) -> bool:
        try:
            return bool(shards.read(self.path / stage / catalog.COLUMNS_FILE).schema.equals(shards.schema(stage)))
        except (UserError, FileNotFoundError):
            return False

    def compact(self, stage: str, *, at_least: int = SMALL_FILES) -> int:
        """Gather the files of one unit in one larger file, when there are so many of them; how many there were.

        Killed at any point, no unit is lost: the small files go once the large one is on the disk, and a unit
        that stands in both counts once.
        """
        small = [path for path in self.files(stage) if _UNIT.fullmatch(path.stem)]
        if len(small) < max(at_least, 1):
            return 0
        self._gather(stage, small, lambda _: True)
        return len(small)

    def _gather(self, stage: str, sources: list[Path], keep: Callable[[str], bool]) -> None:
        """Write the units of these files that are to be kept into one file, then remove the files."""
        known = {id: outcome for path in sources for id, outcome in self._read_outcomes(path).items() if keep(id)}
        if known:
            name = f"compact-{digest(sorted((id, o.attempt) for id, o in known.items()))}.parquet"
            target = self.path / stage / name
            kept = _gathered(_only(piece, stage, keep) for path in sources for piece in shards.pieces(path))
            replace(target, lambda stream: shards.write(stream, kept, stage))
            sources = [path for path in sources if path != target]
        for path in sources:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise disk_error(path, error) from error
        self._forget(sources)

    def _forget(self, gone: list[Path]) -> None:
        """Let go of the connection and of what is known of files that are gone: DuckDB keeps every file's metadata."""
        with self._lock:
            if self._views is not None:
                self._views.close()
            self._views, self._views_of = None, (None, {})
            missing = set(gone)
            self._verified = {key: stamp for key, stamp in self._verified.items() if key[0] not in missing}

    # -- reading -----------------------------------------------------------------------------------

    def files(self, stage: str) -> list[Path]:
        """The stage's data files: of many units first, then of one.

        Raises:
            UserError: a Parquet file that is none of ours.
        """
        folder = self.path / stage
        # In this order: what is compacted meanwhile stands in the list twice, and not at all the other way round.
        small = sorted(folder.glob("[0-9a-f][0-9a-f]/*.parquet"))
        large = sorted(folder.glob("compact-*.parquet"))
        for path in (*small, *folder.rglob("[0-9a-f]*.parquet")):  # all that the views in `catalog.duckdb` read
            ours = path.parent.parent == folder and _UNIT.fullmatch(path.stem) and path.parent.name == path.stem[:2]
            gathered = path.parent == folder and (path.name == catalog.COLUMNS_FILE or path.match("compact-*.parquet"))
            if not ours and not gathered:
                raise UserError(f"{path}: not a file of this store: move it elsewhere")
        return [*large, *small]

    def complete(self, stage: str) -> dict[str, State]:
        """The state of every unit of the stage that has ended, planned now or earlier, from disk.

        Raises:
            UserError: a damaged file.
        """
        return {id: outcome.state for id, outcome in self.outcomes(stage).items()}

    def outcomes(self, stage: str) -> dict[str, Outcome]:
        """How every unit of the stage ended. Of two files with the same unit, the later attempt counts."""
        with self._lock:
            while True:
                try:
                    return self._latest(self.files(stage))
                except FileNotFoundError:
                    continue  # compacted by the driver between listing and reading: the larger file has the unit

    def _latest(self, files: Iterable[Path]) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        for path in files:
            for id, outcome in self._read_outcomes(path).items():
                if id not in found or found[id].attempt <= outcome.attempt:
                    found[id] = outcome
        return found

    def _read_outcomes(self, path: Path) -> dict[str, Outcome]:
        """Raises: UserError: a damaged file. FileNotFoundError: it is not there (any more)."""
        try:
            stamp = _stamp(path)
            if path in self._outcomes and self._outcomes[path][0] == stamp:
                return self._outcomes[path][1]
            lines = shards.read(path, _OUTCOME_COLUMNS).column(OUTCOMES.name).to_pylist()
        except KeyError:
            raise shards.damaged(path, "no outcomes") from None
        found = {}
        for line in lines:
            if line is not None:
                found[line["unit_id"]] = Outcome(line["state"], line["reason"], line["attempt"], path)
        if _UNIT.fullmatch(path.stem) and list(found) != [path.stem]:
            raise shards.damaged(path, "it holds another unit than its name says")
        self._outcomes[path] = (stamp, found)
        return found

    def manifest(self, stage: str) -> list[str] | None:
        """The ids of the stage's current plan, in order; None when it was never planned.

        Raises:
            UserError: the manifest is damaged.
        """
        path = self.path / stage / "manifest.parquet"
        try:
            stamp = _stamp(path)
            with self._lock:
                known = self._manifests.get(stage)
            if known is None or known[0] != stamp:
                table = shards.read(path, ["unit_id"])
                ids = table.column("unit_id")
                if ids.type != pa.string() or ids.null_count:
                    raise shards.damaged(path, "its unit_id is no text")
                if (of := (table.schema.metadata or {}).get(b"stage", b"").decode(errors="replace")) != stage:
                    raise shards.damaged(path, f"it is of stage {reprlib.repr(of)}")
                known = stamp, ids.to_pylist()
                with self._lock:
                    self._manifests[stage] = known
            return known[1]
        except FileNotFoundError:
            return None
        except KeyError:
            raise shards.damaged(path, "no unit_id") from None

    def rows(self, table: str, where: str = "true", **parameters: Any) -> list[dict[str, Any]]:
        """The table's rows of the current plan as dicts, ordered by the table's key.

        where: a SQL condition with `$name` for each parameter.
        """
        key = ", ".join(f'"{name}"' for name in dict.fromkeys((*BY_NAME[table].key, "unit_id")))
        found: list[dict[str, Any]] = self.sql(
            f'select * from "{table}" where {where} order by {key}', **parameters
        ).to_pylist()
        return found

    def grouped(
        self, table: str, column: str, values: Sequence[str], where: str = "true", **parameters: Any
    ) -> dict[str, list[dict[str, Any]]]:
        """The rows that have one of these values in a column, by that value: one query, however many values."""
        found: dict[str, list[dict[str, Any]]] = {value: [] for value in values}
        for row in self.chosen(table, column, found, where, **parameters):
            found[row[column]].append(row)
        return found

    def chosen(
        self, table: str, column: str, values: Iterable[str], where: str = "true", **parameters: Any
    ) -> list[dict[str, Any]]:
        """The rows that have one of these values in a column.

        Each value is a parameter of its own, which DuckDB looks for while it reads the files; of a list in one
        parameter it makes a join, for which it may first build a table of all rows.
        """
        named = {f"value_{number}": value for number, value in enumerate(dict.fromkeys(values))}
        if not named:
            return []
        among = f'"{column}" IN ({", ".join(f"${name}" for name in named)})'
        return self.rows(table, f"{among} AND ({where})", **named, **parameters)

    def sql(self, query: str, **parameters: Any) -> pa.Table:
        """Ask the views, one for each table, with `$name` parameters.

        Raises:
            UserError: a file that the query needs is damaged.
            duckdb.Error: the query is wrong.
        """
        import duckdb

        with self._lock:
            for _ in range(TRIES):
                try:
                    return catalog.fetch(self._connection(self.verify(query)), query, parameters)
                except duckdb.IOException:
                    # Files may have been compacted away by the driver since they were listed; or one is damaged.
                    self._verified.clear()
                    self._views_of = (None, {})
            try:
                return catalog.fetch(self._connection(self.verify(query)), query, parameters)
            except duckdb.Error as error:
                if is_disk_error_of(error):
                    raise disk_error_of(self.path, error) from error
                raise

    def _connection(self, files: dict[str, list[Path]]) -> Any:
        """DuckDB with the views, those of these stages over just these files: a query sees one state of them."""
        import duckdb

        wanted = catalog.planned(self.path), {**self._views_of[1], **files}
        if self._views is None:
            self._views = duckdb.connect(":memory:")
            self._views.execute("set parquet_metadata_cache = true")
        if wanted != self._views_of:
            self.prepare()
            self._views.execute("; ".join(catalog.statements(self.path, files=wanted[1], public=False)))
            self._views_of = wanted
        return self._views

    def verify(self, query: str) -> dict[str, list[Path]]:
        """Compare the pages that a query may read with their checksums, each once while the file stays as it is.

        Returns:
            The data files of each stage that the query may read.

        Raises:
            UserError: a damaged file, by name.
        """
        listed = {}
        for stage, tables in catalog.tables_read(query).items():
            listed[stage] = self.files(stage)
            for path in listed[stage]:
                self._verify_file(path, tables)
            self.manifest(stage)
        return listed

    def _verify_file(self, path: Path, tables: Sequence[str]) -> None:
        with self._lock:
            try:
                stamp = _stamp(path)
                wanted = [name for name in tables if self._verified.get((path, name)) != stamp]
                with_rows, ended = set[str | None](), set[str | None]([None])
                for piece in shards.pieces(path, [*wanted, OUTCOMES.name]) if wanted else ():
                    if OUTCOMES.name not in piece.column_names:
                        raise shards.damaged(path, "no outcomes")
                    for name in piece.column_names:
                        (ended if name == OUTCOMES.name else with_rows).update(_units_of(piece.column(name)))
                if with_rows - ended:
                    raise shards.damaged(path, "rows of a unit without its outcome")
            except FileNotFoundError:
                return
            except pa.ArrowException as error:  # columns of other types than ours
                raise shards.damaged(path, error) from error
            self._verified |= {(path, name): stamp for name in wanted}

    # -- what no plan names ------------------------------------------------------------------------

    def unnamed(self) -> Iterator[tuple[str, Path, list[str]]]:
        """Stage, file and ids of every unit that no manifest names; files left by a kill come with no ids."""
        for stage in STAGES:
            manifest = self.manifest(stage)
            named = set(manifest or ())
            for path in sorted((self.path / stage).rglob(".*.tmp*")):
                yield stage, path, []
            for path in self.files(stage) if manifest is not None else ():
                ids: list[str] = []
                with suppress(FileNotFoundError):  # compacted by a driver meanwhile
                    ids = sorted(self._read_outcomes(path).keys() - named)
                if ids:
                    yield stage, path, ids
        for path in sorted(self.path.glob(".*.tmp")):
            yield "", path, []

    def remove(self, stage: str, path: Path, ids: list[str]) -> None:
        """Remove these units from a file, and the file when nothing is left in it."""
        gone = set(ids)
        if ids:
            self._gather(stage, [path], lambda id: id not in gone)
        else:
            path.unlink(missing_ok=True)


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables that fill a row group, or `GATHER_BYTES`: no more than that is held in memory."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        full = sum(one.num_rows for one in held) >= shards.ROWS_PER_GROUP
        if full or sum(one.nbytes for one in held) >= GATHER_BYTES:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def _only(table: pa.Table, stage: str, keep: Callable[[str], bool]) -> pa.Table:
    """The rows of units that are kept, in the stage's current columns."""
    import pyarrow.compute as pc

    ids = pc.coalesce(*(pc.struct_field(column, "unit_id") for column in table.columns))
    kept = table.filter(pa.array([keep(id) for id in ids.to_pylist()], pa.bool_()))
    if kept.schema.equals(shards.schema(stage)):
        return kept
    return pa.Table.from_pylist(kept.to_pylist(), schema=shards.schema(stage))


def _units_of(rows: pa.ChunkedArray) -> list[str | None]:
    import pyarrow.compute as pc

    return pc.unique(pc.struct_field(rows, "unit_id")).to_pylist()  # type: ignore[no-any-return]


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def _require_format(head: Path, text: str) -> None:
    try:
        written = json.loads(text)["format"]
        if type(written) is not int:  # true and 1.0 equal 1
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{head}: not readable as the head of a work directory: choose another --workdir") from None
    if written != FORMAT:
        raise UserError(
            f"{head.parent}: a work directory of format {written}, and this dragon reads {FORMAT}: "
            f"use the version that wrote it, or another --workdir"
        )


def _unreadable_head(head: Path, error: Exception) -> UserError:
    return disk_error(head, error) if isinstance(error, OSError) else UserError(f"{head}: not readable: {error}")
