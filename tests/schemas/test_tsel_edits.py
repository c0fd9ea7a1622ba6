"""Where edits begin and end, and what their derived summaries say."""

import contextlib
import gzip
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.schemas import tsel
from littledragon.schemas.graph import Edit, Graph, Instruction
from littledragon.schemas.tsel._cut import MAX_EDIT, cut
from littledragon.schemas.tsel._primitives import PRIMITIVES
from littledragon.schemas.tsel._summaries import _SILENT, _TELLS
from littledragon.validators import _claims, _prose

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "samples" / "h200_traces.jsonl.gz"
GOLDEN = ROOT / "tests" / "golden" / "tsel"


def graphs() -> Iterator[tuple[str, Graph]]:
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            if row["kind"] == "candidate":
                yield row["name"], tsel.lift(row["trace"])
    yield "llvm", tsel.lift((GOLDEN / "llvm.trace.json").read_text(encoding="utf-8").strip())
    for line in (GOLDEN / "primitives.jsonl").read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(tsel.TselError):
            yield "primitive", tsel.lift(json.loads(line))


@pytest.fixture(scope="module")
def lifted() -> list[tuple[str, Graph]]:
    found = list(graphs())
    assert sum(name == "primitive" for name, _ in found) > 20
    return found


def told(graph: Graph) -> list[tuple[str, str]]:
    summaries = tsel.summaries(graph)
    return [(edit.kind, summaries[edit.id]) for edit in graph.edits]


def I(kind: str, inputs: Any = (), attrs: Any = (), outputs: str = "", decision: Any = None) -> Instruction:  # noqa: E743
    return Instruction(kind, tuple(inputs), tuple(attrs), tuple(outputs.split()), decision)


def edits(*steps: Instruction) -> Graph:
    """A trace as its edits, whether or not it is legal."""
    return Graph(tuple(Edit(f"t{n}", kind, "", steps[a:b]) for n, (a, b, kind) in enumerate(cut(steps))))


TENSOR_CORES = [
    ("annotate", "Mark C with the tiling structure SSSRRSRS."),
    ("layout", "Reindex the output, the first input and the second input of C; change the layouts of "),
    ("tensorize", "Make a block of C from the second part of the first loop inwards, its loops split and reordered "),
    ("tile", "Split the first loop of the outer block of C into "),
    ("tile", "Split the second loop of the outer block of C into "),
    ("tile", "Split the third loop of the outer block of C into "),
    ("reorder", "Reorder the loops of the outer block of C from the first part of the first loop to the fifth part "),
    ("bind", "Fuse loops of the outer block of C and bind the first parts to blockIdx.y, the second parts to "),
    ("layout", "Change the layout of the output of the outer block of C."),
    ("cache", "Keep the output of C in dynamic shared memory, computed under the second joined loop of the outer "),
    ("cache", "Keep the output of C in wmma.accumulator memory, computed under the fifth loop of the shared copy of "),
    ("inline", "Inline the rearranged output of C into its producer."),
    ("tensorize", "Make a block of the wmma.accumulator copy of C's output from the seventh loop inwards, to be "),
    ("cache", "Write the shared copy of C's output back cooperatively."),
    ("cache", "Keep the first input of C in dynamic shared memory, computed under the first part of the third loop "),
    ("cache", "Keep the second input of C in dynamic shared memory, computed under the first part of the third loop "),
    ("cache", "Keep the first input of C in wmma.matrix_a memory, computed under the second part of the third loop "),
    ("tensorize", "Make a block of the wmma.matrix_a copy of C's first input from the second part of the sixth loop "),
    ("cache", "Keep the second input of C in wmma.matrix_b memory, computed under the second part of the third loop "),
    ("tensorize", "Make a block of the wmma.matrix_b copy of C's second input from the second part of the sixth loop "),
    ("inline", "Inline what the shared copy of C's first input reads."),
    ("cache", "Pad the rows of the shared copy of C's first input in memory."),
    ("inline", "Inline what the shared copy of C's second input reads."),
    ("cache", "Pad the rows of the shared copy of C's second input in memory."),
    ("inline", "Inline Y into its producer."),
    ("annotate", "Ask for unrolling in root."),
    ("postproc", "Enter post-processing; share out the fetch of C's shared copies over threadIdx.x and threadIdx.y"),
]


def test_a_tensor_core_trace_reads_as_its_steps(lifted: list[tuple[str, Graph]]) -> None:
    found = told(next(graph for name, graph in lifted if name == "gemm_f16_1024x1024x1024"))
    assert [kind for kind, _ in found] == [kind for kind, _ in TENSOR_CORES]
    for (_, text), (_, start) in zip(found, TENSOR_CORES, strict=True):
        assert text.startswith(start)
    assert found[14][1].endswith("loop of the outer block of C, fetched cooperatively.")
    assert found[2][1].endswith("with wmma_sync_16x16x16_f16f16f32, initialised with wmma_fill_16x16x16_f32.")
    assert found[-1][1].endswith("compute C_o_init, C_o_update and others with tensor intrinsics.")


def test_a_plain_cuda_trace_reads_as_its_steps(lifted: list[tuple[str, Graph]]) -> None:
    found = told(
        next(g for n, g in lifted if n == "conv_1x128x28_128k3s1" and any(e.kind == "annotate" for e in g.edits[5:-3]))
    )
    assert [kind for kind, _ in found] == [
        *("annotate", *["tile"] * 7, "reorder", "bind", "cache", "cache", "cache"),
        *("annotate", "inline", "annotate", "postproc"),
    ]
    texts = [text for _, text in found]
    assert re.fullmatch(r"Split the second loop of conv2d_nchw into \d+( \* \d+){4} = 128\.", texts[2])
    assert texts[9].startswith("Fuse loops of conv2d_nchw and bind the first parts to blockIdx.x, the second parts to")
    assert texts[11] == (
        "Keep the first input of conv2d_nchw in shared memory, computed under the first part of the seventh loop of"
        " conv2d_nchw, fetched cooperatively."
    )
    assert texts[13] == "Fuse and pipeline the first parts of the fifth to seventh loops of conv2d_nchw."
    assert texts[14] == "Inline compute into its producer; inline pad_temp into its consumers."


def test_a_reduction_across_threads_is_one_step(lifted: list[tuple[str, Graph]]) -> None:
    found = told(next(g for n, g in lifted if n == "softmax_2048x384" and g.edits[1].kind == "reduction"))
    assert [kind for kind, _ in found] == ["inline", "reduction", "reduction", "annotate", "bind", "postproc"]
    assert found[2][1] == (
        "Compute T_softmax_maxelem under the first loop of the first consumer of T_softmax_maxelem, kept in shared"
        " memory, its third loop split and bound to threadIdx.x."
    )


def test_an_llvm_trace_reads_as_its_steps(lifted: list[tuple[str, Graph]]) -> None:
    assert told(next(graph for name, graph in lifted if name == "llvm")) == [
        ("tile", "Split the second loop of x_red_temp into 2374 * 8 = 18992."),
        (
            "reduction",
            "Make partial results of the reduction over the first part of the second loop of x_red_temp (rfactor);"
            " have places drawn for what x_red_temp reads.",
        ),
        ("annotate", "Ask for parallel loops, vectorised loops and unrolling in root."),
        ("compute_at", "Compute x_red_temp and what x_red_temp reads under loops that were drawn."),
        (
            "postproc",
            "Enter post-processing; run loops of the first block in root in parallel; unroll inside the first and"
            " second blocks in root; separate the initialisation of x_red_temp_rf and x_red_temp"
            " from their updates.",
        ),
    ]


def test_edits_tile_every_trace_and_all_after_the_boundary_is_one(lifted: list[tuple[str, Graph]]) -> None:
    for _, graph in lifted:
        steps = [step for edit in graph.edits for step in edit.instructions]
        assert all(edit.instructions for edit in graph.edits)
        place = next((n for n, step in enumerate(steps) if step.kind == "EnterPostproc"), None)
        if place is not None:
            assert graph.edits[-1].kind == "postproc"
            assert graph.edits[-1].instructions[place - len(steps) :] == tuple(steps[place:])


def test_a_copy_goes_with_its_place_and_its_fetch(lifted: list[tuple[str, Graph]]) -> None:
    """Every copy that is placed is placed by the edit that makes it, and fetched by it where it reads."""
    copies = 0
    for _, graph in lifted:
        home = {name: edit.id for edit in graph.edits for step in edit.instructions for name in step.outputs}
        made = {
            s.outputs[0]: s.kind for e in graph.edits for s in e.instructions if s.kind in ("CacheRead", "CacheWrite")
        }
        for edit in graph.edits:
            for step in edit.instructions:
                target = step.inputs[0] if step.inputs and isinstance(step.inputs[0], str) else ""
                if target not in made:
                    continue
                fetch = step.kind == "Annotate" and step.attrs == ("meta_schedule.cooperative_fetch",)
                if step.kind in ("ComputeAt", "ReverseComputeAt") or (fetch and made[target] == "CacheRead"):
                    assert home[target] == edit.id
                    copies += 1
    assert copies > 100


def test_splits_that_a_block_needs_go_with_it() -> None:
    graph = edits(
        I("GetSBlock", (), ("C", "main"), "b0"),
        I("CacheRead", ("b0", []), (0, "shared"), "b1"),
        I("GetLoops", ("b1",), (), "l2 l3"),
        I("Split", ("l3", None, 16), (True, False), "l4 l5"),
        I("Blockize", ("l5",), (True,), "b6"),
        I("CacheRead", ("b0", []), (1, "shared"), "b7"),
        I("GetLoops", ("b7",), (), "l8 l9"),
        I("Split", ("l9", None, 16), (True, False), "l10 l11"),
        I("Vectorize", ("l11",)),
    )
    assert told(graph) == [
        ("cache", "Keep the first input of C in shared memory."),
        ("tensorize", "Make a block of the shared copy of C's first input from the second part of the second loop"
         " inwards, its loops split for that."),
        ("cache", "Keep the second input of C in shared memory, its second loop split, vectorised."),
    ]  # fmt: skip


def test_loops_that_are_looked_up_for_nothing_stay_with_the_edit_before() -> None:
    graph = edits(
        I("GetSBlock", (), ("C", "main"), "b0"),
        I("ComputeInline", ("b0",)),
        I("GetLoops", ("b0",), (), "l1"),
        I("GetLoops", ("b0",), (), "l2"),
        I("Unroll", ("l2",)),
        I("GetLoops", ("b0",), (), "l3"),
    )
    assert [len(edit.instructions) for edit in graph.edits] == [3, 3]


def test_asking_for_nothing_is_told_as_that() -> None:
    graph = edits(
        I("GetSBlock", (), ("root", "main"), "b0"),
        I("SampleCategorical", (), ([0, 16], [0.5, 0.5]), "v1", 0),
        I("Annotate", ("b0", "v1"), ("meta_schedule.unroll_explicit",)),
        I("Annotate", ("b0", 32), ("meta_schedule.parallel",)),
    )
    assert told(graph) == [("annotate", "Ask for no unrolling in root; ask for parallel loops in root.")]


def test_drawn_places_are_told() -> None:
    steps = [I("GetSBlock", (), ("C", "main"), "b0")]
    for number, decision in enumerate((-1, -2, 4), 1):
        steps += [I("SampleComputeLocation", ("b0",), (), f"l{number}", decision)]
        steps += [I("ComputeAt", ("b0", f"l{number}"), (1, -1))]
    assert [text for _, text in told(edits(*steps))] == [
        "Leave C where it is; inline C; compute C under a loop that was drawn.",
    ]


def test_a_written_summary_stays(lifted: list[tuple[str, Graph]]) -> None:
    graph = lifted[0][1]
    first, *rest = graph.edits
    written = replace(graph, edits=(replace(first, summary="My own words."), *rest))
    assert tsel.summaries(written) == tsel.summaries(graph) | {first.id: "My own words."}


def test_derived_summaries_pass_the_verifiers_words(lifted: list[tuple[str, Graph]]) -> None:
    """No word of a summary claims what its edit does not do; numbers stand in computations, names are known."""
    counted = 0
    for _, graph in lifted:
        _, scopes = _claims.scopes(graph, (), {})
        known = _claims.names(graph, (), [])
        for edit_id, text in tsel.summaries(graph).items():
            count, false = _claims.claims(text, scopes[edit_id])
            assert false == [], text
            assert _claims.unknown_names(_prose.tokens(text), known) == [], text
            assert _prose.unfit(text) is None
            assert len(text) <= 300
            assert "\n" not in text
            assert not re.search(r"(?<![\w.])\d+(?![\w.])", re.sub(r"\d+( \* \d+)* = \d+", "", text)), text
            counted += count
    assert counted > 500


def test_every_kind_is_told_or_only_looks_something_up() -> None:
    assert set(_TELLS) | _SILENT == set(PRIMITIVES)
    assert not set(_TELLS) & _SILENT


def test_post_processing_claims_no_more_than_it_does() -> None:
    graph = edits(
        I("EnterPostproc"),
        I("GetSBlock", (), ("root", "main"), "b0"),
        I("GetChildBlocks", ("b0",), (), "b1 b2"),
        I("GetLoops", ("b1",), (), "l3"),
        I("Annotate", ("l3", 0), ("pragma_auto_unroll_max_step",)),
        I("GetLoops", ("b2",), (), "l4"),
        I("Annotate", ("l4", 64), ("pragma_auto_unroll_max_step",)),
        I("Annotate", ("l4", 0), ("software_pipeline_stage",)),
    )
    assert [text for _, text in told(graph)] == [
        "Enter post-processing; unroll inside the second block in root; mark the first loop of the second block in"
        " root with software_pipeline_stage."
    ]


HOSTILE = st.one_of(
    st.sampled_from(["b0", "b1", "l0", "l1", "v0", "main", "shared", "meta_schedule.cooperative_fetch", "threadIdx.x"]),
    st.sampled_from(["meta_schedule.auto_tensorize", "software_pipeline_stage", "7", "x" * 600, "a\x00b", "[x|y] {}"]),
    st.none(), st.integers(-3, 1 << 40), st.booleans(), st.floats(allow_nan=False),
    st.just({"str": "l3"}), st.just({"map": "m0"}), st.lists(st.sampled_from(["b0", 3]), max_size=3),
)  # fmt: skip


@st.composite
def traces(draw: st.DrawFn) -> list[Instruction]:
    steps = []
    for _ in range(draw(st.integers(0, 12))):
        outputs = draw(st.lists(st.sampled_from(["b0", "b1", "l0", "l1", "v0", "v1"]), max_size=3))
        values = [tuple(draw(st.lists(HOSTILE, max_size=4))) for _ in range(2)]
        steps.append(Instruction(draw(st.sampled_from(sorted(PRIMITIVES))), values[0], values[1], tuple(outputs)))
    return steps


@settings(max_examples=100, deadline=None)
@given(traces())
def test_any_instructions_are_cut(steps: list[Instruction]) -> None:
    place = 0
    for start, end, _ in cut(steps):
        assert start == place < end
        place = end
    assert place == len(steps)


def test_names_that_are_no_words_are_not_repeated() -> None:
    for name in ("7", "x" * 600, "a\x00b", "[x|y] {}", "block 3", "\u202eabc", "<&>", "a; fused"):
        graph = edits(
            I("GetSBlock", (), (name, "main"), "b0"),
            I("Annotate", ("b0", name), (name,)),
            I("CacheRead", ("b0", []), (0, "shared"), "b1"),
            I("ComputeInline", ("b1",)),
        )
        assert [text for _, text in told(graph)] == [
            "Mark a block with a note.",
            "Keep the first input of a block in shared memory.",
            "Inline the shared copy of a block's first input.",
        ]


def test_long_traces_take_time_in_proportion() -> None:
    for kind in ("GetLoops", "Fuse", "Split", "Annotate", "CacheRead", "GetProducers", "Reorder"):
        steps = [I("GetSBlock", (), ("C", "main"), "b0"), I("ComputeInline", ("b0",))]
        made = {"b": "b", "l": "l"}[{"CacheRead": "b", "GetProducers": "b"}.get(kind, "l")]
        for number in range(10_000):
            target = f"b{number}" if made == "b" else "b0"
            outputs = f"{made}{number + 1}" if kind not in ("Annotate", "Reorder") else ""
            steps.append(I(kind, (target, 2), (0, "shared"), outputs))
        start = time.perf_counter()
        graph = edits(*steps)
        texts = tsel.summaries(graph)
        assert time.perf_counter() - start < 5
        assert all(len(edit.instructions) <= MAX_EDIT + 1 for edit in graph.edits if kind in ("Fuse", "Annotate"))
        assert max(map(len, texts.values())) <= 300
