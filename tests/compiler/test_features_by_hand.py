"""F(M0) of 20 operators, against what follows by hand from their mathematical definitions.

Each entry says how its numbers are derived. Counted are arithmetic operations on loaded values: a product is a
multiplication and an addition, a maximum, comparison, exponential or reciprocal root is one; index arithmetic, casts
and choices are free, and of a choice the dearer side counts. A read is gathered where one of its indices is loaded.
Extents of one entry are all different where the operator lets them be, so that no two can be mistaken for each other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import jsonschema
import pytest

from littledragon.compiler import lowering, targets
from littledragon.compiler.features import features
from littledragon.compiler.signature import anchor
from littledragon.compiler.zoo import Program
from littledragon.compiler.zoo.attention import gqa_prefill
from littledragon.compiler.zoo.attention_cache import length_decode
from littledragon.compiler.zoo.attention_rotary import rotary
from littledragon.compiler.zoo.gemm import batched_matmul, int8_matmul, linear_bias_gelu
from littledragon.compiler.zoo.moe import combine, grouped_gemm, router
from littledragon.compiler.zoo.norm_reduction import argmax, masked_mean, rms_norm
from littledragon.compiler.zoo.norm_reduction_images import group_norm
from littledragon.compiler.zoo.quant_irregular import embedding_bag, paged_scores, w4a16_matmul
from littledragon.compiler.zoo.vision import pool
from littledragon.compiler.zoo.vision_conv import convolution, transposed
from littledragon.schemas.features import FEATURES

Json = dict[str, Any]
Read = tuple[str, int | None]


def strided(elements: int) -> Read:
    return "strided", elements


COALESCED: Final[Read] = ("coalesced", 1)
BROADCAST: Final[Read] = ("broadcast", 0)
GATHERED: Final[Read] = ("gathered", None)
IRREGULAR: Final[Read] = ("irregular", None)


@dataclass(frozen=True)
class Expected:
    """A workload, and what F must say of it.

    program: of the workload; `task` names the task that is meant where it has several.
    anchor: the block that reduces with most operations; the only block where nothing reduces.
    iterators: of the anchor and all blocks that reduce, in order: S for spatial or R for reduction, and the extent.
    reads: block → argument or block that wrote it → how neighbours along the block's last spatial iterator touch that;
        of the anchor, and of others where they are of interest.
    blocks: block → the blocks that write what it reads, by name.
    """

    program: Callable[[], Program]
    anchor: str
    iterators: Mapping[str, str]
    reads: Mapping[str, Mapping[str, Read]]
    blocks: Mapping[str, str]
    flops: int
    bytes: int
    intensity: float
    task: str | None = None


WORKLOADS: Final[dict[str, Expected]] = {
    # Y[n, h, d] = X[n, h, d]·cos + (±X[n, h, d ± 8])·sin: two products, a sum, a sign; of 9 heads 6 are turned.
    # X is touched at d and at its partner: neither at one distance nor at one place. The table's row is loaded.
    "attention/rotary": Expected(
        lambda: rotary(37, 6, 3, 16, 16, 53, "float16", pairs="halves"),
        anchor="rotary",
        iterators={"rotary": "S37 S6 S16"},
        reads={"rotary": {"packed": IRREGULAR, "position": BROADCAST, "table": GATHERED}},
        blocks={"rotary": ""},
        flops=37 * 6 * 16 * 4,
        bytes=2 * 37 * 9 * 16 + 4 * 37 + 4 * 53 * 16 + 2 * 37 * 6 * 16,
        intensity=0.667042,
    ),
    # S[b, h, g, q, t] = scale·Σd Q[b, q, h, g, d]·K[b, t, h, d], a choice of t: 8 products, then one multiplication.
    # Next t: the query stays, the key is a token of 3 heads of 8 further on. Halves in, float32 out.
    "attention/gqa_scores": Expected(
        lambda: gqa_prefill(2, 3, 4, 5, 19, 8, "float16"),
        anchor="qk",
        iterators={"qk": "S2 S3 S4 S5 S19 R8"},
        reads={"qk": {"query": BROADCAST, "key": strided(3 * 8)}},
        blocks={"qk": "", "masked": "qk"},
        flops=2 * 3 * 4 * 5 * 19 * (2 * 8 + 1),
        bytes=2 * 2 * 5 * (3 * 4) * 8 + 2 * 2 * 19 * 3 * 8 + 4 * 2 * 3 * 4 * 5 * 19,
        intensity=3.01306,
        task="gqa_scores",
    ),
    # Of each row of 67: t < length, maximum, subtraction, exponential, sum, division: six an element.
    # Maximum and sum have equally many operations; the first is the anchor. Its next row lies 67 further on.
    "attention/masked_softmax": Expected(
        lambda: length_decode(2, 3, 5, 67, 8, "float16"),
        anchor="T_softmax_maxelem",
        iterators={"T_softmax_maxelem": "S2 S3 S5 R67", "T_softmax_expsum": "S2 S3 S5 R67"},
        reads={
            "T_softmax_maxelem": {"masked": strided(67)},
            "masked": {"scores": COALESCED, "length": BROADCAST},
            "T_softmax_norm": {"T_softmax_exp": COALESCED, "T_softmax_expsum": BROADCAST},
        },
        blocks={
            "masked": "",
            "T_softmax_maxelem": "masked",
            "T_softmax_exp": "T_softmax_maxelem masked",
            "T_softmax_expsum": "T_softmax_exp",
            "T_softmax_norm": "T_softmax_exp T_softmax_expsum",
            "rounded": "T_softmax_norm",
        },
        flops=2 * 3 * 5 * 67 * 6,
        bytes=2 * 3 * 5 * 67 * (4 + 2) + 4 * 2,
        intensity=0.999337,
        task="masked_softmax",
    ),
    # Z = X·Wᵀ + b takes 71 products and an addition; gelu is Z·(½ + ½·erf(Z·√½)): three products, erf, an addition.
    "gemm/linear_bias_gelu": Expected(
        lambda: linear_bias_gelu(37, 53, 71),
        anchor="NT_matmul",
        iterators={"NT_matmul": "S37 S53 R71"},
        reads={"NT_matmul": {"x": BROADCAST, "w": strided(71)}},
        blocks={
            "NT_matmul": "",
            "T_add": "NT_matmul",
            "T_multiply": "T_add",  # Z·√½
            "compute": "T_multiply",  # its erf
            "T_multiply_1": "compute",
            "T_add1": "T_multiply_1",
            "T_multiply_2": "T_add T_add1",
        },
        flops=37 * 53 * (2 * 71 + 1 + 5),
        bytes=4 * (37 * 71 + 53 * 71 + 53 + 37 * 53),
        intensity=8.633627,
    ),
    # Y[b, i, j] = Σk X[b, i, k]·W[b, k, j]: here j is the weight's last axis.
    "gemm/batched_matmul": Expected(
        lambda: batched_matmul(3, 11, 23, 17),
        anchor="matmul",
        iterators={"matmul": "S3 S11 S23 R17"},
        reads={"matmul": {"x": BROADCAST, "w": COALESCED}},
        blocks={"matmul": ""},
        flops=2 * 3 * 11 * 23 * 17,
        bytes=4 * 3 * (11 * 17 + 17 * 23 + 11 * 23),
        intensity=2.587846,
    ),
    # Integer operations count as others do; factors have one byte, sums four.
    "gemm/int8_matmul": Expected(
        lambda: int8_matmul(13, 29, 43),
        anchor="NT_matmul",
        iterators={"NT_matmul": "S13 S29 R43"},
        reads={"NT_matmul": {"x": BROADCAST, "w": strided(43)}},
        blocks={"NT_matmul": ""},
        flops=2 * 13 * 29 * 43,
        bytes=13 * 43 + 29 * 43 + 4 * 13 * 29,
        intensity=9.783343,
    ),
    # Y[r, c] = Σk X[r, k]·W[expert[r], c, k]: one of 5 matrices for each of 21 rows. All of W is an argument.
    "moe/grouped_gemm": Expected(
        lambda: grouped_gemm(21, 5, 34, 27, "bfloat16"),
        anchor="grouped_gemm",
        iterators={"grouped_gemm": "S21 S34 R27"},
        reads={"grouped_gemm": {"x": BROADCAST, "w": GATHERED, "expert": BROADCAST}},
        blocks={"grouped_gemm": "", "cast": "grouped_gemm"},
        flops=2 * 21 * 34 * 27,
        bytes=2 * (21 * 27 + 5 * 34 * 27 + 21 * 34) + 4 * 21,
        intensity=3.260274,
    ),
    # Y[t, h] = Σₖ weight[t, k]·E[slot[t, k], h] over 4 experts: a product and a sum each. E has 14·4 rows of halves.
    "moe/combine": Expected(
        lambda: combine(14, 4, 39, "float16"),
        anchor="combine",
        iterators={"combine": "S14 S39 R4"},
        reads={"combine": {"weight": BROADCAST, "rows": GATHERED, "slot": BROADCAST}},
        blocks={"combine": "", "cast": "combine"},
        flops=2 * 14 * 39 * 4,
        bytes=2 * 56 * 39 + 4 * 14 * 4 + 4 * 14 * 4 + 2 * 14 * 39,
        intensity=0.739336,
    ),
    # sigmoid(X·Wᵀ) + b: 45 products, a sigmoid, an addition for each token and expert.
    "moe/router": Expected(
        lambda: router(19, 12, 45, "bfloat16", "corrected"),
        anchor="NT_matmul",
        iterators={"NT_matmul": "S19 S12 R45"},
        reads={"NT_matmul": {"x": BROADCAST, "w": strided(45)}},
        blocks={"NT_matmul": "", "compute": "NT_matmul", "T_add": "compute"},
        flops=19 * 12 * (2 * 45 + 1 + 1),
        bytes=2 * (19 * 45 + 12 * 45) + 4 * 12 + 4 * 19 * 12,
        intensity=5.5936,
    ),
    # Y = X·w / √(Σ X² / 58 + ε): an element's square and its sum, its two products; a row's division, addition, root.
    "norm_reduction/rms_norm": Expected(
        lambda: rms_norm(13, 58),
        anchor="T_multiply_red",
        iterators={"T_multiply_red": "S13 R58"},
        reads={
            "T_multiply_red": {"T_multiply": strided(58)},
            "T_rms_norm": {"rsqrt": BROADCAST, "T_cast": COALESCED, "T_cast_1": COALESCED},
        },
        blocks={
            "T_cast": "",
            "T_multiply": "T_cast",
            "T_multiply_red": "T_multiply",
            "rsqrt": "T_multiply_red",
            "T_cast_1": "",  # of w
            "T_rms_norm": "T_cast T_cast_1 rsqrt",
            "T_cast_2": "T_rms_norm",
        },
        flops=13 * 58 * (2 + 2) + 13 * 3,
        bytes=2 * (13 * 58 + 58 + 13 * 58),
        intensity=0.975415,
    ),
    # Groups of 12 / 3 channels. Σx: an addition an element; Σ(x - μ)(x - μ), written out: 2 + 1 + 1; then of each one
    # x - μ, ν + ε, root, product, weight, bias: 6. Two divisions a group.
    "norm_reduction/group_norm": Expected(
        lambda: group_norm(2, 12, (7, 9), 3, "float32", activated=False),
        anchor="squares",
        iterators={"total": "S2 S3 R4 R7 R9", "squares": "S2 S3 R4 R7 R9"},
        reads={"squares": {"x": strided(4 * 7 * 9), "mean": COALESCED}},
        blocks={
            "total": "",
            "mean": "total",
            "squares": "mean",
            "variance": "squares",
            "normal": "mean variance",
        },
        flops=2 * 12 * 7 * 9 * (1 + 4 + 6) + 2 * 2 * 3,
        bytes=4 * (2 * 12 * 7 * 9 + 12 + 12 + 2 * 12 * 7 * 9),
        intensity=1.365157,
    ),
    # Pairs (i, x) are joined: i of the left where x > y, or x = y and i < j; x of the left where x > y: 4 comparisons.
    # The index is int64, as extents in Relax are.
    "norm_reduction/argmax": Expected(
        lambda: argmax(15, 77),
        anchor="x_red_temp",
        iterators={"x_red_temp": "S15 R77"},
        reads={"x_red_temp": {"x": strided(77)}},
        blocks={"x_red_temp": "", "x_red": "x_red_temp"},
        flops=15 * 77 * 4,
        bytes=4 * 15 * 77 + 8 * 15,
        intensity=0.974684,
    ),
    # Σt of x where t < length, over max(length, 1): a comparison and an addition, then a maximum and a division.
    "norm_reduction/masked_mean": Expected(
        lambda: masked_mean(4, 18, 33),
        anchor="total",
        iterators={"total": "S4 S33 R18"},
        reads={"total": {"x": COALESCED, "length": BROADCAST}},
        blocks={"total": "", "mean": "total"},
        flops=4 * 33 * (18 * 2 + 2),
        bytes=4 * 4 * 18 * 33 + 4 * 4 + 4 * 4 * 33,
        intensity=0.499204,
    ),
    # Y[b, d] = Σₛ weight[b, s]·T[index[b, s], d] over bags of 6: a product and a sum. Indices have eight bytes.
    "quant_irregular/embedding_bag": Expected(
        lambda: embedding_bag(9, 6, 41, 22, "float16", weighted=True),
        anchor="embedding_bag",
        iterators={"embedding_bag": "S9 S22 R6"},
        reads={"embedding_bag": {"table": GATHERED, "index": BROADCAST, "weight": BROADCAST}},
        blocks={"embedding_bag": ""},
        flops=2 * 9 * 22 * 6,
        bytes=2 * 41 * 22 + 8 * 9 * 6 + 4 * 9 * 6 + 4 * 9 * 22,
        intensity=0.732429,
    ),
    # A weight is (word >> 4·(c % 8) & 15) - 8, times its scale: four operations. Eight share a word, 16 share a scale,
    # so that neighbours mostly touch one element and at times the next.
    "quant_irregular/w4a16_matmul": Expected(
        lambda: w4a16_matmul(10, 24, 64, 16),
        anchor="matmul",
        iterators={"matmul": "S10 S24 R64"},
        reads={
            "matmul": {"x": BROADCAST, "dequantize": strided(64)},
            "dequantize": {"packed": IRREGULAR, "scale": IRREGULAR},
        },
        blocks={"dequantize": "", "matmul": "dequantize", "cast": "matmul"},
        flops=24 * 64 * 4 + 2 * 10 * 24 * 64,
        bytes=2 * 10 * 64 + 4 * 24 * (64 // 8) + 2 * 24 * (64 // 16) + 2 * 10 * 24,
        intensity=13.552941,
    ),
    # S[h, g, t] = scale·Σd Q[h, g, d]·K[page[t // 8], t % 8, h, d] of 40 tokens in 5 of 11 pages. Keys have one byte.
    # Eight neighbours share an entry of the page table.
    "quant_irregular/paged_scores": Expected(
        lambda: paged_scores(40, 8, 11, 3, 2, 16),
        anchor="scores",
        iterators={"scores": "S3 S2 S40 R16"},
        reads={"scores": {"q": BROADCAST, "cache": GATHERED, "page_table": IRREGULAR}},
        blocks={"scores": "", "scaled": "scores"},
        flops=3 * 2 * 40 * (2 * 16 + 1),
        bytes=4 * 3 * 2 * 16 + 11 * 8 * 3 * 16 + 4 * 11 * 8 * 3 + 4 * (40 // 8) + 4 * 3 * 2 * 40,
        intensity=1.192053,
    ),
    # 13 + 2 rows hold (15 - 3) // 2 + 1 = 7 windows of 3 at steps of 2, 17 + 4 columns (21 - 5) // 3 + 1 = 6 of 5.
    # Of each result 4·3·5 products, the bias, and a maximum with 0. Padding is a choice.
    "vision/conv2d": Expected(
        lambda: convolution(
            2, 4, 8, (13, 17), (3, 5), stride=(2, 3), padding=(1, 2), dilation=(1, 1), tail=("bias", "relu")
        ),
        anchor="conv2d_nchw",
        iterators={"conv2d_nchw": "S2 S8 S7 S6 R4 R3 R5"},
        reads={"conv2d_nchw": {"pad_temp": strided(3), "weight": BROADCAST}},
        blocks={"pad_temp": "", "conv2d_nchw": "pad_temp", "T_add": "conv2d_nchw", "compute": "T_add"},
        flops=2 * 8 * 7 * 6 * (2 * 4 * 3 * 5 + 1 + 1),
        bytes=4 * (2 * 4 * 13 * 17 + 8 * 4 * 3 * 5 + 8 + 2 * 8 * 7 * 6),
        intensity=7.0,
    ),
    # Two filters for each of 6 channels, each of that channel alone; (14 + 2·2 - 5) // 2 + 1 = 7 columns, 9 rows.
    "vision/depthwise": Expected(
        lambda: convolution(
            2, 6, 12, (9, 14), (3, 5), stride=(1, 2), padding=(1, 2), dilation=(1, 1), groups=6, dtype="float16"
        ),
        anchor="group_conv2d_nchw",
        iterators={"group_conv2d_nchw": "S2 S12 S9 S7 R1 R3 R5"},
        reads={"group_conv2d_nchw": {"pad_temp": strided(2), "weight": BROADCAST}},
        blocks={"pad_temp": "", "group_conv2d_nchw": "pad_temp", "compute": "group_conv2d_nchw"},
        flops=2 * 12 * 9 * 7 * (2 * 3 * 5),
        bytes=2 * (2 * 6 * 9 * 14 + 12 * 3 * 5 + 2 * 12 * 9 * 7),
        intensity=7.078652,
    ),
    # A maximum for each element of a window; (12 + 2 - 3) // 2 + 1 = 6 by (22 + 2 - 4) // 3 + 1 = 7 windows.
    "vision/max_pool": Expected(
        lambda: pool("max", 2, 5, (12, 22), (3, 4), stride=(2, 3), padding=(1, 1)),
        anchor="pool_max",
        iterators={"pool_max": "S2 S5 S6 S7 R3 R4"},
        reads={"pool_max": {"pad_temp": strided(3)}},
        blocks={"pad_temp": "", "pool_max": "pad_temp"},
        flops=2 * 5 * 6 * 7 * (3 * 4),
        bytes=4 * (2 * 5 * 12 * 22 + 2 * 5 * 6 * 7),
        intensity=0.411765,
    ),
    # A convolution, at steps of 1, of the image with zeros between its pixels, by the kernel turned round: the products
    # with those zeros are computed too. Rows: 3·2 - 2·1 + 3 + 1 = 8; columns: 5·3 - 2·1 + 4 = 17.
    "vision/transposed": Expected(
        lambda: transposed(2, 5, 6, (4, 6), (3, 4), stride=(2, 3), padding=(1, 1), more=(1, 0)),
        anchor="compute",
        iterators={"compute": "S2 S6 S8 S17 R5 R3 R4"},
        reads={
            "compute": {"data_pad": COALESCED, "kernel_transform": BROADCAST},
            "data_dilate": {"x": IRREGULAR},
            "kernel_transform": {"weight": strided(-1)},
        },
        blocks={
            "data_dilate": "",
            "data_pad": "data_dilate",
            "kernel_transform": "",
            "compute": "data_pad kernel_transform",
        },
        flops=2 * 6 * 8 * 17 * (2 * 5 * 3 * 4),
        bytes=4 * (2 * 5 * 4 * 6 + 5 * 6 * 3 * 4 + 2 * 6 * 8 * 17),
        intensity=21.935484,
    ),
}


def said(f: Json, wanted: Expected) -> Expected:
    """What F says of that which is expected."""
    blocks = {block["name"]: block for block in f["blocks"]}
    writers = {write["buffer"]: block["name"] for block in f["blocks"] for write in block["writes"]}
    first = anchor(f) or {}
    shown = dict.fromkeys([axis["block"] for axis in f["reductions"]] or [first["name"]])
    return replace(
        wanted,
        anchor=first["name"],
        iterators={
            name: " ".join(f"{axis['kind'][0].upper()}{axis['extent']}" for axis in blocks[name]["iterators"])
            for name in shown
        },
        reads={
            name: {writers.get(r["buffer"], r["buffer"]): (r["access"], r["stride"]) for r in blocks[name]["reads"]}
            for name in wanted.reads
            if name in blocks
        },
        blocks={name: " ".join(sorted(block["producers"])) for name, block in blocks.items()},
        flops=f["flops"],
        bytes=f["bytes"],
        intensity=f["intensity"],
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_features_follow_from_the_definition(name: str) -> None:
    wanted = WORKLOADS[name]
    modules = lowering.modules(wanted.program(), targets.target("llvm"))
    assert len(modules) == 1 or wanted.task
    f = features(modules[wanted.task or next(iter(modules))])
    jsonschema.validate(f, FEATURES)
    assert said(f, wanted) == wanted
    assert [(axis["block"], f"R{axis['extent']}") for axis in f["reductions"]] == [
        (name, word) for name, words in wanted.iterators.items() for word in words.split() if word.startswith("R")
    ]
    assert len({block["name"] for block in f["blocks"]}) == len(f["blocks"])
    for block in f["blocks"]:
        assert all(read["indirect"] == (read["access"] == "gathered") for read in block["reads"])
