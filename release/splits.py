"""Splits by cell: which workloads may be trained on, and which are kept for validation and test.

A cell is (signature, extents) of a workload's anchor block, blind to dtype, epilogue and family. Two cells of
one signature are *near* when every extent of one lies within a factor of 1.5 of the other's. No two cells of
different splits among train, validation and test are near: what would be is `embargo`, and not published.

`sealed.json` lists the test and validation cells and the signatures that are held out whole. It was made from
the zoo before any search, by

    python -m littledragon.release.splits < cells.json > release/sealed.json

where `cells.json` is a list of [family, signature, extents]. A split is a pure function of the cell and that
list, so a zoo that grows never moves a row.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from littledragon.schemas.ids import digest

Split = Literal["train", "validation", "test", "embargo"]
Cell = tuple[str, tuple[int, ...]]
"""(signature, extents)."""

SEALED: Final = Path(__file__).parent / "sealed.json"
FACTOR: Final = 1.5
TEST_SHARE: Final = 6
"""One cell in so many goes to test, family by family."""
VALIDATION_SHARE: Final = 12
HELD_OUT: Final = 2
"""So many signatures are kept from training altogether."""


@dataclass(frozen=True)
class Sealed:
    """The sealed list: cells of test and of validation, and signatures whose every cell is test."""

    test: frozenset[Cell]
    validation: frozenset[Cell]
    held_out: frozenset[str]


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
    if any(s == signature and near(extents, e) for s, e in sealed.test | sealed.validation):
        return "embargo"
    return "train"


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


def seal(cells: Iterable[tuple[str, Cell]]) -> Sealed:
    """Choose what to seal among (family, cell): a pure function of the set, whatever its order.

    Cells that are near each other, directly or through others, are a group and stay together; a group belongs
    to the family of its first cell. Two signatures that one group alone has are held out whole. Then in each
    family whole groups, in the order of their hashes, go to test until a sixth of the family's cells are there,
    and to validation until a twelfth is; a group of more than a third of its family stays in train.
    """
    family: dict[Cell, str] = {}
    for name, member in sorted(cells):
        family.setdefault(member, name)
    groups = sorted(_groups(sorted(family)), key=lambda group: cell(*group[0]))
    held_out = _held_out(groups)
    test = [member for member in sorted(family) if member[0] in held_out]
    validation: list[Cell] = []
    for name in sorted(set(family.values())):
        mine = [group for group in groups if family[group[0]] == name]
        total = sum(len(group) for group in mine)
        have = sum(len(group) for group in mine if group[0][0] in held_out)
        free = iter([group for group in mine if group[0][0] not in held_out and 3 * len(group) <= total])
        _take(free, test, total / TEST_SHARE - have)
        _take(free, validation, total / VALIDATION_SHARE)
    return Sealed(frozenset(test), frozenset(validation), held_out)


def _take(groups: Iterator[list[Cell]], chosen: list[Cell], wanted: float) -> None:
    """Move groups into `chosen` until at least `wanted` cells have come."""
    while wanted > 0 and (group := next(groups, None)) is not None:
        chosen.extend(group)
        wanted -= len(group)


def _held_out(groups: list[list[Cell]]) -> frozenset[str]:
    """The first signatures, in the order of their hashes, that one group alone has."""
    often = Counter(group[0][0] for group in groups)
    alone = sorted((s for s, count in often.items() if count == 1), key=lambda s: digest({"held out": s}))
    return frozenset(alone[:HELD_OUT])


def _groups(cells: list[Cell]) -> list[list[Cell]]:
    """Connected groups of near cells, each sorted."""
    left, groups = list(cells), []
    while left:
        group = [left.pop(0)]
        for member in group:
            close = [c for c in left if c[0] == member[0] and near(c[1], member[1])]
            group.extend(close)
            left = [c for c in left if c not in close]
        groups.append(sorted(group))
    return groups


def _main() -> None:
    cells: list[Any] = json.load(sys.stdin)
    sealed = seal((family, (signature, tuple(extents))) for family, signature, extents in cells)
    sys.stdout.write(dump(sealed))


if __name__ == "__main__":
    _main()
