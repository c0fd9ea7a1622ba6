"""Whatever a text or a trace is, the language reads it or raises TselError, soon, and nothing else."""

import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.schemas import tsel
from littledragon.schemas.tsel import TselError

GOLDEN = Path(__file__).parents[1] / "golden" / "tsel"
TRACE = (GOLDEN / "llvm.trace.json").read_text(encoding="utf-8").strip()
TEXT = tsel.encode(TRACE, "json").text
LINES = tsel.encode(TRACE, "line").text
HUGE = 400_000
HAMMER = Path(__file__).with_name("hammer.py")
PEAK = 512 << 20
"""Bytes that a process may hold at once which reads hostile texts, each of a mebibyte at most, one after the other."""


def reads_or_refuses(text: Any) -> bool:
    """Whether a text is read. What is read must also be written and read again."""
    try:
        decoded = tsel.decode(text)
    except TselError as error:
        assert error.gate in ("parsed", "wellformed")
        assert "\n" not in str(error)
        return False
    for notation in tsel.NOTATIONS:
        assert tsel.decode(tsel.render(decoded.graph, notation).text) == decoded
    assert tsel.canonical(decoded.trace) == decoded.trace
    return True


def lifts_or_refuses(trace: Any) -> bool:
    """Whether a trace is lifted. What is lifted must come back."""
    try:
        text = tsel.encode(trace).text
    except TselError:
        return False
    assert tsel.decode(text).trace == tsel.canonical(trace)
    return True


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=300)))
def test_noise(text: str | bytes) -> None:
    assert not reads_or_refuses(text)
    assert not lifts_or_refuses(text)


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=6),
        st.sampled_from(["t0.0.0", "t0.2.1", "t0.3.0", "m0", "root", "None", '"', "{}", 2**63, -(2**31), 1e308, 0]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["map", "int", "str", "dict", "IntImm:bool", "extent", "factors"]), inner),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from("kiaod"), JSON)
def test_any_value_in_any_place(at: int, key: str, value: Any) -> None:
    lines = TEXT.splitlines()
    places = [i for i, line in enumerate(lines) if line.startswith("{")]
    place = places[at % len(places)]
    fragment = json.loads(lines[place])
    if key in ("i", "a") and isinstance(value, list) is False and fragment.get(key):
        fragment[key][at % len(fragment[key])] = value
    else:
        fragment[key] = value
    text = json.dumps(fragment).replace("&", "&amp;").replace("<", "&lt;").replace("\x7f", "")
    reads_or_refuses("\n".join([*lines[:place], text, *lines[place + 1 :]]))


def hammered(folder: Path, first: int, count: int, *kind: str) -> dict[str, Any]:
    """What `hammer.py` reports on `count` mutants, with nothing bad in it."""
    at = folder / "seed"
    at.write_bytes(bytes(8))
    command = [sys.executable, str(HAMMER), str(first), str(count), str(at), *kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120 + count / 20, check=False)
    seed = int.from_bytes(at.read_bytes(), "little")
    assert done.returncode == 0, f"at seed {seed}: {done.stderr[-2000:]}"
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["bad"] == []
    assert report["peak_bytes"] < PEAK
    assert sum(report["outcomes"].values()) == count
    return report


@pytest.mark.slow
def test_three_thousand_mutants(tmp_path: Path) -> None:
    report = hammered(tmp_path, 0, 2400)
    assert report["outcomes"]["accepted"] >= 0.05 * 2400
    assert len(report["rules"]) >= 20
    assert hammered(tmp_path, 0, 600, "trace")["outcomes"]["accepted"] >= 5


@pytest.mark.slow
@pytest.mark.hostile
def test_two_hundred_thousand_mutants(tmp_path: Path) -> None:
    total: Counter[str] = Counter()
    for first in range(1_000_000, 1_200_000, 20_000):
        total.update(hammered(tmp_path, first, 20_000)["outcomes"])
    assert total.total() == 200_000
    assert total["accepted"] >= 10_000


@pytest.mark.slow
@pytest.mark.hostile
def test_twenty_thousand_mutated_traces(tmp_path: Path) -> None:
    assert hammered(tmp_path, 1_000_000, 20_000, "trace")["outcomes"]["accepted"] >= 200


@pytest.mark.parametrize("probabilities", ["[1e308,1e308]", "[0.5,1e309]", "[NaN,0.5]", "[-1e308,1e308]", "[0.0,0.0]"])
def test_wild_probabilities_are_refused(probabilities: str) -> None:
    even = "[[0,16,64,512]]"
    assert even in TEXT
    assert not reads_or_refuses(TEXT.replace(even, f"[[16,64],{probabilities}]"))


@pytest.mark.parametrize("key", ["parallel", "vectorize", "unroll_explicit", "unroll_implicit", "cooperative_fetch"])
@pytest.mark.parametrize("value", ["[1]", "x", '{"str":"b3"}', '{"dict":{"a":1}}', "0.5"])
def test_what_rules_read_as_a_number_is_one(key: str, value: str) -> None:
    line = "annotate b1 ms.parallel 32"
    assert line in LINES
    assert not reads_or_refuses(LINES.replace(line, f"annotate b1 ms.{key} {value}"))


@pytest.mark.parametrize(
    "fragment",
    [
        '{"k":"GetSBlock","a":[{"str":"b3"}]}',
        '{"k":"CacheRead","i":[".0.0"],"a":[0,{"str":"b3"}]}',
        '{"k":"Annotate","i":[".0.0",{"FloatImm:float64":1}],"a":["x"]}',
        '{"k":"Annotate","i":[".0.0",{"float":1}],"a":["x"]}',
        '{"k":"Annotate","i":[".0.0",[{"float":1}]],"a":["x"]}',
    ],
)
def test_a_value_has_one_spelling(fragment: str) -> None:
    head = '<graph version="tsel/1" notation="json" tvm="0.25.0.post1">'
    edit = f'<trace_sequence id="t0">\n{{"k":"GetSBlock","a":["C"]}}\n{fragment}\n</trace_sequence>'
    assert not reads_or_refuses(f"{head}\n{edit}\n</graph>\n")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_refused(encoding: str) -> None:
    assert tsel.decode(LINES.encode()).trace == TRACE
    for text in (LINES, TEXT):
        assert not reads_or_refuses(text.encode(encoding))
        assert not reads_or_refuses(text.encode(encoding).decode("latin-1"))


def test_what_makes_nothing_is_written_and_read() -> None:
    text = re.sub(r"(<trace_sequence id=\"t0\"[^\n]*\n)", r"\1b0 = block root\nchildren b0\n", LINES, count=1)
    only = text[: text.index("children b0\n")] + "children b0\n</trace_sequence>\n</graph>\n"
    assert reads_or_refuses(only)


def billion_laughs(levels: int = 40) -> str:
    nodes: list[dict[str, Any]] = [{"type": "ffi.Array", "data": []}]
    nodes += [{"type": "ffi.Array", "data": [i, i]} for i in range(levels)]
    return json.dumps({"root_index": levels, "nodes": nodes, "metadata": {"tvm_version": tsel.TVM}})


def wide(levels: int = 6, width: int = 200) -> str:
    nodes: list[dict[str, Any]] = [{"type": "ffi.Array", "data": []}]
    nodes += [{"type": "ffi.Array", "data": [i] * width} for i in range(levels)]
    return json.dumps({"root_index": levels, "nodes": nodes, "metadata": {"tvm_version": tsel.TVM}})


def cyclic() -> str:
    nodes = [{"type": "ffi.Array", "data": [0, 0]}]
    return json.dumps({"root_index": 0, "nodes": nodes, "metadata": {"tvm_version": tsel.TVM}})


def many_maps(count: int = 8000) -> str:
    """A trace with as many index maps, each another one."""
    graph = json.loads(TRACE)
    nodes = graph["nodes"]

    def add(kind: str, data: Any = None) -> int:
        nodes.append({"type": kind} if data is None else {"type": kind, "data": data})
        return len(nodes) - 1

    root = nodes[graph["root_index"]]["data"]
    instructions = nodes[root[0]]["data"]
    kind, empty, block = add("ffi.String", "TransformLayout"), add("ffi.Array", []), add("ffi.String", "b0")
    zero = add("ir.IntImm", {"span": add("None"), "dtype": "int32", "value": 0})
    attrs = add("ffi.Array", [zero, zero, add("None"), zero])
    for number in range(count):
        parts: list[Any] = [{"type": "ffi.Array", "data": []}, {"type": "None"}]
        parts += [{"type": "ir.IntImm", "data": {"span": 1, "dtype": "int32", "value": number}}]
        parts += [{"type": "ffi.Array", "data": [2]}]
        fields = {"initial_indices": 0, "final_indices": 3, "inverse_index_map": 1}
        parts += [{"type": "tirx.IndexMap", "data": fields}]
        text = {"root_index": 4, "nodes": parts, "metadata": {"tvm_version": tsel.TVM}}
        inputs = add("ffi.Array", [block, add("ffi.String", json.dumps(text, separators=(",", ":")))])
        instructions.append(add("ffi.Array", [kind, inputs, attrs, empty]))
    # children stand before the node that holds them
    whole = add("ffi.Array", [add("ffi.Array", list(instructions)), root[1]])
    nodes[graph["root_index"]] = nodes[root[0]] = {"type": "None"}
    return json.dumps(graph | {"root_index": whole}, separators=(",", ":"))


def many_lookups(edit: int = 150, consumers: int = 500, lookups: int = 6000) -> str:
    """A trace with an edit of very many blocks, then as many look-ups before the next instruction."""
    nodes: list[dict[str, Any]] = []

    def add(kind: str, data: Any = None) -> int:
        nodes.append({"type": kind} if data is None else {"type": kind, "data": data})
        return len(nodes) - 1

    def put(kind: str, inputs: list[int], attrs: list[int], outputs: list[str]) -> int:
        made = add("ffi.Array", [add("ffi.String", name) for name in outputs])
        return add("ffi.Array", [add("ffi.String", kind), add("ffi.Array", inputs), add("ffi.Array", attrs), made])

    names = [add("ffi.String", "C"), add("ffi.String", "main")]
    storage = [add("ir.IntImm", {"span": add("None"), "dtype": "int32", "value": 0}), add("ffi.String", "local")]
    block = add("ffi.String", "b0")
    used = [add("ffi.String", f"l{number}") for number in range(1, consumers + 1)]
    instructions = [put("GetSBlock", [], names, ["b0"])]
    instructions.append(put("GetLoops", [block], [], [f"l{number}" for number in range(1, consumers + 1)]))
    instructions.append(put("CacheRead", [block, add("ffi.Array", [block])], storage, [f"b{consumers + 1}"]))
    instructions += [put("Fuse", used, [storage[0]], [f"l{consumers + 2 + number}"]) for number in range(edit)]
    start = consumers + 2 + edit
    instructions += [put("GetSBlock", [], names, [f"b{start + number}"]) for number in range(lookups)]
    instructions.append(put("ComputeAt", [add("ffi.String", f"b{start}"), used[0]], [storage[0], storage[0]], []))
    root = add("ffi.Array", [add("ffi.Array", instructions), add("ffi.Array", [])])
    return json.dumps(
        {"root_index": root, "nodes": nodes, "metadata": {"tvm_version": tsel.TVM}}, separators=(",", ":")
    )


@pytest.mark.parametrize("trace", [many_maps(), many_lookups()], ids=["maps", "look-ups"])
def test_large_traces_are_lifted_or_refused_soon(trace: str) -> None:
    assert len(trace) <= 1 << 22
    tsel.canonical(trace)  # it is a trace
    start = time.monotonic()
    lifts_or_refuses(trace)
    assert time.monotonic() - start < 8


@pytest.mark.parametrize("trace", [billion_laughs(), wide(), cyclic(), "[" * HUGE, '{"a":' * HUGE, "9" * HUGE, None, 7])
def test_hostile_traces(trace: Any) -> None:
    start = time.monotonic()
    assert not lifts_or_refuses(trace)
    assert time.monotonic() - start < 5


ENTITIES = '<!DOCTYPE graph [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {chr(98 + i)} "{("&" + chr(97 + i) + ";") * 10}">' for i in range(9)
)
FRAGMENT = '{"k":"EnterPostproc"}'
LETS = ",".join(f'"${i}":["*","${i - 1}","${i - 1}"]' if i else '"$0":1' for i in range(3000))
LONG_MAP = '<map id="m0">{"in":["i"],"out":[' + ",".join(['["+","i",1]'] * 1000) + "]}</map></graph>"
MANY_MAPS = TEXT.replace(FRAGMENT, FRAGMENT + '\n{"k":"TransformBlockLayout","i":["t0.0.0"],"a":[{"map":"m0"}]}' * 9000)
WIDE_MAP = '<map id="m0">{"in":[' + ",".join(f'"i{n}"' for n in range(90_000)) + '],"out":['
WIDE_MAP += ",".join(['"i89999"'] * 4000) + "]}</map></graph>"
DEEP_LETS = f'<map id="m0">{{"in":["i"],"let":{{{LETS}}},"out":["$2999"]}}</map></graph>'


@pytest.mark.parametrize(
    "text",
    [
        ENTITIES + "]><graph>&j;</graph>",
        '<!DOCTYPE graph SYSTEM "file:///etc/passwd"><graph/>',
        "<graph>" * (HUGE // 8),
        "<a>" * 300_000,
        "<graph " + 'x="1" ' * 100_000 + "/>",
        TEXT.replace(FRAGMENT, '{"k":"Fuse","i":' + "[" * HUGE + "]" * HUGE + "}"),
        TEXT.replace(FRAGMENT, '{"k":"Fuse","i":["' + '\\"' * HUGE + "}"),
        TEXT.replace(FRAGMENT, '{"k":"Fuse","a":[' + "9" * HUGE + "]}"),
        TEXT.replace(FRAGMENT, '{"k":"Fuse","a":[1e' + "9" * HUGE + "]}"),
        TEXT.replace(FRAGMENT, '{"k":"Fuse","a":[0.' + "9" * HUGE + "]}"),
        TEXT.replace(FRAGMENT, '{"k":"Fuse","o":"' + "L" * HUGE + '"}'),
        TEXT.replace(FRAGMENT, '{"k":"Fuse","i":[' + "0," * HUGE + "0]}"),
        TEXT.replace(FRAGMENT, (FRAGMENT + "\n") * 40_000),
        TEXT.replace('"k":"RFactor"', '"k":"' + "R" * HUGE + '"'),
        TEXT.replace("</graph>", DEEP_LETS),
        MANY_MAPS.replace("</graph>", LONG_MAP),
        TEXT.replace("</graph>", WIDE_MAP),
        TEXT.replace(',1],"a":["meta', "," + "[" * 12 + "]" * 12 + '],"a":["meta', 1),
        TEXT.replace(',1],"a":["meta', ",[" + "0," * 300_000 + '0]],"a":["meta', 1),
        TEXT.replace("</graph>", '<supports from="e0" to="a0"/>' * 30_000 + "</graph>"),
        None,
        7,
    ],
    ids=lambda text: str(text)[:20],
)
def test_hostile_texts(text: Any) -> None:
    start = time.monotonic()
    assert not reads_or_refuses(text)
    assert time.monotonic() - start < 5


def test_strings_of_a_trace_survive_whatever_they_hold() -> None:
    for name in ("<&>", "]]>", "a\\b", "é ", "\x7f\x85\u2028\ufffe", "t0.0.0", "{}", "None", '"', "'"):
        graph = json.loads(TRACE)
        for node in graph["nodes"]:
            if node["type"] == "ffi.String" and re.fullmatch("x_red_temp.*", node["data"]):
                node["data"] = name
        assert lifts_or_refuses(json.dumps(graph))
