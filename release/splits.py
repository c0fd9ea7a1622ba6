"""Splits by cell: which workloads may be trained on, and which are kept for validation and test.

A cell is (signature, extents) of a workload's anchor block, blind to dtype, epilogue and family. Two cells of
one signature are *near* when every extent of one lies within a factor of 1.5 of the other's. No two cells of
different splits among train, validation and test are near: what would be is `embargo`, and not published.

`sealed.json` lists the test and validation cells and the signatures that are held out whole. It is made from the
zoo before any search, and only ever extended (`seal` is the rule), by

    python -m littledragon.release.splits release/sealed.json [settled.json] < cells.json

where both inputs are lists of [family, signature, extents, workloads], and no cell of `settled.json` may change its
split. A split is a pure function of the cell and that list, so a zoo that grows never moves a row.
"""

import hashlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

from littledragon.schemas.ids import digest

Split = Literal["train", "validation", "test", "embargo"]
Kept = Literal["validation", "test"]
Cell = tuple[str, tuple[int, ...]]
"""(signature, extents)."""
Counted = tuple[str, str, Sequence[int], int]
"""(family, signature, extents, workloads): how many workloads of a family a cell has, at least one."""

SEALED: Final = Path(__file__).parent / "sealed.json"
FACTOR: Final = 1.5

WANTED: Final[Mapping[Kept, tuple[float, int, int]]] = {
    "test": (0.02, 60, 6),
    "validation": (0.01, 30, 12),
}
"""Wanted of each family: a share of its workloads, and so many cells, or one cell in so many if that is less."""
COST: Final = 2.0
"""A group of cells is sealed if at most so many workloads go under embargo for each workload of it."""
LARGEST: Final = 30, 0.25
"""A group of several cells has at most so many workloads, and at most this share of its signature's."""
HELD_OUT: Final = 2
"""So many signatures of each family are held out whole."""
MODEST: Final = 0.003, 0.02
"""A signature that is held out has a share of its family's workloads between these."""


@dataclass(frozen=True)
class Sealed:
    """The sealed list: cells of test and of validation, and signatures whose every cell is test."""

    test: frozenset[Cell] = frozenset()
    validation: frozenset[Cell] = frozenset()
    held_out: frozenset[str] = frozenset()

    @cached_property
    def around(self) -> Mapping[tuple[str, tuple[int, ...]], Sequence[tuple[int, ...]]]:
        """Extents of the sealed cells, by signature and by each box of `_box` that a near cell may lie in."""
        boxes = defaultdict(list)
        for signature, extents in self.test | self.validation:
            sides = [{_box(int(e / FACTOR)), _box(int(e * FACTOR))} for e in extents]
            for box in product(*sides):
                boxes[signature, box].append(extents)
        return dict(boxes)


def _box(extent: int) -> int:
    """Which power of four an extent lies above: a range of a factor of 1.5² meets two of these at most."""
    return (extent.bit_length() - 1) // 2


def cell(signature: str, extents: Sequence[int]) -> str:
    """The id of a cell: 16 hex digits."""
    return digest({"signature": signature, "extents": list(extents)})


def near(a: Sequence[int], b: Sequence[int], factor: float = FACTOR) -> bool:
    """Whether extents of one signature lie within `factor` of each other, each of them."""
    return len(a) == len(b) and all(max(x, y) <= factor * min(x, y) for x, y in zip(a, b, strict=True))


def split(signature: str, extents: Sequence[int], sealed: Sealed) -> Split:
    """The split of a cell. A sealed cell has the split of its list; one that is near a sealed cell is embargoed."""
    here = (signature, tuple(extents))
    if signature in sealed.held_out or here in sealed.test:
        return "test"
    if here in sealed.validation:
        return "validation"
    around = sealed.around.get((signature, tuple(map(_box, extents))), ())
    return "embargo" if any(near(extents, e) for e in around) else "train"


def load_sealed(path: Path = SEALED) -> Sealed:
    """The committed list.

    Raises:
        ValueError: the file is not a sealed list.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        test, validation = ([(s, tuple(e)) for s, e in content[name]] for name in ("test", "validation"))
        return Sealed(frozenset(test), frozenset(validation), frozenset(content["held_out"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a list of sealed cells ({type(error).__name__}): restore it from git") from None


def version(path: Path = SEALED) -> str:
    """A hash of the committed list: splits by another list are other splits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def dump(sealed: Sealed) -> str:
    """The text of `sealed.json`: one cell a line, so that a change is seen."""

    def lines(values: Iterable[Any]) -> str:
        return ",\n".join(f"  {json.dumps(value)}" for value in values)

    return (
        f'{{\n "test": [\n{lines([s, list(e)] for s, e in sorted(sealed.test))}\n ],\n'
        f' "validation": [\n{lines([s, list(e)] for s, e in sorted(sealed.validation))}\n ],\n'
        f' "held_out": [\n{lines(sorted(sealed.held_out))}\n ]\n}}\n'
    )


def seal(cells: Iterable[Counted], before: Sealed | None = None, settled: Iterable[Cell] = ()) -> Sealed:
    """What to seal of a zoo: a pure function of what is given, whatever its order.

    What `before` sealed stays sealed. A cell of `settled` keeps the split that it has by `before`: it is not sealed,
    nor, if it is train, is anything near it.

    1. Signatures. A signature belongs to the family with most of its workloads. Of each family two are held out, those
       of `before` included: the first, in the order of their hashes, whose workloads, of all families, are 0.3% to 2%
       of the family's.
    2. Test, family by family. The family's cells, in the order of their hashes, are seeds, unless they are sealed or
       under embargo by then. A seed grows into a group: while sealing the group would put more than twice its
       workloads under embargo, it takes in the near cell that makes this ratio least. A group that would have more
       than 30 workloads, or more than a quarter of its signature's, before its ratio is low enough is left in train.
       This ends once test has 2% of the family's workloads, and 60 of its cells or a sixth of them if that is less.
       A signature that has given 2% of its own is passed over, unless the others turn out to have too little.
    3. Validation, likewise, of cells that are not near test: 1%, and 30 cells or a twelfth.

    So where cells lie dense whole groups are sealed, elsewhere single cells, and the embargo takes at most twice what
    is sealed. Cells of held-out signatures do not count towards the 2%.
    """
    before = before or Sealed()
    zoo = _Zoo(cells)
    settled = frozenset(settled)
    fixed = frozenset(member for member in settled if split(*member, before) == "train")
    moving = {member[0] for member in settled if split(*member, before) != "test"} | {s for s, _ in before.validation}
    sealed = replace(before, held_out=before.held_out | _held_out(zoo, before.held_out, moving))
    pins = Sealed(fixed)
    free = {n for n, member in enumerate(zoo.cells) if member not in settled and split(*member, pins) == "train"}
    sealed = replace(sealed, test=sealed.test | _choose(zoo, sealed, "test", free))
    return replace(sealed, validation=sealed.validation | _choose(zoo, sealed, "validation", free))


class _Zoo:
    """Cells by number, in the order of their hashes; workloads by cell, by family and by signature."""

    def __init__(self, cells: Iterable[Counted]) -> None:
        counts: dict[Cell, Counter[str]] = defaultdict(Counter)
        for family, signature, extents, workloads in cells:
            counts[signature, tuple(extents)][family] += workloads
        self.cells = sorted(counts, key=lambda member: cell(*member))
        self.workloads = [counts[member].total() for member in self.cells]
        self.families: dict[str, dict[int, int]] = defaultdict(dict)
        self.signatures: dict[str, Counter[str]] = defaultdict(Counter)
        self.kin: dict[tuple[str, int], list[int]] = defaultdict(list)
        for number, (signature, extents) in enumerate(self.cells):
            self.kin[signature, len(extents)].append(number)
            for family, workloads in counts[signature, extents].items():
                self.families[family][number] = workloads
                self.signatures[signature][family] += workloads
        self.near = cache(self._near)

    @cached_property
    def _extents(self) -> dict[tuple[str, int], Any]:
        import numpy as np

        return {key: np.array([self.cells[n][1] for n in numbers]) for key, numbers in self.kin.items()}

    def _near(self, number: int) -> list[int]:
        """The cells that are near to this one."""
        signature, extents = self.cells[number]
        kin, others = self.kin[signature, len(extents)], self._extents[signature, len(extents)]
        low, high = others.clip(max=extents), others.clip(min=extents)
        return [kin[i] for i in (high <= FACTOR * low).all(axis=1).nonzero()[0] if kin[i] != number]


def _held_out(zoo: _Zoo, before: Collection[str], moving: Collection[str]) -> frozenset[str]:
    """Signatures to be held out besides those of before; one that is `moving` has cells that may not become test."""
    homes: dict[str, list[str]] = defaultdict(list)
    for signature, families in zoo.signatures.items():
        home, _ = min(families.items(), key=lambda item: (-item[1], item[0]))
        homes[home].append(signature)
    chosen: list[str] = []
    for family, signatures in homes.items():
        least, most = (share * sum(zoo.families[family].values()) for share in MODEST)
        fit = [s for s in signatures if least <= zoo.signatures[s].total() <= most and s not in {*before, *moving}]
        wanted = HELD_OUT - sum(s in before for s in signatures)
        chosen += sorted(fit, key=lambda s: digest({"held out": s}))[: max(wanted, 0)]
    return frozenset(chosen)


def _choose(zoo: _Zoo, sealed: Sealed, name: Kept, free: Collection[int]) -> frozenset[Cell]:
    """The cells that this split lacks; of those that are `free` and not near the other split."""
    other = Sealed(test=sealed.validation if name == "test" else sealed.test)
    where = [split(*member, sealed) for member in zoo.cells]
    train = {n for n, place in enumerate(where) if place == "train"}
    open_ = {n for n in free if where[n] in ("train", "embargo") and split(*zoo.cells[n], other) == "train"}
    chosen = {n for n, member in enumerate(zoo.cells) if where[n] == name and member[0] not in sealed.held_out}
    share, most, part = WANTED[name]
    for family in sorted(zoo.families):
        counts = zoo.families[family]
        have = [n for n in chosen if n in counts]
        workloads = share * sum(counts.values()) - sum(counts[n] for n in have)
        cells = min(most, -(-len(counts) // part)) - len(have)
        lacks = {s: share * families[family] for s, families in zoo.signatures.items()}
        for n in have:
            lacks[zoo.cells[n][0]] -= counts[n]
        for seed, any_signature in [(n, late) for late in (False, True) for n in sorted(counts)]:
            if workloads <= 0 and cells <= 0:
                break
            signature = zoo.cells[seed][0]
            if seed in train and seed in open_ and (lacks[signature] > 0 or any_signature):
                group = _group(zoo, seed, train, open_)
                chosen |= group
                open_ -= group
                train -= group.union(*map(zoo.near, group))
                given = sum(counts.get(n, 0) for n in group)
                lacks[signature] -= given
                workloads -= given
                cells -= sum(n in counts for n in group)
    return frozenset(zoo.cells[n] for n in chosen)


def _group(zoo: _Zoo, seed: int, train: Collection[int], open_: Collection[int]) -> set[int]:
    """The group that a seed grows into; empty where sealing it would cost too much."""
    count = zoo.workloads
    largest = min(LARGEST[0], LARGEST[1] * zoo.signatures[zoo.cells[seed][0]].total())
    group, shell = {seed}, set(zoo.near(seed))
    size, cost = count[seed], sum(count[n] for n in shell if n in train)

    def added(joining: int) -> int:
        new = (n for n in zoo.near(joining) if n in train and n not in shell and n not in group)
        return sum(count[n] for n in new) - count[joining]

    while cost > COST * size:
        joins = [n for n in shell if n in open_ and size + count[n] <= largest]
        # What joins saves its own workloads at most, so there may be no way left to come down to the bound.
        if not joins or cost - (largest - size) > COST * largest:
            return set()
        best = min(joins, key=lambda n: ((cost + added(n)) / (size + count[n]), n))
        size, cost = size + count[best], cost + added(best)
        group.add(best)
        shell = shell.union(zoo.near(best)) - group
    return group


def census(cells: Iterable[Counted], sealed: Sealed) -> list[dict[str, Any]]:
    """What the splits of a zoo come to, over all families and in each.

    Columns: `family`, `workloads`; the per cent of these in `train`, `validation`, `test`, `held_out` (signatures
    that are, a part of test) and `embargo`; and how many cells are test and validation outside those signatures.
    """
    workloads: dict[str, Counter[str]] = defaultdict(Counter)
    kept: dict[str, set[Cell]] = defaultdict(set)
    for family, signature, extents, count in cells:
        place = split(signature, extents, sealed)
        for name in ("all", family):
            workloads[name].update({"all": count, place: count})
            if signature in sealed.held_out:
                workloads[name]["held_out"] += count
            else:
                kept[name].add((signature, tuple(extents)))
    columns = ("train", "validation", "test", "held_out", "embargo")
    return [
        {"family": family, "workloads": found["all"]}
        | {name: round(100 * found[name] / found["all"], 2) for name in columns}
        | {"test_cells": len(kept[family] & sealed.test), "validation_cells": len(kept[family] & sealed.validation)}
        for family, found in sorted(workloads.items())
    ]


def _main(path: Path, settled: Path | None = None) -> None:
    """Extend the list in this file, or begin one, and print the census."""
    cells: list[Counted] = json.load(sys.stdin)
    fixed = [(s, tuple(e)) for _, s, e, _ in json.loads(settled.read_text(encoding="utf-8"))] if settled else []
    sealed = seal(cells, load_sealed(path) if path.exists() else None, fixed)
    path.write_text(dump(sealed), encoding="utf-8")
    for row in census(cells, sealed):
        print(json.dumps(row))


if __name__ == "__main__":
    _main(*map(Path, sys.argv[1:]))
