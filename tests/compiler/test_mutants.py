"""Mutants that the language accepts, replayed in a child: none kills it, none hangs, none becomes another schedule."""

from collections import Counter
from typing import Any

import mutants
import pytest

from littledragon.compiler import children, targets

TARGETS = {"cuda": targets.target("cuda"), "llvm": targets.target("llvm")}


def replayed(call: Any, first: int, count: int) -> Counter[str]:
    """How often each gate refused `count` accepted mutants, from seed `first` on ("" for none)."""
    gates: Counter[str] = Counter()
    wrong = []
    seed = first
    while gates.total() < count:
        if (mutant := mutants.schedule(seed)) is not None:
            base, text = mutant
            given = {"module": mutants.modules()[base.workload], "text": text, "target": TARGETS[base.target]}
            try:
                told = call("probe.replays:replay", **given)
            except children.ChildError as error:
                told = {"failed": error.kind, "reason": error.detail}
            gates[told["failed"] or ""] += 1
            if told["failed"] in ("crashed", "deadline", "raised", "parsed", "wellformed", "encoded"):
                wrong.append((seed, base.workload, told["failed"], told["reason"]))
            elif told["failed"] is None and not (told["tree"] and told["module"]):
                wrong.append((seed, base.workload, "another", told))
        seed += 1
    assert wrong == []
    return gates


TEXT = """<graph version="tsel/1" notation="line" tvm="0.25.0.post1">
<trace_sequence id="t0">
b0 = block NT_matmul
b1 = block root
{}
enter_postproc
</trace_sequence>
</graph>
"""


@pytest.mark.parametrize(
    ("lines", "gate"),
    [
        ("reorder_block_iter_var b1 []", "applicable"),  # dies
        ("b2 = cache_read b0 0 shared consumers=b1", ""),
        ("b2 = cache_write b0 0 local\nb3 = cache_read b2 0 shared consumers=b0", "applicable"),  # dies
        ("annotate b1 ms.parallel [1]", "wellformed"),  # takes minutes, or reads what is not its own
        ("annotate b1 ms.vectorize x", "wellformed"),
        ("annotate b1 ms.unroll_explicit 0.5", "wellformed"),
        ("annotate b1 ms.parallel 16", ""),
    ],
)
def test_what_tvm_dies_of_is_refused(call: Any, lines: str, gate: str) -> None:
    module = mutants.modules()["matmul"]
    told = call("probe.replays:replay", module=module, text=TEXT.format(lines), target=TARGETS["llvm"])
    assert (told["failed"] or "") == gate, told["reason"]


@pytest.mark.slow
def test_mutants_replay_as_decoded_or_are_refused(call: Any) -> None:
    gates = replayed(call, 0, 60)
    assert gates[""] >= 6, gates


@pytest.mark.slow
@pytest.mark.hostile
@pytest.mark.parametrize("first", range(1_000_000, 1_080_000, 10_000))
def test_two_thousand_mutants_replay_as_decoded_or_are_refused(call: Any, first: int) -> None:
    gates = replayed(call, first, 250)
    assert gates[""] >= 25, gates
