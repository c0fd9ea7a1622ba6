"""From a filled work directory to a release folder that a clean process loads."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from littledragon.pipelines import publish
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.stage import Result
from littledragon.pipelines.store import Store
from littledragon.release import dataset

Tables = dict[str, list[dict[str, Any]]]
Fill = Callable[[Path, Tables], Store]
CONFIG = Config(device="simulated")
OBSERVED = {"attempt": 1, "started_at": "2026-01-01T00:00:00Z", "wall_s": 0.1, "host": "h"}


def run(store: Store, finish: bool = True) -> None:
    """What the driver does with the stage; payloads and rows cross as JSON."""
    units = publish.plan(store, CONFIG)
    store.plan(publish.NAME, units)
    done = store.complete(publish.NAME)
    for unit in units:
        if unit.id not in done:
            payload = json.loads(json.dumps(publish.load(store, [unit], CONFIG)[0]))
            store.commit(unit, publish.work(payload, CONFIG), OBSERVED)
    if finish:
        publish.finish(store, CONFIG)


def test_units_are_modes_and_splits(tmp_path: Path, tables: Tables, fill: Fill) -> None:
    units = publish.plan(fill(tmp_path / "w", tables), CONFIG)
    found = {(u.inputs["mode"], u.inputs["split"]): len(u.inputs["labels"]) for u in units}
    assert found == {(m, s): 1 for m in ("construct", "refine") for s in ("train", "test", "embargo")}


def test_only_labels_that_passed_are_planned(tmp_path: Path, tables: Tables, fill: Fill) -> None:
    tables["checks"][0] |= {"state": "rejected", "reason": "misquoted"}
    tables["labels"][1] |= {"state": "failed", "reason": None, "graph": None}
    planned = [id for unit in publish.plan(fill(tmp_path / "w", tables), CONFIG) for id in unit.inputs["labels"]]
    assert sorted(planned) == sorted(row["label_id"] for row in tables["labels"][2:])


def test_a_unit_changes_with_any_row_behind_it(tmp_path: Path, tables: Tables, fill: Fill) -> None:
    before = {u.id for u in publish.plan(fill(tmp_path / "w", tables), CONFIG)}
    assert {u.id for u in publish.plan(fill(tmp_path / "again", tables), CONFIG)} == before
    tables["anchors"][0]["default_us"] = 99.0
    assert not before & {u.id for u in publish.plan(fill(tmp_path / "w", tables), CONFIG)}


def test_labels_are_sliced(tmp_path: Path, tables: Tables, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    for workload in tables["workloads"]:
        workload["split"] = "train"
    store = fill(tmp_path / "w", tables)
    monkeypatch.setattr(publish, "LABELS", 2)
    assert [len(u.inputs["labels"]) for u in publish.plan(store, CONFIG)] == [2, 1, 2, 1]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory, built_tables: Tables, fill: Fill) -> Store:
    """A work directory with its release; not to be changed."""
    store = fill(tmp_path_factory.mktemp("released") / "w", built_tables)
    run(store)
    return store


def test_the_release_is_complete_and_checks_out(released: Store, tables: Tables) -> None:
    store, folder = released, released.path / "release"
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) == sorted(
        ["LICENSE", "README.md", "SHA256SUMS"]
        + [
            f"{c}/{s}-00000-of-00001.parquet"
            for c in ("construction", "refinement", "tasks")
            for s in ("test", "train")
        ]
        + [f"metadata/{n}.parquet" for n in ("checks", "environments", "funnel", "leakage", "verdicts", "workloads")]
    )
    assert dataset.broken(folder) == []
    assert (folder / "LICENSE").read_text().strip().startswith("Apache License")
    (row,) = pq.read_table(folder / "refinement" / "train-00000-of-00001.parquet").to_pylist()
    stored = {r["example_id"]: r for r in store.rows("examples")}
    assert {k: v for k, v in stored[row["example_id"]].items() if k in row} == row
    assert not {"unit_id", "state", "reason", "detail"} & set(row)
    (task,) = pq.read_table(folder / "tasks" / "test-00000-of-00001.parquet").to_pylist()
    assert list(task) == list(dataset.TASKS)
    assert (task["default_us"], task["margin"], json.loads(task["target"])["kind"]) == (100.0, 0.05, "llvm")
    assert task["module"] == tables["workloads"][1]["module"]
    published = [pq.read_table(p).column("workload_id").to_pylist() for p in folder.glob("[crt]*/*.parquet")]
    assert tables["workloads"][2]["workload_id"] not in {id for ids in published for id in ids}
    assert len(pq.read_table(folder / "metadata" / "workloads.parquet")) == 3
    assert "observed" not in pq.read_schema(folder / "metadata" / "verdicts.parquet").names
    body = (folder / "README.md").read_text()
    assert "Candidates that passed each gate" in body
    assert "test | train | 1 | 0 | 0 | 0 | 0 | 4 | 4 |" in body


def test_the_prompt_speaks_of_the_environment_of_the_measurements(released: Store) -> None:
    """Not of the machine or the target of whoever publishes."""
    elsewhere = publish.plan(released, replace(CONFIG, target="cuda"))
    assert [unit.id for unit in elsewhere] == released.manifest("publish")
    for row in released.rows("examples"):
        assert "Apache TVM 0.25.0.post1, target llvm (a generic CPU), 2 cores." in row["messages"][1]["content"]


def test_a_failed_unit_stops_the_release(tmp_path: Path, tables: Tables, fill: Fill) -> None:
    store = fill(tmp_path / "w", tables)
    store.plan(publish.NAME, publish.plan(store, CONFIG))
    store.commit(publish.plan(store, CONFIG)[0], Result(state="failed", reason="raised", detail="KeyError"), OBSERVED)
    with pytest.raises(UserError, match=r"1 units failed, so nothing was released: .*KeyError"):
        run(store)
    assert not (tmp_path / "w" / "release").exists()


def test_embargoed_rows_are_in_the_table_with_their_reason(released: Store) -> None:
    rejected = released.rows("examples", "state = 'rejected'")
    assert [(r["mode"], r["reason"]) for r in sorted(rejected, key=lambda r: r["mode"])] == [
        ("construct", "embargo"),
        ("refine", "embargo"),
    ]


@pytest.mark.slow
def test_another_run_gives_the_same_bytes(released: Store, tmp_path: Path, tables: Tables, fill: Fill) -> None:
    store = fill(tmp_path / "w", tables)
    run(store)
    sums = (tmp_path / "w" / "release" / "SHA256SUMS").read_text()
    assert sums == (released.path / "release" / "SHA256SUMS").read_text()
    publish.finish(store, CONFIG)
    assert (tmp_path / "w" / "release" / "SHA256SUMS").read_text() == sums


@pytest.mark.parametrize(
    ("table", "row", "change", "words"),
    [
        ("selections", 0, {"ratio": 1.01}, "ratio - 1 > margin"),
        ("workloads", 1, {"extents": [160, 160, 160]}, "too near to train"),
        ("verdicts", 1, {"latency_us": -1.0}, "latency_us"),
    ],
)
def test_a_broken_rule_stops_the_release_and_keeps_the_old_one(
    released: Store,
    tmp_path: Path,
    tables: Tables,
    fill: Fill,
    table: str,
    row: int,
    change: dict[str, Any],
    words: str,
) -> None:
    tables[table][row] |= change
    store = fill(tmp_path / "w", tables)
    shutil.copytree(released.path / "release", tmp_path / "w" / "release")
    with pytest.raises(UserError, match=words) as caught:
        run(store)
    assert "\n" not in str(caught.value)
    assert dataset.broken(tmp_path / "w" / "release") == []
    assert not list((tmp_path / "w").glob(".release*"))


def test_nothing_to_publish_is_said(tmp_path: Path, tables: Tables, fill: Fill) -> None:
    for check in tables["checks"]:
        check |= {"state": "rejected", "reason": "misquoted"}
    with pytest.raises(UserError, match="no example"):
        run(fill(tmp_path / "w", tables))
    assert not (tmp_path / "w" / "release").exists()


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_release(
    released: Store, tmp_path: Path, tables: Tables, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fill(tmp_path / "w", tables)
    shutil.copytree(released.path / "release", tmp_path / "w" / "release")

    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dataset, "seal", full)
    with pytest.raises(UserError, match="the disk is full"):
        run(store)
    assert dataset.broken(tmp_path / "w" / "release") == []
    assert not list((tmp_path / "w").glob(".release*"))


LOAD = """
import sys
from datasets import get_dataset_config_names, load_dataset
for name in sorted(get_dataset_config_names(sys.argv[1])):
    print(name, {split: rows.num_rows for split, rows in sorted(load_dataset(sys.argv[1], name).items())})
print([m["role"] for m in load_dataset(sys.argv[1], "refinement")["train"][0]["messages"]])
"""


def test_a_clean_process_loads_every_configuration_offline(released: Store, tmp_path: Path) -> None:
    folder = released.path / "release"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", LOAD, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "construction {'test': 1, 'train': 1}"
    assert "metadata_workloads {'train': 3}" in done.stdout
    assert done.stdout.splitlines()[-1] == "['system', 'user', 'assistant', 'user']"
    head = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    assert {c["config_name"] for c in head["configs"]} == {i["config_name"] for i in head["dataset_info"]}


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_release_that_is_no_folder_is_left_alone(
    tmp_path: Path, built_tables: Tables, fill: Fill, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fill(tmp_path / "w", built_tables)
    run(store, finish=False)
    final, other = publish.release_folder(store), tmp_path / "other"
    other.mkdir()
    if kind == "link":
        final.symlink_to(other)
    else:
        final.write_text("mine")
    monkeypatch.setattr(publish, "_frames", lambda store: pytest.fail("the refusal comes before the work"))
    words = "a symbolic link and not a folder" if kind == "link" else "a file and not a folder"
    with pytest.raises(UserError, match=f"{words}, so nothing was released: mend this and run") as caught:
        publish.finish(store, CONFIG)
    assert str(caught.value).startswith(f"{final}: ")
    assert list(other.iterdir()) == []
    monkeypatch.undo()
    final.unlink()
    publish.finish(store, CONFIG)
    assert dataset.broken(final) == []


@pytest.mark.slow
def test_two_stores_of_the_same_rows_give_the_same_release(tmp_path: Path, built_tables: Tables, fill: Fill) -> None:
    """However the rows come out of the store: in one table, or chunked and in buffers that hold more."""
    folders = []
    for name in ("whole", "chunked"):
        store = fill(tmp_path / name, built_tables)
        run(store, finish=False)
        if name == "chunked":
            plain = store.sql

            def sql(query: str, _plain: Any = plain, **values: Any) -> Any:
                table = _plain(query, **values)
                longer = pa.concat_tables([table, table]).combine_chunks().slice(table.num_rows)
                return pa.concat_tables([longer.slice(i, 1) for i in range(table.num_rows)] or [table])

            store.sql = sql  # type: ignore[method-assign]
        publish.finish(store, CONFIG)
        folders.append(publish.release_folder(store))
    files = [{p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in folders]
    assert files[0] == files[1]
