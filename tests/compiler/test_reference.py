"""The quick reference is the plain program, bit for bit; and what it says it knows of outputs."""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from littledragon.compiler import exactness, float8, inputs, lowering, reference, targets
from littledragon.compiler.brisk import brisk
from littledragon.compiler.features import features, numpy_dtype
from littledragon.compiler.zoo import blocks
from littledragon.compiler.zoo import quant_irregular_quantize as quantize
from littledragon.validators.numerics import Rounding, compare

LLVM = targets.target("llvm")
Te = Any


def module(*tensors: Any) -> Any:
    import tvm
    from tvm import te

    function = te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": function})


def ran(program: Any, specs: list[dict[str, Any]], case: int = 0) -> list[Any]:
    import tvm

    arguments = [tvm.runtime.tensor(array) for array in inputs.make(specs, case, 1)]
    tvm.compile(float8.exact(program), target=tvm.target.Target(LLVM))["main"](*arguments)
    return [argument.numpy() for argument in arguments]


def same_bits(program: Any, specs: list[dict[str, Any]]) -> bool:
    pairs = zip(ran(program, specs), ran(brisk(program), specs), strict=True)
    return all(plain.tobytes() == quick.tobytes() for plain, quick in pairs)


def product(m: int, n: int, k: int, dtype: str, wide: str, batch: int = 1) -> Any:
    from tvm import te

    x = te.placeholder((batch, m, k), dtype, name="x")
    w = te.placeholder((batch, n, k), dtype, name="w")
    axis = te.reduce_axis((0, k), name="k")
    term: Callable[..., Any] = lambda b, i, j: te.sum(x[b, i, axis].astype(wide) * w[b, j, axis].astype(wide), axis)  # noqa: E731
    y = te.compute((batch, m, n), term, name="y")
    return module(x, w, y)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 5), (1, 37, 9), (499, 67, 33), (12, 48, 100), (33, 16, 7), (7, 17, 1), (64, 1, 50)]
)
@pytest.mark.parametrize(
    ("dtype", "wide"),
    [("float32", "float32"), ("float16", "float32"), ("bfloat16", "float32"), ("float8_e4m3fn", "float32"),
     ("int8", "int32"), ("uint8", "int32"), ("float16", "float16")],
)  # fmt: skip
def test_products_of_any_extent_have_the_same_bits(m: int, n: int, k: int, dtype: str, wide: str) -> None:
    program = product(m, n, k, dtype, wide, batch=2 if m < 100 else 1)
    assert same_bits(program, inputs.specs(program, features(program)))


@pytest.mark.slow
def test_a_sample_of_the_zoo_has_the_same_bits() -> None:
    operators: dict[str, Any] = {}
    sample = list(blocks("paper"))
    random.Random(11).shuffle(sample)
    for block in sample:
        operators.setdefault(block.operator, block)
    compared = 0
    for block in list(operators.values())[:150]:
        for row in lowering.extract("paper", [block.id], LLVM, block.cases[0].name):
            if row["state"] != "ok" or row["flops"] > 1e8:
                continue
            import json

            import tvm

            program = tvm.ir.load_json(row["module"])
            assert same_bits(program, json.loads(row["inputs"])), (block.id, row["task"])
            compared += 1
    assert compared >= 30


def known(program: Any) -> Any:
    return exactness.known(program, inputs.specs(program, features(program)))[0]


def test_sums_that_fit_are_known_and_those_that_do_not_are_not() -> None:
    assert known(product(4, 4, 4096, "float16", "float32")) == (0.0, 0.0)
    assert known(product(4, 4, 4096, "float16", "float16")) == (0.0, 0.0)
    assert known(product(4, 4, 1 << 15, "float16", "float16")) is None
    assert known(product(4, 4, 64, "bfloat16", "bfloat16")) == (0.0, 0.0)
    assert known(product(4, 4, 4096, "bfloat16", "bfloat16")) is None


def test_a_square_of_one_input_is_no_sum_of_either_sign() -> None:
    from tvm import te

    def squares(k: int) -> Any:
        x, axis = te.placeholder((4, k), "float16", name="x"), te.reduce_axis((0, k), name="k")
        return module(x, te.compute((4,), lambda i: te.sum(x[i, axis] * x[i, axis], axis), name="y"))

    assert known(squares(512)) == (0.0, 0.0)
    assert known(squares(513)) is None


def test_what_is_not_understood_is_not_known() -> None:
    from tvm import te

    x = te.placeholder((4, 64), name="x")
    assert known(module(x, te.compute((4, 64), lambda i, j: te.exp(x[i, j]), name="y"))) is None
    root = te.compute((4, 64), lambda i, j: te.floor(te.sqrt(x[i, j])), name="y")
    assert known(module(x, root)) is None


def test_known_outputs_hold_for_every_order() -> None:
    """What is called exact is what whole numbers give."""
    program = product(5, 6, 1000, "float16", "float16")
    specs = inputs.specs(program, features(program))
    x, w, _ = (array.astype(np.float64) for array in inputs.make(specs, exactness.CASE, 1))
    assert np.array_equal(ran(program, specs, exactness.CASE)[2], np.einsum("bik,bjk->bij", x, w))


def test_rounded_whole_numbers_have_ends_around_ties() -> None:
    import tvm
    from tvm import te

    x = te.placeholder((1000,), name="x")
    y = te.compute((1000,), lambda i: te.round(x[i] * 0.5).astype("int8"), name="y")
    program = module(x, y)
    specs = inputs.specs(program, features(program))
    with tempfile.TemporaryDirectory() as folder:
        text = tvm.ir.save_json(program)
        found = reference.reference(text, LLVM, specs, [0, 3], 0, f"{folder}/r")
        normal, whole = (np.load(found["outputs"][case][0]) for case in ("0", "3"))
    values = inputs.make(specs, 3, 0)[0]
    assert np.array_equal(whole["low"] < whole["high"], np.abs(values) == 1)  # 0.5 may go either way
    assert np.mean(normal["low"] < normal["high"]) < 0.01


def test_packed_whole_numbers_have_ends_around_ties(tmp_path: Path) -> None:
    """A quick division puts a quotient on the other side of a tie; in a word of eight that is a step of up to 2^28."""
    (program,) = lowering.modules(quantize.quantize_pack(64, 256, 32, "float16"), LLVM).values()
    specs = inputs.specs(program, features(program))
    found = reference.reference(str(tvm.ir.save_json(program)), LLVM, specs, [0, 3], 2, f"{tmp_path}/out")
    for case in (0, 3):
        ends, scale = (np.load(path) for path in found["outputs"][str(case)])
        w = inputs.make(specs, case, 2)[0].astype(np.float32)
        scale = np.repeat(scale["value"] if scale.dtype.names else scale, 32, axis=1)

        def packed(quotients: Any) -> Any:
            rounded = np.trunc(quotients + np.copysign(np.float32(0.5), quotients))
            digits = (rounded + 8).astype(np.uint32).reshape(64, 32, 8)
            return (digits << np.arange(0, 32, 4, dtype=np.uint32)).sum(axis=2, dtype=np.uint32)

        for quotients in (w / scale, w * (np.float32(1) / scale)):
            assert compare(packed(quotients), ends, "uint32", Rounding(discrete=True)) == 0
        unsure = ends["low"] != ends["high"]
        assert unsure.any()
        assert (np.mean(unsure) < 0.02) == (case == 0), "among whole numbers, every second quotient is a tie"
        right = packed(w / scale)
        for wrong in (
            packed(-w / scale),
            right ^ 1,
            packed(np.trunc(w / scale)),
            np.where(unsure, right ^ 0x2222, right),
        ):
            assert compare(wrong, ends, "uint32", Rounding(discrete=True)) > 1


@pytest.mark.parametrize(("word", "inside"), [("int32", "float32"), ("uint32", "bfloat16")])
def test_words_whose_digits_have_no_ends_are_compared_as_they_are(word: str, inside: str, tmp_path: Path) -> None:
    """A signed word wraps, and what is stored in bfloat16 may be several units off."""
    from tvm import te

    x, part = te.placeholder((64, 64), inside, name="x"), te.reduce_axis((0, 8), name="part")
    half = te.compute((64, 64), lambda i, j: x[i, j] * te.const(0.5, inside), name="half")

    def put(i: Any, j: Any) -> Any:
        digit = te.max(te.min(te.round(half[i, j * 8 + part].astype("float32")), te.const(7.0)), te.const(-7.0)) + 8.0
        return te.sum(digit.astype(word) << (part * 4).astype(word), axis=part)

    program = module(x, te.compute((64, 8), put, name="y"))
    specs = inputs.specs(program, features(program))
    found = reference.reference(str(tvm.ir.save_json(program)), LLVM, specs, [0], 2, f"{tmp_path}/out")
    (values,) = (np.load(path) for path in found["outputs"]["0"])
    assert values.dtype == np.dtype(word)
    assert compare(values ^ np.dtype(word).type(2), values, word, Rounding(discrete=True)) > 1


def test_the_largest_of_terms_is_no_sum() -> None:
    from tvm import te

    x, k = te.placeholder((8, 1000), "float16", name="x"), te.reduce_axis((0, 1000), name="k")
    zero = te.const(0.0, "float16")
    saturating = te.comm_reducer(lambda one, other: te.max(one + other, zero), lambda dtype: zero, name="saturating")
    largest = te.compute((8,), lambda i: te.max(x[i, k], k), name="largest")
    alone = reference.rounding(module(x, largest))
    assert (alone["reduction"], alone["accumulation"]) == (1, None)
    j = te.reduce_axis((0, 1000), name="j")
    total = te.compute((8,), lambda i: te.sum((x[i, j] - largest[i]).astype("float32"), j), name="total")
    both = reference.rounding(module(x, total))
    assert (both["reduction"], both["accumulation"]) == (1000, "float32")
    kept = te.compute((8,), lambda i: saturating(x[i, k], axis=k), name="kept")
    saturated = reference.rounding(module(x, kept))
    assert (saturated["reduction"], saturated["accumulation"]) == (1000, "float16")


def test_millions_of_terms_are_summed_in_a_wider_type(tmp_path: Path) -> None:
    """One after the other in float32 they lose the small ones, and every better order would look wrong."""
    from tvm import te

    x = te.placeholder((4096, 4096), name="x")
    i, k, k0 = (te.reduce_axis((0, extent), name=name) for name, extent in (("i", 4096), ("k", 4096), ("k0", 1000)))
    program = module(x, te.compute((1,), lambda _: te.sum(x[i, k] * x[i, k], axis=[i, k]), name="y"))
    specs = inputs.specs(program, features(program))
    found = reference.reference(str(tvm.ir.save_json(program)), LLVM, specs, [0], 2, f"{tmp_path}/out")
    (values,) = (np.load(path) for path in found["outputs"]["0"])
    wide = inputs.make(specs, 0, 2)[0].astype(np.float64)
    np.testing.assert_allclose(values, [(wide * wide).sum()], rtol=1e-10)
    rounding = Rounding.of(found["rounding"])
    assert compare(values.astype(np.float32), values, "float32", rounding) < 1
    assert compare(np.float32(0.9) * values.astype(np.float32), values, "float32", rounding) > 1
    shorter = te.compute((1,), lambda _: te.sum(x[i, k0], axis=[i, k0]), name="y")
    assert not reference.rounding(module(x, shorter))["millions"]


def test_inputs_are_made_smaller_until_outputs_are_numbers(tmp_path: Path) -> None:
    """A product of whole int8 weights and float16 overflows where the large ends of both meet."""
    from tvm import te

    x = te.placeholder((8, 512), "float16", name="x")
    w = te.placeholder((64, 512), "int8", name="w")
    k = te.reduce_axis((0, 512), name="k")
    wide = te.compute(
        (8, 64), lambda i, j: te.sum(x[i, k].astype("float32") * w[j, k].astype("float32") * 8.0, k), name="wide"
    )
    program = module(x, w, te.compute((8, 64), lambda i, j: wide[i, j].astype("float16"), name="y"))
    specs = inputs.specs(program, features(program))
    found = reference.reference(str(tvm.ir.save_json(program)), LLVM, specs, [0, 4], 0, f"{tmp_path}/out")
    assert found["shrink"]["4"] > 0
    for case, step in found["shrink"].items():
        (path,) = found["outputs"][case]
        expected = np.load(path).astype(np.float64)
        assert np.isfinite(expected).all()
        assert np.abs(expected).max() <= 65504 / 2
        a, b, _ = (array.astype(np.float64) for array in inputs.make(specs, int(case), 0, step))
        np.testing.assert_allclose(expected, 8 * a @ b.T, rtol=1e-3, atol=1e-2 * np.abs(expected).max())


def quantised(rows: int, columns: int, dtype: str, most: float) -> Any:
    """Each row of bfloat16 by its largest magnitude, as 8-bit floats, and the scales."""
    from tvm import te, tirx

    x, k = te.placeholder((rows, columns), "bfloat16", name="x"), te.reduce_axis((0, columns), name="k")
    largest = te.compute((rows,), lambda i: te.max(te.abs(x[i, k].astype("float32")), axis=k), name="largest")
    scale = te.compute(
        (rows,), lambda i: te.max(largest[i], tirx.const(1e-6, "float32")) / tirx.const(most, "float32"), name="scale"
    )
    y = te.compute((rows, columns), lambda i, j: (x[i, j].astype("float32") / scale[i]).astype(dtype), name="y")
    return module(x, y, scale)


@pytest.mark.parametrize(("dtype", "most"), [("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0)])
def test_what_is_quantised_reaches_the_largest_number_and_has_a_reference(
    dtype: str, most: float, tmp_path: Path
) -> None:
    program = quantised(24, 512, dtype, most)
    specs = inputs.specs(program, features(program))
    cases = list(range(len(inputs.CASES)))
    found = reference.reference(str(tvm.ir.save_json(program)), LLVM, specs, cases, 5, f"{tmp_path}/out")
    assert set(found["shrink"].values()) == {0}
    for case in cases:
        x = inputs.make(specs, case, 5)[0].astype(np.float32)
        scale = np.maximum(np.abs(x).max(axis=1), np.float32(1e-6)) / np.float32(most)
        expected = np.clip(x / scale[:, None], -most, most).astype(numpy_dtype(dtype)).astype(np.float32)
        kept = [np.load(path) for path in found["outputs"][str(case)]]
        values, scales = (one["value"] if one.dtype.names else one for one in kept)
        assert np.array_equal(values, expected)
        assert np.abs(values).max() == most
        assert np.array_equal(scales, scale)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_products_of_eight_bit_floats_are_those_of_numpy(dtype: str, tmp_path: Path) -> None:
    """Zeros, subnormal numbers and all."""
    program = product(6, 32, 300, dtype, "float32")
    specs = inputs.specs(program, features(program))
    cases = list(range(len(inputs.CASES)))
    found = reference.reference(str(tvm.ir.save_json(program)), LLVM, specs, cases, 5, f"{tmp_path}/out")
    for case in cases:
        x, w, _ = (array.astype(np.float64) for array in inputs.make(specs, case, 5))
        kept = np.load(found["outputs"][str(case)][0])
        values = kept["value"] if kept.dtype.names else kept
        np.testing.assert_allclose(values, np.einsum("bik,bjk->bij", x, w), rtol=1e-5, atol=1e-5 * np.abs(values).max())


def test_whole_numbers_made_eight_bit_floats_are_known(tmp_path: Path) -> None:
    from tvm import te

    x, w = te.placeholder((8, 64), "bfloat16", name="x"), te.placeholder((8, 64), "bfloat16", name="w")
    k = te.reduce_axis((0, 64), name="k")
    wide = te.compute(
        (8, 8), lambda i, j: te.sum(x[i, k].astype("float32") * w[j, k].astype("float32"), k), name="wide"
    )
    program = module(x, w, te.compute((8, 8), lambda i, j: wide[i, j].astype("float8_e4m3fn"), name="y"))
    specs = inputs.specs(program, features(program))
    found = reference.reference(str(tvm.ir.save_json(program)), LLVM, specs, [3], 0, f"{tmp_path}/out")
    kept = np.load(found["outputs"]["3"][0])
    a, b, _ = (array.astype(np.float32) for array in inputs.make(specs, 3, 0))
    assert np.array_equal(kept["value"], (a @ b.T).astype(numpy_dtype("float8_e4m3fn")).astype(np.float32))
    assert not kept["slack"].any()


def test_a_program_whose_outputs_are_never_finite_has_no_reference(tmp_path: Path) -> None:
    from tvm import te

    x = te.placeholder((8,), "float32", name="x")
    program = module(x, te.compute((8,), lambda i: x[i] * te.const(float("inf"), "float32"), name="y"))
    specs = inputs.specs(program, features(program))
    with pytest.raises(ValueError, match="not finite in case 0, however small"):
        reference.reference(str(tvm.ir.save_json(program)), LLVM, specs, [0], 0, f"{tmp_path}/out")
