"""Kernels of one argument x and one result y, of n floats each, which do what no kernel should. They run in a child.

They all compute y = x + 1, so that nothing but the deed tells them from a right one.
"""

from typing import Any


def spilling(n: int, by: int) -> dict[str, Any]:
    """Writes this many floats past the end of y."""
    import tvm
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i in range(n):
            with T.sblock("y"):
                v = T.axis.spatial(n, i)
                y[v] = x[v] + T.float32(1)
        for i in range(by):
            with T.sblock("past"):
                v = T.axis.spatial(by, i)
                y[v + n] = T.float32(-1)

    return _described(tvm.IRModule({"main": main.with_attr("global_symbol", "main")}))


def greedy(n: int, size: int) -> dict[str, Any]:
    """Takes a buffer of `size` floats, fills it, and adds one of them to x."""
    import tvm
    from tvm import te

    x = te.placeholder((n,), name="x")
    much = te.compute((size,), lambda i: te.const(1.0, "float32") + x[0] * 0.0, name="much")
    y = te.compute((n,), lambda i: x[i] + much[(size - 1) - i], name="y")
    return _described(tvm.IRModule({"main": te.create_prim_func([x, y]).with_attr("global_symbol", "main")}))


def calling(n: int, name: str, arguments: list[int]) -> dict[str, Any]:
    """Calls a function of the C library with these whole numbers, then computes y."""
    import tvm
    from tvm.script import tirx as T

    call = tvm.tirx.call_extern("int32", name, *arguments)

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        T.evaluate(call)
        for i in range(n):
            with T.sblock("y"):
                v = T.axis.spatial(n, i)
                y[v] = x[v] + T.float32(1)

    return _described(tvm.IRModule({"main": main.with_attr("global_symbol", "main")}))


def talking(n: int) -> dict[str, Any]:
    """Writes x to every file that is open, then computes y."""
    import tvm
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for f in range(64):
            T.evaluate(T.call_extern("int64", "write", f + 3, x.data, 4 * n))
        for i in range(n):
            with T.sblock("y"):
                v = T.axis.spatial(n, i)
                y[v] = x[v] + T.float32(1)

    return _described(tvm.IRModule({"main": main.with_attr("global_symbol", "main")}))


def _described(module: Any) -> dict[str, Any]:
    import tvm
    from tvm_ffi import structural_hash

    from littledragon.compiler import features, inputs

    return {
        "module": str(tvm.ir.save_json(module)),
        "specs": inputs.specs(module, features.features(module)),
        "module_hash": f"{structural_hash(module) & (1 << 64) - 1:016x}",
    }
