"""A row is run again, from the work directory and from the published folder; hostile folders end in one line."""

import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from littledragon.pipelines import publish, replay
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.store import Store

Tables = dict[str, list[dict[str, Any]]]
SIMULATED = Config(device="simulated")
REAL = Config(repeat_ms=1.0)
OBSERVED = {"attempt": 1, "started_at": "2026-01-01T00:00:00Z", "wall_s": 0.1, "host": "h"}


@pytest.fixture(scope="module")
def released(
    tmp_path_factory: pytest.TempPathFactory, built_tables: Tables, fill: Callable[[Path, Tables], Store]
) -> Store:
    store = fill(tmp_path_factory.mktemp("replay") / "w", built_tables)
    units = publish.plan(store, SIMULATED)
    store.plan(publish.NAME, units)
    for unit in units:
        store.commit(unit, publish.work(publish.load(store, [unit], SIMULATED)[0], SIMULATED), OBSERVED)
    publish.finish(store, SIMULATED)
    return store


def example(store: Store, mode: str) -> dict[str, Any]:
    """The example of the one workload whose module TVM reads."""
    return store.rows("examples", "mode = $mode AND split = 'train'", mode=mode)[0]


def run(source: Path, id: str, config: Config) -> tuple[int, str]:
    console = Console(file=StringIO(), width=300, color_system=None)
    code = replay.replay(source, id, config, console)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_published_refinement_runs_on_the_real_device(released: Store) -> None:
    row = example(released, "refine")
    code, told = run(released.path / "release", row["example_id"], REAL)
    assert code == replay.CORRECT
    lines = told.splitlines()
    assert [line.split("   ")[0].strip() for line in lines[1:4]] == [
        "L0, the default schedule",
        "A, the prior graph",
        f"L, {row['example_id']}",
    ]
    claimed = [100.0, 30.0, 10.0]
    for line, latency in zip(lines[1:4], claimed, strict=True):
        there, here = line.split("correct")[0].split()[-2:]
        assert float(there) == latency
        assert float(here) > 0
    assert "device: simulated there, real here" in told
    assert re.search(r"3\.000 claimed: (?:the claim of more than 1\.050|too noisy here)", told)  # on a busy machine
    assert f"{row['example_id']}: correct here" in told


@pytest.mark.parametrize("kind", ["x", "l", "c", "default"])
def test_rows_of_a_work_directory(released: Store, kind: str) -> None:
    row = example(released, "construct")
    column = {"x": "example_id", "l": "label_id", "c": "candidate_id"}.get(kind)
    default = released.rows("candidates", "source = 'default' AND workload_id = $w", w=row["workload_id"])[0]
    id = row[column] if column else default["candidate_id"]
    code, told = run(released.path, id, SIMULATED)
    assert code == replay.CORRECT
    assert "nothing was run and the numbers here are invented" in told
    assert ("10.000 claimed" in told) == (kind != "default")
    assert ("the claim of more than" in told) == (kind in "xl")


def test_a_row_whose_workload_is_out_of_the_plan_is_one_line(tmp_path: Path, tables: Tables, fill: Any) -> None:
    label, workload = tables["labels"][0], tables["workloads"].pop(0)
    store = fill(tmp_path / "w", tables)
    with pytest.raises(UserError, match=f"{workload['workload_id']}: no such id in workloads"):
        run(store.path, label["label_id"], SIMULATED)


def test_an_illegal_payload_is_not_correct(tmp_path: Path, tables: Tables, fill: Any) -> None:
    label = tables["labels"][0]
    wrong = label["graph"].replace("[2,4,8]", "[2,4,7]")
    assert wrong != label["graph"]
    label["graph"] = wrong
    code, told = run(fill(tmp_path / "w", tables).path, label["label_id"], SIMULATED)
    assert code == replay.NOT_CORRECT
    assert "not correct here: fails wellformed" in told


def test_a_payload_that_does_not_apply_is_not_correct(tmp_path: Path, tables: Tables, fill: Any) -> None:
    label = tables["labels"][0]
    good = label["graph"]
    label["graph"] = good.replace("b0 = block NT_matmul\n", "b0 = block no_such_block\n")
    assert label["graph"] != good
    code, told = run(fill(tmp_path / "w", tables).path, label["label_id"], SIMULATED)
    assert code == replay.NOT_CORRECT
    assert "not correct here: fails " in told


@pytest.mark.parametrize(
    ("id", "words"),
    [("s-", "give an example"), ("w-", "give an example"), ("x-0000000000000000", "no such id in examples")],
)
def test_other_ids_of_a_work_directory(released: Store, id: str, words: str) -> None:
    if id == "s-":
        id = released.rows("selections")[0]["selection_id"]
    elif id == "w-":
        id = released.rows("workloads")[0]["workload_id"]
    with pytest.raises(UserError, match=words):
        run(released.path, id, SIMULATED)


def test_a_label_without_a_graph_and_a_candidate_without_a_payload(tmp_path: Path, tables: Tables, fill: Any) -> None:
    label, trace = tables["labels"][0], tables["traces"][0]
    label |= {"state": "rejected", "reason": "too_long", "graph": None}
    trace["tsel"] = None
    candidate = next(c for c in tables["candidates"] if c["candidate_id"] == trace["candidate_id"])
    candidate |= {"status": "encoded", "reason": "no"}
    store = fill(tmp_path / "w", tables)
    with pytest.raises(UserError, match="this label has no graph: it is rejected"):
        run(store.path, label["label_id"], SIMULATED)
    with pytest.raises(UserError, match="failed the gate encoded"):
        run(store.path, candidate["candidate_id"], SIMULATED)


def test_a_folder_that_is_no_release(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a work directory"):
        run(tmp_path, "x-0000000000000000", SIMULATED)
    (tmp_path / "README.md").write_text("")
    with pytest.raises(UserError, match="holds examples only"):
        run(tmp_path, "l-0000000000000000", SIMULATED)
    with pytest.raises(UserError, match="no example x-0000000000000000") as caught:
        run(tmp_path, "x-0000000000000000", SIMULATED)
    assert "Unreadable" not in str(caught.value)


def claim(**values: Any) -> replay.Claim:
    given: dict[str, Any] = {
        "id": "x-1", "mode": "construct", "module": "", "specs": [], "text": "g", "prior": None, "status": "ok",
        "latency_us": 10.0, "default_us": 100.0, "parent_us": None, "margin": 0.05,
        "environment": {"environment_id": "e", "device": "real", "tvm": "0.25"},
    }  # fmt: skip
    return replay.Claim(**{**given, **values})


def trial(latency: float | None, **values: Any) -> replay.Trial:
    medians = [latency] * replay.PROCESSES if latency else []
    return replay.Trial("t", None, error=0.5, medians=medians, **values)


def report(what: replay.Claim, trials: list[replay.Trial], environment: str = "e") -> tuple[int, str]:
    console = Console(file=StringIO(), width=300, color_system=None)
    here = {"environment_id": environment, "device": "real", "tvm": "[b]0.26"}
    code = replay._report(what, trials, here, 0.05, console)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


def test_a_claim_that_does_not_hold_is_told_but_correct_counts() -> None:
    code, told = report(claim(), [trial(20.0), trial(19.5)])
    assert code == replay.CORRECT
    assert "L0 / L: 1.026 here, 10.000 claimed: the claim of more than 1.050 does not hold here" in told
    assert "environment: the same as the claim's" in told


def test_noise_is_no_answer() -> None:
    noisy = replay.Trial("t", "g", error=0.5, medians=[9.0, 10.0, 11.0])
    code, told = report(claim(), [trial(20.0), noisy])
    assert code == replay.CORRECT
    assert "too noisy here to judge the claim (20.0% between processes)" in told
    assert "holds" not in told


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ('{"repeat_ms":10.0}', 10.0),
        ('{"repeat_ms":20}', 20.0),
        ("{}", None),
        ("[]", None),
        ('{"repeat_ms":"long"}', None),
        ('{"repeat_ms":1e9}', None),
        ('{"repeat_ms":NaN}', None),
        ('{"repeat_ms":-1}', None),
        ("[" * 60_000, None),
    ],
)
def test_repeats_are_as_long_as_the_claims(settings: str, least: float | None) -> None:
    assert replay._repeat_ms({"settings": settings}) == least


def test_a_wrong_result_is_not_correct_however_fast() -> None:
    code, told = report(claim(), [trial(20.0), trial(1.0, gate="correct", reason="error is 3 times its bound")])
    assert code == replay.NOT_CORRECT
    assert "x-1: not correct here: fails correct: error is 3 times its bound" in told


def test_what_could_not_be_timed_is_said() -> None:
    code, told = report(claim(prior="a", parent_us=30.0), [trial(20.0), trial(None), trial(1.0)])
    assert code == replay.CORRECT
    assert "L_A / L: not measured here" in told


def test_a_row_that_failed_where_it_was_made_is_told() -> None:
    code, told = report(claim(status="stable", latency_us=None, mode="candidate"), [trial(20.0), trial(10.0)], "f")
    assert code == replay.CORRECT
    assert "its own run failed the gate stable" in told
    assert "L0 / L: 2.000 here\n" in told
    assert "tvm: 0.25 there, [b]0.26 here" in told
