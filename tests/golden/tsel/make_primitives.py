"""Writes primitives.jsonl: traces as TVM records them, at least one for each kind of instruction that it has.

    python tests/golden/tsel/make_primitives.py          writes the file
    python tests/golden/tsel/make_primitives.py check    tells whether this TVM records just these traces

Each is replayed here before it is written, so the file holds only what TVM itself can save and load. Tests read it
without TVM; it is made again for another TVM version.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Step = Callable[[Any, Any, Any], Any]
"""Applies primitives: the schedule, its first block, and that block's loops."""

PATH = Path(__file__).with_name("primitives.jsonl")


def _module(*arguments: Any) -> Any:
    import tvm
    from tvm import te

    return tvm.IRModule({"main": te.create_prim_func(list(arguments))})


def product() -> Any:
    """C = A B, D = C + 1, of 64 by 64."""
    from tvm import te

    a, b = te.placeholder((64, 64), name="A"), te.placeholder((64, 64), name="B")
    k = te.reduce_axis((0, 64), "k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    d = te.compute((64, 64), lambda i, j: c[i, j] + 1.0, name="D")
    return _module(a, b, d)


def elementwise() -> Any:
    """B = 2 A, C = B + 1, D = B - 1, of 32 by 32: two branches."""
    from tvm import te

    a = te.placeholder((32, 32), name="A")
    b = te.compute((32, 32), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute((32, 32), lambda i, j: b[i, j] + 1.0, name="C")
    d = te.compute((32, 32), lambda i, j: b[i, j] - 1.0, name="D")
    return _module(a, c, d)


def padded() -> Any:
    """C = 2 P, P = A padded from 30 to 32."""
    from tvm import te, tirx

    a = te.placeholder((30,), name="A")
    p = te.compute((32,), lambda i: tirx.if_then_else(i < 30, a[i], 0.0), name="P")
    c = te.compute((32,), lambda i: p[i] * 2.0, name="C")
    return _module(a, c)


def resized() -> Any:
    """C = A, 40 by 40, resized to 80 by 80 with indices that repeat."""
    from tvm import te

    a = te.placeholder((40, 40), name="A")
    return _module(a, te.compute((80, 80), lambda i, j: a[i // 4 + j // 4, j // 2], name="C"))


def pooled() -> Any:
    """Two pools of 3 rows, one after the other: a rolling window."""
    from tvm import te

    a = te.placeholder((4, 12), name="A", dtype="int32")
    k, m = te.reduce_axis((0, 3), "k"), te.reduce_axis((0, 3), "m")
    b = te.compute((4, 10), lambda c, i: te.sum(a[c, i + k], axis=k), name="B")
    return _module(a, te.compute((4, 8), lambda c, i: te.sum(b[c, i + m], axis=m), name="C"))


def in_place() -> Any:
    """A block that reads and writes one buffer, and a scalar one."""
    import tvm
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def main(a: T.handle, b: T.handle) -> None:
        A = T.match_buffer(a, (64,), "int32")
        B = T.match_buffer(b, (), "int32")
        with T.sblock("C"):
            T.reads(A[0:64])
            T.writes(A[0:64])
            T.evaluate(T.call_extern("touch", A.data, dtype=""))
        with T.sblock('odd "name" ✓'):
            T.reads(B[()])
            T.writes(B[()])
            B[()] = B[()] + 1

    return tvm.IRModule({"main": main})


def dot() -> str:
    """The name of a tensor intrinsic, registered here: 8 products and their sum."""
    from tvm import tirx
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (1, 8), "float32", offset_factor=1)
        B = T.match_buffer(b, (8, 1), "float32", offset_factor=1, strides=[T.int32(), T.int32()])
        C = T.match_buffer(c, (1, 1), "float32", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0, 0], A[0, 0:8], B[0:8, 0])
            T.writes(C[0, 0])
            for k in range(8):
                with T.sblock("update"):
                    v = T.axis.reduce(8, k)
                    C[0, 0] = C[0, 0] + A[0, v] * B[v, 0]

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (1, 8), "float32", offset_factor=1)
        B = T.match_buffer(b, (8, 1), "float32", offset_factor=1, strides=[T.int32(), T.int32()])
        C = T.match_buffer(c, (1, 1), "float32", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0, 0], A[0, 0:8], B[0:8, 0])
            T.writes(C[0, 0])
            T.evaluate(T.call_extern("dot8", C.data, A.data, B.data, dtype=""))

    name = "littledragon.dot8"
    tirx.TensorIntrin.register(name, description, implementation, override=True)
    return name


def _sampled_annotations(s: Any, c: Any, ls: Any) -> None:
    v = s.sample_categorical([8, 16], [0.5, 0.5], decision=1)
    s.annotate(c, "x", v)
    s.annotate(c, "y", [v, 1, v, "v3", "w"])


def _sampled_factors(s: Any, c: Any, ls: Any) -> None:
    v = s.sample_categorical([8, 16], [0.25, 0.75], decision=0)
    s.split(ls[0], [v, None])
    s.loop_partition(ls[1], [None, v])


def _sampled_layout(s: Any, c: Any, ls: Any) -> None:
    v = s.sample_categorical([8, 16], [0.25, 0.75], decision=0)
    w = s.sample_perfect_tile(ls[0], 2, 64, decision=[8, 8])[1]
    s.transform_layout(c, ("write", 0), lambda i, j: (i // (v * w), j, i % (v * w)), assume_injective_transform=True)


def _placed(decision: int) -> Step:
    def step(s: Any, c: Any, ls: Any) -> None:
        place = s.sample_compute_location(c, decision=decision)
        s.compute_at(c, place, preserve_unit_loops=True, index=-1)

    return step


def _placed_after(s: Any, c: Any, ls: Any) -> None:
    d = s.get_sblock("D")
    s.reverse_compute_at(d, s.sample_compute_location(d, decision=0), preserve_unit_loops=False, index=0)


def _cached(s: Any, c: Any, ls: Any) -> None:
    s.compute_at(s.cache_read(c, 0, "shared.dyn", consumer_blocks=[c]), ls[2], preserve_unit_loops=True, index=0)
    s.reverse_compute_at(s.cache_write(c, 0, "local"), ls[1], preserve_unit_loops=True, index=-2)


def _tensorized(s: Any, c: Any, ls: Any) -> None:
    inner = s.split(ls[2], [None, 8])[1]
    s.decompose_reduction(c, s.get_loops(c)[2])
    s.tensorize(inner, dot())


def _tensorized_block(s: Any, c: Any, ls: Any) -> None:
    inner = s.split(ls[2], [8, 8], preserve_unit_iters=True, disable_predication=True)[1]
    s.decompose_reduction(c, s.get_loops(c)[2])
    s.tensorize(s.blockize(inner, preserve_unit_iters=False), dot(), preserve_unit_iters=False)


def _rolled(s: Any, c: Any, ls: Any) -> None:
    s.compute_at(s.get_sblock("B"), s.split(ls[1], [None, 4])[0])
    s.rolling_buffer(s.get_sblock("B"), 0)


def _annotated(key: str, value: Any, loop: bool = False) -> Step:
    return lambda s, c, ls: s.annotate(ls[0] if loop else c, key, value)


def _scoped(scope: str) -> Step:
    return lambda s, c, ls: s.cache_read(c, 0, scope)


def _typed(dtype: str) -> Step:
    return lambda s, c, ls: s.unsafe_set_dtype(c, 0, dtype)


def _bound(axis: str) -> Step:
    return lambda s, c, ls: s.bind(ls[0], axis)


def _values() -> list[Step]:
    """Annotations of every type that `Schedule.annotate` takes."""
    from tvm import tirx

    numbers = [2.5, -0.0, 1e-30, 1e20, 0.1, 3, -3, 1 << 40, -(1 << 40), True, False]
    texts = [
        "",
        "v",
        "None",
        "{}",
        "[1]",
        "a b",
        'a " quote',
        '"',
        '"q"',
        "line\nbreak\ttab",
        "é ✓ \U0001f409",
        "b0",
        "/\\<&>",
    ]
    lists = [["u", "v"], [1, 2], [1.5, 2], ["b0", "l1"], [True, "x"], [""]]
    dicts = [{}, {"a": 1, "b": [1, 2.5, "q"]}, {"x y": "b0", "": 'q"', "é": [True, "l1"], "b1": 1 << 40}]
    typed = [tirx.IntImm("int64", 5), tirx.IntImm("uint8", 3), tirx.IntImm("bool", 1), tirx.FloatImm("float16", 0.5)]
    values = [*numbers, *texts, *lists, *dicts, *typed, "t0.0.0", ".0.1"]
    return [_annotated("x", value, loop=number % 2 > 0) for number, value in enumerate(values)]


def _maps() -> list[Step]:
    """Index maps of each form that a schedule may hold."""
    from tvm import tirx
    from tvm.tirx import IndexMap

    def layout(index_map: Any, **more: Any) -> Step:
        return lambda s, c, ls: s.transform_layout(c, ("write", 0), index_map, **more)

    def access(ranges: Any) -> Step:
        return lambda s, c, ls: s.annotate_buffer_access(s.get_sblock("D"), 0, "write", ranges)

    i, j = tirx.Var("i", "int32"), tirx.Var("j", "int64")
    return [
        layout(lambda i, j: (i // 16, j, i % 16)),
        layout(lambda i, j: (i // 48, j, i % 48), pad_value=0.0),
        layout(lambda i, j: (i // 48, j, i % 48), pad_value=tirx.FloatImm("float32", float("-inf"))),
        layout(
            lambda i, j: (i // 48, j, i % 48),
            pad_value=lambda i, j, k: tirx.if_then_else(i < k, tirx.const(1.5), tirx.Cast("float32", i + k) * 0.1),
        ),
        layout(
            lambda i, j: (i // 48, j, i % 48), pad_value=lambda i, j, k: tirx.Select(tirx.all(i < 2, j >= k), 1.0, 2.0)
        ),
        layout(IndexMap.from_func(lambda i, j: (j, i), index_dtype="int32")),
        layout(
            IndexMap.from_func(
                lambda i, j: (i // 4, j, i % 4), inverse_index_map=lambda i, j, k: (i * 4 + k, j), index_dtype="int32"
            )
        ),
        layout(IndexMap([i, j], [j, i], None)),
        layout(lambda i, j: (i // 4, j, i % 4), assume_injective_transform=True),
        layout(
            lambda i, j: (i // 48, j, i % 48),
            pad_value=lambda i, j, k: (
                tirx.Cast("float32", (i << 3) | (k >> 1)) + tirx.Cast("float32", tirx.truncmod(j, 3))
            ),
        ),
        access(lambda i, j: [(i, i + 1), j]),
        access(lambda i, j: [(tirx.max(i - 1, 0), tirx.min(i + 2, 64)), (j // 2 * 2, j // 2 * 2 + 2)]),
        lambda s, c, ls: s.transform_block_layout(c, lambda i, j, k: (i * 64 + j, k)),
        lambda s, c, ls: s.transform_block_layout(c, lambda b0, l1, v2: (b0 // 8, l1, b0 % 8, v2)),
    ]


def steps() -> list[tuple[Callable[[], Any], list[Step]]]:
    """The traces to make: steps by the module that they schedule."""
    return [
        (
            product,
            [
                # sampling and looking up
                lambda s, c, ls: s.sample_perfect_tile(ls[0], 4),
                lambda s, c, ls: s.sample_perfect_tile(ls[0], 2, -1, decision=[1, 64]),
                lambda s, c, ls: s.sample_perfect_tile(ls[0], 2, 1 << 30, decision=[2, 32]),
                lambda s, c, ls: s.sample_partitioned_tile(ls[0], 4, 2, 2),
                lambda s, c, ls: s.sample_partitioned_tile(ls[0], 2, 0, 1, decision=[64, 1]),
                lambda s, c, ls: s.sample_categorical([-1, 0, 4], [0.0, 0.5, 0.5], decision=0),
                lambda s, c, ls: s.sample_categorical([-(1 << 31), (1 << 31) - 1], [0.3, 0.7], decision=1),
                *(_placed(decision) for decision in (-2, -1)),
                _placed_after,
                _sampled_annotations,
                _sampled_factors,
                _sampled_layout,
                lambda s, c, ls: s.get_child_blocks(s.get_sblock("root", func_name="main")),
                lambda s, c, ls: s.get_child_blocks(ls[0]),
                lambda s, c, ls: (
                    s.get_producers(s.get_sblock("D")),
                    s.get_consumers(c),
                    s.get_consumers(s.get_sblock("D")),
                ),
                lambda s, c, ls: s.get_output_blocks(s.get_sblock("root")),
                # loops
                lambda s, c, ls: s.fuse(*ls[:2]),
                lambda s, c, ls: s.fuse(*ls, preserve_unit_iters=False),
                lambda s, c, ls: s.fuse(ls[0]),
                lambda s, c, ls: s.split(ls[0], [None, 8], preserve_unit_iters=False),
                lambda s, c, ls: s.split(ls[0], [3, 5, None, 2], disable_predication=True),
                lambda s, c, ls: s.split(ls[0], [8, 8]),
                lambda s, c, ls: s.split(ls[0], [None]),
                lambda s, c, ls: s.loop_partition(ls[0], [8, None]),
                lambda s, c, ls: s.loop_partition(ls[1], [None, 8, 16], preserve_unit_iters=False),
                lambda s, c, ls: s.reorder(ls[2], ls[0]),
                lambda s, c, ls: s.reorder(ls[2], *ls[:2]),
                lambda s, c, ls: s.reorder(),
                lambda s, c, ls: s.reorder_block_iter_var(c, [1, 0, 2]),
                lambda s, c, ls: s.add_unit_loop(c),
                lambda s, c, ls: s.add_unit_loop(ls[0]),
                lambda s, c, ls: (s.parallel(ls[0]), s.vectorize(ls[1]), s.unroll(ls[2])),
                *(_bound(axis) for axis in ("blockIdx.x", "threadIdx.z", "vthread.x", "vthread", "cthread")),
                # moving and caching
                _cached,
                lambda s, c, ls: s.cache_write(c, 0, "wmma.accumulator", consumer_blocks=[s.get_sblock("D")]),
                *(_scoped(scope) for scope in ("", "global", "m16n8k8.matrixA", "global.texture-weight", "warp")),
                lambda s, c, ls: s.reindex_cache_read(c, 0, "shared", lambda i, j, k: (k, i)),
                lambda s, c, ls: s.reindex_cache_write(c, 0, "shared", lambda i, j, k: (j, i)),
                lambda s, c, ls: s.read_at(ls[1], c, 0, "shared"),
                lambda s, c, ls: s.write_at(ls[1], c, 0, "shared"),
                lambda s, c, ls: s.set_scope(c, 0, "shared"),
                lambda s, c, ls: s.storage_align(c, 0, 0, 16, 8),
                lambda s, c, ls: s.storage_align(c, 0, -1, 16, -8),
                lambda s, c, ls: s.compute_inline(s.cache_read(s.get_sblock("D"), 0, "local")),
                lambda s, c, ls: s.fuse_reduction_epilogue(c, s.get_sblock("D")),
                # layout
                lambda s, c, ls: (s.reindex(c, ("read", 1)), s.reindex(c, ("write", 0))),
                lambda s, c, ls: s.set_axis_separator(c, ("write", 0), [1]),
                lambda s, c, ls: s.set_axis_separator(c, ("read", 1), []),
                lambda s, c, ls: s.pad_einsum(c, [48, 48, 48]),
                *_maps(),
                # reductions and tensor intrinsics
                lambda s, c, ls: s.rfactor(ls[2], 0),
                lambda s, c, ls: s.rfactor(ls[2], -1),
                lambda s, c, ls: s.decompose_reduction(c, ls[1]),
                lambda s, c, ls: s.blockize(ls[1]),
                _tensorized,
                _tensorized_block,
                # annotations
                *_values(),
                _annotated('a "key" with\nall sorts', 1),
                _annotated("", 1),
                lambda s, c, ls: (s.annotate(ls[0], "k", "v"), s.unannotate(ls[0], "k")),
                lambda s, c, ls: (s.annotate(c, "k", 1), s.unannotate(c, "k")),
                lambda s, c, ls: s.annotate_buffer_access(
                    s.get_sblock("D"), 0, "read", lambda i, j: [(i, i + 1), (j, j + 1)]
                ),
                *(_typed(dtype) for dtype in ("float16", "bfloat16", "float8_e4m3fn", "int8", "bool")),
                lambda s, c, ls: s.unsafe_hide_buffer_access(c, "read", [0]),
                lambda s, c, ls: s.unsafe_hide_buffer_access(c, "write", []),
            ],
        ),
        (
            elementwise,
            [
                lambda s, c, ls: s.merge(ls[0], s.get_loops(s.get_sblock("D"))[0]),
                lambda s, c, ls: s.merge(ls[1], s.get_loops(s.get_sblock("D"))[1]),
                lambda s, c, ls: s.blockize([s.get_sblock("C"), s.get_sblock("D")]),
                lambda s, c, ls: s.blockize([c, s.get_sblock("D")], preserve_unit_iters=False),
                lambda s, c, ls: s.compute_inline("B"),
                lambda s, c, ls: s.reverse_compute_inline(s.cache_write(c, 0, "local")),
            ],
        ),
        (padded, [lambda s, c, ls: s.decompose_padding(s.get_sblock("P"), s.get_loops("P")[0])]),
        (
            resized,
            [
                lambda s, c, ls: s.cache_index(c, "global"),
                lambda s, c, ls: s.cache_index(c, "local", 1),
            ],
        ),
        (pooled, [_rolled]),
        (
            in_place,
            [
                lambda s, c, ls: s.cache_inplace(c, 0, "local"),
                lambda s, c, ls: s.add_unit_loop(s.get_sblock('odd "name" ✓')),
                lambda s, c, ls: s.reorder_block_iter_var(c, []),
            ],
        ),
    ]


def traces() -> list[str]:
    """All traces as `save_json` texts; each replayed, so that TVM can load what it saved."""
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    found = []
    for module, several in steps():
        for number, step in enumerate(several):
            schedule = Schedule(module(), seed=1)
            block = schedule.get_sblock("C")
            try:
                step(schedule, block, schedule.get_loops(block))
            except Exception as error:
                raise RuntimeError(f"{module.__name__}, step {number}") from error
            schedule.enter_postproc()
            text = str(tvm.ir.save_json(schedule.trace.as_json()))
            again = Schedule(module(), seed=2)
            Trace.apply_json_to_schedule(tvm.ir.load_json(text), again)
            if str(tvm.ir.save_json(again.trace.as_json())) != text:
                raise RuntimeError(f"{module.__name__}, step {number}: TVM does not load what it saved")
            found.append(text)
    return found


def main() -> None:
    lines = "".join(json.dumps(trace) + "\n" for trace in traces())
    if sys.argv[1:] == ["check"]:
        if PATH.read_text(encoding="utf-8") != lines:
            sys.exit("this TVM records other traces")
    else:
        PATH.write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
