"""Laws of the codec, on mutants of real traces: nothing is lost either way, one spelling, spans, and renaming."""

import dataclasses
import json
import random
from typing import Any

import mutants
from graph_mutants import decisions, regraph
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from littledragon.schemas import tsel
from littledragon.schemas.graph import Encoded, Graph, Instruction

SEEDS = st.integers(0, 1 << 40)
NOTATION = st.sampled_from(tsel.NOTATIONS)
OFTEN = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def graph_of(seed: int) -> Graph:
    """A well-formed graph: a real trace with other decisions, or with other instructions, explained or not."""
    draw = random.Random(seed)
    base = draw.choice(mutants.bases())
    graph = decisions(draw, base.graph) if draw.random() < 0.4 else regraph(draw, base.graph)[1]
    if graph.edits and draw.random() < 0.4:
        graph = mutants.explained(graph)
    try:
        tsel.spell(graph)
    except tsel.TselError:
        assume(False)
    return graph


def steps(graph: Graph) -> list[Instruction]:
    return [step for edit in graph.edits for step in edit.instructions]


@OFTEN
@given(SEEDS, NOTATION)
def test_decoding_inverts_encoding(seed: int, notation: tsel.Notation) -> None:
    graph = graph_of(seed)
    decoded = tsel.decode(tsel.render(graph, notation).text)
    assert decoded.trace == tsel.spell(graph)
    if graph.postproc is None:
        again = tsel.decode(tsel.encode(decoded.trace, notation).text)
        assert again.trace == decoded.trace == tsel.canonical(decoded.trace)


@OFTEN
@given(SEEDS, NOTATION)
def test_encoding_what_was_decoded_gives_the_canonical_spelling(seed: int, notation: tsel.Notation) -> None:
    text = tsel.render(graph_of(seed), notation).text
    decoded = tsel.decode(text)
    assert tsel.render(decoded.graph, notation).text == text
    assert tsel.decode(text) == decoded


@OFTEN
@given(SEEDS)
def test_one_notation_and_back_is_the_identity(seed: int) -> None:
    graph = graph_of(seed)
    line, fragments = tsel.render(graph, "line").text, tsel.render(graph, "json").text
    assert tsel.convert(line, "json") == fragments
    assert tsel.convert(fragments, "line") == line
    assert tsel.convert(line, "line") == line
    assert tsel.convert(fragments, "json") == fragments


def parts(encoded: Encoded, kind: str) -> list[str]:
    return [encoded.text[span.start : span.end] for span in encoded.spans if span.kind == kind]


@OFTEN
@given(SEEDS, NOTATION)
def test_spans_tile_the_text_and_mark_what_was_decided(seed: int, notation: tsel.Notation) -> None:
    graph = graph_of(seed)
    encoded = tsel.render(graph, notation)
    assert [0, *(span.end for span in encoded.spans)] == [*(span.start for span in encoded.spans), len(encoded.text)]
    assert all(span.start < span.end for span in encoded.spans)
    assert all(a.kind != b.kind for a, b in zip(encoded.spans, encoded.spans[1:], strict=False))
    decided = [step.decision for step in steps(graph) if step.decision is not None]
    shown = [json.loads(part) for part in parts(encoded, "decision")]
    assert shown == [value["factors"] if isinstance(value, dict) else value for value in decided]
    told = parts(encoded, "explanation")
    assert len(told) == len(graph.evidence) + len(graph.analyses) + len(graph.effects)
    assert all(part.startswith(("<evidence ", "<analysis ", "<effect ")) and part.endswith(">") for part in told)


def renamed(graph: Graph, suffix: str) -> Graph:
    """The graph of the same schedule for a program whose blocks have other names."""

    def step(old: Instruction) -> Instruction:
        return old._replace(attrs=(old.attrs[0] + suffix, *old.attrs[1:])) if old.kind == "GetSBlock" else old

    edits = (dataclasses.replace(edit, instructions=tuple(map(step, edit.instructions))) for edit in graph.edits)
    return dataclasses.replace(graph, edits=tuple(edits))


def rename(trace: str, suffix: str) -> str:
    """The same on a canonical trace, whose nodes have each their own strings."""
    whole = json.loads(trace)
    nodes: list[dict[str, Any]] = whole["nodes"]
    root = nodes[whole["root_index"]]["data"]
    for index in nodes[root[0]]["data"]:
        kind, _, attrs, _ = nodes[index]["data"]
        if nodes[kind]["data"] == "GetSBlock":
            nodes[nodes[attrs]["data"][0]]["data"] += suffix
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False)


@OFTEN
@given(SEEDS, NOTATION, st.sampled_from(["_1", " x", "é", '"', "\\", "<&>", "=b0", "]", "\n"]))
def test_renaming_blocks_commutes_with_the_codec(seed: int, notation: tsel.Notation, suffix: str) -> None:
    graph = graph_of(seed)
    assume(all(isinstance(step.attrs[0], str) for step in steps(graph) if step.kind == "GetSBlock"))
    other = renamed(graph, suffix)
    decoded = tsel.decode(tsel.render(other, notation).text)
    assert decoded.trace == rename(tsel.spell(graph), suffix)
    cut = [(edit.id, edit.kind, len(edit.instructions)) for edit in other.edits]
    assert [(edit.id, edit.kind, len(edit.instructions)) for edit in decoded.graph.edits] == cut
