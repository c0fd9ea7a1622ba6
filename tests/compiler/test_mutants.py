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


def test_mutants_replay_as_decoded_or_are_refused(call: Any) -> None:
    gates = replayed(call, 0, 60)
    assert gates[""] >= 6, gates


@pytest.mark.slow
@pytest.mark.hostile
@pytest.mark.parametrize("first", range(1_000_000, 1_080_000, 10_000))
def test_two_thousand_mutants_replay_as_decoded_or_are_refused(call: Any, first: int) -> None:
    gates = replayed(call, first, 250)
    assert gates[""] >= 25, gates
