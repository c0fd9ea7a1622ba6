"""Prompts: two golden ones, and nothing in them but what the record holds."""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from littledragon.compiler import targets
from littledragon.compiler.environment import environment
from littledragon.release import examples, prompts
from littledragon.schemas import tsel

GOLDEN = Path(__file__).parents[1] / "golden" / "release"
ENVIRONMENT = "Apache TVM 0.25.0.post1, target llvm (mcpu x86-64-v3), 2 cores."
Tables = dict[str, list[dict[str, Any]]]


def rendered(messages: list[dict[str, str]]) -> str:
    return "".join(f"===== {message['role']}\n{message['content']}\n" for message in messages)


def tasks(tables: Tables) -> tuple[prompts.ConstructionTask, prompts.RefinementTask]:
    workload = tables["workloads"][0]
    chosen = next(s for s in tables["selections"] if s["mode"] == "refine")
    parent = next(t["tsel"] for t in tables["traces"] if t["candidate_id"] == chosen["parent_id"])
    return (
        examples.construction_task(workload, ENVIRONMENT),
        examples.refinement_task(workload, ENVIRONMENT, parent, chosen["gain_band"]),
    )


@pytest.mark.parametrize("mode", ["construction", "refinement"])
def test_golden_prompt(tables: Tables, mode: str) -> None:
    """`LITTLEDRAGON_GOLDEN=1 pytest` writes the files anew."""
    workload = tables["workloads"][0]
    if mode == "construction":
        messages = prompts.construction(examples.construction_task(workload, ENVIRONMENT))
    else:
        prior = (GOLDEN / "payload_slow.txt").read_text(encoding="utf-8")
        messages = prompts.refinement(examples.refinement_task(workload, ENVIRONMENT, prior, "[2, 5)"))
    text = rendered(messages)
    path = GOLDEN / f"prompt_{mode}.txt"
    if os.environ.get("LITTLEDRAGON_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_refinement_is_the_construction_dialogue_continued(tables: Tables) -> None:
    construct, refine = tasks(tables)
    messages = prompts.refinement(refine)
    assert messages[:2] == prompts.construction(construct)
    assert [message["role"] for message in messages[2:]] == ["assistant", "user"]
    assert messages[2]["content"] == refine.prior_graph


def test_graph_a_is_shown_in_the_line_notation_with_a_summary_of_each_edit(tables: Tables) -> None:
    """Whatever notation it is kept in; a summary that nobody wrote is derived."""
    _, refine = tasks(tables)
    graph = tsel.decode(refine.prior_graph).graph
    assert refine.prior_graph.startswith('<graph version="tsel/1" notation="line"')
    lines = [f"{number}. {text}" for number, text in enumerate(tsel.summaries(graph).values(), 1)]
    assert len(lines) == len(graph.edits) > 5
    assert refine.prior_summary.splitlines() == lines
    other = tsel.convert(refine.prior_graph, "json")
    assert examples.refinement_task(tables["workloads"][0], ENVIRONMENT, other, refine.gain_band) == refine


def test_what_the_system_prompt_quotes_is_of_the_language() -> None:
    system = (prompts.TEMPLATES / "system.txt").read_text(encoding="utf-8")
    (tile,) = re.findall(r"`(v11-15 = tile [^`]*)`", system)
    head = (GOLDEN / "payload_slow.txt").read_text(encoding="utf-8").split("\n")[0]
    lines = ["b0 = block conv", "l1-10 = loops b0", tile, "l16-20 = split", "annotate b0 ms.parallel 1"]
    text = "\n".join([head, '<trace_sequence id="t0">', *lines, "</trace_sequence>", "</graph>"])
    told = tsel.decode(text).graph.edits[0].instructions
    assert told[2].decision == {"extent": 448, "factors": [1, 7, 2, 8]}
    assert (told[3].inputs, told[4].attrs) == (("l4", *told[2].outputs), ("meta_schedule.parallel",))
    assert "<postproc>" in system


def test_the_records_hold_what_the_student_may_see_and_nothing_else() -> None:
    x = ["description", "script", "features", "environment"]
    assert [field.name for field in dataclasses.fields(prompts.ConstructionTask)] == x
    more = ["prior_graph", "prior_summary", "gain_band"]
    assert [field.name for field in dataclasses.fields(prompts.RefinementTask)] == x + more


@pytest.mark.parametrize("name", ["llvm", "cuda"])
def test_the_environment_in_words(name: str) -> None:
    """It comes from what is stored of the measurements."""
    row = environment(targets.target(name), "simulated", {"repeat_ms": 20.0})
    words = prompts.environment(row)
    assert words.startswith("Apache TVM 0.25.0.post1, target ")
    assert {"llvm": "2 cores", "cuda": "sm_90"}[name] in words
    other = {**row, "tvm": "9.9", "target": '{"kind":"llvm","num-cores":64}'}
    assert prompts.environment(other) == "Apache TVM 9.9, target llvm (a generic CPU), 64 cores."
    assert row["processor"] not in prompts.environment(row)
    with pytest.raises(ValueError, match="target vulkan"):
        prompts.environment({**row, "target": '{"kind":"vulkan"}'})


def test_placeholders_in_the_data_stay_as_they_are() -> None:
    task = prompts.ConstructionTask("$script ${features} $$", "$description", '{"a":"$environment"}', "$x")
    text = prompts.construction(task)[1]["content"]
    assert "$script ${features} $$" in text
    assert '{"a": "$environment"}' in text


def test_the_version_follows_the_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in prompts.PROMPT_FILES:
        (tmp_path / name).write_bytes((prompts.TEMPLATES / name).read_bytes())
    before = prompts.version()
    monkeypatch.setattr(prompts, "TEMPLATES", tmp_path)
    assert prompts.version() == before
    (tmp_path / "prior.txt").write_text("$prior_summary $gain_band, please")
    assert prompts.version() != before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


@given(JSON)
def test_readable_json_is_the_same_value(value: Any) -> None:
    assert json.loads(prompts.readable(value)) == value


def test_readable_json_puts_short_records_on_one_line() -> None:
    text = prompts.readable({"loops": [{"name": f"loop{i}", "extent": 1024, "kind": "serial"} for i in range(9)]})
    assert len(text.splitlines()) == 13
