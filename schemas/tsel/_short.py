"""What both notations leave out, because the rest of a text tells it."""

from typing import Any

from littledragon.schemas.graph import Instruction


def implied_split(instruction: Instruction, before: Instruction | None) -> bool:
    """Whether an instruction splits the loop of the tile sampled just before it, by that tile's numbers."""
    return (
        instruction.kind == "Split"
        and before is not None
        and before.kind.endswith("Tile")
        and instruction.inputs[1:] == before.outputs
        and instruction.inputs[0] == before.inputs[0]
    )


def probabilities(candidates: Any) -> list[float]:
    """Even ones, as TVM's rules write them."""
    return [1.0 / len(candidates)] * len(candidates) if isinstance(candidates, list) and candidates else []
