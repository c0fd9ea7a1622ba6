"""A text admitted, and its trace replayed once more by TVM alone. Runs in a child."""

from typing import Any

from littledragon.compiler import traces
from littledragon.schemas import tsel


def replay(module: str, text: str, target: dict[str, Any]) -> dict[str, Any]:
    """The gate that refused a text and why; of one that passed, whether TVM records the tree that was decoded and
    builds the module that was admitted."""
    answer = traces.apply(module, text, target)
    told = {"failed": answer["failed"], "reason": answer["reason"], "tree": None, "module": None}
    if answer["failed"] is None:
        import tvm
        from tvm.s_tir import Schedule
        from tvm.s_tir.schedule import Trace
        from tvm_ffi import structural_hash

        decoded = tsel.decode(text)
        schedule = Schedule(tvm.ir.load_json(module), seed=7)
        Trace.apply_json_to_schedule(tvm.ir.load_json(answer["trace"]), schedule)
        recorded = tsel.canonical(str(tvm.ir.save_json(schedule.trace.as_json())))
        whole = recorded if decoded.graph.postproc is None else _before(recorded)
        told["tree"] = recorded == answer["trace"] and whole == decoded.trace
        told["module"] = f"{structural_hash(schedule.mod) & (1 << 64) - 1:016x}" == answer["module_hash"]
    return told


def _before(trace: str) -> str:
    """The part of a trace before its boundary."""
    import tvm

    steps, decided = tvm.ir.load_json(trace)
    kinds = [str(step[0]) for step in steps]
    end = kinds.index("EnterPostproc")
    kept = [[*step] for step in steps[:end]]
    decisions = [[*pair] for pair in decided if int(pair[0]) < end]
    return tsel.canonical(str(tvm.ir.save_json([kept, decisions])))
