"""Index maps: values written and read, texts of recorded traces, and values that are none."""

import copy
import gzip
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from littledragon.schemas.tsel import TVM, TselError, _maps
from littledragon.schemas.tsel._mapnodes import BINARY

ROOT = Path(__file__).parents[2]
TEXT = re.compile(r'"type":"ffi.String","data":("\{(?:[^"\\]|\\.)*\}")')
EXAMPLE = {"in": ["i0", "i1"], "let": {"$0": 16, "$1": ["//", "i1", "$0"]}, "out": ["$1", ["%", "i1", "$0"], "$1"]}


def recorded() -> list[str]:
    """The distinct index maps of the sampled traces and of those of single primitives."""
    with gzip.open(ROOT / "samples" / "h200_traces.jsonl.gz", "rt", encoding="utf-8") as file:
        traces = [row["trace"] for row in map(json.loads, file) if row["kind"] == "candidate"]
    golden = ROOT / "tests" / "golden" / "tsel" / "primitives.jsonl"
    traces += map(json.loads, golden.read_text(encoding="utf-8").splitlines())
    texts = {json.loads(match) for trace in traces for match in TEXT.findall(trace)}
    return sorted(text for text in texts if "tirx.IndexMap" in text)


def written(value: Any, indent: int | None = None) -> str:
    return _maps.write(value, TVM, "map", indent)


def test_recorded_maps_come_back() -> None:
    texts = recorded()
    assert len(texts) > 30
    sampled = 0
    for text in texts:
        value = _maps.read(text, TVM, "map")
        _maps.check(value, "map")
        assert _maps.read(text, TVM, "map") is value
        assert written(value, 2 if text[1] == "\n" else None) == text
        assert _maps.read(written(value), TVM, "map") == _maps.read(written(value, 2), TVM, "map") == value
        sampled += bool(_maps.names(value))
    assert sampled >= 2


class Dag:
    """Draws a value whose shared expressions stand in `let` just where it uses them twice."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.own = [f"i{n}" for n in range(source.randint(0, 3))]
        wide = source.random() < 0.3
        self.usual = "int64" if wide and self.own else "int32"
        self.dtypes = dict.fromkeys(self.own, self.usual)
        for name in self.own[1:]:
            self.dtypes[name] = source.choice([self.usual, "int32", "int64", "uint8"])
        self.free = [f"v{source.randint(0, 99)}" for _ in range(source.randint(0, 2))]
        self.dtypes |= dict.fromkeys(self.free, "int32")
        self.pool: list[tuple[Any, str]] = []

    def immediate(self, dtype: str) -> Any:
        if dtype == "bool":
            return self.source.random() < 0.5
        if "float" in dtype:
            number = self.source.choice([0.5, -0.0, 1e16, 0.1, 3.0, "inf", "nan"])
            return number if dtype == "float32" and isinstance(number, float) else [dtype, number]
        number = self.source.choice([1, 2, 16, 127])
        return number if dtype == self.usual else [dtype, number]

    def any(self, depth: int) -> tuple[Any, str]:
        choice = self.source.random()
        names = [*self.own, *self.free]
        if self.pool and choice < 0.25:
            return self.source.choice(self.pool)
        if depth == 0 or choice < 0.4:
            if names and self.source.random() < 0.7:
                name = self.source.choice(names)
                return name, self.dtypes[name]
            dtype = self.source.choice([self.usual, self.usual, "int32", "int64", "bool", "float16", "float32"])
            return self.immediate(dtype), dtype
        made = self.compound(depth - 1)
        self.pool.append(made)
        return made

    def compound(self, depth: int) -> tuple[Any, str]:
        a, dtype = self.any(depth)
        kind = self.source.choice([*BINARY, "!", "cast", "select", "call"])
        if kind == "cast":
            other = self.source.choice(["int32", "int64", "float16", "bool"])
            return ["cast", other, a], other
        if kind == "call":
            return ["call", "if_then_else", dtype, self.boolean(depth), a, self.immediate(dtype)], dtype
        if kind == "select":
            return ["select", self.boolean(depth), a, self.immediate(dtype)], dtype
        if kind == "!":
            return ["!", self.boolean(depth)], "bool"
        if kind in ("&&", "||"):
            return [kind, self.boolean(depth), self.boolean(depth)], "bool"
        truth = kind in ("==", "!=", "<", "<=", ">", ">=")
        return [kind, a, self.nonzero(dtype)], "bool" if truth else dtype

    def nonzero(self, dtype: str) -> Any:
        number = self.immediate(dtype)
        return (
            True
            if dtype == "bool"
            else 0.5
            if dtype == "float32"
            else ["float16", 0.5]
            if dtype == "float16"
            else number
        )

    def boolean(self, depth: int) -> Any:
        a, dtype = self.any(depth)
        return a if dtype == "bool" else ["<", a, self.nonzero(dtype)]

    def value(self) -> dict[str, Any]:
        return normal([self.any(4)[0] for _ in range(self.source.randint(0, 4))], self)


def normal(out: list[Any], dag: Dag) -> dict[str, Any]:
    """The spelling of a DAG of Python objects: what the same list object stands for twice goes into `let`."""
    uses: dict[int, int] = {}

    def count(item: Any) -> None:
        if isinstance(item, list):
            uses[id(item)] = uses.get(id(item), 0) + 1
            if uses[id(item)] == 1:
                for part in item:
                    count(part)

    for item in out:
        count(item)
    lets: dict[str, Any] = {}
    known: dict[int, str] = {}
    types: dict[str, str] = {}
    for name in dag.own:
        if dag.dtypes[name] != dag.usual:
            types[name] = dag.dtypes[name]

    def spell(item: Any) -> Any:
        if isinstance(item, str) and item in dag.free and dag.dtypes[item] != dag.usual:
            types[item] = dag.dtypes[item]
        if not isinstance(item, list):
            return item
        if id(item) in known:
            return known[id(item)]
        made = [spell(part) for part in item]
        if uses[id(item)] > 1:
            known[id(item)] = name = f"${len(lets)}"
            lets[name] = made
            return name
        return made

    value: dict[str, Any] = {"in": dag.own, "out": [spell(item) for item in out]}
    if lets:
        value["let"] = lets
    if dag.usual == "int64":
        value["dtype"] = "int64"
    if types:
        value["types"] = types
    return value


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_values_come_back(source: random.Random) -> None:
    value = Dag(source).value()
    before = copy.deepcopy(value)
    for indent in (None, 2):
        text = written(value, indent)
        again = _maps.read(text, TVM, "map")
        assert again == value
        assert json.dumps(again["out"]) == json.dumps(value["out"])  # true is not 1, and 1.0 is not 1
        assert written(again, indent) == text
    _maps.check(again, "map")  # its keys stand in the order in which they are read
    assert value == before
    if list(again) != list(value):
        with pytest.raises(TselError):
            _maps.check(value, "map")


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_renaming_commutes(source: random.Random) -> None:
    value = Dag(source).value()
    there = {name: f"t{n}.0.1" for n, name in enumerate(sorted(_maps.names(value)))}
    back = {new: name for name, new in there.items()}
    other = _maps.rename(value, there.__getitem__)
    assert _maps.names(other) == frozenset(back)
    assert _maps.rename(other, back.__getitem__) == value


def test_names() -> None:
    value = {"in": ["i", "v1"], "let": {"$0": ["+", "v2", 1]}, "out": ["$0", ["*", "$0", "v1"], ["cast", "int8", "v3"]]}
    assert _maps.names(value) == {"v2", "v3"}
    assert _maps.index_variables(value) == {"i", "v1"}
    renamed = _maps.rename(value, {"v2": "t0.1.0", "v3": "t0.2.0"}.__getitem__)
    assert renamed["let"] == {"$0": ["+", "t0.1.0", 1]}
    assert renamed["out"][2] == ["cast", "int8", "t0.2.0"]
    with pytest.raises(TselError, match="an index variable is called v1"):
        _maps.rename(renamed, lambda name: "v1")


def edited(value: Any, source: random.Random) -> Any:
    """The value with one place in it changed."""
    places: list[tuple[Any, Any]] = []

    def walk(item: Any) -> None:
        for key in item if isinstance(item, dict) else range(len(item)):
            places.append((item, key))
            if isinstance(item[key], (dict, list)):
                walk(item[key])

    walk(value)
    if not places:
        return source.choice([None, [], "x", 5])
    where, key = source.choice(places)
    old = where[key]
    where[key] = source.choice(
        [
            *(
                0,
                -1,
                1 << 40,
                1 << 70,
                0.5,
                True,
                None,
                "i0",
                "v3",
                "$0",
                "$9",
                "",
                "in",
                "i0'1",
                "t1.0.0",
                [],
                {},
                old,
            ),
            *(["+", old, old], ["//", old, 0], [old], ["cast", "int8", old], ["call", "call_extern", "int32", old]),
            *(["float16", 70000.0], ["int8", 300], ["nan"], ["float32", "nan"], {"$0": old}, [[[[old]]]], float("nan")),
        ]
    )
    return value


@settings(max_examples=500, deadline=None)
@given(st.randoms(use_true_random=False))
def test_changed_values_are_refused_or_come_back(source: random.Random) -> None:
    value = copy.deepcopy(EXAMPLE) if source.random() < 0.3 else copy.deepcopy(Dag(source).value())
    for _ in range(source.randint(1, 3)):
        value = edited(value, source)
        if not isinstance(value, dict):
            break
    try:
        _maps.check(value, "map")
    except TselError as refused:
        assert (refused.gate, refused.rule) == ("wellformed", "map")
    else:
        assert _maps.read(written(value), TVM, "map") == value
    for function in (_maps.names, _maps.index_variables):
        assert isinstance(function(value), frozenset)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(recorded()), st.randoms(use_true_random=False))
def test_changed_texts_are_refused_or_come_back(text: str, source: random.Random) -> None:
    graph = json.loads(text)
    for _ in range(source.randint(1, 3)):
        graph["nodes"] = edited(graph["nodes"], source)
        assume(isinstance(graph["nodes"], list))
    try:
        changed = json.dumps(graph, separators=(",", ":"))
        value = _maps.read(changed, TVM, "map")
    except TselError as refused:
        assert (refused.gate, refused.rule) == ("wellformed", "map")
    else:
        _maps.check(value, "map")
        assert written(value) == changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": [["//", "i0", 0]]}, "division by zero"),
        ({"let": {"$0": 0}, "out": [["//", "i0", "$0"], ["%", "i1", "$0"]]}, "division by zero"),
        ({"let": {"$0": 16}, "out": ["$0"]}, "another spelling"),
        ({"let": {"$1": 16}, "out": ["$1", "$1"]}, "another spelling"),
        ({"let": {}, "out": ["i1"]}, "another spelling"),
        ({"dtype": "int32"}, "another spelling"),
        ({"types": {"i0": "int64"}}, "another spelling|operands"),
        ({"dtype": "int8"}, "int32 or int64"),
        ({"in": ["i0", "i0"]}, "stands twice"),
        ({"in": ["i0", "t0.1.0"], "let": {}, "out": []}, "no name"),
        ({"in": ["i0", "i'0"]}, "no name"),
        ({"out": ["q"]}, "neither an index variable nor a sampled number"),
        ({"out": [["^", "i0", 1]]}, "no operator|no dtype"),
        ({"out": [["+", "i0"]]}, "two operands"),
        ({"out": [["&&", "i0", "i1"]]}, "operands of &&"),
        ({"out": [["+", "i0", ["int64", 1]]]}, "operands of"),
        ({"out": [["int32", 1]]}, "another spelling"),
        ({"out": [["int8", 200]]}, "no int8"),
        ({"out": [["call", "call_extern", "int32", "i0"]]}, "no map may call"),
        ({"out": [["call", "exp", "int32"]]}, "no map may call"),
        ({"let": {"$0": ["+", "$0", 1]}, "out": ["$0", "$0"]}, "deeper"),
        ({"inverse": {"in": ["j"], "out": ["i0"]}}, "of its inverse"),
        ({"inverse": {"in": ["j"]}}, "in and out"),
        ({"more": 1}, "an object with"),
        ({"out": 5}, "a list of expressions"),
    ],
)
def test_rules(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TselError, match=message) as refused:
        _maps.check(EXAMPLE | change if "out" not in change else {"in": ["i0", "i1"]} | change, "map")
    assert refused.value.rule == "map"


def test_large_and_deep_values_are_refused_soon() -> None:
    deep: Any = "i0"
    for _ in range(100_000):
        deep = ["+", deep, 1]
    bomb = {"$0": ["+", "i0", 1]} | {f"${n}": ["+", f"${n - 1}", f"${n - 1}"] for n in range(1, 4000)}
    wide = [["+", "i0", n] for n in range(100_000)]
    cyclic: list[Any] = ["+", "i0"]
    cyclic.append(cyclic)
    started = time.monotonic()
    for out, lets in ((deep, {}), ("$3999", bomb), (cyclic, {})):
        for _ in range(2):
            with pytest.raises(TselError):
                _maps.check({"in": ["i0"], "let": lets, "out": [out]}, "map")
    with pytest.raises(TselError, match="more than"):
        _maps.check({"in": ["i0"], "out": wide}, "map")
    with pytest.raises(TselError, match="deeper"):
        _maps.rename({"in": ["i0"], "out": [deep, "v1"]}, str)
    for text in ("[" * 100_000, "{}", "", "null", '{"root_index":0,"nodes":[]}', '{"root_index":1e999,"nodes":[{}]}'):
        with pytest.raises(TselError):
            _maps.read(text, TVM, "map")
    assert time.monotonic() - started < 20


def test_shared_arguments_do_not_multiply() -> None:
    """A graph in which each list of arguments is that of two calls would double its value at every level."""
    graph = json.loads(written({"in": ["i0"], "out": [["call", "exp", "float32", 0.5]]}))
    nodes = graph["nodes"]
    call = next(node for node in nodes if node["type"] == "tirx.Call")
    last = nodes.index(call)
    del nodes[last + 1 :]
    for _ in range(60):
        nodes += [{"type": "ffi.Array", "data": [last, last]}]
        nodes += [{"type": "tirx.Call", "data": call["data"] | {"args": len(nodes) - 1}}] * 2
        last = len(nodes) - 1
    inputs = next(n for n, node in enumerate(nodes) if node["type"] == "ffi.Array")
    nodes += [{"type": "ffi.Array", "data": [last]}]
    root = {"initial_indices": inputs, "final_indices": len(nodes) - 1, "inverse_index_map": 0}
    nodes += [{"type": "tirx.IndexMap", "data": root}]
    graph["root_index"] = len(nodes) - 1
    started = time.monotonic()
    with pytest.raises(TselError):
        _maps.read(json.dumps(graph, separators=(",", ":")), TVM, "map")
    assert time.monotonic() - started < 5
