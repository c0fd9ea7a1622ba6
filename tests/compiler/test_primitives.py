"""The table of primitives against TVM's own list of instruction kinds, and index maps as TVM writes them.

Every kind can be made through this TVM's Python API, so each has real traces in tests/golden/tsel/primitives.jsonl.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from littledragon.schemas import tsel
from littledragon.schemas.tsel import TVM, TselError, _maps
from littledragon.schemas.tsel._mapnodes import CALLS
from littledragon.schemas.tsel._primitives import NEEDED, PRIMITIVES, Primitive, Slot

GOLDEN = Path(__file__).parents[1] / "golden" / "tsel"

NO_PRIMITIVES = {
    *("Copy", "ForkSeed", "Get", "GetFuncWorkingOn", "GetMod", "GetSRef", "GetState", "GetTrace", "RemoveRV", "Seed"),
    *("State", "StateGetCachedFlags", "StateGetSBlockScope", "StateGetSRef", "StateReplace", "WorkOn"),
}
"""Functions of a schedule that leave no instruction."""

BLOCK, LOOP = "s_tir.SBlockRV", "s_tir.LoopRV"
TYPES = {
    "B": [BLOCK],
    "L": [LOOP],
    "BL": ["ffi.Object"],
    "int": ["ir.IntImm"],
    "flag": ["ir.IntImm"],
    "str": ["str"],
    "map": ["tirx.IndexMap"],
    "map?": ["Optional<tirx.IndexMap>"],
    "value": ["Any"],
    "blocks": [f"Array<{BLOCK}>"],
    "ints": ["Array<int>", "Array<ir.IntImm>"],
    "floats": ["Array<ir.FloatImm>"],
}
"""What TVM calls the type of a slot."""
RESULTS = {"B": BLOCK, "L": LOOP, "E": "ir.PrimExpr"}
DECISIONS = {
    None: [],
    "tile": [["Optional<Array<int>>"]],
    "index": [["Optional<int>"]],
    "location": [["Optional<int>"]],
}


def parameter(slot: Slot) -> list[str]:
    """The types that TVM may give a slot."""
    if slot.many:
        return ["Array<Optional<ir.PrimExpr>>" if slot.type == "factor" else f"Array<{LOOP}>"]
    return ["ffi.Object"] if slot.lists else TYPES[slot.type]


def result(primitive: Primitive) -> str:
    if not primitive.outputs:
        return "void"
    one = RESULTS[primitive.outputs[0]]
    return f"Array<{one}>" if primitive.outputs[1:] in ("*", "=") else one


def parsed(signature: str) -> tuple[list[str], str]:
    """The parameter types, the schedule left out, and the type of the result."""
    parameters, _, returned = signature.removeprefix("(0: s_tir.Schedule").rpartition(") -> ")
    return [part.partition(": ")[2] for part in parameters.split(", ")[1:]], returned


@pytest.mark.slow
def test_the_table_holds_the_kinds_that_tvm_registers(call: Any) -> None:
    assert set(call("probe.primitives:kinds")) == set(PRIMITIVES)


def test_the_table_holds_what_a_schedule_can_do(call: Any) -> None:
    assert set(call("probe.primitives:functions")) == set(PRIMITIVES) | NO_PRIMITIVES


def test_every_row_has_the_shape_that_tvm_wants(call: Any) -> None:
    found = call("probe.primitives:signatures", kinds=list(PRIMITIVES))
    for kind, primitive in PRIMITIVES.items():
        shape = found[kind]
        many = any(slot.many for slot in primitive.inputs)
        assert shape["inputs"] == (None if many else len(primitive.inputs)), kind
        assert shape["attrs"] == len(primitive.attrs), kind
        if kind == "EnterPostproc":
            assert shape["signature"] == ""  # nothing that could be wrong
            continue
        expected = [parameter(slot) for slot in (*primitive.inputs, *primitive.attrs)] + DECISIONS[primitive.decision]
        parameters, returned = parsed(shape["signature"])
        assert len(parameters) == len(expected), (kind, shape)
        assert all(t in wanted for t, wanted in zip(parameters, expected, strict=True)), (kind, shape)
        assert returned == result(primitive), (kind, shape)


def steps() -> list[tuple[str, list[Any], list[Any], list[str], Any]]:
    """Every instruction of the golden traces, as plain JSON values with immediates as (dtype, value)."""
    found = []
    for line in (GOLDEN / "primitives.jsonl").read_text(encoding="utf-8").splitlines():
        graph = json.loads(json.loads(line))
        nodes = graph["nodes"]

        def plain(index: int, nodes: list[Any] = nodes) -> Any:
            kind, data = nodes[index]["type"], nodes[index].get("data")
            if kind == "ffi.Array":
                return [plain(i, nodes) for i in data]
            if kind in ("ir.IntImm", "ir.FloatImm"):
                return (data["dtype"], data["value"])
            return data if kind in ("ffi.String", "None") else (kind, data)

        instructions, decisions = plain(graph["root_index"])
        chosen = {index[1]: decision for index, decision in decisions}
        found += [(*instruction, chosen.get(number)) for number, instruction in enumerate(instructions)]
    return found


def test_golden_traces_have_every_kind_and_fit_the_table() -> None:
    seen: set[str] = set()
    defaults: set[tuple[str, str]] = set()
    for kind, inputs, attrs, outputs, decision in steps():
        primitive = PRIMITIVES[kind]
        seen.add(kind)
        assert len(attrs) == len(primitive.attrs)
        assert len(inputs) == len(primitive.inputs) or primitive.inputs[-1].many
        assert (decision is not None) == (primitive.decision is not None)
        letters = {"B": "b", "L": "l", "E": "v"}
        assert {name[0] for name in outputs} <= {letters[c] for c in primitive.outputs[:1]}
        assert len(outputs) == len(primitive.outputs) or primitive.outputs[1:] in ("*", "=")
        for slot, value in zip(primitive.attrs, attrs, strict=True):
            if slot.type == "flag":
                typed = {("bool", bool): 0, ("int32", int): 1}
                tag = value[0]
                assert (tag, type(slot.default)) in typed, (kind, slot.name, value)
            if slot.default is not NEEDED and value in (slot.default, ("int32", slot.default)):
                defaults.add((kind, slot.name))
            if slot.words:
                assert value[1] < len(slot.words)
    assert seen == set(PRIMITIVES)
    assert ("SamplePerfectTile", "max_innermost_factor") in defaults


@pytest.mark.parametrize("notation", tsel.NOTATIONS)
def test_golden_traces_come_back(notation: Literal["line", "json"]) -> None:
    for line in (GOLDEN / "primitives.jsonl").read_text(encoding="utf-8").splitlines():
        trace = json.loads(line)
        encoded = tsel.encode(trace, notation)
        decoded = tsel.decode(encoded.text)
        assert decoded.trace == tsel.canonical(trace)
        assert tsel.render(decoded.graph, notation) == encoded


def test_golden_traces_are_what_this_tvm_records() -> None:
    maker = [sys.executable, str(GOLDEN / "make_primitives.py"), "check"]
    done = subprocess.run(maker, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_index_maps_of_tvm_come_back(call: Any) -> None:
    values: dict[str, Any] = {}
    for name, text in call("probe.primitives:maps"):
        values[name] = value = _maps.read(text, TVM, name)
        assert _maps.write(value, TVM, name, None) == text
        _maps.check(value, name)
        assert not _maps.names(value)
    assert values["divided"] == {
        "in": ["i", "j"],
        "out": [["//", "i", 16], ["//", "j", 16], ["%", "i", 16], ["%", "j", 16]],
    }
    assert values["inverse"]["dtype"] == "int64"
    assert values["inverse"]["inverse"] == {"in": ["i'1", "j"], "out": [["+", ["*", "i'1", 4], "j"]]}
    assert values["shared"] == {
        "in": ["i"],
        "let": {"$0": ["+", "i", 1]},
        "out": [["//", "$0", 3], ["%", "$0", 3], "$0"],
    }
    assert values["mixed"]["types"] == {"j": "int64"}
    assert values["one list"] == {"in": ["i"], "out": "in"}


def test_index_maps_that_no_trace_needs_are_refused_by_name(call: Any) -> None:
    for name, text in call("probe.primitives:refused_maps"):
        with pytest.raises(TselError, match=name) as refused:
            _maps.read(text, TVM, "map")
        assert refused.value.rule == "map"


def test_every_intrinsic_of_a_map_is_one_of_tvm(call: Any) -> None:
    assert call("probe.primitives:intrinsics", names=sorted(CALLS)) == []
