"""MetaSchedule's JSON databases: the lines of their two files, and the modules that a compiler looks up in them.

`database_workload.json` has a line `[hash, base64 of a module]` for each workload, `database_tuning_record.json` a
line `[number of the workload's line, [trace, seconds, target, arguments]]` for each record (TVM 0.25,
src/s_tir/meta_schedule/database/{database,json_database}.cc). TVM's own reader trusts them; here a line is bounded
text from anywhere, and what it holds is one thing or a `Bad` line. Nothing in them is believed: a workload is what
its program is, a trace is what our gates say, and a latency is not ours.

`MetaScheduleApplyDatabase` finds a function by structural equality with what the pipeline made of the model, with its
64-bit indices, names and hints: the *form* of a workload, of which ours is the normalised one. A workload may have
several: one for each way in which models are lowered, and for each spelling that is the same program.
"""

import base64
import binascii
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import orjson

from littledragon.schemas import tsel

Target = dict[str, Any]
Row = dict[str, Any]

WORKLOADS: Final = "database_workload.json"
RECORDS: Final = "database_tuning_record.json"
UNMEASURED: Final = 1e10
"""Seconds that MetaSchedule writes where a candidate did not build or run."""
MOST_TIMES: Final = 1024
_HEADER: Final = 8
"""Bytes before what was encoded: its length, little-endian."""
_DEEP: Final = 16
_FLAGS: Final = ("Split", "LoopPartition")
"""Instructions whose two attributes are plain booleans, which MetaSchedule writes as 0 and 1."""


class Bad(ValueError):
    """A line that is none of a database; the text says why, in one line."""


@dataclass(frozen=True)
class Record:
    """One record. workload: number of the workload's line, from 0. trace: canonical. kind: of its target, or empty.
    seconds: the mean that the file claims, infinite where it says that the candidate failed, as it does of those that
    a busy machine built too slowly; None where it is silent."""

    workload: int
    trace: str
    seconds: float | None
    kind: str


# -- reading, without TVM --------------------------------------------------------------------------


def workload_of(line: bytes) -> str:
    """The base64 text of a module's graph that a line of `database_workload.json` holds.

    Raises:
        Bad: it holds none.
    """
    value = _json(line)
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[1], str)):
        raise Bad("not a pair of a hash and a module")
    return value[1]


def record_of(line: bytes) -> Record:
    """The record that a line of `database_tuning_record.json` holds.

    Raises:
        Bad: it holds none.
    """
    value = _json(line)
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[1], list) and len(value[1]) == 4):
        raise Bad("not a workload's number and trace, seconds, target, arguments")
    number, (trace, seconds, target, _) = value
    if type(number) is not int or number < 0:
        raise Bad("the workload's number is none")
    kind = target.get("kind") if isinstance(target, dict) else "" if target is None else None
    if not isinstance(kind, str):
        raise Bad("a target without a kind")
    return Record(number, trace_of(trace), _mean(seconds), kind)


def _json(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise Bad(f"not JSON: {error}") from None


def _mean(seconds: Any) -> float | None:
    if seconds is None:
        return None
    if not isinstance(seconds, list) or len(seconds) > MOST_TIMES:
        raise Bad("its seconds are no list")
    if not all(type(one) in (int, float) and one > 0 and math.isfinite(one) for one in seconds):
        raise Bad("its seconds are not all positive numbers")
    mean = sum(seconds) / len(seconds) if seconds else UNMEASURED
    return mean if mean < UNMEASURED else math.inf


def trace_of(value: Any) -> str:
    """The canonical trace of its JSON in a database: every leaf gets the type that TVM gives it in its place.

    JSON forgets types: a whole number stands for an immediate, a plain integer or a flag, and TVM writes whole
    floats as integers. The kind of the instruction and the field tell which it was.

    Raises:
        Bad: it is no trace of our language's first gate.
    """
    try:
        instructions, decisions = value
        graph = _Graph()
        listed = [_instruction(graph, *instruction) for instruction in instructions]
        drawn = [
            graph.array([graph.put(number, plain=False), graph.put(decision, plain=True)])
            for number, decision in decisions
        ]
        graph.array([graph.array(listed), graph.array(drawn)])
        return tsel.canonical(graph.text())
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, Bad):
            raise
        raise Bad("its trace is no list of instructions and of decisions") from None
    except tsel.TselError as error:
        raise Bad(f"its trace is none: {error}") from None


class _Graph:
    """The nodes of a `save_json` text, children first."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []

    def add(self, kind: str, data: Any = None) -> int:
        self.nodes.append({"type": kind} if data is None else {"type": kind, "data": data})
        return len(self.nodes) - 1

    def array(self, items: list[int]) -> int:
        return self.add("ffi.Array", items)

    def put(self, value: Any, *, plain: bool, depth: int = 0) -> int:
        """The node of a value. `plain`: numbers are no immediates here, as in lists and decisions."""
        if depth > _DEEP:
            raise Bad("its trace is nested too deeply")
        if value is None:
            return self.add("None")
        if isinstance(value, str):
            return self.add("ffi.String", value)
        if isinstance(value, list):
            return self.array([self.put(item, plain=True, depth=depth + 1) for item in value])
        if isinstance(value, dict):
            pairs = [(self.add("ffi.String", key), self.put(value[key], plain=True, depth=depth + 1)) for key in value]
            return self.add("ffi.Map", list(chain(*pairs)))
        if plain:
            return self.add(type(value).__name__, value)
        return self.immediate(value)

    def immediate(self, value: bool | int | float) -> int:
        span = self.add("None")
        kind, dtype = {bool: ("ir.IntImm", "bool"), int: ("ir.IntImm", "int32")}.get(
            type(value), ("ir.FloatImm", "float32")
        )
        return self.add(kind, {"span": span, "dtype": dtype, "value": int(value) if dtype == "bool" else value})

    def text(self) -> str:
        graph = {"root_index": len(self.nodes) - 1, "nodes": self.nodes, "metadata": {"tvm_version": tsel.TVM}}
        return orjson.dumps(graph).decode()


def _instruction(graph: _Graph, kind: Any, inputs: Any, attrs: Any, outputs: Any) -> int:
    if not (isinstance(kind, str) and isinstance(inputs, list) and isinstance(attrs, list)):
        raise Bad("an instruction without kind, inputs and attributes")
    name = graph.add("ffi.String", kind)
    given = graph.array([graph.put(_compact(value), plain=False) for value in inputs])
    if kind in _FLAGS:
        fixed = [graph.add("bool", bool(v)) if v in (0, 1) else graph.put(v, plain=True) for v in attrs]
    elif kind == "SampleCategorical" and len(attrs) == 2 and isinstance(attrs[1], list):
        probabilities = [graph.immediate(float(probability)) for probability in attrs[1]]
        fixed = [graph.put(attrs[0], plain=True), graph.array(probabilities)]
    else:
        fixed = [graph.put(value, plain=False) for value in attrs]
    return graph.array([name, given, graph.array(fixed), graph.put(outputs, plain=True)])


def _compact(value: Any) -> Any:
    """An index map among the inputs: a trace has it without spaces, MetaSchedule writes it indented."""
    if not (isinstance(value, str) and value[:1] == "{"):
        return value
    return orjson.dumps(_json(value.encode())).decode()


def json_of(trace: str) -> Any:
    """The JSON of a canonical trace as a database holds it; floats stay floats, so that they are read as such."""
    graph = orjson.loads(trace)
    values: list[Any] = []
    for node in graph["nodes"]:
        kind, data = node["type"], node.get("data")
        if kind == "ffi.Array":
            values.append([values[index] for index in data])
        elif kind == "ffi.Map":
            parts = [values[index] for index in data]
            values.append(dict(zip(parts[::2], parts[1::2], strict=True)))
        elif kind in ("ir.IntImm", "ir.FloatImm"):
            values.append(bool(data["value"]) if data["dtype"] == "bool" else data["value"])
        else:
            values.append(int(data) if kind == "bool" else data)
    return values[graph["root_index"]]


# -- what needs TVM --------------------------------------------------------------------------------


def identify(modules: list[str]) -> list[Row]:
    """The ids of the workloads that these base64 texts hold. Runs in a child: TVM dies of some texts.

    Returns:
        For each text `{"workload_id", "problem"}`, one of them null.
    """
    found: list[Row] = []
    for text in modules:
        try:
            found.append({"workload_id": _identity(text), "problem": None})
        except Exception as error:  # whatever TVM raises, the line is at fault
            said = " ".join(str(error).split())[-200:] or type(error).__name__
            found.append({"workload_id": None, "problem": said})
    return found


def _identity(text: str) -> str:
    from littledragon.compiler import identity, lowering
    from littledragon.compiler._stepper import load
    from littledragon.compiler.features import kind

    module = load(_graph_of(text))
    functions = list(module.functions.values()) if kind(module) == "IRModule" else []
    if [kind(function) for function in functions] != ["PrimFunc"]:
        raise Bad("not a module of one function")
    return identity.workload_id(lowering.normalise(functions[0])[0])


def _graph_of(text: str) -> str:
    """The graph of nodes in a base64 text, where it is one that this TVM wrote.

    Raises:
        Bad: it is none.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Bad("its module is no base64") from None
    if len(data) < _HEADER or struct.unpack("<Q", data[:_HEADER])[0] != len(data) - _HEADER:
        raise Bad("its module is cut off")
    graph = _json(data[_HEADER:])
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    metadata, root = (graph.get("metadata"), graph.get("root_index")) if isinstance(graph, dict) else (None, None)
    if not isinstance(nodes, list) or type(root) is not int or not 0 <= root < len(nodes):
        raise Bad("its module is no graph of nodes")
    if not isinstance(metadata, dict) or metadata.get("tvm_version") != tsel.TVM:
        wrote = str(metadata.get("tvm_version"))[:40] if isinstance(metadata, dict) else "nobody"
        raise Bad(f"written by TVM {wrote}, and this one is {tsel.TVM}: search anew with it")
    for place, node in enumerate(nodes):
        if not isinstance(node, dict) or not isinstance(node.get("type"), str):
            raise Bad("its module has a node without a type")
        held = node.get("data")
        # TVM reads beyond its own memory where a reference is out of range; other nodes' numbers may be anything.
        if node["type"] in ("ffi.Array", "ffi.Map") and not (
            isinstance(held, list) and all(type(index) is int and 0 <= index < place for index in held)
        ):
            raise Bad("its module refers to a node that is not there")
    return data[_HEADER:].decode()


def forms_of_blocks(zoo: str, cases: dict[str, list[str]], target: Target, wanted: list[str]) -> list[Row]:
    """The forms of these workloads in configurations of zoo blocks. Runs in a child.

    Returns:
        `{"workload_id", "module"}` with the module as `tvm.ir.save_json`; a block that is gone gives none.
    """
    from littledragon.compiler.zoo import block_of
    from littledragon.compiler.zoo.block import relax_module

    modules = []
    for block_id, names in cases.items():
        try:
            block = block_of(zoo, block_id)  # type: ignore[arg-type]
        except KeyError:
            continue
        modules += [relax_module([block.build(**case.shape)]) for case in block.cases if case.name in names]
    return _forms(modules, target, set(wanted))


def forms_of_model(path: str, target: Target, wanted: list[str]) -> list[Row]:
    """The same of a user's own model. Runs in a child.

    Raises:
        Exception: whatever the importers raise.
    """
    from littledragon.compiler import outside

    return _forms([outside.relax_module(Path(path))], target, set(wanted))


def _forms(modules: list[Any], target: Target, wanted: set[str]) -> list[Row]:
    import tvm
    from tvm_ffi import structural_hash

    from littledragon.compiler import identity, lowering

    found: dict[tuple[str, int], Row] = {}
    for function in chain.from_iterable(_functions(module, target) for module in modules):
        try:
            workload = identity.workload_id(lowering.normalise(function)[0])
        except ValueError:  # a shape that is not constant
            continue
        if workload in wanted:
            form = _normalize(function)
            key = workload, structural_hash(form)
            found.setdefault(key, {"workload_id": workload, "module": str(tvm.ir.save_json(form))})
    return list(found.values())


def _functions(module: Any, target: Target) -> Iterator[Any]:
    """What our lowering, and what Relax's own `zero` pipeline, makes of a Relax module."""
    import tvm
    from tvm import relax

    from littledragon.compiler import features, lowering

    for tasks in lowering.extract_tasks(module, target).values():
        yield from tasks.modules.values()
    try:
        with tvm.target.Target(target):
            stock = relax.get_pipeline("zero")(module)
    except Exception:  # what TVM's pipeline cannot lower, nobody will look up
        return
    yield from (function for function in stock.functions.values() if features.kind(function) == "PrimFunc")


def _normalize(function: Any) -> Any:
    """The module under which MetaSchedule looks a function up."""
    import tvm.s_tir.meta_schedule  # noqa: F401 (registers it)
    from tvm_ffi import get_global_func

    return get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(function)


def entries(module: str, forms: list[str], candidates: list[Row], target: Target) -> list[Row]:
    """Traces of a workload as records of its forms. Runs in a child.

    A trace is recorded for a form where it replays there as it stands, and gives the program that it gives on M0:
    compared by their canonical texts, which are blind to names and to the widths of indices (identity.py).

    Args:
        module: M0, as `tvm.ir.save_json`.
        forms: the forms, likewise.
        candidates: `{"trace", "latency_us"}`, the best first.
        target: the TVM target.

    Returns:
        For each form `{"workload": JSON, "records": [JSON without the workload's number], "refused": [reasons]}`.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.schedule import Trace

    from littledragon.compiler import identity
    from littledragon.compiler._stepper import import_intrinsics, line, load, schedule

    config = _plain(tvm.target.Target(target).export())

    def replay(onto: Any, trace: str) -> Any:
        import_intrinsics(trace)
        replayed = schedule(onto)
        Trace.apply_json_to_schedule(load(trace), replayed)
        if tsel.canonical(str(tvm.ir.save_json(replayed.trace.as_json()))) != trace:
            raise Bad("TVM records another trace")
        return replayed.mod

    intended = [identity.canonical(replay(load(module), candidate["trace"])) for candidate in candidates]
    found: list[Row] = []
    for form in map(load, forms):
        workload = ms.database.Workload(form).as_json()
        entry: Row = {"workload": [str(workload[0]), str(workload[1])], "records": [], "refused": []}
        for candidate, program in zip(candidates, intended, strict=True):
            try:
                scheduled = replay(form, candidate["trace"])
                if identity.canonical(scheduled) != program:
                    raise Bad("it gives another program on this form")
                arguments = [_plain(one.as_json()) for one in ms.arg_info.ArgInfo.from_entry_func(scheduled, True)]
            except Exception as error:
                entry["refused"].append(line(error))
                continue
            seconds = [candidate["latency_us"] * 1e-6]
            entry["records"].append([json_of(candidate["trace"]), seconds, config, arguments])
        found.append(entry)
    return found


def _plain(value: Any) -> Any:
    """JSON of TVM's containers: its strings and numbers would not leave the process whole."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | float):
        return value
    if hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if hasattr(value, "__iter__") else int(value)


def check(folder: str, target: Target) -> Row:
    """Read a database as a compiler would, and ask it for every workload that is in it. Runs in a child.

    Returns:
        `records`: so many it has. `answers`: for each workload's line whether a schedule came back.

    Raises:
        Exception: TVM cannot read it.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from littledragon.compiler._stepper import load

    lines = (Path(folder) / WORKLOADS).read_bytes().splitlines()
    records = (Path(folder) / RECORDS).read_bytes()
    if b'"Tensorize"' in records or b"meta_schedule.auto_tensorize" in records:
        import littledragon.compiler.intrinsics  # noqa: F401
    database = ms.database.JSONDatabase(work_dir=folder, allow_missing=False)
    asked = tvm.target.Target(target)
    answers = []
    for line in lines:
        module = load(_graph_of(workload_of(line)))
        answers.append(database.query_schedule(module, asked, "main") is not None)
    return {"records": len(database), "answers": answers}
