"""The static verifier: good labels stand, and every planted fault is found, with the reason that names it."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.schemas import tsel
from littledragon.schemas.gates import REASONS
from littledragon.schemas.graph import Analysis, Edge, Evidence, Graph
from littledragon.validators.verifier import Finding, verify

GOLDEN = Path(__file__).parents[1] / "golden" / "labels"
NAMES = sorted(path.name.removesuffix(".task.json") for path in GOLDEN.glob("*.task.json"))


def read(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


TASK, FACTS = read("matmul.task.json"), read("matmul.facts.json")
LABELS = {mode: (GOLDEN / f"matmul.{mode}.xml").read_text(encoding="utf-8") for mode in FACTS}
GRAPHS = {mode: tsel.decode(text).graph for mode, text in LABELS.items()}


def judge(graph: Graph | str, mode: str = "construct") -> Finding:
    text = graph if isinstance(graph, str) else tsel.render(graph).text
    return verify(text, TASK["tsel"], TASK["trace"], FACTS[mode], mode)


def say(text: str, mode: str = "construct") -> Graph:
    """The good label with the first analysis saying something else."""
    first, *rest = GRAPHS[mode].analyses
    return replace(GRAPHS[mode], analyses=(Analysis(first.id, text), *rest))


def summarise(edit: str, text: str) -> Graph:
    edits = tuple(replace(e, summary=text) if e.id == edit else e for e in GRAPHS["construct"].edits)
    return replace(GRAPHS["construct"], edits=edits)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["construct", "refine"])
def test_good_labels_stand(name: str, mode: str) -> None:
    facts = read(f"{name}.facts.json")[mode]
    text = (GOLDEN / f"{name}.{mode}.xml").read_text(encoding="utf-8")
    task = read(f"{name}.task.json")
    finding = verify(text, task["tsel"], task["trace"], facts, mode)
    assert (finding.state, finding.reason, finding.detail) == ("ok", None, None)
    assert finding.citations > 5
    assert finding.computations > 1
    assert finding.claims > 5


FAULTS: dict[str, list[str]] = {
    "speedup_claimed": [
        "This gives a speedup.",
        "The split makes a clear speed-up likely.",
        "It speeds the loop up.",
        "The kernel is faster.",
        "The kernel is much faster than the default.",
        "It is faster by 30%.",
        "It runs 2x faster.",
        "It runs 2× faster.",
        "It runs 2 × as fast.",
        "It is twice as fast.",
        "It takes half the time.",
        "Performance doubles.",
        "It doubles the throughput.",
        "A threefold improvement follows.",
        "An order of magnitude is gained.",
        "This outperforms the default schedule.",
        "It beats graph A.",
        "The default schedule is slower.",
        "It accelerates the reduction.",
        "It is superior to the default.",
        "It performs better.",
        "It is more efficient.",
        "It needs fewer cycles.",
        "The speed is higher.",
        "A fast kernel results.",
        "A clear gain follows.",
        "A win of ×3 follows.",
        "Latency falls to 12 us.",
        "It takes 12 µs.",
        "It takes 0.4 ms.",
        "It reaches 150 GFLOPS.",
        "It reaches 1.5 TFLOP/s.",
        "The memory traffic is 300 GB/s.",
        "This was measured.",
        "Measurements show less traffic.",
        "Benchmarks agree.",
        "We observed better reuse.",
        "The gain is 25 percent.",
        "It improves performance by a factor of 2.",
        "It reduces the execution time.",
        "It shortens the run time.",
        "It cuts latency.",
        "A lower latency follows.",
        "This is the fastest schedule.",
        "This is the best known schedule.",
        "The requested gain band is reached.",
        "This delivers the requested gain band.",
        "The schedule achieves the gain that was asked for.",
        "It will guarantee the improvement.",
        "It finishes sooner.",
        "It improves graph A.",
        "This schedule is better.",
        "It lies well within the requested gain band.",
        "The requested gain band is exceeded.",
        # The same in disguise.
        "The kernel is ｆａｓｔｅｒ.",
        "The kernel is f\u200baster.",
        "The kernel is fas­ter.",
        "The kernel is fаster.",
        "The kernel is fаstеr.",
        "The kernel is FASTER.",
        "The kernel is fas-ter.",
        "The kernel is f*a*s*t*e*r.",
        "A ѕpeedup is due.",
        "It is ２× fаster.",
        "A speed‑up is due.",
        "The kernel is fa\u200bs\u200bt‌er.",
    ],
    "unknown_citation": [
        "It has [in.block.nt_matmul.loop.q.extent=128] iterations.",
        "It has [out.t99.split.k.extent=128] iterations.",
        "It has [in.nothing=1] iterations.",
        "It has [block.nt_matmul=128] iterations.",
        "It has [in.block.nt_matmul.loop.k.extent] iterations.",
        "It has [In.block.nt_matmul.loop.k.extent=128] iterations.",
        "It has [in.block.nt_matmul.loop.k.extent=128 iterations.",
    ],
    "misquoted": [
        "It has [in.block.nt_matmul.loop.k.extent=129] iterations.",
        "It has [in.block.nt_matmul.loop.k.extent= 128] iterations.",
        "It has [in.block.nt_matmul.loop.k.extent=128.0] iterations.",
        "It has [in.block.nt_matmul.loop.k.extent=] iterations.",
        "It has [in.buffer.x.dtype=float32] elements.",
        'It has [in.buffer.x.dtype="float16"] elements.',
        "It is split as [out.t1.split.i0.factors=[2,32,2,1]].",
        "It is split as [out.t1.split.i0.factors=[32, 2, 2, 1]].",
        "It has [in.block.nt_matmul.loop.k.extent=１２８] iterations.",
    ],
    "arithmetic": [
        "The split is 32 * 2 * 2 * 1 = 129.",
        "The split is 32 * 2 * 2 * 2 = 128.",
        "The split is 32 × 2 × 2 = 127.",
        "The sum 32 + 2 = 35 is odd.",
        "It holds that 128 / 32 = 5.",
        "It holds that 128 // 32 = 5.",
        "It holds that 128 ÷ 32 = 5.",
        "It holds that 128 % 32 = 1.",
        "It holds that 2 ** 2 = 5.",
        "It holds that (32 - 2) * 2 = 62.",
        "It holds that 128 < 32.",
        "It holds that 32 >= 128.",
        "The product 32 times 2 equals 65.",
        "The product 32 * 2 is 65.",
        "The quotient 128 divided by 32 gives 5.",
        "Half: [in.block.nt_matmul.loop.k.extent=128] / 2 = 32.",
        "It holds that 32 * 2 = 64 = 65.",
        "It holds that 128 / 0 = 0.",
        "It holds that 2 ** 100000 = 2.",
        "A factor = 4 is chosen.",
        "It holds that thirty-two times two equals sixty-five.",
        "It moves 128 * 2 bytes = 255 bytes.",
        "It holds that ３２ * ２ = ６５.",
        "It holds that 1 / 3 = 0.3333.",
        "The [in.block.nt_matmul.loop.k.extent=128] iterations are fewer than 32.",
        "Here [in.block.nt_matmul.loop.k.extent=128] is less than 32 of them.",
        "Here 32 exceeds [in.block.nt_matmul.loop.k.extent=128].",
    ],
    "unbacked_number": [
        "It has 777 iterations.",
        "It has 128 iterations.",  # a fact, but not cited here
        "It has sixteen parts.",
        "It is done twice.",
        "It touches half of the rows.",
        "A dozen values are kept.",
        "It has thirty-three parts.",
        "It has one hundred and twenty-eight parts.",
        "It keeps 3.5 values.",
        "It keeps 1e3 values.",
        "A 64-bit value is kept.",
        "Parts of 4x4 are kept.",
        "It has ７７７ iterations.",
        "It has 1,024 iterations.",
        "It holds that 777 = 777.",
        "It holds that 777 * 1 = 777.",
        "It holds that 700 + 77 = 777.",
        "It has [in.block.nt_matmul.loop.k.extent=128] iterations, in 9 parts.",
        "A quarter of them remain.",
    ],
    "false_claim": [
        "Its values are inlined.",
        "Operands are cached.",
        "A cache write stage collects them.",
        "They are staged in a local buffer.",
        "The tile is copied into a scratchpad.",
        "An rfactor step is taken.",
        "The product is mapped to tensor cores.",
        "It is tensorized.",
        "WMMA fragments hold the tile.",
        "Loops are bound to threadIdx.",
        "Each warp takes a row.",
        "Thread blocks take rows.",
        "Shared memory keeps the tile.",
        "Loads are software-pipelined.",
        "Operands are prefetched.",
        "Double buffering hides the loads.",
        "The layout is transformed.",
        "No loop is vectorised.",
        "The schedule does not unroll.",
        "It runs without parallel loops.",
        "Loops are never tiled.",
        "The inner loop stays unvectorised.",
        "Zero loops are vectorised.",
        "The schedule refrains from vectorising.",
        "It fails to unroll the body.",
        "It forgoes tiling.",
        "Vectorisation is avoided.",
        "Unrolling is deliberately left out.",
        "The loop i7 is the longest.",
        "The loop q is the longest.",
        "Block conv2d_nchw is the longest.",
        "The type is float64.",
        "Loop k has [in.block.nt_matmul.loop.i0.extent=128] iterations.",
        "Buffer x has [in.buffer.w.bytes=32768] bytes.",
        "Loop i0 is split as 16 * 2 * 2 * 2 = 128.",
        "Loop k of block compute is long.",
        "Loop k of the program is a spatial loop: k is a spatial one, the spatial loop k.",
        "The reduction loop i0 is long.",
        "The reduction loop k is vectorised.",
        "Loop k runs in parallel.",
        "It vectorises the reduction loop k.",
        "It uses `cache_read` for it.",
        "It uses ComputeInline for it.",
        "Operands are саched.",
        "Its values are inl\u200bined.",
    ],
    "malformed": [
        "Values stay near\u200b.",
        "Values stay near\u202e.",
        "Values stay near \ufeffall along.",
        "Values stay néar.",
        "Values stay ｎear.",
        "Values stay nеar.",
        "Values stay near ☺.",
        "Values stay\u00a0near.",
        "   ",
        "Values stay near. " * 300,
    ],
}  # fmt: skip


@pytest.mark.parametrize(("reason", "text"), [(reason, text) for reason, texts in FAULTS.items() for text in texts])
def test_faults_of_prose(reason: str, text: str) -> None:
    finding = judge(say(text))
    assert (finding.state, finding.reason) == ("rejected", reason), finding.detail
    assert reason in REASONS["check"]
    assert finding.detail


GOOD = [
    "The loop should leave less overhead.",
    "The split keeps values near, so fewer loads should reach memory.",
    "It has [in.block.nt_matmul.loop.k.extent=128] iterations, and 128 is much.",
    "It is split as [out.t1.split.i0.factors=[32,2,2,1]], with 32 outer parts and two inner ones.",
    "The split 32 * 2 * 2 * 1 = 128 is exact.",
    "The split 32 × 2 × 2 = 128 is exact.",
    "It holds that [in.block.nt_matmul.loop.k.extent=128] / 32 = 4, and 4 * 32 = 128.",
    "The product 32 times 2 equals 64.",
    "It holds that 32 < 128.",
    "It holds that (32 + 2) * 2 = 68, which is even.",
    "One of the loops is long; the first one.",
    "Elements are float16 values, and sums are kept in half precision nowhere.",
    "No value is inlined, and nothing is cached.",
    "The schedule does not use tensor cores.",
    "It never binds loops, and it stages nothing: no shared memory, no prefetch.",
    "Loops i0 and i1 are tiled and reordered, the outer ones fused and run in parallel.",
    "Loop k is a reduction loop, loop i0 is a spatial loop.",
    "The inner loop is vectorised and its body unrolled.",
    "Hiding memory latency is left to the processor.",
    "It keeps the processor's caches warm.",
    "Inlining is avoided, and caching is left out.",
    "Loop i1 is vectorised, loop i0 runs in parallel.",
    "Here [in.block.nt_matmul.loop.k.extent=128] is more than 32, and 32 divides 128.",
]


@pytest.mark.parametrize("text", GOOD)
def test_sound_prose_stands(text: str) -> None:
    finding = judge(say(text))
    assert finding.state == "ok", finding.detail


@pytest.mark.parametrize(
    ("edit", "text", "reason"),
    [
        ("t1", "Vectorise loop i0.", "false_claim"),
        ("t1", "Run the outer part in parallel.", "false_claim"),
        ("t1", "Reorder the loops.", "false_claim"),
        ("t4", "Split the loops again.", "false_claim"),
        ("t5", "Inline block compute.", "false_claim"),
        ("t5", "Unroll the loops.", "false_claim"),
        ("t3", "Run the reduction in parallel.", "false_claim"),
        ("t1", "Do not split loop i0.", "false_claim"),
        ("t1", "Split loop k.", "false_claim"),
        ("t1", "Split loop i0 of block compute.", "false_claim"),
        ("t1", "Split loop i0: 16 * 2 * 2 * 2 = 128.", "false_claim"),
        ("t1", "Split loop i0 of [out.t2.split.i1.extent=128] iterations.", "false_claim"),
        ("t5", "Compute block NT_matmul under loop i1_0.", "false_claim"),
        ("t1", " ", "malformed"),
        ("t1", "Split loop i0: 32 * 2 * 2 * 2 = 128.", "arithmetic"),
        ("t2", "Split loop i1 of [out.t2.split.i1.extent=64] iterations.", "misquoted"),
        ("t2", "Split loop i1, which makes it faster.", "speedup_claimed"),
        ("t2", "Split loop i1 into 5 parts.", "unbacked_number"),
    ],
)
def test_faults_of_summaries(edit: str, text: str, reason: str) -> None:
    finding = judge(summarise(edit, text))
    assert (finding.state, finding.reason) == ("rejected", reason), finding.detail


@pytest.mark.parametrize(
    ("edit", "text"), [("t6", "Ask for parallel, vectorised and unrolled loops."), ("t1", "Tile i0.")]
)
def test_a_summary_may_name_what_its_edit_does_or_asks_for(edit: str, text: str) -> None:
    assert judge(summarise(edit, text)).state == "ok"


def evidence(cite: str, text: str) -> Callable[[Graph], Graph]:
    return lambda graph: replace(graph, evidence=(*graph.evidence, Evidence("e99", cite, text)))


def quoted(path: str) -> str:
    return str(next(f["text"] for f in FACTS["construct"] if f["path"] == path))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (evidence("out.edits", quoted("out.edits")), "unknown_citation"),
        (evidence("in.nothing", "there is nothing"), "unknown_citation"),
        (evidence("in.flops", "one run does 4194305 arithmetic operations"), "misquoted"),
        (evidence("in.flops", quoted("in.flops") + " "), "misquoted"),
        (evidence("in.flops", quoted("in.flops").upper()), "misquoted"),
        (evidence("in.flops", quoted("in.bytes")), "misquoted"),
        (lambda g: replace(g, evidence=()), "broken_edge"),
        (lambda g: replace(g, edges=tuple(e for e in g.edges if e.kind != "supports")), "broken_edge"),
        (lambda g: replace(g, edges=tuple(e for e in g.edges if e.kind != "predicts")), "broken_edge"),
        (lambda g: replace(g, edges=(*g.edges, Edge("supports", "e1", "a99"))), "broken_edge"),
        (lambda g: replace(g, edges=(*g.edges, Edge("supports", "e1", "t0"))), "broken_edge"),
        (lambda g: replace(g, edges=(*g.edges, Edge("motivates", "e1", "t0"))), "broken_edge"),
        (lambda g: replace(g, edges=(*g.edges, Edge("predicts", "a1", "p1"))), "broken_edge"),
        (lambda g: replace(g, edges=(*g.edges, Edge("predicts", "p1", "t0"))), "broken_edge"),
        (lambda g: replace(g, edges=(*g.edges, g.edges[0])), "broken_edge"),
        (lambda g: replace(g, effects=(), edges=tuple(e for e in g.edges if e.kind != "predicts")), "malformed"),
    ],
)
def test_faults_of_evidence_and_edges(change: Callable[[Graph], Graph], reason: str) -> None:
    graph = change(GRAPHS["construct"])
    finding = judge(as_text(graph))
    assert (finding.state, finding.reason) == ("rejected", reason), finding.detail


def as_text(graph: Graph) -> str:
    """The label's text, written without the checks that a sound writer makes."""
    edges = re.compile(r"<(?:supports|motivates|predicts)[^>]*/>\n")
    text = edges.sub("", tsel.render(replace(graph, edges=())).text)
    lines = "".join(f'<{e.kind} from="{e.source}" to="{e.target}"/>\n' for e in graph.edges)
    return text.replace("</graph>", lines + "</graph>")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("128 [32,2,2]", "128 [16,2,2]", "payload_changed"),
        ("[0,16,64,512] 2", "[0,16,64,512] 1", "payload_changed"),
        ("128 [32,2,2]", "128 [32,2,3]", "malformed"),
        ('<postproc rules="llvm" version="1"/>\n', "", "payload_changed"),
        ('<postproc rules="llvm"', '<postproc rules="cuda"', "payload_changed"),
        ('<postproc rules="llvm"', '<postproc rules="metal"', "malformed"),
        ('rules="llvm" version="1"', 'rules="llvm" version="2"', "malformed"),
        ("</graph>", "", "malformed"),
        ('version="tsel/1"', 'version="tsel/2"', "malformed"),
        ("<evidence", "<!-- a remark --><evidence", "malformed"),
    ],
)
def test_faults_of_the_payload(old: str, new: str, reason: str) -> None:
    assert old in LABELS["construct"]
    finding = judge(LABELS["construct"].replace(old, new, 1))
    assert (finding.state, finding.reason) == ("rejected", reason), finding.detail


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Graph A runs its loops in parallel.", "false_claim"),
        ("Graph A does not vectorise.", "false_claim"),
        ("The prior schedule inlines a block.", "false_claim"),
        ("Unlike graph A, this schedule inlines a block.", "false_claim"),
        ("Graph A is slower.", "speedup_claimed"),
        ("Graph A unrolls bodies of up to [out.unroll_step=64] steps.", "false_claim"),
        ("This schedule unrolls bodies of up to [in.prior.unroll_step=16] steps.", "false_claim"),
        ("Graph A splits loop i0 as 32 * 2 * 2 * 1 = 128.", "false_claim"),
        ("Here loop i0 is split as 1 * 2 * 4 * 16 = 128.", "false_claim"),
        ("The request [in.request.gain_band=1.5x to 2x] will be met by this gain.", "speedup_claimed"),
        ("The request is [in.request.gain_band=2x to 5x].", "misquoted"),
        ("The gain is [in.request.gain_band=1.5x to 2x].", "speedup_claimed"),
        ("The request is noted. It gives [in.request.gain_band=1.5x to 2x] over graph A.", "speedup_claimed"),
    ],
)
def test_faults_of_refinements(text: str, reason: str) -> None:
    finding = judge(say(text, "refine"), "refine")
    assert (finding.state, finding.reason) == ("rejected", reason), finding.detail


@pytest.mark.parametrize(
    "text",
    [
        "Graph A runs no loop in parallel, here the outer loops are run in parallel.",
        "The request asks for the gain band [in.request.gain_band=1.5x to 2x].",
        "A gain band of [in.request.gain_band=1.5x to 2x] is aimed at.",
        "Graph A splits i0 as 1 * 2 * 4 * 16 = 128; here it is split otherwise.",
    ],
)
def test_sound_refinements_stand(text: str) -> None:
    finding = judge(say(text, "refine"), "refine")
    assert finding.state == "ok", finding.detail


def test_all_objections_are_told() -> None:
    finding = judge(say("It has 777 iterations and inlines a block."))
    assert finding.reason == "false_claim"
    assert "unbacked_number" in str(finding.detail)


@pytest.mark.parametrize("mode", ["construct", "refine"])
def test_no_digit_of_a_good_label_can_change(mode: str) -> None:
    """Every single digit in prose or evidence of a good label, made another one, is noticed."""
    text = LABELS[mode]
    for node in re.finditer(r"<(?:evidence|analysis|effect|summary)[^>]*>([^<]*)<", text):
        for digit in re.finditer(r"(?<![A-Za-z_.])\d", node.group(1)):
            place = node.start(1) + digit.start()
            changed = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
            assert judge(changed, mode).state == "rejected", changed[place - 60 : place + 30]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1" * 900_000, "malformed"),
        ("not " * 999, "ok"),
        ("1" * 3990, "unbacked_number"),
        ("1." * 1900, "unbacked_number"),
        ("(" * 3900 + "= 1", "arithmetic"),
        ("not unroll " * 360, "false_claim"),
        ("fuse " * 790, "ok"),
    ],
    ids=lambda text: text[:12],
)
def test_hostile_prose_is_judged_soon(text: str, reason: str) -> None:
    start = time.monotonic()
    finding = judge(say(text))
    assert (finding.reason or "ok") == reason, finding.detail
    assert time.monotonic() - start < 3


@pytest.mark.parametrize(("length", "state"), [(400, "ok"), (401, "rejected")])
def test_a_description_can_be_cited_whole(length: int, state: str) -> None:
    words = ("a small product " * 40)[: length - 1] + "."
    facts = [
        {**f, "value": json.dumps(words), "text": words} if f["path"] == "in.task.description" else f
        for f in FACTS["construct"]
    ]
    graph = say(f"The task says [in.task.description={words}] and no more.")
    graph = replace(graph, evidence=tuple(replace(e, text=words) if "task" in e.cite else e for e in graph.evidence))
    assert verify(tsel.render(graph).text, TASK["tsel"], TASK["trace"], facts, "construct").state == state


def test_a_payload_with_a_long_string_is_judged() -> None:
    label = LABELS["construct"].replace("annotate b1 ms.parallel", f"annotate b1 {'x' * 500}", 1)
    long = label.replace("ms.tiling_structure SSRSRS\n", f"ms.tiling_structure {'x' * 8192}\n")
    assert len(long) > len(LABELS["construct"]) + 8500
    assert judge(long).state == "rejected"


@given(st.text(max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_text_is_judged(text: str) -> None:
    """Whatever a node says, the verifier answers; it never raises."""
    graph = GRAPHS["construct"]
    first, *rest = graph.analyses
    try:
        rendered = tsel.render(replace(graph, analyses=(Analysis(first.id, text), *rest))).text
    except tsel.TselError:
        return
    assert judge(rendered).state in ("ok", "rejected")


@given(st.text(alphabet="0123456789+-*/%()=<>. ×÷^[]in.out=,x", max_size=120))
@settings(max_examples=200, deadline=None)
def test_any_arithmetic_is_judged(text: str) -> None:
    finding = judge(say(f"Thus {text}"))
    assert finding.state in ("ok", "rejected")


def test_what_is_not_the_labels_fault_is_raised() -> None:
    label, facts = LABELS["construct"], FACTS["construct"]
    with pytest.raises(ValueError, match="unknown mode"):
        verify(label, TASK["tsel"], TASK["trace"], facts, "improve")
    with pytest.raises(ValueError, match="not sound"):
        verify(label, TASK["tsel"], "{}", facts, "construct")
    with pytest.raises(ValueError, match="not sound"):
        verify(label, "<graph/>", TASK["trace"], facts, "construct")
    for trace in (TASK["parent_trace"], tsel.decode(TASK["tsel"]).trace):
        with pytest.raises(ValueError, match="not of the selected payload"):
            verify(label, TASK["tsel"], trace, facts, "construct")


def test_both_notations_are_judged_alike() -> None:
    for mode, text in LABELS.items():
        assert judge(tsel.convert(text, "json"), mode) == judge(text, mode)


def test_post_processing_that_is_spelled_out_is_another_payload() -> None:
    """Of the same trace, too: the payload of the tables is what is taught. Of its own payload it stands."""
    graph = replace(GRAPHS["construct"], edits=tsel.lift(TASK["trace"]).edits, postproc=None)
    spelled = tsel.render(replace(graph, evidence=(), analyses=(), effects=(), edges=())).text
    assert judge(graph).reason == "payload_changed"
    assert verify(tsel.render(graph).text, spelled, TASK["trace"], FACTS["construct"], "construct").state == "ok"


def test_what_derived_post_processing_does_may_be_said_of_the_whole_and_of_no_edit() -> None:
    assert judge(say("The initialisation is decomposed from the update.")).state == "ok"
    assert judge(say("No initialisation is decomposed.")).reason == "false_claim"
    assert judge(summarise("t6", "The initialisation is decomposed from the update.")).reason == "false_claim"
    assert judge(say("A body of [out.postproc.annotation.pragma_auto_unroll_max_step=64] steps.")).state == "ok"


@pytest.mark.parametrize("edit", [edit.id for edit in GRAPHS["construct"].edits])
def test_a_summary_that_is_derived_is_nobodys_claim(edit: str) -> None:
    bare = summarise(edit, "")
    assert judge(bare).state == "ok"
    derived = tsel.summaries(bare)[edit]
    (tag,) = re.findall(rf'<trace_sequence id="{edit}"[^>]*>', text := tsel.render(bare).text)
    written = text.replace(tag, f"{tag}<summary>{derived}</summary>")
    assert tsel.decode(written).graph != bare
    assert judge(written).state == "ok"
    assert judge(written.replace(derived, f"{derived} It is inlined.")).reason == "false_claim"
    assert judge(written.replace(derived, " ")).reason == "malformed"
