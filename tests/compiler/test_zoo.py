"""The zoo and its lowering: what every block gives, what is refused and why, and hashes that are equal everywhere."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from littledragon.compiler import children, lowering, signature, targets
from littledragon.compiler.features import features, kind, main
from littledragon.compiler.zoo import FAMILIES, Block, Case, Model, Program, block_of, blocks
from littledragon.compiler.zoo.block import block, export
from littledragon.release import splits
from littledragon.schemas.gates import REASONS
from littledragon.schemas.tables import EXTRACTIONS

Row = dict[str, Any]
LLVM = targets.target("llvm")
DEMO = blocks("demo")
PAPER = "gemm/nt_matmul_cast/llama-2-7b-tp32-b128"
GOLDEN = Path(__file__).parents[1] / "golden" / "workloads"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [row for b in DEMO for row in lowering.extract("demo", [b.id], LLVM)]


def kept(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["state"] == "ok"]


def test_listing_blocks_and_targets_needs_no_tvm() -> None:
    code = (
        "import sys; from littledragon.compiler import inputs, targets, zoo; targets.target('llvm'); "
        "targets.target('cuda'); assert len(zoo.blocks('demo')) > 25; "
        "inputs.make([{'shape': [2], 'dtype': 'bfloat16', 'role': 'data', 'low': None, 'high': None}], 0, 0); "
        "sys.exit('tvm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_every_family_has_blocks_and_every_block_says_where_it_comes_from() -> None:
    families = Counter(b.family for b in DEMO)
    assert len(families) == 6
    assert min(families.values()) >= 4
    assert len(DEMO) == len({b.id for b in DEMO}) >= 26
    for b in DEMO:
        assert b.id.split("/")[:2] == [b.family, b.operator]
        assert b.id == b.id.lower()
        assert b.model.name and b.model.source and b.model.licence and b.cases[0].about
        assert block_of("demo", b.id) is b
    assert tuple(sorted(families)) == FAMILIES


def test_rows_fit_their_table(rows: list[Row]) -> None:
    for row in rows:
        jsonschema.validate(row, EXTRACTIONS.json_schema())
        assert row["reason"] in (None, *REASONS["workloads"])
        assert (row["workload_id"] is not None) == (row["state"] == "ok")
        assert row["state"] != "ok" or row["description"].isascii()
    keys = [(row["block_id"], row["configuration"], row["task"]) for row in rows]
    assert len(keys) == len(set(keys))


def test_every_block_gives_a_workload_and_only_bare_moves_and_sums_are_trivial(rows: list[Row]) -> None:
    assert {row["block_id"] for row in rows if row["state"] == "ok"} == {b.id for b in DEMO}
    refused = {(row["block_id"].split("/")[1], row["task"], row["reason"]) for row in rows if row["state"] != "ok"}
    assert refused == {
        ("add_rms_norm", "add", "trivial"),
        ("patch_embedding", "fused_reshape_transpose", "trivial"),
    }


def test_a_module_is_normalised(rows: list[Row]) -> None:
    import tvm
    from tvm_ffi import structural_hash

    for row in kept(rows):
        module = tvm.ir.load_json(row["module"])
        assert [str(name.name_hint) for name in module.functions] == ["main"]
        function = main(module)
        assert set(function.attrs.keys()) == {"global_symbol", "tirx.noalias", "s_tir"}
        assert str(function.attrs["global_symbol"]) == "main"
        assert f"{structural_hash(module) & (1 << 64) - 1:016x}" == row["module_hash"]
        dtypes: set[str] = set()
        tvm.tirx.stmt_functor.post_order_visit(
            function.body, lambda n, into=dtypes: into.add(str(n.loop_var.dtype)) if kind(n) == "For" else None
        )
        assert dtypes == {"int64" if '"int64"' in row["features"] else "int32"}, row["task"]


def test_features_name_what_the_script_shows(rows: list[Row]) -> None:
    for row in kept(rows):
        facts = json.loads(row["features"])
        for one in facts["blocks"]:
            assert f'T.sblock("{one["name"]}")' in row["script"]
            for axis in one["iterators"]:
                assert axis["name"] in row["script"]
        for buffer in facts["buffers"]:
            assert f"{buffer['name']}: T.Buffer(" in row["script"] or f"{buffer['name']} = T." in row["script"]
        for loop in facts["loops"]:
            assert loop["name"] in row["script"]


def test_sizes_suit_one_core(rows: list[Row]) -> None:
    for row in rows:
        assert row["flops"] <= 1.2e8, row["block_id"]
        assert row["bytes_min"] <= 64 << 20, row["block_id"]


def test_ids_are_the_same_in_another_process_and_for_another_target(rows: list[Row]) -> None:
    chosen = "attention/gqa_decode/qwen2.5-0.5b-c2048"
    here = [row for row in rows if row["block_id"] == chosen]
    there = children.once(
        "littledragon.compiler.lowering:extract", deadline_s=60, zoo="demo", block_ids=[chosen], target=LLVM
    )
    assert there == here
    assert len(here) == 3
    assert [row["workload_id"] for row in lowering.extract("demo", [chosen], targets.target("cuda"))] == [
        row["workload_id"] for row in here
    ]


def test_the_papers_example_is_one_task(rows: list[Row]) -> None:
    (row,) = (row for row in rows if row["block_id"] == PAPER)
    assert row["task"] == "fused_NT_matmul_cast"
    assert row["script"] == (GOLDEN / "nt_matmul_cast.txt").read_text(encoding="utf-8").rstrip("\n")
    assert row["description"] == (
        "From Llama-2-7B: query projection, cut 32 x 32 ways to one head and one 128-wide slice of the hidden size, "
        "128 tokens. Takes x (float16, 128 x 128) and w (float16, 128 x 128); gives compute_intermediate (float16, "
        "128 x 128). NT_matmul: sum of products over k (128) in float32; compute: cast to float16 on 128 x 128 "
        "elements."
    )
    assert (row["signature"], row["extents"]) == ("SSR w:0,1 r:0,2 r:1,2", [128, 128, 128])


def test_a_cell_is_blind_to_dtype_epilogue_and_unit_axes(rows: list[Row]) -> None:
    cells = {row["task"]: row["signature"] for row in rows}
    assert cells["w4a16_matmul"] == cells["fused_NT_matmul_add_gelu"] == cells["fused_NT_matmul_cast"]
    assert cells["silu_mul_quantize"] == cells["rms_norm"] == "SR w:0 r:0,1"
    conv = next(row for row in rows if row["operator"] == "conv1x1")
    assert (conv["signature"], conv["extents"]) == ("SSSR w:0,1,2 r:0,3 r:3,1,2", [128, 14, 14, 256])
    strided = next(row for row in rows if row["operator"] == "conv_strided")
    assert strided["signature"] == "SSSRRR w:0,1,2 r:0,3,4,5 r:3,2*1+4,2*2+5"
    grouped = next(row for row in rows if row["operator"] == "grouped_gemm")
    assert grouped["signature"] == "SSR w:0,1 r:*(0),1,2 r:0 r:0,2"


def test_every_family_has_workloads_to_train_on_and_to_test(rows: list[Row]) -> None:
    sealed = splits.load_sealed()
    counts = Counter((row["family"], splits.split(row["signature"], row["extents"], sealed)) for row in kept(rows))
    for family in FAMILIES:
        assert counts[family, "train"] >= 2 and counts[family, "test"] >= 1, counts


def made(build: Any, **shape: Any) -> Block:
    return block("gemm", "x", Model("none", "none", "none"), "y", build, Case("cut", "a test", shape))


def broken() -> Any:
    raise RuntimeError("no such layout\nin the zoo")


def bare(rows: int) -> Program:
    from tvm.relax.frontend.nn import op

    return export(lambda x: op.permute_dims(x, [1, 0]), x=((rows, 64), "float32"))


def nothing() -> Program:
    return export(lambda x: x, x=((64, 64), "float32"))


def small(rows: int) -> Program:
    from tvm.relax.frontend.nn import op

    return export(lambda x: op.sum(x, axis=-1), x=((rows, 8), "float32"))


@pytest.mark.parametrize(
    ("fake", "reason", "words"),
    [
        (made(broken), "lowering_failed", "RuntimeError: in the zoo"),
        (made(nothing), "no_task", "nothing to tune"),
        (made(bare, rows=128), "trivial", "copies, casts or moves"),
        (made(small, rows=511), "trivial", "4088 iterations, fewer than 4096"),
        (made(small, rows=16 << 20), "trivial", "bytes, more than"),
    ],
)
def test_what_is_not_worth_tuning_is_rejected(fake: Block, reason: str, words: str) -> None:
    (row,) = lowering.rows(fake, LLVM)
    jsonschema.validate(row, EXTRACTIONS.json_schema())
    assert (row["state"], row["reason"]) == ("rejected", reason)
    assert words in row["detail"]
    assert row["workload_id"] is None


def test_a_large_enough_sum_is_kept() -> None:
    (row,) = lowering.rows(made(small, rows=512), LLVM)
    assert row["state"] == "ok"


def test_an_unknown_block_is_an_error() -> None:
    with pytest.raises(KeyError):
        lowering.extract("demo", ["gemm/none/such"], LLVM)


def test_the_anchor_is_the_reduction_with_the_most_work(rows: list[Row]) -> None:
    import tvm

    for row in kept(rows):
        facts = features(tvm.ir.load_json(row["module"]))
        anchor = signature.anchor(facts)
        assert anchor is not None
        if facts["reductions"]:
            assert any(axis["kind"] == "reduce" for axis in anchor["iterators"])


def test_targets() -> None:
    assert targets.target("llvm")["num-cores"] == 2
    assert targets.target("cuda")["arch"] == "sm_90"
    targets.require_device("llvm")
    with pytest.raises(ValueError, match="choose llvm or cuda"):
        targets.target("metal")


def test_a_missing_device_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets.ctypes.util, "find_library", lambda name: None)
    with pytest.raises(targets.DeviceMissing, match=r"--target llvm"):
        targets.require_device("cuda")
