"""A random sample of the paper's zoo, 20 configurations a family: each compiles, runs on its inputs, gets a candidate.

`make test-zoo` runs all of it. LITTLEDRAGON_SEED chooses another sample, LITTLEDRAGON_SAMPLE another number a family.
Programs run in the quick CPU order of `compiler/brisk.py`, which test_brisk.py proves equal to the plain one: the
largest would take minutes each as they are.
"""

import os
import random
from typing import Any

import pytest

from littledragon.compiler import children, targets
from littledragon.compiler.zoo import FAMILIES, blocks

SEED = int(os.environ.get("LITTLEDRAGON_SEED", "0"))
COUNT = int(os.environ.get("LITTLEDRAGON_SAMPLE", "20"))
CUDA = targets.target("cuda")

pytestmark = pytest.mark.zoo


def sample() -> list[tuple[str, str, str]]:
    """(family, block, configuration), drawn evenly from all configurations of each family."""
    chosen = []
    for family in FAMILIES:
        every = [(family, b.id, case.name) for b in blocks("paper") if b.family == family for case in b.cases]
        chosen += random.Random(f"{SEED}:{family}").sample(every, COUNT)
    return chosen


def call(function: str, **arguments: Any) -> Any:
    return children.worker("zoo").call(f"littledragon.compiler.{function}", deadline_s=300, **arguments)


@pytest.mark.parametrize(("family", "block", "configuration"), sample(), ids=str)
def test_a_configuration(family: str, block: str, configuration: str) -> None:
    """At least one of its tasks is a workload, and each that is runs to finite numbers and has two candidates."""
    rows = call("lowering:extract", zoo="paper", block_ids=[block], target=CUDA, only=configuration)
    assert {row["configuration"] for row in rows} == {configuration}
    kept = [row for row in rows if row["state"] == "ok"]
    assert kept, [(row["task"], row["detail"]) for row in rows]
    for row in kept:
        ran = call("brisk:run", module=row["module"], specs=row["inputs"], target=targets.target("llvm"), seed=SEED)
        assert ran == [], f"{row['task']}: not finite: {ran}"
        proof = call("schedulable:prove", module=row["module"], target=CUDA, rules=row["rules"], want=2, seed=SEED)
        assert proof["found"] >= 2, f"{row['task']}: {proof}"
