"""Hits the language with mutants in a process of its own: `python hammer.py FIRST COUNT AT [trace]` prints a report.

AT is a file that always holds the seed that is being tried, for whoever finds this process dead. A call that lasts
ten seconds ends the process with a traceback; any exception but TselError, and anything accepted that breaks a rule,
are in the report with their seeds; so is the call that computed longest, for a person to judge.
"""

import faulthandler
import json
import mmap
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import mutants
from legality import faults

from littledragon.schemas import tsel
from littledragon.schemas.graph import Graph
from littledragon.schemas.tsel import TselError

HUNG_S = 10.0
MEMORY = 2 << 30
"""Bytes of address space; a text of one mebibyte that needs more fails with MemoryError."""


def wrong(text: str | bytes) -> tuple[str, str]:
    """Of one text: "refused" or "accepted" or what is wrong, and the rule or the detail."""
    told = tsel.diagnose(text)
    if not 0 <= told.f_div <= 1:
        return "a bad diagnosis", str(told)
    try:
        decoded = tsel.decode(text)
    except TselError as error:
        if error.gate not in ("parsed", "wellformed") or "\n" in str(error) or len(str(error)) > 1000:
            return "a bad message", str(error)
        if (told.gate, told.rule) != (error.gate, error.rule):
            return "a bad diagnosis", f"{told}, not {error}"
        return "refused", f"{error.gate}.{error.rule}"
    if told.gate is not None:
        return "a bad diagnosis", str(told)
    tiles = [
        (step.decision["extent"], step.decision["factors"])
        for edit in decoded.graph.edits
        for step in edit.instructions
        if isinstance(step.decision, dict)
    ]
    if fault := faults(decoded.trace, tiles):
        return "illegal and accepted", fault
    for notation in mutants.NOTATIONS:
        try:
            again = tsel.render(decoded.graph, notation).text
        except TselError as error:
            if error.rule == "size":
                continue
            return "accepted but not written", f"{notation}: {error}"
        other = tsel.decode(again)
        if other.trace != decoded.trace or other.graph != decoded.graph:
            return "written as something else", notation
    if _spelled(decoded.graph) != _spelled(tsel.lift(decoded.trace)):
        return "spelled in two ways", ""
    return "accepted", ""


def _spelled(graph: Graph) -> str:
    """The instructions of a graph, with maps in the place of their names."""

    def inner(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [inner(item) for item in value]
        if isinstance(value, dict):
            name = value.get("map")
            return graph.maps[name] if isinstance(name, str) and len(value) == 1 else value
        return value

    return json.dumps([inner(step) for edit in graph.edits for step in edit.instructions])


def wrong_trace(trace: str) -> tuple[str, str]:
    """The same of one trace."""
    try:
        text = tsel.encode(trace).text
    except TselError as error:
        return "refused", f"{error.gate}.{error.rule}"
    decoded = tsel.decode(text)
    if decoded.trace != tsel.canonical(trace):
        return "decoded to another trace", ""
    return wrong(text)


def strike(first: int, count: int, at: Any, traces: bool) -> dict[str, Any]:
    """The report on `count` seeds from `first`."""
    outcomes: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    done: Counter[str] = Counter()
    bad: list[dict[str, Any]] = []
    slowest = (0.0, first)
    for seed in range(first, first + count):
        at[:] = seed.to_bytes(8, "little")
        signal.setitimer(signal.ITIMER_REAL, HUNG_S)
        made, start = "", time.process_time()
        try:
            made, text = mutants.trace(seed) if traces else mutants.payload(seed)[::2]
            start = time.process_time()
            outcome, detail = wrong_trace(str(text)) if traces else wrong(text)
        except Exception as error:
            outcome, detail = "raised", f"{type(error).__name__}: {str(error)[:200]}"
        taken = time.process_time() - start
        signal.setitimer(signal.ITIMER_REAL, 0)
        slowest = max(slowest, (taken, seed))
        outcomes[outcome] += 1
        rules[detail if outcome == "refused" else outcome] += 1
        done.update(set(made.split("+")))
        accepted.update(set(made.split("+")) if outcome == "accepted" else ())
        if outcome not in ("refused", "accepted"):
            bad.append({"seed": seed, "made": made, "outcome": outcome, "detail": detail})
    return {
        "outcomes": dict(outcomes),
        "rules": dict(rules.most_common()),
        "accepted": {name: [accepted[name], number] for name, number in done.most_common()},
        "bad": bad,
        "slowest_s": slowest,
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> int:
    """What this process has held at most. `ru_maxrss` would count the process that started it, too."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def main(first: str, count: str, at: str, *kind: str) -> None:
    """Prints the report as JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.enable()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, chain=True)
    mutants.bases()
    with Path(at).open("r+b") as file, mmap.mmap(file.fileno(), 8) as place:
        report = strike(int(first), int(count), place, kind == ("trace",))
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
