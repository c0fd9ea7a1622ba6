"""The numerical gate put to the test: programs of every kind and type, wrong kernels and right ones made of them.

Everything runs in a child, many kernels in one.
"""

import random
import tempfile
from typing import Any

import numpy as np

from littledragon.compiler import float8, inputs, kernels, reference, wrong
from littledragon.compiler.brisk import brisk
from littledragon.compiler.features import children, features, kind, numpy_dtype, operator
from littledragon.validators.numerics import Rounding, compare

TARGET = {"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v3"}
PLAIN = {"kind": "llvm", "num-cores": 2}
ROWS = 24
OUT = {"float8_e4m3fn": "bfloat16", "float8_e5m2": "float16"}


def _sum_of_products(te: Any, x: Any, w: Any, k: int, wide: str) -> Any:
    axis = te.reduce_axis((0, k), name="k")
    return te.compute(
        (x.shape[0], w.shape[0]),
        lambda i, j: te.sum(x[i, axis].astype(wide) * w[j, axis].astype(wide), axis),
        name="product",
    )


def linear(te: Any, dtype: str, k: int) -> list[Any]:
    """relu(X · Wᵀ + b), summed in float32."""
    x, w = te.placeholder((ROWS, k), dtype, name="x"), te.placeholder((ROWS + 8, k), dtype, name="w")
    bias = te.placeholder((ROWS + 8,), "float32", name="bias")
    product = _sum_of_products(te, x, w, k, "float32")
    shape = (ROWS, ROWS + 8)
    biased = te.compute(shape, lambda i, j: product[i, j] + bias[j], name="biased")
    out = OUT.get(dtype, dtype)
    relu = te.compute(shape, lambda i, j: _tir().max(biased[i, j], _tir().const(0.0, "float32")), name="relu")
    return [x, w, bias, te.compute(shape, lambda i, j: relu[i, j].astype(out), name="y")]


def narrow_linear(te: Any, dtype: str, k: int) -> list[Any]:
    """X · Wᵀ, summed in the type itself."""
    x, w = te.placeholder((ROWS, k), dtype, name="x"), te.placeholder((ROWS, k), dtype, name="w")
    product = _sum_of_products(te, x, w, k, dtype)
    return [x, w, te.compute((ROWS, ROWS), lambda i, j: product[i, j], name="y")]


def quantised_linear(te: Any, dtype: str, k: int) -> list[Any]:
    """X · Wᵀ of bfloat16, summed in float32, scaled, cut to what an 8-bit float holds and made one."""
    t, shape, f = _tir(), (ROWS, ROWS), "float32"
    x, w = te.placeholder((ROWS, k), "bfloat16", name="x"), te.placeholder((ROWS, k), "bfloat16", name="w")
    product, most = _sum_of_products(te, x, w, k, f), {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}[dtype]

    def cut(i: Any, j: Any) -> Any:
        scaled = product[i, j] * t.const(4.0 / k**0.5, f)
        return t.max(t.min(scaled, t.const(most, f)), t.const(-most, f)).astype(dtype)

    return [x, w, te.compute(shape, cut, name="y")]


def gelu(te: Any, dtype: str, k: int) -> list[Any]:
    """gelu(X · Wᵀ + b), each step stored in the type."""
    x, w = te.placeholder((ROWS, k), dtype, name="x"), te.placeholder((ROWS, k), dtype, name="w")
    bias = te.placeholder((ROWS,), dtype, name="bias")
    product, t, shape = _sum_of_products(te, x, w, k, "float32"), _tir(), (ROWS, ROWS)
    stored = te.compute(shape, lambda i, j: product[i, j].astype(dtype), name="stored")
    biased = te.compute(shape, lambda i, j: stored[i, j] + bias[j], name="biased")
    f = "float32"

    def activated(i: Any, j: Any) -> Any:
        value = biased[i, j].astype(f)
        return (value * (0.5 + 0.5 * t.erf(value * t.const(0.70710678, f)))).astype(dtype)

    return [x, w, bias, te.compute(shape, activated, name="y")]


def whole_linear(te: Any, dtype: str, k: int) -> list[Any]:
    """X · Wᵀ of whole numbers, in int32 or wider."""
    wide = dtype if dtype in ("int32", "int64") else "int32"
    x, w = te.placeholder((ROWS, k), dtype, name="x"), te.placeholder((ROWS, k), dtype, name="w")
    product = _sum_of_products(te, x, w, k, wide)
    return [x, w, te.compute((ROWS, ROWS), lambda i, j: product[i, j], name="y")]


def requantised(te: Any, dtype: str, k: int) -> list[Any]:
    """X · Wᵀ of bytes, scaled for each column, rounded and cut to bytes again."""
    t, shape = _tir(), (ROWS, ROWS)
    x, w = te.placeholder((ROWS, k), dtype, name="x"), te.placeholder((ROWS, k), dtype, name="w")
    scale = te.placeholder((ROWS,), "float32", name="scale")
    product = _sum_of_products(te, x, w, k, "int32")
    low, high = (-128.0, 127.0) if dtype == "int8" else (0.0, 255.0)
    size = 0.5 / k**0.5 if dtype == "int8" else 0.4 / k
    scaled = te.compute(shape, lambda i, j: product[i, j].astype("float32") * scale[j] * t.const(size, "float32"))

    def cut(i: Any, j: Any) -> Any:
        return t.max(t.min(t.round(scaled[i, j]), t.const(high, "float32")), t.const(low, "float32")).astype(dtype)

    return [x, w, scale, te.compute(shape, cut, name="y")]


def packed_linear(te: Any, dtype: str, k: int) -> list[Any]:
    """X · Wᵀ with four bits a weight, packed into words of this type, and a scale for each 32."""
    t = _tir()
    each = 8 if dtype == "uint32" else 2
    x = te.placeholder((ROWS, k), "float16", name="x")
    words = te.placeholder((ROWS, k // each), dtype, name="words")
    scale = te.placeholder((ROWS, k // 32), "float16", name="scale")

    def unpacked(j: Any, c: Any) -> Any:
        word = words[j, c // each] >> ((c % each) * 4).astype(dtype)
        nibble = t.bitwise_and(word, t.const(15, dtype)).astype("float16")
        return (nibble - t.const(8.0, "float16")) * scale[j, c // 32]

    w = te.compute((ROWS, k), unpacked, name="w")
    product = _sum_of_products(te, x, w, k, "float32")
    return [x, words, scale, te.compute((ROWS, ROWS), lambda i, j: product[i, j].astype("float16"), name="y")]


def softmax(te: Any, dtype: str, k: int) -> list[Any]:
    """Over the last axis, in float32."""
    t, x = _tir(), te.placeholder((ROWS, k), dtype, name="x")
    a, b = te.reduce_axis((0, k), name="a"), te.reduce_axis((0, k), name="b")
    top = te.compute((ROWS,), lambda i: te.max(x[i, a].astype("float32"), a), name="top")
    power = te.compute((ROWS, k), lambda i, j: t.exp(x[i, j].astype("float32") - top[i]), name="power")
    total = te.compute((ROWS,), lambda i: te.sum(power[i, b], b), name="total")
    return [x, te.compute((ROWS, k), lambda i, j: (power[i, j] / total[i]).astype(dtype), name="y")]


def layer_norm(te: Any, dtype: str, k: int) -> list[Any]:
    """Over the last axis, in float32, with weight and bias."""
    t, x = _tir(), te.placeholder((ROWS, k), dtype, name="x")
    weight, bias = te.placeholder((k,), dtype, name="weight"), te.placeholder((k,), dtype, name="bias")
    a, b = te.reduce_axis((0, k), name="a"), te.reduce_axis((0, k), name="b")
    f = "float32"
    total = te.compute((ROWS,), lambda i: te.sum(x[i, a].astype(f), a), name="total")
    mean = te.compute((ROWS,), lambda i: total[i] / t.const(float(k), f), name="mean")
    away = te.compute((ROWS, k), lambda i, j: x[i, j].astype(f) - mean[i], name="away")
    square = te.compute((ROWS,), lambda i: te.sum(away[i, b] * away[i, b], b), name="square")
    root = te.compute((ROWS,), lambda i: t.rsqrt(square[i] / t.const(float(k), f) + t.const(1e-5, f)), name="inverse")
    normed = te.compute((ROWS, k), lambda i, j: away[i, j] * root[i] * weight[j].astype(f), name="normed")
    y = te.compute((ROWS, k), lambda i, j: (normed[i, j] + bias[j].astype(f)).astype(dtype), name="y")
    return [x, weight, bias, y]


def convolution(te: Any, dtype: str, k: int) -> list[Any]:
    """3 × 3 with padding, k channels, a bias for each of 8."""
    t, f, side = _tir(), "float32", 9
    x = te.placeholder((1, k, side, side), dtype, name="x")
    w, bias = te.placeholder((8, k, 3, 3), dtype, name="w"), te.placeholder((8,), f, name="bias")

    def inside(n: Any, c: Any, y: Any, z: Any) -> Any:
        within = t.all(y >= 1, y < side + 1, z >= 1, z < side + 1)
        return t.if_then_else(within, x[n, c, y - 1, z - 1], t.const(0.0, dtype))

    padded = te.compute((1, k, side + 2, side + 2), inside, name="padded")
    c, dy, dz = (te.reduce_axis((0, n), name=name) for n, name in ((k, "c"), (3, "dy"), (3, "dz")))
    conv = te.compute(
        (1, 8, side, side),
        lambda n, o, y, z: te.sum(padded[n, c, y + dy, z + dz].astype(f) * w[o, c, dy, dz].astype(f), [c, dy, dz]),
        name="conv",
    )
    out = OUT.get(dtype, dtype)
    return [x, w, bias, te.compute(conv.shape, lambda n, o, y, z: (conv[n, o, y, z] + bias[o]).astype(out), name="y")]


def largest(te: Any, dtype: str, k: int) -> list[Any]:
    """The maximum over the last axis."""
    x, axis = te.placeholder((ROWS, 4, k), dtype, name="x"), te.reduce_axis((0, k), name="k")
    top = te.compute((ROWS, 4), lambda i, j: te.max(x[i, j, axis], axis), name="top")
    return [x, te.compute((ROWS, 4), lambda i, j: top[i, j], name="y")]


def masked_sum(te: Any, dtype: str, k: int) -> list[Any]:
    """The sum of those that a mask of booleans lets through."""
    t, f = _tir(), "float32"
    x, mask = te.placeholder((ROWS, 4, k), dtype, name="x"), te.placeholder((ROWS, k), "bool", name="mask")
    axis = te.reduce_axis((0, k), name="k")

    def let_through(i: Any, j: Any, c: Any) -> Any:
        return t.if_then_else(mask[i, c], x[i, j, c].astype(f), t.const(0.0, f))

    kept = te.compute(x.shape, let_through, name="kept")
    total = te.compute((ROWS, 4), lambda i, j: te.sum(kept[i, j, axis], axis), name="total")
    return [x, mask, te.compute((ROWS, 4), lambda i, j: total[i, j].astype(dtype), name="y")]


def above(te: Any, dtype: str, k: int) -> list[Any]:
    """Whether each number exceeds its column's threshold: booleans."""
    x, least = te.placeholder((ROWS, k), dtype, name="x"), te.placeholder((k,), dtype, name="least")
    return [x, least, te.compute((ROWS, k), lambda i, j: x[i, j] > least[j], name="y")]


def gathered(te: Any, dtype: str, k: int) -> list[Any]:
    """Sums of k rows of a table, which indices choose."""
    table, ids = te.placeholder((50, ROWS), dtype, name="table"), te.placeholder((ROWS, k), "int32", name="ids")
    axis, f = te.reduce_axis((0, k), name="k"), "float32"
    total = te.compute((ROWS, ROWS), lambda i, j: te.sum(table[ids[i, axis], j].astype(f), axis), name="total")
    return [table, ids, te.compute((ROWS, ROWS), lambda i, j: total[i, j].astype(dtype), name="y")]


def _tir() -> Any:
    import tvm

    return tvm.tirx


def program(name: str, dtype: str, k: int) -> Any:
    """A module."""
    from tvm import te
    from tvm.ir import IRModule

    function = te.create_prim_func(globals()[name](te, dtype, k))
    return IRModule({"main": function.with_attr("global_symbol", "main")})


# -- right kernels ------------------------------------------------------------------------------------------------


def _reordered(module: Any, order: Any) -> Any | None:
    """Every sum takes its terms in another order: term number `order(k, extent)` in place of k."""
    import tvm

    found = []

    def put(node: Any) -> Any | None:
        axis = wrong._longest(node) if kind(node) == "SBlock" and kind(node.body) == "BufferStore" else None
        if axis is None:
            return None
        own, term = wrong._own_and_term(node.body)
        moved = tvm.tirx.stmt_functor.substitute(term, {axis.var: order(axis.var, int(axis.dom.extent))})
        found.append(node)
        return wrong._with_value(node, type(node.body.value)(own, moved))

    function = module["main"]
    body = tvm.tirx.stmt_functor.ir_transform(function.body, None, put, ["tirx.SBlock"])
    return tvm.IRModule({"main": function.with_body(body)}) if found else None


def reversed_order(module: Any) -> Any | None:
    return _reordered(module, lambda k, extent: extent - 1 - k)


def shuffled_order(module: Any) -> Any | None:
    def order(k: Any, extent: int) -> Any:
        step = next(s for s in range(extent * 5 // 8 | 1, 2 * extent + 3) if np.gcd(s, extent) == 1)
        return (k * step + extent // 3) % extent

    return _reordered(module, order)


def _parts(module: Any, outer: bool) -> Any | None:
    """Every sum in parts that are added up at the end: consecutive terms, or every so many-th."""
    from tvm.s_tir import Schedule

    schedule, done = Schedule(module), 0
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        node = schedule.get(block)
        if kind(node.body) != "BufferStore" or not wrong._terms_matter(node):
            continue
        at = next(n for n, axis in enumerate(node.iter_vars) if axis.same_as(wrong._longest(node)))
        extent = int(node.iter_vars[at].dom.extent)
        part = next((p for p in (32, 8, 10, 7, 2) if extent % p == 0 and extent > p), None)
        if part is None:
            continue
        across, along = schedule.split(schedule.get_loops(block)[at], [None, part])
        schedule.rfactor(across if outer else along, 0)
        done += 1
    return schedule.mod if done else None


def blocks_of_terms(module: Any) -> Any | None:
    return _parts(module, True)


def interleaved_terms(module: Any) -> Any | None:
    return _parts(module, False)


def quick_functions(module: Any) -> Any | None:
    """exp, tanh, rsqrt and division off by what the quick ones of GPUs are: 2 + 1.2 |x| units for exp, else 2."""
    import tvm

    found = []

    def put(node: Any) -> Any | None:
        name = operator(node) if kind(node) == "Call" else "div" if kind(node) == "Div" else None
        if str(node.dtype) != "float32" or name not in ("exp", "tanh", "rsqrt", "erf", "sigmoid", "div"):
            return None
        found.append(name)
        units = 2.0 + (1.2 * tvm.tirx.abs(children(node)[-1]) if name == "exp" else 0.0)
        return node * (1.0 + units * tvm.tirx.const(2.0**-23, "float32"))

    function = module["main"]
    body = tvm.tirx.stmt_functor.ir_transform(function.body, None, put, ["tirx.Call", "tirx.Div"])
    return tvm.IRModule({"main": function.with_body(body)}) if found else None


def reversed_and_quick(module: Any) -> Any | None:
    other = reversed_order(module)
    return None if other is None else quick_functions(other)


RIGHT = (brisk, reversed_order, shuffled_order, blocks_of_terms, interleaved_terms, quick_functions, reversed_and_quick)


# -- the judge ----------------------------------------------------------------------------------------------------


class Bench:
    """One program, its inputs and its reference."""

    def __init__(self, module: Any, folder: str, seed: int) -> None:
        import tvm

        self.module, self.seed = module, seed
        self.specs = inputs.specs(module, features(module))
        self.outputs = kernels.outputs(self.specs)
        self.cases = range(len(inputs.CASES))
        text = tvm.ir.save_json(module)
        found = reference.reference(text, TARGET, self.specs, list(self.cases), seed, f"{folder}/reference")
        self.inputs = [inputs.make(self.specs, case, seed, found["shrink"][str(case)]) for case in self.cases]
        self.rounding = Rounding.of(found["rounding"])
        self.expected = [[np.load(path) for path in found["outputs"][str(case)]] for case in self.cases]

    def run(self, module: Any, target: Any = TARGET, wide: bool = False) -> list[list[Any]]:
        """The outputs on every case, in the types of the program."""
        import tvm

        kernel = tvm.compile(float8.exact(module), target=tvm.target.Target(target))
        found = []
        for arrays in self.inputs:
            floats = ("float16", "bfloat16", "float32")
            arguments = [
                tvm.runtime.tensor(a.astype(np.float64) if wide and str(a.dtype) in floats else a) for a in arrays
            ]
            kernel["main"](*arguments)
            found.append([arguments[p].numpy().astype(numpy_dtype(self.specs[p]["dtype"])) for p in self.outputs])
        return found

    def errors(self, ran: list[list[Any]]) -> list[float]:
        """For each case."""
        dtypes = [self.specs[place]["dtype"] for place in self.outputs]
        return [
            max(
                compare(kernels.plain(one), other, dtype, self.rounding)
                for one, other, dtype in zip(outputs, expected, dtypes, strict=True)
            )
            for outputs, expected in zip(ran, self.expected, strict=True)
        ]

    def verdict(self, group: str, name: str, ran: list[list[Any]], plain: list[list[Any]] | None) -> dict[str, Any]:
        """idle: nothing differs from the plain program on any case."""
        errors = [float(error) if np.isfinite(error) else 1e300 for error in self.errors(ran)]
        return {"group": group, "name": name, "errors": errors, "idle": plain is not None and _same(ran, plain)}


def _same(one: list[list[Any]], other: list[list[Any]]) -> bool:
    return all(a.tobytes() == b.tobytes() for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


def scheduled(name: str, dtype: str, k: int, seed: int, count: int) -> list[dict[str, Any]]:
    """`judge`, of real schedules of a program: each as it is, and wrong ones made of it."""
    import tvm

    from littledragon.compiler import proposals, traces

    module = program(name, dtype, k)
    text = str(tvm.ir.save_json(module))
    proposed = proposals.propose(text, TARGET, "llvm", [], count, seed, 0, 16)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(module, folder, seed)
        for one in proposed:
            admitted = traces.admit(text, one["trace"], TARGET)
            if admitted["failed"] is None:
                candidate = tvm.ir.load_json(admitted["scheduled"])
                ran = bench.run(candidate)
                found.append(bench.verdict("right", "scheduled", ran, None))
                found += _wrong(bench, candidate, ran)
    return found


def judge(name: str, dtype: str, k: int, seed: int, mutate: bool = True) -> list[dict[str, Any]]:
    """Every right and wrong kernel of a program: group (right, wrong, rounding), name, errors by case, idle."""
    return judged(program(name, dtype, k), seed, mutate)


def judged(module: Any, seed: int, mutate: bool = True) -> list[dict[str, Any]]:
    """`judge`, of any module."""
    import tvm

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(module, folder, seed)
        plain = bench.run(module)
        found = []

        def note(name: str, ran: list[list[Any]]) -> None:
            found.append(bench.verdict("right", name, ran, plain))

        note("plain", plain)
        note("no_fused_multiply_add", bench.run(module, PLAIN))
        for variant in RIGHT:
            changed = variant(module)
            if changed is not None:
                note(variant.__name__, bench.run(changed))
        whole = not bench.rounding.discrete and not any("float8" in s["dtype"] for s in bench.specs)
        if bench.rounding.stored is not None and whole:
            text = reference.widen(tvm.ir.save_json(module), ("float16", "bfloat16", "float32"), "float64")
            note("exactly_rounded", bench.run(tvm.ir.load_json(text), wide=True))
        return found + (_wrong(bench, module, plain) if mutate else [])


def _wrong(bench: Bench, module: Any, plain: list[list[Any]]) -> list[dict[str, Any]]:
    found = []
    for group, mutations in (("wrong", wrong.FAULTS), ("rounding", wrong.ROUNDINGS)):
        for mutation in mutations:
            changed = mutation(module, random.Random(bench.seed))
            if changed is not None:
                found.append(bench.verdict(group, mutation.__name__, bench.run(changed), plain))
    for kind_ in wrong.SPOILT:
        spoilt = [
            [
                wrong.spoil(kind_, output, arrays[place], bench.seed)
                for output, place in zip(outputs, bench.outputs, strict=True)
            ]
            for outputs, arrays in zip(plain, bench.inputs, strict=True)
        ]
        changed_all = [[output for output in outputs if output is not None] for outputs in spoilt]
        if all(len(outputs) == len(bench.outputs) for outputs in changed_all):
            found.append(bench.verdict("wrong", kind_.replace(" ", "_"), changed_all, plain))
    return found
