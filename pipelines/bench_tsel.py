"""`dragon bench tsel`: the codec on traces made on the spot, and on traces recorded on an H200.

Every trace goes to text and back in both notations, and what comes back is replayed. Printed are counts, failures by
reason, sizes against TVM's printed Python, and round trips a second. TVM runs in children only; a child that dies
loses the one workload that it was at.
"""

import gzip
import itertools
import json
import math
import os
import queue
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from littledragon.compiler import children, corpus
from littledragon.pipelines.bench_tables import show
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.progress import Progress, busy

TRACES: Final = 600
SEED: Final = 20251
JOBS: Final = 2
PROBE: Final = "H200 probe"
TURNS: Final = 7
TIMED: Final = 30
"""Traces of each rule set that are timed, at most."""
_MOST: Final = 12
"""Members of one workload, at most: so that a large run sees many extents."""
_WAVES: Final = 60
_CHUNK: Final = 20
_UNIT_S: Final = 600.0
_ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass
class Cell:
    """What came of one family under one rule set."""

    family: str
    rules: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    kept: list[dict[str, str]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    """Workloads whose child died or passed the deadline, with how."""
    broken: list[str] = field(default_factory=list)
    """Workloads on which our own code raised an error."""
    yielded: Counter[str] = field(default_factory=Counter)
    """Members by block."""
    barren: Counter[str] = field(default_factory=Counter)
    """Workloads without a member, by block."""

    def add(self, unit: "Unit", answer: dict[str, Any] | children.ChildError) -> None:
        """Count what one workload, or part of one, gave."""
        if isinstance(answer, children.ChildError):
            (self.broken if answer.kind == "raised" else self.lost).append(f"{unit.name} ({self.rules}): {answer}")
            self.barren[unit.block] += 1
            return
        self.rows += answer["traces"]
        self.kept += answer["kept"]
        self.kinds.update(answer["kinds"])
        self.refused.update(answer["refused"])
        self.yielded[unit.block] += len(answer["traces"]) // 2
        self.barren[unit.block] += not answer["traces"]


@dataclass(frozen=True)
class Unit:
    """One call of a child: `arguments` of `function`, for a cell."""

    cell: Cell
    block: str
    name: str
    function: str
    arguments: dict[str, Any]


def measure(
    console: Console,
    *,
    traces: int = TRACES,
    seed: int = SEED,
    jobs: int = JOBS,
    out: Path | None = None,
    families: Sequence[str] = (),
) -> int:
    """Run the benchmark and print it; the exit code, 1 where a round trip failed or a workload was lost.

    Args:
        console: where it is printed.
        traces: how many are made, about; half of them before post-processing.
        seed: of everything random.
        jobs: child processes.
        out: a file for all figures as JSON, if given.
        families: only these families (`by hand` and `H200 probe` are two); all where it is empty.

    Raises:
        UserError: there is no such family, the recorded traces cannot be read, or `out` cannot be written.
    """
    known = (*dict.fromkeys(family for family, _ in corpus.cells()), PROBE)
    if unknown := [family for family in families if family not in known]:
        raise UserError(f"unknown family '{unknown[0]}': choose of {', '.join(known)}")
    made = [Cell(family, rules) for family, rules in corpus.cells() if not families or family in families]
    recorded, units = _recorded() if not families or PROBE in families else ([], [])
    with Progress("bench tsel") as progress, _Children(jobs) as workers:
        done = 0
        for wave in itertools.chain(_waves(made, traces, seed), [units]):
            progress.plan(done + len(wave), [("ok", None)] * done)
            for unit, answer in workers.map(wave):
                unit.cell.add(unit, answer)
                progress.ended("failed" if isinstance(answer, children.ChildError) else "ok")
            done += len(wave)
    cells = [*made, *recorded]
    with busy("timing"):
        speed = _speed(cells)
    figures = {
        "wanted": traces if made else 0,
        "made": sum(len(cell.rows) for cell in made),
        "seed": seed,
        **_figures(cells),
        "speed": speed,
    }
    show(console, figures)
    if out is not None:
        try:
            out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{out}: cannot be written: {error.strerror}") from None
    return 1 if figures["failed"] else 0


def _waves(cells: list[Cell], traces: int, seed: int) -> Iterator[list[Unit]]:
    """Units of one variant of the workloads after another, until each cell has its share of the traces.

    The next wave depends on what the one before gave, and on nothing else: the same seed plans the same units.
    """
    share = math.ceil(traces / 2 / max(1, len(cells)))
    for variant in (1, 0, *range(2, _WAVES)):  # awkward extents first
        wave = []
        for cell in cells:
            blocks = [b for b in corpus.blocks(cell.family) if cell.yielded[b.id] or cell.barren[b.id] < 2]
            lacking = share - sum(cell.yielded.values())
            for place, block in enumerate(blocks):
                count = min(_MOST, lacking // len(blocks) + (place < lacking % len(blocks)))
                if count > 0:
                    wave.append(_unit(cell, block.id, variant, seed, count))
        if not wave:
            return
        yield wave


def _unit(cell: Cell, block: str, variant: int, seed: int, count: int) -> Unit:
    arguments = {
        "family": cell.family,
        "block": block,
        "variant": variant,
        "rules": cell.rules,
        "seed": seed,
        "count": count,
        "keep": 1 if len(cell.kept) < TIMED else 0,
    }
    return Unit(cell, block, f"{block} variant {variant}", "measure", arguments)


def _recorded() -> tuple[list[Cell], list[Unit]]:
    """The recorded traces, in units of a few; a cell for each rule set."""
    file = _probe()
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        workloads = {row["name"]: row for row in rows if row["kind"] == "workload"}
        candidates = [(row["name"], row["trace"]) for row in rows if row["kind"] == "candidate" and row["trace"]]
        cells = {rules: Cell(PROBE, rules) for rules in sorted({row["rules"] for row in workloads.values()})}
        units = []
        for name, workload in workloads.items():
            found = [trace for of, trace in candidates if of == name]
            cell = cells[workload["rules"]]
            for start in range(0, len(found), _CHUNK):
                arguments = {"module": workload["module"], "traces": found[start : start + _CHUNK]}
                arguments |= {"rules": workload["rules"], "keep": 0 if start else 2}
                units.append(Unit(cell, name, f"{name} from {start}", "recorded", arguments))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: holds no recorded traces that can be read: {error}") from None
    return list(cells.values()), units


def _probe() -> Path:
    """The whole H200 file where it is at hand, otherwise the sample of it that comes along."""
    named = os.environ.get("LITTLEDRAGON_H200")
    whole = Path(named) if named else _ROOT.parent / "shared" / "data" / "h200_probe.jsonl.gz"
    return whole if named or whole.exists() else _ROOT / "samples" / "h200_traces.jsonl.gz"


class _Children:
    """Child processes that do units side by side; answers come in the order of the units."""

    def __init__(self, jobs: int) -> None:
        self._pool = ThreadPoolExecutor(jobs)
        self._all = [children.Child() for _ in range(jobs)]
        self._free: queue.SimpleQueue[children.Child] = queue.SimpleQueue()
        for child in self._all:
            self._free.put(child)

    def __enter__(self) -> "_Children":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for child in self._all:
            child.close()

    def map(self, units: list[Unit]) -> Iterator[tuple[Unit, dict[str, Any] | children.ChildError]]:
        """Each unit with its answer, or with how its child ended."""
        return zip(units, self._pool.map(self._call, units), strict=True)

    def _call(self, unit: Unit) -> dict[str, Any] | children.ChildError:
        child = self._free.get()
        try:
            answer: dict[str, Any] = child.call(
                f"littledragon.compiler.roundtrip:{unit.function}", deadline_s=_UNIT_S, **unit.arguments
            )
            return answer
        except children.ChildError as error:
            return error
        finally:
            self._free.put(child)


def _speed(cells: list[Cell]) -> dict[str, Any]:
    """Rates by rule set, one after the other in one process, with nothing beside it."""
    found: dict[str, Any] = {}
    child = children.Child()
    try:
        for recorded, rules in itertools.product((False, True), dict.fromkeys(cell.rules for cell in cells)):
            per_cell = [cell.kept for cell in cells if cell.rules == rules and (cell.family == PROBE) == recorded]
            # By turns over the families, so that a few traces stand for all of them.
            kept = [k[i] for i in range(max(map(len, per_cell), default=0)) for k in per_cell if i < len(k)][:TIMED]
            if not kept:
                continue
            name = f"{PROBE}, {rules}" if recorded else rules
            found[name] = {"traces": len(kept)}
            try:
                rates = child.call("littledragon.compiler.roundtrip:speed", deadline_s=_UNIT_S, kept=kept, turns=TURNS)
                found[name] |= rates
            except children.ChildError as error:
                found[name] |= {"error": str(error)}
    finally:
        child.close()
    return found


def _figures(cells: list[Cell]) -> dict[str, Any]:
    """Everything that was counted, as plain JSON."""
    refused: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    lossy: Counter[str] = Counter()
    for cell in cells:
        kinds.update(cell.kinds)
        refused.update({f"{cell.rules}: {reason}": count for reason, count in cell.refused.items()})
        for row in cell.rows:
            if row["lossy"]:
                lossy[f"{cell.rules}: {row['lossy']} ({'; '.join(row['failures'])})"] += 1
            else:
                failures.update(f"{cell.family}, {cell.rules}: {reason}" for reason in row["failures"])
    broken = [words for cell in cells for words in cell.broken]
    lost = [words for cell in cells for words in cell.lost]
    return {
        "cells": [_counts(cell) for cell in cells],
        "sizes": _sizes(cells),
        "kinds": dict(kinds.most_common()),
        "refused": dict(refused.most_common()),
        "failures": dict(failures.most_common()),
        "lossy": dict(lossy.most_common()),
        "lost": lost,
        "broken": broken,
        "failed": bool(failures or lost or broken),
    }


def _counts(cell: Cell) -> dict[str, Any]:
    rows = cell.rows
    derivable = [row["derived"] for row in rows if row["derived"] is not None]
    return {
        "family": cell.family,
        "rules": cell.rules,
        "traces": len(rows),
        "before": sum(not row["after"] for row in rows),
        "after": sum(row["after"] for row in rows),
        "distinct": len({row["key"] for row in rows}),
        "trees": sum(row["tree"] for row in rows),
        "modules": sum(row["module"] for row in rows),
        "failures": sum(bool(row["failures"]) and not row["lossy"] for row in rows),
        "lossy": sum(bool(row["lossy"]) for row in rows),
        "derived": sum(derivable) / len(derivable) if derivable else None,
    }


def _sizes(cells: list[Cell]) -> list[dict[str, Any]]:
    """Medians of text length over printed Python, of post-processed traces: by family, by both, by rule set."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        rows = [row["sizes"] for row in cell.rows if row["after"]]
        for key in ((cell.family, "all"), (cell.family, cell.rules), ("all made here", cell.rules)):
            if rows and not (key[0] == "all made here" and cell.family in (PROBE, corpus.BY_HAND)):
                groups.setdefault(key, []).extend(rows)
    order = sorted(groups, key=lambda key: (key[0] == "all made here", key[0] in (PROBE, corpus.BY_HAND), key))
    return [{"family": f, "rules": r, "traces": len(groups[f, r]), **_medians(groups[f, r])} for f, r in order]


def _medians(sizes: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    import statistics

    found: dict[str, list[float | None]] = {}
    for text in ("line derived", "line", "json derived", "json"):
        both: list[float | None] = []
        for unit in (0, 1):
            ratios = [
                row[text][unit] / row["python"][unit]
                for row in sizes
                if text in row and row["python"][unit] is not None
            ]
            both.append(statistics.median(ratios) if ratios else None)
        found[text] = both
    return found
