"""Random members of a design space as texts: legal, and decided by the random state alone."""

from pathlib import Path
from typing import Any

import pytest

from littledragon.compiler import slots, targets
from littledragon.compiler.children import ChildError

MODULE = (Path(__file__).parents[1] / "golden" / "release" / "module.json").read_text(encoding="utf-8")


def call(kind: str, function: str, **arguments: Any) -> Any:
    return slots.of(kind).call(
        f"littledragon.compiler.{function}", deadline_s=300, module=MODULE, target=targets.target(kind), **arguments
    )


@pytest.mark.parametrize(
    ("kind", "rules"),
    [
        ("llvm", "llvm"),
        *(pytest.param("cuda", f"cuda{end}", marks=pytest.mark.slow) for end in ("", "-local", "-tensorcore")),
    ],
)
def test_draws_are_legal_and_the_state_s(kind: str, rules: str) -> None:
    first, again, other = (call(kind, "draws:draw", rules=rules, count=3, state=state) for state in (7, 7, 8))
    texts = [one["text"] for one in first]
    assert [one["text"] for one in again] == texts
    assert set(texts).isdisjoint(one["text"] for one in other)
    assert len(set(texts)) == 3
    for text in texts:
        admitted = call(kind, "traces:apply", text=text)
        assert (admitted["failed"], admitted["applied"]) == (None, admitted["emitted"])
        assert admitted["applied"] > 0
    assert all(one["seconds"] > 0 for one in first)


def test_a_draw_that_has_no_time_left_gives_nothing() -> None:
    found = call("llvm", "draws:draw", rules="llvm", count=3, state=7, budget_s=0.0)
    assert [one["text"] for one in found] == [None] * 3
    plenty = call("llvm", "draws:draw", rules="llvm", count=1, state=7, budget_s=300.0)
    assert plenty[0]["text"] == call("llvm", "draws:draw", rules="llvm", count=1, state=7)[0]["text"]


def test_a_trace_has_its_text_or_the_gate_that_refuses_it() -> None:
    (one,) = call("llvm", "draws:draw", rules="llvm", count=1, state=7)
    admitted = call("llvm", "traces:apply", text=one["text"])
    assert call("llvm", "draws:spell", trace=admitted["trace"]) == {"text": one["text"], "gate": None, "reason": None}
    refused = call("llvm", "draws:spell", trace="[]")
    assert (refused["text"], refused["gate"]) == (None, "parsed")


def test_rules_of_another_target_are_an_error() -> None:
    with pytest.raises(ChildError, match="there are no rules 'cuda'"):
        call("llvm", "draws:draw", rules="cuda", count=1, state=7)
