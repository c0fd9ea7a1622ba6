"""What each instruction of a trace is applied to: the names and extents of its loops and blocks at that moment.

An instruction names its inputs as the trace does (`l17`); a reader wants to know that it is loop `k`, of extent 1024.
That is known only while the trace is replayed, so it is observed there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from littledragon.compiler._stepper import import_intrinsics, load, schedule
from littledragon.schemas.graph import Graph, Instruction


@dataclass(frozen=True)
class Loop:
    """A loop as it is when an instruction takes it. `extent` is None where it is not constant.

    `block` is the first block in its body; the initialisation of a reduction does not count.
    """

    name: str
    extent: int | None
    block: str


@dataclass(frozen=True)
class Block:
    """A block as it is when an instruction takes it."""

    name: str


@dataclass(frozen=True)
class Step:
    """One instruction of an edit with its inputs observed: loops, blocks, integers, texts or None."""

    edit: str
    instruction: Instruction
    inputs: tuple[Loop | Block | int | str | None, ...]

    def loops(self) -> list[Loop]:
        """Its loops, in order."""
        return [i for i in self.inputs if isinstance(i, Loop)]

    def blocks(self) -> list[Block]:
        """Its blocks, in order."""
        return [i for i in self.inputs if isinstance(i, Block)]


def observe(module: str, trace: str, graph: Graph) -> tuple[list[Step], Any]:
    """Replay a trace on M0 and look at every instruction's inputs. Runs in a child.

    Args:
        module: M0, as `tvm.ir.save_json`.
        trace: the whole trace, as `save_json` text; it must have been admitted, since TVM dies of illegal ones.
        graph: a graph that spells it: the same instructions in the same order.

    Returns:
        The steps, and the scheduled IRModule.

    Raises:
        ValueError: the trace and the graph do not hold the same instructions.
    """
    from tvm.s_tir.schedule import Trace

    import_intrinsics(trace)
    mod = load(module)
    recorded = schedule(mod)
    Trace.apply_json_to_schedule(load(trace), recorded)
    instructions = [(edit.id, i) for edit in graph.edits for i in edit.instructions]
    if [i.kind for _, i in instructions] != [str(i.kind.name) for i in recorded.trace.insts]:
        raise ValueError("the trace and the graph do not hold the same instructions")
    seen: list[tuple[Loop | Block | int | str | None, ...]] = []
    replayed = schedule(mod)

    def look(_: Any, inputs: Any, __: Any, decision: Any) -> Any:
        seen.append(tuple(_seen(replayed, value) for value in inputs))
        return decision

    recorded.trace.apply_to_schedule(replayed, remove_postproc=False, decision_provider=look)
    steps = [Step(edit, i, inputs) for (edit, i), inputs in zip(instructions, seen, strict=True)]
    return steps, replayed.mod


def _seen(schedule: Any, value: Any) -> Loop | Block | int | str | None:
    name = type(value).__name__
    if value is None:
        return None
    if name == "LoopRV":
        try:
            loop = schedule.get(value)
        except TypeError:
            return None  # a sampled location that is no loop: the root, or inlining
        extent = loop.extent
        size = int(extent.value) if type(extent).__name__ == "IntImm" else None
        return Loop(str(loop.loop_var.name), size, next(_blocks(loop.body), ""))
    if name == "SBlockRV":
        return Block(str(schedule.get(value).name_hint))
    if name in ("ExprRV", "Var", "IntImm"):
        number = schedule.get(value) if name != "IntImm" else value.value
        return int(number)
    return value if isinstance(value, int) else str(value)


def _blocks(statement: Any) -> Iterator[str]:
    """Names of the blocks in a statement, in order, those inside blocks left out."""
    kind = type(statement).__name__
    if kind == "SBlockRealize":
        name = str(statement.block.name_hint)
        if not name.endswith("_init"):
            yield name
    elif kind == "SeqStmt":
        for child in statement.seq:
            yield from _blocks(child)
    elif hasattr(statement, "body"):
        yield from _blocks(statement.body)


def edits(steps: list[Step]) -> Iterator[tuple[str, list[Step]]]:
    """The steps of each edit, in order."""
    grouped: dict[str, list[Step]] = {}
    for step in steps:
        grouped.setdefault(step.edit, []).append(step)
    yield from grouped.items()
