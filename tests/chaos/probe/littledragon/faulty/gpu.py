"""CUDA kernels of one argument x and one result y, of n floats each, which do what no kernel should; see `kernels`.

Each but the one that takes memory is a block of n threads. They run in a child.
"""

from collections.abc import Callable
from typing import Any

from littledragon.faulty.kernels import _described


def threaded(n: int, by: float = 1.0, threads: int | None = None) -> dict[str, Any]:
    """y = x + by. It is right with 1, and cannot be launched with more threads than a block has."""
    import tvm
    from tvm.script import tirx as T

    width = threads or n

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i in T.thread_binding(width, "threadIdx.x"):
            with T.sblock("y"):
                v = T.axis.spatial(width, i)
                y[v % n] = x[v % n] + T.float32(by)

    return _named(tvm, main)


def endless(n: int) -> dict[str, Any]:
    """Adds to y until it is more than it can become."""
    import tvm
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i in T.thread_binding(n, "threadIdx.x"):
            with T.sblock("y"):
                v = T.axis.spatial(n, i)
                y[v] = x[v] + T.float32(1)
                while y[v] < T.float32(1e30):
                    y[v] = y[v] * T.float32(0.5) + x[v]

    return _named(tvm, main)


def spilling(n: int, at: int) -> dict[str, Any]:
    """Writes a float for each of y, `at` floats behind it."""
    import tvm
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i in T.thread_binding(T.int64(n), "threadIdx.x"):
            with T.sblock("y"):
                v = T.axis.spatial(T.int64(n), i)
                y[v] = x[v] + T.float32(1)
                y[v + T.int64(at)] = T.float32(-1)

    return _named(tvm, main)


def greedy(n: int, size: int) -> dict[str, Any]:
    """Takes `size` floats of the device's memory between two kernels."""
    import tvm
    from tvm import te

    x = te.placeholder((n,), name="x")
    much = te.compute((size,), lambda i: te.const(1.0, "float32") + x[0] * 0.0, name="much")
    y = te.compute((n,), lambda i: x[i] + much[(size - 1) - i], name="y")
    return _scheduled(tvm, te.create_prim_func([x, y]), {"much": 1024, "y": n})


def sharing(n: int, size: int) -> dict[str, Any]:
    """Takes `size` floats of a block's shared memory."""
    import tvm
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        kept = T.sblock_alloc_buffer((size,), "float32", scope="shared.dyn")
        for i in T.thread_binding(n, "threadIdx.x"):
            with T.sblock("kept"):
                v = T.axis.spatial(n, i)
                kept[v * (size // n)] = x[v] + T.float32(1)
            with T.sblock("y"):
                v = T.axis.spatial(n, i)
                y[v] = kept[v * (size // n)]

    return _named(tvm, main)


def _scheduled(tvm: Any, function: Any, threads: dict[str, int]) -> dict[str, Any]:
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
    for name, width in threads.items():
        (loop,) = schedule.get_loops(schedule.get_sblock(name))
        outer, inner = schedule.split(loop, [None, width])
        schedule.bind(outer, "blockIdx.x")
        schedule.bind(inner, "threadIdx.x")
    return _named(tvm, schedule.mod["main"])


def _named(tvm: Any, function: Callable[..., Any]) -> dict[str, Any]:
    return _described(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))  # type: ignore[attr-defined]
