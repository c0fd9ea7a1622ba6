"""A second opinion on what the language accepts, which shares no code with it.

`faults(trace, tiles)` reads a trace's `save_json` text on its own and names every rule that it breaks: those that TVM
dies of, repairs silently or takes without a word. The table of kinds is written from TVM's instruction traits anew.
"""

import json
import math
from typing import Any, NamedTuple

KINDS: dict[str, tuple[str, str, str]] = {
    "SampleCategorical": ("", "IF", "v"),
    "SamplePerfectTile": ("l", "ii", "v="),
    "SamplePartitionedTile": ("l", "iii", "v="),
    "SampleComputeLocation": ("b", "", "l"),
    "GetSBlock": ("", "ss", "b"),
    "GetLoops": ("b", "", "l*"),
    "GetChildBlocks": ("t", "", "b*"),
    "GetProducers": ("b", "", "b*"),
    "GetConsumers": ("b", "", "b*"),
    "GetOutputBlocks": ("b", "", "b*"),
    "Fuse": ("l+", "i", "l"),
    "Merge": ("l+", "", "l"),
    "Split": ("lf+", "ii", "l="),
    "LoopPartition": ("lf+", "i", "l*"),
    "Reorder": ("l*", "", ""),
    "ReorderBlockIterVar": ("bI", "", ""),
    "AddUnitLoop": ("t", "", "l"),
    "Parallel": ("l", "", ""),
    "Vectorize": ("l", "", ""),
    "Unroll": ("l", "", ""),
    "Bind": ("l", "s", ""),
    "CacheRead": ("bB", "is", "b"),
    "CacheWrite": ("bB", "is", "b"),
    "CacheInplace": ("b", "is", "b*"),
    "CacheIndex": ("b", "si", "b*"),
    "ReindexCacheRead": ("bm", "is", "b"),
    "ReindexCacheWrite": ("bm", "is", "b"),
    "ReadAt": ("lb", "is", "b"),
    "WriteAt": ("lb", "is", "b"),
    "SetScope": ("b", "is", ""),
    "StorageAlign": ("b", "iiii", ""),
    "RollingBuffer": ("b", "i", ""),
    "ComputeAt": ("bl", "ii", ""),
    "ReverseComputeAt": ("bl", "ii", ""),
    "ComputeInline": ("b", "", ""),
    "ReverseComputeInline": ("b", "", ""),
    "FuseReductionEpilogue": ("bb", "", ""),
    "ReIndex": ("b", "ii", "b"),
    "TransformLayout": ("bm", "iini", ""),
    "TransformBlockLayout": ("b", "m", ""),
    "SetAxisSeparator": ("b", "iiI", ""),
    "PadEinsum": ("b", "I", ""),
    "DecomposePadding": ("bl", "", "b"),
    "RFactor": ("l", "i", "b"),
    "DecomposeReduction": ("bl", "", "b"),
    "Blockize": ("k", "i", "b"),
    "Tensorize": ("t", "si", ""),
    "Annotate": ("ta", "s", ""),
    "Unannotate": ("t", "s", ""),
    "AnnotateBufferAccess": ("biim", "", ""),
    "UnsafeSetDType": ("b", "is", ""),
    "UnsafeHideBufferAccess": ("bsI", "", ""),
    "EnterPostproc": ("", "", ""),
}
"""Inputs, attributes and outputs: b(lock), l(oop), v(ariable), t: block or loop, f(actor), a(nnotation's value),
m(ap), n: a map or nothing, B: list of blocks, i(nteger), I: list of integers, F: list of probabilities, s(tring).
k: a loop or a list of blocks. `+`: the last once or more often; `*`: any number; `=`: as many as factors."""

AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
AXES += ("vthread", "vthread.x", "vthread.y", "vthread.z", "cthread")
PRAGMAS = ("pragma_auto_unroll_max_step", "pragma_unroll_explicit", "pragma_loop_partition_hint")
TILES = ("SamplePerfectTile", "SamplePartitionedTile")
_INFIX = ("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max")
_INFIX += ("EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or")
_OTHER = ("Var", "Not", "Cast", "Select", "Call", "IndexMap")
_PLAIN = ("None", "ffi.String", "ffi.Array", "ir.PrimType", "ir.IntImm", "ir.FloatImm", "ir.Op")
_CALLS = (
    "if_then_else",
    "likely",
    "shift_left",
    "shift_right",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_not",
)
_CALLS += (
    "abs",
    "ceil",
    "exp",
    "exp2",
    "fabs",
    "floor",
    "log",
    "log2",
    "nearbyint",
    "popcount",
    "pow",
    "round",
    "rsqrt",
)
_CALLS += ("sigmoid", "sqrt", "tanh", "trunc")
_WIDTHS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "bool": 1}


class Number(NamedTuple):
    """A number and its dtype; `plain` for one that is no immediate."""

    value: int | float | bool
    dtype: str


class _Fault(Exception):
    pass


def require(holds: Any, message: str) -> None:
    """Raises _Fault unless it holds."""
    if not holds:
        raise _Fault(message)


def faults(trace: str, tiles: list[tuple[int, list[int]]]) -> str:
    """The first rule that a trace breaks, or "".

    tiles: extent and all factors but the last of every sampled tile of the text that the trace was decoded from.
    """
    try:
        _check(trace, tiles)
    except _Fault as fault:
        return str(fault) or "?"
    return ""


def _check(trace: str, tiles: list[tuple[int, list[int]]]) -> None:
    parts = _load(trace)
    require(isinstance(parts, list) and len(parts) == 2, "a trace has two parts")
    instructions, decided = parts
    decisions: dict[int, Any] = {}
    for index, decision in decided:
        require(index.value not in decisions, "two decisions for one instruction")
        decisions[int(index.value)] = decision
    known: dict[str, str] = {}
    values: dict[str, int] = {}
    """What sampled variables stand for, where that is known."""
    rest = iter(tiles)
    boundaries = 0
    for step, (kind, inputs, attrs, outputs) in enumerate(instructions):
        place = f"{step} {kind}"
        require(kind in KINDS, f"{place}: unknown kind")
        takes, holds, makes = KINDS[kind]
        _inputs(place, takes, inputs, known)
        require(len(attrs) == len(holds), f"{place}: attributes")
        for letter, value in zip(holds, attrs, strict=True):
            _attribute(place, letter, value)
        _together(place, kind, inputs, attrs, values)
        decision = decisions.pop(step, None)
        if kind in TILES:
            made = _tile(place, kind, attrs, decision, *next(rest))
        elif kind == "SampleCategorical":
            require(isinstance(decision, Number) and decision.dtype == "plain", f"{place}: decision")
            require(0 <= decision.value < len(attrs[0]), f"{place}: no such candidate")
            made = [attrs[0][decision.value].value]
        elif kind == "SampleComputeLocation":
            require(isinstance(decision, Number) and -2 <= decision.value <= 1024, f"{place}: location")
            made = []
        else:
            require(decision is None, f"{place}: takes no decision")
            made = []
        count = {"*": len(outputs), "=": len(made) or len(inputs) - 1}.get(makes[1:], len(makes))
        require(len(outputs) == count, f"{place}: {len(outputs)} outputs")
        for number, output in enumerate(outputs):
            require(output == f"{makes[0]}{len(known)}", f"{place}: {output} is not the next name")
            known[output] = "place" if kind == "SampleComputeLocation" else makes[0]
            if made:
                values[output] = made[number]
        boundaries += kind == "EnterPostproc"
    require(not decisions, "a decision without its instruction")
    require(next(rest, None) is None, "a tile that the trace has not")
    require(boundaries <= 1, "two boundaries")


def _load(text: str) -> Any:
    """The value of a `save_json` text whose nodes stand after those that they hold."""
    graph = json.loads(text, parse_constant=lambda name: require(False, name))
    require(graph["metadata"] == {"tvm_version": "0.25.0.post1"}, "another TVM")
    values: list[Any] = []
    for node in graph["nodes"]:
        kind, data = node["type"], node.get("data")
        if kind == "ffi.Array":
            require(all(0 <= i < len(values) for i in data), "a node before what it holds")
            values.append([values[i] for i in data])
        elif kind == "ffi.Map":
            values.append(dict(zip((values[i] for i in data[::2]), (values[i] for i in data[1::2]), strict=True)))
        elif kind in ("ir.IntImm", "ir.FloatImm"):
            values.append(Number(data["value"], data["dtype"]))
            _number(values[-1])
        else:
            require(kind in ("None", "ffi.String", "int", "float", "bool"), f"a node of type {kind}")
            values.append(Number(data, "plain") if kind in ("int", "float", "bool") else data)
            if isinstance(values[-1], Number):
                _number(values[-1])
            elif data is not None:
                data.encode()
    require(graph["root_index"] == len(values) - 1, "a root that is not the last node")
    return values[-1]


def _number(number: Number) -> None:
    value, dtype = number
    require(math.isfinite(value), f"{value} is not finite")
    if dtype.startswith(("int", "uint")) or dtype == "bool":
        bits = _WIDTHS.get(dtype.removeprefix("u"), 63) + dtype.startswith("u")
        low = 0 if dtype.startswith(("u", "b")) else -(1 << bits)
        require(type(value) is int and low <= value < 1 << bits, f"{value} is no {dtype}")
    elif isinstance(value, int):
        require(-(1 << 63) <= value < 1 << 63, f"{value} has more than 64 bits")


def _inputs(place: str, takes: str, inputs: list[Any], known: dict[str, str]) -> None:
    letters = takes.rstrip("+*")
    if takes.endswith(("+", "*")):
        letters = letters[:-1] + letters[-1] * max(len(inputs) - len(letters) + 1, takes.endswith("+"))
    require(len(inputs) == len(letters), f"{place}: {len(inputs)} inputs")
    loops = [str(value) for letter, value in zip(letters, inputs, strict=True) if letter == "l"]
    require(len(set(loops)) == len(loops), f"{place}: a loop twice")
    for letter, value in zip(letters, inputs, strict=True):
        types = known.get(value) if isinstance(value, str) else None
        if letter in "bl":
            placed = place.endswith(("ComputeAt",)) and letter == "l" and types == "place"
            require(types == letter or placed, f"{place}: {value} is no {letter}")
        elif letter == "t":
            require(types in ("b", "l"), f"{place}: {value} is no block or loop")
        elif letter == "B" or (letter == "k" and isinstance(value, list)):
            require(isinstance(value, list) and all(known.get(v) == "b" for v in value), f"{place}: blocks")
        elif letter == "k":
            require(types == "l", f"{place}: {value} is no loop")
        elif letter == "f":
            fits = isinstance(value, Number) and type(value.value) is int and 1 <= value.value < 1 << 31
            require(fits or value == "None" or types == "v", f"{place}: the factor {value}")
        elif letter == "m":
            _map(place, value, known)
        elif letter == "a":
            require(types == "v" or _literal(value, known), f"{place}: the value {value}")
        elif letter == "s":
            require(isinstance(value, str) and _literal(value, {}), f"{place}: the string {value}")
        else:
            _attribute(place, letter, value)


def _literal(value: Any, known: dict[str, str]) -> bool:
    """An annotation's value: texts are quoted, and in a list sampled numbers may stand by their names."""
    if isinstance(value, str):
        return len(value) >= 2 and value[0] == value[-1] == '"'
    if isinstance(value, list):
        return all(item is None or known.get(str(item)) == "v" or _literal(item, known) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value)
    return isinstance(value, Number)


def _attribute(place: str, letter: str, value: Any) -> None:
    if letter == "i":
        require(isinstance(value, Number) and int(value.value) == value.value, f"{place}: {value} is no integer")
        require(abs(value.value) < 1 << 31, f"{place}: {value} is too large")
    elif letter == "s":
        require(isinstance(value, str) and len(value) <= 8192, f"{place}: {value!r} is no name")
    elif letter == "I":
        require(isinstance(value, list), f"{place}: integers")
        require(all(isinstance(v, Number) and type(v.value) is int for v in value), f"{place}: {value}")
        require(all(-(1 << 31) <= v.value < 1 << 31 for v in value), f"{place}: {value}")
    elif letter == "F":
        require(all(isinstance(v, Number) and v.value >= 0 for v in value), f"{place}: {value}")
        require(0 < sum(v.value for v in value) < 1.01, f"{place}: {value}")
    elif letter == "m" or value is not None:
        _map(place, value, {})


def _together(place: str, kind: str, inputs: list[Any], attrs: list[Any], values: dict[str, int]) -> None:
    if kind == "SampleCategorical":
        require(len(attrs[0]) == len(attrs[1]) > 0, f"{place}: candidates and probabilities")
    elif kind == "Bind":
        require(attrs[0] in AXES, f"{place}: {attrs[0]}")
    elif kind in ("Split", "LoopPartition"):
        require(inputs.count("None") <= 1, f"{place}: two open factors")
    elif kind in TILES:
        require(2 <= attrs[0].value <= 64, f"{place}: n")
    elif kind == "Annotate":
        key, value = attrs[0], inputs[1]
        number = values.get(value) if isinstance(value, str) else value.value if isinstance(value, Number) else None
        require(not key.lower().startswith("pragma_") or key in PRAGMAS, f"{place}: {key}")
        if number is not None and "unroll" in key:
            require(0 <= number <= 8192, f"{place}: {number} steps")


def _tile(place: str, kind: str, attrs: list[Any], decision: Any, extent: int, given: list[int]) -> list[int]:
    require(isinstance(decision, list), f"{place}: no decision")
    factors = [factor.value for factor in decision]
    require(all(type(factor) is int and factor >= 1 for factor in factors), f"{place}: {factors}")
    require(len(factors) == attrs[0].value and factors[:-1] == given, f"{place}: {factors}")
    require(1 <= math.prod(factors) == extent < 1 << 31, f"{place}: {factors} of {extent}")
    if kind == "SamplePerfectTile":
        limit = attrs[1].value
        require(limit != 0 and (limit == -1 or factors[-1] <= limit), f"{place}: innermost {factors[-1]}")
    else:
        position, inner = attrs[1].value, attrs[2].value
        require(0 <= position <= len(factors) and inner >= 1, f"{place}: partition")
        require(math.prod(factors[position:]) % inner == 0, f"{place}: inner part")
    return factors


def _map(place: str, text: Any, known: dict[str, str]) -> None:
    """An index map: nodes after what they hold, variables that are there, no division by a literal zero, and no call
    of anything but arithmetic."""
    require(isinstance(text, str) and text.startswith("{"), f"{place}: no index map")
    graph = json.loads(text)
    nodes = graph["nodes"]
    variables: dict[int, str] = {}
    for number, node in enumerate(nodes):
        kind, data = node["type"], node.get("data")
        short = kind.removeprefix("tirx.")
        if short == "Call":
            require(nodes[data["op"]]["data"].removeprefix("tirx.") in _CALLS, f"{place}: calls {nodes[data['op']]}")
        require(kind in _PLAIN or short in _INFIX or short in _OTHER, f"{place}: {kind} in a map")
        held: list[int] = data if kind == "ffi.Array" else []
        if isinstance(data, dict):
            held = [v for k, v in data.items() if k != "dtype" and (k != "value" or short == "Cast")]
        require(all(type(i) is int and 0 <= i < number for i in held), f"{place}: a node before what it holds")
        if short in _INFIX:
            zero = nodes[data["b"]]["type"] == "ir.IntImm" and nodes[data["b"]]["data"]["value"] == 0
            require(not (zero and ("Div" in short or "Mod" in short)), f"{place}: a division by zero")
        elif kind == "ir.IntImm":
            _number(Number(data["value"], data["dtype"]))
        elif short == "Var":
            variables[number] = nodes[data["name"]]["data"]
    root = nodes[graph["root_index"]]
    require(root["type"] == "tirx.IndexMap" and graph["root_index"] == len(nodes) - 1, f"{place}: no index map")
    own: set[int] = set(nodes[root["data"]["initial_indices"]]["data"])
    inverse = nodes[root["data"]["inverse_index_map"]]
    if inverse["type"] != "None":
        own |= set(nodes[inverse["data"]["initial_indices"]]["data"])
    require(own <= variables.keys(), f"{place}: an index that is no variable")
    names = {variables[number] for number in own}
    for number, name in variables.items():
        require(number in own or known.get(name) == "v", f"{place}: {name} in a map is not there")
        require(number in own or name not in names, f"{place}: {name} in a map is two things")
