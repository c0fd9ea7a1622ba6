"""8-bit floats on a CPU, compiled and run: every code read, and float32 of every kind written."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from littledragon.compiler import float8, targets

FORMATS = ("float8_e4m3fn", "float8_e5m2")
TARGETS: tuple[dict[str, Any], ...] = ({"kind": "llvm"}, {"kind": "llvm", "mcpu": "x86-64-v3"})
LANES = (0, 16)
SIZE = 1024
Array = npt.NDArray[Any]


def typed(dtype: str) -> Any:
    return np.dtype(getattr(ml_dtypes, dtype, None) or dtype)


def elementwise(source: str, to: str, term: Callable[[Any], Any], size: int, lanes: int = 0) -> Any:
    """The module of y[i] = term(x[i]), in vectors of so many."""
    import tvm
    from tvm import te

    x = te.placeholder((size,), source, name="x")
    y = te.compute((size,), lambda i: term(x[i]), name="y")
    assert str(y.dtype) == to
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    if lanes:
        (loop,) = schedule.get_loops(schedule.get_sblock("y"))
        schedule.vectorize(schedule.split(loop, [None, lanes])[1])
    return schedule


def compiled(module: Any, target: dict[str, Any] = TARGETS[1]) -> Any:
    import tvm

    return tvm.compile(float8.exact(module), target=tvm.target.Target(target))


def ran(kernel: Any, to: str, *values: Array) -> Array:
    """The last argument, an output of the shape of the first."""
    import tvm

    y = tvm.runtime.empty(values[0].shape, to)
    kernel["main"](*(tvm.runtime.tensor(one) for one in values), y)
    found: Array = y.numpy()
    return found


@cache
def cast(source: str, to: str, lanes: int = 0, target: int = 1) -> Any:
    size = 256 if source.startswith("float8") else SIZE
    schedule = elementwise(source, to, lambda x: x.astype(to), size, lanes)
    return compiled(schedule.mod, TARGETS[target])


def same(one: Array, other: Array) -> bool:
    """As numbers, with the sign of zeros; every NaN is one."""
    with np.errstate(invalid="ignore"):
        wide, expected = one.astype(np.float64), other.astype(np.float64)
    equal = (wide == expected) & (np.signbit(wide) == np.signbit(expected))
    return bool((equal | (np.isnan(wide) & np.isnan(expected))).all())


def codes(dtype: str) -> Array:
    return np.arange(256, dtype=np.uint8).view(typed(dtype))


@pytest.mark.parametrize("target", range(len(TARGETS)))
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", [*FORMATS, "float8_e8m0fnu"])
def test_every_code_is_read_as_it_should_be(dtype: str, lanes: int, target: int) -> None:
    values = codes(dtype)
    wide = values.astype(np.float32)
    for to in ("float32", "float16", "bfloat16"):
        with np.errstate(over="ignore"):
            expected = wide.astype(typed(to))
        assert same(ran(cast(dtype, to, lanes, target), to, values), expected), to
    fits = np.abs(wide) < 2**31
    assert np.array_equal(ran(cast(dtype, "int32", lanes, target), "int32", values)[fits], wide[fits].astype(np.int32))


def rounded(values: Array, dtype: str) -> Array:
    """The codes of the nearest numbers, found by looking at all; of two as near the even one."""
    numbers = codes(dtype)[:128].astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
    size = np.minimum(np.nan_to_num(np.abs(wide), posinf=numbers[-1]), numbers[-1])
    above = np.clip(np.searchsorted(numbers, size), 1, len(numbers) - 1)
    low, high = size - numbers[above - 1], numbers[above] - size
    code = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    code = np.where(np.isnan(wide), 0x7F, code) + np.where(np.signbit(wide), 0x80, 0)
    return code.astype(np.uint8).view(typed(dtype))


def written(values: Array, dtype: str, lanes: int = 0, target: int = 1) -> Array:
    whole = np.zeros(-(-values.size // SIZE) * SIZE, values.dtype)
    whole[: values.size] = values
    kernel = cast(str(values.dtype), dtype, lanes, target)
    return np.concatenate([ran(kernel, dtype, part) for part in whole.reshape(-1, SIZE)])[: values.size]


def edges(dtype: str) -> Array:
    """All numbers of the type and all ties, with the next float32 on either side; and the ends of float32."""
    numbers = codes(dtype)[:128].astype(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    ties = (numbers[1:] + numbers[:-1]) / 2
    more = np.float32([448, 464, 479.9, 480, 57344, 61440, 61441, 65536, 3e38, np.inf, np.nan, 2**-149, 2**-126, 1e-40])
    middle = np.concatenate([numbers, ties, more])
    around = np.concatenate([middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(0))])
    return np.concatenate([around, -around])


@pytest.mark.parametrize("target", range(len(TARGETS)))
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", FORMATS)
def test_float32_is_rounded_to_the_nearest_and_kept_finite(dtype: str, lanes: int, target: int) -> None:
    random = np.random.default_rng(1)
    bits = random.integers(0, 1 << 32, 100_000, dtype=np.uint32).view(np.float32)
    scaled = (random.standard_normal(100_000) * np.exp2(random.uniform(-20, 18, 100_000))).astype(np.float32)
    for values in (edges(dtype), bits, scaled):
        found = written(values, dtype, lanes, target)
        assert same(found, rounded(values, dtype))
        inside = np.abs(values) <= float(ml_dtypes.finfo(typed(dtype)).max)
        assert found[inside].tobytes() == values[inside].astype(typed(dtype)).tobytes()


@given(arrays(np.float32, 64, elements=st.floats(width=32)), st.sampled_from(FORMATS))
def test_any_float32(values: Array, dtype: str) -> None:
    assert same(written(values, dtype, 16), rounded(values, dtype))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("source", ["float16", "bfloat16", "int32", "int8"])
def test_other_types_are_rounded_once(source: str, dtype: str) -> None:
    random = np.random.default_rng(2)
    values = random.integers(0, 1 << 16, SIZE, dtype=np.uint16)
    made = values.view(typed(source)) if typed(source).itemsize == 2 else values.astype(np.int32).astype(source)
    for lanes in (0, 8):
        assert same(written(made, dtype, lanes), rounded(made, dtype))


def test_one_type_becomes_the_other() -> None:
    for source, to in (FORMATS, FORMATS[::-1]):
        found = ran(cast(source, to), to, codes(source))
        assert same(found, rounded(codes(source).astype(np.float32), to))


def test_powers_of_two_are_rounded_up() -> None:
    values = np.float32([0, 2**-127, 2**-126, 1, 1.001, 1.5, 2, 0.9, 2.0**127, 3e38, np.inf, -3, np.nan])
    expected = [2.0**-127, 2.0**-127, 2.0**-126, 1, 2, 2, 2, 1, 2.0**127, 2.0**127, 2.0**127, 4, np.nan]
    for lanes in (0, 4):
        assert same(written(values, "float8_e8m0fnu", lanes), np.array(expected))


def arithmetic(dtype: str) -> list[tuple[Callable[[Any], Any], Callable[[Array], Array]]]:
    """What a program may do in the type itself, and the same of float32."""
    from tvm import tirx

    def const(value: float) -> Any:
        return tirx.const(value, dtype)

    return [
        (lambda x: tirx.max(x, const(0.25)), lambda x: np.maximum(x, 0.25)),
        (lambda x: tirx.min(x, const(-3.0)), lambda x: np.minimum(x, -3)),
        (lambda x: x + x, lambda x: x + x),
        (lambda x: x * const(1.75), lambda x: x * np.float32(1.75)),
        (lambda x: tirx.sqrt(tirx.max(x, const(0.0))), lambda x: np.sqrt(np.maximum(x, 0))),
        (lambda x: tirx.Select(x > const(0.5), x, const(0.125)), lambda x: np.where(x > 0.5, x, 0.125)),
        (
            lambda x: tirx.if_then_else(x < const(-1.0), const(0.3), x),
            lambda x: np.where(x < -1, rounded(np.float32(0.3), dtype), x),
        ),
        (lambda x: x, lambda x: x),
    ]


@pytest.mark.parametrize("dtype", FORMATS)
def test_arithmetic_in_the_type_is_that_of_float32_rounded(dtype: str) -> None:
    values = codes(dtype)
    finite = np.isfinite(values.astype(np.float32))
    for number, (term, meant) in enumerate(arithmetic(dtype)):
        for lanes in (0, 8):
            kernel = compiled(elementwise(dtype, dtype, term, 256, lanes).mod)
            with np.errstate(all="ignore"):
                expected = rounded(meant(values.astype(np.float32)[finite]), dtype)
            assert same(ran(kernel, dtype, values)[finite], expected), (number, lanes)


@pytest.mark.parametrize("dtype", [*FORMATS, "float8_e8m0fnu"])
def test_copies_inside_of_a_program_keep_every_code(dtype: str) -> None:
    """TVM would hold such a buffer in float16."""
    schedule = elementwise(dtype, dtype, lambda x: x, 256)
    schedule.cache_read(schedule.get_sblock("y"), 0, "local")
    schedule.cache_write(schedule.get_sblock("y"), 0, "global")
    assert ran(compiled(schedule.mod), dtype, codes(dtype)).tobytes() == codes(dtype).tobytes()


@pytest.mark.parametrize("dtype", FORMATS)
def test_largest_of_rows(dtype: str) -> None:
    import tvm
    from tvm import te

    x, k = te.placeholder((64, 50), dtype, name="x"), te.reduce_axis((0, 50), name="k")
    y = te.compute((64,), lambda i: te.max(x[i, k], axis=k), name="y")
    values = rounded(np.random.default_rng(3).standard_normal((64, 50)) * 1e-2, dtype)
    kernel = compiled(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    found = tvm.runtime.empty((64,), dtype)
    kernel["main"](tvm.runtime.tensor(values), found)
    assert same(found.numpy(), values.astype(np.float32).max(axis=1))


def test_a_view_of_a_buffer_inside() -> None:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((256,), "float8_e4m3fn"), y: T.Buffer((256,), "float32")):  # type: ignore[no-untyped-def]
        copy = T.sblock_alloc_buffer((256,), "float8_e4m3fn")
        for i in range(256):
            with T.sblock("copy"):
                v = T.axis.spatial(256, i)
                copy[v] = x[v]
        for i in range(64):
            with T.sblock("y"):
                v = T.axis.spatial(64, i)
                T.reads(copy[v * 4 : v * 4 + 4])
                T.writes(y[v * 4 : v * 4 + 4])
                view = T.match_buffer(copy[v * 4 : v * 4 + 4], (4,), "float8_e4m3fn", offset_factor=1)
                for lane in range(4):
                    y[v * 4 + lane] = T.Cast("float32", view[lane])

    import tvm

    kernel = compiled(tvm.IRModule({"main": main.with_attr("global_symbol", "main")}))
    assert same(ran(kernel, "float32", codes("float8_e4m3fn")), codes("float8_e4m3fn").astype(np.float32))


def test_vectors_that_a_program_names() -> None:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((256,), "float8_e5m2"), y: T.Buffer((256,), "float8_e4m3fn")):  # type: ignore[no-untyped-def]
        for i in range(32):
            with T.sblock("y"):
                v = T.axis.spatial(32, i)
                T.reads(x[v * 8 : v * 8 + 8])
                T.writes(y[v * 8 : v * 8 + 8])
                y[v * 8 : v * 8 + 8] = T.Cast("float8_e4m3fnx8", T.Cast("float32x8", x[v * 8 : v * 8 + 8]))

    import tvm

    kernel = compiled(tvm.IRModule({"main": main.with_attr("global_symbol", "main")}))
    values = codes("float8_e5m2")
    assert same(ran(kernel, "float8_e4m3fn", values), rounded(values.astype(np.float32), "float8_e4m3fn"))


@pytest.mark.parametrize("dtype", FORMATS)
def test_built_kernels_convert_so(dtype: str, tmp_path: Path) -> None:
    import tvm

    from littledragon.compiler import build

    there = elementwise(dtype, "float32", lambda x: x.astype("float32"), 256, 16).mod
    back = elementwise("float32", dtype, lambda x: x.astype(dtype), 256, 16).mod
    values = np.resize(edges(dtype), 256)
    for module, to, given_, expected in (
        (there, "float32", codes(dtype), codes(dtype).astype(np.float32)),
        (back, dtype, values, rounded(values, dtype)),
    ):
        path = str(tmp_path / f"{to}.o")
        build.build(str(tvm.ir.save_json(module)), targets.target("llvm"), path)
        assert same(ran(tvm.runtime.load_module(path), to, given_), expected)


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_a_module_without_them_is_given_back(dtype: str) -> None:
    module = elementwise(dtype, "float32", lambda x: x.astype("float32"), 64).mod
    assert float8.exact(module) is module
