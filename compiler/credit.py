"""How far a text comes, for a reward that gives partial credit: the first gate that refuses it, and how near it was.

The text is a model's, so it may be anything. What needs no TVM is told here; the rest happens in a child, which may
die or be late: that is a verdict of the text like any other.
"""

import tempfile
from dataclasses import dataclass
from typing import Any

from littledragon.compiler import children
from littledragon.schemas import tsel
from littledragon.schemas.gates import Gate


@dataclass(frozen=True)
class Credit:
    """The ingredients of a reward, as far as the compiler knows them; building and running come later.

    failed: the first gate of parsed … encoded that refuses the text; None where it passes all of them.
    reason: why, in one line.
    f_div: the share of the tiles in the text whose factors multiply to their extent; 0 without tiles.
    emitted: instructions that a well-formed text spells; those of derived post-processing do not count.
    applied: how many of them could be applied.
    answer: what `compiler.traces.apply` says of a text that passes: the module to build, its hash, its trace.
    """

    failed: Gate | None
    reason: str | None
    f_div: float
    emitted: int = 0
    applied: int = 0
    answer: dict[str, Any] | None = None

    @property
    def p(self) -> float:
        """The fraction of the emitted instructions that could be applied."""
        return self.applied / self.emitted if self.emitted else 0.0


def credit(
    text: str | bytes, module: str, target: dict[str, Any], *, deadline_s: float, child: children.Child | None = None
) -> Credit:
    """The credit of a text for a program.

    Args:
        text: what the model wrote.
        module: M0, as `tvm.ir.save_json`.
        target: the TVM target.
        deadline_s: for the part with TVM. In a fresh process its imports count, 2 s, and 12 s more where the text
            asks for tensor intrinsics.
        child: a lasting child to use instead of a fresh process. It is killed on the deadline all the same, and
            starts again with the next call.

    Raises:
        ChildError: kind `raised`: the module or the target is none. Nothing that the text holds raises.
    """
    found = tsel.diagnose(text)
    if found.gate is not None:
        return Credit(found.gate, found.reason, found.f_div)
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    with tempfile.NamedTemporaryFile(prefix="dragon-credit-") as progress:
        progress.write(bytes(8))
        progress.flush()
        arguments: dict[str, Any] = {"module": module, "text": text, "target": target, "progress": progress.name}
        call = children.once if child is None else child.call
        try:
            answer = call("littledragon.compiler.traces:apply", deadline_s=deadline_s, **arguments)
        except children.ChildError as error:
            if error.kind == "raised":
                raise
            progress.seek(0)
            applied = int.from_bytes(progress.read(8), "little")
            return Credit("applicable", str(error), found.f_div, found.instructions, applied)
    return Credit(
        answer["failed"],
        answer["reason"],
        found.f_div,
        answer["emitted"],
        answer["applied"],
        None if answer["failed"] else answer,
    )
