"""A user's own model as workloads: a PyTorch program (`torch.export`, .pt2), an ONNX file, or a Python file.

What is read becomes a Relax module and goes the way of every zoo block. Weights are arguments: their values make no
workload. A .pt2 or .onnx file is data, from anywhere, and is read as such: what PyTorch would unpickle or evaluate in
it is refused, so shapes have to be static, and constants tensors. A .py file is a program and is run: it defines
`export()`, which returns a Relax IRModule, a `torch.export.ExportedProgram`, or a `torch.nn.Module` with a tuple of
example inputs.
"""

import json
import os
import re
import runpy
import shutil
import tempfile
import warnings
import zipfile
from itertools import chain, count
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
_TENSORS: Final = ("weight_", "tensor_")
"""How the files of a .pt2 archive begin that hold tensors (torch/export/pt2_archive/constants.py)."""


def extract(path: str, target: dict[str, Any]) -> list[Row]:
    """The tasks of a user's model as rows of `extractions` (without `unit_id`), as `lowering.extract` gives them.

    Needs the extra `models` for PyTorch and ONNX. Runs in a child.
    """
    file = Path(path)
    name = _plain(file.stem)
    source = Block(f"own/{key(file)}", "gemm", "model", Model(name, _plain(file.name), LICENCE), _no_program, ())
    try:
        tasks = lowering.extract_tasks(relax_module(file), target)
    except Exception as error:  # whatever the importers raise, the file is at fault
        return [lowering.refused(source, Case("model", "", {}), error)]
    rows = []
    for function, found in tasks.items():
        rows += lowering.task_rows(source, Case(function, f"a part of {source.model.source}", {}), found, target)
    # What a task is follows from the task: a model is of no family.
    return [row | {"family": family(row), "operator": _operator(row["task"])} for row in rows]


def key(file: Path) -> str:
    """The name of a model in block ids, from its file's."""
    return re.sub(r"[^a-z0-9.]+", "-", file.stem.lower()).strip("-.") or "model"


def _plain(name: str) -> str:
    """A file's name as a description can hold it: in printable ASCII."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "_" for letter in name)


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
        ValueError: it holds what is refused, or no function.
        Exception: whatever the importers raise.
    """
    with_torch()
    from tvm import relax

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = {".pt2": _from_archive, ".onnx": _from_onnx, ".py": _from_script}[file.suffix](file)
    functions = [name for name, function in module.functions.items() if isinstance(function, relax.Function)]
    if not functions:
        raise ValueError(f"{file.name} has no Relax function")
    for name in functions:
        module = relax.transform.DecomposeOpsForInference(str(name.name_hint))(module)
    return module


def _from_archive(file: Path) -> Any:
    import torch

    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"  # else torch falls back to unpickling what it does not know
    with tempfile.TemporaryDirectory(prefix="dragon-model-") as folder:
        checked = Path(folder) / "model.pt2"
        _copy_plain(file, checked)
        return _from_program(torch.export.load(checked))


def _from_program(program: Any) -> Any:
    from tvm.relax.frontend.torch import from_exported_program

    return from_exported_program(program, keep_params_as_input=True)


def _from_onnx(file: Path) -> Any:
    import onnx
    from tvm.relax.frontend.onnx import from_onnx

    # Weights beside the file are not read: they could lie anywhere, and only their shapes matter.
    model = onnx.load(file, load_external_data=False)
    _name_plainly(model.graph, {"": ""})
    return from_onnx(model, keep_params_in_input=True)


def _name_plainly(graph: Any, words: dict[str, str]) -> None:
    """Names of ONNX may be any text; TVM's scripts hold words. One word a name, also in the graphs of branches."""

    def word(name: str) -> str:
        if name not in words:
            plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
            plain = f"_{plain}" if plain[:1].isdigit() else plain
            taken = set(words.values())
            words[name] = next(w for w in chain([plain], (f"{plain}_{n}" for n in count(1))) if w not in taken)
        return words[name]

    for value in (*graph.input, *graph.initializer, *graph.output, *graph.value_info):
        value.name = word(value.name)
    for node in graph.node:
        node.input[:] = [word(name) for name in node.input]
        node.output[:] = [word(name) for name in node.output]
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _name_plainly(inner, words)


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


def _copy_plain(file: Path, to: Path) -> None:
    """Copy an archive entry by entry once it has been looked at: what torch then reads is what was looked at here.

    Raises:
        ValueError: it is no archive, is too large, or holds what torch would unpickle or evaluate.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
                raise ValueError(f"{file.name} unpacks to more than {MOST_BYTES >> 30} GiB")
            for entry in archive.infolist():
                if entry.filename.endswith(".json") and entry.file_size > MOST_GRAPH_BYTES:
                    raise ValueError(f"{file.name}: {entry.filename} is larger than {MOST_GRAPH_BYTES >> 20} MiB")
                if entry.filename.endswith(".json"):
                    _require_plain(json.loads(archive.read(entry)), file.name)
            with zipfile.ZipFile(to, "w") as copy:
                for entry in archive.infolist():
                    with archive.open(entry) as source, copy.open(entry.filename, "w", force_zip64=True) as sink:
                        shutil.copyfileobj(source, sink, 1 << 20)
    except zipfile.BadZipFile:
        raise ValueError(f"{file.name} is no archive of torch.export.save") from None


def _require_plain(value: Any, name: str) -> None:
    """Raises: ValueError: shapes that torch would evaluate as text, or constants that it would unpickle."""
    if isinstance(value, dict):
        text, path = value.get("expr_str"), value.get("path_name")
        if text is not None and not _STATIC.fullmatch(str(text)):
            raise ValueError(f"{name} has dynamic shapes: export it with static ones")
        if path is not None and not str(path).startswith(_TENSORS):
            raise ValueError(f"{name} holds {path}, which is no tensor")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_plain(inner, name)


def _no_program(**_: Any) -> Any:
    raise NotImplementedError("an outside model is not built from a configuration")
