"""`dragon import` and `dragon export --metaschedule`: between the store and MetaSchedule's JSON databases.

What is imported becomes rows of `imports`, a table that no stage plans: the search takes those that passed the gates
of the language as candidates of its first round, and builds, checks and times them like its own. Nothing else of a
database counts, least of all its latencies. What is exported are verified traces, for the modules under which a
compiler looks them up (compiler/databases.py).
"""

import hashlib
import json
import math
import os
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

from littledragon.compiler import children, databases, outside, targets
from littledragon.compiler.children import ChildError
from littledragon.compiler.databases import RECORDS, WORKLOADS, Bad, Record
from littledragon.pipelines import catalog
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.files import content_of, disk_error, make_directory, sync_directory, temporary
from littledragon.pipelines.lease import acquire_all
from littledragon.pipelines.progress import say
from littledragon.pipelines.stage import Result, Unit
from littledragon.pipelines.store import Store
from littledragon.schemas.gates import OK
from littledragon.schemas.ids import content_id, digest

NAME: Final = "import"
VERSION: Final = 1
MOST_BYTES: Final = 1 << 30
"""Of each file of a database."""
MOST_LINE: Final = 16 << 20
SLICE: Final = 64
"""So many modules or workloads at once."""
ADMIT_DEADLINE_S: Final = 120.0
"""For one trace; the child's start, and its import of tensor intrinsics, included."""
LOWER_DEADLINE_S: Final = 300.0
MANY_FILES: Final = 32
"""So many files of one workload are gathered in one."""
NAMED: Final = 10
"""So many bad lines are named; all are counted."""

Row = dict[str, Any]


# -- import ----------------------------------------------------------------------------------------


@dataclass
class Imported:
    """What became of a database's records."""

    records: int = 0
    known: set[str] = field(default_factory=set)
    """Workloads of the work directory that it has records of."""
    accepted: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """By gate."""
    left: Counter[str] = field(default_factory=Counter)
    """Records that are none of ours, by reason."""
    strange: set[str] = field(default_factory=set)
    """Workloads that the work directory does not have."""
    bad: int = 0
    named: list[str] = field(default_factory=list)
    repeated: int = 0
    """Workload lines that hold a workload of an earlier line."""

    def complain(self, file: Path, line: int, why: str) -> None:
        """Count a line that cannot be read."""
        self.bad += 1
        if len(self.named) < NAMED:
            self.named.append(f"{file.name}, line {line}: {why}")

    def lines(self) -> Iterator[str]:
        """What a person wants to know of it."""
        yield f"{self.records} records: {self.accepted} are candidates now, of {len(self.known)} workloads"
        for gate, count in sorted(self.failed.items()):
            yield f"  {count} failed the gate {gate}: select reason from imports where status = '{gate}'"
        for reason, count in sorted(self.left.items()):
            of = f" ({len(self.strange)} workloads)" if reason == _STRANGE else ""
            yield f"  {count} {reason}{of}"
        if self.repeated:
            yield f"  {self.repeated} workload lines repeat an earlier one"
        if self.bad:
            yield f"  {self.bad} lines cannot be read, for example:"
            yield from (f"    {name}" for name in self.named)


_STRANGE: Final = "of workloads that this work directory does not have"


def import_(store: Store, workloads: Path, records: Path, target: str, best: int | None = None) -> Imported:
    """Take the records of a database that are for workloads of the store into `imports`.

    Importing another database adds to what was imported; importing one again changes nothing.

    Args:
        workloads, records: the two files, from anywhere.
        target: llvm or cuda; records of other targets are left out.
        best: of each workload only so many, those that the file claims to be the fastest.

    Raises:
        UserError: a file is missing or too large, the store has no workloads, another driver imports or searches, or
            the disk refused.
    """
    database = digest([content_of(file, MOST_BYTES) for file in (workloads, records)])
    done = Imported()
    with acquire_all(store.path, (NAME, "search")):  # a search that plans meanwhile would see the half of it
        if store.manifest("workloads") is None:
            raise UserError(f"{store.path}: there are no workloads yet: run `dragon workloads` first")
        ids = _identified(workloads, done)
        wanted = _chosen(records, ids, _there(store, ids), target, best, done)
        units, ended = [], store.complete(NAME)
        for workload_id, listed in wanted.items():
            unit = Unit(
                NAME, VERSION, {"target": target}, {"database": database, "workload_id": workload_id, "best": best}
            )
            units.append(unit)
            if unit.id not in ended:
                _commit(store, unit, listed, target, database)
        earlier = [unit for unit in _planned(store) if unit.id not in {unit.id for unit in units}]
        if units:
            store.plan(NAME, [*earlier, *units])
            store.compact(NAME, at_least=MANY_FILES)
            for row in store.chosen("imports", "unit_id", [unit.id for unit in units]):
                done.accepted += row["status"] == OK
                done.failed += Counter([row["status"]] if row["status"] != OK else [])
    catalog.write(store.path)
    return done


def imported(store: Store, workload_ids: Sequence[str], target: str) -> dict[str, list[str]]:
    """The imported traces of each of these workloads that passed the gates of the language, in order of their ids.

    Workloads without any are left out.
    """
    found: dict[str, list[str]] = {}
    if store.manifest(NAME) is None:
        return found
    where = "target = $target AND status = 'ok'"
    for workload_id, rows in store.grouped("imports", "workload_id", workload_ids, where, target=target).items():
        if rows:
            found[workload_id] = list(dict.fromkeys(row["trace"] for row in rows))
    return found


def files_of(paths: Sequence[Path]) -> tuple[Path, Path]:
    """The two files of a database that a user names: a folder that holds them, or both.

    Raises:
        UserError: neither.
    """
    if len(paths) == 1 and paths[0].is_dir():
        return paths[0] / WORKLOADS, paths[0] / RECORDS
    if len(paths) == 2:
        return paths[0], paths[1]
    given = " ".join(map(str, paths)) or "nothing"
    wanted = f"give a folder that holds {WORKLOADS} and {RECORDS}, or the two files in this order"
    raise UserError(f"{given}: no such pair of files: {wanted}")


def _lines(file: Path) -> Iterator[tuple[int, bytes | None]]:
    """The lines of a file with their numbers, from 1; None for one that is too long."""
    try:
        with file.open("rb") as stream:
            number = 0
            while piece := stream.readline(MOST_LINE + 1):
                number += 1
                short = len(piece) <= MOST_LINE or piece.endswith(b"\n")
                yield number, piece if short else None
                while not short and piece and not piece.endswith(b"\n"):
                    piece = stream.readline(MOST_LINE)
    except OSError as error:
        raise disk_error(file, error) from error


def _identified(file: Path, done: Imported) -> list[str | None]:
    """The workload of each line of `database_workload.json`; None where it has none."""
    found: list[str | None] = []
    held: list[tuple[int, str]] = []

    def flush() -> None:
        for (place, _), answer in zip(held, _identify([text for _, text in held]), strict=True):
            found[place] = answer["workload_id"]
            if answer["problem"]:
                done.complain(file, place + 1, answer["problem"])
        held.clear()

    for number, line in _lines(file):
        found.append(None)
        try:
            held.append((number - 1, databases.workload_of(_whole(line))))
        except Bad as bad:
            done.complain(file, number, str(bad))
        if len(held) == SLICE or sum(len(text) for _, text in held) > MOST_LINE:
            flush()
    flush()
    there = [id for id in found if id]
    done.repeated = len(there) - len(set(there))
    return found


def _whole(line: bytes | None) -> bytes:
    if line is None:
        raise Bad(f"longer than {MOST_LINE >> 20} MiB")
    return line


def _identify(texts: list[str]) -> list[Row]:
    """The workloads in these texts; one that kills its child is found by asking for each alone."""
    if not texts:
        return []
    try:
        answer: list[Row] = children.worker("identify").call(
            "littledragon.compiler.databases:identify", deadline_s=60.0 + 2.0 * len(texts), modules=texts
        )
        return answer
    except ChildError as error:
        if len(texts) == 1:
            return [{"workload_id": None, "problem": f"TVM cannot read its module: {error}"}]
    return [answer for text in texts for answer in _identify([text])]


def _there(store: Store, ids: Sequence[str | None]) -> set[str]:
    known = "SELECT DISTINCT workload_id FROM workloads WHERE state = 'ok' AND workload_id IN (SELECT unnest($ids))"
    return set(store.sql(known, ids=sorted({id for id in ids if id})).column(0).to_pylist())


def _chosen(
    file: Path, ids: Sequence[str | None], there: set[str], target: str, best: int | None, done: Imported
) -> dict[str, list[tuple[int, Record]]]:
    """The records to try, with their lines, by workload; why the others are left out is counted."""
    chosen: dict[str, list[tuple[int, Record]]] = {}
    seen: set[tuple[str, str]] = set()
    for number, line in _lines(file):
        try:
            record = databases.record_of(_whole(line))
            if record.workload >= len(ids):
                raise Bad(f"its workload is line {record.workload + 1} of {len(ids)}")
        except Bad as bad:
            done.complain(file, number, str(bad))
            continue
        done.records += 1
        workload_id = ids[record.workload]
        key = str(workload_id), hashlib.sha256(record.trace.encode()).hexdigest()
        if workload_id is None:
            done.left["of a workload line that cannot be read"] += 1
        elif workload_id not in there:
            done.left[_STRANGE] += 1
            done.strange.add(workload_id)
        elif record.kind not in ("", target):
            done.left[f"for another target than {target}"] += 1
        elif key in seen:
            done.left["repeat an earlier trace"] += 1
        else:
            seen.add(key)
            chosen.setdefault(workload_id, []).append((number, record))
    done.known = set(chosen)
    if best is not None:
        for workload_id, listed in chosen.items():
            listed.sort(key=lambda one: (math.inf if one[1].seconds is None else one[1].seconds, one[0]))
            done.left[f"are not among the {best} of their workload that it claims are fastest"] += len(listed[best:])
            chosen[workload_id] = listed[:best]
        done.left = +done.left
    return dict(sorted(chosen.items()))


def _commit(store: Store, unit: Unit, listed: list[tuple[int, Record]], target: str, database: str) -> None:
    """Pass the records of one workload through the gates parsed … encoded on its M0, and keep the rows."""
    began, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    workload_id = unit.inputs["workload_id"]
    module = store.rows("workloads", "workload_id = $id AND state = 'ok'", id=workload_id)[0]["module"]
    rows = []
    for line, record in listed:
        identity = {"workload": workload_id, "target": targets.target(target), "trace": record.trace}
        status, reason = _admitted(module, record.trace, target)
        rows.append(
            {
                "candidate_id": content_id("c", identity),
                "workload_id": workload_id,
                "target": target,
                "database": database,
                "line": line,
                "trace": record.trace,
                "status": status,
                "reason": reason,
            }
        )
    observed = {"attempt": 1, "started_at": started, "wall_s": time.monotonic() - began, "host": socket.gethostname()}
    store.commit(unit, Result({"imports": rows}), observed)


def _admitted(module: str, trace: str, target: str) -> tuple[str, str | None]:
    """The first gate that refuses a trace and why, or ok."""
    try:
        answer = children.worker("propose").call(
            "littledragon.compiler.traces:admit",
            deadline_s=ADMIT_DEADLINE_S,
            module=module,
            trace=trace,
            target=targets.target(target),
        )
    except ChildError as error:
        return "replayed", str(error)
    return answer["failed"] or OK, answer["reason"]


def _planned(store: Store) -> list[Unit]:
    """The units of what was imported before, as far as this version would make them again."""
    named = set(store.manifest(NAME) or ())
    units = []
    for row in store.rows("outcomes", "stage = $stage", stage=NAME) if named else ():
        for target in ("llvm", "cuda"):
            units.append(Unit(NAME, VERSION, {"target": target}, json.loads(row["inputs"])))
    return [unit for unit in units if unit.id in named]


# -- export ----------------------------------------------------------------------------------------


@dataclass
class Exported:
    """What was written."""

    workloads: int = 0
    forms: int = 0
    records: int = 0
    left: list[str] = field(default_factory=list)
    """Why workloads or traces were left out, in lines."""


def export(
    store: Store,
    folder: Path,
    target: str,
    *,
    best: int = 1,
    models: Sequence[str] = (),
    environment: str | None = None,
) -> Exported:
    """Write verified traces that beat the default schedule as a database of MetaSchedule.

    Args:
        folder: is made; it may be there and empty.
        target: llvm or cuda.
        best: so many traces of each workload, the fastest first.
        models: files of the user's own models, whose functions are written too where they are workloads of the store.
        environment: whose latencies; needed where the store has those of several for the target.

    Raises:
        UserError: nothing to write, a folder that is not empty, no or several environments, or the disk refused.
    """
    _require_free(folder)
    for name in models:
        if Path(name).suffix not in outside.SUFFIXES:
            raise UserError(f"{name}: not a model: give a file that ends in {', '.join(outside.SUFFIXES)}")
        content_of(Path(name), outside.MOST_BYTES)
    here = _environment(store, target, environment)
    if here["device"] == "simulated":
        say(f"export: the latencies of {here['environment_id']} are simulated: no machine has run these schedules")
    chosen = _verified(store, here["environment_id"], best)
    if not chosen:
        raise UserError(f"{store.path}: no verified trace beats a default schedule on {target}: run `dragon verify`")
    done, setting = Exported(), json.loads(here["target"])
    with _aside(folder) as scratch:
        _write(store, scratch, chosen, models, setting, done)
        if not done.records:
            raise UserError(f"{folder}: nothing to write: {'; '.join(done.left)}")
        _prove(scratch, setting, done)
        sync_directory(scratch)
        try:
            scratch.rename(folder)
            sync_directory(folder.parent)
        except OSError as error:
            raise disk_error(folder, error) from error
    return done


def _require_free(folder: Path) -> None:
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder}: is there already and not an empty folder: choose another")
    except OSError as error:
        raise disk_error(folder, error) from error


def _environment(store: Store, target: str, wanted: str | None) -> Row:
    """The environment whose verified latencies are written."""
    query = "SELECT * FROM environments WHERE environment_id IN (SELECT environment_id FROM anchors WHERE state = 'ok')"
    found = [row for row in store.sql(query).to_pylist() if json.loads(row["target"])["kind"] == target]
    if wanted is not None:
        found = [row for row in found if row["environment_id"] == wanted]
    if not found:
        which = f"environment {wanted}" if wanted else f"target {target}"
        raise UserError(f"{store.path}: it has no verified workload of {which}: run `dragon verify`")
    if len(found) > 1:
        ids = ", ".join(sorted(f"{row['environment_id']} ({row['processor']}, {row['device']})" for row in found))
        raise UserError(f"{store.path}: latencies of several environments: name one with --environment: {ids}")
    return dict(found[0])


VERIFIED: Final = """
    SELECT v.workload_id, v.candidate_id, v.latency_us
    FROM verdicts AS v JOIN anchors AS a USING (workload_id, environment_id)
    WHERE a.state = 'ok' AND v.status = 'ok' AND v.role <> 'default' AND v.latency_us < a.default_us
      AND v.environment_id = $here
    ORDER BY v.workload_id, v.latency_us, v.candidate_id
"""


def _verified(store: Store, here: str, best: int) -> dict[str, list[Row]]:
    """The candidates to write of each workload, the fastest first."""
    found: dict[str, list[Row]] = {}
    for row in store.sql(VERIFIED, here=here).to_pylist():
        found.setdefault(row["workload_id"], []).append(row)
    return {workload_id: rows[:best] for workload_id, rows in found.items()}


@dataclass(frozen=True)
class _Source:
    """Where forms of workloads come from: a block of the zoo in some configurations, or a model."""

    name: str
    function: str
    arguments: Row
    wanted: list[str]


MADE_BY: Final = """
    SELECT e.block_id, e.configuration, e.workload_id, o.inputs
    FROM extractions AS e JOIN outcomes AS o USING (unit_id)
    WHERE e.state = 'ok' AND e.workload_id IN (SELECT unnest($ids))
    ORDER BY e.block_id, e.configuration, e.task
"""


def _sources(store: Store, ids: Sequence[str], models: Sequence[str]) -> Iterator[_Source]:
    """The user's models first, then every zoo block that one of these workloads comes from."""
    for name in models:
        yield _Source(name, "forms_of_model", {"path": str(Path(name).absolute())}, list(ids))
    blocks: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for row in store.sql(MADE_BY, ids=list(ids)).to_pylist():
        inputs = json.loads(row["inputs"])
        if "zoo" in inputs:
            cases, wanted = blocks.setdefault((inputs["zoo"], row["block_id"]), ({}, {}))
            cases[row["configuration"]] = wanted[row["workload_id"]] = None
    for (zoo, block_id), (cases, wanted) in blocks.items():
        yield _Source(block_id, "forms_of_blocks", {"zoo": zoo, "cases": {block_id: list(cases)}}, list(wanted))


def _write(
    store: Store, folder: Path, chosen: dict[str, list[Row]], models: Sequence[str], target: Row, done: Exported
) -> None:
    """Write both files, block after block: what is held in memory is that of one."""
    written: set[str] = set()
    homes: set[str] = set()
    refused: Counter[str] = Counter()
    with _synced(folder / WORKLOADS) as workloads, _synced(folder / RECORDS) as records:
        for source in _sources(store, list(chosen), models):
            for workload_id, entries in _entries(store, source, chosen, target, done):
                for entry in entries:
                    refused.update(entry["refused"])
                    if entry["workload"][0] in written or not entry["records"]:
                        continue
                    written.add(entry["workload"][0])  # its structural hash: equal modules have one line
                    homes.add(workload_id)
                    workloads.write(_line(entry["workload"]))
                    for record in entry["records"]:
                        records.write(_line([done.forms, record]))
                    done.forms += 1
                    done.records += len(entry["records"])
    done.workloads = len(homes)
    done.left += [f"{count} traces: {reason}" for reason, count in sorted(refused.items())]
    if missing := set(chosen) - homes:
        why = "their model or block was not given or has changed, give your own with --from"
        done.left.append(f"{len(missing)} workloads have no form here ({why}): {', '.join(sorted(missing)[:3])}")


def _entries(
    store: Store, source: _Source, chosen: dict[str, list[Row]], target: Row, done: Exported
) -> Iterator[tuple[str, list[Row]]]:
    """Workload and entries of a source's forms (compiler/databases.py, `entries`); what fails is said in a line."""
    forms: dict[str, list[str]] = {}
    try:
        lowering = children.worker("import" if source.function == "forms_of_model" else "lower")
        for row in lowering.call(
            f"littledragon.compiler.databases:{source.function}",
            deadline_s=LOWER_DEADLINE_S,
            target=target,
            wanted=source.wanted,
            **source.arguments,
        ):
            forms.setdefault(row["workload_id"], []).append(row["module"])
    except ChildError as error:
        done.left.append(f"{source.name} could not be lowered: {error}")
        return
    modules = store.grouped("workloads", "workload_id", list(forms), "state = 'ok'")
    ids = sorted({row["candidate_id"] for workload_id in forms for row in chosen[workload_id]})
    traces = store.grouped("traces", "candidate_id", ids)
    for workload_id, listed in forms.items():
        candidates = [
            {"trace": traces[row["candidate_id"]][0]["trace"], "latency_us": row["latency_us"]}
            for row in chosen[workload_id]
            if traces[row["candidate_id"]]
        ]
        try:
            entries = children.worker("propose").call(
                "littledragon.compiler.databases:entries",
                deadline_s=ADMIT_DEADLINE_S * (1 + len(listed) * len(candidates)),
                module=modules[workload_id][0]["module"],
                forms=listed,
                candidates=candidates,
                target=target,
            )
        except ChildError as error:
            done.left.append(f"{workload_id}: its traces could not be replayed: {error}")
            continue
        yield workload_id, entries


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _prove(folder: Path, target: Row, done: Exported) -> None:
    """Have TVM read the database in a fresh process, and ask it for every workload.

    Raises:
        UserError: it cannot, or a workload has no answer; nothing is written.
    """
    try:
        found = children.once(
            "littledragon.compiler.databases:check",
            deadline_s=60.0 + 2.0 * done.records,
            folder=str(folder),
            target=target,
        )
    except ChildError as error:
        raise UserError(f"TVM cannot read the database that was written, so it was removed: {error}") from None
    if found["records"] != done.records or len(found["answers"]) != done.forms or not all(found["answers"]):
        answered = sum(found["answers"])
        raise UserError(f"TVM answers for {answered} of {done.forms} workloads of the database, so it was removed")


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A folder beside `folder`, which is gone afterwards unless it was renamed."""
    folder = folder.absolute()
    make_directory(folder.parent)
    scratch = temporary(folder)
    try:
        scratch.mkdir()
        yield scratch
    except OSError as error:
        raise disk_error(folder, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _synced(file: Path) -> Iterator[BinaryIO]:
    """A new file, on the disk once the context ends."""
    with file.open("xb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
