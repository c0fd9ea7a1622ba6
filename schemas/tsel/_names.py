"""What blocks and loops are called in summaries.

Blocks that the trace looks up are called as the program calls them, copies and other new blocks after them. Loops
have no names in a trace: `the second loop of C` is output 1 of GetLoops, and a tile's loops are its parts.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from littledragon.schemas.graph import Instruction

_ORDINALS: Final = (
    *("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh"),
    *("twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth"),
)
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,79}")
_CHILD: Final = re.compile(r"the (\w+) block in ([\w.]+)")
_COPY: Final = re.compile(r"the (\S+) copy of (.+)'s ([a-z ]+)")
_MAX_WORDS: Final = 130
_MAX_LISTED: Final = 4


def word(name: Any, otherwise: str = "a block") -> str:
    """A name as a word of prose, or other words where it is none."""
    return name if isinstance(name, str) and _WORD.fullmatch(name) else otherwise


_SCOPES: Final = {"shared.dyn": "shared", "warp": "lane", **{scope: scope for scope in ("global", "shared", "local")}}
"""What lanes share TVM calls warp memory, which has nothing to do with how loops run."""


def memory(scope: Any) -> str:
    """A storage scope in a word: `shared`, `wmma.matrix_a`."""
    return _SCOPES.get(scope) or (word(scope, "other") if "." in scope else "other")


def nth(index: int) -> str:
    """`first` for 0."""
    return _ORDINALS[index] if index < len(_ORDINALS) else "inner"


def listed(things: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; of many, the first ones and others."""
    if len(things) > _MAX_LISTED:
        things = [*things[: _MAX_LISTED - 1], "others"]
    return f"{', '.join(things[:-1])} and {things[-1]}" if len(things) > 1 else "".join(things)


def _ordinals(which: Sequence[str]) -> str:
    """`first and third`, `first to seventh`."""
    if len(which) > 2 and which[0] in _ORDINALS:
        start = _ORDINALS.index(which[0])
        if tuple(which) == _ORDINALS[start : start + len(which)]:
            return f"{which[0]} to {which[-1]}"
    return listed(which).replace(" and others", " and other")


def things(names: Sequence[str]) -> str:
    """Names in one phrase, blocks of one parent together: `the first and third blocks in root`."""
    found = [_CHILD.fullmatch(name) for name in names]
    parents = {match[2] if match else "" for match in found}
    if len(names) < 2 or len(parents) > 1 or "" in parents:
        return listed(names)
    return f"the {_ordinals([match[1] for match in found if match])} blocks in {parents.pop()}"


class _Loop(NamedTuple):
    """`the second part of the first loop of C`: block is the block's name in the trace."""

    part: str
    core: str
    block: str

    @property
    def inside(self) -> str:
        """Without its block."""
        if not self.core:
            return "an inner loop"
        return f"the {self.part} part of the {self.core}" if self.part else f"the {self.core}"


class Names:
    """What to call the blocks and loops that the instructions so far have made, by their names in the trace."""

    def __init__(self) -> None:
        self.blocks: dict[Any, str] = {}
        self.bases: dict[Any, str] = {}
        """The block of the program that a block was made from: copies of copies are called after it."""
        self.loops: dict[Any, _Loop] = {}
        self.tiles: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        """The decisions of sampled tiles, by the names of their numbers."""
        self.drawn: dict[Any, Any] = {}
        """The decisions of sampled locations."""
        self.numbers: dict[Any, Any] = {}
        self.written: set[str] = set()
        """Blocks that write a copy back."""
        self.joined: dict[str, int] = {}

    def of(self, name: Any) -> str:
        """What to call a block or a loop."""
        if not isinstance(name, str):
            return "a value"
        if name in self.loops:
            loop = self.loops[name]
            return f"{loop.inside} of {self.of(loop.block)}"
        return self.blocks.get(name, "a block")

    def inside(self, loop: Any) -> str:
        """What to call a loop where its block is known."""
        return self.loops[loop].inside if isinstance(loop, str) and loop in self.loops else "a loop"

    def owner(self, name: Any) -> str:
        """The block that a loop belongs to; of a block, itself."""
        if not isinstance(name, str):
            return ""
        return self.loops[name].block if name in self.loops else name

    def base(self, block: Any) -> str:
        return self.bases.get(block, "the program") if isinstance(block, str) else "the program"

    def value(self, value: Any) -> Any:
        """A sampled number looked up; a number whose type is spelled out as itself."""
        if isinstance(value, dict) and len(value) == 1:
            return next(iter(value.values()))
        return self.numbers.get(value, value) if isinstance(value, str) else value

    def several(self, loops: Sequence[Any]) -> str:
        """Loops in one phrase: `the first and second loops of C`, `the first parts of the loops of C`."""
        blocks = {self.owner(loop) for loop in loops}
        if len(loops) == 1 or len(blocks) > 1:
            return listed([self.of(loop) for loop in loops])
        return f"{self.mine(loops, whole=True)} of {self.of(blocks.pop())}"

    def mine(self, loops: Sequence[Any], whole: bool = False) -> str:
        """The same of loops of one block, which is known; of which loops they are parts only where `whole`."""
        known = [self.loops[loop] for loop in loops if isinstance(loop, str) and loop in self.loops]
        cores = [loop.core.removesuffix(" loop") for loop in known if loop.core.endswith(" loop") and not loop.part]
        parts = [loop for loop in known if loop.part]
        phrases = []
        if cores:
            phrases.append(f"the {_ordinals(cores)} loop{'s' if len(cores) > 1 else ''}")
        if len(parts) == 1:
            phrases.append(parts[0].inside if whole else f"the {parts[0].part} part")
        elif parts:
            which = listed(list(dict.fromkeys(loop.part for loop in parts)))
            of = _ordinals(list(dict.fromkeys(loop.core.removesuffix(" loop") for loop in parts)))
            phrases.append(f"the {which} parts" + (f" of the {of} loops" if whole else ""))
        return listed(phrases) or "inner loops"

    def copies(self, blocks: Sequence[str]) -> str:
        """Blocks in one phrase: `the shared copies of C's output and first input`."""
        names = [self.of(block) for block in blocks]
        found = [_COPY.fullmatch(name) for name in names]
        if len(blocks) == 1 or len({(m[1], m[2]) if m else None for m in found}) != 1 or found[0] is None:
            return listed(names)
        if len(blocks) > 2:
            return f"{found[0][2]}'s {found[0][1]} copies"
        return f"the {found[0][1]} copies of {found[0][2]}'s {listed([m[3] for m in found if m])}"

    def buffer(self, step: Instruction) -> str:
        """What to call the buffer that a step copies or moves."""
        block = step.inputs[1] if step.kind in ("ReadAt", "WriteAt") else step.inputs[0]
        if step.kind == "CacheIndex":
            return f"the indices of {self.of(block)}"
        index = step.attrs[0]
        place = f"{nth(index)} " if isinstance(index, int) and index >= 0 else ""
        if step.kind in ("CacheRead", "ReindexCacheRead", "ReadAt") or _side(step) == "read":
            return f"the {place}input of {self.base(block)}"
        if step.kind == "CacheInplace":
            return f"the {place}buffer of {self.base(block)}"
        what = f"{place}output" if index else "output"
        return f"the {what} of {self.of(block) if step.kind == 'SetScope' else self.base(block)}"

    def learn(self, step: Instruction) -> None:
        """Give names to what an instruction makes."""
        kind, outputs, decision = step.kind, step.outputs, step.decision
        source = step.inputs[0] if step.inputs else None
        if kind == "SampleCategorical":
            candidates = step.attrs[0] if step.attrs else []
            if isinstance(decision, int) and isinstance(candidates, list) and 0 <= decision < len(candidates):
                self.numbers.update(dict.fromkeys(outputs, candidates[decision]))
        elif isinstance(decision, dict):
            self.tiles[outputs] = decision
        elif kind == "SampleComputeLocation":
            self.drawn.update(dict.fromkeys(outputs, decision))
            self.loops.update(dict.fromkeys(outputs, _Loop("", "", self.owner(source))))
        elif outputs and outputs[0][:1] == "l":
            self._loops(step, self.owner(source))
        else:
            for i, name in enumerate(outputs):
                called = self._block(step, i, source)
                self.blocks[name] = called if len(called) <= _MAX_WORDS else "a block"
                own = kind in ("GetSBlock", "GetChildBlocks", "GetProducers", "GetConsumers", "GetOutputBlocks")
                self.bases[name] = self.blocks[name] if own else self.base(self.owner(source))

    def _loops(self, step: Instruction, block: str) -> None:
        parent = self.loops.get(step.inputs[0])
        for i, name in enumerate(step.outputs):
            if step.kind == "GetLoops":
                loop = _Loop("", f"{nth(i)} loop", block)
            elif step.kind in ("Split", "LoopPartition"):
                whole = parent is not None and parent.core and not parent.part
                loop = _Loop(nth(i), parent.core, block) if parent is not None and whole else _Loop("", "", block)
            elif step.kind == "AddUnitLoop":
                loop = _Loop("", "unit loop", block)
            elif len(step.inputs) == 1 and parent is not None:
                loop = parent
            else:
                count = self.joined.get(block, 0)
                self.joined[block] = count + 1
                loop = _Loop("", f"{nth(count)} joined loop" if count else "joined loop", block)
            self.loops[name] = loop

    def _block(self, step: Instruction, i: int, source: Any) -> str:
        kind = step.kind
        if kind == "GetSBlock":
            return word(step.attrs[0] if step.attrs else "")
        block = self.of(self.owner(source))
        if kind in ("CacheRead", "CacheWrite", "ReindexCacheRead", "ReindexCacheWrite", "ReadAt", "WriteAt"):
            if "Write" in kind:
                self.written.update(step.outputs)
            base, _, what = self.buffer(step).removeprefix("the ").partition(" of ")
            return f"the {memory(step.attrs[1])} copy of {what}'s {base}"
        if kind == "ReIndex":
            side = _side(step)
            index = step.attrs[0]
            place = f"{nth(index)} " if isinstance(index, int) and index >= 0 and (index or side == "read") else ""
            return f"the rearranged {place}{'input' if side == 'read' else 'output'} of {block}"
        patterns = {
            "GetChildBlocks": f"the {nth(i)} block in {block}",
            "GetProducers": f"what {block} reads" if len(step.outputs) == 1 else f"the {nth(i)} producer of {block}",
            "GetConsumers": f"what reads {block}" if len(step.outputs) == 1 else f"the {nth(i)} consumer of {block}",
            "GetOutputBlocks": f"the {nth(i)} output of {block}",
            "Blockize": f"the outer block of {block}",
            "DecomposeReduction": f"the initialisation of {block}",
            "RFactor": f"the partial results of {block}",
        }
        return patterns.get(kind, f"a new block for {block}")


def _side(step: Instruction) -> str:
    """Whether a step names a buffer by where its block reads or writes it."""
    side = step.attrs[1] if len(step.attrs) > 1 else None
    return "read" if side == 0 else "write" if side == 1 else ""
