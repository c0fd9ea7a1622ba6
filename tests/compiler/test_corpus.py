"""Traces made to measure the codec on: the same from the same seed, of every kind that is wanted, with odd extents."""

from collections import Counter
from typing import Any

import pytest

from littledragon.compiler import corpus

SEED = 7


def test_every_family_meets_every_rule_set() -> None:
    families = ["attention", "gemm", "moe", "norm_reduction", "quant_irregular", "vision"]
    assert corpus.cells() == [
        *((f, r) for f in families for r in ("cuda", "cuda-tensorcore", "llvm")),
        ("by hand",) * 2,
    ]
    for family, _ in corpus.cells():
        ids = [block.id for block in corpus.blocks(family)]
        assert len(ids) == len(set(ids)) >= 6
    with pytest.raises(KeyError):
        corpus.blocks("nothing")


def awkward(value: Any) -> bool:
    return any(value % prime == 0 for prime in corpus.PRIMES)


def test_variants_have_awkward_extents_and_keep_what_blocks_need() -> None:
    seen: Counter[int] = Counter()
    for family in {family for family, _ in corpus.cells()}:
        for block in corpus.blocks(family):
            assert corpus.variant(block, 0, SEED) == block
            shapes = [corpus.variant(block, number, SEED).shape for number in range(1, 6)]
            assert shapes == [corpus.variant(block, number, SEED).shape for number in range(1, 6)]
            assert shapes != [corpus.variant(block, number, SEED + 1).shape for number in range(1, 6)]
            for shape in shapes:
                changed = {name: value for name, value in shape.items() if value != block.shape[name]}
                assert all(awkward(value) for value in changed.values())
                assert any(awkward(value) for name, value in shape.items() if name not in corpus._FIXED)
                assert not set(changed) & corpus._FIXED
                for name, step in corpus._STEPS.get(block.operator, {}).items():
                    assert shape[name] % step == 0
                seen.update(prime for prime in corpus.PRIMES for value in changed.values() if value % prime == 0)
    assert set(seen) == set(corpus.PRIMES)


def measure(call: Any, family: str, rules: str, block: str, count: int = 2, variant: int = 1) -> dict[str, Any]:
    answer: dict[str, Any] = call(
        "compiler.roundtrip:measure", family=family, block=block, variant=variant, rules=rules, seed=SEED, count=count,
        keep=1,
    )  # fmt: skip
    return answer


CHOSEN = {
    "attention": "attention/masked_softmax/gpt2-s64",
    "gemm": "gemm/nt_matmul_cast/llama-2-7b-tp32-b128",
    "moe": "moe/expert_products/made",
    "norm_reduction": "norm_reduction/gram/made",
    "quant_irregular": "quant_irregular/w8a16_matmul/qwen2.5-0.5b-tp16-b16",
    "vision": "vision/conv1x1_nhwc/made",
}


@pytest.mark.parametrize(
    ("family", "rules"),
    [pytest.param(*cell, marks=pytest.mark.slow if cell[1] == "cuda" else ()) for cell in corpus.cells()],
)
def test_each_family_and_rule_set_gives_traces_that_come_back(call: Any, family: str, rules: str) -> None:
    answer = measure(call, family, rules, CHOSEN.get(family, "by hand/tiled"))
    rows = answer["traces"]
    assert [row["after"] for row in rows] == [False, True] * 2
    assert len({row["key"] for row in rows[1::2]}) == 2
    for row in rows:
        assert (row["failures"], row["tree"], row["module"], row["lossy"]) == ([], True, True, None)
        assert 0 < row["sizes"]["line"][0] < row["sizes"]["python"][0]
    kinds = answer["kinds"]
    assert kinds["EnterPostproc"] == 2
    assert kinds["GetSBlock"] >= 4
    if family != corpus.BY_HAND:
        assert [row["derived"] for row in rows] == [None, True] * 2
        assert all(row["sizes"]["line derived"][0] < row["sizes"]["line"][0] for row in rows[1::2])
    assert len(answer["kept"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "rules"), [("gemm", "cuda-tensorcore"), ("vision", "cuda"), ("moe", "llvm"), ("by hand", "by hand")]
)
def test_the_same_seed_gives_the_same_traces(call: Any, family: str, rules: str) -> None:
    block = CHOSEN.get(family, "by hand/located")
    first, again, other = (measure(call, family, rules, block, 3, variant) for variant in (2, 2, 3))
    keys = [row["key"] for row in first["traces"]]
    assert keys == [row["key"] for row in again["traces"]]
    assert first["refused"] == again["refused"]
    assert not set(keys) & {row["key"] for row in other["traces"]}


def test_tensor_cores_are_used_with_padding(call: Any) -> None:
    kinds = measure(call, "gemm", "cuda-tensorcore", CHOSEN["gemm"])["kinds"]
    assert kinds["Tensorize"] >= 2
    assert kinds["PadEinsum"] >= 1


def test_what_gives_no_trace_is_counted_by_reason(call: Any) -> None:
    answer = measure(call, "moe", "cuda", "moe/combine/olmoe-1b-7b-b96")
    assert answer["traces"] == []
    (reason,) = answer["refused"]
    assert reason.startswith("space: ")
    thin = measure(call, "by hand", "by hand", "by hand/block_layout", count=5)
    assert len(thin["traces"]) == 4  # two choices, before and after
    assert thin["refused"] == {"drawn before": corpus.TRIES * 5 - 2}
