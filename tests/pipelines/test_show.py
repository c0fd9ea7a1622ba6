"""Records are shown whole, in any width, and nothing in them reaches the terminal as markup or control."""

import math
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from littledragon.pipelines import show
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.store import Store
from littledragon.schemas import tsel
from littledragon.schemas.graph import Edit, Graph, Instruction, Postproc

Tables = dict[str, list[dict[str, Any]]]
Fill = Callable[[Path, Tables], Store]
HOSTILE = "[bold red]x[/] [link=file:///etc]y[/link] \x1b[31mz\x1b]0;t\x07 \u202e\u0085 \\[b"


def shown(store: Store, id: str, width: int = 120, **options: Any) -> str:
    console = Console(file=StringIO(), width=width, **options)
    show.show(store, id, console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, built_tables: Tables, fill: Fill) -> Store:
    return fill(tmp_path_factory.mktemp("show") / "w", built_tables)


def first(store: Store, kind: str, where: str = "true") -> str:
    table, column = show.HOMES[kind]
    return str(store.rows(table, where)[0][column])


def test_a_label_is_drawn_as_its_graph(store: Store) -> None:
    row = store.rows("labels")[0]
    text = shown(store, row["label_id"])
    graph = tsel.decode(row["graph"]).graph
    assert "e1 [in.loop.k.extent] reduction loop k of block NT_matmul has extent 128  → a1" in text
    assert "a1 The reduction loop [in.loop.k.extent=128] is long enough to split.  ← e1  → t0" in text
    assert "p1 Fewer loads of the operands.  ← t0" in text
    places = [
        text.index(f"{number}/{len(graph.edits)} {edit.id} {edit.kind}") for number, edit in enumerate(graph.edits, 1)
    ]
    assert places == sorted(places)
    words = " ".join(text.replace("│", " ").split())
    for edit in graph.edits:
        assert " ".join(tsel.summaries(graph)[edit.id].split()) in words
        for instruction in edit.instructions:
            assert " ".join(tsel.instruction_line(instruction).split()) in words


def test_edges_have_their_colours(store: Store) -> None:
    text = shown(store, first(store, "l"), force_terminal=True, color_system="standard", legacy_windows=False)
    assert "\x1b[32m  → a1" in text
    assert "\x1b[33m  → t0" in text
    assert "\x1b[35m  ← t0" in text


def test_every_kind_of_record_is_shown(store: Store) -> None:
    workload = shown(store, first(store, "w", "split = 'train'"))
    assert "number 0" in workload
    assert "block NT_matmul [v_i0=128 spatial, v_i1=128 spatial, v_k=128 reduce]" in workload
    assert "def main(" in workload
    assert "default_us" in workload
    candidate = shown(store, first(store, "c", "latency_us = 30"))
    assert "verdict" in candidate
    assert "Split the first loop of NT_matmul" in candidate
    selection = shown(store, first(store, "s"))
    assert "in.loop.k.extent" in selection
    assert "label l-" in selection


def test_a_candidate_shows_its_gates(tmp_path: Path, tables: Tables, fill: Fill) -> None:
    passed, failed = tables["candidates"][1:3]
    failed |= {"status": "built", "reason": "no memory", "latency_us": None}
    store = fill(tmp_path / "w", tables)
    assert "encoded built ran correct timed\n" in shown(store, passed["candidate_id"])
    text = shown(store, failed["candidate_id"])
    assert "postprocessed encoded built failed\n" in text
    assert "no memory" in text


def test_wide_content_folds_and_nothing_is_lost(store: Store) -> None:
    id = first(store, "c", "latency_us = 30")
    for width in (24, 60):
        text = shown(store, id, width=width)
        assert max(len(line) for line in text.splitlines()) <= width
        squeezed = "".join(c for c in text if c.isalnum() or c in "._")
        assert "reverse_compute_at" in squeezed
        assert "…" not in text


def test_a_long_module_is_cut_and_said_so(tmp_path: Path, tables: Tables, fill: Fill) -> None:
    tables["workloads"][0]["script"] = "\n".join(f"line{number}" for number in range(100))
    text = shown(fill(tmp_path / "w", tables), tables["workloads"][0]["workload_id"])
    assert f"line{show.HEAD_LINES - 1}\n" in text.replace(" ", "")
    assert f"{100 - show.HEAD_LINES} more lines" in text


def test_hostile_text_is_neither_markup_nor_control(tmp_path: Path, tables: Tables, fill: Fill) -> None:
    label, workload, fact, selection = (tables[n][0] for n in ("labels", "workloads", "facts", "selections"))
    label |= {"graph": HOSTILE, "model": HOSTILE}
    workload |= {"description": HOSTILE, "features": HOSTILE, "script": HOSTILE}
    fact["text"] = HOSTILE
    store = fill(tmp_path / "w", tables)
    for id in (label["label_id"], workload["workload_id"], selection["selection_id"]):
        text = shown(store, id, width=200)
        assert "[bold red]x[/] [link=file:///etc]y[/link]" in text
        assert not {c for c in text if c < " " and c != "\n"} | ({*text} & {"\x7f", "\u202e", "\u0085", "\x1b"})
    assert "not a well-formed graph" in shown(store, label["label_id"], width=200)


def test_hostile_prose_inside_a_graph(tmp_path: Path, tables: Tables, fill: Fill) -> None:
    label = tables["labels"][0]
    label["graph"] = label["graph"].replace("Fewer loads", "[red]Fewer[/red] \u202eloads")
    text = shown(fill(tmp_path / "w", tables), label["label_id"])
    assert "[red]Fewer[/red] \ufffdloads" in text


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("q", "is no id"),
        ("z-0000000000000000", "is no id"),
        ("w-0000000000000000", "for example w-"),
        ("x-0000000000000000", "the table holds 0"),
        ("c-[red]\x1b", "c-[red]\ufffd: no such id"),
    ],
)
def test_an_unknown_id_is_one_line(store: Store, id: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        shown(store, id)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_near_id_is_offered(store: Store) -> None:
    id = first(store, "l")
    for near in (id[:8], id[:-1] + ("0" if id[-1] != "0" else "1")):
        with pytest.raises(UserError, match=f"did you mean.*{id}"):
            shown(store, near)


def test_sampled_decisions_are_spelled_out(built_tables: Tables) -> None:
    graph = tsel.decode(built_tables["traces"][0]["tsel"]).graph
    steps = {step.outputs[0]: step for edit in graph.edits for step in edit.instructions if step.decision is not None}
    found = show.sampled(graph)
    located = {name for name, step in steps.items() if step.kind == "SampleComputeLocation"}
    assert set(steps) - located <= set(found)
    tiles = [name for name, step in steps.items() if step.kind == "SamplePerfectTile"]
    assert tiles
    for name in tiles:
        factors = [int(factor) for factor in found[name].removeprefix("→ ").split(" * ")]
        assert math.prod(factors) == steps[name].decision["extent"]
        assert factors[:-1] == steps[name].decision["factors"]


def test_places_that_are_no_loops_are_told() -> None:
    steps = [Instruction("SampleComputeLocation", ("b0",), (), (f"l{n}",), d) for n, d in enumerate((-2, -1, 3))]
    graph = Graph((Edit("t0", "compute_at", "", tuple(steps)),))
    assert show.sampled(graph) == {"l0": "→ inlined", "l1": "→ stays where it is"}


def test_derived_post_processing_is_told() -> None:
    console = Console(file=StringIO(), width=100)
    console.print(show.draw(Graph((), postproc=Postproc("cuda-tensorcore", 1))))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "post-processing by the rules of cuda-tensorcore, version 1" in text
