"""What a GPU cannot hold, read off the tile factors of a schedule, before anything is replayed; and what it is slow at.

TVM finds such schedules out in its last post-processor, VerifyGPUCode, after it has replayed and lowered them: 10 to
25 ms each, and of random tilings of a product nine in ten fail there. Two of its rules follow from the factors alone:
how many threads a block has (`meta_schedule.thread_extent_*`, `max_threads_per_block`), and how much shared memory the
operands of one tile take at least. Both bounds are necessary ones: what they refuse, VerifyGPUCode would refuse as well
(TVM 0.25, src/s_tir/meta_schedule/postproc/verify_gpu_code.cc); what they allow, it may still refuse.

What is allowed is not refused for being slow, but compared: by the threads that its factors make (`Limits.width`), and
by what its loops say of the time that it takes to run and to compile (`outlook`).

Every function here runs in a child.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

BUSY: Final = 132 * 512
"""Threads that a device is taken to run at once: an H200 has 132 multiprocessors. Of 1,516 first-round candidates of 74
workloads that an H200 ran, 256, 512 and 1,024 threads each tell good from bad about equally well."""
OWN_UNROLL: Final = 500
"""Operations up to which the compiler is taken to unroll a loop that is not marked."""
EXTENT: Final = 16
"""Taken for a loop whose extent is not constant."""

Level = tuple[int, int]
"""A loop that tiling made: the index of its SamplePerfectTile in the trace, and its place among the factors."""
Tiles = Mapping[int, Sequence[int]]
"""Factors of each tile, by the index of its instruction."""


@dataclass(frozen=True)
class _Run:
    """An axis of a block that a dimension of an operand runs along: coefficient, loops of a tile, size below these."""

    step: int
    levels: tuple[Level, ...]
    base: int


@dataclass(frozen=True)
class _Operand:
    """A shared copy of what one tile of a block reads: bytes of an element, and what each dimension runs along."""

    size: int
    dimensions: tuple[tuple[_Run, ...], ...]

    def bytes(self, tiles: Tiles) -> int:
        dimensions = (
            1 + sum(run.step * (run.base * _product(run.levels, tiles) - 1) for run in runs) for runs in self.dimensions
        )
        return self.size * math.prod(dimensions)


@dataclass
class _Block:
    """A tiled block: loops bound to threads and to blocks of them, threads besides, how many there may be, and its
    shared copies."""

    threads: list[Level] = field(default_factory=list)
    grid: list[Level] = field(default_factory=list)
    times: int = 1
    low: int = 1
    high: int = 1 << 62
    operands: list[_Operand] = field(default_factory=list)

    def allows(self, tiles: Tiles, max_threads: int, max_shared: int) -> bool:
        threads = self.times * _product(self.threads, tiles)
        if not self.low <= threads <= min(self.high, max_threads):
            return False
        return sum(operand.bytes(tiles) for operand in self.operands) <= max_shared

    def width(self, tiles: Tiles) -> int:
        return self.times * _product([*self.grid, *self.threads], tiles)


@dataclass(frozen=True)
class Limits:
    """The bounds of one design space. tiles: index → (extent, number of factors, largest innermost factor) of each
    SamplePerfectTile whose extent is known."""

    tiles: dict[int, tuple[int, int, int]]
    blocks: tuple[_Block, ...]
    max_threads: int
    max_shared: int

    def allow(self, tiles: Tiles) -> bool:
        """Whether a schedule with these factors can pass."""
        return all(block.allows(tiles, self.max_threads, self.max_shared) for block in self.blocks)

    def width(self, tiles: Tiles) -> int:
        """Threads of all blocks of a schedule with these factors, of its narrowest kernel; 0 where nothing is bound."""
        return min((block.width(tiles) for block in self.blocks), default=0)


@dataclass(frozen=True)
class Outlook:
    """What the loops of a scheduled module say, before it is compiled.

    span: iterations that a device of `BUSY` threads has one after the other. Each kernel has as many as one of its
        threads, times its threads over `BUSY` where they are more; a block has at least a warp.
    operations: nodes of the innermost statements with their expressions, those that are shared once, after loops are
        unrolled and virtual threads are written out. Conditions, and what binds a block's axes, are not counted.
    """

    span: float
    operations: int


def outlook(module: Any) -> Outlook:
    """Read the outlook off a scheduled module for a GPU, in a third of a millisecond.

    Of the same 1,516 candidates, latency and span of one workload have a rank correlation of 0.85 in the median.
    Operations tell builds of more than two seconds from shorter ones with an area under the curve of 0.93, on 2,000
    candidates of 180 workloads that an H200's host built, where the number of unrolled statements has 0.89.
    """
    kernels: list[_Kernel] = []
    operations = 0
    for nest in _nests(module["main"].body):
        kernel = _Kernel()
        operations += kernel.walk(nest, 1, 1, 0).operations
        kernels.append(kernel)
    return Outlook(sum(kernel.span() for kernel in kernels), operations)


def _nests(node: Any) -> list[Any]:
    """The outermost loops of a function's body: each is a kernel."""
    name = type(node).__name__
    if name == "SeqStmt":
        return [nest for part in node.seq for nest in _nests(part)]
    if name == "SBlockRealize":
        return _nests(node.block.body)
    return [node]


@dataclass(frozen=True)
class _Written:
    """What a node is once it is written out: its statements, their nodes, whether a loop is left."""

    statements: int
    operations: int
    loop: bool

    def times(self, extent: int) -> "_Written":
        return _Written(extent * self.statements, extent * self.operations, self.loop)


def _size(statement: Any) -> int:
    """Nodes of a statement and of its expressions."""
    from tvm.tirx.stmt_functor import post_order_visit

    nodes = 0

    def count(_: Any) -> None:
        nonlocal nodes
        nodes += 1

    post_order_visit(statement, count)
    return nodes


@dataclass
class _Kernel:
    """Blocks, threads by their axis, and the most iterations that a statement has in one thread."""

    blocks: int = 1
    threads: dict[str, int] = field(default_factory=dict)
    most: int = 0

    def span(self) -> float:
        return self.most * max(1.0, self.blocks * max(32, math.prod(self.threads.values())) / BUSY)

    def walk(self, node: Any, blocks: int, iterations: int, unrolled: int) -> _Written:
        """What is left of a node after unrolling.

        blocks, iterations: product of the loops outside. unrolled: statements up to which a loop is marked for
        unrolling (`pragma_auto_unroll_max_step`).
        """
        name = type(node).__name__
        if name == "SBlockRealize":
            parts = [node.block.init, node.block.body]
        elif name == "SeqStmt":
            parts = list(node.seq)
        elif name == "IfThenElse":
            parts = [node.then_case, node.else_case]
        elif name == "For":
            return self._loop(node, blocks, iterations, unrolled)
        elif hasattr(node, "body"):
            parts = [node.body]
        else:
            self.blocks, self.most = max(self.blocks, blocks), max(self.most, iterations)
            return _Written(1, _size(node), loop=False)
        inside = [self.walk(part, blocks, iterations, unrolled) for part in parts if part is not None]
        statements, operations = (sum(getattr(one, name) for one in inside) for name in ("statements", "operations"))
        return _Written(statements, operations, any(one.loop for one in inside))

    def _loop(self, node: Any, blocks: int, iterations: int, unrolled: int) -> _Written:
        from tvm.tirx import ForKind

        extent = int(node.extent.value) if type(node.extent).__name__ == "IntImm" else EXTENT
        unrolled = int(node.annotations.get("pragma_auto_unroll_max_step", unrolled))
        tag = "" if node.thread_binding is None else str(node.thread_binding.thread_tag)
        if tag.startswith("blockIdx"):
            return self.walk(node.body, blocks * extent, iterations, unrolled)
        if tag.startswith("threadIdx"):
            self.threads[tag] = max(extent, self.threads.get(tag, 1))
            return self.walk(node.body, blocks, iterations, unrolled)
        inside = self.walk(node.body, blocks, iterations * extent, unrolled)
        if node.kind == ForKind.VECTORIZED:
            return inside
        whole = inside.times(extent)
        if tag.startswith("vthread") or node.kind == ForKind.UNROLLED:
            return whole
        if not inside.loop and (whole.statements <= unrolled or whole.operations <= OWN_UNROLL):
            return whole
        return replace(inside, loop=True)


def _product(levels: Sequence[Level], tiles: Tiles) -> int:
    return math.prod(tiles[tile][place] for tile, place in levels)


def limits(trace: Any, module: Any, target: Mapping[str, Any]) -> Limits:
    """Read the bounds off a design space. What is not recognised is not bounded.

    Args:
        trace: the `tvm.s_tir.Trace` of a member of the design space, every tile decided.
        module: M0, an IRModule.
        target: a cuda target has `max_threads_per_block`, `max_shared_memory_per_block` and `thread_warp_size`.
    """
    reader = _Reader(trace, module, int(target.get("thread_warp_size", 32)))
    tiles = {}
    for index, step in enumerate(trace.insts):
        decision = trace.decisions.get(step) if step.kind.name == "SamplePerfectTile" else None
        if decision is not None:
            factors = [int(factor) for factor in decision]
            tiles[index] = (math.prod(factors), len(factors), int(step.attrs[1]))
    known = set(tiles)
    blocks = [block for block in reader.blocks.values() if _tiles_of(block) <= known]
    return Limits(
        tiles,
        tuple(blocks) if target["kind"] == "cuda" else (),
        int(target.get("max_threads_per_block", 1 << 62)),
        int(target.get("max_shared_memory_per_block", 1 << 62)),
    )


def _tiles_of(block: _Block) -> set[int]:
    runs = [run for operand in block.operands for dimension in operand.dimensions for run in dimension]
    return {tile for levels in (block.threads, block.grid, *(run.levels for run in runs)) for tile, _ in levels}


class _Reader:
    """Walks the instructions of one trace, as JSON, in which variables are names."""

    def __init__(self, trace: Any, module: Any, warp: int) -> None:
        self.blocks: dict[str, _Block] = {}
        self._module, self._warp, self._steps = module, warp, trace.insts
        self._m0: dict[str, str] = {}  # block → its name in M0
        self._outer: dict[str, str] = {}  # blockized block → the block whose outer loops it has
        self._axes: dict[str, tuple[str, int]] = {}  # loop → block and axis
        self._base: dict[tuple[str, int], int] = {}  # what an intrinsic takes of an axis
        self._factors: dict[str, Level] = {}
        self._tile_axis: dict[int, tuple[str, int]] = {}
        self._loops: dict[str, list[Level]] = {}  # loop → the tiled loops that it is fused of
        self._relaxed: set[Level] = set()  # bound to threads, virtual ones too: a shared copy serves all of them
        self._seen: set[str] = set()
        self._nests: list[list[str]] = []  # tiled loops from the outside, of each block
        self._maps: dict[tuple[str, int], list[str]] = {}  # block and operand (-1: itself) → axes after reindexing
        self._copies: dict[str, tuple[str, int]] = {}  # shared copy → block and operand
        for index, (kind, inputs, attrs, outputs) in enumerate(trace.as_json()[0]):
            see = getattr(self, f"_see_{kind}", None)
            if see is not None:
                see(index, list(inputs), list(attrs), [str(name) for name in outputs])

    def _own(self, block: str) -> str:
        return self._outer.get(block, block)

    def _block(self, block: str) -> _Block:
        return self.blocks.setdefault(self._own(block), _Block())

    def _see_GetSBlock(self, index: int, inputs: list[Any], attrs: list[Any], outputs: list[str]) -> None:
        self._m0[outputs[0]] = str(attrs[0])

    def _see_GetLoops(self, index: int, inputs: list[Any], attrs: list[Any], outputs: list[str]) -> None:
        block = str(inputs[0])
        if self._own(block) in self._m0 and block not in self._seen:  # asked again, it has more loops than axes
            self._seen.add(block)
            self._axes |= {loop: (self._own(block), axis) for axis, loop in enumerate(outputs)}

    def _see_Split(self, index: int, inputs: list[Any], attrs: list[Any], outputs: list[str]) -> None:
        loop, factors = str(inputs[0]), inputs[1:]
        levels = [self._factors.get(str(factor)) for factor in factors]
        if all(level is not None and level[0] == (levels[0] or level)[0] for level in levels):
            self._loops |= {part: [level] for part, level in zip(outputs, levels, strict=True) if level is not None}
        elif len(outputs) == 2 and loop in self._axes and str(factors[1]).isdecimal():
            self._base[self._axes[loop]] = int(factors[1])
            self._axes |= dict.fromkeys(outputs, self._axes[loop])

    def _see_SamplePerfectTile(self, index: int, inputs: list[Any], attrs: list[Any], outputs: list[str]) -> None:
        self._factors |= {name: (index, place) for place, name in enumerate(outputs)}
        if str(inputs[0]) in self._axes:
            self._tile_axis[index] = self._axes[str(inputs[0])]

    def _see_Blockize(self, index: int, inputs: list[Any], attrs: list[Any], outputs: list[str]) -> None:
        if str(inputs[0]) in self._axes:
            self._outer[outputs[0]] = self._axes[str(inputs[0])][0]

    def _see_Reorder(self, index: int, inputs: list[Any], attrs: list[Any], outputs: list[str]) -> None:
        if all(str(loop) in self._loops for loop in inputs):
            self._nests.append([str(loop) for loop in inputs])

    def _see_Fuse(self, index: int, inputs: list[Any], attrs: list[Any], outputs: list[str]) -> None:
        if all(str(loop) in self._loops for loop in inputs):
            self._loops[outputs[0]] = [level for loop in inputs for level in self._loops[str(loop)]]

    def _see_Bind(self, index: int, inputs: list[Any], attrs: list[Any], outputs: list[str]) -> None:
        levels = self._loops.get(str(inputs[0]), [])
        owners = {self._tile_axis[tile][0] for tile, _ in levels if tile in self._tile_axis}
        if str(attrs[0]).startswith(("threadIdx", "vthread")):
            self._relaxed.update(levels)
        if str(attrs[0]).startswith(("threadIdx", "blockIdx")) and len(owners) == 1:
            block = self._block(owners.pop())
            (block.grid if str(attrs[0]).startswith("blockIdx") else block.threads).extend(levels)

    def _see_Annotate(self, index: int, inputs: list[Any], attrs: list[Any], outputs: list[str]) -> None:
        block, key, value = str(inputs[0]), str(attrs[0]), inputs[1]
        if self._own(block) not in self._m0:
            return
        if key == "warp_execution":
            self._block(block).times = self._warp
        elif key == "meta_schedule.thread_extent_low_inclusive":
            self._block(block).low = int(value)
        elif key == "meta_schedule.thread_extent_high_inclusive":
            self._block(block).high = int(value)

    def _see_TransformLayout(self, index: int, inputs: list[Any], attrs: list[Any], outputs: list[str]) -> None:
        if int(attrs[1]) == 0:  # of a buffer that is read
            self._maps.setdefault((str(inputs[0]), int(attrs[0])), self._indices(self._steps[index].inputs[1]))

    def _see_TransformBlockLayout(self, index: int, inputs: list[Any], attrs: list[Any], outputs: list[str]) -> None:
        self._maps.setdefault((str(inputs[0]), -1), self._indices(self._steps[index].attrs[0]))

    def _indices(self, index_map: Any) -> list[str]:
        return [str(expression) for expression in index_map.final_indices]

    def _see_CacheRead(self, index: int, inputs: list[Any], attrs: list[Any], outputs: list[str]) -> None:
        if str(attrs[1]).startswith("shared"):
            self._copies[outputs[0]] = (self._own(str(inputs[0])), int(attrs[0]))

    def _see_ComputeAt(self, index: int, inputs: list[Any], attrs: list[Any], outputs: list[str]) -> None:
        copy, loop = str(inputs[0]), str(inputs[1])
        nest = next((nest for nest in self._nests if loop in nest), None)
        if copy not in self._copies or nest is None or self._copies[copy][0] not in self._m0:
            return
        block, operand = self._copies[copy]
        inside: dict[int, list[Level]] = {}
        levels = [level for name in nest for level in self._loops[name]]
        within = {level for name in nest[nest.index(loop) + 1 :] for level in self._loops[name]}
        for tile, place in levels:
            if self._tile_axis.get(tile, ("", 0))[0] != block:
                return
            if (tile, place) in within | self._relaxed:
                inside.setdefault(self._tile_axis[tile][1], []).append((tile, place))
        found = self._operand(block, operand, {axis: tuple(levels) for axis, levels in inside.items()})
        if found is not None:
            self._block(block).operands.append(found)

    def _operand(self, block: str, number: int, inside: dict[int, tuple[Level, ...]]) -> _Operand | None:
        import tvm
        from tvm.s_tir import Schedule

        def run(axis: int, step: int = 1) -> _Run:
            return _Run(step, inside.get(axis, ()), self._base.get((block, axis), 1))

        try:
            original = Schedule(self._module)
            m0 = original.get(original.get_sblock(self._m0[block]))
        except tvm.error.TVMError:
            return None
        if number >= len(m0.reads):
            return None
        region = m0.reads[number]
        size = (tvm.DataType(region.buffer.dtype).bits + 7) // 8
        axes, own = self._maps.get((block, -1)), self._maps.get((block, number))
        if axes is not None:
            if own is None or not set(own) <= set(axes):
                return None
            return _Operand(size, tuple((run(axes.index(index)),) for index in own))
        variables = [axis.var for axis in m0.iter_vars]
        dimensions = []
        for part in region.region:
            terms = tvm.arith.detect_linear_equation(part.min, variables)
            steps = [int(term) if isinstance(term, tvm.tirx.IntImm) else 0 for term in terms[:-1]]
            dimensions.append(tuple(run(axis, abs(step)) for axis, step in enumerate(steps) if step))
        return _Operand(size, tuple(dimensions))
