"""Admission with TVM in a child: real traces pass every gate, and what TVM would crash on or repair is refused."""

import dataclasses
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from littledragon.compiler import children, targets
from littledragon.compiler.rules import postproc_of
from littledragon.compiler.zoo import blocks
from littledragon.pipelines import tsel_files
from littledragon.pipelines.errors import UserError
from littledragon.schemas import tsel
from littledragon.schemas.graph import Edit, Graph, Instruction

ROOT = Path(__file__).parents[2]
PROBE = Path(os.environ.get("LITTLEDRAGON_H200", ROOT.parent / "shared" / "data" / "h200_probe.jsonl.gz"))
CUDA = targets.target("cuda")
LLVM = targets.target("llvm")
Rows = tuple[dict[str, str], list[dict[str, Any]]]


def rows(path: Path) -> Rows:
    """Modules by workload, and candidates with a trace."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        read = [json.loads(line) for line in file]
    modules = {row["name"]: row["module"] for row in read if row["kind"] == "workload"}
    return modules, [row for row in read if row["kind"] == "candidate" and row["trace"]]


@pytest.fixture(scope="module")
def sample() -> Rows:
    return rows(ROOT / "samples" / "h200_traces.jsonl.gz")


def admit(module: str, trace: str | None, target: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = children.worker("test-traces").call(
        "littledragon.compiler.traces:admit", deadline_s=90, module=module, trace=trace, target=target
    )
    return answer


def apply(module: str, text: str, target: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = children.worker("test-traces").call(
        "littledragon.compiler.traces:apply", deadline_s=90, module=module, text=text, target=target
    )
    return answer


def passes(row: dict[str, Any], modules: dict[str, str]) -> dict[str, Any]:
    """A trace that passes, with what must hold of the answer."""
    answer = admit(modules[row["name"]], row["trace"], CUDA)
    assert answer["failed"] is None, (row["name"], row["i"], answer["reason"])
    kinds = tsel.kinds(row["trace"])
    own = kinds.index("EnterPostproc")
    assert answer["trace"] == tsel.canonical(row["trace"])
    assert answer["rules"] == "cuda-tensorcore"
    assert answer["applied"] == answer["emitted"] == own
    assert (answer["instructions"], answer["postproc_instructions"]) == (len(kinds), len(kinds) - own - 1)
    prefix = tsel.decode(answer["tsel"])
    assert prefix.graph.postproc == postproc_of("cuda-tensorcore")
    assert tsel.kinds(prefix.trace) == kinds[:own]
    anew = dataclasses.replace(tsel.lift(prefix.trace), postproc=prefix.graph.postproc)
    assert answer["tsel"] == tsel.render(anew).text
    return answer


@pytest.mark.slow
def test_sampled_h200_traces_replay_to_equal_modules(sample: Rows) -> None:
    modules, candidates = sample
    hashes = {(row["name"], passes(row, modules)["module_hash"]) for row in candidates}
    assert len(hashes) == len(candidates)


def test_a_text_gives_what_its_trace_gives(sample: Rows) -> None:
    modules, candidates = sample
    for row in (candidates[0], next(r for r in candidates if r["name"].startswith("gemm_f32"))):
        given = passes(row, modules)
        for text in (
            given["tsel"],
            tsel.convert(given["tsel"], "json"),
            tsel.encode(row["trace"]).text,
            tsel.encode(row["trace"], "json").text,
        ):
            assert apply(modules[row["name"]], text, CUDA) == given


def test_default_schedules(sample: Rows) -> None:
    modules, candidates = sample
    module = modules[candidates[0]["name"]]
    cuda, llvm = admit(module, None, CUDA), admit(module, None, LLVM)
    assert cuda["failed"] is llvm["failed"] is None
    assert cuda["module_hash"] != llvm["module_hash"]
    assert "blockIdx.x" in cuda["scheduled"]
    assert "blockIdx.x" not in llvm["scheduled"]


def changed(graph: Graph, change: Callable[[Instruction], Instruction | None]) -> str:
    """The text of a graph in which the first instruction is replaced for which `change` gives another."""
    done = False
    edits = []
    for edit in graph.edits:
        kept = []
        for instruction in edit.instructions:
            other = None if done else change(instruction)
            done = done or other is not None
            kept.append(other or instruction)
        edits.append(dataclasses.replace(edit, instructions=tuple(kept)))
    assert done
    return tsel.render(dataclasses.replace(graph, edits=numbered(edits))).text


def numbered(edits: list[Edit]) -> tuple[Edit, ...]:
    """The edits with outputs numbered anew, after one was added; no map may name a sampled number."""
    names: dict[str, str] = {}
    made = []
    for edit in edits:
        kept = []
        for i in edit.instructions:
            inputs = tuple(names.get(value, value) if isinstance(value, str) else value for value in i.inputs)
            names |= {name: f"{name[0]}{len(names) + index}" for index, name in enumerate(i.outputs)}
            kept.append(i._replace(inputs=inputs, outputs=tuple(names[name] for name in i.outputs)))
        made.append(dataclasses.replace(edit, instructions=tuple(kept)))
    return tuple(made)


def on(kind: str, **parts: Any) -> Callable[[Instruction], Instruction | None]:
    return lambda i: i._replace(**parts) if i.kind == kind else None


def other_extent(i: Instruction) -> Instruction | None:
    if i.kind != "SamplePerfectTile":
        return None
    factors = [2 * i.decision["factors"][0], *i.decision["factors"][1:]]
    return i._replace(decision={"extent": 2 * i.decision["extent"], "factors": factors})


def other_step(i: Instruction) -> Instruction | None:
    if i.kind != "Annotate" or i.attrs != ("pragma_auto_unroll_max_step",):
        return None
    return i._replace(inputs=(i.inputs[0], i.inputs[1] + 1))


def other_width(i: Instruction) -> Instruction | None:
    if i.kind != "SampleCategorical" or len(i.attrs[0]) != 4 or i.decision == 0:
        return None
    return i._replace(decision=0)


def one_output_more(i: Instruction) -> Instruction | None:
    return i._replace(outputs=(*i.outputs, "b_new")) if i.kind == "GetChildBlocks" else None


def many_threads(i: Instruction) -> Instruction | None:
    """All of the first axis in its threads: [1, 1, extent, 1, 1]."""
    if i.kind != "SamplePerfectTile" or i.attrs[0] != 5:
        return None
    extent = i.decision["extent"]
    return i._replace(decision={"extent": extent, "factors": [1, 1, extent, 1]})


@pytest.mark.parametrize(
    ("change", "gate", "words"),
    [
        (other_extent, "applicable", "the loop's extent is"),
        (other_step, "applicable", "is not the sampled"),
        (other_width, "applicable", "lanes of a cooperative fetch"),
        (one_output_more, "applicable", "GetChildBlocks"),
        (on("GetSBlock", attrs=("nowhere", "main")), "applicable", "GetSBlock: ScheduleError: Cannot find a block"),
        (on("CacheRead", attrs=(7, "shared")), "applicable", "buffer_index"),
        (many_threads, "postprocessed", "VerifyGPUCode"),
    ],
)
def test_what_does_not_fit_the_program_is_refused(
    sample: Rows, change: Callable[[Instruction], Instruction | None], gate: str, words: str
) -> None:
    modules, candidates = sample
    row = gemm(candidates)
    answer = apply(modules[row["name"]], changed(tsel.lift(row["trace"]), change), CUDA)
    refused(answer, gate, words)


def gemm(candidates: list[dict[str, Any]]) -> dict[str, Any]:
    """One with all that the tests change."""
    kinds = {"Vectorize", "CacheRead", "GetChildBlocks"}
    return next(
        row
        for row in candidates
        if row["name"].startswith("gemm_f32")
        and kinds <= set(tsel.kinds(row["trace"]))
        and "pragma_auto_unroll_max_step" in row["trace"]
    )


def refused(answer: dict[str, Any], gate: str, words: str) -> None:
    assert answer["failed"] == gate, answer["reason"]
    assert words in answer["reason"]
    assert "\n" not in answer["reason"]
    assert answer["scheduled"] is None
    assert answer["instructions"] >= answer["emitted"] > 0
    assert answer["applied"] <= answer["emitted"]


@pytest.mark.parametrize(
    ("change", "gate", "words"),
    [
        (other_extent, "applicable", "the loop's extent is"),
        (on("CacheRead", attrs=(7, "shared")), "applicable", "buffer_index"),
        (many_threads, "postprocessed", "VerifyGPUCode: too many threads"),
    ],
)
def test_what_does_not_fit_is_refused_where_post_processing_is_derived(
    sample: Rows, change: Callable[[Instruction], Instruction | None], gate: str, words: str
) -> None:
    modules, candidates = sample
    row = gemm(candidates)
    graph = tsel.decode(passes(row, modules)["tsel"]).graph
    answer = apply(modules[row["name"]], changed(graph, change), CUDA)
    refused(answer, gate, words)
    assert answer["instructions"] == answer["emitted"]  # what the text spells; there is no more
    assert (answer["applied"] == answer["emitted"]) == (gate == "postprocessed")


def test_a_copy_for_the_block_that_writes_it_is_refused(sample: Rows) -> None:
    """TVM dies of it."""
    modules, candidates = sample
    row = gemm(candidates)
    graph = tsel.lift(row["trace"])
    write = next(i for edit in graph.edits for i in edit.instructions if i.kind == "CacheWrite")
    text = changed(graph, on("CacheRead", inputs=(write.outputs[0], (write.inputs[0],)), attrs=(0, "shared")))
    refused(apply(modules[row["name"]], text, CUDA), "applicable", "CacheRead: none of the consumers is a block beside")


def test_other_decisions_are_post_processed_anew(sample: Rows) -> None:
    modules, candidates = sample
    row = gemm(candidates)
    given = passes(row, modules)
    text = changed(tsel.decode(given["tsel"]).graph, other_width)
    answer = apply(modules[row["name"]], text, CUDA)
    assert answer["failed"] is None
    assert answer["tsel"] == text
    assert answer["module_hash"] != given["module_hash"]
    assert admit(modules[row["name"]], answer["trace"], CUDA) == answer


def test_post_processing_of_another_kind_stays_as_it_is(sample: Rows) -> None:
    """What the rule set would not add is kept, word for word."""
    modules, candidates = sample
    row = gemm(candidates)
    graph = tsel.lift(row["trace"])
    *edits, last = graph.edits
    shorter = dataclasses.replace(last, instructions=last.instructions[:1])
    assert shorter.instructions[0].kind == "EnterPostproc"
    text = tsel.render(dataclasses.replace(graph, edits=(*edits, shorter))).text
    answer = apply(modules[row["name"]], text, CUDA)
    assert answer["failed"] is None, answer["reason"]
    assert answer["tsel"] == text
    assert answer["rules"] is None
    assert answer["emitted"] == answer["applied"] == answer["instructions"]
    assert answer["postproc_instructions"] == 0


def test_a_text_that_does_not_enter_post_processing_is_refused(sample: Rows) -> None:
    modules, candidates = sample
    row = candidates[0]
    graph = tsel.decode(passes(row, modules)["tsel"]).graph
    before = dataclasses.replace(graph, postproc=None)
    answer = apply(modules[row["name"]], tsel.render(before).text, CUDA)
    refused(answer, "postprocessed", "it never enters post-processing")
    assert answer["applied"] == answer["emitted"]


def test_a_text_may_name_another_rule_set_of_its_target(sample: Rows) -> None:
    modules, candidates = sample
    row = candidates[0]
    given = passes(row, modules)
    graph = tsel.decode(given["tsel"]).graph
    text = tsel.render(dataclasses.replace(graph, postproc=postproc_of("llvm"))).text
    refused(apply(modules[row["name"]], text, CUDA), "postprocessed", "the rules llvm are not for cuda targets")
    text = tsel.render(dataclasses.replace(graph, postproc=postproc_of("cuda"))).text
    answer = apply(modules[row["name"]], text, CUDA)
    assert (answer["failed"], answer["rules"], answer["tsel"]) == (None, "cuda", text)
    assert "Tensorize" in tsel.kinds(given["trace"])
    assert "Tensorize" not in tsel.kinds(answer["trace"])
    whole = admit(modules[row["name"]], answer["trace"], CUDA)
    assert (whole["failed"], whole["rules"], whole["tsel"]) == (None, None, tsel.encode(answer["trace"]).text)


def test_functions_around_derived_post_processing(sample: Rows, call: Any) -> None:
    modules, candidates = sample
    row = gemm(candidates)
    given, module, trace = passes(row, modules), modules[row["name"]], row["trace"]
    common = {"module": module, "target": CUDA}
    assert call("probe.schedules:encode", trace=trace, notation="line", **common) == given["tsel"]
    json_text = call("probe.schedules:encode", trace=trace, notation="json", **common)
    assert json_text == tsel.convert(given["tsel"], "json")
    assert call("probe.schedules:decode", text=json_text, **common) == given["trace"]
    assert call("probe.schedules:decode", text=tsel.encode(trace).text, **common) == given["trace"]
    assert call("probe.schedules:expand", text=json_text, **common) == given["trace"]
    graph = tsel.decode(json_text).graph
    for change, words in ((many_threads, "postprocessed: VerifyGPUCode"), (other_extent, "applicable: ")):
        text = changed(graph, change)
        assert call("probe.schedules:expand", text=text, **common).startswith(words)
    for rules in ("cuda", "cuda-tensorcore"):
        for explained, wanted in ((None, rules), ("first", rules), ("last", None)):
            found = call("probe.schedules:derive", trace=trace, rules=rules, explained=explained, **common)
            assert found == wanted
    assert call("probe.schedules:derive", trace=trace, rules="llvm", **common) is None


@pytest.mark.parametrize(("text", "gate"), [("", "parsed"), ("<graph/>", "parsed")])
def test_texts_that_are_no_graph(text: str, gate: str) -> None:
    assert apply("unused", text, LLVM)["failed"] == gate


def test_traces_that_are_none() -> None:
    assert admit("unused", "[]", LLVM)["failed"] == "parsed"
    golden = (ROOT / "tests" / "golden" / "tsel" / "llvm.trace.json").read_text(encoding="utf-8")
    answer = admit("unused", golden.replace('"EnterPostproc"', '"EnterPreproc"'), LLVM)
    assert answer["failed"] == "wellformed"
    assert answer["instructions"] == len(tsel.kinds(golden))


def test_llvm_traces_of_random_members_and_their_files(tmp_path: Path) -> None:
    """Random members of the llvm space pass; a sampled place that the program does not have is refused."""
    worker = children.worker("test-traces")
    block = next(b.id for b in blocks("demo") if "softmax" in b.id)
    tasks = worker.call(
        "littledragon.compiler.lowering:extract", deadline_s=90, zoo="demo", block_ids=[block], target=LLVM
    )
    module = next(task["module"] for task in tasks if task["module"])
    members = worker.call(
        "littledragon.compiler.proposals:propose",
        deadline_s=120,
        module=module,
        target=LLVM,
        rules="llvm",
        records=[],
        count=6,
        seed=0,
        round=0,
        population=16,
    )
    assert members
    for member in members:
        answer = admit(module, member["trace"], LLVM)
        assert answer["failed"] is None, answer["reason"]
        assert answer["trace"] == tsel.canonical(member["trace"])
        assert answer["rules"] == "llvm"
    path = tmp_path / "label.xml"
    path.write_text(answer["tsel"], encoding="utf-8")
    assert tsel_files.check(path).startswith(f"{path}: well-formed tsel/1, ")
    assert tsel_files.apply(path, module, LLVM) == answer
    placed = next(m["trace"] for m in members if "SampleComputeLocation" in tsel.kinds(m["trace"]))
    far = changed(tsel.lift(placed), on("SampleComputeLocation", decision=900))
    answer = apply(module, far, LLVM)
    assert answer["failed"] == "applicable"
    assert "SampleComputeLocation: TVM repairs the decision 900 to " in answer["reason"]


def test_files_that_cannot_be_checked(tmp_path: Path) -> None:
    golden = (ROOT / "tests" / "golden" / "tsel" / "llvm.line.xml").read_text(encoding="utf-8")
    path = tmp_path / "label.xml"
    with pytest.raises(UserError, match="cannot be read: No such file"):
        tsel_files.check(path)
    path.write_text(golden.replace(" 18992 [2374]", " 18992 [2375]"), encoding="utf-8")
    with pytest.raises(UserError, match=r"t0\.3 SamplePerfectTile: .* do not divide the extent 18992 \(tile\)"):
        tsel_files.check(path)
    path.write_text("x" * (tsel.MAX_TEXT + 10), encoding="utf-8")
    with pytest.raises(UserError, match="longer than"):
        tsel_files.apply(path, "unused", LLVM)


@pytest.mark.h200
@pytest.mark.skipif(not PROBE.exists(), reason="the whole H200 probe file is not here")
def test_every_h200_trace_comes_back_as_a_tree() -> None:
    _, candidates = rows(PROBE)
    assert len(candidates) == 868
    for row in candidates:
        assert tsel.decode(tsel.encode(row["trace"]).text).trace == tsel.canonical(row["trace"])


@pytest.mark.h200
@pytest.mark.slow
@pytest.mark.skipif(not PROBE.exists(), reason="the whole H200 probe file is not here")
def test_every_h200_trace_replays_to_an_equal_module() -> None:
    modules, candidates = rows(PROBE)
    assert len(candidates) == 868
    for row in candidates:
        passes(row, modules)
