"""From a zoo block to tuning tasks: export, legalise, fuse, extract, normalise, and judge what is worth tuning."""

from typing import Any

from littledragon.compiler import features as tir
from littledragon.compiler import inputs, signature
from littledragon.compiler.zoo import Block, block
from littledragon.schemas.ids import canonical_json, content_id
from littledragon.schemas.tables import EXTRACTIONS

Row = dict[str, Any]

LEAST_ITERATIONS = 4096
MOST_BYTES = 256 << 20
MOST_FLOPS = 300e9


def extract(block_id: str, target: dict[str, Any]) -> list[Row]:
    """The tasks of one zoo block as rows of `extractions` (without `unit_id`), in order of their names.

    A block that cannot be lowered, or has no task, gives one rejected row. Runs in a child.

    Raises:
        KeyError: there is no such block.
    """
    source = block(block_id)
    try:
        tasks = _tasks(source, target)
    except Exception as error:  # TVM raises whatever its passes raise: the block is at fault, not the run
        detail = f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}"
        return [_row(source, state="rejected", reason="lowering_failed", detail=detail[:500])]
    if not tasks:
        return [_row(source, state="rejected", reason="no_task", detail="extraction left nothing to tune")]
    return [_task_row(source, name, normalise(tasks[name])) for name in sorted(tasks)]


def _tasks(source: Block, target: dict[str, Any]) -> dict[str, Any]:
    """Task name → module, as extracted."""
    import tvm
    from tvm import relax
    from tvm.s_tir.meta_schedule.relax_integration import extract_tasks

    passes = tvm.transform.Sequential(
        [
            relax.transform.FuseTransposeMatmul(),  # X·Wᵀ would fall in two tasks without it
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    )
    where = tvm.target.Target(target)
    with where:
        module = passes(source.build(**source.shape))
    return {str(t.task_name): t.dispatched[0] for t in extract_tasks(module, where, params={})}


def normalise(module: Any) -> Any:
    """The module with one function, `main`, without hints of the passes, its names those that it prints with.

    Printing and parsing again makes names unique, so that script and features speak of the same things; a
    module that does not survive that is kept as it is.
    """
    import tvm
    from tvm_ffi import structural_equal

    function = tir.main(module)
    for name in list(function.attrs.keys()):
        if str(name) not in ("global_symbol", "tirx.noalias", "s_tir"):
            function = function.without_attr(str(name))
    plain = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    parsed = tvm.script.from_source(plain.script())
    return parsed if structural_equal(parsed, plain) else plain


def _task_row(source: Block, task: str, module: Any) -> Row:
    """The row of one task."""
    import tvm
    from tvm_ffi import structural_hash

    facts = tir.features(module)
    kinds, extents = signature.cell(module, facts)
    module_hash = f"{structural_hash(module) & (1 << 64) - 1:016x}"
    trivial = triviality(facts)
    arguments = [b for b in facts["buffers"] if b["role"] != "intermediate"]
    return _row(
        source,
        workload_id=content_id("w", {"module": module_hash}) if trivial is None else None,
        state="ok" if trivial is None else "rejected",
        reason=None if trivial is None else "trivial",
        detail=trivial,
        task=task,
        description=describe(source, facts),
        module=str(tvm.ir.save_json(module)),
        script=str(module.script()),
        module_hash=module_hash,
        features=canonical_json(facts),
        dtype=arguments[0]["dtype"],
        flops=float(facts["flops"]),
        bytes_min=facts["bytes"],
        inputs=canonical_json(inputs.specs(module, facts)),
        signature=kinds,
        extents=extents,
    )


def _row(source: Block, **values: Any) -> Row:
    row: Row = dict.fromkeys(column.name for column in EXTRACTIONS.columns)
    row |= {"family": source.family, "operator": source.operator, "block_id": source.id}
    row |= {"model": source.model, "source": source.source, "licence": source.licence}
    return row | values


def triviality(facts: dict[str, Any]) -> str | None:
    """Why a module is not worth tuning, or None: the static rules, applied to F(M0)."""
    indirect = any(read["indirect"] for block in facts["blocks"] for read in block["reads"])
    iterations = sum(block["iterations"] for block in facts["blocks"])
    if facts["flops"] == 0 and not indirect:
        return "copies, casts or moves elements only"
    if not (facts["reductions"] or indirect or len(facts["blocks"]) > 1):
        return "one element-wise block without reduction or indirect access"
    if iterations < LEAST_ITERATIONS:
        return f"{iterations} iterations, fewer than {LEAST_ITERATIONS}"
    if facts["bytes"] > MOST_BYTES:
        return f"{facts['bytes']} bytes, more than {MOST_BYTES}"
    if facts["flops"] > MOST_FLOPS:
        return f"{facts['flops']} operations, more than {MOST_FLOPS:.0f}"
    return None


def describe(source: Block, facts: dict[str, Any]) -> str:
    """The task description d, in ASCII: where it comes from, what it takes and gives, and its steps."""
    steps = [_step(block, facts) for block in facts["blocks"]]
    inputs, outputs = (_arguments(facts, role) for role in ("input", "output"))
    return f"From {source.model}: {source.about}. Takes {_join(inputs)}; gives {_join(outputs)}. {'; '.join(steps)}."


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
