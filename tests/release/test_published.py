"""Rows of a folder from strangers: what is well is read, all else is refused in one line."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from littledragon.compiler import children
from littledragon.compiler.children import ChildError
from littledragon.release import published
from littledragon.release.published import Unreadable
from littledragon.schemas import tsel
from littledragon.schemas.tables import MESSAGES

REAL = Path(__file__).parents[1] / "golden" / "release"
ID = "x-0123456789abcdef"
Rows = dict[str, dict[str, Any]]


def rows(tables: dict[str, list[dict[str, Any]]]) -> Rows:
    """One row of each file, by the file's path."""
    label, trace = tables["labels"][1], tables["traces"][1]
    roles = ("system", "user", "assistant", "user")
    return {
        "refinement/train-0.parquet": {
            "example_id": ID, "mode": "refine", "workload_id": "w-1", "environment_id": "e",
            "completion": label["graph"], "completion_json": tsel.convert(label["graph"], "json"),
            "messages": [{"role": r, "content": trace["tsel"] if r == "assistant" else "x"} for r in roles],
            "latency_us": 1.0, "parent_us": 2.0, "default_us": 3.0,
        },
        "tasks/train-0.parquet": {
            "workload_id": "w-1", "environment_id": "e", "module": tables["workloads"][0]["module"],
            "inputs": tables["workloads"][0]["inputs"], "margin": 0.05,
        },
        "metadata/environments.parquet": {**tables["environments"][0], "environment_id": "e"},
    }  # fmt: skip


def write(folder: Path, files: Rows, schemas: dict[str, pa.Schema] | None = None) -> str:
    for name, row in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        other = {**row, **{key: "other" for key in row if key in ("example_id", "workload_id", "environment_id")}}
        pq.write_table(pa.Table.from_pylist([other, row], (schemas or {}).get(name)), folder / name)
    return str(folder)


def test_a_row_is_found_with_its_task_and_environment(tmp_path: Path, tables: Any) -> None:
    files = rows(tables)
    found = published.row(write(tmp_path, files), ID)
    assert list(found) == ["example", "task", "environment"]
    assert found["example"] == files["refinement/train-0.parquet"]
    assert found["task"] == files["tasks/train-0.parquet"]
    assert found["environment"] == files["metadata/environments.parquet"]


def change(name: str, **values: Any) -> Callable[[Rows], None]:
    return lambda files: files[name].update(values)


EXAMPLE, TASK, ENVIRONMENT = "refinement/train-0.parquet", "tasks/train-0.parquet", "metadata/environments.parquet"


def turns(*changes: Any) -> list[Any]:
    """The messages of a refinement, the nth (from 1) something else."""
    messages: list[Any] = [{"role": r, "content": "x"} for r in ("system", "user", "assistant", "user")]
    for number, message in zip(changes[::2], changes[1::2], strict=True):
        messages[number - 1] = message
    return messages


def edit_module(old: str, new: str) -> Callable[[Rows], None]:
    def apply(files: Rows) -> None:
        text = files[TASK]["module"]
        assert old in text
        files[TASK]["module"] = text.replace(old, new)

    return apply


def add_node(**node: Any) -> Callable[[Rows], None]:
    def apply(files: Rows) -> None:
        module = json.loads(files[TASK]["module"])
        module["nodes"].append(node)
        files[TASK]["module"] = json.dumps(module)

    return apply


HOSTILE = {
    "bytes": (change(EXAMPLE, completion=b"x"), "column 'completion' is binary"),
    "a number for a text": (change(TASK, module=1), "column 'module' is int64"),
    "a text for a number": (change(EXAMPLE, latency_us="1"), "column 'latency_us' is string"),
    "a column less": (lambda files: files[TASK].pop("inputs"), "has 0 columns 'inputs'"),
    "other messages": (change(EXAMPLE, messages=[["x"]]), "column 'messages' is list"),
    "a huge completion": (change(EXAMPLE, completion="x" * (2 << 20)), "'completion' holds 2097152 bytes"),
    "a huge completion_json": (change(EXAMPLE, completion_json="x" * (2 << 20)), "'completion_json' holds 2097152 by"),
    "a completion_json of bytes": (change(EXAMPLE, completion_json=b"x"), "column 'completion_json' is binary"),
    "a completion_json that is none": (change(EXAMPLE, completion_json="<graph/>"), "its completion_json is no graph"),
    "another graph in completion_json": (
        lambda files: files[EXAMPLE].update(completion_json=files[EXAMPLE]["completion_json"].replace("load", "LOAD")),
        "its completion_json is not the graph of its completion",
    ),
    "another type in completion_json": (
        lambda files: files[EXAMPLE].update(
            completion_json=files[EXAMPLE]["completion_json"].replace(
                '"ReverseComputeAt",', '"ReverseComputeAt","a":[true],'
            )
        ),
        "its completion_json is not the graph of its completion",
    ),
    "another schedule in completion_json": (
        change(EXAMPLE, completion_json=(REAL / "payload_slow.txt").read_text()),
        "its completion_json is not the graph of its completion",
    ),
    "a huge module": (change(TASK, module="x" * (9 << 20)), "'module' holds 9437184 bytes"),
    "a huge message": (
        change(EXAMPLE, messages=[{"role": "user", "content": "x" * (2 << 20)}] * 4),
        "messages of up to 2097152 bytes",
    ),
    "many messages": (change(EXAMPLE, messages=[{"role": "user", "content": "x"}] * 40), "holds 40 messages"),
    "two messages": (change(EXAMPLE, messages=[{"role": "user", "content": "x"}] * 2), "without a prior graph"),
    "no message": (change(EXAMPLE, messages=turns(3, None)), "message 3 of 4: it is missing"),
    "no message but nulls": (change(EXAMPLE, messages=turns(1, None, 2, None, 3, None)), "message 1 of 4: it is"),
    "a message without content": (
        change(EXAMPLE, messages=turns(3, {"role": "assistant", "content": None})),
        "message 3 of 4: content is missing",
    ),
    "a message without a role": (
        change(EXAMPLE, messages=turns(2, {"role": None, "content": "x"})),
        "message 2 of 4: role is missing",
    ),
    "a message of nothing": (
        change(EXAMPLE, messages=turns(4, {"role": None, "content": None})),
        "message 4 of 4: role, content is missing",
    ),
    "a graph A that nobody wrote": (
        change(EXAMPLE, messages=turns(3, {"role": "user\n", "content": "x"})),
        "its messages are of system, user, user , user, and must be of system, user, assistant, user",
    ),
    "a construction with graph A": (change(EXAMPLE, mode="construct"), "and must be of system, user"),
    "no messages": (change(EXAMPLE, mode="construct", messages=None), "column 'messages' is null"),
    "no parent": (change(EXAMPLE, parent_us=float("nan")), "without a prior graph and its latency"),
    "no latency": (change(EXAMPLE, latency_us=float("nan")), "latency_us is nan, which is no latency"),
    "a negative latency": (change(EXAMPLE, default_us=-1.0), "default_us is -1.0"),
    "a null": (change(TASK, margin=None), "column 'margin' is null"),
    "a mode": (change(EXAMPLE, mode="guess\n"), "mode 'guess' is neither"),
    "a margin": (change(TASK, margin=float("inf")), "margin is inf"),
    "a target": (change(ENVIRONMENT, target='{"kind":"c"}'), "neither llvm nor cuda"),
    "a target that is no JSON": (change(ENVIRONMENT, target="[" * 5000), "neither llvm nor cuda"),
    "inputs that are no JSON": (change(TASK, inputs="{"), "not a list of kernel arguments"),
    "deep inputs": (change(TASK, inputs="[" * 9999), "not a list of kernel arguments"),
    "inputs of an unbounded size": (
        change(TASK, inputs=(REAL / "inputs.json").read_text().replace("128", "1048576")),
        "not a list of kernel arguments",
    ),
    "an extent that is no integer": (
        change(TASK, inputs=(REAL / "inputs.json").read_text().replace("128", "true")),
        "not a list of kernel arguments",
    ),
    "a module that is no JSON": (change(TASK, module="x"), "not what tvm.ir.save_json writes"),
    "a module that calls out": (add_node(type="ir.Op", data="tirx.call_extern"), "calls tirx.call_extern"),
    "a module that calls a packed function": (add_node(type="ir.Op", data="tirx.tvm_call_packed"), "is no arithmetic"),
    "a module with a second function": (add_node(type="tirx.PrimFunc", data={}), "other functions"),
    "a module with an external function": (add_node(type="relax.expr.ExternFunc", data={}), "other functions"),
    "a module that names another function": (add_node(type="ir.GlobalVar", data={}), "other functions"),
    "a module that imports code": (add_node(type="ffi.String", data="pragma_import_c"), "may import code"),
    "no task": (change(TASK, workload_id="w-2"), "has no row of workload w-1"),
    "no environment": (change(ENVIRONMENT, environment_id="f"), "has no row of environment e"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_rows_are_refused(tmp_path: Path, tables: Any, name: str) -> None:
    files = rows(tables)
    spoil, words = HOSTILE[name]
    spoil(files)  # type: ignore[operator]
    with pytest.raises(Unreadable) as caught:
        published.row(write(tmp_path, files), ID)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_arithmetic_is_allowed(tmp_path: Path, tables: Any) -> None:
    files = rows(tables)
    add_node(type="ir.Op", data="tirx.exp")(files)
    assert published.row(write(tmp_path, files), ID)


def test_messages_are_counted_by_the_row(tmp_path: Path) -> None:
    def written(count: int, rows: int) -> Path:
        messages = [{"role": "user", "content": "x"}] * count
        table = pa.table(
            {"example_id": [f"x-{n}" for n in range(rows)], "messages": pa.array([messages] * rows, MESSAGES)}
        )
        pq.write_table(table, tmp_path / "file.parquet")
        return tmp_path / "file.parquet"

    columns = ("example_id", "messages")
    found = [row for rows in published.batches(written(4, 100), columns, 3) for row in rows]
    assert [row["example_id"] for row in found] == [f"x-{n}" for n in range(3, 100)]
    with pytest.raises(Unreadable, match="holds 17 messages"):
        list(published.batches(written(17, 1), columns, 0))


def test_files_that_are_none(tmp_path: Path, tables: Any) -> None:
    folder = write(tmp_path, rows(tables))
    path = tmp_path / EXAMPLE
    whole = path.read_bytes()
    for cut in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(Unreadable, match="not a readable Parquet file"):
            published.row(folder, ID)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Unreadable, match="not a file"):
        published.row(folder, ID)


def test_flipped_bytes_never_end_in_another_error(tmp_path: Path, tables: Any) -> None:
    folder = write(tmp_path, rows(tables))
    path = tmp_path / EXAMPLE
    whole = path.read_bytes()
    expected = published.row(folder, ID)
    refused = 0
    for place in range(4, len(whole), max(1, len(whole) // 300)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            assert set(published.row(folder, ID)) == set(expected)
        except Unreadable:
            refused += 1
    assert refused > 50


@pytest.mark.slow
def test_a_folder_that_does_not_fit_into_memory(tmp_path: Path, tables: Any) -> None:
    """A small file whose one column unfolds to five times the limit, read where `replay` reads it: in a child."""
    files = rows(tables)
    folder = write(tmp_path, {name: files[name] for name in (TASK, ENVIRONMENT)})
    table = pa.Table.from_pylist([files[EXAMPLE]])
    long = pa.array(["x" * (1 << 20)])
    many = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), long)
    columns = {
        name: pa.chunked_array([table.column(name).chunk(0)] * 1).take([0] * 20_000) for name in table.column_names
    }
    columns["completion"] = pa.chunked_array([many])
    (tmp_path / "refinement").mkdir()
    pq.write_table(pa.table(columns), tmp_path / EXAMPLE, store_schema=False, row_group_size=20_000)
    assert (tmp_path / EXAMPLE).stat().st_size < 40 << 20
    with pytest.raises(ChildError) as caught:
        children.once("littledragon.release.published:read", deadline_s=60, folder=folder, id=ID)
    assert caught.value.kind == "raised"
    assert "more than fits" in caught.value.detail or "holds" in caught.value.detail
