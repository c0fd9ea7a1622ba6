"""Mutants of real texts, graphs and traces: hostile, wrong, or another legal schedule; each made anew from its seed.

Three levels. A text mutant changes characters: references, numbers, lines, nodes, encodings, sizes. A graph mutant
changes instructions and numbers their outputs again, so that many stay well-formed. A trace mutant changes the nodes
of a `save_json` graph. `payload(seed)` is a text of either of the first two levels; `trace(seed)` is the third.
"""

import dataclasses
import functools
import gzip
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

from graph_mutants import decisions, regraph
from text_mutants import BYTEWISE, HOSTILE, TEXTS
from trace_mutants import retrace

from littledragon.schemas import tsel
from littledragon.schemas.graph import Analysis, Edge, Effect, Evidence, Graph

ROOT = Path(__file__).parents[2]
NOTATIONS = ("line", "json")


class Base(NamedTuple):
    """A real trace, the workload that it schedules, its graph and that graph's texts in both notations."""

    workload: str
    target: str
    trace: str
    graph: Graph
    texts: tuple[str, str]


class Mutant(NamedTuple):
    """A text, and what was done to get it. `base` is the number of the text that it was made from."""

    done: str
    base: int
    text: str | bytes


@functools.cache
def modules() -> dict[str, str]:
    """M0 of every workload, as `save_json`."""
    found = {row["name"]: row["module"] for row in _sample() if row["kind"] == "workload"}
    golden = ROOT / "tests" / "golden" / "release"
    return found | {"matmul": (golden / "module.json").read_text(encoding="utf-8").strip()}


@functools.cache
def bases() -> tuple[Base, ...]:
    """The sampled H200 traces, the llvm traces among the golden files, and the primitives that search never emits."""
    golden = ROOT / "tests" / "golden"
    found = [_base(row["name"], "cuda", row["trace"]) for row in _sample() if row["kind"] == "candidate"]
    for name in ("fast", "slow"):
        trace = (golden / "release" / f"trace_{name}.json").read_text(encoding="utf-8").strip()
        found.append(_base("matmul", "llvm", trace))
    found.append(_base("", "llvm", (golden / "tsel" / "llvm.trace.json").read_text(encoding="utf-8").strip()))
    with (golden / "tsel" / "primitives.jsonl").open(encoding="utf-8") as lines:
        found += [_base("", "llvm", json.loads(line)) for line in lines]
    return tuple(found)


@functools.cache
def _sample() -> list[dict[str, Any]]:
    with gzip.open(ROOT / "samples" / "h200_traces.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _base(workload: str, target: str, trace: str) -> Base:
    graph = tsel.lift(trace)
    told = explained(graph)
    return Base(workload, target, trace, graph, (tsel.render(told, "line").text, tsel.render(told, "json").text))


def explained(graph: Graph) -> Graph:
    """The graph with a node of each role."""
    first = graph.edits[0].id
    return dataclasses.replace(
        graph,
        evidence=(Evidence("e0", "in.loop.k.extent", "the loop k has extent 128 < 256 & more"),),
        analyses=(Analysis("a0", "It is long enough to split [in.loop.k.extent=128]."),),
        effects=(Effect("p0", "Fewer loads."),),
        edges=(Edge("supports", "e0", "a0"), Edge("motivates", "a0", first), Edge("predicts", first, "p0")),
    )


def payload(seed: int) -> Mutant:
    """The text mutant of a seed."""
    draw = random.Random(seed)
    number = draw.randrange(len(bases()))
    base = bases()[number]
    notation = draw.randrange(2)
    if draw.random() < 0.01:
        name, huge = draw.choice(HOSTILE)
        return Mutant(name, number, huge(draw, base.texts[notation]))
    done = []
    text: str | bytes = base.texts[notation]
    share = draw.random()
    if share < 0.5:
        name, graph = regraph(draw, base.graph)
        done.append(name)
        try:
            text = tsel.render(graph, NOTATIONS[notation]).text
        except tsel.TselError:
            done.append("unwritable")
    if share > 0.4:
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            name, change = draw.choice(TEXTS)
            done.append(name)
            text = change(draw, text)
        if draw.random() < 0.06:
            name, spoil = draw.choice(BYTEWISE)
            done.append(name)
            text = spoil(draw, text)
    return Mutant("+".join(done), number, text)


def trace(seed: int) -> tuple[str, str]:
    """What was done to a real trace, and the trace mutant of a seed."""
    draw = random.Random(seed)
    return retrace(draw, draw.choice(bases()).trace)


def schedule(seed: int) -> tuple[Base, str] | None:
    """A workload's base and another text for it, for replay: every third with other decisions only. None where the
    language refuses the mutant."""
    draw = random.Random(seed)
    real = [base for base in bases() if base.workload]
    target = draw.choice(("cuda", "cuda", "llvm"))
    base = draw.choice([base for base in real if base.target == target])
    graph = decisions(draw, base.graph) if draw.random() < 0.34 else regraph(draw, base.graph)[1]
    try:
        tsel.spell(graph)
        text = tsel.render(graph, draw.choice(NOTATIONS)).text
        tsel.decode(text)
    except tsel.TselError:
        return None
    return base, text
