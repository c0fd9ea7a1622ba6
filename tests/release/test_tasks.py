"""The tasks of a release folder: what is well is read, all else is refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from littledragon.compiler import targets
from littledragon.release import dataset, tasks
from littledragon.release.published import Unreadable

REAL = Path(__file__).parents[1] / "golden" / "release"
MODULE, INPUTS = ((REAL / name).read_text(encoding="utf-8") for name in ("module.json", "inputs.json"))


def row(id: str, **values: Any) -> dict[str, Any]:
    """A row of `tasks`."""
    known = {
        "workload_id": id, "module": MODULE, "inputs": INPUTS, "target": json.dumps(targets.target("llvm")),
        "environment_id": "e", "default_us": 8.0, "anchor_us": 2.0, "noise_band": 0.01, "margin": 0.05,
        "split": "train",
    }  # fmt: skip
    return known | values


def write(folder: Path, rows: list[dict[str, Any]], name: str = "train-00000-of-00001") -> Path:
    """A release folder with these tasks in one file."""
    (folder / "tasks").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, dataset.tasks_schema()), folder / "tasks" / f"{name}.parquet")
    return folder


def test_tasks_come_as_they_were_written(tmp_path: Path) -> None:
    write(tmp_path, [row("w-1"), row("w-2", default_us=9.0)])
    write(tmp_path, [row("w-3", split="test")], "test-00000-of-00001")
    found = {task.task_id: task for task in tasks.tasks_of(tmp_path)}
    assert set(found) == {"w-1", "w-2", "w-3"}
    one = found["w-2"]
    assert (one.module, one.specs, one.target) == (MODULE, json.loads(INPUTS), targets.target("llvm"))
    assert (one.default_us, one.anchor_us, one.noise_band, one.margin) == (9.0, 2.0, 0.01, 0.05)
    assert [task.task_id for task in tasks.tasks_of(tmp_path, split="test")] == ["w-3"]


def test_many_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same order, each once, wherever a piece ends."""
    folder = write(tmp_path, [row(f"w-{number}") for number in range(40)])
    write(folder, [row("w-40", split="test")], "test-00000-of-00001")
    monkeypatch.setattr(tasks, "PIECE", 3 * len(MODULE))
    ids, place, pieces = [], [0, 0], 0
    while place is not None:
        piece = tasks._read(folder, place, None, None)
        ids += [one["workload_id"] for one in piece["rows"]]
        place, pieces = piece["place"], pieces + 1
    assert ids == ["w-40", *(f"w-{number}" for number in range(40))]
    assert pieces > 2


def test_one_environment_must_be_chosen(tmp_path: Path) -> None:
    folder = write(tmp_path, [row("w-1"), row("w-1", environment_id="f", default_us=7.0)])
    with pytest.raises(Unreadable, match=r"2 environments: choose one of \['e', 'f'\]"):
        tasks.tasks_of(folder)
    assert [task.default_us for task in tasks.tasks_of(folder, environment_id="f")] == [7.0]


def test_a_workload_twice_and_no_rows(tmp_path: Path) -> None:
    folder = write(tmp_path, [row("w-1"), row("w-1")])
    with pytest.raises(Unreadable, match="two rows of one workload"):
        tasks.tasks_of(folder)
    with pytest.raises(Unreadable, match="no such rows"):
        tasks.tasks_of(folder, split="test")
    with pytest.raises(Unreadable, match="choose train, validation, test"):
        tasks.tasks_of(folder, split="all")


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="not a release"):
        tasks.tasks_of(tmp_path / "nowhere")


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a null": ({"margin": None}, "margin is missing"),
    "no latency": ({"default_us": float("nan")}, "default_us is nan"),
    "a negative anchor": ({"anchor_us": -1.0}, "anchor_us is -1.0"),
    "a noise band": ({"noise_band": float("inf")}, "noise_band is inf"),
    "a margin": ({"margin": -0.1}, "margin is -0.1"),
    "a split": ({"split": "all\n"}, "split 'all' is none of"),
    "a target": ({"target": '{"kind":"c"}'}, "neither llvm nor cuda"),
    "a target that is no object": ({"target": "[1]"}, "neither llvm nor cuda"),
    "a target of an odd kind": ({"target": '{"kind":["llvm"]}'}, "neither llvm nor cuda"),
    "inputs": ({"inputs": "{"}, "not a list of kernel arguments"),
    "a module": ({"module": "x"}, "not what tvm.ir.save_json writes"),
    "a module that calls out": (
        {"module": MODULE.replace('"nodes":[', '"nodes":[{"type":"ir.Op","data":"tirx.call_extern"},')},
        "is no arithmetic",
    ),
    "a huge module": ({"module": "x" * (9 << 20)}, "'module' holds 9437184 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_rows_are_refused(tmp_path: Path, name: str) -> None:
    change, words = HOSTILE[name]
    assert row("w-2", **change) != row("w-2")
    folder = write(tmp_path, [row("w-1"), row("w-2", **change)])
    with pytest.raises(Unreadable) as caught:
        tasks._read(folder, [0, 0], None, None)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda table: table.drop_columns(["inputs"]), "has 0 columns 'inputs'"),
        (lambda table: table.set_column(4, "module", pa.array([1])), "column 'module' is int64"),
    ],
)
def test_other_columns_are_refused(tmp_path: Path, spoil: Callable[[pa.Table], pa.Table], words: str) -> None:
    table = pa.Table.from_pylist([row("w-1")], dataset.tasks_schema())
    assert table.column_names[4] == "module"
    (tmp_path / "tasks").mkdir()
    pq.write_table(spoil(table), tmp_path / "tasks" / "train.parquet")
    with pytest.raises(Unreadable, match=words):
        tasks.tasks_of(tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, [row(f"w-{number}") for number in range(50)])
    (path,) = (folder / "tasks").iterdir()
    whole = path.read_bytes()
    refused = 0
    for place in range(4, len(whole) - 8, max(1, len(whole) // 60)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            tasks._read(folder, [0, 0], None, None)
        except Unreadable:
            refused += 1
    assert refused > 5
