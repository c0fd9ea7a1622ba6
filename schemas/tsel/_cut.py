"""Where one edit ends and the next begins.

An edit is one semantic step: a tile, a copy with its place and its fetch, the loops bound to threads, and so on.
Every instruction goes into exactly one edit and keeps its place, so the edits in order are the trace. Look-ups and
sampled numbers wait for the instruction that uses them. What follows in a step works on the block that the step is
about, or on loops of it; that, and the kind of the instruction, decides whether the step goes on.

All that follows the boundary is one edit, `postproc`: rules wrote it, in one go.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from littledragon.schemas.tsel._primitives import PRIMITIVES

MAX_EDIT: Final = 256
"""Instructions of an edit that takes no more."""


class Step(Protocol):
    """What is read of an instruction: see `schemas.graph.Instruction`."""

    @property
    def kind(self) -> str: ...
    @property
    def inputs(self) -> Sequence[Any]: ...
    @property
    def attrs(self) -> Sequence[Any]: ...
    @property
    def outputs(self) -> Sequence[str]: ...


_FETCH: Final = "meta_schedule.cooperative_fetch"
_PLACE: Final = "meta_schedule.random_compute_producer"
_THREADS: Final = ("pragma_", "meta_schedule.thread_extent_")
"""Marks of loops and blocks that go with binding them."""

_AHEAD: Final = frozenset({kind for kind, row in PRIMITIVES.items() if row.edit in ("lookup", "sample")}) | {
    "SampleComputeLocation"
}
"""Instructions that wait for the one that uses them."""
_MAKERS: Final = frozenset(kind for kind, row in PRIMITIVES.items() if row.edit == "cache" and "B" in row.outputs) | {
    "Blockize"
}
"""Instructions that begin a step about the block that they make; all others are about the block that they are given."""
_LOOPS: Final = frozenset(kind for kind, row in PRIMITIVES.items() if row.outputs[:1] == "L")
_BINDS: Final = frozenset(kind for kind, row in PRIMITIVES.items() if row.edit == "bind")
_FIRST: Final = {kind: row.edit for kind, row in PRIMITIVES.items()}


def cut(raw: Sequence[Step]) -> list[tuple[int, int, str]]:
    """The edits of a trace as (start, end, kind); they tile it. Any instructions may be given, well-formed or not."""
    return _Cutter(raw).edits()


class _Cutter:
    """One walk along the trace."""

    __slots__ = ("block", "kind", "owner", "raw")

    def __init__(self, raw: Sequence[Step]) -> None:
        self.raw = raw
        self.owner: dict[Any, Any] = {}
        """The block that a loop belongs to."""
        self.kind = ""
        self.block: Any = None
        """What the present edit is about."""

    def edits(self) -> list[tuple[int, int, str]]:
        raw, owner = self.raw, self.owner
        found: list[tuple[int, int, str]] = []
        start = end = 0  # the present edit; from `end` on, instructions wait
        for index, step in enumerate(raw):
            kind, inputs = step.kind, step.inputs
            block = inputs[0] if inputs and type(inputs[0]) is str else None
            block = owner.get(block, block)
            if kind in _LOOPS:
                owner.update(dict.fromkeys(step.outputs, block))
            if kind in _AHEAD:
                continue
            rule = _RULES.get(kind)
            grown = rule(self, step, index, block) if rule is not None and end else ""
            if grown == "" or index - start >= MAX_EDIT:
                if end:
                    end = _idle(raw, end, index)
                    found.append((start, end, self.kind))
                start = end
                self.block = step.outputs[0] if kind in _MAKERS and step.outputs else block
                if kind == "EnterPostproc":
                    self.kind = "postproc"
                    break
                grown = _first(step)
            self.kind = grown
            end = index + 1
        if raw:
            found.append((start, len(raw), self.kind or "lookup"))
        return found


def _first(step: Step) -> str:
    """The kind of an edit that begins with this instruction."""
    if step.kind == "Unannotate" and step.attrs[:1] == (_PLACE,):
        return "compute_at"
    return _FIRST.get(step.kind, "annotate")


def _idle(raw: Sequence[Step], first: int, last: int) -> int:
    """The place of the first waiting instruction that is of use to the step at `last`: the edit before keeps the loops
    that were looked up for nothing."""
    if first == last or raw[first].kind != "GetLoops":
        return first
    taken = raw[first + 1].inputs
    if taken and taken[0] in raw[first].outputs:
        return first
    used = {name for step in raw[first + 1 : last + 1] for name in step.inputs if type(name) is str}
    while first < last and raw[first].kind == "GetLoops" and used.isdisjoint(raw[first].outputs):
        first += 1
    return first


def _key(step: Step) -> str:
    key = step.attrs[0] if step.attrs else ""
    return key if type(key) is str else ""


def _next(raw: Sequence[Step], index: int) -> Step | None:
    """The next instruction that does not wait for another."""
    for step in raw[index + 1 : index + 9]:
        if step.kind not in _AHEAD:
            return step
    return None


def _for_tensors(raw: Sequence[Step], index: int) -> bool:
    """Whether a split only makes the tile that the next block or intrinsic takes."""
    for step in raw[index + 1 : index + 17]:
        if step.kind in ("Blockize", "Tensorize"):
            return True
        if step.kind not in ("Split", "Reorder", "GetLoops"):
            return False
    return False


def _across_threads(raw: Sequence[Step], index: int) -> bool:
    """Whether an inner loop of a sampled extent is bound to threads: how MetaSchedule reduces across threads."""
    bind, split = raw[index], raw[index - 1]
    return (
        split.kind == "Split"
        and _sampled(split)
        and split.outputs[-1:] == bind.inputs[:1]
        and _key(bind).startswith("threadIdx")
    )


def _sampled(split: Step) -> bool:
    last = split.inputs[-1] if split.inputs else None
    return type(last) is str and last[:1] == "v"


# Each rule says what kind the present edit has with this instruction added, or "" where a new one begins.


def _tile(now: _Cutter, step: Step, index: int, block: Any) -> str:
    return ""


def _split(now: _Cutter, step: Step, index: int, block: Any) -> str:
    kind = now.kind
    if kind == "tile":
        before = now.raw[index - 1]
        return "tile" if before.kind[:6] == "Sample" and step.inputs[1:] == before.outputs else ""
    if block != now.block:
        return ""
    if kind in ("split", "fuse"):
        return kind
    if kind == "cache":
        return "" if _for_tensors(now.raw, index) else kind
    if kind in ("compute_at", "reduction"):
        return kind if _sampled(step) else ""
    return ""


def _reorder(now: _Cutter, step: Step, index: int, block: Any) -> str:
    if now.kind not in ("split", "fuse", "cache"):
        return ""
    follows = _next(now.raw, index)
    if now.kind == "cache" and block == now.block:
        return "cache"
    if follows is None:
        return ""
    if now.kind == "cache":
        placed = follows.kind in ("ComputeAt", "ReverseComputeAt") and follows.inputs[:1] == (now.block,)
        return "cache" if placed else ""
    used = follows.kind in ("Blockize", "Tensorize") or follows.kind in _BINDS
    return now.kind if used and block == now.block else ""


def _fuse(now: _Cutter, step: Step, index: int, block: Any) -> str:
    return now.kind if now.kind in ("fuse", "bind", "cache") and block == now.block else ""


def _bind(now: _Cutter, step: Step, index: int, block: Any) -> str:
    kind = now.kind
    if block != now.block:
        return ""
    if kind in ("split", "fuse", "compute_at", "reduction") and _across_threads(now.raw, index):
        return "reduction"
    if kind in ("fuse", "split", "bind"):
        return "bind"
    return kind if kind == "cache" else ""


def _compute_at(now: _Cutter, step: Step, index: int, block: Any) -> str:
    if now.kind == "cache" and block == now.block:
        return "cache"
    target = step.inputs[1] if len(step.inputs) > 1 and type(step.inputs[1]) is str else None
    if now.kind == "reduction" and now.owner.get(target) == now.block:
        now.block = block
        return "reduction"
    before = now.raw[index - 1]
    drawn = before.kind == "SampleComputeLocation" and before.outputs[:1] == (target,)
    return "compute_at" if now.kind == "compute_at" and drawn else ""


def _memory(now: _Cutter, step: Step, index: int, block: Any) -> str:
    if block != now.block:
        return ""
    moved = step.kind == "SetScope" and now.kind in ("compute_at", "reduction")
    return now.kind if moved or now.kind == "cache" else ""


def _inline(now: _Cutter, step: Step, index: int, block: Any) -> str:
    return "inline" if now.kind == "inline" else ""


def _layout(now: _Cutter, step: Step, index: int, block: Any) -> str:
    return "layout" if now.kind == "layout" else ""


def _blockize(now: _Cutter, step: Step, index: int, block: Any) -> str:
    if now.kind != "split" or block != now.block:
        return ""
    now.block = step.outputs[0] if step.outputs else block
    return "tensorize"


def _tensorize(now: _Cutter, step: Step, index: int, block: Any) -> str:
    return "tensorize" if now.kind in ("split", "tensorize") and block == now.block else ""


def _mark(now: _Cutter, step: Step, index: int, block: Any) -> str:
    kind, key = now.kind, _key(step)
    if block != now.block or (key == _PLACE and step.kind == "Unannotate"):
        return ""
    if kind in ("annotate", "cache", "reduction", "tensorize"):
        return kind
    if kind == "bind":
        return kind if key.startswith(_THREADS) else ""
    if kind == "fuse":
        return "cache" if key == _FETCH else "annotate" if key.startswith(("software_pipeline_", "pragma_")) else ""
    return ""


def _type(now: _Cutter, step: Step, index: int, block: Any) -> str:
    return "annotate" if now.kind == "annotate" and block == now.block else ""


_BY_EDIT: Final[dict[str, Callable[[_Cutter, Step, int, Any], str]]] = {
    "tile": _tile,
    "split": _split,
    "reorder": _reorder,
    "fuse": _fuse,
    "bind": _bind,
    "compute_at": _compute_at,
    "inline": _inline,
    "layout": _layout,
    "annotate": _type,
}
_RULES: Final = {kind: _BY_EDIT[row.edit] for kind, row in PRIMITIVES.items() if row.edit in _BY_EDIT} | {
    **dict.fromkeys(("SetScope", "StorageAlign", "RollingBuffer"), _memory),
    **dict.fromkeys(("Annotate", "Unannotate"), _mark),
    "Blockize": _blockize,
    "Tensorize": _tensorize,
}
"""Kinds without a rule always begin an edit."""
