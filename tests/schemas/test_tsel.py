"""The language itself: traces to graphs to text and back, spans, the golden text, and each rule of well-formedness."""

import dataclasses
import gzip
import itertools
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.schemas import tsel
from littledragon.schemas.graph import Analysis, Edge, Effect, Evidence, Graph, Postproc
from littledragon.schemas.tsel import TselError

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "tsel"
TRACE = (GOLDEN / "llvm.trace.json").read_text(encoding="utf-8").strip()
TEXT = (GOLDEN / "llvm.json.xml").read_text(encoding="utf-8")
SPELLED = (GOLDEN / "llvm.spelled.xml").read_text(encoding="utf-8")
"""The same trace with nothing left out, cut into other edits: no canonical text, but one that is read."""
LINES = (GOLDEN / "llvm.line.xml").read_text(encoding="utf-8")


def sample() -> list[dict[str, Any]]:
    with gzip.open(ROOT / "samples" / "h200_traces.jsonl.gz", "rt", encoding="utf-8") as file:
        return [row for row in map(json.loads, file) if row["kind"] == "candidate"]


def test_golden_texts() -> None:
    """What `LITTLEDRAGON_GOLDEN=1 pytest tests/schemas/test_tsel.py` rewrites: a change here is a new version."""
    wmma = next(row["trace"] for row in sample() if "wmma" in row["trace"])
    texts = {
        "llvm.json.xml": tsel.encode(TRACE, "json").text,
        "llvm.line.xml": tsel.encode(TRACE, "line").text,
        "wmma.json.xml": tsel.encode(wmma, "json").text,
        "wmma.line.xml": tsel.encode(wmma, "line").text,
    }
    for name, text in texts.items():
        if os.environ.get("LITTLEDRAGON_GOLDEN"):
            (GOLDEN / name).write_text(text, encoding="utf-8")
        assert (GOLDEN / name).read_text(encoding="utf-8") == text, name
        assert tsel.decode(text).trace == (TRACE if name.startswith("llvm") else tsel.canonical(wmma))


@pytest.mark.parametrize("notation", tsel.NOTATIONS)
def test_sampled_traces_come_back(notation: tsel.Notation) -> None:
    rows = sample()
    assert len(rows) == 44
    kinds: set[str] = set()
    for row in rows:
        graph = tsel.lift(row["trace"])
        encoded = tsel.render(graph, notation)
        decoded = tsel.decode(encoded.text)
        assert decoded.trace == tsel.canonical(row["trace"])
        assert decoded.graph == graph
        assert tsel.render(decoded.graph, notation) == encoded
        assert [i.kind for edit in graph.edits for i in edit.instructions] == tsel.kinds(row["trace"])
        kinds.update(edit.kind for edit in graph.edits)
    assert {"tile", "reorder", "bind", "cache", "inline", "tensorize", "layout", "annotate", "postproc"} <= kinds


def test_primitives_that_rules_seldom_use_come_back() -> None:
    lines = (GOLDEN / "primitives.jsonl").read_text(encoding="utf-8").splitlines()
    kinds: set[str] = set()
    for trace in map(json.loads, lines):
        for notation in tsel.NOTATIONS:
            text = tsel.encode(trace, notation).text
            decoded = tsel.decode(text)
            assert decoded.trace == tsel.canonical(trace)
            assert tsel.render(decoded.graph, notation).text == text
            for other in tsel.NOTATIONS:
                assert tsel.convert(tsel.convert(text, other), notation) == text
        kinds.update(tsel.kinds(trace))
    assert len(kinds) >= 50


def test_tile_edits_hold_the_split_that_consumes_them() -> None:
    for row in sample():
        for edit in tsel.lift(row["trace"]).edits:
            sampled = [i for i in edit.instructions if i.kind == "SamplePerfectTile"]
            assert len(sampled) == (edit.kind == "tile")
            if sampled:
                assert edit.instructions[-1].kind == "Split"


def test_canonical_does_not_depend_on_sharing() -> None:
    for row in sample()[:10]:
        again = tsel.canonical(row["trace"])
        assert again != row["trace"]
        assert tsel.canonical(again) == again


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"dtype":"int32","value":1}', '"dtype":"int64","value":1}'),
        ('"dtype":"float32"', '"dtype":"float64"'),
        ('"type":"bool","data":true', '"type":"int","data":1'),
    ],
)
def test_types_of_numbers_are_kept(old: str, new: str) -> None:
    assert old in TRACE
    other = TRACE.replace(old, new, 1)
    assert tsel.canonical(other) == other
    assert tsel.decode(tsel.encode(other).text).trace == other
    assert tsel.encode(other, "json").text != TEXT


def test_index_maps_stand_once_and_name_sampled_variables_by_reference() -> None:
    trace = next(row["trace"] for row in sample() if "TransformLayout" in row["trace"])
    text = tsel.encode(trace, "json").text
    maps = re.findall(r"<map id=\"m\d+\">(.*)</map>", text)
    assert len(maps) == len(set(maps)) >= 2
    assert any(re.search(r'\["\*","t\d+\.\d+\.\d+","t\d+\.\d+\.\d+"\]', one) for one in maps)
    assert '"$0"' in "".join(maps)
    assert "root_index" not in text


def test_the_same_map_twice_is_refused() -> None:
    trace = next(row["trace"] for row in sample() if "TransformLayout" in row["trace"])
    text = tsel.encode(trace, "json").text
    maps = re.findall(r'(<map id="(m\d+)">(.*)</map>\n)', text)
    line, name, value = maps[0]
    again = f"m{len(maps)}"
    twice = text.replace(line, f'{line}<map id="{again}">{value}</map>\n')
    place = twice.rindex(f'{{"map":"{name}"}}')
    twice = twice[:place] + f'{{"map":"{again}"}}' + twice[place + len(f'{{"map":"{name}"}}') :]
    with pytest.raises(TselError, match=f"the same map as {name}"):
        tsel.decode(twice)


def test_an_index_variable_that_is_called_as_a_sampled_one_is_refused() -> None:
    trace = next(row["trace"] for row in sample() if "TransformLayout" in row["trace"])
    text = tsel.encode(trace, "json").text
    names = set(re.findall(r'"name\\": ?\d+', trace)) and set(re.findall(r'\\"data\\": ?\\"(v\d+)\\"', trace))
    (used,) = (one for one in re.findall(r"<map id=\"m\d+\">.*</map>", text) if re.search(r'"t\d+\.\d+\.\d+"', one))
    first = re.findall(r'"in":\["(\w+)"', used)[0]
    assert names
    for name in names:
        renamed = used.replace(f'"{first}"', f'"{name}"')
        with pytest.raises(TselError, match="an index variable is called"):
            tsel.decode(text.replace(used, renamed))


def explained(graph: Graph, words: list[str]) -> Graph:
    """The graph with nodes of each role around it, their texts from `words`."""
    first = graph.edits[0]
    return dataclasses.replace(
        graph,
        evidence=(Evidence("e0", words[0], words[1]),),
        analyses=(Analysis("a0", words[2]), Analysis("a1", words[3])),
        effects=(Effect("p0", words[4]),),
        edits=(dataclasses.replace(first, summary=words[5]), *graph.edits[1:]),
        edges=(Edge("supports", "e0", "a1"), Edge("motivates", "a1", first.id), Edge("predicts", first.id, "p0")),
    )


PROSE = st.text(
    st.one_of(
        st.sampled_from(list("&<>\"'\n\t\r ]]>\x85\u2028")),
        st.characters(min_codepoint=32, max_codepoint=0x10FFFF, exclude_categories=("Cs",)),
    ).filter(lambda c: c not in "\ufffe\uffff"),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PROSE, min_size=6, max_size=6))
def test_explained_graphs_come_back(words: list[str]) -> None:
    graph = explained(tsel.lift(TRACE), words)
    encoded = tsel.render(graph, "line" if len(words[0]) % 2 else "json")
    decoded = tsel.decode(encoded.text)
    assert decoded.graph == graph
    assert decoded.trace == TRACE
    assert "".join(encoded.text[span.start : span.end] for span in encoded.spans) == encoded.text


def test_spans() -> None:
    encoded = tsel.render(explained(tsel.lift(TRACE), ["in.x", "one", "two", "three", "four", "five"]))
    text, spans = encoded.text, encoded.spans
    assert spans[0].start == 0
    assert spans[-1].end == len(text)
    assert all(a.end == b.start and a.kind != b.kind for a, b in itertools.pairwise(spans))
    pieces = {kind: [text[s.start : s.end] for s in spans if s.kind == kind] for kind in ("explanation", "decision")}
    assert pieces["explanation"] == [
        '<evidence id="e0" cite="in.x">one</evidence>',
        '<analysis id="a0">two</analysis>',
        '<analysis id="a1">three</analysis>',
        '<effect id="p0">four</effect>',
    ]
    decisions = [i.decision for e in tsel.lift(TRACE).edits for i in e.instructions if i.decision is not None]
    wanted = [d["factors"] if isinstance(d, dict) else d for d in decisions]
    assert [json.loads(piece) for piece in pieces["decision"]] == wanted


def test_a_summary_that_is_derived_is_left_out() -> None:
    graph = tsel.lift(TRACE)
    written = dataclasses.replace(
        graph, edits=tuple(dataclasses.replace(e, summary=tsel.summaries(graph)[e.id]) for e in graph.edits)
    )
    for notation in tsel.NOTATIONS:
        assert tsel.render(written, notation) == tsel.render(graph, notation)


def test_derived_postprocessing_stands_for_what_is_left_out() -> None:
    graph = tsel.lift(TRACE)
    assert graph.edits[-1].kind == "postproc"
    for rules in tsel.RULES:
        prefix = dataclasses.replace(graph, edits=graph.edits[:-1], postproc=Postproc(rules, tsel.RULES[rules]))
        for notation in tsel.NOTATIONS:
            text = tsel.render(prefix, notation).text
            decoded = tsel.decode(text)
            assert decoded.graph == prefix
            assert tsel.kinds(decoded.trace) == tsel.kinds(TRACE)[: len(tsel.kinds(decoded.trace))]
            assert "EnterPostproc" not in tsel.kinds(decoded.trace)
            for version in ("2", "0", "-1", "01", "x", "9999999", "１"):
                with pytest.raises(TselError) as refused:
                    tsel.decode(text.replace(' version="1"/>', f' version="{version}"/>'))
                assert refused.value.rule == "rules"
    with pytest.raises(TselError) as refused:
        tsel.decode(TEXT.replace("</graph>", '<postproc rules="llvm" version="1"/></graph>'))
    assert refused.value.rule == "boundary"


def test_a_split_after_a_tile_without_a_loop_is_refused() -> None:
    tile = '{"k":"SamplePerfectTile","d":{"extent":4,"factors":[2]}}'
    text = TEXT.replace('{"k":"EnterPostproc"}', f'{tile}\n{{"k":"Split"}}')
    with pytest.raises(TselError):
        tsel.decode(text)
    assert tsel.diagnose(text).gate == "wellformed"


def test_what_is_not_closed_costs_no_time() -> None:
    start = time.monotonic()
    with pytest.raises(TselError):
        tsel.decode(LINES.replace("ms.parallel 32", 'note "' + '\\"' * 200_000))
    tsel.diagnose(LINES.replace("18992 [2374]", "4 [" + ",".join(["9223372036854775807"] * 40_000) + "]"))
    assert time.monotonic() - start < 5


def test_a_map_that_shares_its_variables_comes_back() -> None:
    text = TEXT.replace('{"k":"EnterPostproc"}', '{"k":"TransformBlockLayout","i":["t0.0.0"],"a":[{"map":"m0"}]}')
    text = text.replace("</graph>", '<map id="m0">{"in":["i","n"],"out":"in"}</map></graph>')
    tree = tsel.decode(text).tree
    for notation in tsel.NOTATIONS:
        assert tsel.decode(tsel.convert(text, notation)).tree == tree


def test_f_div_counts_tiles_alone() -> None:
    odd = TEXT.replace('{"k":"EnterPostproc"}', '{"k":"Fuse","n":"SamplePerfectTile","d":{"extent":4,"factors":[3]}}')
    assert tsel.diagnose(odd).f_div == 1.0
    assert tsel.diagnose(LINES.replace("tile l3 18992", "tile 18992")).f_div == 1.0


def test_diagnosis_tells_how_far_a_text_comes() -> None:
    assert tsel.diagnose("no graph").gate == "parsed"
    assert tsel.diagnose(b"\xff").f_div == 0.0
    for text, tile in ((TEXT, '"factors":[2374]'), (LINES, "[2374]")):
        whole = tsel.diagnose(text)
        assert (whole.gate, whole.f_div, whole.instructions) == (None, 1.0, len(tsel.kinds(TRACE)))
        broken = text.replace(tile, tile.replace("2374", "2373"))
        assert (tsel.diagnose(broken).gate, tsel.diagnose(broken).f_div) == ("wellformed", 0.0)
        assert tsel.diagnose(broken).rule == "tile"
        unreadable = text.replace(tile, tile.replace("2374", "2374,"))
        assert (tsel.diagnose(unreadable).gate, tsel.diagnose(unreadable).f_div) == ("wellformed", 0.0)
        elsewhere = text.replace("root", "b" * 600)
        assert (tsel.diagnose(elsewhere).gate, tsel.diagnose(elsewhere).f_div) == ("wellformed", 1.0)
        # what is no XML is no graph, however far the first edits come
        assert tsel.diagnose(broken.replace("</graph>", "</grap>")).gate == "parsed"


def test_prose_that_xml_cannot_hold_is_refused() -> None:
    with pytest.raises(TselError) as refused:
        tsel.render(explained(tsel.lift(TRACE), ["in.x", "a\x00b", "", "", "", ""]))
    assert refused.value.rule == "characters"


REFUSED = [
    ('"factors":[2374]', '"factors":[2375]', "tile"),
    ('"factors":[2374]', '"factors":[0]', "tile"),
    ('"factors":[2374]', '"factors":[1187]', None),
    ('"factors":[2374]', '"factors":[2]', "tile"),
    ('"factors":[2374]', '"factors":[2374,8]', "tile"),
    ('"factors":[2374]', '"factors":[2374.0]', "tile"),
    ('"factors":[2374]', '"factors":[true]', "tile"),
    ('"extent":18992', '"extent":-18992', "tile"),
    (',"d":{"extent":18992,"factors":[2374]}', "", "decision"),
    (',"d":{"extent":18992,"factors":[2374]}', ',"d":null', "grammar"),
    ('"a":[2,64],"o":"EE"', '"a":[2,64],"o":"E"', "outputs"),
    ('"a":[2,64],"o":"EE"', '"a":[3,64],"o":"EEE"', "tile"),
    ('"a":[2,64],"o":"EE"', '"a":[2,0],"o":"EE"', "range"),
    ('"a":[2,64],"o":"EE"', '"a":[2,64,1],"o":"EE"', "arity"),
    ('"a":[2,64],"o":"EE"', '"a":[2,32],"o":"EE"', None),
    ('"a":[2,64],"o":"EE"', '"a":[{"int":2},64],"o":"EE"', "range"),
    ('"a":[2,64],"o":"EE"', '"a":[{"IntImm:int32":2},64],"o":"EE"', "value"),
    ('"a":[2,64],"o":"EE"', '"a":["2",64],"o":"EE"', "range"),
    ('"o":"E","d":1}', '"o":"E","d":4}', "decision"),
    ('"o":"E","d":1}', '"o":"E","d":-1}', "decision"),
    ('"o":"E","d":1}', '"o":"E","d":true}', "decision"),
    ('"o":"E","d":1}', '"o":"E","d":1,"d":1}', "json"),
    ("[0.25,0.25,0.25,0.25]", "[0.25,0.25,0.25,NaN]", "json"),
    ("[0.25,0.25,0.25,0.25]", "[0.25,0.25,0.25,1e999]", "json"),
    ("[0.25,0.25,0.25,0.25]", "[0.25,0.25,0.25,-0.25]", "range"),
    ("[0.25,0.25,0.25,0.25]", "[0.25,0.25,0.25]", "probs"),
    ('{"k":"EnterPostproc"}', '{"k":"EnterPostproc"}\n{"k":"EnterPostproc"}', "boundary"),
    ('{"k":"EnterPostproc"}', '{"k":"EnterPostproc","i":["t0.0.0"]}', "arity"),
    ('{"k":"EnterPostproc"}', '{"k":"EnterPostproc","d":0}', "decision"),
    ('"k":"RFactor"', '"k":"Refactor"', "kind"),
    ('"k":"GetSBlock","a":["root","main"]', '"k":"GetSBlock","a":["root",7]', "range"),
    ('"k":"GetSBlock"', '"k":7', "grammar"),
    ('{"k":"SamplePerfectTile","i":["t0.2.1"]', '{"k":"SamplePerfectTile"', "arity"),
    ('id="t1" kind', f'id="{"t" * 100_000}" kind', "id"),
    ('"k":"GetSBlock"', '"x":1,"k":"GetSBlock"', "grammar"),
    ('"i":["t0.0.0"],"o":"LL"', '"i":["t0.9.0"],"o":"LL"', "reference"),
    ('"i":["t0.0.0"],"o":"LL"', '"i":["t0.2.0"],"o":"LL"', "reference"),
    ('"i":["t0.0.0"],"o":"LL"', '"i":["t0.0.0","t0.0.0"],"o":"LL"', "arity"),
    ('"i":["t0.0.0"],"o":"LL"', '"i":[],"o":"LL"', "grammar"),
    ('"i":["t0.0.0"],"o":"LL"', '"i":["t0.0.0"],"o":"LB"', "outputs"),
    ('"i":["t0.2.1","t0.3.0","t0.3.1"]', '"i":["t0.2.1","t0.3.0","t0.2.0"]', "reference"),
    ('"i":["t7.0.0"],"a":["meta_schedule.parallel"]', '"i":["t4.0.0"],"a":["meta_schedule.parallel"]', "reference"),
    ('"i":["t0.2.1","t0.3.0","t0.3.1"]', '"i":["t0.2.1",null,null]', "factor"),
    ('"i":["t0.2.1","t0.3.0","t0.3.1"]', '"i":["t0.2.1",null,0]', "range"),
    ('"a":["meta_schedule.parallel"]', '"a":["meta_schedule.unroll_explicit"]', None),
    ('"a":["meta_schedule.parallel"]', '"a":["pragma_import_llvm"]', "pragma"),
    ('"a":["meta_schedule.parallel"]', '"a":["Pragma_import_c"]', "pragma"),
    ('"a":["meta_schedule.parallel"]', '"a":["pragma_unroll_explicit"]', "range"),
    ("32],", "1000000000],", "range"),
    ("32],", "3000000000],", "value"),
    ("32],", '{"IntImm:int64":1000000000}],', "range"),
    ("32],", f'"{"x" * 8190}"],', None),
    ("32],", f'"{"x" * 8191}"],', "value"),
    ("32],", f'{{"dict":{{"{"x" * 8191}":1}}}}],', "value"),
    ("32],", '{"dict":{"\\ud800":1}}],', "value"),
    ("[0,16,64,512]", "[0,8192,64,512]", None),
    ("[0,16,64,512]", "[0,8193,64,512]", "range"),
    ('"t3.2.0"],"a":["meta_schedule.unroll_explicit"]', '"t0.3.0"],"a":["warp_execution"]', "range"),
    ('id="t1" kind', 'id="t0" kind', "id"),
    ('id="t1" kind', 'id="x1" kind', "id"),
    ("</graph>", '<supports from="t0" to="t1"/></graph>', "edge"),
    ("</graph>", '<supports from="e7" to="a7"/></graph>', "edge"),
    ("</graph>", '<map id="m0">{"in":["i"],"out":["i"]}</map></graph>', "map"),
    ("</graph>", '<map id="m0">{"in":["i"],"out":[["//","i",0]]}</map></graph>', "map"),
    ("</graph>", '<map id="m0">{"in":["i"],"out":["$0"]}</map></graph>', "map"),
    ("</graph>", '<map id="m0">{"in":["i"],"let":{"$0":["+","$0",1]},"out":["$0"]}</map></graph>', "map"),
    ("</graph>", '<map id="m0">{"in":["i"],"let":{"$0":3},"out":["i"]}</map></graph>', "map"),
    ("</graph>", '<map id="m0">{"in":["i"],"let":{"$0":3},"out":["$0"]}</map></graph>', "map"),
    ("</graph>", '<map id="m0">{"in":["i"],"let":{"$1":3},"out":["$1","$1"]}</map></graph>', "map"),
    ("32],", '["t0.3.0"]],', None),
    ("32],", '["t0.0.0"]],', "reference"),
    ("32],", '["t9.0.0"]],', "reference"),
    ("32],", '"b3"],', "grammar"),
    ("32],", '{"str":"b3"}],', None),
    ("32],", "[" * 11 + "1" + "]" * 12 + ",", "value"),
    ('{"k":"EnterPostproc"}', '["EnterPostproc"]', "grammar"),
    ('"a":["meta_schedule.parallel"]', '"a":[{"int":1}]', "range"),
    ('kind="tile"', 'kind=""', "edit"),
    ("32],", '[{"str":"t0.3.0"}]],', None),
    ('tvm="0.25.0.post1"', 'tvm="0.27.0"', "version"),
    ('version="tsel/1"', 'version="tsel/2"', "version"),
    ('notation="json"', 'notation="xml"', "version"),
    ('notation="json"', 'notation="line"', "kind"),
]


@pytest.mark.parametrize(("old", "new", "rule"), REFUSED)
def test_rules(old: str, new: str, rule: str | None) -> None:
    """Each rule refuses its breach, and the neighbours that break none pass."""
    assert old in SPELLED
    free = old == "32]," and rule != "range"  # a key that may have any value
    text = (SPELLED.replace("meta_schedule.parallel", "note") if free else SPELLED).replace(old, new, 1)
    if rule is None:
        trace = tsel.decode(text).trace
        assert trace != TRACE
        assert tsel.canonical(trace) == trace
        return
    with pytest.raises(TselError) as refused:
        tsel.decode(text)
    assert (refused.value.gate, refused.value.rule) == ("wellformed", rule)
    assert refused.value.place in str(refused.value)
    assert "\n" not in str(refused.value)


LINE_REFUSED = [
    ("[2374]", "[2375]", "tile"),
    ("[2374]", "[0]", "tile"),
    ("[2374]", "[1187]", None),
    ("[2374]", "[2374,8]", "outputs"),
    ("[2374]", "[2374.0]", "tile"),
    ("[2374]", "[2_374]", "json"),
    ("[2374]", "[02374]", "json"),
    ("[2374]", "2374", "tile"),
    (" 18992 [2374]", "", "decision"),
    (" 18992 [2374]", " [2374]", "json"),
    (" 18992 [2374]", " max_innermost_factor=4 18992 [2374]", "tile"),
    (" 18992 [2374]", " max_innermost_factor=8 18992 [2374]", None),
    (" 18992 [2374]", " max_innermost_factor=8 max_innermost_factor=8 18992 [2374]", "grammar"),
    (" 18992 [2374]", " n=2 18992 [2374]", "grammar"),
    ("v4-5 = tile", "v4-6 = tile", "outputs"),
    ("v4-5 = tile", "v4 = tile", "outputs"),
    ("v4-5 = tile", "v5-6 = tile", "outputs"),
    ("v4-5 = tile", "tile", "outputs"),
    ("v4-5 = tile", "v4-5 = perfect_tile", "kind"),
    ("l2-3 = loops", "l2-999999 = loops", "grammar"),
    ("l2-3 = loops", "l3-2 = loops", "grammar"),
    ("l2-3 = loops", "l2-\uff13 = loops", "grammar"),
    ("l6-7 = split", "l6-7 = split l3 v4-5", None),
    ("l6-7 = split", "l6-7 = split l2 v4-5", None),
    ("l6-7 = split", "l6-7 = split l3 v4 l2", "reference"),
    ("l6-7 = split", "l6-7 = split l3 null null", "factor"),
    ("l6-7 = split", "l6-7 = split preserve_unit=false", None),
    ("l6-7 = split", "l6-7 = split preserve_unit=2", "range"),
    ("l6-7 = split", "l6-7 = split x=2", "arity"),
    ("rfactor l6 1", "rfactor l6", "grammar"),
    ("rfactor l6 1", "rfactor l6 1 1", "grammar"),
    ("rfactor l6 1", "rfactor b0 1", "reference"),
    ("rfactor l6 1", "rfactor l60 1", "reference"),
    ("rfactor l6 1", "rfactor l06 1", "reference"),
    ("[0,16,64,512] 1", "[0,16,64,512] 4", "decision"),
    ("[0,16,64,512] 1", "[0,16,64,512] -1", "decision"),
    ("[0,16,64,512] 1", "[0,16,64,512] true", "decision"),
    ("[0,16,64,512] 1", "[0,16,64,512]", "grammar"),
    ("[0,16,64,512] 1", "[0,16,64,512] probs=[0.5,0.5] 1", "probs"),
    ("[0,16,64,512] 1", "[0,16,64,512] probs=[0.5,0.5,0.0,0.0] 1", None),
    ("ms.parallel 32", "ms.parallel 1000000000", "range"),
    ("ms.parallel 32", "note null", "value"),
    ("ms.parallel 32", "ms.parallel", "grammar"),
    ("ms.parallel 32", "note b0", "reference"),
    ("ms.parallel 32", 'note "b0"', "grammar"),
    ("ms.parallel 32", 'note {"str":"b0"}', None),
    ("ms.parallel 32", "note word", None),
    ("ms.parallel 32", 'note "two words"', None),
    ("ms.parallel 32", 'note "two words" 3', "grammar"),
    ("ms.parallel 32", 'note "open', "json"),
    ("ms.parallel 32", "note -0", "json"),
    ("ms.parallel 32", 'note {"dict":{"b":1,"a":2}}', "value"),
    ("ms.parallel 32", 'note {"dict":{"a":{"str":"v3"}}}', "value"),
    ("ms.parallel 32", 'note {"dict":{"a":2,"b":"v3"}}', None),
    ("ms.parallel 32", "pragma_import_llvm 32", "pragma"),
    ("ms.parallel 32", '"ms.parallel" word', None),
    ("ms.parallel 32", "ms.parallel word", "range"),
    ("ms.parallel 32", "ms.parallel [32]", "range"),
    ("ms.parallel 32", "ms.parallel true", "range"),
    ("ms.parallel 32", '{"int":1} 32', "range"),
    ("\nenter_postproc", "\nenter_postproc\nenter_postproc", "boundary"),
    ("\nenter_postproc", "\nenter_postproc 1", "grammar"),
    ("\nenter_postproc", "\nb13 = enter_postproc", "outputs"),
    ("\nenter_postproc", "\n= =", "kind"),
    ("compute_at b0 l11", "compute_at b0 l11 index=-2", None),
    ("compute_at b0 l11", "compute_at b0 l11 index=-3", "range"),
    ("compute_at b0 l11", "unroll l11", "reference"),
]


@pytest.mark.parametrize(("old", "new", "rule"), LINE_REFUSED)
def test_rules_of_lines(old: str, new: str, rule: str | None) -> None:
    assert old in LINES
    text = LINES.replace(old, new, 1)
    if rule is None:
        decoded = tsel.decode(text)
        assert tsel.decode(tsel.render(decoded.graph, "line").text).graph == decoded.graph
        assert tsel.decode(tsel.convert(text, "json")).tree == decoded.tree
        return
    with pytest.raises(TselError) as refused:
        tsel.decode(text)
    assert (refused.value.gate, refused.value.rule) == ("wellformed", rule), str(refused.value)
    assert re.match(r"(line \d+, )?(t\d+\.\d+|trace)", refused.value.place)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "xml"),
        ("<graph", "xml"),
        ("{}", "xml"),
        ('<?xml version="1.0"?>' + SPELLED, "xml"),
        ("<!DOCTYPE graph>" + SPELLED, "xml"),
        (SPELLED + SPELLED, "xml"),
        (SPELLED.replace("</graph>", "<!-- x --></graph>"), "xml"),
        (SPELLED.replace("</graph>", "<![CDATA[x]]></graph>"), "xml"),
        (SPELLED.replace("</graph>", "<?x y?></graph>"), "xml"),
        (SPELLED.replace("</graph>", "&x;</graph>"), "xml"),
        (SPELLED.replace("</graph>", "hello</graph>"), "text"),
        (SPELLED.replace("</graph>", "<graph/></graph>"), "node"),
        (SPELLED.replace("</graph>", '<analysis id="a1"><summary>x</summary></analysis></graph>'), "node"),
        (SPELLED.replace(' id="t1"', ""), "attribute"),
        (SPELLED.replace(' kind="tile"', ' kind="tile" x="y"'), "attribute"),
        (SPELLED.replace("<summary>", "<summary></summary><summary>", 1), "node"),
        (SPELLED.encode("utf-16"), "encoding"),
        (SPELLED.replace("tile", "\ud800"), "encoding"),
        (" " * (tsel.MAX_TEXT + 1), "size"),
    ],
)
def test_what_is_no_graph(text: str | bytes, rule: str) -> None:
    with pytest.raises(TselError) as refused:
        tsel.decode(text)
    assert (refused.value.gate, refused.value.rule) == ("parsed", rule)
