"""F(M): against values worked out by hand from the operators' definitions, and on scheduled modules."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.compiler import children, lowering, targets
from littledragon.compiler.features import features, text
from littledragon.compiler.zoo import blocks
from littledragon.compiler.zoo.gemm import nt_matmul_cast
from littledragon.schemas.features import FEATURES
from littledragon.schemas.ids import canonical_json

Json = dict[str, Any]
LLVM = targets.target("llvm")


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    """`operator/task` → module, for the whole zoo."""
    found = {}
    for b in blocks("demo"):
        for name, module in lowering.modules(b.build(**b.cases[0].shape), LLVM).items():
            found[f"{b.id.split('/')[1]}-{b.id.split('/')[2]}/{name}"] = module
    return found


def of(modules: dict[str, Any], start: str, task: str = "") -> Json:
    (name,) = (name for name in modules if name.startswith(start) and name.endswith(task))
    return features(modules[name])


def only(items: list[Json], name: str) -> Json:
    (item,) = (item for item in items if item["name"] == name)
    return item


def iterators(block: Json) -> list[tuple[str, str, int]]:
    return [(axis["name"], axis["kind"], axis["extent"]) for axis in block["iterators"]]


def test_every_module_fits_the_schema_and_reads_the_same_twice(modules: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(FEATURES)
    for module in modules.values():
        first = features(module)
        jsonschema.validate(first, FEATURES)
        assert canonical_json(first) == canonical_json(features(module))
        assert json.loads(canonical_json(first)) == first


def test_another_process_reads_the_same(modules: dict[str, Any]) -> None:
    block_id = "attention/masked_softmax/gpt2-s64"
    (row,) = children.once(
        "littledragon.compiler.lowering:extract", deadline_s=60, zoo="demo", block_ids=[block_id], target=LLVM
    )
    assert row["features"] == canonical_json(of(modules, "masked_softmax-gpt2"))


def test_the_papers_example(modules: dict[str, Any]) -> None:
    """Y = cast(X·Wᵀ) at 128³: two operations for each of 128³ points, three matrices of 128² halves."""
    f = of(modules, "nt_matmul_cast-llama")
    assert (f["flops"], f["bytes"]) == (2 * 128**3, 3 * 128**2 * 2)
    assert f["intensity"] == round(2 * 128**3 / (3 * 128**2 * 2), 6)
    assert [(b["name"], b["dtype"], b["role"], b["shape"]) for b in f["buffers"]] == [
        ("x", "float16", "input", [128, 128]),
        ("w", "float16", "input", [128, 128]),
        ("compute_intermediate", "float16", "output", [128, 128]),
        ("NT_matmul_intermediate", "float32", "intermediate", [128, 128]),
    ]
    assert [(p["index"], p["name"], p["extent"], p["kind"], p["outer"]) for p in f["loops"]] == [
        (0, "i0", 128, "serial", []),
        (1, "i1", 128, "serial", [0]),
        (2, "k", 128, "serial", [0, 1]),
        (3, "i0", 128, "serial", []),
        (4, "i1", 128, "serial", [3]),
    ]
    matmul, cast = f["blocks"]
    assert matmul == {
        "name": "NT_matmul",
        "loops": [0, 1, 2],
        "iterators": [
            {"name": "v_i0", "kind": "spatial", "extent": 128, "binding": "i0"},
            {"name": "v_i1", "kind": "spatial", "extent": 128, "binding": "i1"},
            {"name": "v_k", "kind": "reduce", "extent": 128, "binding": "k"},
        ],
        "iterations": 128**3,
        "reads": [
            {"buffer": "x", "indices": ["v_i0", "v_k"], "indirect": False, "access": "broadcast", "stride": 0},
            {"buffer": "w", "indices": ["v_i1", "v_k"], "indirect": False, "access": "strided", "stride": 128},
        ],
        "writes": [
            {
                "buffer": "NT_matmul_intermediate",
                "indices": ["v_i0", "v_i1"],
                "indirect": False,
                "access": "coalesced",
                "stride": 1,
            }
        ],
        "producers": [],
        "has_init": True,
        "operators": ["add", "mul", "cast float32"],
        "flops": 2 * 128**3,
        "annotations": {},
    }
    assert (cast["producers"], cast["flops"], cast["operators"]) == (["NT_matmul"], 0, ["cast float16"])
    assert f["reductions"] == [{"block": "NT_matmul", "axis": "v_k", "extent": 128}]


def test_attention_scores(modules: dict[str, Any]) -> None:
    """4 heads of 64 × 64 dot products of length 128, then one multiplication a score."""
    f = of(modules, "qk_scores")
    assert f["flops"] == 4 * 64 * 64 * (2 * 128 + 1)
    assert f["bytes"] == 2 * (4 * 64 * 128) * 2 + 4 * 64 * 64 * 4
    scores, scaled = f["blocks"]
    assert iterators(scores) == [
        ("v_i0", "spatial", 4),
        ("v_i1", "spatial", 64),
        ("v_i2", "spatial", 64),
        ("v_k", "reduce", 128),
    ]
    assert [r["indices"] for r in scores["reads"]] == [["v_i0", "v_i1", "v_k"], ["v_i0", "v_i2", "v_k"]]
    assert scaled["producers"] == ["NT_matmul"]


def test_softmax(modules: dict[str, Any]) -> None:
    """Five operations an element: maximum, subtraction, exponential, sum, division."""
    f = of(modules, "softmax-tinyllama")
    assert f["flops"] == 24 * 8000 * 5
    assert f["bytes"] == 2 * 24 * 8000 * 4
    assert [(r["axis"], r["extent"]) for r in f["reductions"]] == [("v_k", 8000), ("v_k", 8000)]
    assert only(f["blocks"], "T_softmax_norm")["producers"] == ["T_softmax_exp", "T_softmax_expsum"]
    assert only(f["blocks"], "T_softmax_exp")["operators"] == ["exp", "sub"]


def test_grouped_product(modules: dict[str, Any]) -> None:
    """The weight's first index is loaded from `expert`."""
    f = of(modules, "grouped_gemm")
    assert f["flops"] == 2 * 24 * 112 * 1024
    product = only(f["blocks"], "grouped_gemm")
    assert product["reads"] == [
        {"buffer": "x", "indices": ["v_r", "v_k"], "indirect": False, "access": "broadcast", "stride": 0},
        {
            "buffer": "w",
            "indices": ["expert[v_r]", "v_c", "v_k"],
            "indirect": True,
            "access": "gathered",
            "stride": None,
        },
        {"buffer": "expert", "indices": ["v_r"], "indirect": False, "access": "broadcast", "stride": 0},
    ]


def test_depthwise_convolution(modules: dict[str, Any]) -> None:
    """144 channels of 28 × 28 outputs, 9 products each, then bias, maximum and minimum; padding to 30 × 30 is free."""
    f = of(modules, "depthwise3x3")
    assert f["flops"] == 144 * 28 * 28 * (2 * 9 + 1 + 2)
    assert f["bytes"] == 4 * (144 * 28 * 28 * 2 + 144 * 9 + 144)
    assert only(f["buffers"], "pad_temp")["shape"] == [1, 144, 30, 30]
    conv = only(f["blocks"], "group_conv2d_nchw")
    assert conv["producers"] == ["pad_temp"]
    assert {(r["axis"], r["extent"]) for r in f["reductions"]} == {("v_rc", 1), ("v_ry", 3), ("v_rx", 3)}


def test_strided_convolution(modules: dict[str, Any]) -> None:
    """64 filters of 3 × 7 × 7 at stride 2 on a padded 70 × 70 image."""
    f = of(modules, "conv_strided")
    assert f["flops"] == 64 * 32 * 32 * (2 * 3 * 7 * 7 + 2)
    (image,) = (r for r in only(f["blocks"], "conv2d_nchw")["reads"] if r["buffer"] == "pad_temp")
    assert image["indices"] == ["v_nn", "v_rc", "v_yy * 2 + v_ry", "v_xx * 2 + v_rx"]


def test_four_bit_product(modules: dict[str, Any]) -> None:
    """Unpacking takes a shift, a mask, a subtraction and a scale for each of 128 × 2048 weights."""
    f = of(modules, "w4a16_matmul")
    assert f["flops"] == 128 * 2048 * 4 + 2 * 8 * 128 * 2048
    assert f["bytes"] == 8 * 2048 * 2 + 128 * 256 * 4 + 128 * 16 * 2 + 8 * 128 * 2
    unpack = only(f["blocks"], "dequantize")
    assert [r["indices"] for r in unpack["reads"]] == [["v_r", "v_c // 8"], ["v_r", "v_c // 128"]]
    assert only(f["blocks"], "matmul")["producers"] == ["dequantize"]


def test_quantisation_has_two_outputs(modules: dict[str, Any]) -> None:
    f = of(modules, "quantize-mistral")
    assert [b["name"] for b in f["buffers"] if b["role"] == "output"] == ["quantize", "scale"]
    assert f["bytes"] == 24 * 4096 * (2 + 1) + 24 * 4
    assert f["flops"] == 24 * 4096 * (2 + 2) + 24 * 2


def test_argmax_counts_comparisons(modules: dict[str, Any]) -> None:
    """Three comparisons choose the index, one the value; a choice itself is free."""
    f = of(modules, "argmax")
    assert f["flops"] == 32 * 18992 * 4
    assert [b["dtype"] for b in f["buffers"] if b["role"] == "output"] == ["int64"]


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_any_product(m: int, n: int, k: int) -> None:
    """2·m·n·k operations; dtype sizes and shapes add up, extents of 1 included."""
    (module,) = lowering.modules(nt_matmul_cast(m, n, k), LLVM).values()
    f = features(module)
    assert f["flops"] == 2 * m * n * k
    assert f["bytes"] == 2 * (m * k + n * k + m * n)


def test_a_scheduled_module_shows_what_was_done(modules: dict[str, Any]) -> None:
    import tvm

    (name,) = (name for name in modules if name.startswith("nt_matmul_cast-llama"))
    schedule = tvm.s_tir.Schedule(modules[name])
    matmul, cast = schedule.get_sblock("NT_matmul"), schedule.get_sblock("compute")
    i, j, k = schedule.get_loops(matmul)
    outer, inner = schedule.split(j, [None, 16])
    k_outer, k_inner = schedule.split(k, [None, 4])
    schedule.reorder(i, outer, k_outer, k_inner, inner)
    schedule.parallel(i)
    schedule.vectorize(inner)
    schedule.unroll(k_inner)
    schedule.annotate(outer, "pragma_auto_unroll_max_step", 64)
    cache = schedule.cache_read(matmul, 0, "shared")
    schedule.compute_at(cache, outer)
    schedule.bind(schedule.get_loops(cast)[0], "blockIdx.x")
    schedule.decompose_reduction(matmul, k_outer)
    f = features(schedule.mod)
    jsonschema.validate(f, FEATURES)
    assert {(p["kind"], p["extent"]) for p in f["loops"]} >= {
        ("parallel", 128),
        ("vectorized", 16),
        ("unrolled", 4),
        ("thread", 128),
    }
    assert [p["thread"] for p in f["loops"] if p["kind"] == "thread"] == ["blockIdx.x"]
    assert {"pragma_auto_unroll_max_step": 64} in [p["annotations"] for p in f["loops"]]
    assert only(f["buffers"], "x_shared")["scope"] == "shared"
    assert only(f["buffers"], "x_shared")["role"] == "intermediate"
    names = [block["name"] for block in f["blocks"]]
    assert names == ["x_shared", "NT_matmul_init", "NT_matmul_update", "compute"]
    update = only(f["blocks"], "NT_matmul_update")
    assert set(update["producers"]) == {"NT_matmul_init", "x_shared"}
    assert update["iterators"][1]["binding"] == "i1_0 * 16 + i1_1"
    assert (update["has_init"], update["flops"]) == (False, 2 * 128**3)
    assert f["flops"] == 2 * 128**3


def test_expressions_keep_their_brackets() -> None:
    from tvm import tirx

    a, b = tirx.Var("a", "int64"), tirx.Var("b", "int64")
    for expression, words in (
        ((a + b) * 2, "(a + b) * 2"),
        (a - (b - 1), "a - (b - 1)"),
        (a * 2 + b % 7, "a * 2 + b % 7"),
        ((a + 1) // 3 % 5, "(a + 1) // 3 % 5"),
        (tirx.And(a < b, a + 1 >= 2), "a < b and a + 1 >= 2"),
        (tirx.And(tirx.Or(a < 1, b < 1), a < b), "(a < 1 or b < 1) and a < b"),
        (tirx.min(a * 2, b), "min(a * 2, b)"),
    ):
        assert text(expression) == words


def test_a_module_without_main_is_refused(modules: dict[str, Any]) -> None:
    import tvm

    function = next(iter(modules.values()))["main"]
    with pytest.raises(ValueError, match="no function named 'main'"):
        features(tvm.IRModule({"other": function.with_attr("global_symbol", "other")}))
