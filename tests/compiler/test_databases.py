"""Lines of MetaSchedule's databases: what TVM writes is read as what it was, and nothing else gets through."""

import base64
import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from littledragon.compiler import databases, targets
from littledragon.compiler.databases import Bad
from littledragon.schemas import tsel

GOLDEN = Path(__file__).parent.parent / "golden" / "release"
TRACES = [tsel.canonical((GOLDEN / f"trace_{name}.json").read_text(encoding="utf-8")) for name in ("fast", "slow")]
TARGET = {"kind": "cuda", "arch": "sm_90"}


def record(trace: Any = None, **other: Any) -> list[Any]:
    return [
        other.get("workload", 0),
        [
            databases.json_of(TRACES[0]) if trace is None else trace,
            other.get("seconds", [1e-5]),
            other.get("target", TARGET),
            None,
        ],
    ]


def line(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("trace", TRACES)
def test_a_trace_survives_its_line(trace: str) -> None:
    read = databases.record_of(line(record(databases.json_of(trace))))
    assert read == databases.Record(0, trace, 1e-5, "cuda")


def test_a_trace_survives_whole_floats_that_were_written_as_integers() -> None:
    trace = [[["SampleCategorical", [], [[1, 2], [1.0, 0.0]], ["v0"]], ["EnterPostproc", [], [], []]], [[0, 1]]]
    bare = json.loads(json.dumps(trace).replace("1.0", "1").replace("0.0", "0"))
    assert databases.trace_of(bare) == databases.trace_of(trace)
    assert '"ir.FloatImm"' in databases.trace_of(bare)


@pytest.mark.parametrize("name", ["llvm", pytest.param("cuda", marks=pytest.mark.slow)])
def test_what_tvm_writes_reads_as_the_trace_that_it_wrote(tmp_path: Path, name: str) -> None:
    import tvm
    from tvm.s_tir import Schedule, Trace
    from tvm.s_tir import meta_schedule as ms

    from littledragon.compiler import lowering, proposals
    from littledragon.compiler.zoo import blocks

    target = targets.target(name)
    ids = [block.id for block in blocks("demo") if block.family == "gemm"]
    rows = [row for row in lowering.extract("demo", ids[:3], target) if row["state"] == "ok"]
    assert rows
    for number, row in enumerate(rows):
        module = tvm.ir.load_json(row["module"])
        proposed = [p["trace"] for p in proposals.propose(row["module"], target, row["rules"], [], 4, 0, 0, 32)]
        assert proposed
        folder = tmp_path / str(number)
        folder.mkdir()
        database = ms.database.JSONDatabase(work_dir=str(folder))
        workload = database.commit_workload(module)
        for trace in proposed:
            schedule = Schedule(module)
            Trace.apply_json_to_schedule(tvm.ir.load_json(trace), schedule)
            database.commit_tuning_record(
                ms.database.TuningRecord(schedule.trace, workload, [2.0], tvm.target.Target(target), None)
            )
        lines = (folder / databases.RECORDS).read_bytes().splitlines()
        assert [databases.record_of(one) for one in lines] == [
            databases.Record(0, trace, 2.0, name) for trace in proposed
        ]
        (stored,) = (folder / databases.WORKLOADS).read_bytes().splitlines()
        assert databases.identify([databases.workload_of(stored)]) == [
            {"workload_id": row["workload_id"], "problem": None}
        ]


NESTED = json.loads("[" * 20 + "1" + "]" * 20)
BROKEN = {
    "cut off": (line(record())[:-40], "not JSON"),
    "no pair": (b"[1]", "number and trace"),
    "no text": (b"\xff\xfe[]", "not JSON"),
    "deep": (b"[" * 100_000 + b"]" * 100_000, "not JSON"),
    "a negative number": (line(record(workload=-1)), "number is none"),
    "a flag for a number": (line(record(workload=True)), "number is none"),
    "a negative latency": (line(record(seconds=[-1.0])), "not all positive"),
    "a latency of text": (line(record(seconds=["1"])), "not all positive"),
    "NaN": (line(record(seconds=[math.nan])), "not JSON"),
    "infinity": (b'[0,[[[],[]],[1e999],{"kind":"cuda"},null]]', "not all positive|not JSON"),
    "no list of latencies": (line(record(seconds=3.0)), "no list"),
    "a target of text": (line(record(target="cuda")), "without a kind"),
    "no trace": (line(record(trace=[1, 2])), "no list of instructions"),
    "deep values": (
        line(record(trace=[[["Annotate", [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]], [], []]], []])),
        "deep",
    ),
    "no map": (line(record(trace=[[["TransformLayout", ["b0", "{"], [], []]], []])), "not JSON"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_line_that_is_no_record_says_why(name: str) -> None:
    text, words = BROKEN[name]
    with pytest.raises(Bad, match=words):
        databases.record_of(text)


def test_a_record_that_says_that_it_failed_is_told_from_one_that_is_silent() -> None:
    assert databases.record_of(line(record(seconds=[1e10]))).seconds == math.inf
    assert databases.record_of(line(record(seconds=None))).seconds is None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["b0", "{", "Split"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(VALUES)
def test_any_json_for_a_trace_is_read_or_refused(value: Any) -> None:
    for text in (line(record(trace=value)), line(record(trace=[[value], []])), line(value)):
        for read in (databases.record_of, databases.workload_of):
            try:
                read(text)
            except Bad as bad:
                assert str(bad)


@given(st.integers(0, 4000), st.binary(max_size=3))
def test_a_spoilt_line_is_read_or_refused(place: int, bytes_: bytes) -> None:
    text = line(record())
    place %= len(text)
    try:
        read = databases.record_of(text[:place] + bytes_ + text[place + 1 :])
    except Bad:
        return
    assert tsel.canonical(read.trace) == read.trace


def packed(graph: Any) -> str:
    data = graph if isinstance(graph, bytes) else json.dumps(graph).encode()
    return base64.b64encode(struct.pack("<Q", len(data)) + data).decode()


def graph(*nodes: Any, **other: Any) -> dict[str, Any]:
    return {"root_index": len(nodes) - 1, "nodes": list(nodes), "metadata": {"tvm_version": tsel.TVM}, **other}


MODULES = {
    "base64": ("not base64!", "no base64"),
    "length": (base64.b64encode(struct.pack("<Q", 10**9) + b"{}").decode(), "cut off"),
    "short": (base64.b64encode(b"abc").decode(), "cut off"),
    "json": (packed(b"{"), "not JSON"),
    "graph": (packed([]), "no graph"),
    "root": (packed(graph({"type": "None"}, root_index=7)), "no graph"),
    "version": (packed(graph({"type": "None"}, metadata={"tvm_version": "0.27.0"})), "written by TVM 0.27.0"),
    "type": (packed(graph({"data": 1})), "without a type"),
    "reference": (packed(graph({"type": "ffi.Array", "data": [10**9]})), "not there"),
    "itself": (packed(graph({"type": "ffi.Array", "data": [0]})), "not there"),
    "no module": (packed(graph({"type": "None"})), "not a module of one function"),
}


def test_a_module_that_is_none_says_why_and_the_others_are_found(call: Any) -> None:
    module = (GOLDEN / "module.json").read_text(encoding="utf-8")
    stored = packed(module.encode())
    answers = call("compiler.databases:identify", modules=[stored, *(text for text, _ in MODULES.values()), stored])
    assert answers[0]["workload_id"] == answers[-1]["workload_id"] is not None
    for answer, (name, (_, words)) in zip(answers[1:-1], MODULES.items(), strict=True):
        assert answer["workload_id"] is None, name
        assert words in answer["problem"], name
