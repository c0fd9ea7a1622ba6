"""Small real workloads, and wrong kernels made of them. Functions that run in a child."""

from typing import Any


def matmul(m: int, n: int, k: int, dtype: str, accumulate: str) -> dict[str, Any]:
    """Y = cast(X · Wᵀ), as TE."""
    from tvm import te

    x = te.placeholder((m, k), name="x", dtype=dtype)
    w = te.placeholder((n, k), name="w", dtype=dtype)
    axis = te.reduce_axis((0, k), name="k")
    product = te.compute(
        (m, n), lambda i, j: te.sum(x[i, axis].astype(accumulate) * w[j, axis].astype(accumulate), axis), name="product"
    )
    return _workload([x, w, te.compute((m, n), lambda i, j: product[i, j].astype(dtype), name="y")])


def softmax(m: int, n: int) -> dict[str, Any]:
    """Softmax over the last axis, with exp."""
    from tvm import te

    x = te.placeholder((m, n), name="x")
    k1, k2 = te.reduce_axis((0, n), name="k1"), te.reduce_axis((0, n), name="k2")
    top = te.compute((m,), lambda i: te.max(x[i, k1], k1), name="top")
    power = te.compute((m, n), lambda i, j: te.exp(x[i, j] - top[i]), name="power")
    total = te.compute((m,), lambda i: te.sum(power[i, k2], k2), name="total")
    return _workload([x, te.compute((m, n), lambda i, j: power[i, j] / total[i], name="y")])


def quantise(n: int) -> dict[str, Any]:
    """int8 of a scaled row sum."""
    from tvm import te

    x = te.placeholder((n, 16), name="x")
    k = te.reduce_axis((0, 16), name="k")
    total = te.compute((n,), lambda i: te.sum(x[i, k], k), name="total")
    return _workload([x, te.compute((n,), lambda i: te.round(total[i] * 7.0).astype("int8"), name="y")])


def scalar(n: int) -> dict[str, Any]:
    """One element: nothing in it can be scheduled."""
    from tvm import te

    x = te.placeholder((n,), name="x")
    return _workload([x, te.compute((1,), lambda i: x[i] + 1.0, name="y")])


def shifted(n: int, by: float) -> dict[str, Any]:
    """y = x + by: with another `by`, a wrong kernel."""
    from tvm import te

    x = te.placeholder((n,), name="x")
    return _workload([x, te.compute((n,), lambda i: x[i] + by, name="y")])


def looping(n: int) -> dict[str, Any]:
    """A kernel of the same arguments that does not end in any time worth waiting for."""
    from tvm import te

    x = te.placeholder((n,), name="x")
    k = te.reduce_axis((0, 1 << 40), name="k")
    y = te.compute((n,), lambda i: te.sum(te.sin(x[i] + k.astype("float32")), k), name="y")
    return _workload([x, y])


def wild(n: int) -> dict[str, Any]:
    """A kernel of the same arguments that reads far outside of them."""
    from tvm import te

    x = te.placeholder((n,), name="x")
    return _workload([x, te.compute((n,), lambda i: x[i.astype("int64") + (1 << 44)], name="y")])


def brittle(n: int) -> dict[str, Any]:
    """y = x + 1, with an offset that is 0 unless somebody makes the type of `far` too narrow for 256 and more."""
    from tvm import te

    x = te.placeholder((n,), name="x")
    far = te.compute((n,), lambda i: i + 256, name="far")
    wide = "int64"
    y = te.compute((n,), lambda i: x[i.astype(wide) + (i + 256 - far[i]).astype(wide) * (1 << 40)] + 1.0, name="y")
    return _workload([x, y])


def meddling(n: int, by: float) -> dict[str, Any]:
    """y = x + by, and then x is changed."""
    import tvm
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i in range(n):
            with T.sblock("y"):
                v = T.axis.spatial(n, i)
                y[v] = x[v] + T.float32(by)
        for i in range(n):
            with T.sblock("x"):
                v = T.axis.spatial(n, i)
                x[v] = T.float32(0)

    return _described(tvm.IRModule({"main": main.with_attr("global_symbol", "main")}))


def unrolled(n: int) -> dict[str, Any]:
    """y = x + 1, written out for the compiler so often that it does not come to an end."""
    import tvm
    from tvm import te

    x = te.placeholder((n,), name="x")
    k = te.reduce_axis((0, 1 << 22), name="k")
    y = te.compute((n,), lambda i: te.sum(x[i] * k.astype("float32"), k), name="y")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    schedule.unroll(schedule.get_loops(schedule.get_sblock("y"))[1])
    return _described(tvm.IRModule({"main": schedule.mod["main"].with_attr("global_symbol", "main")}))


def _workload(tensors: list[Any]) -> dict[str, Any]:
    import tvm
    from tvm import te

    return _described(tvm.IRModule({"main": te.create_prim_func(tensors).with_attr("global_symbol", "main")}))


def _described(module: Any) -> dict[str, Any]:
    import tvm
    from tvm_ffi import structural_hash

    from littledragon.compiler import features, inputs

    return {
        "module": str(tvm.ir.save_json(module)),
        "specs": inputs.specs(module, features.features(module)),
        "module_hash": f"{structural_hash(module) & (1 << 64) - 1:016x}",
    }
