"""`dragon eval --baseline random`, `search` and `stock`, and the time to kernel of such files: a small release."""

import functools
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from littledragon.compiler import children, targets
from littledragon.pipelines import cli, eval_baselines, eval_search, evaluate
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.questions import Prompt, Settings, Source
from littledragon.release import dataset
from littledragon.schemas import tables
from littledragon.schemas.ids import content_id
from littledragon.validators.service import Service, Verdict

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
    monkeypatch.setattr(eval_baselines, "DRAW_S", 1e-9)
    other = evaluate.evaluate(release, RANDOM, tmp_path / "b.jsonl", SETTINGS)
    assert (other.group("construct").outputs, other.group("construct").faults) == (0, 4)


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
    timeless = ("task_id", "trial", "gate", "latency_us", "text", "proposal")
    return {(row["task_id"], row["trial"]): {name: row[name] for name in timeless} for row in rows}


def verdicts_of(folder: Path) -> dict[tuple[int, str], dict[str, Any]]:
    return {
        (n, row["example_id"]): {key: value for key, value in row["verdict"].items() if key != "seconds"}
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
            assert row["verdict"] == best["verdict"]
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
    from littledragon.pipelines.journal import Journal

    trials = whole / "s.trials.jsonl"
    with Journal(trials, {"run": head_of(trials)}), pytest.raises(UserError, match="another run"):
        eval_search.searched(release, SEARCH, whole / "s.jsonl", SETTINGS)


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
    real = changed(device="real", trials=8, read=(4, 8), limit=1, timeout_s=900.0)
    found = eval_search.searched(release, STOCK, tmp_path / "k.jsonl", real)
    rows = rows_of(tmp_path / "k.trials.jsonl")
    assert [row["trial"] for row in rows] == list(range(1, 9))
    assert any(row["latency_us"] is not None for row in rows)
    best = sorted(row["latency_us"] for row in rows if row["latency_us"] is not None)[:3]
    assert all(row["text"] for row in rows if row["latency_us"] in best)
    for n in (4, 8):
        group = found[n].group("construct")
        assert (group.prompts, group.correct.value, group.faults) == (1, 1.0, 0)
        (row, *_) = rows_of(tmp_path / f"k-{n}.jsonl")
        assert evaluate.output_of(row, tmp_path).seconds == pytest.approx(rows[n - 1]["elapsed_s"])
        assert row["verdict"]["latency_us"] not in [trial["latency_us"] for trial in rows]  # ours, not stock's
    assert head_of(tmp_path / "k-4.jsonl")["timeout_s"] == 900.0
    size = (tmp_path / "k.trials.jsonl").stat().st_size
    again = eval_search.searched(release, STOCK, tmp_path / "k.jsonl", real)
    assert again == found
    assert (tmp_path / "k.trials.jsonl").stat().st_size == size
