"""F(M): the shape of what `compiler.features` reads off a TensorIR module, as a JSON Schema (draft 2020-12)."""

from typing import Any, Final


def _object(about: str, **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any], about: str) -> dict[str, Any]:
    return {"type": "array", "items": items, "description": about}


def _text(about: str, *choices: str) -> dict[str, Any]:
    return {"type": "string", "description": about, **({"enum": list(choices)} if choices else {})}


def _count(about: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "description": about}


_EXTENT: Final = {"type": ["integer", "null"], "minimum": 0, "description": "Trip count; null where not constant."}
_INDEX: Final = {"type": "integer", "minimum": 0}
_ANNOTATIONS: Final = {
    "type": "object",
    "additionalProperties": {"type": ["integer", "string"]},
    "description": "Annotations by key, for example pragma_auto_unroll_max_step.",
}

_LOOP: Final = _object(
    "A loop. Names may repeat in sibling nests; `index` does not.",
    index=_count("Position in `loops`, which is the order of the program."),
    name=_text("The loop variable's name."),
    extent=_EXTENT,
    kind=_text("How it runs.", "serial", "parallel", "vectorized", "unrolled", "thread"),
    thread={"type": ["string", "null"], "description": "For kind thread: the tag, for example blockIdx.x."},
    outer=_list(_INDEX, "Indices of the loops around it, outermost first."),
    annotations=_ANNOTATIONS,
)

_ITERATOR: Final = _object(
    "One iterator of a block.",
    name=_text("Its name inside the block."),
    kind=_text("What order is allowed.", "spatial", "reduce", "opaque"),
    extent=_EXTENT,
    binding=_text("The expression of loop variables that it is bound to."),
)

_REGION: Final = _object(
    "What a block reads or writes of one buffer.",
    buffer=_text("The buffer's name."),
    indices=_list({"type": "string"}, "One expression a dimension; `a:b` where more than one element is touched."),
    indirect={"type": "boolean", "description": "Whether an index is itself loaded from a buffer."},
    access=_text(
        "How neighbours along the block's last spatial iterator of more than one value touch the buffer: at neighbours,"
        " at a constant distance, all at one element, or none of these. Gathered, whatever the rest of the indices do,"
        " where one of them is loaded.",
        "coalesced",
        "strided",
        "broadcast",
        "gathered",
        "irregular",
    ),
    stride={"type": ["integer", "null"], "description": "That distance in elements; null where it is not constant."},
)

_BLOCK: Final = _object(
    "A block: the body of a loop nest, in the order of the program; the root block is left out.",
    name=_text("Its name, unique in the function."),
    loops=_list(_INDEX, "Indices of the loops around it, outermost first."),
    iterators=_list(_ITERATOR, "Its iterators, in order."),
    iterations=_count("Points of its iteration domain, times those of the blocks around it."),
    reads=_list(_REGION, "What it reads, itself not counted."),
    writes=_list(_REGION, "What it writes."),
    producers=_list({"type": "string"}, "Blocks that write what it reads."),
    has_init={"type": "boolean", "description": "Whether it initialises its own reduction."},
    operators=_list({"type": "string"}, "Operators that make its values, each once: add, mul, exp, cast float16, …"),
    flops=_count("Arithmetic operations on loaded values over all iterations, as the program is written."),
    annotations=_ANNOTATIONS,
)

_BUFFER: Final = _object(
    "A buffer: the arguments in order, then the intermediates as the program allocates them.",
    name=_text("Its name; a number is added where two buffers have the same."),
    shape=_list({"type": "integer", "minimum": 0}, "Its extents."),
    dtype=_text("Type of its elements, for example float16."),
    scope=_text("Where it lives: global, shared, local, wmma.accumulator, …"),
    role=_text("Whose it is.", "input", "output", "intermediate"),
)

_REDUCTION: Final = _object(
    "A reduction axis.",
    block=_text("The block that reduces."),
    axis=_text("The iterator's name."),
    extent=_EXTENT,
)

FEATURES: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "features",
    **_object(
        "F(M) of one function.",
        loops=_list(_LOOP, "All loops."),
        blocks=_list(_BLOCK, "All blocks but the root."),
        buffers=_list(_BUFFER, "All buffers."),
        reductions=_list(_REDUCTION, "All reduction axes."),
        flops=_count("Arithmetic operations of one run: the sum over the blocks."),
        bytes=_count("Bytes of all inputs and outputs, each counted once."),
        intensity={"type": "number", "minimum": 0, "description": "flops / bytes."},
    ),
}
"""What `compiler.features.features` returns."""
