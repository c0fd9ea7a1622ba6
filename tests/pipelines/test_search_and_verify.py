"""The stages search and verify on small real workloads, through the store, on both devices."""

import dataclasses
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from littledragon.compiler import children, targets
from littledragon.compiler.targets import DeviceMissing
from littledragon.pipelines import driver, search, verify
from littledragon.pipelines import workloads as workloads_stage
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.executor import Answer, Serial
from littledragon.pipelines.lease import acquire
from littledragon.pipelines.stage import Result, Unit
from littledragon.pipelines.store import Store
from littledragon.schemas import tsel
from littledragon.schemas.ids import content_id, digest
from littledragon.schemas.tables import BY_NAME
from littledragon.validators.device import Workload, open_device

SMALL = Config(device="simulated", candidates_per_round=6, population=24, repeat_ms=1.0)
OBSERVED = {"attempt": 1, "started_at": "2026-01-01T00:00:00Z", "wall_s": 0.0, "host": "here"}
MADE = {
    "matmul": {"m": 32, "n": 32, "k": 32, "dtype": "float16", "accumulate": "float32"},
    "softmax": {"m": 16, "n": 64},
    "scalar": {"n": 8},
}

Placed = Callable[[list[dict[str, Any]]], dict[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def workloads() -> Iterator[list[dict[str, Any]]]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(Path(__file__).parent.parent / "compiler" / "probe"))
    child = children.Child()
    rows = []
    for name, arguments in MADE.items():
        made = child.call(f"littledragon.probe.modules:{name}", deadline_s=60, **arguments)
        row = {column.name: None for column in BY_NAME["workloads"].columns}
        row |= {"workload_id": content_id("w", name), "state": "ok", "family": "gemm", "operator": name}
        row |= {"block_id": name, "configuration": "cut", "task": "main", "model": "m", "source": "s", "licence": "MIT"}
        row |= {
            "rules": "llvm",
            "module": made["module"],
            "module_hash": made["module_hash"],
            "inputs": json.dumps(made["specs"]),
        }
        rows.append(row)
    child.close()
    yield rows
    children.close_all()
    patch.undo()


@pytest.fixture
def store(tmp_path: Path, workloads: list[dict[str, Any]], placed: Placed) -> Store:
    store = Store.open(tmp_path / "work", create=True)
    unit = Unit("workloads", 1, {}, {})
    store.commit(unit, Result(placed(workloads)), OBSERVED)
    store.plan("workloads", [unit])
    return store


class Lines:
    """Serial, with payloads as JSON text, as they cross to other processes."""

    def run(self, module: str, config: Config, items: Any) -> Iterator[Answer]:
        return Serial().run(module, config, ((id, json.loads(json.dumps(payload))) for id, payload in items))


def run(store: Store, stage: ModuleType, config: Config) -> int:
    """Drive one stage; gives how many units were worked on."""
    before = len(store.complete(stage.NAME))
    with acquire(store.path, stage.NAME) as lease:
        driver.run_stage(store, stage, config, Lines(), lease)
    return len(store.complete(stage.NAME)) - before


def test_every_candidate_ends_at_one_gate_and_parses_into_a_trace(store: Store) -> None:
    assert run(store, search, SMALL) == 3
    rows = store.rows("candidates")
    traces = {row["candidate_id"]: row for row in store.rows("traces")}
    for row in rows:
        if row["source"] == "default":
            assert (row["status"], row["score"]) == ("ok", None)
            assert row["candidate_id"] not in traces
        else:
            assert traces[row["candidate_id"]]["tsel"].startswith("<graph")
        assert (row["status"] == "ok") == (row["latency_us"] is not None)
        assert (row["status"] == "ok") == (row["reason"] is None)
    defaults = [row for row in rows if row["source"] == "default"]
    assert len(defaults) == 3
    assert len({row["candidate_id"] for row in rows}) == len(rows)
    (environment,) = {row["environment_id"] for row in store.rows("environments")}
    assert {row["environment_id"] for row in rows} == {environment}


def test_rounds_grow_from_each_other_and_running_again_does_nothing(store: Store, tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, rounds=2)
    assert run(store, search, SMALL) == 3
    # The first round is the same unit whatever the number of rounds.
    assert 2 <= run(store, search, config) <= 3
    assert run(store, search, config) == 0
    rows = store.rows("candidates", "workload_id = $id", id=content_id("w", "matmul"))
    first = {row["module_hash"] for row in rows if row["round"] == 0}
    second = {row["module_hash"] for row in rows if row["round"] == 1}
    assert len(second) == 6
    assert not first & second
    assert all(row["score"] is not None for row in rows if row["round"] == 1 and row["source"] == "evolutionary")
    # A run with fewer rounds takes the later ones out of the plan, and a run with more finds them again.
    assert run(store, search, SMALL) == 0
    assert not store.rows("candidates", "round = 1")
    assert run(store, search, config) == 0
    assert len(store.rows("candidates", "round = 1")) >= 6


def keep_only(store: Store, workloads: list[dict[str, Any]], name: str, placed: Placed) -> None:
    """Plan the workloads anew, with this one alone."""
    unit = Unit("workloads", 1, {}, {"only": name})
    store.commit(unit, Result(placed([row for row in workloads if row["block_id"] == name])), OBSERVED)
    store.plan("workloads", [unit])


def test_a_sample_of_the_workloads_is_searched_and_a_larger_one_holds_it(store: Store) -> None:
    few = dataclasses.replace(SMALL, workloads=1)
    assert run(store, search, few) == 1
    more = dataclasses.replace(SMALL, workloads=2)
    assert run(store, search, more) == 1
    assert {chain.workload_id for chain in search.chains(store, few)} < {
        chain.workload_id for chain in search.chains(store, more)
    }
    assert run(store, search, SMALL) == 1


def test_workloads_held_out_are_searched_beside_a_sample(tmp_path: Path, fill: Any) -> None:
    """Few of a sample are held out for evaluation."""
    blank = {column.name: None if column.null else "" for column in BY_NAME["workloads"].columns} | {"state": "ok"}
    rows = []
    for number in range(60):
        family, split = ("gemm", "moe")[number % 2], ("train", "train", "test", "validation", "embargo")[number % 5]
        named = {"workload_id": f"w-{number}", "block_id": f"b{number}", "configuration": "c", "task": "t"}
        rows.append({**blank, **named, "family": family, "split": split})
    store = fill(tmp_path / "work", {"workloads": rows})
    split_of = {row["workload_id"]: row["split"] for row in rows}

    def searched(**settings: Any) -> set[str]:
        return {chain.workload_id for chain in search.chains(store, dataclasses.replace(SMALL, **settings))}

    sample = searched(workloads=10)
    assert len(sample) == 10
    held = searched(workloads=10, held_out=16) - sample
    assert sample | held == searched(workloads=10, held_out=16)
    assert {split_of[name] for name in held} == {"test", "validation"}
    both = [name for name in sample | held if split_of[name] in ("test", "validation")]
    assert len(both) >= 16
    assert len(searched(workloads=10, held_out=1000)) == 10 + 24 - len([n for n in sample if n in {*both}])
    assert searched(held_out=3) == set(split_of)


def test_imported_traces_are_candidates_of_the_first_round(store: Store, tmp_path: Path) -> None:
    """They are measured beside the default schedule, and not proposed again; without them the round is another unit."""
    run(store, search, SMALL)
    of = "workload_id = $id AND source <> 'default'"
    found = store.rows("candidates", f"{of} AND status = 'ok'", id=content_id("w", "matmul"))[0]
    (trace,) = store.rows("traces", "candidate_id = $id", id=found["candidate_id"])
    about = {"candidate_id": found["candidate_id"], "workload_id": found["workload_id"], "target": "llvm"}
    row = {**about, "database": "d", "line": 1, "trace": trace["trace"], "status": "ok", "reason": None}
    unit = Unit("import", 1, {}, {"database": "d"})
    store.commit(unit, Result({"imports": [row]}), OBSERVED)
    store.plan("import", [unit])
    assert run(store, search, SMALL) == 1
    rows = store.rows("candidates", of, id=content_id("w", "matmul"))
    assert [one["candidate_id"] for one in rows if one["source"] == "imported"] == [found["candidate_id"]]
    assert len({one["module_hash"] for one in rows}) == len(rows) == 7


def test_thin_space_is_exhausted_and_keeps_its_default(
    store: Store, workloads: list[dict[str, Any]], placed: Placed
) -> None:
    keep_only(store, workloads, "scalar", placed)
    config = dataclasses.replace(SMALL, rounds=4, candidates_per_round=16)
    run(store, search, config)
    outcomes = store.sql("select state, reason from outcomes where stage = 'search' and state != 'ok'").to_pylist()
    assert outcomes
    assert {(row["state"], row["reason"]) for row in outcomes} <= {("rejected", "exhausted"), ("rejected", "no_space")}
    assert run(store, search, config) == 0
    assert store.rows("candidates", "workload_id = $id and source = 'default'", id=content_id("w", "scalar"))


@pytest.mark.slow
def test_simulated_runs_are_equal_wherever_they_run(store: Store, tmp_path: Path, placed: Placed) -> None:
    def tables(store: Store) -> Any:
        observed = {"build_s", "observed"}
        return [
            [{name: value for name, value in row.items() if name not in observed} for row in store.rows(table)]
            for table in ("candidates", "traces", "verdicts", "anchors", "environments")
        ]

    run(store, search, SMALL)
    run(store, verify, SMALL)
    other = Store.open(tmp_path / "other", create=True)
    unit = Unit("workloads", 1, {}, {})
    rows = [{name: value for name, value in row.items() if name != "unit_id"} for row in store.rows("workloads")]
    other.commit(unit, Result(placed(rows[::-1])), OBSERVED)
    other.plan("workloads", [unit])
    children.close_all()
    run(other, search, SMALL)
    run(other, verify, SMALL)
    assert tables(store) == tables(other)
    assert all(tables(store)[:4])


def test_crash_of_the_proposer_fails_the_unit_and_can_be_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(SMALL, propose_deadline_s=0.001)
    (unit, *_) = search.plan(store, config)
    result = search.work(search.load(store, [unit], config)[0], config)
    assert (result.state, result.reason, result.rows) == ("failed", "deadline", {})
    assert search.plan(store, SMALL)[0].id == unit.id  # deadlines are no part of a unit


@pytest.mark.parametrize("change", [{"inputs": "[]"}, {"module": "{}"}])
def test_units_follow_what_the_work_reads_of_a_workload(
    store: Store, workloads: list[dict[str, Any]], change: dict[str, str], placed: Placed
) -> None:
    """Two blocks may give one workload id with other names or arguments; which one stays depends on the choice."""
    keep_only(store, workloads, "scalar", placed)
    run(store, search, SMALL)
    before = [*search.plan(store, SMALL), *verify.plan(store, SMALL)]
    assert len(before) == 2
    unit = Unit("workloads", 1, {}, change)
    store.commit(unit, Result(placed([{**workloads[2], **change}])), OBSERVED)
    store.plan("workloads", [unit])
    after = [*search.plan(store, SMALL), *verify.plan(store, SMALL)]
    assert not {one.id for one in before} & {one.id for one in after}


@pytest.mark.parametrize("stage", [search, verify])
def test_a_worker_of_another_environment_measures_nothing(store: Store, stage: ModuleType) -> None:
    real = dataclasses.replace(SMALL, device="real")
    there = {**search.environment_row(real), "environment_id": "other", "processor": "Z80"}
    result = stage.work({"environment": there}, real)
    assert (result.state, result.reason, result.rows) == ("failed", "environment", {})
    assert "not Z80" in (result.detail or "")


def test_what_was_measured_elsewhere_is_current_for_what_comes_after(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's verdicts become examples on a machine that has none; what measures goes on where it began."""
    with pytest.raises(UserError, match="nothing of the current plan"):
        search.as_measured(store, SMALL)
    run(store, search, SMALL)
    run(store, verify, SMALL)

    def none_here(config: Config) -> None:
        raise DeviceMissing("no GPU")

    monkeypatch.setattr(search, "environment_row", none_here)
    monkeypatch.setattr(workloads_stage, "plan", lambda store, config: [Unit("workloads", 1, {}, {})])
    for stage in (search, verify):
        driver.require_current(store, stage, SMALL, elsewhere=True)
        with pytest.raises(UserError, match="with other settings"):
            driver.require_current(store, stage, dataclasses.replace(SMALL, population=25, seed=1), elsewhere=True)
        with pytest.raises(DeviceMissing):
            driver.require_current(store, stage, SMALL)
    with pytest.raises(UserError, match="measured with settings"):
        search.as_measured(store, dataclasses.replace(SMALL, repeat_ms=2.0))
    with monkeypatch.context() as patch:
        patch.setattr(tsel, "VERSION", "tsel/0")
        with pytest.raises(UserError, match="measured with codec 'tsel/1', and here that is 'tsel/0'"):
            search.as_measured(store, SMALL)
    driver.run(store, ["pairs"], SMALL, Lines())
    assert store.manifest("pairs")
    with pytest.raises(DeviceMissing):
        driver.run(store, ["verify", "pairs"], SMALL, Lines())


@pytest.mark.parametrize(
    "changed", [{"device": "real"}, {"settings": "no JSON"}, {"settings": "[" * 100_000}, {"tvm": "x"}]
)
def test_an_environment_that_is_none_of_ours_is_one_line(tmp_path: Path, fill: Any, changed: dict[str, str]) -> None:
    row = {**search.environment_row(SMALL), **changed}
    store = fill(tmp_path / "work", {"environments": [row]})
    with pytest.raises(UserError, match="not what was written"):
        search.measured_in(store, SMALL)
    (name,) = changed
    forged = {column: value for column, value in row.items() if column != "environment_id"}
    store = fill(tmp_path / "forged", {"environments": [forged | {"environment_id": digest(forged)}]})
    with pytest.raises(UserError, match=f"measured with {name} ") as said:
        search.measured_in(store, SMALL)
    assert len(str(said.value)) < 1000


def test_verify_waits_for_the_search(store: Store) -> None:
    assert verify.plan(store, SMALL) == []
    run(store, search, SMALL)
    assert len(verify.plan(store, SMALL)) == 3


def test_verdicts_and_anchors_follow_from_three_processes(store: Store) -> None:
    run(store, search, SMALL)
    assert run(store, verify, SMALL) == 3
    assert run(store, verify, SMALL) == 0
    for anchor in store.rows("anchors", "state = 'ok'"):
        verdicts = store.rows("verdicts", "workload_id = $id", id=anchor["workload_id"])
        passed = {row["candidate_id"]: row for row in verdicts if row["status"] == "ok"}
        best = passed[anchor["anchor_id"]]
        assert best["latency_us"] == anchor["anchor_us"] == min(row["latency_us"] for row in passed.values())
        assert passed[anchor["default_id"]]["latency_us"] == anchor["default_us"]
        assert anchor["margin"] == max(SMALL.margin_floor, 2 * anchor["noise_band"])
        for row in verdicts:
            if row["medians_us"]:
                assert row["medians_us"] == [statistics.median(five) for five in row["repeats_us"]]
                assert row["latency_us"] == statistics.median(row["medians_us"])
                assert row["cases"] == 5


def row(name: str, latency: float, status: str = "ok", source: str = "evolutionary") -> dict[str, Any]:
    return {"candidate_id": name, "latency_us": latency, "status": status, "source": source}


def test_choice_is_the_best_and_parents_evenly_in_log_latency() -> None:
    rows = [row(f"c{n}", 2.0**n) for n in range(13)] + [row("bad", 0.1, "correct"), row("d", 1e9, source="default")]
    chosen = verify.choose(rows, 2, 3)
    assert chosen[:2] == [["best", "c0"], ["best", "c1"]]
    assert chosen[2:] == [["parent", "c4"], ["parent", "c8"], ["parent", "c12"]]
    assert verify.choose(rows[:3], 2, 3) == [["best", "c0"], ["best", "c1"], ["parent", "c2"]]
    assert verify.choose([], 2, 3) == []
    gaps = [math.log2(rows[int(name[1:])]["latency_us"]) for _, name in chosen[2:]]
    assert gaps == [4, 8, 12]


def verdict(name: str, latency: float | None, status: str = "ok", band: float | None = 0.01) -> dict[str, Any]:
    where = {"workload_id": "w", "environment_id": "e", "reason": None if status == "ok" else "because"}
    return {"candidate_id": name, "status": status, "latency_us": latency, "noise_band": band, **where}


@pytest.mark.parametrize(
    ("verdicts", "empty_us", "reason"),
    [
        ([verdict("d", None, "correct"), verdict("a", 1.0)], None, "default_failed"),
        ([verdict("d", 9.0, "stable", 0.2), verdict("a", 1.0)], 0.1, "default_unstable"),
        ([verdict("d", 9.0), verdict("a", 1.0)], 6.0, "launch_bound"),
        ([verdict("d", 9.0), verdict("a", 1.0, "stable", 0.2)], 0.1, "no_candidates"),
        ([verdict("d", 9.0), verdict("a", 2.0, band=0.04), verdict("b", 1.0, "correct")], 0.1, None),
    ],
)
def test_anchor_has_a_reason_or_a_latency(verdicts: Any, empty_us: float | None, reason: str | None) -> None:
    found = verify.anchor_row(verdicts, empty_us, 0.05)
    assert (found["state"], found["reason"]) == ("rejected" if reason else "ok", reason)
    if reason is None:
        assert (found["anchor_id"], found["anchor_us"], found["margin"]) == ("a", 2.0, 0.08)


def test_where_nothing_beats_the_default_schedule_it_is_the_anchor() -> None:
    """Publishing requires L0 >= a of every workload, so one such workload must not stop the release."""
    found = verify.anchor_row([verdict("d", 9.0, band=0.03), verdict("a", 10.0)], 0.1, 0.05)
    assert (found["state"], found["anchor_id"], found["anchor_us"], found["margin"]) == ("ok", "d", 9.0, 0.06)


def test_real_kernels_from_search_to_anchor(store: Store, workloads: list[dict[str, Any]], placed: Placed) -> None:
    config = dataclasses.replace(SMALL, device="real", candidates_per_round=3, stable_band=10.0)
    keep_only(store, workloads, "matmul", placed)
    run(store, search, config)
    rows = store.rows("candidates")
    assert [row["status"] for row in rows] == ["ok"] * 4
    assert all(len(row["repeats_us"]) == 5 and row["error"] <= 1 and row["build_s"] > 0 for row in rows)
    run(store, verify, config)
    (anchor,) = store.rows("anchors")
    assert anchor["state"] == "ok"
    assert 0 < anchor["empty_us"] < anchor["anchor_us"]
    assert {row["cases"] for row in store.rows("verdicts")} == {5}
    assert {entry["repeat_ms"] for row in store.rows("verdicts") for entry in json.loads(row["observed"])} == {1.0}


def test_a_candidate_that_never_crosses_the_boundary_is_a_row(
    store: Store, workloads: list[dict[str, Any]], tmp_path: Path
) -> None:
    """It is refused at its gate like any other, keeps its trace, is counted, and nothing is learned from it."""
    golden = Path(__file__).parents[1] / "golden" / "release"
    trace = tsel.decode((golden / "payload_slow.txt").read_bytes()).trace
    payload = {
        "workload_id": workloads[0]["workload_id"],
        "rules": "llvm",
        "module": (golden / "module.json").read_text(encoding="utf-8"),
        "target": targets.target("llvm"),
        "environment": search.environment_row(SMALL),
        "round": 0,
    }
    row = search._row(payload, "evolutionary", trace)
    trial = search.Trial(row, trace)
    device = open_device("simulated", payload["target"])
    nothing: Future[float | None] = Future()
    search._measure(trial, nothing, Workload(payload["module"], []), SMALL, device, tmp_path)
    assert (trial.row["status"], trial.row["module_hash"]) == ("postprocessed", None)
    assert "never enters post-processing" in trial.row["reason"]
    assert trial.trace is not None
    assert (trial.trace["trace"], trial.trace["tsel"], trial.trace["postproc_rules"]) == (trace, None, None)
    assert (trial.trace["instructions"], trial.trace["postproc_instructions"]) == (17, 0)

    unit = Unit("search", search.VERSION, {}, {"round": 0})
    rows = {"candidates": [trial.row], "traces": [trial.trace], "environments": [payload["environment"]]}
    store.commit(unit, Result(rows), OBSERVED)
    store.plan("search", [unit])
    counts = {row["gate"]: row["candidates"] for row in store.sql("select gate, candidates from funnel").to_pylist()}
    assert (counts["replayed"], counts["postprocessed"], counts["timed"]) == (1, 0, 0)
    later = Unit("search", search.VERSION, {}, {**payload, "environment_id": row["environment_id"], "round": 1})
    assert search.load(store, [later], SMALL)[0]["records"] == []


def test_admission_on_a_plain_cpu_spares_the_tensor_intrinsics() -> None:
    """Their import takes longer than an admission may, in every child that was killed and starts again."""
    golden = Path(__file__).parents[1] / "golden" / "release"
    code = (
        "import sys; from pathlib import Path; from littledragon.compiler import traces; "
        "module, trace = (Path(name).read_text() for name in sys.argv[1:]); "
        "answer = traces.admit(module, trace, {'kind': 'llvm', 'num-cores': 2}); "
        "print(answer['rules'], 'tvm.s_tir.tensor_intrin' in sys.modules)"
    )
    files = [str(golden / name) for name in ("module.json", "trace_slow.json")]
    said = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split() == ["llvm", "False"]


def test_what_a_gpu_measures_depends_on_no_core_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def environment_of(cores: int) -> Any:
        monkeypatch.setattr("os.cpu_count", lambda: cores)
        return search.environment_row(Config(target="cuda", device="simulated"))

    assert environment_of(16) == environment_of(32)
    assert "threads" in search.environment_row(Config(target="llvm", device="simulated"))["settings"]
