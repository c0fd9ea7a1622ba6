"""The prediction of a rule set by its rule, and proofs of it on small real workloads."""

import json
from typing import Any

import pytest

from littledragon.compiler import children, schedulable, targets
from littledragon.compiler.schedulable import Prediction

CUDA = targets.target("cuda")
LLVM = targets.target("llvm")
STOCK = Prediction("cuda-tensorcore", None)
LOCAL = Prediction("cuda-local", None)
Call = Any


def block(name: str, reads: dict[str, list[str]], **changed: Any) -> dict[str, Any]:
    """A block of F: its iterators `v_i`, `v_j` and, where `k` is given, `v_k`, each bound to the loop of its name."""
    extents = {"i": changed.pop("i", 128), "j": changed.pop("j", 128), "k": changed.pop("k", None)}
    iterators = [
        {"name": f"v_{axis}", "kind": "reduce" if axis == "k" else "spatial", "extent": extent, "binding": axis}
        for axis, extent in extents.items()
        if extent is not None
    ]
    return {
        "name": name,
        "loops": list(range(len(iterators))),
        "iterators": iterators,
        "reads": [{"buffer": b, "indices": indices, "indirect": False} for b, indices in reads.items()],
        "writes": [{"buffer": f"of_{name}", "indices": ["v_i", "v_j"], "indirect": False}],
        "producers": [],
        "operators": ["add", "mul"],
        "iterations": 1 << 14,
        **changed,
    }


def features(*blocks: dict[str, Any], dtype: str = "float32") -> dict[str, Any]:
    """What `predict` reads of F."""
    loops = [{"index": index, "name": name, "extent": 128} for index, name in enumerate("ijk")]
    names = {read["buffer"] for b in blocks for read in (*b["reads"], *b["writes"])}
    buffers = [{"name": name, "dtype": dtype, "shape": [1 << 16] * 3} for name in sorted(names)]
    return {"loops": loops, "blocks": list(blocks), "buffers": buffers}


def product(dtype: str = "float32", **extents: Any) -> dict[str, Any]:
    return features(block("product", {"x": ["v_i", "v_k"], "w": ["v_j", "v_k"]}, **{"k": 128} | extents), dtype=dtype)


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (product(), STOCK),
        (product(i=2048, j=4096, k=1024), STOCK),
        (product(i=8, j=37987), LOCAL),  # a prime
        (product(j=1187 * 2), LOCAL),
        (product(i=2, j=16), LOCAL),  # too few points for a warp in most tilings
        (product("float16", i=8, j=37987), STOCK),  # tensor cores
        (product("bfloat16", i=8, j=37987), LOCAL),
    ],
)
def test_product_takes_the_stock_rules_where_random_tilings_of_it_are_legal(facts: Any, wanted: Prediction) -> None:
    assert schedulable.predict(facts, CUDA) == wanted


def test_chance_of_a_legal_tiling_is_that_of_counting_them_all() -> None:
    """2^4 points in five parts and a reduction of 2 in three: every tiling is as likely as any other."""
    facts = product(i=16, j=1, k=2)
    target = {**CUDA, "max_threads_per_block": 64, "max_shared_memory_per_block": 100}
    cuts = [
        (b, v, t, s) for b in range(5) for v in range(5 - b) for t in range(5 - b - v) for s in range(5 - b - v - t)
    ]
    legal = 0.0
    for blocks, virtual, threads, _ in cuts:
        for outer in range(2):
            held = 4 * (2 ** (4 - blocks) + 1) * 2 ** (1 - outer)
            legal += (virtual <= 3 and 2**threads >= 2 and held <= 100) * (1 if outer else 2)
    target |= {"thread_warp_size": 2}
    exact = legal / len(cuts) / 3 * (4 / 6) ** 2
    buffers = {buffer["name"]: buffer for buffer in facts["buffers"]}
    assert schedulable._chance(facts["blocks"][0], buffers, target) == pytest.approx(exact, abs=0.03)


def test_grouped_convolution_and_depthwise_are_no_products_for_tensor_cores() -> None:
    buffers = {"x": {"dtype": "float16"}, "w": {"dtype": "float16"}}

    def tensor(x: list[str], w: list[str]) -> bool:
        return schedulable._tensor_product(block("product", {"x": x, "w": w}, k=16), buffers)

    assert tensor(["v_i", "v_k"], ["v_j", "v_k"])
    assert not tensor(["v_i", "v_j // 32 * 16 + v_k"], ["v_j", "v_k"])
    assert not tensor(["v_i", "v_j + v_k"], ["v_i", "v_k"])


def test_convolution_of_one_position_for_tensor_cores_takes_the_local_rules() -> None:
    def conv(rows: int) -> dict[str, Any]:
        product = block("conv", {"x": ["v_i + v_k", "v_k"], "w": ["v_j", "v_k"]}, i=rows, j=1152, k=288)
        return features(product, dtype="float16")

    assert schedulable.predict(conv(1), CUDA) == LOCAL
    assert schedulable.predict(conv(49), CUDA) == STOCK


@pytest.mark.parametrize(
    ("index", "elements"),
    [
        ("v_i", 8),
        ("v_i * 2 + v_k", 8 * 2 - 1 + 2),
        ("v_i // 4 + 3", 3),  # a tile need not begin at a multiple of 4
        ("v_i // 4 * 4 + v_k", 1 + 2 * 4 + 2),
        ("0:12", 12),
        ("v_i:v_i + 5", 12),
        ("max(min(v_i + v_k - 7, 99), 0)", 100),
        ("(v_i + 32) % 64", 100),
        ("0", 1),
    ],
)
def test_elements_that_a_tile_reads_along_a_dimension(index: str, elements: int) -> None:
    assert schedulable._span(index, 100, {"v_i": 8, "v_k": 3}) == elements


def test_large_element_wise_program_takes_the_local_rules() -> None:
    def silu_mul(points: int) -> dict[str, Any]:
        silu = block("silu", {"x": ["v_i", "v_j"]}, iterations=points)
        mul = block("mul", {"of_silu": ["v_i", "v_j"]}, iterations=points, producers=["silu"])
        return features(silu, mul)

    assert schedulable.predict(silu_mul(1 << 18), CUDA) == STOCK
    assert schedulable.predict(silu_mul((1 << 18) + 1), CUDA) == LOCAL
    one = "no block reduces: the rules have one schedule for it"
    assert schedulable.predict(silu_mul(1 << 20), LLVM) == Prediction(None, one)


def test_tiled_block_that_reads_at_loaded_indices_takes_the_local_rules() -> None:
    facts = product()
    facts["blocks"][0]["reads"][1] |= {"indices": ["expert[v_i]", "v_k"], "indirect": True}
    assert schedulable.predict(facts, CUDA) == LOCAL
    # Each iterator is in every read: nothing is read twice, so nothing is tiled.
    for read in facts["blocks"][0]["reads"]:
        read["indices"] = ["table[v_i]", "v_j", "v_k"]
    assert schedulable.predict(facts, CUDA) == STOCK


def test_window_with_long_strides_takes_the_local_rules() -> None:
    def patches(stride: int) -> dict[str, Any]:
        image = [f"v_i * {stride} + v_k", f"v_j * {stride} + v_k"]
        return features(block("conv", {"image": image, "w": ["v_k"]}, k=16))

    assert schedulable.predict(patches(2), CUDA) == STOCK
    assert schedulable.predict(patches(16), CUDA) == LOCAL


def test_reduction_that_feeds_a_reduction_alone_takes_the_local_rules() -> None:
    whole = ["v_i", "v_j", "v_k"]
    mean = block("mean", {"x": whole}, k=64)
    centred = block("centred", {"of_mean": ["v_i", "v_j"]}, producers=["mean"])
    square = block("square", {"of_centred": whole}, k=64, producers=["centred"])
    scaled = block("scaled", {"of_mean": ["v_i", "v_j"]}, producers=["mean"])
    assert schedulable.predict(features(mean, centred, square), CUDA) == LOCAL
    assert schedulable.predict(features(mean, centred, square, scaled), CUDA) == STOCK
    assert schedulable.predict(features(mean, centred, scaled), CUDA) == STOCK


def test_blocks_that_read_each_other_are_looked_through_once() -> None:
    first = block("first", {"of_second": ["v_i", "v_j"]}, producers=["second", "sum"])
    second = block("second", {"of_first": ["v_i", "v_j"]}, producers=["first"])
    assert schedulable.predict(features(block("sum", {"x": ["v_i", "v_j", "v_k"]}, k=64), first, second), CUDA) == STOCK


@pytest.mark.parametrize("arch", ["sm_70", "sm_72"])
def test_target_without_tensor_cores_has_its_own_rules(arch: str) -> None:
    older = {**CUDA, "arch": arch}
    assert schedulable.predict(product("float16"), older) == Prediction("cuda", None)
    assert schedulable.predict(product("float16", i=8, j=37987), older) == LOCAL


def test_llvm_takes_its_own_rules_for_all() -> None:
    assert schedulable.predict(product(i=8, j=37987), LLVM) == Prediction("llvm", None)


def test_what_no_rules_schedule_is_told_with_a_reason() -> None:
    unknown = product()
    unknown["loops"][0]["extent"] = None
    assert schedulable.predict(unknown, CUDA) == Prediction(None, "a loop's extent is not constant")
    assert schedulable.predict(features(block("one", {}, loops=[])), CUDA) == Prediction(None, "no block has a loop")
    assert schedulable.predict(product(), {"kind": "hexagon"}).rules is None


@pytest.fixture(scope="module")
def demo(call: Call) -> Any:
    """The one task of a block of the demonstration's zoo: its row of `extractions`."""

    def lowered(block_id: str) -> Any:
        (row,) = call("compiler.lowering:extract", zoo="demo", block_ids=[block_id], target=CUDA)
        return row

    return lowered


def prove(call: Call, row: Any, rules: str, **changed: Any) -> Any:
    target = targets.target(rules.partition("-")[0])
    return call("compiler.schedulable:prove", module=row["module"], target=target, rules=rules, **changed)


def test_proof_counts_different_candidates(call: Call) -> None:
    matmul = call("probe.modules:matmul", m=32, n=32, k=32, dtype="float16", accumulate="float32")
    proof = prove(call, matmul, "llvm", want=3)
    assert proof["found"] == 3
    assert proof["reason"] is None
    assert 3 <= proof["draws"] < 20
    again = prove(call, matmul, "llvm", want=3)
    assert {**again, "seconds": 0} == {**proof, "seconds": 0}


def test_proof_that_falls_short_says_so(call: Call) -> None:
    thin = call("probe.modules:scalar", n=8)  # nothing that TVM may do with eight elements changes the module
    proof = prove(call, thin, "llvm")
    assert (proof["found"], proof["draws"]) == (0, 1024)
    assert proof["reason"] == "0 of 1024 draws gave a new candidate"


def test_rules_of_another_target_are_refused(call: Call) -> None:
    matmul = call("probe.modules:matmul", m=32, n=32, k=32, dtype="float16", accumulate="float32")
    with pytest.raises(children.ChildError, match="no rules 'cuda' for llvm targets"):
        call("compiler.schedulable:prove", module=matmul["module"], target=LLVM, rules="cuda")


@pytest.mark.slow
@pytest.mark.parametrize(
    "block_id",
    [
        "moe/grouped_gemm/mixtral-8x7b-tp128-r24",
        "moe/combine/olmoe-1b-7b-b96",
        "quant_irregular/embedding_bag/dlrm-b128-l40",
        "quant_irregular/paged_scores/mistral-7b-s256",
        "norm_reduction/variance/whisper-tiny",
    ],
)
def test_where_the_stock_rules_have_no_space_the_local_ones_do(call: Call, demo: Any, block_id: str) -> None:
    row = demo(block_id)
    assert schedulable.predict(json.loads(row["features"]), CUDA) == LOCAL
    stock = prove(call, row, "cuda-tensorcore")
    assert (stock["found"], stock["reason"][:9]) == (0, "no space:")
    assert prove(call, row, "cuda-local")["found"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "block_id",
    [
        "gemm/nt_matmul_cast/tinyllama-1.1b-tp32-b32",
        "gemm/linear_bias_gelu/bert-base-tp8-b64",
        "norm_reduction/softmax/tinyllama-1.1b-tp4-b24",
        "quant_irregular/embedding_norm/bert-base-tp16-b160",
        "vision/depthwise3x3/mobilenet-v2-28",
    ],
)
def test_where_the_stock_rules_are_predicted_they_have_candidates(call: Call, demo: Any, block_id: str) -> None:
    row = demo(block_id)
    assert schedulable.predict(json.loads(row["features"]), CUDA) == STOCK
    assert prove(call, row, "cuda-tensorcore")["found"] == 2
