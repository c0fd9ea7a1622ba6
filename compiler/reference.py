"""What a workload should compute: the outputs of its original TensorIR, compiled for the CPU.

Where a reduction accumulates in float16 or bfloat16, the sequential sum of the original is itself far from the
truth (9% at 4096 terms), and a better schedule would look wrong. Then the reference is the same program with
every such value held in float32, so that exactly rounded results pass.
"""

import json
import tempfile
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import inputs, kernels

NARROW: Final = ("float16", "bfloat16")
REDUCE: Final = 2
"""`IterVar.CommReduce`."""


def reference(
    module: str, target: dict[str, Any], specs: list[dict[str, Any]], cases: list[int], seed: int, out: str
) -> dict[str, Any]:
    """Compute the outputs for each case and write them to `<out>.<case>.<n>.npy`. Runs in a child.

    Args:
        module: M0, as `save_json`.
        target: an llvm target.
        specs: how to make each argument, see `compiler/inputs.py`.

    Returns:
        `{"outputs": {case: paths}, "rounding": what `rounding` says of the module}`.
    """
    import numpy as np
    import tvm

    original = tvm.ir.load_json(module)
    found = rounding(original)
    wide = found["accumulation"] in NARROW and not found["bits"]
    compiled = tvm.compile(tvm.ir.load_json(widen(module)) if wide else original, target=tvm.target.Target(target))
    # Loaded as candidates are, so that both run the same way.
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "reference.o")
        compiled.mod.write_to_file(path)
        kernel = tvm.runtime.load_module(path)
    paths: dict[str, list[str]] = {}
    for case in cases:
        arrays = inputs.make(specs, case, seed)
        if wide:
            arrays = [a.astype(np.float32) if str(a.dtype) in NARROW else a for a in arrays]
        arguments = [tvm.runtime.tensor(array) for array in arrays]
        kernel["main"](*arguments)
        paths[str(case)] = []
        for number, position in enumerate(kernels.outputs(specs)):
            paths[str(case)].append(f"{out}.{case}.{number}.npy")
            np.save(paths[str(case)][-1], kernels.plain(arguments[position].numpy()))
    return {"outputs": paths, "rounding": found}


def widen(module: str) -> str:
    """The same program with float32 wherever it has float16 or bfloat16, parameters included."""
    tree = json.loads(module)
    for node in tree["nodes"]:
        data = node.get("data")
        if isinstance(data, dict) and data.get("dtype") in NARROW:
            data["dtype"] = "float32"
    return json.dumps(tree)


def rounding(module: Any) -> dict[str, Any]:
    """Where the program rounds, for the bound of the numerical check. Needs TVM.

    Returns:
        `reduction`: terms of the longest reduction; `accumulation`: coarsest float that a reduction accumulates in,
        or null; `stored`: coarsest float of an intermediate buffer, or null; `discrete`: whether a float is turned
        into an integer; `bits`: whether bit patterns are reinterpreted.
    """
    import tvm
    from tvm.tirx.stmt_functor import post_order_visit

    longest = 1
    accumulated: set[str] = set()
    stored: set[str] = set()
    discrete = bits = False

    def visit(node: Any) -> None:
        nonlocal longest, discrete, bits
        if isinstance(node, tvm.tirx.SBlock):
            stored.update(str(buffer.dtype) for buffer in node.alloc_buffers)
            extents = [axis.dom.extent for axis in node.iter_vars if int(axis.iter_type) == REDUCE]
            if extents:
                accumulated.update(str(region.buffer.dtype) for region in node.writes)
                known = [int(extent) for extent in extents if isinstance(extent, tvm.tirx.IntImm)]
                terms = 1
                for extent in known:
                    terms *= extent
                longest = max(longest, terms)
        elif isinstance(node, tvm.tirx.Cast):
            discrete |= "int" in str(node.dtype) and "float" in str(node.value.dtype)
        elif isinstance(node, tvm.tirx.Call) and getattr(node.op, "name", "") == "tirx.reinterpret":
            bits = True

    for function in module.functions.values():
        post_order_visit(function.body, visit)
    return {
        "reduction": longest,
        "accumulation": _coarsest(accumulated),
        "stored": _coarsest(stored),
        "discrete": discrete,
        "bits": bits,
    }


def _coarsest(dtypes: set[str]) -> str | None:
    order = ("bfloat16", "float16", "float32", "float64")
    floats = [dtype for dtype in dtypes if "float" in dtype]
    return min(floats, key=lambda dtype: order.index(dtype) if dtype in order else -1, default=None)
