"""`dragon eval`: a small simulated release, files of outputs from strangers, a real endpoint, a real local model."""

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from littledragon.compiler import children, targets
from littledragon.pipelines import cli, eval_baselines, eval_models, evaluate, journal, questions
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.questions import Prompt, Settings, Source, Text
from littledragon.release import dataset, published
from littledragon.release.prompts import Message
from littledragon.release.tasks import tasks_of
from littledragon.schemas import tables, tsel
from littledragon.schemas.ids import content_id
from littledragon.validators.service import Service

REAL = Path(__file__).parents[1] / "golden" / "release"
FAST, SLOW = ((REAL / f"payload_{name}.txt").read_text(encoding="utf-8") for name in ("fast", "slow"))
MODULE, INPUTS = ((REAL / name).read_text(encoding="utf-8") for name in ("module.json", "inputs.json"))
SETTINGS = Settings(device="simulated", threads=8, samples=3, deadline_s=20.0, rpm=1_000_000)
WORKLOADS = {"w-1": ("gemm", "test"), "w-2": ("moe", "test"), "w-3": ("gemm", "train")}


def messages(workload: str, mode: str) -> list[Message]:
    said = [("system", "Answer."), ("user", f"Schedule {workload}.")]
    if mode == "refine":
        said += [("assistant", SLOW), ("user", "Make it faster.")]
    return [{"role": role, "content": content} for role, content in said]


def example(workload: str, mode: str, completion: str, latency_us: float) -> dict[str, Any]:
    family, split = WORKLOADS[workload]
    asked = messages(workload, mode)
    return {column.name: None for column in tables.EXAMPLES.columns} | {
        "example_id": content_id("x", [asked, completion]), "mode": mode, "split": split, "family": family,
        "operator": "matmul", "workload_id": workload, "environment_id": "e", "messages": asked,
        "completion": completion, "completion_json": tsel.convert(completion, "json"), "latency_us": latency_us,
        "parent_us": LATENCIES[SLOW] if mode == "refine" else None, "default_us": 1e4, "anchor_us": 10.0,
        "noise_band": 0.01,
    }  # fmt: skip


LATENCIES = {FAST: 1.0, SLOW: 1.0}
"""Of the simulated device, once `release` has measured them."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A release folder of two test workloads and one for training, their latencies those of the simulated device."""
    folder = tmp_path_factory.mktemp("release")
    rows = [
        {"workload_id": id, "family": family, "module": MODULE, "inputs": INPUTS, "environment_id": "e",
         "target": json.dumps(targets.target("llvm")), "default_us": 1e4, "anchor_us": 10.0, "noise_band": 0.01,
         "margin": 0.05, "split": split}
        for id, (family, split) in WORKLOADS.items()
    ]  # fmt: skip
    write(folder / "tasks" / "all.parquet", rows, dataset.tasks_schema())
    with Service(tasks_of(folder, split="test"), "simulated") as service:
        for text in LATENCIES:
            LATENCIES[text] = service.evaluate("w-1", text).latency_us or 0.0
    schema = dataset.published(tables.EXAMPLES.arrow(), ("unit_id", *(c.name for c in tables.STATE_COLUMNS)))
    examples = [example(id, "construct", text, LATENCIES[text]) for id in WORKLOADS for text in (FAST, SLOW)]
    write(folder / "construction" / "all.parquet", examples, schema)
    examples = [example(id, "refine", FAST, LATENCIES[FAST]) for id in WORKLOADS for _ in range(9)]
    write(folder / "refinement" / "all.parquet", examples, schema)
    cells = [{"workload_id": id, "state": "ok", "signature": "matmul", "extents": [128, 128, 128]} for id in WORKLOADS]
    write(folder / "metadata" / "workloads.parquet", cells, CELLS)
    yield folder
    children.close_all()


CELLS = pa.schema(dict.fromkeys(("workload_id", "state", "signature"), pa.string()) | {"extents": pa.list_(pa.int64())})


def write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path)


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """The children that read a release are real ones; a folder that they have read does not change."""
    patch = pytest.MonkeyPatch()
    for name in ("prompts_of", "tasks_of"):
        patch.setattr(evaluate, name, functools.cache(getattr(evaluate, name)))
    yield
    patch.undo()


def ids(release: Path) -> dict[tuple[str, str], str]:
    """Prompts by workload and mode."""
    return {(prompt.task_id, prompt.mode): id for id, prompt in questions.prompts_of(release, "test", None).items()}


def outputs_file(path: Path, rows: list[dict[str, Any]]) -> Source:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Source(outputs=path)


def rows_of(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()][1:]


def test_rows_of_one_prompt_are_one(release: Path) -> None:
    prompts = questions.prompts_of(release, "test", None)
    assert len(prompts) == 4
    faster = min(LATENCIES.values())
    assert {prompt.latency_us for prompt in prompts.values() if prompt.mode == "construct"} == {faster}
    assert {prompt.parent_us for prompt in prompts.values() if prompt.mode == "refine"} == {LATENCIES[SLOW]}


def test_many_rows_come_in_pieces(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "PIECE", 1)
    found, place, pieces = [], [0, 0], 0
    while place is not None:
        piece = questions._read_prompts(release, place, "test", "e")
        found += [row["example_id"] for row in piece["rows"]]
        place, pieces = piece["place"], pieces + 1
    assert (len(found), len(set(found)), pieces) == (22, 6, 23)


def test_row_groups_that_were_read_are_not_read_again(tmp_path: Path) -> None:
    """A damaged page there is not met any more; the rows that follow are the same."""
    rows = [{"split": f"{number:04}", "environment_id": "e" * 50} for number in range(90)]
    schema = pa.schema({"split": pa.string(), "environment_id": pa.string()})
    path = tmp_path / "f.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=30, write_page_checksum=True)
    for first in (0, 29, 30, 45, 60, 89, 90):
        found = [row for batch in published.batches(path, ("split",), first) for row in batch]
        assert found == [{"split": row["split"]} for row in rows[first:]]
    start = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start + 40 : start + 60] = bytes(20)
    path.write_bytes(content)
    assert sum(len(batch) for batch in published.batches(path, ("split",), 30)) == 60
    with pytest.raises(published.Unreadable, match="damaged"):
        list(published.batches(path, ("split",), 29))


def test_reference_answers_are_all_correct_and_reproduce_their_latencies(release: Path, tmp_path: Path) -> None:
    found = evaluate.evaluate(release, Source(baseline="reference"), tmp_path / "r.jsonl", SETTINGS)
    for mode in ("construct", "refine"):
        group = found.group(mode)  # type: ignore[arg-type]
        assert (group.prompts, group.outputs, group.faults) == (2, 2, 0)
        assert (group.correct.value, group.reproduced.value) == (1.0, 1.0)
    assert found.group("construct").over_default.value == pytest.approx(1e4 / min(LATENCIES.values()))
    summary = json.loads((tmp_path / "r.summary.json").read_text(encoding="utf-8"))
    assert summary["evaluation"] == json.loads(json.dumps(found.as_dict()))
    assert summary["run"]["source"]["baseline"] == "reference"
    assert (summary["prompts"], summary["unanswered"]) == (4, 0)


@pytest.mark.parametrize("name", ["default", "nearest"])
def test_other_baselines(release: Path, tmp_path: Path, name: Any) -> None:
    found = evaluate.evaluate(release, Source(baseline=name), tmp_path / "b.jsonl", SETTINGS).group("construct")
    assert found.correct.value == 1.0
    assert found.empty == (2 if name == "default" else 0)
    if name == "nearest":  # the training workload is the same program
        assert found.reproduced.value == 1.0


def test_a_training_workload_is_not_its_own_neighbour(release: Path, tmp_path: Path) -> None:
    settings = Settings(**vars(SETTINGS) | {"split": "train"})
    found = evaluate.evaluate(release, Source(baseline="nearest"), tmp_path / "n.jsonl", settings)
    assert found.group("construct").failures == {"parsed": 1}  # the only one there is


def test_a_file_of_outputs_with_garbage(release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    id = ids(release)
    one, other, refine = id["w-1", "construct"], id["w-2", "construct"], id["w-1", "refine"]
    texts = [FAST, "", "\ud800\x00<graph", "<graph>" * 9999, FAST.replace("tile l2 128", "tile l2 127"), SLOW]
    rows: list[dict[str, Any]] = [{"example_id": one, "output": text, "seconds": 2} for text in texts]
    rows += [{"example_id": other, "output": "x" * (tsel.MAX_TEXT + 1)}, {"example_id": refine, "output": FAST}]
    rows += [{"example_id": "x-of-somebody-else", "output": FAST}]
    found = evaluate.evaluate(release, outputs_file(tmp_path / "o", rows), tmp_path / "r.jsonl", SETTINGS)
    group = found.group("construct")
    assert (group.prompts, group.outputs, group.faults) == (2, 7, 0)
    assert group.failures == {"parsed": 4, "wellformed": 1}
    assert group.correct.value == pytest.approx(2 / 7)
    assert group.over_default.of == 1
    assert group.to_kernel_s.value is not None
    assert group.to_kernel_s.value > 2
    assert found.group("refine").correct.value == 1.0
    said = capsys.readouterr().err
    assert "1 of 4 prompts have no output" in said
    assert "1 outputs belong to no prompt here" in said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no output for a prompt"),
        (b"\n\n", "no output for a prompt"),
        (b"{", "line 1: not JSON"),
        (b"\xff\xfe", "line 1: not JSON"),
        (b"[" * 100_000, "line 1: not JSON"),
        (b"[]\n", "line 1: not a JSON object"),
        (b'{"example_id": "x"}', "line 1: not an object with the texts"),
        (b'{"example_id": 1, "output": ""}', "line 1: not an object with the texts"),
        (b'{"example_id": "x", "output": "", "seconds": NaN}', "which is no duration"),
        (b'{"example_id": "x", "output": "", "seconds": true}', "which is no duration"),
        (b'{"example_id": "x", "output": "' + b"y" * journal.MAX_LINE + b'"}', "line 1: more than"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "o").write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        evaluate.read_outputs(tmp_path / "o", {})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_run_goes_on_where_it_stopped(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is finished is never judged again, also where the last line is torn; faults and new texts are."""
    id, results = ids(release), tmp_path / "r.jsonl"
    rows = [{"example_id": id[w, "construct"], "output": text} for w in ("w-1", "w-2") for text in (FAST, "", SLOW)]
    source = outputs_file(tmp_path / "o", rows)
    whole = evaluate.evaluate(release, source, results, SETTINGS)
    lines = results.read_text(encoding="utf-8").splitlines(keepends=True)
    fault = json.loads(lines[1]) | {"verdict": {"gate": None, "fault": "the disk is full"}}
    results.write_text("".join([lines[0], json.dumps(fault) + "\n", *lines[2:5], lines[5][:50]]), encoding="utf-8")
    judged: list[str] = []

    class Counting(Service):
        def evaluate(self, task_id: str, text: str) -> Any:
            judged.append(text)
            return super().evaluate(task_id, text)

    monkeypatch.setattr(evaluate, "Service", Counting)
    assert without_times(evaluate.evaluate(release, source, results, SETTINGS)) == without_times(whole)
    assert len(judged) == 3  # the fault, the torn line, and the line that was lost with it
    assert len(rows_of(results)) == 7
    evaluate.evaluate(release, source, results, SETTINGS)
    assert len(judged) == 3
    changed = outputs_file(tmp_path / "o", [*rows[:-1], rows[-1] | {"output": "another"}])
    assert evaluate.evaluate(release, changed, results, SETTINGS).group("construct").failures == {"parsed": 3}
    assert judged[3:] == ["another"]


def test_what_is_a_tasks_own_comes_before_its_first_output(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs that are no texts need nothing of it."""
    done: list[tuple[str, str]] = []

    class Telling(Service):
        def get_ready(self, task_id: str) -> None:
            super().get_ready(task_id)
            done.append(("ready", task_id))

        def evaluate(self, task_id: str, text: str) -> Any:
            done.append(("judged", task_id))
            return super().evaluate(task_id, text)

    monkeypatch.setattr(evaluate, "Service", Telling)
    id = ids(release)
    rows = [
        {"example_id": id["w-1", "construct"], "output": FAST},
        {"example_id": id["w-2", "construct"], "output": ""},
    ]
    evaluate.evaluate(release, outputs_file(tmp_path / "o", rows), tmp_path / "r.jsonl", replace(SETTINGS, threads=1))
    assert done == [("ready", "w-1"), ("judged", "w-1"), ("judged", "w-2")]


def test_a_limit_keeps_the_order_of_the_tasks(release: Path) -> None:
    """So that the references of one are made once."""
    prompts, _ = evaluate.asked(release, SETTINGS)
    many = {f"{id}-{n}": prompt for id, prompt in prompts.items() for n in range(20)}
    kept = list(evaluate._limited(many, 7))
    assert len(kept) == 14
    assert kept == [id for id in many if id in set(kept)]


def without_times(found: evaluate.Evaluation) -> list[dict[str, Any]]:
    return [{k: v for k, v in group.items() if k != "to_kernel_s"} for group in found.as_dict()["groups"]]


def test_results_of_another_run_are_left_alone(release: Path, tmp_path: Path) -> None:
    results = tmp_path / "r.jsonl"
    evaluate.evaluate(release, Source(baseline="default"), results, SETTINGS)
    before = results.read_bytes()
    with pytest.raises(UserError, match="made with another source: choose another --out"):
        evaluate.evaluate(release, Source(baseline="reference"), results, SETTINGS)
    with pytest.raises(UserError, match="made with another threads: choose another --out"):
        evaluate.evaluate(release, Source(baseline="default"), results, replace(SETTINGS, threads=1))
    with journal.Journal(results, json.loads(before.splitlines()[0])), pytest.raises(UserError, match="another run"):
        evaluate.evaluate(release, Source(baseline="default"), results, SETTINGS)
    assert results.read_bytes() == before
    foreign = tmp_path / "notes.jsonl"
    foreign.write_text('{"my": "notes"}\n', encoding="utf-8")
    with pytest.raises(UserError, match="not a file of dragon eval"):
        evaluate.evaluate(release, Source(baseline="default"), foreign, SETTINGS)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a file"):
        evaluate.evaluate(release, Source(baseline="default"), tmp_path / "pipe", SETTINGS)


def test_an_endpoint(release: Path, tmp_path: Path, endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its refusals and cut replies are the model's failures; what it cannot answer is a fault, and asked again."""
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    broken, lock = [True], threading.Lock()
    seen: dict[str, int] = {}

    def script(handler: Any, number: int) -> None:
        asked = asked_of[number]["messages"]
        with lock:
            turn = seen.setdefault(asked[1]["content"], 0)
            seen[asked[1]["content"]] += 1
        if len(asked) == 4 and broken[0]:
            endpoint.send(handler, 400, b'{"error": {"message": "no such parameter"}}')
        elif "w-2" in asked[1]["content"] and len(asked) == 2 and turn == 0:
            endpoint.send(handler, 200, endpoint.completion("", message={"refusal": "no"}))
        else:
            endpoint.good(handler, FAST)

    with endpoint.serve(script) as (url, asked_of):
        source, results = Source(endpoint=url, model="some-model"), tmp_path / "e.jsonl"
        settings = Settings(**vars(SETTINGS) | {"threads": 1, "temperature": 0.7})
        found = evaluate.evaluate(release, source, results, settings)
        assert len(asked_of) == 12
        assert {(one["temperature"], "max_tokens" in one) for one in asked_of} == {(0.7, False)}
        assert {len(one["messages"]) for one in asked_of} == {2, 4}
        assert not any("response_format" in one for one in asked_of)
        construct, refine = found.group("construct"), found.group("refine")
        assert (construct.outputs, construct.failures, construct.faults) == (6, {"parsed": 1}, 0)
        assert (refine.outputs, refine.faults, refine.correct.value) == (0, 6, None)
        assert construct.to_kernel_s.value is not None
        broken[0] = False
        again = evaluate.evaluate(release, source, results, settings)
        assert len(asked_of) == 18
    assert again.group("refine").correct.value == 1.0
    assert again.group("construct").correct == construct.correct
    kept = evaluate.evaluate(release, source, results, settings)  # nobody is asked any more
    assert kept == again
    plain = evaluate.evaluate(release, Source(outputs=tmp_path / "e.outputs.jsonl"), tmp_path / "f.jsonl", settings)
    assert plain.group("refine").correct == again.group("refine").correct


def test_an_endpoint_is_not_charged_with_waiting_for_its_turn(release: Path, tmp_path: Path, endpoint: Any) -> None:
    """Neither with our limit of requests a minute, nor with what it told us to wait."""
    id = ids(release)["w-1", "construct"]
    said = iter([429, 200, 200])

    def script(handler: Any, number: int) -> None:
        if next(said) == 429:
            endpoint.send(handler, 429, b"{}", Retry_After="2")
        else:
            endpoint.good(handler, FAST)

    with endpoint.serve(script) as (url, asked):
        source, began = Source(endpoint=url, model="m"), time.monotonic()
        texts = eval_models.generated(
            source,
            {id: evaluate.asked(release, SETTINGS)[0][id]},
            tmp_path / "o.jsonl",
            replace(SETTINGS, samples=2, threads=1),
        )
        took = time.monotonic() - began
        assert len(asked) == 3
    assert {text.ended for text in texts} == {"eos"}
    assert 0 < sum(text.seconds or 0 for text in texts) < took - 2


def test_times_hold_waiting_where_not_one_at_once() -> None:
    assert evaluate.crowded({"threads": 1}) is None
    assert evaluate.crowded({"threads": 1, "batch": 1}) is None
    assert evaluate.crowded({}) is None
    assert evaluate.crowded({"threads": 8, "batch": 16}) == "judged 8 at once and written 16 at once"
    assert evaluate.crowded({"threads": 1, "batch": 2}) == "written 2 at once"


def test_an_endpoint_that_takes_no_key_ends_the_run(release: Path, tmp_path: Path, endpoint: Any) -> None:
    refusing = endpoint.serve(lambda handler, _: endpoint.send(handler, 401, b"{}"))
    with refusing as (url, _), pytest.raises(UserError, match="check OPENAI_API_KEY"):
        evaluate.evaluate(release, Source(endpoint=url, model="m"), tmp_path / "e.jsonl", SETTINGS)
    assert len(rows_of(tmp_path / "e.jsonl")) == 0


def test_compare(release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, text in (("a", FAST), ("b", SLOW)):
        rows = [{"example_id": id, "output": text} for id in ids(release).values()]
        source, results = outputs_file(tmp_path / f"{name}.in", rows), tmp_path / f"{name}.jsonl"
        evaluate.evaluate(release, source, results, SETTINGS)
        files.append(str(results))
    faster = "faster" if LATENCIES[FAST] < LATENCIES[SLOW] else "slower"
    assert cli.call(["eval", "compare", *files, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["mode"], one[faster], one["both"]) for one in found if one["family"] == "all"] == [
        ("construct", 2, 2), ("refine", 2, 2),
    ]  # fmt: skip
    assert cli.call(["eval", "compare", *files]) == 0
    assert "first outputs of A and B" in capsys.readouterr().out
    assert cli.call(["eval", "compare", files[0], str(tmp_path / "a.in")]) == 2
    assert "no result of dragon eval" in capsys.readouterr().err
    head = Path(files[0]).read_text(encoding="utf-8").splitlines(keepends=True)[0]
    (tmp_path / "head.jsonl").write_text(head, encoding="utf-8")  # interrupted before its first verdict
    assert cli.call(["eval", "compare", files[0], str(tmp_path / "head.jsonl")]) == 2
    assert "head.jsonl: no result in it" in capsys.readouterr().err
    lines = Path(files[1]).read_text(encoding="utf-8").replace('"device": "simulated"', '"device": "real"')
    (tmp_path / "c.jsonl").write_text(lines, encoding="utf-8")
    assert cli.call(["eval", "compare", files[0], str(tmp_path / "c.jsonl")]) == 2
    assert "not comparable" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "give --data RELEASE"),
        (["--data", "{release}", "--baseline", "default"], "one of --workdir DIR and --out FILE"),
        (["--data", "{release}", "--out", "{out}"], "give one of --outputs FILE"),
        (["--data", "{release}", "--out", "{out}", "--endpoint", "http://localhost:9"], "give one of --outputs FILE"),
        (["--data", "{release}", "--out", "{out}", "--baseline", "default", "--split", "validation"], "no rows of"),
        (["--data", "{out}", "--out", "{out}", "--baseline", "default"], "no rows of split test"),
        (["--data", "{release}", "--out", "{out}", "--outputs", "{out}.none"], "not a file"),
        (["--data", "{release}", "--out", "{out}", "--model", "{out}.none"], "no folder of a model"),
    ],
)
def test_mistakes_are_told_in_one_line(
    release: Path, tmp_path: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [one.format(release=release, out=tmp_path / "r.jsonl") for one in options]
    assert cli.call(["eval", "--device", "simulated", *given]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert words in said
    assert said.startswith("error: ")


def test_the_command_prints_tables_and_keeps_everything(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["eval", "--data", str(release), "--device", "simulated", "--baseline", "reference", "--workdir"]
    assert cli.call([*arguments, str(tmp_path / "new" / "w")]) == 0
    said = capsys.readouterr()
    assert "Construction, per output" in said.out
    assert "eval: 4/4 · 4 correct" in said.err
    assert {path.name for path in (tmp_path / "new" / "w").iterdir()} == {"results.jsonl", "results.summary.json"}
    assert cli.call([*arguments, str(tmp_path / "new" / "w"), "--limit", "1"]) == 2
    assert "made with another prompts" in capsys.readouterr().err


# -- tiles of the nearest ---------------------------------------------------------------------------


def test_tiles_are_fitted_to_other_extents() -> None:
    """The anchor's loops are 128 each; the innermost factors stay, the outermost takes the rest."""
    text = eval_baselines.retiled(FAST, [128, 128, 128], [512, 96, 100])
    for line in ("v5-8 = tile l2 512 [8,4,8]", "v13-16 = tile l3 96 [2,1,1]", "v21-22 = tile l4 100 [2]"):
        assert line in text
    assert tsel.diagnose(text).gate is None
    assert tsel.diagnose(text).f_div == 1


@pytest.mark.parametrize("ours", [[128, 128, 128], [128, 128], [7, 1, 97], [1, 1, 1], [1 << 20, 3, 5]])
def test_whatever_the_extents_the_tiles_divide(ours: list[int]) -> None:
    text = eval_baselines.retiled(FAST, [128, 128, 128], ours)
    assert tsel.diagnose(text).gate is None
    assert (text == FAST) == (ours in ([128, 128, 128], [128, 128]))


def test_what_is_no_graph_stays_as_it_is() -> None:
    assert eval_baselines.retiled("no graph", [1], [2]) == "no graph"


def test_the_nearest_is_of_the_same_signature_first() -> None:
    far, near = (["matmul", [128, 512]], ["conv", [128, 128]])
    assert eval_baselines._distance("matmul", [128, 128], *far) < eval_baselines._distance("matmul", [128, 128], *near)  # type: ignore[arg-type]
    assert eval_baselines._distance("m", [8, 8], "m", [16, 8]) < eval_baselines._distance("m", [8, 8], "m", [4, 4])


# -- kills ------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def test_a_run_that_is_stopped_keeps_what_it_has(release: Path, tmp_path: Path, endpoint: Any) -> None:
    """SIGTERM while an endpoint keeps everyone waiting: it ends at once, and nothing is asked twice."""
    hold = threading.Event()

    def script(handler: Any, number: int) -> None:
        if number >= 5:
            hold.wait(60)
        endpoint.good(handler, FAST)

    results = tmp_path / "r.jsonl"
    written = tmp_path / "r.outputs.jsonl"
    with endpoint.serve(script) as (url, asked):
        command = [
            sys.executable, "-m", "littledragon.pipelines.cli", "eval", "--data", str(release), "--device",
            "simulated", "--endpoint", url, "--model", "m", "--samples", "3", "--threads", "2", "--out", str(results),
        ]  # fmt: skip
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            wait_for(lambda: written.exists() and len(rows_of(written)) == 5 and len(asked) == 7)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 143
        assert said.splitlines()[-1].startswith("error: stopped")
        hold.set()
        same = replace(SETTINGS, threads=2)
        found = evaluate.evaluate(release, Source(endpoint=url, model="m"), results, same)
        assert len(asked) == 7 + 7
    assert (found.group("construct").outputs, found.group("refine").outputs) == (6, 6)


# -- a local model ----------------------------------------------------------------------------------


def tiny(folder: Path, positions: int = 1024, seed: int = 0, eos: str | None = "<|end|>") -> Source:
    """A model that was never trained, of bytes."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=eos)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=positions, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Source(model=str(folder))


def asking(**lengths: int) -> dict[str, Prompt]:
    """Prompts of so many letters; the template adds one."""
    return {
        id: Prompt(id, "construct", "gemm", "w", "e", [{"role": "user", "content": "x" * length}], "", 1.0, None)
        for id, length in lengths.items()
    }


def test_a_long_prompt_takes_no_room_from_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that leaves none is answered with nothing; the others of its batch have all that they would have alone."""
    source = tiny(tmp_path / "m", positions=64)
    settings = Settings(samples=2, max_tokens=32, batch=16)
    texts = eval_models.generated(source, asking(a=9, b=20, c=50, d=63, e=200), tmp_path / "o.jsonl", settings)
    assert len(texts) == 10
    found = {(text.example_id, text.number): text for text in texts}
    for n in (0, 1):
        assert [found[id, n].output for id in "de"] == ["", ""]
        assert [found[id, n].ended for id in "de"] == ["cut", "cut"]
    written = {id: max(len(found[id, n].output) for n in (0, 1) if found[id, n].ended == "cut") for id in "abc"}
    assert 0 < written["c"] <= 64 - 51 < written["a"] <= 32
    assert written["b"] > 64 - 51
    said = capsys.readouterr().err
    assert "eval: of 10 outputs " in said
    cut = sum(text.ended == "cut" for text in texts)
    assert f"{cut} cut at their bound of tokens" in said
    kept = eval_models.generated(source, asking(a=9, b=20, c=50, d=63, e=200), tmp_path / "o.jsonl", settings)
    assert {(text.example_id, text.number): text for text in kept} == found
    assert f"{cut} cut at their bound of tokens" in capsys.readouterr().err


def test_where_a_run_was_interrupted_decides_no_output(tmp_path: Path) -> None:
    source, settings = tiny(tmp_path / "m"), Settings(samples=3, max_tokens=12, batch=4)
    prompts, path = asking(a=9, b=20, c=15), tmp_path / "o.jsonl"
    whole = {(t.example_id, t.number): t.output for t in eval_models.generated(source, prompts, path, settings)}
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*lines[:3], lines[6]]), encoding="utf-8")
    again = {(t.example_id, t.number): t.output for t in eval_models.generated(source, prompts, path, settings)}
    assert again == whole
    with pytest.raises(UserError, match="made with another batch"):
        eval_models.generated(source, prompts, path, replace(settings, batch=3))


def test_a_model_that_was_trained_further_is_another(tmp_path: Path) -> None:
    """Its files have the same names, sizes and headers; other files in its folder say nothing."""
    source = tiny(tmp_path / "m")
    first = source.as_dict()
    (tmp_path / "m" / "results.summary.json").write_text("{}", encoding="utf-8")
    assert source.as_dict() == first
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "m").iterdir()}
    tiny(tmp_path / "m", seed=1)
    assert {path.name: path.stat().st_size for path in (tmp_path / "m").iterdir()} == sizes
    assert source.as_dict() != first
    large = tmp_path / "large"
    large.mkdir()
    (large / "model.safetensors").write_bytes(bytes(5 << 20))
    before = questions.weights_of(large)
    for at in (0, (5 << 20) - 1):
        changed = bytearray(5 << 20)
        changed[at] = 1
        (large / "model.safetensors").write_bytes(changed)
        assert questions.weights_of(large) != before


def test_a_model_without_an_end_is_refused(tmp_path: Path) -> None:
    source = tiny(tmp_path / "m", eos=None)
    with pytest.raises(UserError, match="no token that ends an answer"):
        eval_models.generated(source, asking(a=9), tmp_path / "o.jsonl", Settings(samples=1, max_tokens=4))


def test_what_a_folder_says_of_generation_decides_nothing(tmp_path: Path) -> None:
    source, asked = tiny(tmp_path / "m"), asking(a=9, b=3)
    settings = Settings(samples=2, max_tokens=6, batch=3)
    plain = eval_models.generated(source, asked, tmp_path / "plain.jsonl", settings)
    said = {"num_return_sequences": 2, "do_sample": True, "stop_strings": ["x"], "repetition_penalty": 9.0}
    path = tmp_path / "m" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    found = eval_models.generated(source, asked, tmp_path / "said.jsonl", settings)
    assert [(one.example_id, one.number, one.output) for one in found] == [
        (one.example_id, one.number, one.output) for one in plain
    ]


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _config(folder: Path, **changed: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def _template(folder: Path, text: str) -> None:
    (folder / "chat_template.jinja").write_text(text)


@pytest.mark.parametrize(
    "spoil",
    [
        _cut,
        lambda folder: (folder / "config.json").write_text("[]"),
        lambda folder: _config(folder, num_attention_heads=0),
        lambda folder: _config(folder, max_position_embeddings="many"),
        lambda folder: _config(folder, auto_map={"AutoModelForCausalLM": "own.Model"}, model_type="own"),
        lambda folder: _template(folder, "{{ raise_exception('no') }}"),
        lambda folder: _template(folder, "{% for"),
        lambda folder: _template(folder, "{{ '' }}"),
    ],
)  # fmt: skip
def test_a_damaged_model_is_told_in_one_line(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    source = tiny(tmp_path / "m")
    spoil(tmp_path / "m")
    with pytest.raises(UserError, match=r"--model .*m: .+") as told:
        eval_models.generated(source, asking(a=9), tmp_path / "o.jsonl", Settings(samples=1, max_tokens=4))
    assert "\n" not in str(told.value)


def test_what_memory_does_not_suffice_for_is_halved() -> None:
    torch = pytest.importorskip("torch")
    tried, freed = list[int](), list[int]()

    def write(batch: Sequence[tuple[str, int]], most: int) -> list[Text]:
        tried.append(len(batch))
        assert len(batch) <= most
        if len(batch) > 3 or ("big", 0) in batch:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [Text(id, number, "x") for id, number in batch]

    batch = [(f"x{number}", 0) for number in range(9)]
    parts, fits = eval_models.halved(write, batch, 9, lambda: freed.append(len(tried)))
    assert [text.example_id for _, texts in parts for text in texts or ()] == [id for id, _ in batch]
    assert (fits, tried, freed) == (3, [9, 5, 3, 3, 3], [1, 2])
    parts, fits = eval_models.halved(write, [("a", 0), ("big", 0), ("b", 0)], fits, lambda: None)
    assert {part[0][0]: texts is None for part, texts in parts} == {"a": False, "big": True, "b": False}
    filled = list[int]()

    def fill(batch: Sequence[tuple[str, int]], most: int) -> list[Text]:
        """As many as `most` are written at once, whatever the batch has."""
        filled.append(most)
        return write([("x", number) for number in range(most)], most) and [Text(*one, "x") for one in batch]

    parts, fits = eval_models.halved(fill, [("one", 0)], 4, lambda: None)
    assert ([texts is None for _, texts in parts], filled) == ([False], [4, 1])


@pytest.mark.slow
def test_a_local_model(release: Path, tmp_path: Path) -> None:
    """A tiny one that was never trained: every output fails at the first gate, and none is a fault."""
    source = tiny(tmp_path / "m")
    settings = Settings(device="simulated", samples=2, max_tokens=24, batch=3)
    found = evaluate.evaluate(release, source, tmp_path / "r.jsonl", settings)
    for mode in ("construct", "refine"):
        group = found.group(mode)  # type: ignore[arg-type]
        assert (group.outputs, group.faults, group.failures) == (4, 0, {"parsed": 4})
    lines = rows_of(tmp_path / "r.outputs.jsonl")
    assert len({line["output"] for line in lines}) > 4
    assert evaluate.evaluate(release, source, tmp_path / "r.jsonl", settings) == found
    assert len(rows_of(tmp_path / "r.outputs.jsonl")) == len(lines) == 8


def test_a_batch_that_is_filled_up_and_a_cache_that_does_not_grow_change_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the model is compiled, which it is not on a CPU; a first answer is thrown away."""
    pytest.importorskip("transformers")
    from transformers import LlamaForCausalLM

    source, shapes = tiny(tmp_path / "m"), list[tuple[int, ...]]()
    settings = Settings(samples=1, max_tokens=12, batch=4, temperature=0.0)
    asked = asking(a=9, b=40, c=3, d=25, e=17)
    loaded, write = eval_models._loaded, LlamaForCausalLM.generate
    monkeypatch.setattr(eval_models, "_loaded", lambda *given: replace(loaded(*given), compiled=False))
    plain = eval_models.generated(source, asked, tmp_path / "plain.jsonl", settings)

    def compiled(*given: Any) -> Any:
        return replace(loaded(*given), compiled=True)

    def counted(self: Any, **given: Any) -> Any:
        found = write(self, **given)
        shapes.append((given["cache_implementation"], *given["input_ids"].shape, found.shape[1]))
        return found

    monkeypatch.setattr(eval_models, "_loaded", compiled)
    monkeypatch.setattr(LlamaForCausalLM, "generate", counted)
    found = eval_models.generated(source, asked, tmp_path / "compiled.jsonl", settings)
    assert [(one.example_id, one.output, one.ended) for one in found] == [
        (one.example_id, one.output, one.ended) for one in plain
    ]
    assert {(how, rows) for how, rows, *_ in shapes} == {("static", 4)}
    assert shapes[0][-1] <= shapes[0][2] + 6
    assert len(shapes) == 3  # two batches, and once what is compiled


def test_where_compiling_fails_the_model_writes_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    from transformers import LlamaForCausalLM

    source, loaded, write = tiny(tmp_path / "m"), eval_models._loaded, LlamaForCausalLM.generate

    def failing(self: Any, **given: Any) -> Any:
        if "cache_implementation" in given:
            raise RuntimeError("no C compiler")
        return write(self, **given)

    monkeypatch.setattr(eval_models, "_loaded", lambda *given: replace(loaded(*given), compiled=True))
    monkeypatch.setattr(LlamaForCausalLM, "generate", failing)
    settings = Settings(samples=1, max_tokens=12, batch=4, temperature=0.0)
    found = eval_models.generated(source, asking(a=9, b=3), tmp_path / "o.jsonl", settings)
    assert len(found) == 2
    assert "not compiled, which makes it slower: no C compiler" in capsys.readouterr().err


def test_prompts_of_a_like_length_are_written_together_the_longest_first() -> None:
    lengths, room = {"a": 10, "b": 30, "c": 20, "d": 90}, {"a": 50, "b": 50, "c": 50, "d": 5}
    every = [(id, number) for number in range(2) for id in lengths]
    found = list(eval_models.batches(every, lengths, room, 3))
    assert found == [[("d", 0), ("d", 1)], [("b", 0), ("b", 1), ("c", 0)], [("c", 1), ("a", 0), ("a", 1)]]
