"""What a family's grid gives: `python -m littledragon.compiler.zoo.survey gemm --sample 300`.

Lowers the whole family, or a random sample of its cases, in this process, and prints what is kept, what is refused
and why, how many cells and signatures there are, and what a case costs.
"""

import argparse
import random
import time
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from littledragon.compiler import lowering, targets
from littledragon.compiler.zoo import FAMILIES, Block


def sampled(family: str, count: int | None, seed: int) -> list[Block]:
    """The family's blocks, cut down to `count` cases drawn at random."""
    import importlib

    grid = importlib.import_module(f"littledragon.compiler.zoo.grids.{family}")
    found: list[Block] = list(grid.blocks())
    if count is None:
        return found
    every = [(place, case) for place, block in enumerate(found) for case in block.cases]
    chosen: dict[int, list[Any]] = defaultdict(list)
    for place, case in sorted(random.Random(seed).sample(every, min(count, len(every))), key=lambda pair: pair[0]):
        chosen[place].append(case)
    return [replace(found[place], cases=tuple(cases)) for place, cases in chosen.items()]


def survey(family: str, count: int | None, seed: int, target: str) -> None:
    """Print the tables of one family."""
    listed = time.perf_counter()
    chosen = sampled(family, count, seed)
    cases = sum(len(block.cases) for block in chosen)
    print(f"{family}: {len(chosen)} blocks, {cases} cases, listed in {time.perf_counter() - listed:.2f} s")
    where = targets.target(target)
    seen: set[str] = set()
    cells: Counter[tuple[str, tuple[int, ...]]] = Counter()
    fate: dict[str, Counter[str]] = defaultdict(Counter)
    details: Counter[str] = Counter()
    lowering.rows(replace(chosen[0], cases=chosen[0].cases[:1]), where)  # imports
    clock = time.perf_counter()
    signatures: set[str] = set()
    for block in chosen:
        for row in lowering.rows(block, where):
            what = row["reason"] or "kept"
            if row["state"] == "ok":
                cell = (row["signature"], tuple(row["extents"]))
                if row["workload_id"] in seen:
                    what = "duplicate"
                elif cells[cell] == lowering.MOST_IN_CELL:
                    what = "cell_full"
                else:
                    cells[cell] += 1
                    signatures.add(row["signature"])
                seen.add(row["workload_id"])
            else:
                details[f"{row['operator']}: {row['reason']}: {row['detail'][:100]}"] += 1
            fate[row["operator"]][what] += 1
            fate[row["operator"]][f"kept {row['dtype']}"] += what == "kept"
    spent = time.perf_counter() - clock
    kept = sum(counts["kept"] for counts in fate.values())
    for operator, counts in sorted(fate.items(), key=lambda pair: -pair[1]["kept"]):
        rest = ", ".join(f"{what} {n}" for what, n in sorted(counts.items()) if what != "kept" and n)
        print(f"  {operator:28} kept {counts['kept']:6} {100 * counts['kept'] / max(kept, 1):5.1f}%   {rest}")
    print(f"kept {kept} in {len(cells)} cells of {len(signatures)} signatures; {1000 * spent / cases:.1f} ms a case,")
    print(f"{1000 * spent / max(kept, 1):.1f} ms a kept workload, {spent:.0f} s in all")
    for line, n in details.most_common(12):
        print(f"  {n:5} x {line}")


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="cuda", choices=("llvm", "cuda"))
    given = parser.parse_args()
    survey(given.family, given.sample, given.seed, given.target)


if __name__ == "__main__":
    _main()
