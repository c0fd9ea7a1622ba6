"""One line for each edit, from its instructions alone.

Blocks are called as the program calls them where the trace looks them up by name. Loops have no names in a trace:
`the second loop of C` is output 1 of GetLoops. Numbers stand in computations (`8 * 32 * 4 = 1024`) or not at all.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from littledragon.schemas.graph import Edit, Instruction
from littledragon.schemas.tsel._maps import REFERENCE

_ORDINALS = (
    *("first", "second", "third", "fourth", "fifth", "sixth"),
    *("seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth"),
)


@dataclass
class Names:
    """What to call the blocks and loops that the edits so far have made, by reference."""

    words: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, str] = field(default_factory=dict)
    """The block that a loop belongs to, by the loop's reference; of a block, itself."""

    bases: dict[str, str] = field(default_factory=dict)
    """The block of the program that a block was made from: copies of copies are called after it."""

    def of(self, value: Any) -> str:
        return self.words.get(value, "a value") if isinstance(value, str) else "a value"

    def base(self, value: Any) -> str:
        return self.bases.get(value, "") if isinstance(value, str) else ""

    def block(self, value: Any) -> str:
        return self.blocks.get(value, "the program") if isinstance(value, str) else "the program"


def _nth(index: int) -> str:
    return _ORDINALS[index] if index < len(_ORDINALS) else "inner"


def summary(edit: Edit, names: Names) -> str:
    """The summary of a well-formed edit; `names` learns what its outputs are called."""
    sentences: list[str] = []
    for step, instruction in enumerate(edit.instructions):
        sentence = _sentence(instruction, names)
        if sentence and sentence not in sentences:
            sentences.append(sentence)
        for i in range(len(instruction.outputs)):
            reference, word = f"{edit.id}.{step}.{i}", _output(instruction, i, names)
            names.words[reference] = word
            names.blocks[reference] = word
            source = instruction.inputs[0] if instruction.inputs else None
            if instruction.outputs[i] == "L" and source is not None:
                names.blocks[reference] = names.block(source)
            names.bases[reference] = names.base(source) or word
    if not sentences:
        return "Look up blocks and loops."
    shown = sentences if len(sentences) <= 4 else [*sentences[:3], "and so on"]
    text = "".join(c if c.isprintable() else "?" for c in "; ".join(shown))
    return f"{text[0].upper()}{text[1:]}."


def _output(instruction: Instruction, i: int, names: Names) -> str:
    """What to call output `i`."""
    kind, inputs, attrs = instruction.kind, instruction.inputs, instruction.attrs
    block = names.block(inputs[0]) if inputs else ""
    base = (names.base(inputs[0]) if inputs else "") or "the program"
    if kind == "GetSBlock":
        return str(attrs[0])
    if kind == "GetLoops":
        return f"the {_nth(i)} loop of {block}"
    if kind == "GetChildBlocks":
        return f"the {_nth(i)} block in {block}"
    if kind in ("Split", "LoopPartition"):
        return (
            f"the {_nth(i)} part of {names.of(inputs[0])}" if _whole(inputs, names) else f"a part of a loop of {block}"
        )
    if kind in ("Fuse", "Merge", "AddUnitLoop"):
        return f"the fused loop of {block}"
    if kind in ("CacheRead", "CacheWrite"):
        return f"the {attrs[1]} copy of {base}'s {'input' if kind == 'CacheRead' else 'output'}"
    fixed = {
        "ReIndex": f"the reindexed copy for {base}",
        "Blockize": f"the tile of {block}",
        "DecomposeReduction": f"the initialisation of {block}",
        "SampleComputeLocation": f"the place drawn for {block}",
        "RFactor": f"the partial reduction of {block}",
        "GetProducers": f"the producer of {block}",
        "GetConsumers": f"the consumer of {block}",
        "GetOutputBlocks": f"an output block of {block}",
    }
    return fixed.get(kind, "a sampled number" if instruction.outputs[i] == "E" else f"a new block for {block}")


def _whole(inputs: tuple[Any, ...], names: Names) -> bool:
    """Whether a loop is one that GetLoops gave: the parts of a part are not counted."""
    return " loop of " in names.of(inputs[0]) and " part of " not in names.of(inputs[0])


def _split(inputs: tuple[Any, ...], first: str) -> str:
    return f"split {first} by {'fixed factors' if any(isinstance(f, int) for f in inputs[1:]) else 'a sampled factor'}"


def _sentence(instruction: Instruction, names: Names) -> str:
    """What an instruction does, or nothing where it only looks something up."""
    kind, inputs, attrs, decision = instruction.kind, instruction.inputs, instruction.attrs, instruction.decision
    first = names.of(inputs[0]) if inputs else ""
    block = names.block(inputs[0]) if inputs else ""
    second = names.of(inputs[1]) if len(inputs) > 1 else ""
    if isinstance(decision, dict):
        extent, factors = decision["extent"], decision["factors"]
        full = [*factors, extent // math.prod(factors)] if extent % math.prod(factors) == 0 else factors
        return f"split {first} into {' * '.join(map(str, full))} = {extent}"
    if kind == "Split":
        sampled = all(isinstance(f, str) and REFERENCE.fullmatch(f) for f in inputs[1:])
        return "" if sampled else _split(inputs, first)
    if kind == "Annotate":
        return f"mark {first} with {attrs[0]}"
    if kind == "Unannotate":
        return f"remove the mark {attrs[0]} from {first}"
    if kind in ("CacheRead", "CacheWrite"):
        side = "an input" if kind == "CacheRead" else "the output"
        return f"keep {side} of {first} in {attrs[1]} memory"
    if kind in ("ComputeAt", "ReverseComputeAt"):
        return f"compute {first} under {second}"
    sentences = {
        "LoopPartition": f"partition {first}",
        "Reorder": f"reorder the loops of {block}",
        "Fuse": f"fuse loops of {block}",
        "Merge": f"merge loops of {block}",
        "Bind": f"bind {first} to {attrs[0] if attrs else ''}",
        "Parallel": f"run {first} in parallel",
        "Vectorize": f"vectorise {first}",
        "Unroll": f"unroll {first}",
        "SetScope": f"keep the output of {first} in {attrs[1] if len(attrs) > 1 else ''} memory",
        "StorageAlign": f"pad the rows of {first} in memory",
        "ComputeInline": f"inline {first} into its consumers",
        "ReverseComputeInline": f"inline {first} into its producer",
        "ReIndex": f"reindex a buffer of {first}",
        "TransformLayout": f"change the layout of a buffer of {first}",
        "TransformBlockLayout": f"change the iteration layout of {first}",
        "RFactor": f"factor the reduction at {first}",
        "DecomposeReduction": f"separate the initialisation of {first} from its update",
        "Blockize": f"make a block of the tile under {first}",
        "Tensorize": f"compute {first} with {attrs[0] if attrs else ''}",
        "EnterPostproc": "enter post-processing",
    }
    looks = kind.startswith(("Get", "Sample"))
    return sentences.get(kind, "" if looks else f"apply {kind} to {first}")
