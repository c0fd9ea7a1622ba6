"""Arguments of kernels: roles and ranges found in modules, arrays that keep to them, kernels that agree with numpy."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from littledragon.compiler import inputs, lowering, targets
from littledragon.compiler.features import features
from littledragon.compiler.zoo import block_of, blocks

Json = dict[str, Any]
LLVM = targets.target("llvm")


def spec(name: str, dtype: str, role: str, *, low: int | None = None, high: int | None = None) -> Json:
    return {"name": name, "shape": [33, 65], "dtype": dtype, "role": role, "low": low, "high": high}


def lowered(block_id: str) -> dict[str, Any]:
    source = block_of("demo", block_id)
    return lowering.modules(source.build(**source.cases[0].shape), LLVM)


@pytest.fixture(scope="module")
def zoo() -> dict[str, list[Json]]:
    """`block/task` → specs."""
    found = {}
    for b in blocks("demo"):
        for name, module in lowered(b.id).items():
            found[f"{b.id}/{name}"] = inputs.specs(module, features(module))
    return found


def roles(zoo: dict[str, list[Json]], operator: str) -> dict[str, tuple[Any, ...]]:
    (name,) = (name for name in zoo if name.split("/")[1] == operator)
    return {s["name"]: (s["role"], s["low"], s["high"]) if s["role"] == "index" else (s["role"],) for s in zoo[name]}


def test_index_ranges_of_the_zoo(zoo: dict[str, list[Json]]) -> None:
    assert roles(zoo, "grouped_gemm")["expert"] == ("index", 0, 7)
    assert roles(zoo, "combine")["slot"] == ("index", 0, 96 * 8 - 1)
    assert roles(zoo, "dispatch_quantize")["source"] == ("index", 0, 15)
    assert roles(zoo, "embedding_norm")["token"] == ("index", 0, 1906)
    assert roles(zoo, "embedding_norm")["position"] == ("index", 0, 511)
    assert roles(zoo, "embedding_bag")["index"] == ("index", 0, 9999)
    assert roles(zoo, "paged_scores")["page_table"] == ("index", 0, 63)
    assert roles(zoo, "norm_rotary")["position"] == ("index", 0, 2047)
    indices = {s["name"] for specs in zoo.values() for s in specs if s["role"] == "index"}
    assert indices == {"expert", "slot", "source", "token", "position", "index", "page_table"}


def test_masks_scales_and_outputs_of_the_zoo(zoo: dict[str, list[Json]]) -> None:
    assert roles(zoo, "masked_softmax") == {"scores": ("data",), "mask": ("mask",), "T_softmax_norm": ("output",)}
    assert roles(zoo, "w8a16_matmul")["scale"] == ("scale",)
    assert roles(zoo, "quantize") == {"x": ("data",), "quantize": ("output",), "scale": ("output",)}
    for specs in zoo.values():
        assert specs[-1]["role"] == "output"


def compiled(build: Callable[..., Any], *shapes: tuple[tuple[int, ...], str]) -> list[Json]:
    """Specs of a TE program over placeholders a, b, …"""
    import tvm
    from tvm import te

    arguments = [te.placeholder(shape, dtype=dtype, name="abcd"[i]) for i, (shape, dtype) in enumerate(shapes)]
    function = te.create_prim_func([*arguments, build(*arguments)]).with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": function})
    return inputs.specs(module, features(module))


def test_ranges_are_found_through_casts_copies_and_arithmetic() -> None:
    from tvm import te

    table, index = ((100, 4), "float32"), ((8,), "int32")

    def reading(place: Callable[[Any, Any], Any]) -> Json:
        def build(a: Any, b: Any) -> Any:
            return te.compute((8, 4), lambda i, j: a[place(b, i), j], name="y")

        return compiled(build, table, index)[1]

    def through_copy(a: Any, b: Any) -> Any:
        wide = te.compute((8,), lambda i: b[i].astype("int64"), name="wide")
        return te.compute((8, 4), lambda i, j: a[wide[i], j], name="y")

    assert (compiled(through_copy, table, index)[1]["low"], compiled(through_copy, table, index)[1]["high"]) == (0, 99)
    ranges = {
        "plain": (lambda b, i: b[i], (0, 99)),
        "cast": (lambda b, i: b[i].astype("int64"), (0, 99)),
        "shifted": (lambda b, i: b[i] + 3, (-3, 96)),
        "below": (lambda b, i: b[i] - 1, (1, 100)),
        "strided": (lambda b, i: b[i] * 2 + 1, (0, 49)),
        "mirrored": (lambda b, i: 99 - b[i], (0, 99)),
        "divided": (lambda b, i: b[i] // 2, (0, 199)),
        "clipped": (lambda b, i: te.max(te.min(b[i], 99), 0), (0, 99)),
    }
    for name, (place, expected) in ranges.items():
        found = reading(place)
        assert (found["role"], found["low"], found["high"]) == ("index", *expected), name


def test_an_index_into_two_tables_stays_inside_both() -> None:
    from tvm import te

    def build(a: Any, b: Any, c: Any) -> Any:
        return te.compute((8,), lambda i: a[c[i]] + b[c[i]], name="y")

    specs = compiled(build, ((50,), "float32"), ((20,), "float32"), ((8,), "int32"))
    assert (specs[2]["low"], specs[2]["high"]) == (0, 19)


def test_ranges_of_flat_tables_and_of_scattered_outputs() -> None:
    from tvm import te
    from tvm.script import from_source

    def flat(a: Any, b: Any) -> Any:
        return te.compute((8, 4), lambda i, j: a[b[i] * 4 + j], name="y")

    index = compiled(flat, ((400,), "float32"), ((8,), "int32"))[1]
    assert (index["role"], index["low"], index["high"]) == ("index", 0, 99)
    module = from_source("""
@I.ir_module
class Module:
    @T.prim_func(private=True, s_tir=True)
    def main(x: T.Buffer((8,), "float32"), at: T.Buffer((8,), "int32"), y: T.Buffer((50,), "float32")):
        for i in range(8):
            with T.sblock("scatter"):
                v_i = T.axis.spatial(8, i)
                y[at[v_i]] = x[v_i]
""")
    index = inputs.specs(module, features(module))[1]
    assert (index["role"], index["low"], index["high"]) == ("index", 0, 49)


def test_a_range_holds_only_what_its_type_can() -> None:
    from tvm import te

    def build(a: Any, b: Any) -> Any:
        return te.compute((8, 4), lambda i, j: a[b[i].astype("int32") + 3, j], name="y")

    ranges = {dtype: compiled(build, ((1000, 4), "float32"), ((8,), dtype))[1] for dtype in ("int8", "uint8", "int32")}
    assert {dtype: (s["low"], s["high"]) for dtype, s in ranges.items()} == {
        "int8": (-3, 127),
        "uint8": (0, 255),
        "int32": (-3, 996),
    }


def test_divisors_and_roots_are_positive() -> None:
    from tvm import te

    def build(a: Any, b: Any, c: Any, d: Any) -> Any:
        return te.compute((8,), lambda i: a[i] / b[i] + te.sqrt(c[i].astype("float32")) + te.log(d[i]), name="y")

    specs = compiled(build, ((8,), "float32"), ((8,), "float32"), ((8,), "float16"), ((8,), "float32"))
    assert [s["role"] for s in specs] == ["data", "scale", "scale", "scale", "output"]


@pytest.mark.parametrize("case", range(len(inputs.CASES)))
def test_arrays_keep_to_their_specs(case: int, zoo: dict[str, list[Json]]) -> None:
    for specs in zoo.values():
        small = [{**s, "shape": [min(extent, 32) for extent in s["shape"]]} for s in specs]
        for s, array in zip(small, inputs.make(small, case, 5), strict=True):
            assert list(array.shape) == s["shape"]
            assert array.dtype.name == s["dtype"]
            values = array.astype(np.float64)
            if s["role"] == "output":
                continue
            assert np.isfinite(values).all()
            if s["role"] == "index":
                assert s["low"] <= array.min() <= array.max() <= s["high"]
            if s["role"] == "scale":
                assert (values > 0).all()


def test_cases_are_different_distributions() -> None:
    normal, uniform, sparse, whole = (inputs.make([spec("x", "float16", "data")], c, 0)[0] for c in range(4))
    assert normal.min() < -2 and normal.max() > 2 and abs(float(normal.mean())) < 0.1
    assert uniform.min() >= 0 and 0.4 < float(uniform.mean()) < 0.6
    assert 0.4 < float((sparse == 0).mean()) < 0.6 and np.abs(sparse[sparse != 0]).min() < 0.05
    assert set(whole.ravel().tolist()) == {-2, -1, 0, 1, 2}
    ends = inputs.make([spec("i", "int32", "index", low=3, high=9)], 2, 0)[0]
    assert set(ends.ravel().tolist()) == {3, 9}
    drawn = inputs.make([spec("i", "int64", "index", low=3, high=9)], 0, 0)[0]
    assert set(drawn.ravel().tolist()) == set(range(3, 10))


def test_integers_use_the_range_of_their_type() -> None:
    int8 = inputs.make([spec("x", "int8", "data")], 0, 0)[0]
    assert (int8.min(), int8.max()) == (-128, 127)
    packed = inputs.make([spec("x", "uint32", "data")], 0, 0)[0]
    assert packed.max() > 2**31
    wide = inputs.make([spec("x", "int32", "data")], 0, 0)[0]
    assert (wide.min(), wide.max()) == (-100, 100)
    ends = inputs.make([spec("x", "uint8", "data")], 2, 0)[0]
    assert set(ends.ravel().tolist()) == {0, 255}


def test_outputs_are_poisoned() -> None:
    for dtype in ("float16", "float32", "bfloat16", "float8_e4m3fn"):
        assert np.isnan(inputs.make([spec("y", dtype, "output")], 0, 0)[0].astype(np.float32)).all()
    assert (inputs.make([spec("y", "int32", "output")], 0, 0)[0] == 0x7F7F7F7F).all()
    assert (inputs.make([spec("y", "int8", "output")], 0, 0)[0] == 0x7F).all()
    assert inputs.make([spec("y", "bfloat16", "data")], 0, 0)[0].dtype == ml_dtypes.bfloat16


def test_the_same_specs_case_and_seed_give_the_same_arrays_everywhere() -> None:
    specs = [spec("x", "float32", "data"), spec("i", "int32", "index", low=0, high=4), spec("m", "bool", "mask")]
    specs += [spec("s", "float16", "scale"), spec("q", "int8", "data"), spec("y", "float32", "output")]
    code = (
        "import hashlib; from littledragon.compiler import inputs; "
        f"print(*[hashlib.sha256(a.tobytes()).hexdigest() for a in inputs.make({specs!r}, 2, 11)])"
    )
    first, second = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
        for _ in range(2)
    )
    assert first == second
    a, b, c = (inputs.make(specs, case, seed) for case, seed in ((2, 11), (2, 12), (1, 11)))
    assert not np.array_equal(a[0], b[0])
    assert not np.array_equal(a[0], c[0])
    twice = inputs.make([spec("x", "float32", "data")] * 2, 0, 0)
    assert not np.array_equal(twice[0], twice[1])


def test_an_unknown_case_is_refused() -> None:
    with pytest.raises(ValueError, match="choose 0 to 4"):
        inputs.make([], 5, 0)


def run(block_id: str, case: int, tmp_path: Path) -> tuple[list[Any], list[Any]]:
    """Arguments before and after one run of the unscheduled LLVM kernel."""
    import tvm

    (module,) = lowered(block_id).values()
    path = str(tmp_path / "kernel.so")
    tvm.compile(module, target=tvm.target.Target(LLVM)).export_library(path)
    before = inputs.make(inputs.specs(module, features(module)), case, 3)
    after = [tvm.runtime.tensor(array) for array in before]
    tvm.runtime.load_module(path)["main"](*after)
    return before, [tensor.numpy() for tensor in after]


@pytest.mark.parametrize("case", [0, 2])
def test_the_papers_example_computes_what_it_says(case: int, tmp_path: Path) -> None:
    (x, w, _), (*_, y) = run("gemm/nt_matmul_cast/llama-2-7b-tp32-b128", case, tmp_path)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    np.testing.assert_allclose(y.astype(np.float64), exact, atol=np.abs(exact).max() * 2e-3)


def test_an_embedding_bag_computes_what_it_says(tmp_path: Path) -> None:
    (table, index, _), (*_, y) = run("quant_irregular/embedding_bag/dlrm-b128-l40", 0, tmp_path)
    np.testing.assert_allclose(y, table.astype(np.float64)[index].sum(axis=1), atol=1e-4)


def test_a_four_bit_product_computes_what_it_says(tmp_path: Path) -> None:
    (x, packed, scale, _), (*_, y) = run("quant_irregular/w4a16_matmul/llama-2-7b-tp32-g128-b8", 0, tmp_path)
    nibbles = (packed[:, :, None] >> (np.arange(8, dtype=np.uint32) * 4)) & 15
    weight = (nibbles.reshape(128, 2048).astype(np.float64) - 8) * np.repeat(scale.astype(np.float64), 128, axis=1)
    exact = x.astype(np.float64) @ weight.T
    np.testing.assert_allclose(y.astype(np.float64), exact, atol=np.abs(exact).max() * 2e-3)
