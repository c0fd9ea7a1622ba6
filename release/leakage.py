"""How near the splits come to one another: copies, equal modules, shared cells, and the nearest extents.

Every cell of a held-out split is compared with every cell of the other splits that has the same signature. The
distance of two cells is the largest factor between their extents; the split rule promises more than 1.5.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from littledragon.release.splits import FACTOR

Row = dict[str, Any]

PAIRS: Final = (("test", "train"), ("test", "validation"), ("validation", "train"))
"""(held out, compared with)."""

COLUMNS: Final = {
    "workload_id": (pa.string(), "A workload that is held out."),
    "split": (pa.string(), "Its split."),
    "against": (pa.string(), "The split that it is compared with."),
    "cell": (pa.string(), "Its cell."),
    "exact": (pa.int64(), "Workloads of the other split with the same module text."),
    "structural": (pa.int64(), "Workloads of the other split with the same structural hash."),
    "same_cell": (pa.int64(), "Workloads of the other split in the same cell."),
    "same_signature": (pa.int64(), "Workloads of the other split with the same block signature."),
    "nearest_ratio": (pa.float64(), "Largest factor between the extents of the nearest of those; null without one."),
    "nearest_id": (pa.string(), "That nearest workload."),
}
SCHEMA: Final = pa.schema([pa.field(name, kind, True, {"about": about}) for name, (kind, about) in COLUMNS.items()])


def report(workloads: Iterable[Row]) -> list[Row]:
    """One row for each held-out workload and split that it is compared with (`COLUMNS`).

    `workloads` are accepted rows of `workloads`, whose `module` may be a hash of the text; those without a split of
    the three are left out.
    """
    by_split: dict[str, list[Row]] = defaultdict(list)
    for workload in workloads:
        by_split[workload["split"]].append(workload)
    found = []
    for split, against in PAIRS:
        others = _Index(by_split[against])
        found += [others.compare(w, split, against) for w in sorted(by_split[split], key=lambda w: w["workload_id"])]
    return found


def summary(rows: Sequence[Row]) -> list[Row]:
    """For each pair of splits: how many workloads leak and how, and the least and median nearest ratio."""
    lines = []
    for split, against in PAIRS:
        of_pair = [r for r in rows if (r["split"], r["against"]) == (split, against)]
        ratios = sorted(r["nearest_ratio"] for r in of_pair if r["nearest_ratio"] is not None)
        lines.append(
            {
                "split": split,
                "against": against,
                "workloads": len(of_pair),
                **{kind: sum(r[kind] > 0 for r in of_pair) for kind in ("exact", "structural", "same_cell")},
                "near": sum(ratio <= FACTOR for ratio in ratios),
                "least_ratio": ratios[0] if ratios else None,
                "median_ratio": float(np.median(ratios)) if ratios else None,
            }
        )
    return lines


def leaks(rows: Iterable[Row]) -> list[str]:
    """A line for each held-out workload that is a copy or a near twin of one in another split."""
    return [
        f"{r['workload_id']} ({r['split']}) is too near to {r['against']}: {r['exact']} exact, "
        f"{r['structural']} structural, {r['same_cell']} in the same cell, nearest ratio {r['nearest_ratio']}"
        for r in rows
        if r["exact"] or r["structural"] or r["same_cell"] or (r["nearest_ratio"] or np.inf) <= FACTOR
    ]


class _Index:
    """The workloads of one split, by what they are compared by."""

    def __init__(self, workloads: list[Row]) -> None:
        self.texts = _count(w["module"] for w in workloads)
        self.hashes = _count(w["module_hash"] for w in workloads)
        self.cells = _count(w["cell"] for w in workloads)
        groups: dict[tuple[str, int], list[Row]] = defaultdict(list)
        for workload in workloads:
            groups[workload["signature"], len(workload["extents"])].append(workload)
        self.groups = {
            key: ([w["workload_id"] for w in group], np.log([np.maximum(w["extents"], 1) for w in group]))
            for key, group in groups.items()
        }

    def compare(self, workload: Row, split: str, against: str) -> Row:
        ids, extents = self.groups.get((workload["signature"], len(workload["extents"])), ([], np.empty(0)))
        ratio, nearest = None, None
        if ids:
            distances = np.abs(extents - np.log(np.maximum(workload["extents"], 1))).max(axis=1, initial=0.0)
            best = int(distances.argmin())
            ratio, nearest = round(float(np.exp(distances[best])), 9), ids[best]
        return {
            "workload_id": workload["workload_id"],
            "split": split,
            "against": against,
            "cell": workload["cell"],
            "exact": self.texts.get(workload["module"], 0),
            "structural": self.hashes.get(workload["module_hash"], 0),
            "same_cell": self.cells.get(workload["cell"], 0),
            "same_signature": len(ids),
            "nearest_ratio": ratio,
            "nearest_id": nearest,
        }


def _count(values: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for value in values:
        counts[value] += 1
    return dict(counts)
