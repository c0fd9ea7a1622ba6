"""Schedules written by hand, with what MetaSchedule's rules seldom or never use; decisions are sampled as ever.

Each step gets a schedule of C = A·B, D = C + 1 and a source of chance, and applies primitives to it.
"""

import random
from collections.abc import Callable
from typing import Any, Final

Step = Callable[[Any, random.Random], Any]


def product(m: int, n: int, k: int) -> Any:
    """C = A·B, D = C + 1 in float32, as a module."""
    import tvm
    from tvm import te

    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    axis = te.reduce_axis((0, k), "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis), name="C")
    d = te.compute((m, n), lambda i, j: c[i, j] + 1.0, name="D")
    return tvm.IRModule({"main": te.create_prim_func([a, b, d])})


def draw(module: Any, step: Step, state: int) -> tuple[Any, list[Any]]:
    """A schedule by this step, before post-processing, and what is to be done after it."""
    from tvm.s_tir import Schedule

    schedule = Schedule(module, seed=state)
    step(schedule, random.Random(state))
    return schedule, [_Finish]


class _Finish:
    """The post-processing of a schedule by hand: its last loop is unrolled."""

    @staticmethod
    def apply(schedule: Any) -> bool:
        schedule.unroll(schedule.get_loops(schedule.get_sblock("D"))[-1])
        return True


def _tiled(s: Any, chance: random.Random) -> None:
    c = s.get_sblock("C")
    i, j, k = s.get_loops(c)
    io, im, ii = s.split(i, s.sample_perfect_tile(i, 3, 16))
    jo, ji = s.split(j, [None, chance.choice((11, 13, 16))], preserve_unit_iters=chance.random() < 0.5)
    ko, ki = s.split(k, s.sample_perfect_tile(k, 2))
    s.reorder(io, jo, ko, im, ii, ki, ji)
    s.parallel(s.fuse(io, jo))
    s.vectorize(ji)
    s.annotate(im, "pragma_auto_unroll_max_step", s.sample_categorical([0, 16, 64], [0.25, 0.25, 0.5]))
    s.decompose_reduction(c, ko)


def _threads(s: Any, chance: random.Random) -> None:
    c = s.get_sblock("C")
    i, j, k = s.get_loops(c)
    bi, ti, ii = s.split(i, s.sample_perfect_tile(i, 3, 8))
    bj, tj, jj = s.split(j, s.sample_perfect_tile(j, 3, 8))
    ko, ki = s.split(k, s.sample_perfect_tile(k, 2, 32))
    s.reorder(bi, bj, ti, tj, ko, ki, ii, jj)
    for loop, axis in ((bi, "blockIdx.y"), (bj, "blockIdx.x"), (ti, "threadIdx.y"), (tj, "threadIdx.x")):
        s.bind(loop, axis)
    for index in (0, 1):
        read = s.cache_read(c, index, "shared")
        s.compute_at(read, ko, preserve_unit_loops=True)
        s.storage_align(read, 0, -2, 32, chance.choice((4, 8)))
        s.annotate(read, "double_buffer_scope", 0)
    s.reverse_compute_at(s.cache_write(c, 0, "local"), tj, index=chance.choice((-1, -2)))


def _factored(s: Any, chance: random.Random) -> None:
    c = s.get_sblock("C")
    _, _, k = s.get_loops(c)
    ko, ki = s.split(k, s.sample_perfect_tile(k, 2, 64))
    partial = s.rfactor(chance.choice((ko, ki)), chance.choice((0, 1, 2)))
    s.annotate(partial, "note", {"depth": [1, 2.5, "k"], "of": chance.choice(("rows", "t0.0.1", 'a "b" <c>'))})
    s.compute_at(partial, s.get_loops(c)[0])


def _layouts(s: Any, chance: random.Random) -> None:
    c, factor = s.get_sblock("C"), chance.choice((4, 11, 16))
    s.reindex(c, ("read", 0))
    s.transform_layout(c, ("write", 0), lambda i, j: (i // factor, j, i % factor), pad_value=0.0)
    s.transform_layout(c, ("read", 1), lambda i, j: (j, i))
    s.set_axis_separator(c, ("write", 0), [chance.choice((1, 2))])
    s.set_scope(c, 0, chance.choice(("shared", "local")))


def _block_layout(s: Any, chance: random.Random) -> None:
    c = s.get_sblock("C")
    _, n, depth = (int(s.get(loop).extent) for loop in s.get_loops(c))
    s.transform_block_layout(c, lambda i, j, k: (i * n + j, k))
    s.blockize(s.split(s.get_loops(c)[1], [None, chance.choice((1, depth))])[1])


def _padded(s: Any, chance: random.Random) -> None:
    c = s.get_sblock("C")
    s.pad_einsum(c, [chance.choice((8, 16, 48)) for _ in range(3)])
    for loop in s.get_loops(c)[:2]:
        s.split(loop, [None, 8])


def _partitioned(s: Any, chance: random.Random) -> None:
    c = s.get_sblock("C")
    i, j, _ = s.get_loops(c)
    divisor = next(d for d in (2, 3, 11, 13, 17, 19, 23, 1) if int(s.get(i).extent) % d == 0)
    s.split(i, s.sample_partitioned_tile(i, 3, 1, divisor))
    s.loop_partition(j, [chance.choice((3, 8)), None])


def _located(s: Any, chance: random.Random) -> None:
    c = s.get_sblock("C")
    i, _, _ = s.get_loops(c)
    s.split(i, s.sample_perfect_tile(i, 2))
    for index in (0, 1):
        read = s.cache_read(c, index, "global")
        s.compute_at(read, s.sample_compute_location(read))
    s.add_unit_loop(c)
    s.unsafe_set_dtype(s.get_sblock("C"), 0, chance.choice(("float16", "float64")))


STEPS: Final[dict[str, Step]] = {
    "tiled": _tiled,
    "threads": _threads,
    "factored": _factored,
    "layouts": _layouts,
    "block_layout": _block_layout,
    "padded": _padded,
    "partitioned": _partitioned,
    "located": _located,
}
