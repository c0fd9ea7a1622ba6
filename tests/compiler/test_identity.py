"""The canonical text: what makes no difference to it, and what does."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.compiler import identity, lowering, targets
from littledragon.compiler.zoo import Program, blocks
from littledragon.compiler.zoo.block import export

LLVM = targets.target("llvm")


def text(program: Program) -> str:
    (module,) = lowering.modules(program, LLVM).values()
    return identity.canonical(module)


def product(
    m: int = 64,
    n: int = 96,
    k: int = 128,
    *,
    dtype: str = "float32",
    factor: float | None = None,
    lead: tuple[int, ...] = (),
) -> Program:
    """X·Wᵀ, times a constant where one is given, with dimensions of 1 in front where they are given."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any) -> Any:
        y = op.matmul(x, op.permute_dims(w, [1, 0]))
        return y if factor is None else y * factor

    return export(forward, x=((*lead, m, k), dtype), w=((n, k), dtype))


def renamed(source: str, **words: str) -> Any:
    import tvm

    for old, new in words.items():
        source = source.replace(old, new)
    return tvm.script.from_source(source)


SCALED = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((64, 128), "float32"), table: T.Buffer((64,), "int32"), y: T.Buffer((64, 128), "float32")):
        for i, j in T.grid(64, 128):
            with T.sblock("scale"):
                v_i, v_j = T.axis.remap("SS", [i, j])
                y[v_i, v_j] = x[table[v_i], v_j] * T.float32(0.5)
"""


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ({"v_i": "row", "scale": "other", " i,": " outer,", "[i, ": "[outer, "}, True),
        ({"0.5": "0.25"}, True),
        ({"int32": "int64"}, True),
        ({"(64, 128),": "(64, 1, 128),", "[v_i, v_j]": "[v_i, 0, v_j]", "[table[v_i], v_j]": "[table[v_i], 0, v_j]"},
         True),
        ({"x: T.Buffer((64, 128), \"float32\"), table: T.Buffer((64,), \"int32\")":
          "table: T.Buffer((64,), \"int32\"), x: T.Buffer((64, 128), \"float32\")"}, True),
        ({"* T.float32": "+ T.float32"}, False),
        ({"float32": "float16"}, False),
        ({"x[table[v_i], v_j]": "x[v_i, v_j]"}, False),
        ({"x[table[v_i], v_j]": "x[table[v_i], 127 - v_j]"}, False),
        ({"T.grid(64, 128)": "T.grid(64, 64)"}, False),
        ({"* T.float32(0.5)": ""}, False),
    ],
)  # fmt: skip
def test_what_makes_a_difference(words: dict[str, str], same: bool) -> None:
    before, after = renamed(SCALED), renamed(SCALED, **words)
    assert (identity.canonical(before) == identity.canonical(after)) is same
    assert (identity.workload_id(before) == identity.workload_id(after)) is same


MATCHED = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((64, 128), "float32"), y: T.Buffer((64, 128), "float32")):
        for i in range(64):
            with T.sblock("row"):
                v_i = T.axis.spatial(64, i)
                T.reads(x[0:64, 0:128])
                T.writes(y[v_i, 0:128])
                part = T.match_buffer(x[v_i, 0:128], (128,), offset_factor=1)
                for j in range(128):
                    y[v_i, j] = part[j] + T.float32(1)
"""
SUMMED = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((64, 128), "int32"), y: T.Buffer((64,), "int32")):
        for i, j in T.grid(64, 128):
            with T.sblock("sum"):
                v_i, v_j = T.axis.remap("SR", [i, j])
                with T.init():
                    y[v_i] = 0
                y[v_i] = y[v_i] + (x[v_i, v_j] & 15)
"""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (MATCHED, {"x[v_i, 0:128], (128": "x[63 - v_i, 0:128], (128"}),
        (SUMMED, {"y[v_i] = 0": "y[v_i] = 1"}),
        (SUMMED, {"& 15": "& 7"}),
        (SUMMED, {"y[v_i] + (": "T.max(y[v_i], ", "15)": "15)"}),
        (SUMMED, {"with T.init():\n                    y[v_i] = 0\n                y[v_i] = y": "y[v_i] = y"}),
    ],
)
def test_what_stands_elsewhere_makes_a_difference_too(source: str, words: dict[str, str]) -> None:
    before, after = renamed(source), renamed(source, **words)
    assert before.script() != after.script()
    assert identity.canonical(before) != identity.canonical(after)
    assert identity.canonical(before) == identity.canonical(renamed(source))


def test_dimensions_of_one_and_constants_make_none() -> None:
    one = text(product())
    assert one == text(product(lead=(1,))) == text(product(lead=(1, 1)))
    assert text(product(factor=0.5)) == text(product(factor=3.0, lead=(1,))) != one


@settings(max_examples=25, deadline=None)
@given(st.tuples(*[st.sampled_from([1, 2, 16, 64])] * 3), st.tuples(*[st.sampled_from([1, 2, 16, 64])] * 3))
def test_products_are_one_exactly_when_their_extents_are(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    """But for extents of 1: a row times a matrix is a matrix times a column, where the order of operands is free."""
    same = text(product(*first)) == text(product(*second))
    assert same or first != second
    if 1 not in first + second:
        assert same is (first == second)


def unit_loops(module: Any) -> Any:
    """The same program with a loop of 1 around each block's loops, which TVM's own equality tells apart."""
    import tvm

    schedule = tvm.s_tir.Schedule(module)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        if loops := schedule.get_loops(block):
            schedule.split(loops[0], [1, None])
    return schedule.mod


def wide(module: Any) -> Any:
    """The same program with 64-bit indices."""
    import json

    import tvm

    tree = json.loads(tvm.ir.save_json(module))
    for node in tree["nodes"]:
        data = node.get("data")
        if isinstance(data, dict) and data.get("dtype") == "int32":
            data["dtype"] = "int64"
    return tvm.ir.load_json(json.dumps(tree))


@pytest.mark.parametrize("change", [unit_loops, wide])
def test_the_whole_demo_keeps_its_ids(change: Callable[[Any], Any]) -> None:
    from tvm_ffi import structural_equal

    seen = set()
    for block in blocks("demo"):
        for name, module in lowering.modules(block.build(**block.cases[0].shape), LLVM).items():
            changed = change(module)
            assert not structural_equal(changed, module) or "int64" in module.script()
            assert identity.canonical(changed) == identity.canonical(module), (block.id, name)
            seen.add(identity.workload_id(module))
    assert len(seen) >= 50


def test_without_a_main_there_is_none() -> None:
    import tvm

    with pytest.raises(ValueError, match="no function named 'main'"):
        identity.canonical(tvm.IRModule({}))
