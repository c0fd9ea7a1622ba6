"""A user's own models: what each kind gives, and what is refused."""

import json
import os
import pickle
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from littledragon.compiler import children, outside, targets
from littledragon.schemas.tables import EXTRACTIONS

LLVM = targets.target("llvm")
NETWORKS = Path(__file__).parent / "networks.py"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """resnet18.pt2, block.pt2 and small.onnx, each exported by PyTorch in a process of its own."""
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, str(NETWORKS), str(folder)], check=True, timeout=300, capture_output=True)
    return folder


def extract(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = children.worker("test-outside").call(
        "littledragon.compiler.outside:extract", deadline_s=200, path=str(path), target=LLVM
    )
    for row in rows:
        jsonschema.validate(row, EXTRACTIONS.json_schema())
    return rows


def kept(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(row["family"] for row in rows if row["state"] == "ok")


@pytest.mark.slow
def test_a_resnet(files: Path) -> None:
    """ResNet-18 has eleven different convolutions, one pooling, one mean and one product; no CPU rules for its sums."""
    rows = extract(files / "resnet18.pt2")
    assert Counter(row["reason"] for row in rows)["unschedulable"] == 4
    assert kept(rows) == {"vision": 12, "norm_reduction": 1, "gemm": 1}
    stem = next(row for row in rows if row["flops"] and "conv2d" in row["task"])
    assert stem["block_id"] == "own/resnet18" and stem["source"] == "resnet18.pt2"
    assert stem["description"].startswith(
        "From resnet18: a part of resnet18.pt2. Takes input (float32, 1 x 3 x 224 x 224)"
    )
    convolutions = [row for row in rows if "conv2d" in row["operator"]]
    # Multiply-adds of ResNet-18 at 224: 1.81 G, of which the eleven different convolutions are a part.
    assert 0.9e9 < sum(row["flops"] for row in convolutions) < 2 * 1.82e9


@pytest.mark.slow
def test_a_transformer_block(files: Path) -> None:
    rows = extract(files / "block.pt2")
    found = kept(rows)
    assert found["gemm"] >= 5 and found["norm_reduction"] >= 2
    assert {"copies, casts or moves elements only"} <= {row["detail"] for row in rows if row["state"] != "ok"}


def test_an_onnx_file(files: Path) -> None:
    rows = extract(files / "small.onnx")
    assert kept(rows) == {"vision": 2, "gemm": 1}
    assert any(row["task"] == "softmax" and "fewer than 4096" in row["detail"] for row in rows)


def test_a_python_file(tmp_path: Path) -> None:
    (tmp_path / "My net.py").write_text(
        "import torch\ndef export():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU()), (torch.randn(32, 64),)\n",
        encoding="utf-8",
    )
    (row,) = extract(tmp_path / "My net.py")
    assert (row["block_id"], row["state"], row["family"]) == ("own/my-net", "ok", "gemm")


def test_what_is_no_model_is_one_rejected_row(files: Path, tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "raises.py").write_text("def export():\n    raise OSError('no such thing')\n", encoding="utf-8")
    (tmp_path / "text.pt2").write_text("not an archive", encoding="utf-8")
    (tmp_path / "cut.onnx").write_bytes((files / "small.onnx").read_bytes()[:2000])
    (tmp_path / "cut.pt2").write_bytes((files / "block.pt2").read_bytes()[:2000])
    for name, words in {
        "none.py": "defines no function export()",
        "raises.py": "no such thing",
        "text.pt2": "no archive of torch.export.save",
        "cut.pt2": "no archive of torch.export.save",
        "cut.onnx": "",
    }.items():
        (row,) = extract(tmp_path / name)
        assert (row["state"], row["reason"]) == ("rejected", "lowering_failed"), name
        assert words in row["detail"] and "\n" not in row["detail"]


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("part", ["data/sample_inputs/model.pt", "data/weights/weight_0"])
def test_a_pickle_in_an_archive_is_not_run(files: Path, tmp_path: Path, part: str) -> None:
    import torch

    evil, broken = tmp_path / "evil.pt2", tmp_path / "ran"
    bomb = tmp_path / "bomb.pt"
    torch.save(Bomb(broken), bomb)
    with zipfile.ZipFile(files / "block.pt2") as whole, zipfile.ZipFile(evil, "w") as changed:
        names = [entry.filename for entry in whole.infolist()]
        assert any(name.endswith(part) for name in names)
        for name in names:
            content = bomb.read_bytes() if name.endswith(part) else whole.read(name)
            if name.endswith("model_weights_config.json"):
                content = content.replace(b'"use_pickle": false', b'"use_pickle": true')
            changed.writestr(name, content)
    rows = extract(evil)
    assert not broken.exists()
    assert isinstance(rows, list)
    pickle.loads(pickle.dumps(Bomb(broken)))  # it would have
    assert broken.exists()


@pytest.mark.parametrize("kind", ["custom_obj_0", "opaque_obj_0"])
def test_a_constant_that_is_no_tensor_is_refused(files: Path, tmp_path: Path, kind: str) -> None:
    """PyTorch unpickles such constants whatever it is told."""
    evil, broken = tmp_path / "evil.pt2", tmp_path / "ran"
    with zipfile.ZipFile(files / "block.pt2") as whole, zipfile.ZipFile(evil, "w") as changed:
        for entry in whole.infolist():
            content = whole.read(entry.filename)
            if entry.filename.endswith("constants_config.json"):
                about = {"path_name": kind, "is_param": False, "use_pickle": True, "tensor_meta": None}
                content = json.dumps({"config": {"bomb": about}}).encode()
                changed.writestr(f"{entry.filename.rpartition('/')[0]}/{kind}", pickle.dumps(Bomb(broken)))
            changed.writestr(entry.filename, content)
    (row,) = extract(evil)
    assert row["detail"] == f"ValueError: evil.pt2 holds {kind}, which is no tensor"
    assert not broken.exists()


def test_names_of_onnx_that_differ_stay_different(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    def tensor(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 128])

    nodes = [helper.make_node("Exp", ["x.1"], ["t/1"]), helper.make_node("Neg", ["x.1"], ["t.1"])]
    nodes.append(helper.make_node("Sub", ["t/1", "t.1"], ["y"]))
    nodes.append(helper.make_node("ReduceSum", ["y"], ["z"], keepdims=0))
    out = helper.make_tensor_value_info("z", TensorProto.FLOAT, [])
    model = helper.make_model(helper.make_graph(nodes, "g", [tensor("x.1")], [out]))
    onnx.save(model, tmp_path / "names.onnx")
    rows = extract(tmp_path / "names.onnx")
    fused = " ".join(row["script"] or "" for row in rows)
    assert "T.exp" in fused and "T.float32(-1" in fused


def test_shapes_that_are_text_are_not_evaluated(files: Path, tmp_path: Path) -> None:
    dynamic = tmp_path / "dynamic.pt2"
    with zipfile.ZipFile(files / "block.pt2") as whole, zipfile.ZipFile(dynamic, "w") as changed:
        for entry in whole.infolist():
            content = whole.read(entry.filename)
            if entry.filename.endswith("models/model.json"):
                tree = json.loads(content)
                tree["more"] = [{"as_expr": {"expr_str": "__import__('os').system('true')"}}]
                content = json.dumps(tree).encode()
            changed.writestr(entry.filename, content)
    (row,) = extract(dynamic)
    assert row["detail"] == "ValueError: dynamic.pt2 has dynamic shapes: export it with static ones"


@pytest.mark.parametrize(
    ("task", "signature", "family"),
    [
        ("fused_conv2d_add", "SSSSRRR w:0,1,2,3 r:0,4,2+5,3+6", "vision"),
        ("fused_NT_matmul_add", "SSR w:0,1 r:0,2 r:1,2", "gemm"),
        ("take", "SS w:0,1 r:*(0),1 r:0", "quant_irregular"),
        ("softmax", "SR w:0 r:0,1", "norm_reduction"),
    ],
)
def test_families(task: str, signature: str, family: str) -> None:
    assert outside.family({"task": task, "signature": signature}) == family
