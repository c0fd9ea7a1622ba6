"""Facts, derived in a child as the stage does, against golden ones; and what may never be among them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from littledragon.compiler import children
from littledragon.compiler._facts import Facts
from littledragon.compiler._payload_facts import _of_scheduled
from littledragon.compiler.deeds import deeds, values
from littledragon.compiler.facts import request
from littledragon.schemas import tsel
from littledragon.schemas.graph import Edit, Instruction

GOLDEN = Path(__file__).parents[1] / "golden" / "labels"
NAMES = sorted(path.name.removesuffix(".task.json") for path in GOLDEN.glob("*.task.json"))


def read(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def derive(task: dict[str, Any], mode: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = children.worker("facts").call(
        "littledragon.compiler.facts:derive",
        deadline_s=60,
        workload=task["workload"],
        environment=task["environment"],
        mode=mode,
        tsel=task["tsel"],
        parent_tsel=task["parent_tsel"] if mode == "refine" else None,
    )
    return found


@pytest.mark.parametrize("name", NAMES)
def test_golden_facts(name: str) -> None:
    """tests/golden/labels/make.py writes them anew."""
    task, wanted = read(f"{name}.task.json"), read(f"{name}.facts.json")
    assert derive(task, "construct") == wanted["construct"]
    refine = derive(task, "refine")
    assert [*refine, request(task["gain_band"], len(refine))] == wanted["refine"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["construct", "refine"])
def test_the_shape_of_facts(name: str, mode: str) -> None:
    rows = read(f"{name}.facts.json")[mode]
    paths = [row["path"] for row in rows]
    assert len(set(paths)) == len(paths)
    assert [row["position"] for row in rows] == list(range(len(rows)))
    for row in rows:
        assert re.fullmatch(r"(in|out)(\.[a-z0-9_]+)+", row["path"])
        assert json.dumps(json.loads(row["value"]), separators=(",", ":")) == row["value"]
        assert row["text"].isascii()
        assert row["derivation"]
    assert ("in.prior.deeds" in paths) == (mode == "refine")


@pytest.mark.parametrize("name", NAMES)
def test_no_fact_is_a_measurement(name: str) -> None:
    forbidden = re.compile(r"latenc|_us\b|\bratio|margin|noise|anchor|speed|faster|slower|median", re.IGNORECASE)
    for rows in read(f"{name}.facts.json").values():
        for row in rows:
            if row["path"] != "in.task.description":
                assert not forbidden.search(" ".join((row["path"], row["text"], row["derivation"]))), row


def test_in_facts_do_not_depend_on_the_payload() -> None:
    task = read("matmul.task.json")
    other = {**task, "tsel": task["parent_tsel"]}

    def visible(rows: list[dict[str, Any]]) -> list[Any]:
        return [(r["path"], r["value"], r["text"]) for r in rows if r["path"].startswith("in.")]

    assert visible(derive(task, "construct")) == visible(derive(other, "construct"))


def test_a_mode_without_its_parent_is_refused() -> None:
    task = read("matmul.task.json")
    with pytest.raises(children.ChildError, match="refine has a parent"):
        children.worker("facts").call(
            "littledragon.compiler.facts:derive",
            deadline_s=60,
            workload=task["workload"],
            environment=task["environment"],
            mode="refine",
            tsel=task["tsel"],
        )


def test_no_fact_names_what_no_prompt_shows() -> None:
    task = read("matmul.task.json")
    renamed = {**task, "workload": {**task["workload"], "operator": "zyx"}}
    assert not [row for row in derive(renamed, "construct") if "zyx" in row["value"] + row["text"]]


def loop(index: int, thread: str | None, extent: int, *outer: int) -> dict[str, Any]:
    return {
        "index": index,
        "thread": thread,
        "extent": extent,
        "outer": list(outer),
        "kind": "thread",
        "annotations": {},
    }


def test_each_kernel_has_threads_of_its_own() -> None:
    first = [loop(0, "blockIdx.x", 8), loop(1, "threadIdx.x", 32, 0), loop(2, "threadIdx.y", 4, 0, 1)]
    second = [loop(3, "blockIdx.x", 2), loop(4, None, 5, 3), loop(5, "threadIdx.x", 128, 3, 4)]
    facts = Facts()
    _of_scheduled(facts, "out", "the schedule", {"loops": first, "buffers": []})
    found = {row["path"]: (json.loads(row["value"]), row["text"]) for row in facts.rows}
    assert found["out.grid"] == (8, "the schedule launches 8 thread blocks")
    assert found["out.threads_per_block"] == (128, "the schedule launches 128 threads in each block")
    facts = Facts()
    _of_scheduled(facts, "out", "the schedule", {"loops": first + second, "buffers": []})
    found = {row["path"]: (json.loads(row["value"]), row["text"]) for row in facts.rows}
    assert "out.grid" not in found
    assert found["out.kernel1.threads_per_block"][0] == 128
    assert found["out.kernel2.threads_per_block"] == (
        128,
        "the schedule launches 128 threads in each block in kernel 2",
    )
    assert found["out.kernel2.grid"][0] == 2
    assert found["out.kernel2.threads.threadidx_x"] == (128, "threadIdx.x has extent 128 in kernel 2")


def test_paths_stay_unique_and_plain() -> None:
    facts = Facts()
    for _ in range(3):
        facts.add("out.T_x.Y-z", 1, "tür\n", "here")
    assert [row["path"] for row in facts.rows] == ["out.t_x.y_z", "out.t_x.y_z_2", "out.t_x.y_z_3"]
    assert facts.rows[0]["text"] == "t?r?"


def instruction(
    kind: str, *inputs: Any, attrs: tuple[Any, ...] = (), made: str = "", decision: Any = None
) -> Instruction:
    return Instruction(kind, inputs, attrs, (made,) if made else (), decision)


@pytest.mark.parametrize(
    ("given", "done", "asked"),
    [
        (instruction("Fuse", "l0"), set(), set()),
        (instruction("Fuse", "l0", "l1"), {"fuse_loops"}, set()),
        (instruction("Bind", "l0", attrs=("threadIdx.x",)), {"bind", "parallel"}, set()),
        (instruction("CacheRead", "l0", attrs=(0, "shared.dyn")), {"cache", "cache_read", "shared"}, set()),
        (instruction("Annotate", "l0", 0, attrs=("meta_schedule.unroll_explicit",)), set(), set()),
        (instruction("Annotate", "l0", 64, attrs=("meta_schedule.unroll_explicit",)), set(), {"unroll"}),
        (instruction("Annotate", "l0", 64, attrs=("pragma_auto_unroll_max_step",)), {"unroll"}, set()),
        (instruction("Annotate", "l0", "v2", attrs=("pragma_auto_unroll_max_step",)), set(), set()),
        (instruction("ComputeAt", "l0", "l3"), {"inline"}, set()),
        (instruction("ComputeAt", "l0", "l4"), set(), set()),
        (instruction("ComputeAt", "l0", "l5"), {"compute_at"}, set()),
    ],
)
def test_deeds(given: Instruction, done: set[str], asked: set[str]) -> None:
    sampled = Edit(
        "t9",
        "annotate",
        "",
        (
            instruction("SampleCategorical", attrs=([0, 16], [0.5, 0.5]), made="v2", decision=0),
            instruction("SampleComputeLocation", "l0", made="l3", decision=-2),
            instruction("SampleComputeLocation", "l0", made="l4", decision=-1),
            instruction("SampleComputeLocation", "l0", made="l5", decision=1),
        ),
    )
    assert deeds([given], values([sampled])) == (done, asked)


def test_the_last_factor_is_derived() -> None:
    graph = tsel.decode(read("matmul.task.json")["tsel"]).graph
    tile = next(i for edit in graph.edits for i in edit.instructions if i.kind == "SamplePerfectTile")
    known = values(graph.edits)
    assert [known[name] for name in tile.outputs] == [32, 2, 2, 1]


def test_derived_post_processing_is_one_edit_more() -> None:
    """The facts of the whole schedule are the same; what post-processing does stands under `postproc`."""
    task = read("matmul.task.json")
    graph = tsel.decode(task["tsel"]).graph
    assert graph.postproc is not None
    admitted = children.worker("facts").call(
        "littledragon.compiler.traces:apply",
        deadline_s=60,
        module=task["workload"]["module"],
        text=task["tsel"],
        target=json.loads(task["environment"]["target"]),
    )
    spelled = tsel.encode(admitted["trace"])
    after = tsel.decode(spelled.text).graph.edits[len(graph.edits) :]
    found = {row["path"]: row for row in derive(task, "construct")}
    whole = {row["path"]: row for row in derive({**task, "tsel": spelled.text}, "construct")}
    ours = re.compile(r"out\.(t\d+|postproc)\.")
    alike = {path for path in whole if not ours.match(path)} - {"out.edits"}
    assert alike == {path for path in found if not ours.match(path)} - {"out.edits"}
    for path in alike:
        assert (whole[path]["value"], whole[path]["text"]) == (found[path]["value"], found[path]["text"])
    assert json.loads(found["out.edits"]["value"]) == len(graph.edits)
    steps = sum(len(edit.instructions) for edit in after)
    assert found["out.postproc.steps"]["text"] == f"post-processing of the schedule has {steps} instructions"
    deeds = [whole.get(f"out.{edit.id}.deeds", {"value": "[]"})["value"] for edit in after]
    assert json.loads(found["out.postproc.deeds"]["value"]) == sorted({deed for d in deeds for deed in json.loads(d)})
