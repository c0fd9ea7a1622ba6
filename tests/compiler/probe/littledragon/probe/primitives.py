"""What TVM itself says of its kinds of instructions, for the test of the table of primitives."""

import re
import string
from pathlib import Path
from typing import Any

_NAME = re.compile(rb"(?:[A-Z]{1,3}[a-z]+)+")
_LETTERS = string.ascii_letters.encode()
_LONGEST = 40


def kinds() -> list[str]:
    """Every kind that is registered.

    TVM has no function that lists them, only one that finds a kind by its name. Each name stands in TVM's library as a
    string, perhaps as the end of a longer one: so ask for all capitalised words there.
    """
    import numpy as np
    import tvm

    find = tvm.get_global_func("s_tir.schedule.InstructionKindGet")
    data = np.fromfile(Path(tvm.__file__).parent / "lib" / "libtvm_compiler.so", dtype=np.uint8)
    ends = np.flatnonzero((data[1:] == 0) & (data[:-1] >= ord("a")) & (data[:-1] <= ord("z"))) + 1
    texts = [data[end - _LONGEST : end].tobytes() for end in ends[ends > _LONGEST]]
    tails = {text[len(text.rstrip(_LETTERS)) :] for text in texts}
    words = {tail[i:] for tail in tails for i, letter in enumerate(tail) if 65 <= letter <= 90}
    names = [word.decode() for word in words if _NAME.fullmatch(word)]
    return sorted(name for name in names if _registered(find, name))


def _registered(find: Any, name: str) -> bool:
    try:
        return str(find(name).name) == name
    except AttributeError:
        return False


def functions() -> list[str]:
    """What TVM's schedule can do, by the names of its functions."""
    import tvm  # noqa: F401  its library registers them
    import tvm_ffi

    prefix = "s_tir.schedule.Schedule"
    names = map(str, tvm_ffi.registry.list_global_func_names())
    return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))


def signatures(kinds: list[str]) -> dict[str, dict[str, Any]]:
    """By kind: the number of inputs (null: any), that of attributes, and the signature of what applies it.

    Learnt from the errors that TVM raises for wrong numbers and for values that no parameter takes.
    """
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Instruction, Trace
    from tvm.s_tir.schedule.instruction import InstructionKind

    a = te.placeholder((4,), name="A")
    module = tvm.IRModule({"main": te.create_prim_func([a, te.compute((4,), lambda i: a[i] + 1.0, name="B")])})

    def error(kind: str, inputs: int, attrs: int) -> str:
        wrong = Instruction(InstructionKind.get(kind), [tvm.cpu()] * inputs, [module] * attrs, [])
        try:
            Trace([wrong], {}).apply_to_schedule(Schedule(module), False)
        except (TypeError, ValueError) as raised:
            return str(raised)
        return ""

    def number(pattern: str, text: str) -> int | None:
        match = re.search(pattern, text)
        return int(match[1]) if match else None

    found = {}
    for kind in kinds:
        inputs = number(r"kNumInputs == inputs\.size\(\) \((\d+) vs", error(kind, 99, 99))
        given = 2 if inputs is None else inputs
        attrs = number(r"kNumAttrs == attrs\.size\(\) \((\d+) vs", error(kind, given, 99))
        signature = re.search(r"`(\(0: .*?)`", error(kind, given, attrs or 0))
        found[kind] = {"inputs": inputs, "attrs": attrs, "signature": signature[1] if signature else ""}
    return found


def intrinsics(names: list[str]) -> list[str]:
    """Those that TVM does not know."""
    import tvm

    known = {str(name) for name in tvm.ir.Op.list_op_names()}
    return [name for name in names if f"tirx.{name}" not in known]


def maps() -> list[list[Any]]:
    """Index maps of many forms: what each is, and its text."""
    import tvm
    from tvm import tirx
    from tvm.tirx import IndexMap
    from tvm_ffi import Array

    i, j, other = tirx.Var("i", "int32"), tirx.Var("j", "int64"), tirx.Var("i", "int32")
    both = Array([i])
    shared = i + 1
    floats = [0.1, 1e10, -0.0, 65504.0, 1e15, 2.0**53 - 1, 2.0**53, 1e17, 1e-7, 1e300, float("inf"), float("-inf")]
    made = {
        "divided": IndexMap.from_func(lambda i, j: (i // 16, j // 16, i % 16, j % 16), index_dtype="int32"),
        "wide": IndexMap.from_func(lambda i, j: (i // 16, j, i % 16)),
        "inverse": IndexMap.from_func(lambda i: (i // 4, i % 4), inverse_index_map=lambda i, j: i * 4 + j),
        "inverted": IndexMap.from_func(lambda i, j: (j, i // 8, i % 8), index_dtype="int32").inverse([64, 64]),
        "mixed": IndexMap([i, j], [tirx.Cast("int64", i) + j, j % 4, i], None),
        "shared": IndexMap([i], [shared // 3, shared % 3, shared], None),
        "one list": IndexMap(both, both, None),
        "one name": IndexMap([i, other], [other, i - other], None),
        "nothing": IndexMap([], [], None),
        "constant": IndexMap([], [tirx.IntImm("int64", 1), tirx.const(True, "bool"), tirx.const(3, "uint8")], None),
        "floats": IndexMap(
            [i], [tirx.FloatImm(t, v) for t in ("float32", "float64", "float16") for v in floats[2:4]], None
        ),
        "doubles": IndexMap([i], [tirx.FloatImm("float64", value) for value in floats], None),
        "conditions": IndexMap(
            [i], [tirx.Select(i < 3, i, shared), tirx.any(i <= 2, i > 5, i == 3, i != 7, i >= 9), tirx.Not(i < 1)], None
        ),
        "truncating": IndexMap([i], [tirx.truncdiv(i, 3), tirx.truncmod(i, 2), tirx.min(i, 3), tirx.max(i, 4)], None),
        "calls": IndexMap(
            [i], [i << 2, i >> 1, i & 3, i | 4, i ^ 5, ~i, tirx.if_then_else(i < 3, i, 0), tirx.exp(1.0)], None
        ),
    }
    return [[name, str(tvm.ir.save_json(index_map))] for name, index_map in made.items()]


def refused_maps() -> list[list[str]]:
    """Index maps that no trace needs: the node that none may hold, and the text."""
    import tvm
    from tvm import tirx
    from tvm.tirx import IndexMap

    i, inner = tirx.Var("i", "int32"), tirx.Var("z", "int32")
    buffer = tirx.decl_buffer((4,), "int32")
    made = {
        "tirx.Let": tirx.Let(inner, i + 1, inner * 2),
        "tirx.BufferLoad": buffer[i],
        "tirx.Ramp": tirx.Ramp(i, 1, 4),
        "tirx.Broadcast": tirx.Broadcast(i, 4),
        "tirx.StringImm": tirx.call_pure_extern("int32", "f", i),
        "intrinsic": tirx.call_intrin("int32", "tirx.tvm_thread_allreduce", i),
        "sampled": tirx.Var("q", "int32"),
    }
    return [[name, str(tvm.ir.save_json(IndexMap([i], [expression], None)))] for name, expression in made.items()]
