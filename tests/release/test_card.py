"""The card's head is what `datasets` reads, and its body escapes what comes from data."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from littledragon.release import card, dataset
from littledragon.schemas.tables import EXAMPLES

SCHEMA = dataset.published(EXAMPLES.arrow(), ("unit_id", "state", "reason", "detail"))
ENVIRONMENT = {"environment_id": "e0", "device": "real", "tvm": "0.25.0.post1", "processor": "a | b <c>\nd"}


def facts(**changes: Any) -> card.Facts:
    values: dict[str, Any] = {
        "environments": [ENVIRONMENT], "funnel": {"Workloads": [{"state": "ok", "reason": None, "rows": 3}]},
        "leakage": [], "teachers": [{"teacher": "facts", "model": "templates", "rows": 3}],
        "families": [{"family": "gemm", "construction": 2, "refinement": 1}], "margin_floor": 0.05, "stable_band": 0.05,
    }  # fmt: skip
    return card.Facts(**{**values, **changes})


def example(id: str, mode: str, split: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        pa.string(): "text", pa.float64(): 1.5, SCHEMA.field("messages").type: [{"role": "user", "content": "x"}],
        SCHEMA.field("spans").type: [{"start": 0, "end": 4, "kind": "structure"}],
    }  # fmt: skip
    return {f.name: values[f.type] for f in SCHEMA} | {
        "example_id": id,
        "mode": mode,
        "split": split,
        "parent_id": None,
    }


def release(folder: Path, ids: list[str], **changes: Any) -> list[dataset.Part]:
    parts = [
        dataset.write(
            folder, config, split, SCHEMA, [pa.Table.from_pylist([example(i, mode, split) for i in ids], SCHEMA)]
        )
        for config, mode, split in (("construction", "construct", "train"), ("refinement", "refine", "test"))
    ]
    tasks = dataset.tasks_schema()
    row = dict.fromkeys(tasks.names) | {"workload_id": "w-1", "split": "test"}
    parts.append(dataset.write(folder, "tasks", "test", tasks, [pa.Table.from_pylist([row], tasks)]))
    parts.append(dataset.write(folder, "tasks", "train", tasks, [tasks.empty_table()]))
    there = [part for part in parts if part]
    (folder / "README.md").write_text(card.render(there, facts(**changes)), encoding="utf-8")
    return there


def head(folder: Path) -> Any:
    return yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])


def test_the_head_names_configs_files_and_content(tmp_path: Path) -> None:
    parts = release(tmp_path, ["x-1", "x-2"])
    found = head(tmp_path)
    assert [config["config_name"] for config in found["configs"]] == ["construction", "refinement", "tasks"]
    assert [config.get("default", False) for config in found["configs"]] == [True, False, False]
    assert all((tmp_path / file["path"]).is_file() for config in found["configs"] for file in config["data_files"])
    info = found["dataset_info"][1]
    assert info["splits"] == [{"name": "test", "num_bytes": parts[1].arrow_bytes, "num_examples": 2}]
    assert {feature["name"] for feature in info["features"]} == set(SCHEMA.names)
    assert found["size_categories"] == ["n<1K"]


def test_other_rows_of_the_same_size_change_the_head(tmp_path: Path) -> None:
    release(tmp_path / "a", ["x-1"])
    release(tmp_path / "b", ["x-2"])
    first, second = head(tmp_path / "a"), head(tmp_path / "b")
    assert first["configs"] == second["configs"]
    assert first["dataset_info"][0]["description"] != second["dataset_info"][0]["description"]
    assert first["dataset_info"][2] == second["dataset_info"][2]


def test_the_body_says_every_column_and_what_is_empty(tmp_path: Path) -> None:
    release(tmp_path, ["x-1"])
    body = (tmp_path / "README.md").read_text(encoding="utf-8").split("---\n", 2)[2]
    for column in (c for c in EXAMPLES.columns if c.name in SCHEMA.names):
        assert column.about in body
    assert "construction validation, construction test, refinement train" in body
    assert "tasks train" in body
    assert "$" not in body
    assert "invented" not in body
    assert "| e0 | real | 0.25.0.post1 | a \\| b &lt;c> d |" in body


def test_a_simulated_device_is_said_aloud(tmp_path: Path) -> None:
    release(tmp_path, ["x-1"], environments=[{**ENVIRONMENT, "device": "simulated"}])
    assert "invented" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_teachers_are_named() -> None:
    text = card._teachers(
        [{"teacher": "facts", "model": "templates", "rows": 3}, {"teacher": "openai", "model": "m|x", "rows": 2}]
    )
    assert "3 were written by templates" in text
    assert "2 were written by the model m\\|x" in text


LOAD = """
import json, sys
from datasets import get_dataset_config_names, load_dataset
out = {name: {split: list(rows[rows.column_names[0]]) for split, rows in load_dataset(sys.argv[1], name).items()}
       for name in get_dataset_config_names(sys.argv[1])}
print(json.dumps(out))
"""


def test_datasets_loads_it_offline_and_sees_a_rewrite_in_place(tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}

    def load() -> Any:
        command = [sys.executable, "-c", LOAD, str(tmp_path / "release")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    for ids in (["x-1", "x-2"], ["x-3", "x-4"]):
        release(tmp_path / "release", ids)
        assert load() == {"construction": {"train": ids}, "refinement": {"test": ids}, "tasks": {"test": ["w-1"]}}
