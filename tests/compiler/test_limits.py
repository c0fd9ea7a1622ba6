"""Bounds that are read off tile factors refuse nothing that TVM's VerifyGPUCode allows, and much of what it refuses."""

import math
from collections import Counter
from typing import Any

import pytest

from littledragon.compiler import targets
from littledragon.compiler.zoo import blocks

CUDA = targets.target("cuda")
Call = Any


def product(call: Call) -> Any:
    return call("probe.modules:matmul", m=512, n=512, k=512, dtype="float32", accumulate="float32")["module"]


@pytest.mark.slow
def test_bounds_of_a_plain_tiling_refuse_only_what_is_not_legal(call: Call) -> None:
    found = call("probe.bounds:drawn", module=product(call), target=CUDA, rules="cuda", count=90)
    assert found["bounded"] == 3
    assert found["both"] == found["legal"] > 0
    assert found["allowed"] < 0.4 * 90


def test_the_search_draws_mostly_what_is_legal(call: Call) -> None:
    legal = call("probe.bounds:drawn_by_search", module=product(call), target=CUDA, rules="cuda", count=30)
    assert legal >= 8, "of TVM's own draws one in fifteen is"


def test_on_a_cpu_nothing_is_bounded(call: Call) -> None:
    module = product(call)
    found = call("probe.bounds:drawn", module=module, target=targets.target("llvm"), rules="llvm", count=6)
    assert (found["bounded"], found["allowed"]) == (0, 6)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["attention", "gemm", "moe", "norm_reduction", "quant_irregular", "vision"])
def test_bounds_hold_for_the_zoo(call: Call, family: str) -> None:
    """Every schedulable task of the demo zoo, with the rules that are predicted for it."""
    ids = [block.id for block in blocks("demo") if block.family == family]
    rows = call("compiler.lowering:extract", zoo="demo", block_ids=ids, target=CUDA)
    for row in rows:
        if row["state"] == "ok":
            found = call("probe.bounds:drawn", module=row["module"], target=CUDA, rules=row["rules"], count=40)
            assert found["both"] == found["legal"], (row["block_id"], row["task"], found)


@pytest.mark.parametrize(
    ("extent", "parts", "most"), [(1, 3, 64), (360, 5, 64), (1024, 2, 8), (97, 4, -1), (4096, 5, 4)]
)
def test_tiles_are_perfect_and_keep_their_bound(call: Call, extent: int, parts: int, most: int) -> None:
    drawn = call("probe.bounds:tiles", extent=extent, parts=parts, most=most, count=200, seed=1)
    assert all(math.prod(factors) == extent and len(factors) == parts for factors in drawn)
    assert all(most == -1 or factors[-1] <= most for factors in drawn)
    if extent > 1:
        assert len({tuple(factors) for factors in drawn}) > 3


def test_powers_of_a_prime_are_spread_evenly_as_tvm_spreads_them(call: Call) -> None:
    """8 in three parts: ten ways, each as likely as the other (sampling.cc, SampleWithoutReplacement)."""
    drawn = Counter(map(tuple, call("probe.bounds:tiles", extent=8, parts=3, most=-1, count=4000, seed=0)))
    assert len(drawn) == 10
    assert min(drawn.values()) > 300
    assert max(drawn.values()) < 500
