"""`dragon eval --baseline random`, `search` and `stock`, and the time to kernel of such files: a small release."""

import contextlib
import dataclasses
import fcntl
import functools
import json
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from littledragon.compiler import children, slots, targets
from littledragon.compiler.children import ChildError
from littledragon.pipelines import cli, eval_baselines, eval_search, eval_trials, evaluate
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.journal import Journal
from littledragon.pipelines.progress import Counts
from littledragon.pipelines.questions import Prompt, Settings, Source
from littledragon.release import dataset, times
from littledragon.schemas import tables, tsel
from littledragon.schemas.ids import content_id
from littledragon.validators import locks
from littledragon.validators import service as services
from littledragon.validators.device import Deadlines
from littledragon.validators.real import RealDevice
from littledragon.validators.service import Service, Task, Verdict, is_fault
from littledragon.validators.simulated import SimulatedDevice

REAL = Path(__file__).parents[1] / "golden" / "release"
SLOW, MODULE, INPUTS = (
    (REAL / name).read_text(encoding="utf-8") for name in ("payload_slow.txt", "module.json", "inputs.json")
)
RANDOM, SEARCH, STOCK = Source(baseline="random"), Source(baseline="search"), Source(baseline="stock")
SETTINGS = Settings(device="simulated", samples=2, trials=8, read=(4, 8), per_round=4)
FAMILIES = {"w-1": "gemm", "w-2": "moe"}


def example(workload: str, mode: str) -> dict[str, Any]:
    said = [("system", "Answer."), ("user", f"Schedule {workload}.")]
    said += [("assistant", SLOW), ("user", "Make it faster.")] if mode == "refine" else []
    messages = [{"role": role, "content": content} for role, content in said]
    return {column.name: None for column in tables.EXAMPLES.columns} | {
        "example_id": content_id("x", messages), "mode": mode, "split": "test", "family": FAMILIES[workload],
        "operator": "matmul", "workload_id": workload, "environment_id": "e", "messages": messages,
        "completion": SLOW, "completion_json": "", "latency_us": 200.0, "default_us": 1e4, "anchor_us": 10.0,
        "parent_us": 1e3 if mode == "refine" else None, "noise_band": 0.01,
    }  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path)


def metadata(folder: Path, rules: str | None) -> None:
    rows = [{"workload_id": id, "state": "ok", "rules": rules} for id in FAMILIES]
    schema = pa.schema(dict.fromkeys(("workload_id", "state", "rules"), pa.string()))
    write(folder / "metadata" / "workloads.parquet", rows, schema)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A release folder of two workloads, of two families and one module; three prompts."""
    folder = tmp_path_factory.mktemp("release")
    tasks = [
        {"workload_id": id, "family": family, "module": MODULE, "inputs": INPUTS, "environment_id": "e",
         "target": json.dumps(targets.target("llvm")), "default_us": 1e4, "anchor_us": 10.0, "noise_band": 0.01,
         "margin": 0.05, "split": "test"}
        for id, family in FAMILIES.items()
    ]  # fmt: skip
    write(folder / "tasks" / "all.parquet", tasks, dataset.tasks_schema())
    schema = dataset.published(tables.EXAMPLES.arrow(), ("unit_id", *(c.name for c in tables.STATE_COLUMNS)))
    write(folder / "construction" / "all.parquet", [example(id, "construct") for id in FAMILIES], schema)
    write(folder / "refinement" / "all.parquet", [example("w-1", "refine")], schema)
    metadata(folder, "llvm")
    yield folder
    children.close_all()


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """The children that read a release are real ones; a folder that they have read does not change."""
    patch = pytest.MonkeyPatch()
    for name in ("prompts_of", "tasks_of"):
        patch.setattr(evaluate, name, functools.cache(getattr(evaluate, name)))
    ask_child, known = eval_baselines.ask_child, dict[tuple[str, bytes], Any]()

    def asked(function: str, **arguments: Any) -> Any:
        key = function, (Path(arguments["folder"]) / "metadata" / "workloads.parquet").read_bytes()
        if key not in known:
            known[key] = ask_child(function, **arguments)
        return known[key]

    patch.setattr(eval_baselines, "ask_child", asked)
    yield
    patch.undo()


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()][1:]


def head_of(file: Path) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(file.read_text(encoding="utf-8").splitlines()[0])["run"]
    return run


def changed(**changes: Any) -> Settings:
    return Settings(**vars(SETTINGS) | changes)


# -- random -------------------------------------------------------------------------------------------


def test_random_outputs_are_legal_and_the_seed_s(release: Path, tmp_path: Path) -> None:
    """Each prompt has draws of its own; more samples leave the first ones as they are."""
    settings = {"a": SETTINGS, "b": changed(seed=1), "c": changed(samples=3)}
    texts = {}
    for name, one in settings.items():
        evaluate.evaluate(release, RANDOM, tmp_path / f"{name}.jsonl", one)
        outputs = rows_of(tmp_path / f"{name}.outputs.jsonl")
        texts[name] = {(row["example_id"], row["number"]): row["output"] for row in outputs}
        assert {row["verdict"]["gate"] for row in rows_of(tmp_path / f"{name}.jsonl")} <= {"ok", "correct"}
    assert len(set(texts["a"].values())) == len(texts["a"]) == 6
    assert set(texts["a"].values()).isdisjoint(texts["b"].values())
    assert texts["a"].items() < texts["c"].items()
    assert head_of(tmp_path / "b.jsonl")["seed"] == 1
    assert head_of(tmp_path / "b.jsonl")["source"]["baseline"] == "random"


def test_random_goes_on_where_it_stopped(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, outputs = tmp_path / "a.jsonl", tmp_path / "a.outputs.jsonl"
    whole = evaluate.evaluate(release, RANDOM, results, SETTINGS)
    kept = {(row["example_id"], row["number"]): row["output"] for row in rows_of(outputs)}
    lines = outputs.read_text(encoding="utf-8").splitlines(keepends=True)
    outputs.write_text("".join(lines[:4]), encoding="utf-8")
    again = evaluate.evaluate(release, RANDOM, results, SETTINGS)
    assert {(row["example_id"], row["number"]): row["output"] for row in rows_of(outputs)} == kept
    assert again.group("construct").correct == whole.group("construct").correct
    assert len(rows_of(results)) == 6  # nothing was judged twice


def test_what_nobody_draws_in_time_is_empty_and_what_is_ours_is_a_fault(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_baselines, "DRAW_S", 1e-9)
    group = evaluate.evaluate(release, RANDOM, tmp_path / "a.jsonl", SETTINGS).group("construct")
    assert (group.outputs, group.faults, group.failures) == (4, 0, {"parsed": 4})
    with monkeypatch.context() as patch:
        patch.setattr(eval_baselines, "LATE_S", 0.0)  # so that its child is late each time
        group = evaluate.evaluate(release, RANDOM, tmp_path / "b.jsonl", SETTINGS).group("construct")
    assert (group.outputs, group.faults, group.failures) == (4, 0, {"parsed": 4})
    monkeypatch.setattr(eval_baselines, "DRAW", "littledragon.compiler.draws:spell")  # it raises, as ours
    group = evaluate.evaluate(release, RANDOM, tmp_path / "c.jsonl", SETTINGS).group("construct")
    assert (group.outputs, group.faults) == (0, 4)


@pytest.mark.parametrize(
    ("error", "fault", "of_ours"),
    [
        (ChildError("crashed", "killed by SIGSEGV"), False, False),
        (ChildError("deadline", "no answer"), False, False),
        (ChildError("crashed", "interrupted"), True, True),
        (ChildError("raised", "RuntimeError: no"), False, True),
        (ChildError("raised", "MemoryError: "), False, False),
        (ChildError("raised", "InternalError: std::bad_alloc"), False, False),
        (OSError(28, "no space"), True, True),
    ],
)
def test_what_is_a_fault(error: ChildError | OSError, fault: bool, of_ours: bool) -> None:
    assert (is_fault(error), is_fault(error, raising=True)) == (fault, of_ours)


def test_a_crash_on_a_full_disk_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "ROOM", 1 << 62)
    assert is_fault(ChildError("crashed", "killed by SIGBUS"))


def test_the_nearest_is_of_the_prompts_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workload n-1 is nearest, its answer of the other environment faster; n-2 has none of ours, and would be nearer.
    Answers come in pieces."""
    known = [("n-1", "e", 9.0, "a"), ("n-1", "f", 1.0, "b"), ("n-2", "f", 1.0, "c"), ("n-3", "e", 5.0, "d")]
    rows = [
        example("w-1", "construct")
        | {"example_id": id, "split": "train", "workload_id": work, "environment_id": env, "latency_us": latency}
        | {"completion": f"answer {id}"}
        for work, env, latency, id in known
    ]
    schema = dataset.published(tables.EXAMPLES.arrow(), ("unit_id", *(c.name for c in tables.STATE_COLUMNS)))
    write(tmp_path / "construction" / "all.parquet", rows[:3], schema)
    write(tmp_path / "refinement" / "all.parquet", rows[3:], schema)
    cells = [
        {"workload_id": id, "state": "ok", "signature": signature, "extents": [extent]}
        for id, signature, extent in (
            ("w-1", "s", 64),
            ("w-2", "t", 8),
            ("n-1", "s", 32),
            ("n-2", "s", 64),
            ("n-3", "t", 8),
        )
    ]
    names = dict.fromkeys(("workload_id", "state", "signature"), pa.string())
    write(tmp_path / "metadata" / "workloads.parquet", cells, pa.schema(names | {"extents": pa.list_(pa.int64())}))
    found = eval_baselines._find_nearest(tmp_path, ["w-1", "w-2"], ["e"])["found"]
    assert {id: (near["example_id"], near["theirs"], near["ours"]) for id, near in found.items()} == {
        "w-1": ("a", [32], [64]), "w-2": ("d", [8], [8]),
    }  # fmt: skip
    monkeypatch.setattr(eval_baselines, "PIECE", 1)
    first = eval_baselines._read_answers(tmp_path, {"a", "d"}, [0, 0])
    assert (first["texts"], first["place"]) == ({"a": "answer a"}, [0, 3])
    second = eval_baselines._read_answers(tmp_path, {"a", "d"}, first["place"])
    assert second["texts"] == {"d": "answer d"}


def test_a_release_without_rule_sets_is_told_in_one_line(release: Path, tmp_path: Path) -> None:
    other = tmp_path / "release"
    shutil.copytree(release, other)
    metadata(other, None)
    with pytest.raises(UserError, match="names no rule set for w-"):
        evaluate.evaluate(other, RANDOM, tmp_path / "r.jsonl", SETTINGS)
    metadata(other, "cuda")
    with pytest.raises(UserError, match=r"names rule set 'cuda' for w-\d, of target llvm"):
        eval_search.searched(other, SEARCH, tmp_path / "r.jsonl", SETTINGS)


# -- search -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a search that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    eval_search.searched(release, SEARCH, folder / "s.jsonl", SETTINGS)
    return folder


def trials_of(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Trials without their times."""
    rows = rows_of(folder / "s.trials.jsonl")
    assert len({(row["task_id"], row["trial"]) for row in rows}) == len(rows)
    names = ("task_id", "trial", "gate", "latency_us", "text", "proposal")
    return {(row["task_id"], row["trial"]): {name: row[name] for name in names} for row in rows}


def timeless(verdict: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in verdict.items() if key != "seconds"}


def verdicts_of(folder: Path) -> dict[tuple[int, str], dict[str, Any]]:
    return {
        (n, row["example_id"]): timeless(row["verdict"])
        for n in SETTINGS.read
        for row in rows_of(folder / f"s-{n}.jsonl")
    }


def test_a_search_is_read_at_each_number_of_trials(release: Path, whole: Path) -> None:
    rows = rows_of(whole / "s.trials.jsonl")
    assert [row["task_id"] for row in rows] == [rows[0]["task_id"]] * 8 + [rows[8]["task_id"]] * 8
    assert {row["trial"] for row in rows[:8]} == {row["trial"] for row in rows[8:]} == set(range(1, 9))
    assert len({row["text"] for row in rows[:8]}) == 8
    before: dict[str, float] = {}
    for n in SETTINGS.read:
        file = whole / f"s-{n}.jsonl"
        assert {name: head_of(file)[name] for name in ("trials", "read", "seed")} == {
            "trials": 8, "read": n, "seed": 0,
        }  # fmt: skip
        summary = json.loads((whole / f"s-{n}.summary.json").read_text(encoding="utf-8"))
        assert (summary["prompts"], summary["unanswered"]) == (3, 0)
        results = rows_of(file)
        assert len(results) == 3
        for row in results:
            first = [trial for trial in rows if trial["task_id"] == row["task_id"] and trial["trial"] <= n]
            best = min((trial for trial in first if trial["gate"] == "ok"), key=lambda trial: trial["latency_us"])
            assert timeless(row["verdict"]) == timeless(best["verdict"])
            output = evaluate.output_of(row, file)
            assert output.seconds == pytest.approx(max(trial["elapsed_s"] for trial in first))
            assert output.latency_us <= before.get(output.example_id, 1e9)
            before[output.example_id] = output.latency_us


def test_a_search_goes_on_where_it_stopped(
    release: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a round, of which any trials may be known, with a torn line; nothing is judged twice."""
    lines = (whole / "s.trials.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "s.trials.jsonl").write_text("".join([*lines[:5], *lines[6:8], lines[8][:40]]), encoding="utf-8")
    judged: list[str] = []

    class Counting(Service):
        def evaluate(self, task_id: str, text: str) -> Verdict:
            judged.append(text)
            return super().evaluate(task_id, text)

    monkeypatch.setattr(evaluate, "Service", Counting)
    found = eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", SETTINGS)
    assert len(judged) == 16 - 6
    assert trials_of(tmp_path) == trials_of(whole)
    assert verdicts_of(tmp_path) == verdicts_of(whole)
    elapsed = [row["elapsed_s"] for row in rows_of(tmp_path / "s.trials.jsonl")]
    assert min(elapsed[6:8]) > max(elapsed[:6])  # time goes on, too
    assert eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", SETTINGS) == found
    assert len(judged) == 16 - 6
    assert all(len(rows_of(tmp_path / f"s-{n}.jsonl")) == 3 for n in SETTINGS.read)


def test_a_fault_is_no_verdict_and_is_tried_again(
    release: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sixth trial of a search meets one: the first four are read all the same, the rest is a fault until then."""
    sixth = {key[0]: row["text"] for key, row in trials_of(whole).items() if key[1] == 6}

    class Failing(Service):
        def evaluate(self, task_id: str, text: str) -> Verdict:
            if text == sixth[task_id]:
                return Verdict(task_id, None, fault="the disk is full")
            return super().evaluate(task_id, text)

    one = changed(limit=1)
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "Service", Failing)
        found = eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", one)
    assert [found[n].group("construct").faults for n in one.read] == [0, 1]
    assert found[4].group("construct").outputs == 1
    assert sorted(trial for _, trial in trials_of(tmp_path)) == [1, 2, 3, 4, 5, 7, 8]
    again = eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", one)
    assert [again[n].group("construct").faults for n in one.read] == [0, 0]
    assert trials_of(tmp_path).items() < trials_of(whole).items()
    assert len(trials_of(tmp_path)) == 8


def test_another_seed_is_another_search_and_another_run(release: Path, whole: Path, tmp_path: Path) -> None:
    eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", changed(seed=1, trials=4, read=(), limit=1))
    texts = {row["text"] for row in rows_of(tmp_path / "s.trials.jsonl")}
    assert len(texts) == 4
    assert texts.isdisjoint(row["text"] for row in trials_of(whole).values())
    assert {path.name for path in tmp_path.glob("s-*.jsonl")} == {"s-4.jsonl"}
    with pytest.raises(UserError, match=r"made with another seed, trials"):
        eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", SETTINGS)


def test_trials_that_nobody_proposes_here_are_refused(release: Path, whole: Path, tmp_path: Path) -> None:
    first, row, *_ = (whole / "s.trials.jsonl").read_text(encoding="utf-8").splitlines()
    changed_row = json.dumps(json.loads(row) | {"proposal": "0" * 16})
    (tmp_path / "s.trials.jsonl").write_text(f"{first}\n{changed_row}\n", encoding="utf-8")
    with pytest.raises(UserError, match="is not what is proposed here"):
        eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", SETTINGS)
    (tmp_path / "s.trials.jsonl").write_text(f'{first}\n{{"task_id": "w-1"}}\n', encoding="utf-8")
    with pytest.raises(UserError, match="a row that is no trial"):
        eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", SETTINGS)


def test_two_searches_on_one_file_are_refused(release: Path, whole: Path) -> None:
    trials = whole / "s.trials.jsonl"
    with Journal(trials, {"run": head_of(trials)}), pytest.raises(UserError, match="another run"):
        eval_search.searched(release, SEARCH, whole / "s.jsonl", SETTINGS)


class Lucky(Service):
    """The second best of each task is measured twice as fast as the best, once."""

    lucky: ClassVar[set[str]] = set()
    wrong: ClassVar[set[str]] = set()
    measured: ClassVar[list[str]] = []

    def evaluate(self, task_id: str, text: str) -> Verdict:
        found = super().evaluate(task_id, text)
        lucky = text in self.lucky and found.latency_us is not None
        return dataclasses.replace(found, latency_us=1e-3) if lucky else found

    def again(self, task_id: str, text: str) -> Verdict:
        self.measured.append(text)
        found = super().again(task_id, text)
        return dataclasses.replace(found, gate="correct", latency_us=None) if text in self.wrong else found


def test_winners_are_measured_anew(release: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was fast by luck wins, with the latency that it has; one that is wrong when it is measured again
    gives way to the next. Nothing is measured for each file, or each run."""
    one = changed(limit=1)
    trials = [row for row in rows_of(whole / "s.trials.jsonl") if row["trial"] <= 4 and row["gate"] == "ok"]
    first = [row for row in trials if row["task_id"] == trials[0]["task_id"]]
    best, lucky, *_ = sorted(first, key=lambda row: float(row["latency_us"]))
    monkeypatch.setattr(evaluate, "Service", Lucky)
    monkeypatch.setattr(Lucky, "lucky", {lucky["text"]})
    monkeypatch.setattr(Lucky, "measured", [])
    eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", one)
    rows = [row for n in one.read for row in rows_of(tmp_path / f"s-{n}.jsonl")]
    assert {row["verdict"]["latency_us"] for row in rows} == {lucky["latency_us"]}
    assert Lucky.measured == [lucky["text"]]
    eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", one)
    assert Lucky.measured == [lucky["text"]]
    monkeypatch.setattr(Lucky, "wrong", {lucky["text"]})
    for n in one.read:
        (tmp_path / f"s-{n}.jsonl").unlink()
    eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", one)
    (row, *_) = rows_of(tmp_path / "s-4.jsonl")
    assert (row["verdict"]["gate"], row["verdict"]["latency_us"]) == ("ok", best["latency_us"])


class Clock:
    """A clock that a proposal takes a thousand seconds of."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.mark.parametrize("lines", [7, 5])
def test_a_proposal_counts_once(
    release: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    """Six trials are known, of two rounds of four, or the first round. What is proposed again took its time before."""
    kept = (whole / "s.trials.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    head, rows = kept[0], sorted(kept[1:9], key=lambda line: int(json.loads(line)["trial"]))
    (tmp_path / "s.trials.jsonl").write_text("".join([head, *rows[: lines - 1]]), encoding="utf-8")
    clock, propose = Clock(), eval_trials._propose
    monkeypatch.setattr(eval_trials, "time", clock)

    def late(*arguments: Any) -> Any:
        clock.ahead += 1000.0
        return propose(*arguments)

    monkeypatch.setattr(eval_trials, "_propose", late)
    eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", changed(limit=1))
    elapsed = {row["trial"]: row["elapsed_s"] for row in rows_of(tmp_path / "s.trials.jsonl")}
    known, more = max(elapsed[n] for n in range(1, lines)), {elapsed[n] for n in range(lines, 9)}
    assert len(elapsed) == 8
    assert all(known < at < known + 900 for at in more) if lines == 7 else all(at > known + 1000 for at in more)


@pytest.mark.parametrize("how", ["raises", "is late"])
def test_a_search_whose_proposals_die_ends(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It is no fault for ever: the task counts as one whose search found nothing, and is not searched again."""
    with monkeypatch.context() as patch:
        if how == "raises":
            patch.setattr(eval_trials, "PROPOSER", "littledragon.compiler.proposals:default")
        else:
            patch.setattr(eval_trials, "PROPOSER", "littledragon.compiler.draws:draw")
            patch.setattr(eval_trials, "Config", lambda: Config(propose_deadline_s=1e-9))
            patch.setattr(eval_search, "proposing", eval_trials.proposing)
        found = eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", changed(limit=1))
        again = eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", changed(limit=1))
    (end,) = rows_of(tmp_path / "s.trials.jsonl")
    assert (end["trial"], end["end"]) == (1, "died")
    assert end["reason"].startswith("raised: TypeError" if how == "raises" else "deadline: ")
    group = found[8].group("construct")
    assert (group.outputs, group.faults, group.failures, group.empty) == (1, 0, {"parsed": 1}, 0)
    assert again == found


def test_what_a_search_is_goes_into_its_run(whole: Path) -> None:
    assert {name: head_of(whole / "s-4.jsonl")[name] for name in ("population", "propose_deadline_s")} == {
        "population": 64, "propose_deadline_s": 180.0,
    }  # fmt: skip


# -- stock, with a tuner that does as it is told --------------------------------------------------------

PROBE = Path(__file__).parents[1] / "compiler" / "probe"


@dataclass
class Told:
    """A task for stock's search on the simulated device, and what its tuner is to do."""

    work: eval_trials.Work
    file: Path
    alone: list[str]

    def tell(self, what: object) -> eval_trials.Search:
        self.file.write_text(json.dumps(what), encoding="utf-8")
        known = eval_trials.Search()
        eval_trials.stock(self.work, known)
        return known

    def calls(self) -> int:
        calls = Path(f"{self.file}.calls")
        return calls.stat().st_size if calls.exists() else 0


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    alone: list[str] = []

    class Watched(SimulatedDevice):
        @contextlib.contextmanager
        def alone(self) -> Iterator[None]:
            alone.append("taken")
            try:
                yield
            finally:
                alone.append("given back")

    monkeypatch.setattr(eval_trials, "TUNER", "littledragon.probe.tuners:tune")
    monkeypatch.setenv("PYTHONPATH", str(PROBE))
    monkeypatch.setenv("DRAGON_TUNER", str(tmp_path / "told"))
    target = targets.target("llvm")
    task = Task("w-1", MODULE, json.loads(INPUTS), target, 1e4, 10.0, 0.01, 0.05)
    settings = changed(trials=4, read=())
    with Service([task], "simulated") as service, Journal(tmp_path / "k.trials.jsonl", {"run": {}}) as journal:
        device, progress = Watched(target, Deadlines()), Counts("stock", 4, {})
        yield Told(
            eval_trials.Work(task, "llvm", device, service, settings, journal, progress), tmp_path / "told", alone
        )


def answer(*trials: tuple[float | None, str]) -> dict[str, Any]:
    """What a tuner tells: latencies, each with its trace, or why there is none."""
    return {
        "seconds": 9.0, "cpu_s": 1.0, "trials": [[5.0, us, "[]" if us is None else said] for us, said in trials],
        "reasons": [said if us is None else None for us, said in trials],
    }  # fmt: skip


@pytest.mark.parametrize("how", ["raise", "die"])
def test_a_tuner_that_dies_each_time_ends_its_search(told: Told, how: str) -> None:
    known = told.tell(how)
    assert known.fault is None
    assert known.end is not None
    assert (known.end["end"], known.end["trial"], told.calls()) == ("died", 1, eval_trials.AGAIN)
    assert ("no such intrinsic" if how == "raise" else "SIGSEGV") in known.end["reason"]
    assert known.ended(4)
    assert told.alone == ["taken", "given back"] * eval_trials.AGAIN


def test_a_full_disk_is_a_fault_of_stock_s(told: Told) -> None:
    known = told.tell("fill")
    assert (known.end, known.trials, told.calls()) == (None, {}, 1)
    assert "stock's tuner" in str(known.fault)


def test_a_lock_that_cannot_be_had_is_a_fault_of_stock_s(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> Any:
        raise OSError("no space left on device")

    monkeypatch.setattr(type(told.work.device), "alone", full)
    known = told.tell("nothing, as it is never asked")
    assert (known.end, known.trials, told.calls()) == (None, {}, 0)
    assert "no space left on device" in str(known.fault)


def test_a_device_that_is_ill_is_not_stock_s_verdict(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = answer((None, "CUDA: out of memory"), (None, "no nvcc"))
    monkeypatch.setattr(Service, "default", lambda self, id: Verdict(id, None, fault="ran: the GPU is gone"))
    known = told.tell(nothing)
    assert (known.end, known.trials) == (None, {})
    assert "CUDA: out of memory" in str(known.fault)
    assert "the GPU is gone" in str(known.fault)
    monkeypatch.undo()


def test_where_the_device_is_well_stock_found_nothing(told: Told) -> None:
    known = told.tell(answer((None, "too many threads"), (None, "late")))
    assert known.fault is None
    assert [row["reason"] for row in known.trials.values()] == ["too many threads", "late"]
    assert known.end is not None
    assert known.end["elapsed_s"] == 9.0
    reader = eval_search._Reader(told.work.service, told.work.settings, told.work.journal, {})
    text, verdict, took = reader.best("w-1", known, 4)
    assert (text, verdict["gate"], took) == ("", "parsed", 9.0)


def test_stock_is_spelled_when_it_is_read(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of a spelling costs a line of the results, not the run: the next reading tries again. The best trial has
    no text, and the next one is taken."""
    target = told.work.task.target
    arguments = {"deadline_s": 300.0, "module": MODULE, "target": target, "text": SLOW}
    trace = slots.of("llvm").call("littledragon.compiler.traces:apply", **arguments)["trace"]
    known = told.tell(answer((50.0, trace), (None, "late"), (40.0, "[]"), (60.0, trace)))
    assert known.fault is None
    assert known.ended(4)
    assert [row["text"] for row in known.trials.values()] == [None] * 4
    assert [("trace" in row, row.get("reason")) for row in known.trials.values()] == [
        (True, None), (False, "late"), (True, None), (True, None),
    ]  # fmt: skip
    assert told.alone == ["taken", "given back"]
    reader = eval_search._Reader(told.work.service, told.work.settings, told.work.journal, {})

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedDevice, "on_slot", full)
        text, verdict, _ = reader.best("w-1", known, 4)
    assert (text, verdict["gate"], "no space left" in verdict["fault"]) == ("", None, True)
    text, verdict, took = reader.best("w-1", known, 4)
    assert (verdict["gate"], took) == ("ok", 5.0)
    assert text == SLOW.strip() or tsel.decode(text).graph == tsel.decode(SLOW).graph
    rows = rows_of(tmp_path / "k.trials.jsonl")
    assert [row["trial"] for row in rows] == [1, 2, 3, 4, 3, 1]  # those that were spelled stand there again
    assert (rows[4]["refused"]["gate"], rows[5]["text"]) == ("parsed", text)
    journal = types.SimpleNamespace(rows=rows, path=tmp_path)
    assert eval_trials.recorded(journal, False)["w-1"] == known  # type: ignore[arg-type]
    assert times.trajectories_of(rows)["w-1"].whole_s(4) == 5.0


def test_a_trial_without_a_text_schedules_something(told: Told) -> None:
    """Where nothing is correct, an output is the first trial that has a text; without any it is refused as no text."""
    refused = Verdict("w-1", "replayed", "no such step").as_dict()
    row = {"task_id": "w-1", "elapsed_s": 1.0, "gate": "replayed", "latency_us": None, "text": None, "verdict": refused}
    spoken = row | {"trial": 2, "text": "<graph", "verdict": Verdict("w-1", "wellformed", emitted=3).as_dict()}
    reader = eval_search._Reader(told.work.service, told.work.settings, told.work.journal, {})
    text, verdict, _ = reader.best("w-1", eval_trials.Search({1: row | {"trial": 1}, 2: spoken}), 2)
    assert (text, verdict["gate"]) == ("<graph", "wellformed")
    text, verdict, _ = reader.best("w-1", eval_trials.Search({1: row | {"trial": 1}}), 1)
    assert (text, verdict["gate"]) == ("", "parsed")


def test_stock_is_read_where_a_batch_ends() -> None:
    def reads(trials: int, *read: int) -> tuple[int, ...]:
        return eval_search.reads_of(changed(trials=trials, read=read), STOCK)

    assert (reads(128), reads(100), reads(64), reads(8)) == ((64, 128), (64, 100), (64,), (8,))
    assert reads(200, 128, 200) == (128, 200)
    for read in (8, 63, 100):
        with pytest.raises(UserError, match="stock measures 64 at once"):
            reads(128, read)
    assert eval_search.reads_of(changed(read=()), SEARCH) == (8,)


def test_a_batch_that_goes_on_is_not_known_yet() -> None:
    """Three batches, of 60, 64 and 4 trials: after 64 trials the first is known, and no more."""
    at = [10.0] * 60 + [20.0] * 64 + [30.0] * 4
    known = eval_trials.Search({n: {"trial": n, "elapsed_s": elapsed} for n, elapsed in enumerate(at, 1)})
    assert (len(known.first(64)), known.elapsed_s(64)) == (60, 10.0)
    assert (len(known.first(128)), known.elapsed_s(128)) == (128, 30.0)


def test_stock_s_winner_has_its_builder_s_time(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(Exception):
        pass

    def stop(tasks: Any, settings: Settings) -> Any:
        raise Stopped(settings.build_s)

    monkeypatch.setattr(evaluate, "service_of", stop)
    for build_s, most in ((30.0, 77.0), (90.0, 90.0)):
        one = changed(device="real", trials=64, read=(), timeout_s=77.0, build_s=build_s)
        with pytest.raises(Stopped, match=str(most)):
            eval_search.searched(release, STOCK, tmp_path / f"{most}.jsonl", one)
        assert head_of(tmp_path / f"{most}.trials.jsonl")["build_s"] == most


def test_stock_has_tvm_s_own_rules() -> None:
    def task(kind: str) -> Task:
        return Task(kind, "", [], targets.target(kind), 1.0, 1.0, 0.0, 0.0)

    assert eval_search.own_rules([task("llvm"), task("cuda")]) == {"llvm": "llvm", "cuda": "cuda-tensorcore"}
    unknown = dataclasses.replace(task("llvm"), target={"kind": "llvm", "mcpu": "icelake-server"})
    with pytest.raises(UserError, match="no rule set of TVM's"):
        eval_search.own_rules([unknown])


def test_who_tunes_has_the_device_alone(tmp_path: Path) -> None:
    device = RealDevice(targets.target("llvm"), Deadlines())
    device._lock = locks.HostLock("cpu", tmp_path)  # nobody else's
    with device.alone(), (tmp_path / "cpu.lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_families_take_turns() -> None:
    def prompt(task: str, family: str) -> Prompt:
        return Prompt(f"x-{task}", "construct", family, task, "e", [], "", 1.0, None)

    prompts = [prompt(f"w-{family}{n}", family) for family in ("a", "b", "c") for n in range(4)]
    order = eval_search.in_turn([*prompts, *prompts], 0)
    assert len(order) == len(set(order)) == 12
    assert all({id[2] for id in order[first : first + 3]} == {"a", "b", "c"} for first in range(0, 12, 3))
    assert eval_search.in_turn(reversed(prompts), 5) == order[:5]


# -- the command --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--baseline", "search", "--read", "8,x"], "give numbers with commas between"),
        (["--baseline", "search", "--read", "8,200"], "give numbers from 1 to --trials, 128"),
        (["--baseline", "search", "--read", "0"], "give numbers from 1 to --trials, 128"),
        (["--baseline", "stock"], "--device real"),
        (["--baseline", "stock", "--device", "real", "--read", "8,64"], "stock measures 64 at once"),
        (["--baseline", "best"], "'best' is not one of"),
        (["--baseline", "search", "--trials", "0"], "0 is not in the range"),
    ],
)
def test_mistakes_are_told_in_one_line(
    release: Path, tmp_path: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--data", str(release), "--out", str(tmp_path / "r.jsonl"), "--device", "simulated"]
    assert cli.call(["eval", *given, *options]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert words in said
    assert said.startswith("error: ")
    assert not list(tmp_path.iterdir())


def test_the_commands_print_tables(
    release: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--trials", "8", "--read", "4,8", "--per-round", "4", "--device", "simulated"]
    arguments = ["eval", "--data", str(release), "--baseline", "search", *options, "--out", str(whole / "s.jsonl")]
    assert cli.call(arguments) == 0
    said = capsys.readouterr().out
    assert said.count("Construction, per output") == 2
    assert "The best of the first 8 trials" in said
    assert cli.call([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"4", "8"}
    files = [str(whole / "s-4.jsonl"), str(whole / "s.trials.jsonl")]
    assert cli.call(["eval", "times", *files, "--each"]) == 0
    said = capsys.readouterr().out
    assert "against search of 8 trials" in said
    assert "never as fast" in said
    assert cli.call(["eval", "times", *files, "--json", "--trials", "4"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [pair["ratio"] for pair in found["pairs"]] == pytest.approx([1.0] * 3)  # it is the same search
    assert not any(pair["at_least"] for pair in found["pairs"])


def test_times_of_files_that_are_none_or_of_elsewhere(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, trials = str(whole / "s-4.jsonl"), whole / "s.trials.jsonl"
    for other, words in (
        (results, "a trial has a task_id"),
        (str(REAL / "inputs.json"), "not a JSON object"),
        (str(tmp_path / "none"), "not a file"),
    ):
        assert cli.call(["eval", "times", results, other]) == 2
        assert words in capsys.readouterr().err
    stock = trials.read_text(encoding="utf-8").replace('"baseline": "search"', '"baseline": "stock"', 1)
    (tmp_path / "k").write_text(stock, encoding="utf-8")
    assert cli.call(["eval", "times", results, str(tmp_path / "k"), "--trials", "8"]) == 0
    assert cli.call(["eval", "times", results, str(tmp_path / "k"), "--trials", "4"]) == 2
    assert "stock measures 64 at once" in capsys.readouterr().err
    assert cli.call(["eval", "times", results, str(trials), "--trials", "9"]) == 2
    assert "its searches have 8" in capsys.readouterr().err
    for old, new in (('"device": "simulated"', '"device": "real"'), ('["e"]', '["f"]')):
        (tmp_path / "t").write_text(trials.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
        assert cli.call(["eval", "times", results, str(tmp_path / "t")]) == 2
        assert "not comparable" in capsys.readouterr().err


# -- slow: kills, and the real device -----------------------------------------------------------------


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_search_comes_to_the_same(release: Path, whole: Path, tmp_path: Path, number: int) -> None:
    trials = tmp_path / "s.trials.jsonl"
    command = [
        sys.executable, "-m", "littledragon.pipelines.cli", "eval", "--data", str(release), "--device", "simulated",
        "--baseline", "search", "--trials", "8", "--read", "4,8", "--per-round", "4", "--out",
        str(tmp_path / "s.jsonl"),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: trials.exists() and trials.read_bytes().count(b"\n") >= 7)
        process.send_signal(number)
        process.wait(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert len(trials.read_bytes().splitlines()) < 17
    eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", SETTINGS)
    assert trials_of(tmp_path) == trials_of(whole)
    assert verdicts_of(tmp_path) == verdicts_of(whole)


@pytest.mark.slow
def test_random_and_search_on_this_cpu(release: Path, tmp_path: Path) -> None:
    real = changed(device="real", samples=2, trials=8, read=(4, 8), limit=1)
    texts = []
    for seed in (0, 1):
        found = evaluate.evaluate(release, RANDOM, tmp_path / f"r{seed}.jsonl", Settings(**vars(real) | {"seed": seed}))
        assert (found.group("construct").correct.value, found.group("construct").faults) == (1.0, 0)
        texts.append({row["output"] for row in rows_of(tmp_path / f"r{seed}.outputs.jsonl")})
    assert texts[0].isdisjoint(texts[1])
    searched = eval_search.searched(release, SEARCH, tmp_path / "s.jsonl", real)
    gains = [searched[n].group("construct").over_default.value for n in (4, 8)]
    assert all(gain is not None for gain in gains)
    assert gains == sorted(gains)  # type: ignore[type-var]


@pytest.mark.slow
def test_stock_on_this_cpu(release: Path, tmp_path: Path) -> None:
    # A worker of stock's builder parses TVM's intrinsics within its first build: minutes on a busy machine.
    real = changed(device="real", trials=8, read=(), limit=1, timeout_s=900.0)
    found = eval_search.searched(release, STOCK, tmp_path / "k.jsonl", real)
    every = rows_of(tmp_path / "k.trials.jsonl")
    assert [row["trial"] for row in every[:8]] == list(range(1, 9))
    assert any(row["text"] for row in every[8:])  # those that were spelled
    rows = every[:8]
    assert any(row["latency_us"] is not None for row in rows)
    assert all((row["latency_us"] is None) == ("reason" in row) for row in rows)
    assert found.keys() == {8}
    group = found[8].group("construct")
    assert (group.prompts, group.correct.value, group.faults) == (1, 1.0, 0)
    (row, *_) = rows_of(tmp_path / "k-8.jsonl")
    assert evaluate.output_of(row, tmp_path).seconds == pytest.approx(rows[7]["elapsed_s"])
    assert row["verdict"]["latency_us"] not in [trial["latency_us"] for trial in rows]  # ours, not stock's
    assert {name: head_of(tmp_path / "k-8.jsonl")[name] for name in ("timeout_s", "build_s")} == {
        "timeout_s": 900.0, "build_s": 900.0,
    }  # fmt: skip
    size = (tmp_path / "k.trials.jsonl").stat().st_size
    again = eval_search.searched(release, STOCK, tmp_path / "k.jsonl", real)
    assert again == found
    assert (tmp_path / "k.trials.jsonl").stat().st_size == size
