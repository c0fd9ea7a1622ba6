"""samples/h200: what was measured on an NVIDIA H200 goes on becoming examples here, without one."""

import runpy
import shutil
from pathlib import Path

import pytest

from littledragon.pipelines import driver, pairs, search, stages, verify
from littledragon.pipelines.config import Config, load
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.executor import Serial
from littledragon.pipelines.store import Store

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture
def sample(tmp_path: Path) -> tuple[Store, Config]:
    shutil.copytree(SAMPLES / "h200", tmp_path / "work")
    return Store.open(tmp_path / "work"), load("gpu", SAMPLES / "h200.yaml")


def test_its_stages_are_current(sample: tuple[Store, Config]) -> None:
    """Once a stage's version is raised they are not: `samples/make_h200_store.py samples/h200` names its units anew."""
    store, config = sample
    for name in ("workloads", "search", "verify"):
        assert store.manifest(name)
        driver.require_current(store, stages.stage(name), config, elsewhere=True)
    anchors = {row["workload_id"] for row in store.rows("anchors")}
    assert len(anchors) > 50
    assert all(chain.ended for chain in search.chains(store, config, search.measured_in(store, config)))
    traced = {row["candidate_id"] for row in store.rows("traces")}
    waiting = [unit.inputs for unit in verify.as_measured(store, config) if unit.inputs["workload_id"] not in anchors]
    assert waiting, "some can go on to be verified where there is such a GPU"
    assert {id for one in waiting for role, id in one["chosen"] if role != "default"} <= traced
    (environment,) = store.rows("environments")[:1]
    assert environment["processor"].startswith("NVIDIA H200")
    for anchor in store.rows("anchors"):
        assert anchor["state"] == "ok"
        assert anchor["anchor_us"] <= anchor["default_us"]


def test_what_is_damaged_or_lost_is_said(sample: tuple[Store, Config]) -> None:
    """Nothing here can measure it again."""
    store, config = sample
    verify, planned = store.path / "verify", len(store.manifest("verify") or ())
    kept = {path: path.read_bytes() for path in verify.glob("*.parquet")}
    for path in verify.glob("compact-*.parquet"):
        path.unlink()
    with pytest.raises(UserError, match=f"of {planned} units of stage verify none has ended"):
        driver.run(Store.open(store.path), ["pairs"], config, Serial())
    assert Store.open(store.path).manifest("pairs") is None
    for path, content in kept.items():
        path.write_bytes(content)
    (verify / "manifest.parquet").write_bytes((store.path / "search" / "manifest.parquet").read_bytes())
    with pytest.raises(UserError, match="it is of stage 'search'"):
        driver.run(Store.open(store.path), ["pairs"], config, Serial())


def test_h200_schedules_become_examples_here(sample: tuple[Store, Config], monkeypatch: pytest.MonkeyPatch) -> None:
    store, config = sample
    units = pairs.plan(store, config)
    assert len(units) == len(store.rows("anchors"))
    monkeypatch.setattr(pairs, "plan", lambda store, config: units[:2])
    driver.run(store, ["pairs", "teach", "check"], config, Serial())
    modes = {row["mode"] for row in store.rows("selections", "state = 'ok'")}
    assert modes == {"construct", "refine"}
    assert "cache_read" in "".join(row["tsel"] for row in store.rows("traces"))
    checks = store.rows("outcomes", "stage = 'check'")
    assert checks
    assert {row["state"] for row in checks} == {"ok"}


@pytest.mark.slow
def test_nothing_of_it_is_lost_when_a_stage_gets_another_version(
    sample: tuple[Store, Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, config = sample
    make = runpy.run_path(str(SAMPLES / "make_h200_store.py"))["main"]
    monkeypatch.setitem(make.__globals__, "SAMPLES", tmp_path)
    shutil.copy(SAMPLES / "h200.yaml", tmp_path)
    monkeypatch.setattr(search, "VERSION", search.VERSION + 1)
    make([old.path, old.path], 1000, set())
    new = Store.open(tmp_path / "h200")
    for table in ("candidates", "traces", "verdicts", "anchors", "environments"):
        rows = [
            sorted(str({name: value for name, value in row.items() if name != "unit_id"}) for row in store.rows(table))
            for store in (Store.open(SAMPLES / "h200"), new)
        ]
        assert rows[0] == rows[1], table
    assert all(chain.ended for chain in search.chains(new, config, search.measured_in(new, config)))
    assert "bytes" in capsys.readouterr().out


@pytest.mark.slow
def test_all_of_it_becomes_a_dataset(sample: tuple[Store, Config], tmp_path: Path) -> None:
    store, config = sample
    driver.run(store, ["pairs", "teach", "check", "publish"], config, Serial())
    assert len(store.rows("examples")) > 200
