"""Draws samples/h200_traces.jsonl.gz, the varied sample of traces that the tests use, from a larger probe file.

    python samples/make_h200_sample.py PROBE.jsonl.gz

Lines keep the probe's form: `{"kind": "workload", name, family, rules, module}` with M0 as `tvm.ir.save_json`, and
`{"kind": "candidate", name, i, trace, runs}` with the trace as `tvm.ir.save_json(trace.as_json())`. The traces are
MetaSchedule candidates for one NVIDIA H200 (TVM 0.25.0.post1); `runs` holds the latencies of three processes in
microseconds. Of each workload the trace is taken that adds the most pairs of neighbouring instruction kinds.
"""

import gzip
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from littledragon.schemas import tsel

SAMPLE = Path(__file__).parent / "h200_traces.jsonl.gz"
TRACES = 44
LIMIT = 300 << 10


def main(probe: Path) -> None:
    """Reads the probe and writes the sample; the same probe gives the same bytes."""
    with gzip.open(probe, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    workloads = [row for row in rows if row["kind"] == "workload"]
    candidates = [row for row in rows if row["kind"] == "candidate" and row["trace"]]
    marks = [_marks(row) for row in candidates]
    seen: set[Any] = set()
    chosen: list[int] = []
    for name in dict.fromkeys(row["name"] for row in candidates):
        _take([i for i, row in enumerate(candidates) if row["name"] == name], marks, seen, chosen)
    while len(chosen) < TRACES:
        _take([i for i in range(len(candidates)) if i not in chosen], marks, seen, chosen)
    kept = [{key: candidates[i][key] for key in ("kind", "name", "i", "trace", "runs")} for i in chosen]
    workloads = [row for row in workloads if any(row["name"] == k["name"] for k in kept)]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in [*workloads, *kept])
    data = gzip.compress(text.encode(), 9, mtime=0)
    if len(data) > LIMIT:
        sys.exit(f"{len(data)} bytes: more than {LIMIT}")
    SAMPLE.write_bytes(data)
    sys.stdout.write(f"{SAMPLE}: {len(workloads)} workloads, {len(kept)} traces, {len(data)} bytes\n")


def _take(pool: list[int], marks: list[set[Any]], seen: set[Any], chosen: list[int]) -> None:
    """Choose of the pool the candidate that adds the most to what was seen."""
    best = max(pool, key=lambda i: len(marks[i] - seen))
    seen |= marks[best]
    chosen.append(best)


def _marks(row: dict[str, Any]) -> set[Any]:
    kinds = tsel.kinds(row["trace"])
    return set(itertools.pairwise(kinds)) | set(kinds)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
