"""MetaSchedule's databases in and out: a model compiled with what was exported, and hostile files imported."""

import base64
import json
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from littledragon.compiler import children, targets
from littledragon.compiler.databases import RECORDS, WORKLOADS
from littledragon.pipelines import cli, driver, metaschedule
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.executor import Serial
from littledragon.pipelines.store import Store
from littledragon.schemas import tsel
from littledragon.schemas.ids import content_id

MLP = """
def export():
    from tvm.relax.frontend import nn

    class Mlp(nn.Module):
        def __init__(self):
            self.up = nn.Linear(64, 96)
            self.down = nn.Linear(96, 32)

        def forward(self, x):
            return self.down(nn.op.relu(self.up(x)))

    return Mlp().export_tvm({"forward": {"x": nn.spec.Tensor((48, 64), "float32")}})[0]
"""

COMPILE = """
import json, runpy, sys
import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

model, folder, target = sys.argv[1], sys.argv[2], tvm.target.Target(json.loads(sys.argv[3]))
module = relax.transform.FuseTransposeMatmul()(runpy.run_path(model)["export"]())
with target:
    plain = relax.get_pipeline("zero")(module)
with target, ms.database.JSONDatabase(work_dir=folder, allow_missing=False):
    tuned = relax.get_pipeline("zero", enable_warning=True)(module)

def functions(module):
    return {str(name.name_hint): f for name, f in module.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}

draw = np.random.default_rng(0)
shapes = [[int(extent) for extent in one.struct_info.shape] for one in module["forward"].params]
x, up, up_bias, down, down_bias = given = [draw.standard_normal(shape).astype("float32") for shape in shapes]
wanted = np.maximum(x.astype("float64") @ up.T + up_bias, 0) @ down.T + down_bias
errors = []
for one in (plain, tuned):
    machine = relax.VirtualMachine(tvm.compile(one, target=target), tvm.cpu())
    answer = machine["forward"](*[tvm.runtime.tensor(one) for one in given])
    errors.append(float(np.abs(answer.numpy() - wanted).max()))
before = functions(plain)
print(json.dumps({
    "scheduled": {name: bool(f.attrs.get("tirx.is_scheduled", False)) for name, f in functions(tuned).items()},
    "changed": {name: f.script() != before[name].script() for name, f in functions(tuned).items()},
    "errors": errors,
}))
"""

COMPILE_BLOCK = """
import json, sys
import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms
from littledragon.compiler.zoo import block_of
from littledragon.compiler.zoo.block import relax_module

block, folder, target = sys.argv[1], sys.argv[2], tvm.target.Target(json.loads(sys.argv[3]))
module = relax_module([block_of("demo", block).build(**block_of("demo", block).cases[0].shape)])
with target:
    plain = relax.get_pipeline("zero")(module)
with target, ms.database.JSONDatabase(work_dir=folder, allow_missing=False):
    tuned = relax.get_pipeline("zero", enable_warning=True)(module)
draw = np.random.default_rng(0)
given = [
    draw.standard_normal([int(extent) for extent in one.struct_info.shape]).astype(one.struct_info.dtype)
    for one in module["case_0"].params
]
answers = []
for one in (plain, tuned):
    machine = relax.VirtualMachine(tvm.compile(one, target=target), tvm.cpu())
    answers.append(machine["case_0"](*[tvm.runtime.tensor(one) for one in given]).numpy().astype("float64"))
functions = [f for f in tuned.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
print(json.dumps({
    "scheduled": [bool(f.attrs.get("tirx.is_scheduled", False)) for f in functions],
    "error": float(np.abs(answers[0] - answers[1]).max() / np.abs(answers[0]).max()),
}))
"""

SMALL = Config(device="simulated", candidates_per_round=6, population=24, repeat_ms=1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "mlp.py"
    file.write_text(MLP, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Store]:
    """A work directory with the model's two workloads, searched and verified on the simulated device."""
    store = Store.open(tmp_path_factory.mktemp("measured") / "work", create=True)
    config = replace(SMALL, models=(str(model),))
    driver.run(store, ("workloads", "search", "verify"), config, Serial())
    yield store
    children.close_all()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, measured: Store, model: Path) -> Path:
    folder = tmp_path_factory.mktemp("database") / "exported"
    done = metaschedule.export(measured, folder, "llvm", best=2, models=[str(model)])
    assert (done.workloads, done.forms, done.records, done.left) == (2, 2, 4, [])
    return folder


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """Another work directory with the same workloads, and nothing else."""
    store = Store.open(tmp_path_factory.mktemp("extracted") / "work", create=True)
    driver.run(store, ("workloads",), replace(SMALL, models=(str(model),)), Serial())
    return store.path


@pytest.fixture
def other(tmp_path: Path, extracted: Path) -> Store:
    shutil.copytree(extracted, tmp_path / "work")
    return Store.open(tmp_path / "work")


def verified(store: Store) -> set[str]:
    """The two best of each workload that beat its default schedule, as the tables say."""
    query = """
        SELECT candidate_id FROM verdicts JOIN anchors USING (workload_id, environment_id)
        WHERE status = 'ok' AND role <> 'default' AND latency_us < default_us
        QUALIFY row_number() OVER (PARTITION BY workload_id ORDER BY latency_us, candidate_id) <= 2
    """
    return set(store.sql(query).column(0).to_pylist())


def take(store: Store, folder: Path, **options: Any) -> metaschedule.Imported:
    return metaschedule.import_(store, folder / WORKLOADS, folder / RECORDS, options.pop("target", "llvm"), **options)


# -- out -------------------------------------------------------------------------------------------


def test_a_fresh_process_compiles_the_model_with_what_was_exported(model: Path, database: Path) -> None:
    target = json.dumps(targets.target("llvm"))
    command = [sys.executable, "-c", COMPILE, str(model), str(database), target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert len(answer["scheduled"]) == 2
    assert all(answer["scheduled"].values()), answer
    assert all(answer["changed"].values()), answer
    assert max(answer["errors"]) < 1e-3
    assert "not found" not in done.stderr


@pytest.mark.slow
def test_a_block_of_the_zoo_needs_no_file_to_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.open(tmp_path / "work", create=True)
    driver.run(store, ("workloads", "search", "verify"), replace(SMALL, families=("vision",), limit=1), Serial())
    done = metaschedule.export(store, tmp_path / "database", "llvm")
    assert "are simulated" in capsys.readouterr().err
    assert done.workloads == store.sql("SELECT 1 FROM anchors WHERE state = 'ok'").num_rows > 0
    block, target = store.rows("workloads")[0]["block_id"], json.dumps(targets.target("llvm"))
    command = [sys.executable, "-c", COMPILE_BLOCK, block, str(tmp_path / "database"), target]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout.splitlines()[-1])
    assert all(answer["scheduled"])
    assert answer["error"] < 1e-2
    assert "not found" not in ended.stderr


def test_what_is_exported_and_imported_elsewhere_are_the_same_candidates(
    measured: Store, database: Path, other: Store
) -> None:
    done = take(other, database)
    assert (done.records, done.accepted, done.bad, dict(done.left), dict(done.failed)) == (4, 4, 0, {}, {})
    rows = other.rows("imports")
    assert {row["candidate_id"] for row in rows} == verified(measured)
    assert {row["status"] for row in rows} == {"ok"}
    assert not other.sql("SELECT * FROM funnel WHERE candidates > 0").num_rows
    given = metaschedule.imported(other, sorted(done.known), "llvm")
    target = targets.target("llvm")
    ids = {
        content_id("c", {"workload": workload_id, "target": target, "trace": trace})
        for workload_id, traces in given.items()
        for trace in traces
    }
    assert ids == verified(measured)
    assert metaschedule.imported(other, sorted(done.known), "cuda") == {}
    assert metaschedule.imported(measured, sorted(done.known), "llvm") == {}


def test_latencies_and_the_target_are_written_with_the_traces(measured: Store, database: Path) -> None:
    latencies = {row["latency_us"] for row in measured.rows("verdicts", "role <> 'default'")}
    for line in (database / RECORDS).read_text(encoding="utf-8").splitlines():
        _, (trace, seconds, target, arguments) = json.loads(line)
        assert any(seconds == [latency * 1e-6] for latency in latencies)
        assert target["kind"] == "llvm"
        assert len(arguments) == 4
        assert ["EnterPostproc", [], [], []] in trace[0]


def test_a_folder_that_is_not_empty_is_left_alone(measured: Store, model: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="not an empty folder"):
        metaschedule.export(measured, tmp_path, "llvm", models=[str(model)])
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_without_the_model_its_workloads_have_no_form(measured: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"2 workloads have no form here.*--from"):
        metaschedule.export(measured, tmp_path / "database", "llvm")
    assert list(tmp_path.iterdir()) == []


def test_export_says_what_is_missing(measured: Store, other: Store, tmp_path: Path) -> None:
    for store, options, words in (
        (other, {"target": "llvm"}, "no verified workload of target llvm"),
        (measured, {"target": "cuda"}, "no verified workload of target cuda"),
        (measured, {"target": "llvm", "environment": "e-none"}, "no verified workload of environment e-none"),
        (measured, {"target": "llvm", "models": ["model.txt"]}, "not a model"),
        (measured, {"target": "llvm", "models": ["missing.py"]}, "cannot be read"),
    ):
        with pytest.raises(UserError, match=words):
            metaschedule.export(store, tmp_path / "database", **options)


@pytest.mark.slow
def test_a_disk_that_refuses_is_one_line_and_leaves_nothing(measured: Store, model: Path, tmp_path: Path) -> None:
    """The limit on the size of files stands for a full disk: it comes in the middle of the first workload."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))

    folder = tmp_path / "database"
    command = [sys.executable, "-m", "littledragon.pipelines.cli", "export", "--metaschedule", str(folder)]
    done = subprocess.run(
        [*command, "--workdir", str(measured.path), "--from", str(model)],
        capture_output=True, text=True, timeout=200, check=False, preexec_fn=limit,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "the file may not grow that large here" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


# -- in --------------------------------------------------------------------------------------------


@pytest.fixture
def spoilt(database: Path, tmp_path: Path) -> Path:
    """A copy of the database to spoil."""
    return Path(shutil.copytree(database, tmp_path / "spoilt"))


def rewrite(file: Path, change: Any) -> None:
    """Write the lines that `change` makes of a file's."""
    file.write_bytes(b"\n".join(change(file.read_bytes().splitlines())) + b"\n")


def of(line: bytes, **changes: Any) -> bytes:
    """The record with another `workload` number, or other `seconds` or `target`."""
    number, (trace, seconds, target, arguments) = json.loads(line)
    body = [changes.get("trace", trace), changes.get("seconds", seconds), changes.get("target", target), arguments]
    return json.dumps([changes.get("workload", number), body]).encode()


def killer() -> bytes:
    """A workload line of a graph that points far outside of itself, where TVM does not look."""
    nodes = [{"type": "ir.GlobalVar", "data": {"span": 99999999, "struct_info_": 99999999, "name_hint": 99999999}}]
    data = json.dumps({"root_index": 0, "nodes": nodes, "metadata": {"tvm_version": tsel.TVM}}).encode()
    return json.dumps(["1", base64.b64encode(struct.pack("<Q", len(data)) + data).decode()]).encode()


SPOILT = {
    "cut": (lambda lines: [*lines, lines[0][:-30]], "not JSON"),
    "deep": (lambda lines: [*lines, b"[" * 200_000], "not JSON"),
    "not UTF-8": (lambda lines: [*lines, b"[0, \xff\xfe]"], "not JSON"),
    "NUL": (lambda lines: [*lines, b"\0" * 100], "not JSON"),
    "blank": (lambda lines: [*lines, b""], "not JSON"),
    "huge": (lambda lines: [*lines, b"[" + b"1," * (9 << 20) + b"1]"], "longer than 16 MiB"),
    "no such workload": (lambda lines: [*lines, of(lines[0], workload=2)], "its workload is line 3 of 2"),
    "a negative latency": (lambda lines: [*lines, of(lines[0], seconds=[-1.0])], "not all positive"),
    "NaN": (lambda lines: [*lines, of(lines[0], seconds=[float("nan")])], "not JSON"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_bad_line_is_named_and_the_others_are_taken(name: str, spoilt: Path, other: Store) -> None:
    change, words = SPOILT[name]
    rewrite(spoilt / RECORDS, change)
    done = take(other, spoilt)
    assert (done.accepted, done.bad) == (4, 1)
    assert done.named[0].startswith(f"{RECORDS}, line 5: ")
    assert words in done.named[0]


def test_a_workload_that_kills_tvm_is_named_and_the_others_are_taken(spoilt: Path, other: Store) -> None:
    rewrite(spoilt / WORKLOADS, lambda lines: [lines[0], lines[1], killer(), b"[1]"])
    rewrite(spoilt / RECORDS, lambda lines: [*lines, of(lines[0], workload=2)])
    done = take(other, spoilt)
    assert (done.accepted, done.bad, dict(done.left)) == (4, 2, {"of a workload line that cannot be read": 1})
    assert any("line 3: " in line for line in done.named)


def test_a_trace_for_another_workload_is_a_rejected_row(spoilt: Path, other: Store) -> None:
    rewrite(spoilt / RECORDS, lambda lines: [of(line, workload=1 - json.loads(line)[0]) for line in lines])
    done = take(other, spoilt)
    rows = other.rows("imports")
    assert done.accepted + sum(done.failed.values()) == len(rows) == 4
    assert done.failed["applicable"] >= 1
    assert all(row["reason"] for row in rows if row["status"] != "ok")
    given = metaschedule.imported(other, sorted(done.known), "llvm")
    assert sum(map(len, given.values())) == done.accepted


def test_an_illegal_trace_is_a_rejected_row(spoilt: Path, other: Store) -> None:
    def illegal(lines: list[bytes]) -> list[bytes]:
        return [lines[0], of(lines[1], trace=[[["NoSuchThing", [], [], []]], []]), *lines[2:]]

    rewrite(spoilt / RECORDS, illegal)
    done = take(other, spoilt)
    assert (done.accepted, dict(done.failed), done.bad) == (3, {"wellformed": 1}, 0)


def test_hashes_and_repeated_workloads_are_not_believed(spoilt: Path, other: Store) -> None:
    def repeated(lines: list[bytes]) -> list[bytes]:
        first, second = (json.loads(line)[1] for line in lines)
        return [json.dumps([hash_, module]).encode() for hash_, module in (("7", first), ("7", second), ("8", first))]

    rewrite(spoilt / WORKLOADS, repeated)
    rewrite(spoilt / RECORDS, lambda lines: [of(line, workload=json.loads(line)[0] or 2) for line in lines])
    done = take(other, spoilt)
    assert (done.accepted, done.repeated, done.bad, len(done.known)) == (4, 1, 0, 2)


def test_records_that_are_none_of_ours_are_counted(spoilt: Path, other: Store, tmp_path: Path) -> None:
    rewrite(spoilt / RECORDS, lambda lines: [
        of(lines[0], target={"kind": "cuda"}), of(lines[0], seconds=[1e10]), lines[1], lines[1],
    ])  # fmt: skip
    done = take(other, spoilt)
    assert done.accepted == 2
    assert sorted(done.left.values()) == [1, 1]
    empty = Store.open(tmp_path / "empty", create=True)
    with pytest.raises(UserError, match="no workloads yet"):
        take(empty, spoilt)


def test_a_workload_that_the_work_directory_does_not_have_is_counted(spoilt: Path, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "bare", create=True)
    store.plan("workloads", [])
    done = take(store, spoilt)
    assert (done.accepted, len(done.strange), sum(done.left.values())) == (0, 2, 4)
    assert any("does not have (2 workloads)" in line for line in done.lines())
    assert store.manifest("import") is None


def test_imports_add_up_and_again_changes_nothing(database: Path, spoilt: Path, other: Store) -> None:
    rewrite(spoilt / RECORDS, lambda lines: lines[:1])
    assert take(other, spoilt).accepted == 1
    first = other.rows("imports")
    assert take(other, database).accepted == 4
    rows = other.rows("imports")
    assert len(rows) == 5
    assert [row for row in rows if row in first] == first
    assert sum(map(len, metaschedule.imported(other, [row["workload_id"] for row in rows], "llvm").values())) == 4
    files = other.files("import")
    assert take(other, database).accepted == 4
    assert (other.files("import"), other.rows("imports")) == (files, rows)


def test_the_fastest_by_their_claims_are_taken_where_asked_for(database: Path, other: Store) -> None:
    done = take(other, database, best=1)
    assert (done.accepted, sum(done.left.values())) == (2, 2)
    lines = (database / RECORDS).read_text(encoding="utf-8").splitlines()
    claims = [(json.loads(line)[0], json.loads(line)[1][1][0]) for line in lines]
    fastest = {number: min(seconds for home, seconds in claims if home == number) for number, _ in claims}
    assert {claims[row["line"] - 1] for row in other.rows("imports")} == set(fastest.items())


def test_the_commands(database: Path, other: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ["--workdir", str(other.path)]
    assert cli.call(["import", str(database), *there]) == 0
    assert "4 records: 4 are candidates now, of 2 workloads" in capsys.readouterr().out
    assert cli.call(["import", str(database / WORKLOADS), str(database / RECORDS), *there]) == 0
    assert cli.call(["import", str(tmp_path / "missing"), *there]) == 2
    assert "give a folder that holds" in capsys.readouterr().err
    assert cli.call(["import", str(tmp_path), *there]) == 2
    assert "database_workload.json: cannot be read" in capsys.readouterr().err
    assert cli.call(["export", "--metaschedule", str(tmp_path / "out"), *there]) == 2
    assert "run `dragon verify`" in capsys.readouterr().err
