"""The task description d: what a workload is, in words that a person would use."""

from typing import Any

from littledragon.compiler.zoo import Block, Case


def describe(source: Block, case: Case, facts: dict[str, Any]) -> str:
    """The task description d, in ASCII: where it comes from, what it takes and gives, and its steps."""
    steps = [_step(block, facts) for block in facts["blocks"]]
    inputs, outputs = (_arguments(facts, role) for role in ("input", "output"))
    return f"From {source.model.name}: {case.about}. Takes {_join(inputs)}; gives {_join(outputs)}. {'; '.join(steps)}."


def _step(block: dict[str, Any], facts: dict[str, Any]) -> str:
    """One block in words, for example `NT_matmul: sum of products over k (128) in float32`."""
    dtypes = {buffer["name"]: buffer["dtype"] for buffer in facts["buffers"]}
    axes = [f"{a['name'].removeprefix('v_')} ({a['extent']})" for a in block["iterators"] if a["kind"] == "reduce"]
    operators = block["operators"]
    if axes:
        what = (
            "sum of products"
            if {"add", "mul"} <= set(operators)
            else {"add": "sum", "max": "maximum"}.get(operators[0], "reduction")
        )
        return f"{block['name']}: {what} over {_join(axes)} in {_join([dtypes[w['buffer']] for w in block['writes']])}"
    shape = [str(axis["extent"]) for axis in block["iterators"]]
    words = list(dict.fromkeys(_WORDS.get(name, name).replace("cast ", "cast to ") for name in operators))
    return f"{block['name']}: {_join(words) if words else 'copy'} on {' x '.join(shape) or '1'} elements"


_WORDS = {
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "max": "maximum",
    "min": "minimum",
    "fabs": "absolute value",
    "if_then_else": "choose",
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"), "compare"),
}


def _arguments(facts: dict[str, Any], role: str) -> list[str]:
    return [
        f"{b['name']} ({b['dtype']}, {' x '.join(map(str, b['shape']))})" for b in facts["buffers"] if b["role"] == role
    ]


def _join(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"
