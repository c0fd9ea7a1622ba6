"""Writes primitives.jsonl: one trace, as TVM records it, for each primitive that MetaSchedule's rules seldom use.

    python tests/golden/tsel/make_primitives.py

The test reads the file without TVM; it is made again for another TVM version.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Step = Callable[[Any, Any, Any], Any]
"""Applies primitives: the schedule, block C of a matrix product, and its loops."""


def product() -> Any:
    """C = A B, D = C + 1, of 64 by 64."""
    import tvm
    from tvm import te

    a, b = te.placeholder((64, 64), name="A"), te.placeholder((64, 64), name="B")
    k = te.reduce_axis((0, 64), "k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    d = te.compute((64, 64), lambda i, j: c[i, j] + 1.0, name="D")
    return tvm.IRModule({"main": te.create_prim_func([a, b, d])})


def padded() -> Any:
    """C = 2 P, P = A padded from 30 to 32."""
    import tvm
    from tvm import te, tirx

    a = te.placeholder((30,), name="A")
    p = te.compute((32,), lambda i: tirx.if_then_else(i < 30, a[i], 0.0), name="P")
    c = te.compute((32,), lambda i: p[i] * 2.0, name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, c])})


STEPS: list[Step] = [
    lambda s, c, ls: s.loop_partition(ls[0], [8, None]),
    lambda s, c, ls: s.add_unit_loop(c),
    lambda s, c, ls: s.add_unit_loop(ls[0]),
    lambda s, c, ls: s.unroll(ls[2]),
    lambda s, c, ls: s.reindex_cache_read(c, 0, "shared", lambda i, j, k: (k, i)),
    lambda s, c, ls: s.reindex_cache_write(c, 0, "shared", lambda i, j, k: (j, i)),
    lambda s, c, ls: s.read_at(ls[1], c, 0, "shared"),
    lambda s, c, ls: s.write_at(ls[1], c, 0, "shared"),
    lambda s, c, ls: s.set_axis_separator(c, ("write", 0), [1]),
    lambda s, c, ls: s.pad_einsum(c, [48, 48, 48]),
    lambda s, c, ls: s.unsafe_set_dtype(c, 0, "float16"),
    lambda s, c, ls: s.unsafe_hide_buffer_access(c, "read", [0]),
    lambda s, c, ls: s.annotate_buffer_access(s.get_sblock("D"), 0, "write", lambda i, j: [(i, i + 1), (j, j + 1)]),
    lambda s, c, ls: s.reorder_block_iter_var(c, [1, 0, 2]),
    lambda s, c, ls: s.sample_partitioned_tile(ls[0], 4, 2, 2),
    lambda s, c, ls: s.sample_perfect_tile(ls[0], 4),
    lambda s, c, ls: s.get_output_blocks(s.get_sblock("root")),
    lambda s, c, ls: s.fuse_reduction_epilogue(c, s.get_sblock("D")),
    lambda s, c, ls: s.rfactor(ls[2], 0),
    lambda s, c, ls: s.transform_layout(c, ("write", 0), lambda i, j: (i // 16, j, i % 16)),
    lambda s, c, ls: s.transform_block_layout(c, lambda i, j, k: (i * 64 + j, k)),
    lambda s, c, ls: s.annotate(c, "x", {"a": 1, "b": [1, 2.5, "q"]}),
    lambda s, c, ls: s.annotate(c, "x", 'a " quote'),
    lambda s, c, ls: s.annotate(c, "x", "t0.0.0"),
    lambda s, c, ls: s.annotate(c, "x", 2.5),
    lambda s, c, ls: s.annotate(c, "x", True),
    lambda s, c, ls: s.annotate(c, "x", ["u", "v"]),
    lambda s, c, ls: s.split(ls[0], [None, 8], preserve_unit_iters=False),
    lambda s, c, ls: s.fuse(*ls[:2]),
    lambda s, c, ls: s.storage_align(c, 0, 0, 16, 8),
    lambda s, c, ls: s.set_scope(c, 0, "shared"),
]


def main() -> None:
    import tvm
    from tvm.s_tir import Schedule

    traces = []
    for step in STEPS:
        schedule = Schedule(product(), seed=1)
        block = schedule.get_sblock("C")
        step(schedule, block, schedule.get_loops(block))
        traces.append(schedule)
    schedule = Schedule(padded(), seed=1)
    block = schedule.get_sblock("P")
    schedule.decompose_padding(block, schedule.get_loops(block)[0])
    traces.append(schedule)
    with Path(__file__).with_name("primitives.jsonl").open("w", encoding="utf-8") as file:
        for schedule in traces:
            schedule.enter_postproc()
            file.write(json.dumps(str(tvm.ir.save_json(schedule.trace.as_json()))) + "\n")


if __name__ == "__main__":
    main()
