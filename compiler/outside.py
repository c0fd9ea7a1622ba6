"""A user's own model as workloads: a PyTorch program (`torch.export`, .pt2), an ONNX file, or a Python file.

What is read becomes a Relax module and goes the way of every zoo block. Weights are arguments: their values make no
workload. A .pt2 or .onnx file is data, from anywhere, and is read as such: pickles in it are refused, shapes have to
be static. A .py file is a program and is run: it defines `export()`, which returns a Relax IRModule, a
`torch.export.ExportedProgram`, or a `torch.nn.Module` with a tuple of example inputs.
"""

import json
import os
import re
import runpy
import warnings
import zipfile
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import lowering
from littledragon.compiler._child import with_torch
from littledragon.compiler.zoo import Block, Case, Family, Model

Row = dict[str, Any]

SUFFIXES: Final = (".pt2", ".onnx", ".py")
MOST_BYTES: Final = 16 << 30
"""Of a file, and of what a .pt2 archive unpacks to."""
MOST_GRAPH_BYTES: Final = 256 << 20
"""Of a .pt2 archive's description of its graph."""
LICENCE: Final = "not stated"

_STATIC = re.compile(r"-?\d+")


def extract(path: str, target: dict[str, Any]) -> list[Row]:
    """The tasks of a user's model as rows of `extractions` (without `unit_id`), as `lowering.extract` gives them.

    Needs the extra `models` for PyTorch and ONNX. Runs in a child.
    """
    file = Path(path)
    key = re.sub(r"[^a-z0-9.]+", "-", file.stem.lower()).strip("-.") or "model"
    source = Block(f"own/{key}", "gemm", "model", Model(file.stem, file.name, LICENCE), _no_program, ())
    try:
        tasks = lowering.extract_tasks(relax_module(file), target)
    except Exception as error:  # whatever the importers raise, the file is at fault
        return [lowering.refused(source, Case("model", "", {}), error)]
    rows = []
    for function, found in tasks.items():
        rows += lowering.task_rows(source, Case(function, f"a part of {file.name}", {}), found, target)
    # What a task is follows from the task: a model is of no family.
    return [row | {"family": family(row), "operator": _operator(row["task"])} for row in rows]


def _operator(task: str | None) -> str:
    return "model" if task is None else re.sub(r"_\d+$", "", task.removeprefix("fused_"))


def family(row: Row) -> Family:
    """The family of a task of an outside model, by its name and its anchor's signature."""
    task, signature = row["task"] or "", row["signature"] or ""
    if re.search(r"conv|pool|resize|pixel_shuffle|grid_sample", task):
        return "vision"
    if re.search(r"attention", task):
        return "attention"
    if "*(" in signature or re.search(r"quantize|take|gather|scatter|embedding", task):
        return "quant_irregular"
    if re.search(r"matmul|dense|einsum|linear", task):
        return "gemm"
    return "norm_reduction"


def relax_module(file: Path) -> Any:
    """The Relax module of a file, batch normalisation and the like decomposed as for inference.

    Raises:
        ValueError: it is none of the three kinds, or holds what is refused.
        Exception: whatever the importers raise.
    """
    with_torch()
    from tvm import relax

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = {".pt2": _from_archive, ".onnx": _from_onnx, ".py": _from_script}[file.suffix](file)
    for name, function in list(module.functions.items()):
        if isinstance(function, relax.Function):
            module = relax.transform.DecomposeOpsForInference(str(name.name_hint))(module)
    return module


def _from_archive(file: Path) -> Any:
    import torch

    _require_plain(file)
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"  # else torch falls back to unpickling what it does not know
    return _from_program(torch.export.load(file))


def _from_program(program: Any) -> Any:
    from tvm.relax.frontend.torch import from_exported_program

    return from_exported_program(program, keep_params_as_input=True)


def _from_onnx(file: Path) -> Any:
    import onnx
    from tvm.relax.frontend.onnx import from_onnx

    # Weights beside the file are not read: they could lie anywhere, and only their shapes matter.
    model = onnx.load(file, load_external_data=False)
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = _word(value.name)
    for node in graph.node:
        node.input[:] = [_word(name) for name in node.input]
        node.output[:] = [_word(name) for name in node.output]
    return from_onnx(model, keep_params_in_input=True)


def _word(name: str) -> str:
    """A name of ONNX, which may be any text, as TVM's scripts can hold it; the empty name means no value."""
    word = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{word}" if word[:1].isdigit() else word


def _from_script(file: Path) -> Any:
    import tvm

    defined = runpy.run_path(str(file))
    if "export" not in defined:
        raise ValueError(f"{file.name} defines no function export()")
    made = defined["export"]()
    if isinstance(made, tvm.IRModule):
        return made
    import torch

    if isinstance(made, tuple):
        network, inputs = made
        made = torch.export.export(network.eval(), inputs)
    return _from_program(made)


def _require_plain(file: Path) -> None:
    """Look at an archive before torch does: sizes, and shapes, which torch would read by evaluating text.

    Raises:
        ValueError: it is no archive, is too large, or has shapes that are not static.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
                raise ValueError(f"{file.name} unpacks to more than {MOST_BYTES >> 30} GiB")
            for entry in archive.infolist():
                if entry.filename.endswith(".json") and entry.file_size <= MOST_GRAPH_BYTES:
                    _require_static(json.loads(archive.read(entry)), file.name)
                elif entry.filename.endswith(".json"):
                    raise ValueError(f"{file.name}: {entry.filename} is larger than {MOST_GRAPH_BYTES >> 20} MiB")
    except zipfile.BadZipFile:
        raise ValueError(f"{file.name} is no archive of torch.export.save") from None


def _require_static(value: Any, name: str) -> None:
    if isinstance(value, dict):
        text = value.get("expr_str")
        if text is not None and not _STATIC.fullmatch(str(text)):
            raise ValueError(f"{name} has dynamic shapes: export it with static ones")
        for inner in value.values():
            _require_static(inner, name)
    elif isinstance(value, list):
        for inner in value:
            _require_static(inner, name)


def _no_program(**_: Any) -> Any:
    raise NotImplementedError("an outside model is not built from a configuration")
