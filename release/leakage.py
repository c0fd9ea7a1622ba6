"""How near the splits come to one another: copies, equal modules, shared cells, and the nearest extents.

Every cell of a held-out split is compared with every cell of the other splits that has the same signature. The
ratio of two cells is the largest factor between their extents; the split rule promises more than 1.5.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from littledragon.release.splits import FACTOR, Cell, Counted

Row = dict[str, Any]

PAIRS: Final = (("test", "train"), ("test", "validation"), ("validation", "train"))
"""(held out, compared with)."""

COLUMNS: Final = {
    "workload_id": (pa.string(), "A workload that is held out."),
    "family": (pa.string(), "Its family."),
    "split": (pa.string(), "Its split."),
    "against": (pa.string(), "The split that it is compared with."),
    "cell": (pa.string(), "Its cell."),
    "exact": (pa.int64(), "Workloads of the other split with the same module text."),
    "structural": (pa.int64(), "Workloads of the other split with the same structural hash, or the same id."),
    "same_cell": (pa.int64(), "Workloads of the other split in the same cell."),
    "same_signature": (pa.int64(), "Workloads of the other split with the same block signature."),
    "nearest_ratio": (pa.float64(), "Largest factor between the extents of the nearest of those; null without one."),
    "nearest_id": (pa.string(), "That nearest workload."),
}
SCHEMA: Final = pa.schema([pa.field(name, kind, True, {"about": about}) for name, (kind, about) in COLUMNS.items()])

EDGES: Final = (1.0, FACTOR, 2.0, 4.0, 8.0)
BINS: Final = ("1", *(f"to {edge:g}" for edge in EDGES[1:]), f"above {EDGES[-1]:g}", "alone")
"""Of a histogram of nearest ratios: the same cell, up to and with each edge, above, and no cell to compare with."""
PAIRS_AT_ONCE: Final = 1 << 21
"""So many ratios are in memory at once, twice, with eight bytes each."""


def report(workloads: Iterable[Row]) -> list[Row]:
    """One row for each held-out workload and split that it is compared with (`COLUMNS`).

    `workloads` are accepted rows of `workloads`, whose `module` may be a hash of the text; those without a split of
    the three are left out.
    """
    by_split: dict[str, list[Row]] = defaultdict(list)
    for workload in sorted(workloads, key=lambda w: w["workload_id"]):
        by_split[workload["split"]].append(workload)
    return [row for own, other in PAIRS for row in _compare(by_split[own], by_split[other], own, other)]


def summary(rows: Sequence[Row]) -> list[Row]:
    """For each pair of splits, over all families and in each: how many workloads leak and how, and how near they are.

    Columns: `family`, `split`, `against`, `workloads`; how many of them have a copy there (`exact`, `structural`,
    `same_cell`) or something `near`; then the nearest ratios as in `spread`.
    """
    lines = []
    for family in ("all", *sorted({row["family"] for row in rows})):
        for split, against in PAIRS:
            of_pair = [r for r in rows if (r["split"], r["against"]) == (split, against)]
            here = [r for r in of_pair if family in ("all", r["family"])]
            ratios = [r["nearest_ratio"] for r in here]
            lines.append(
                {
                    "family": family,
                    "split": split,
                    "against": against,
                    "workloads": len(here),
                    **{kind: sum(r[kind] > 0 for r in here) for kind in ("exact", "structural", "same_cell")},
                    "near": sum(ratio is not None and ratio <= FACTOR for ratio in ratios),
                    **spread(ratios),
                }
            )
    return lines


def twins(cells: Iterable[Counted]) -> list[Row]:
    """How near each cell of a zoo is to the nearest other one of its signature, over all families and in each.

    Columns: `family`, `workloads`, `cells`, then the cells' nearest ratios as in `spread`. A zoo padded by steps of a
    shape has most cells up to 1.5.
    """
    counts: dict[Cell, Counter[str]] = defaultdict(Counter)
    for family, signature, extents, workloads in cells:
        counts[signature, tuple(extents)].update({"all": workloads, family: workloads})
    ratios: dict[Cell, float | None] = dict.fromkeys(counts)
    for (signature, _), group in _by_signature(counts).items():
        if len(group) > 1:
            _, found = _nearest(group, group, itself=True)
            ratios |= {(signature, extents): ratio for extents, ratio in zip(group, found, strict=True)}
    lines = []
    for family in sorted({family for families in counts.values() for family in families}):
        here = [member for member, families in counts.items() if family in families]
        workloads = sum(counts[member][family] for member in here)
        line = {"family": family, "workloads": workloads, "cells": len(here)}
        lines.append({**line, **spread([ratios[member] for member in here])})
    return lines


def spread(ratios: Sequence[float | None]) -> Row:
    """The least of these ratios, their deciles and median, and a histogram (`BINS`); null is `alone`."""
    known = [ratio for ratio in ratios if ratio is not None]
    points = {"least_ratio": 0.0, "p10_ratio": 0.1, "median_ratio": 0.5, "p90_ratio": 0.9}
    quantiles = np.quantile(known, list(points.values())).tolist() if known else [None] * len(points)
    places = Counter(np.searchsorted(EDGES, known, side="left").tolist())
    places[len(BINS) - 1] = len(ratios) - len(known)
    return {**dict(zip(points, quantiles, strict=True)), **{name: places[i] for i, name in enumerate(BINS)}}


def leaks(rows: Iterable[Row]) -> list[str]:
    """A line for each held-out workload that is a copy or a near twin of one in another split."""
    return [
        f"{r['workload_id']} ({r['split']}) is too near to {r['against']}: {r['exact']} exact, "
        f"{r['structural']} structural, {r['same_cell']} in the same cell, nearest ratio {r['nearest_ratio']}"
        for r in rows
        if r["exact"] or r["structural"] or r["same_cell"] or (r["nearest_ratio"] or np.inf) <= FACTOR
    ]


def _compare(own: Sequence[Row], others: Sequence[Row], split: str, against: str) -> Iterator[Row]:
    """The rows of one pair of splits; both lists are in the order of ids, and the first of equally near is named."""
    texts, cells = Counter(w["module"] for w in others), Counter(w["cell"] for w in others)
    hashes, ids = Counter(w["module_hash"] for w in others), {w["workload_id"]: w["module_hash"] for w in others}
    kin = Counter((w["signature"], len(w["extents"])) for w in others)
    first: dict[Cell, str] = {}
    for other in others:
        first.setdefault(_cell(other), other["workload_id"])
    there = _by_signature(first)
    nearest: dict[Cell, tuple[float, str]] = {}
    for key, here in _by_signature(dict.fromkeys(map(_cell, own))).items():
        if key in there:
            for extents, place, ratio in zip(here, *_nearest(here, there[key]), strict=True):
                nearest[key[0], extents] = ratio, first[key[0], there[key][place]]
    for w in own:
        nearest_ratio, nearest_id = nearest.get(_cell(w), (None, None))
        yield {
            "workload_id": w["workload_id"],
            "family": w["family"],
            "split": split,
            "against": against,
            "cell": w["cell"],
            "exact": texts[w["module"]],
            "structural": hashes[w["module_hash"]] + (ids.get(w["workload_id"], w["module_hash"]) != w["module_hash"]),
            "same_cell": cells[w["cell"]],
            "same_signature": kin[w["signature"], len(w["extents"])],
            "nearest_ratio": nearest_ratio,
            "nearest_id": nearest_id,
        }


def _cell(workload: Row) -> Cell:
    return workload["signature"], tuple(workload["extents"])


def _by_signature(cells: Iterable[Cell]) -> dict[tuple[str, int], list[tuple[int, ...]]]:
    """Extents by signature and rank; each list keeps the order."""
    groups = defaultdict(list)
    for signature, extents in cells:
        groups[signature, len(extents)].append(extents)
    return dict(groups)


def _nearest(
    cells: Sequence[Sequence[int]], others: Sequence[Sequence[int]], itself: bool = False
) -> tuple[list[int], list[float]]:
    """For each of `cells` the place of the nearest of `others`, the first of equals, and the ratio of the two.

    With `itself` both are one list, and no cell is compared with itself.
    """
    own, all_ = (np.maximum(np.array(e, dtype=np.int64), 1) for e in (cells, others))
    logs, all_logs = np.log(own), np.log(all_)
    places = np.empty(len(own), dtype=np.int64)
    step = max(1, PAIRS_AT_ONCE // len(all_))
    for start in range(0, len(own), step):
        part = logs[start : start + step]
        worst = np.zeros((len(part), len(all_)))
        for axis in range(logs.shape[1]):
            away = np.subtract.outer(part[:, axis], all_logs[:, axis])
            np.maximum(worst, np.abs(away, out=away), out=worst)
        if itself:
            worst[np.arange(len(part)), np.arange(start, start + len(part))] = np.inf
        places[start : start + step] = worst.argmin(axis=1)
    found = all_[places]
    ratios = (np.maximum(own, found) / np.minimum(own, found)).max(axis=1, initial=1.0)
    return places.tolist(), ratios.tolist()
