"""`dragon bench builds`: what a CUDA build costs, step by step, and NVRTC here against TVM's own call of it.

Built are recorded schedules, tensor-core ones among them. Both sides compile the same source in one process by turns:
ours with stand-ins for the headers of libcu++, TVM's as its `compile_cuda` does. What they give must be the same
machine code, byte for byte. No GPU is needed.
"""

import gzip
import importlib.util
import json
import os
import random
import statistics
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from littledragon.compiler import children, nvrtc, targets
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.progress import Progress

SAMPLE: Final = 24
SEED: Final = 0
TURNS: Final = 3
DEADLINE_S: Final = 600.0
"""For one schedule: TVM's intrinsics in a child's first replay, and the slowest kernels, included."""
_STEPS: Final = {
    "lower_ms": "lowering, code generation and the host's object",
    "slim_ms": "NVRTC, stand-in headers",
    "host_ms": "writing and packing both objects",
    "link_ms": "linking",
    "tvm_ms": "TVM's own call of NVRTC",
}
_SAMPLES: Final = Path(__file__).resolve().parents[1] / "samples" / "h200_traces.jsonl.gz"

Row = dict[str, Any]


def measure(console: Console, *, sample: int = SAMPLE, seed: int = SEED, out: Path | None = None) -> int:
    """Build a sample of recorded schedules and print what that costs; the exit code, 1 where machine code differs.

    Args:
        console: where it is printed.
        sample: schedules, of as many workloads as there are.
        seed: of the sample.
        out: a file for all results as JSON, if given.

    Raises:
        UserError: there is no NVRTC or no bindings for TVM's own call, no recorded schedule can be read, or `out`
            cannot be written.
    """
    _require()
    chosen = _sampled(sample, seed)
    results = []
    child = children.Child()
    try:
        with Progress("bench builds") as progress:
            progress.plan(len(chosen), [])
            for module, name, trace in chosen:
                result = {"workload": name, **_profile(child, module, trace)}
                results.append(result)
                progress.ended("ok" if result.get("same") else "failed")
    finally:
        child.close()
    built = [result for result in results if "same" in result]
    for result in results:
        if "error" in result:
            console.print(f"{result['workload']}: {result['error']}", markup=False, soft_wrap=True)
    if built:
        _print(console, built)
    if out is not None:
        try:
            out.write_text(json.dumps({"nvrtc": nvrtc.version(), "results": results}, indent=1) + "\n", "utf-8")
        except OSError as error:
            raise UserError(f"{out}: cannot be written: {error.strerror}") from None
    return 0 if len(built) == len(results) and all(result["same"] for result in built) else 1


def _require() -> None:
    try:
        nvrtc.toolkit()
    except ValueError as error:
        raise UserError(f"bench builds: {error}") from None
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        raise UserError("bench builds: TVM's own call of NVRTC needs its bindings: pip install cuda-bindings")


def _sampled(sample: int, seed: int) -> list[tuple[str, str, str]]:
    """Module, name and trace of recorded candidates: one of each workload by turns, both in random order."""
    file = Path(os.environ.get("LITTLEDRAGON_H200") or _SAMPLES)
    modules: dict[str, str] = {}
    traces: dict[str, list[str]] = {}
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                if row["kind"] == "workload":
                    modules[row["name"]] = row["module"]
                elif row["kind"] == "candidate" and row["trace"]:
                    traces.setdefault(row["name"], []).append(row["trace"])
        chance = random.Random(seed)
        names = chance.sample(sorted(traces), len(traces))
        for found in traces.values():
            chance.shuffle(found)
        most = max(map(len, traces.values()), default=0)
        chosen = [(modules[n], n, traces[n][turn]) for turn in range(most) for n in names if turn < len(traces[n])]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: holds no recorded traces that can be read: {error}") from None
    if not chosen:
        raise UserError(f"{file}: holds no recorded traces")
    return chosen[:sample]


def _profile(child: children.Child, module: str, trace: str) -> Row:
    target = targets.target("cuda")
    try:
        applied = child.call(
            "littledragon.compiler.traces:admit", deadline_s=DEADLINE_S, module=module, trace=trace, target=target
        )
        if applied["failed"]:
            return {"error": f"stops at gate {applied['failed']}: {applied['reason']}"}
        found: Row = child.call(
            "littledragon.compiler.build:profile",
            deadline_s=DEADLINE_S,
            scheduled=applied["scheduled"],
            target=target,
            turns=TURNS,
        )
    except children.ChildError as error:
        return {"error": str(error)}
    return found


def _print(console: Console, built: list[Row]) -> None:
    """Each step's CPU time over all schedules, and the ratio of TVM's call to ours."""
    table = Table("CPU time", "median ms", "least ms", "most ms")
    for step, words in _STEPS.items():
        spent = [statistics.median(r[step]) if isinstance(r[step], list) else r[step] for r in built]
        table.add_row(words, *(f"{value:.0f}" for value in (statistics.median(spent), min(spent), max(spent))))
    console.print(table)
    turns = [theirs / ours for r in built for theirs, ours in zip(r["tvm_ms"], r["slim_ms"], strict=True)]
    total = sum(sum(r["tvm_ms"]) for r in built) / sum(sum(r["slim_ms"]) for r in built)
    console.print(
        f"TVM's own call of NVRTC over ours: ratio {statistics.median(turns):.2f} (from {min(turns):.2f} to "
        f"{max(turns):.2f} over {TURNS} turns of {len(built)} kernels), {total:.2f} in all"
    )
    console.print(
        f"{sum(r['same'] for r in built)} of {len(built)} have the same machine code; "
        f"{sum(r['headers'] == 'slim' for r in built)} needed no full headers"
    )
