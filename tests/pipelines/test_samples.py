"""samples/h200: what was measured on an NVIDIA H200 goes on becoming examples here, without one."""

import shutil
from pathlib import Path

import pytest

from littledragon.pipelines import driver, pairs, stages
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
    assert len(store.rows("anchors")) > 50
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
def test_all_of_it_becomes_a_dataset(sample: tuple[Store, Config], tmp_path: Path) -> None:
    store, config = sample
    driver.run(store, ["pairs", "teach", "check", "publish"], config, Serial())
    assert len(store.rows("examples")) > 200
