"""What a workload should compute: the outputs of its original TensorIR, compiled for the CPU.

Where a reduction accumulates in float16 or bfloat16, the sequential sum of the original is itself far from the
truth (9% at 4096 terms), and a better schedule would look wrong. Then the reference is the same program with
every such value held in float32, so that exactly rounded results pass. The same goes for millions of terms in float32.

It runs in the order of `compiler/brisk.py`, which adds the same terms in the same order: the results are those of the
plain program, bit for bit, a hundred times as fast. Where the program is known to be exact on an input case
(`compiler/exactness.py`), the outputs say so.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import exactness, float8, inputs, kernels
from littledragon.compiler.brisk import brisk
from littledragon.compiler.features import children, constant, kind, loads, numpy_dtype, operator

NARROW: Final = ("float16", "bfloat16")
REDUCE: Final = 2
"""`IterVar.CommReduce`."""
MOST_NUDGED: Final = 0.25
"""A digit of a word is judged by its ends where these lie nearer to it."""
COARSE: Final = frozenset({"tanh", "sin", "cos", "tan", "pow"})
"""Functions whose quick forms on GPUs (tanh.approx and its like) have a few thousandths of error where others have
millionths."""
ROUNDOFF: Final = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
"""Largest relative error of rounding to the type; for bfloat16 that of cutting, which some conversions do."""
MILLIONS: Final = 1 << 22
"""From so many terms on a sum in float32 is not its own reference: added one after the other, small terms are lost in
it (12% of a sum of 45 million squares, more than is allowed), and threads that share it come closer to the truth."""
MOST_SHRINK: Final = 6
"""Inputs are made smaller so often, at most, for outputs to be finite."""
FUNCTIONS: Final = 4e-6
"""Relative error of the approximations of exp, tanh and the like that compilers use in float32."""
ROUGHLY: Final = 2.0**-10
"""The same of `COARSE` ones."""
GROWTH: Final = 0.75
"""Error of a sum of n terms as a power of n: roundings of terms of either sign cancel (0.5), those of equal terms
need not (up to 1). Sequential softmax over 8,000 terms was seen at 4.7e-5 in float32, which this bound just doubles."""
CEILING: Final = 0.05
"""What `drift` never exceeds, so that zeros never pass."""


def reference(
    module: str, target: dict[str, Any], specs: list[dict[str, Any]], cases: list[int], seed: int, out: str
) -> dict[str, Any]:
    """Compute the outputs for each case and write them to `<out>.<case>.<n>.npy`, and the inputs to
    `<out>.in.<case>.<n>.npy`. Runs in a child.

    Args:
        module: M0, as `save_json`.
        target: an llvm target.
        specs: how to make each argument, see `compiler/inputs.py`.

    Returns:
        `{"outputs": {case: paths}, "arguments": {case: what `kernels.write` gives}, "rounding": what `rounding` says
        of the module, "shrink": {case: steps}}`. A file of `outputs` holds an array of the output's shape: of numbers,
        as `kernels.plain` gives them, of (value, slack), see `_exact`, or of (low, high). `shrink` says how much
        smaller than usual the floats of a case are (`inputs.make`): as small as it takes for every output to be finite
        with room to spare.

    Raises:
        ValueError: the program's outputs are not finite, however small its inputs are.
    """
    import numpy as np
    import tvm

    original = tvm.ir.load_json(module)
    found = rounding(original)
    narrow, wide = _too_narrow(found)
    program = tvm.ir.load_json(widen(module, narrow, wide)) if narrow else original
    kernel = _kernel(program, target)
    sides, width = [], 0
    if found["discrete"]:
        away = drift(found["reduction"], found["accumulation"], found["stored"], found["coarse"])
        stores = _whole_stores(program, away)
        width = max((one.width for one in stores), default=0)
        sides = [_kernel(_nudged(program, stores, sign * away), target) for sign in (-1, 1) if stores]
    known = [None] * len(kernels.outputs(specs)) if found["bits"] else exactness.known(original, specs)
    paths: dict[str, list[str]] = {}
    arguments: dict[str, list[str | None]] = {}
    shrink: dict[str, int] = {}
    for case in cases:
        for step in range(MOST_SHRINK + 1):
            made = inputs.make(specs, case, seed, step)
            arrays = [a.astype(wide) if str(a.dtype) in narrow else a for a in made]
            ran = _run(kernel, arrays, specs)
            if _finite(ran, specs):
                break
        else:
            raise ValueError(f"the program's outputs are not finite in case {case}, however small its inputs are")
        shrink[str(case)] = step
        arguments[str(case)] = kernels.write(specs, made, f"{out}.in.{case}")
        del made
        ends = [_run(side, arrays, specs) for side in sides]
        paths[str(case)] = []
        for number, values in enumerate(ran):
            dtype, sure = specs[kernels.outputs(specs)[number]]["dtype"], known[number]
            if case == exactness.CASE and step == 0 and sure is not None:
                kept = _exact(values, dtype, *sure)
            elif ends and values.dtype.kind in "iu":
                low, high = (end[number] for end in ends)
                kept = _between(low, high, width)
            else:
                kept = kernels.plain(values)
            paths[str(case)].append(f"{out}.{case}.{number}.npy")
            np.save(paths[str(case)][-1], kept)
    return {"outputs": paths, "arguments": arguments, "rounding": found, "shrink": shrink}


def _too_narrow(found: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """Types that the reference holds in a wider one, and that one; no types where it computes as the program does."""
    if found["bits"]:
        return (), "float32"
    narrow = NARROW if found["accumulation"] in NARROW else ()
    return ((*narrow, "float32"), "float64") if found["millions"] else (narrow, "float32")


def _finite(ran: list[Any], specs: list[dict[str, Any]]) -> bool:
    """Whether every output is a number that its own type holds with room to spare.

    8-bit floats need no room: what is too large for them becomes their largest number, which programs that quantise
    reach always.
    """
    import numpy as np

    for values, place in zip(ran, kernels.outputs(specs), strict=True):
        dtype = str(specs[place]["dtype"])
        if dtype not in exactness.LARGEST:
            continue
        plain = values if values.dtype == np.float64 else values.astype(np.float32, copy=False)
        most = exactness.LARGEST[dtype] / (1 if dtype in float8.FORMATS else 2)
        if not bool((np.abs(plain) <= most).all()):
            return False
    return True


def _kernel(program: Any, target: dict[str, Any]) -> Any:
    """Loaded as candidates are, so that both run the same way."""
    import tvm

    built = tvm.target.Target(target)
    try:
        compiled = tvm.compile(float8.exact(brisk(program)), target=built)
    except RuntimeError:  # slow, but right
        compiled = tvm.compile(float8.exact(program), target=built)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "reference.o")
        compiled.mod.write_to_file(path)
        return tvm.runtime.load_module(path)


def _run(kernel: Any, arrays: list[Any], specs: list[dict[str, Any]]) -> list[Any]:
    import tvm

    arguments = [tvm.runtime.tensor(array) for array in arrays]
    kernel["main"](*arguments)
    return [arguments[place].numpy() for place in kernels.outputs(specs)]


@dataclass(frozen=True)
class _Whole:
    """A store of a float made whole: as it is (width 0), or shifted into its place of a word, of so many bits."""

    store: Any
    cast: Any
    width: int


def _whole_stores(program: Any, away: float) -> list[_Whole]:
    """The stores to outputs of floats made whole, where these are all that is done with such numbers; else none.

    What else is made of one need not lie between what two nudges make of it.
    """
    from tvm.tirx.stmt_functor import post_order_visit

    main = program["main"]
    arguments = {str(buffer.name) for buffer in main.buffer_map.values()}
    casts: list[Any] = []
    found: list[_Whole] = []

    def visit(node: Any) -> None:
        if kind(node) == "Cast" and _discretises(node):
            casts.append(node)
        if kind(node) == "BufferStore" and str(node.buffer.name) in arguments:
            whole = _Whole(node, node.value, 0) if _discretises(node.value) else _digit(node)
            # Of a digit that may be several units off, or leave its place, nothing is left to see.
            if whole is not None and (not whole.width or away * (64 + 2**whole.width) < MOST_NUDGED):
                found.append(whole)

    post_order_visit(main.body, visit)
    return found if len(casts) == len(found) and len({one.width for one in found}) == 1 else []


def _digit(store: Any) -> _Whole | None:
    """A store that adds to a word of unsigned type a float made whole, shifted by a multiple of its width."""
    value = store.value
    if not (kind(value) == "Add" and _loads_itself(value.a, store) and "uint" in str(value.dtype)):
        return None
    if not (kind(value.b) == "Call" and operator(value.b) == "shift_left"):
        return None
    number, distance = children(value.b)
    while kind(distance) == "Cast":
        distance = distance.value
    width = constant(distance.b) if kind(distance) == "Mul" and kind(distance.a) == "Var" else None
    return _Whole(store, number, width) if width and 0 < width <= 32 and _discretises(number) else None


def _loads_itself(value: Any, store: Any) -> bool:
    """Whether a value is what the store overwrites."""
    from tvm_ffi import structural_equal

    return (
        kind(value) == "BufferLoad"
        and value.buffer.same_as(store.buffer)
        and all(structural_equal(one, other) for one, other in zip(value.indices, store.indices, strict=True))
    )


def _nudged(program: Any, stores: list[_Whole], away: float) -> Any:
    """The program with every float that becomes a whole number moved, by this part of its size plus 64."""
    import tvm
    from tvm.tirx.stmt_functor import ir_transform

    main = program["main"]

    def moved(value: Any) -> Any:
        if kind(value) == "Call" and operator(value) in ("round", "nearbyint", "floor", "ceil", "trunc"):
            return getattr(tvm.tirx, operator(value))(moved(children(value)[-1]))
        if kind(value) in ("Max", "Min", "Add", "Sub") and kind(value.b) == "FloatImm":
            inside = moved(value.a)
            if kind(value) in ("Max", "Min"):
                return {"Max": tvm.tirx.max, "Min": tvm.tirx.min}[kind(value)](inside, value.b)
            return inside + value.b if kind(value) == "Add" else inside - value.b
        wide = value.astype("float64")
        return (wide + away * (tvm.tirx.abs(wide) + 64.0)).astype(str(value.dtype))

    def put(node: Any) -> Any:
        one = next((one for one in stores if one.store.same_as(node)), None)
        if one is None:
            return None
        value = moved(one.cast.value).astype(str(one.cast.dtype))
        if one.width:
            value = node.value.a + tvm.tirx.shift_left(value, children(node.value.b)[-1])
        return tvm.tirx.BufferStore(node.buffer, value, node.indices)

    return tvm.IRModule({"main": main.with_body(ir_transform(main.body, None, put, ["tirx.BufferStore"]))})


def _discretises(node: Any) -> bool:
    return kind(node) == "Cast" and "int" in str(node.dtype) and "float" in str(node.value.dtype)


def _between(one: Any, other: Any, width: int) -> Any:
    """(low, high) of each whole number; of a word of digits also their width, and each digit has its own."""
    import numpy as np

    fields = [("low", one.dtype), ("high", one.dtype)]
    together = np.empty(one.shape, [*fields, ("width", np.uint8)] if width else fields)
    if width:
        together["width"] = width
    together["low"], together["high"] = (one, other) if width else (np.minimum(one, other), np.maximum(one, other))
    return together


def _exact(values: Any, dtype: str, relative: float, slack: float) -> Any:
    """Each value as it is once stored, with how far legitimate kernels may be apart before they store it.

    Twice what any of them, this reference among them, may be off; 0 where none has a choice.
    """
    import numpy as np

    values = kernels.plain(values.astype(numpy_dtype(dtype)))
    wide = values if values.dtype == np.float64 else values.astype(np.float32)
    together = np.empty(values.shape, [("value", wide.dtype), ("slack", np.float32)])
    together["value"], together["slack"] = wide, 2 * (relative * np.abs(wide) + slack)
    return together


def drift(reduction: int, accumulation: str | None, stored: str | None, coarse: bool) -> float:
    """How far honest roundings inside of a program may move its results, relative to their scale. Runs anywhere.

    Args:
        reduction, accumulation, stored, coarse: as `rounding` gives them.
    """
    total = ROUGHLY if coarse else FUNCTIONS
    if stored in ROUNDOFF:
        total += 8 * ROUNDOFF[stored]
    if accumulation in ROUNDOFF:
        total += 2 * ROUNDOFF[accumulation] * reduction**GROWTH
    return min(total, CEILING)


def widen(module: str, narrow: tuple[str, ...] = NARROW, wide: str = "float32") -> str:
    """The same program with a wide type wherever it has one of the narrow ones, parameters included."""
    tree = json.loads(module)
    for node in tree["nodes"]:
        data = node.get("data")
        if isinstance(data, dict) and data.get("dtype") in narrow:
            data["dtype"] = wide
    return json.dumps(tree)


def rounding(module: Any) -> dict[str, Any]:
    """Where the program rounds, for the bound of the numerical check. Needs TVM.

    Returns:
        `reduction`: terms of the longest sum; `accumulation`: coarsest float that one accumulates in, or null (the
        largest of some terms is one of them, in whatever order; what finds its place as well counts as a sum);
        `stored`: coarsest float of an intermediate buffer, or null; `discrete`: whether a float is turned into an
        integer; `bits`: whether bit patterns are reinterpreted; `coarse`: whether it calls a function that is much less
        precise in its quick form; `millions`: whether a float32 sum is too long to be its own reference.
    """
    import tvm
    from tvm.tirx.stmt_functor import post_order_visit

    longest = 1
    accumulated: set[str] = set()
    stored: set[str] = set()
    discrete = bits = coarse = millions = False

    def visit(node: Any) -> None:
        nonlocal longest, discrete, bits, coarse, millions
        if isinstance(node, tvm.tirx.SBlock):
            stored.update(str(buffer.dtype) for buffer in node.alloc_buffers)
            extents = [axis.dom.extent for axis in node.iter_vars if int(axis.iter_type) == REDUCE]
            if extents and not _chooses(node.body):
                types = {str(region.buffer.dtype) for region in node.writes}
                accumulated.update(types)
                known = [int(extent) for extent in extents if isinstance(extent, tvm.tirx.IntImm)]
                terms = 1
                for extent in known:
                    terms *= extent
                longest = max(longest, terms)
                millions |= "float32" in types and terms >= MILLIONS
        elif isinstance(node, tvm.tirx.Cast):
            discrete |= "int" in str(node.dtype) and "float" in str(node.value.dtype)
        elif isinstance(node, tvm.tirx.Call):
            bits |= operator(node) == "reinterpret"
            coarse |= operator(node) in COARSE

    for function in module.functions.values():
        post_order_visit(function.body, visit)
    return {
        "reduction": longest,
        "accumulation": _coarsest(accumulated),
        "stored": _coarsest(stored),
        "discrete": discrete,
        "bits": bits,
        "coarse": coarse,
        "millions": millions,
    }


def _chooses(update: Any) -> bool:
    """Whether what a block stores is the larger or smaller of what was there and a term."""
    if kind(update) != "BufferStore" or kind(update.value) not in ("Max", "Min"):
        return False
    for held, term in ((update.value.a, update.value.b), (update.value.b, update.value.a)):
        if _loads_itself(held, update):
            return not any(load.buffer.same_as(update.buffer) for load in loads(term))
    return False


def _coarsest(dtypes: set[str]) -> str | None:
    order = ("bfloat16", "float16", "float32", "float64")
    floats = [dtype for dtype in dtypes if "float" in dtype]
    return min(floats, key=lambda dtype: order.index(dtype) if dtype in order else -1, default=None)
