"""Quantised products, quantisation itself, and reads whose place is data."""

from functools import partial
from typing import Any

from littledragon.compiler.zoo import block as zoo
from littledragon.compiler.zoo.block import Block, export


def w8a16_matmul(m: int, n: int, k: int) -> Any:
    """Y = X·(scale * W)ᵀ: int8 weights with a scale a row, float16 activations, float32 accumulation."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(x: Any, w: Any, scale: Any) -> Any:
        weight = te.compute((n, k), lambda r, c: w[r, c].astype("float16") * scale[r], name="dequantize")
        return _product(x, weight)

    def forward(x: Any, w: Any, scale: Any) -> Any:
        return op.tensor_expr_op(compute, "w8a16_matmul", [x, w, scale])

    return export(forward, x=((m, k), "float16"), w=((n, k), "int8"), scale=((n,), "float16"))


def w4a16_matmul(m: int, n: int, k: int, group: int) -> Any:
    """The same with 4-bit weights, eight to a uint32, and a scale for each group of the reduction axis."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(x: Any, packed: Any, scale: Any) -> Any:
        def element(r: Any, c: Any) -> Any:
            nibble = (packed[r, c // 8] >> (c % 8 * 4).astype("uint32")) & te.const(15, "uint32")
            return (nibble.astype("float16") - te.const(8, "float16")) * scale[r, c // group]

        return _product(x, te.compute((n, k), element, name="dequantize"))

    def forward(x: Any, packed: Any, scale: Any) -> Any:
        return op.tensor_expr_op(compute, "w4a16_matmul", [x, packed, scale])

    return export(forward, x=((m, k), "float16"), packed=((n, k // 8), "uint32"), scale=((n, k // group), "float16"))


def _product(x: Any, weight: Any) -> Any:
    """cast_fp16(X·Wᵀ) with float32 accumulation, in TE: Relax would not fuse a TE weight into the product."""
    from tvm import te

    (m, k), n = x.shape, weight.shape[0]
    axis = te.reduce_axis((0, k), name="k")
    product = te.compute(
        (m, n),
        lambda r, c: te.sum(x[r, axis].astype("float32") * weight[c, axis].astype("float32"), axis=axis),
        name="matmul",
    )
    return te.compute((m, n), lambda r, c: product[r, c].astype("float16"), name="cast")


def quantize(rows: int, hidden: int) -> Any:
    """float16 activations made int8 with a scale for each row; both are kept."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.tensor_expr_op(zoo.quantized, "quantize", [x])

    return export(forward, x=((rows, hidden), "float16"))


def embedding_norm(tokens: int, vocabulary: int, positions: int, hidden: int) -> Any:
    """layer_norm(E[token] + P[position]), float32: two look-ups, a sum and a normalisation."""
    from tvm import te, topi
    from tvm.relax.frontend.nn import op

    def compute(token: Any, position: Any, words: Any, places: Any, weight: Any, bias: Any) -> Any:
        total = te.compute((tokens, hidden), lambda t, h: words[token[t], h] + places[position[t], h], name="embedding")
        return topi.nn.layer_norm(total, weight, bias, axis=[1], epsilon=1e-12)

    def forward(token: Any, position: Any, words: Any, places: Any, weight: Any, bias: Any) -> Any:
        return op.tensor_expr_op(compute, "embedding_norm", [token, position, words, places, weight, bias])

    return export(
        forward,
        token=((tokens,), "int32"),
        position=((tokens,), "int32"),
        words=((vocabulary, hidden), "float32"),
        places=((positions, hidden), "float32"),
        weight=((hidden,), "float32"),
        bias=((hidden,), "float32"),
    )


def embedding_bag(bags: int, size: int, rows: int, dim: int) -> Any:
    """Y[b] = Σₛ T[index[b, s]], float32: look-ups summed in bags of equal size."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(table: Any, index: Any) -> Any:
        axis = te.reduce_axis((0, size), name="s")
        return te.compute((bags, dim), lambda b, d: te.sum(table[index[b, axis], d], axis=axis), name="embedding_bag")

    def forward(table: Any, index: Any) -> Any:
        return op.tensor_expr_op(compute, "embedding_bag", [table, index])

    return export(forward, table=((rows, dim), "float32"), index=((bags, size), "int64"))


def paged_scores(tokens: int, page: int, pages: int, heads: int, group: int, dim: int) -> Any:
    """Scores of one decoding step against a paged int8 cache, with a scale for each head of each slot, float32."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(q: Any, cache: Any, scale: Any, page_table: Any) -> Any:
        axis = te.reduce_axis((0, dim), name="d")

        def dot(h: Any, g: Any, t: Any) -> Any:
            key = cache[page_table[t // page], t % page, h, axis].astype("float32")
            return te.sum(q[h, g, axis] * key, axis=axis)

        scores = te.compute((heads, group, tokens), dot, name="scores")
        return te.compute(
            (heads, group, tokens),
            lambda h, g, t: scores[h, g, t] * scale[page_table[t // page], t % page, h],
            name="scaled",
        )

    def forward(q: Any, cache: Any, scale: Any, page_table: Any) -> Any:
        return op.tensor_expr_op(compute, "paged_scores", [q, cache, scale, page_table])

    return export(
        forward,
        q=((heads, group, dim), "float32"),
        cache=((pages, page, heads, dim), "int8"),
        scale=((pages, page, heads), "float32"),
        page_table=((tokens // page,), "int32"),
    )


_block = partial(zoo.block, family="quant_irregular")

BLOCKS: tuple[Block, ...] = (
    _block(
        "w8a16_matmul",
        zoo.QWEN,
        "gate projection with int8 weights, one of 16 row shards, 16 tokens",
        w8a16_matmul,
        cut="qwen2.5-0.5b-tp16-b16",
        m=16,
        n=304,
        k=896,
    ),
    _block(
        "w4a16_matmul",
        zoo.LLAMA2,
        "value projection with 4-bit weights in groups of 128, one head, hidden size cut in 2, 8 tokens",
        w4a16_matmul,
        cut="llama-2-7b-tp32-g128-b8",
        m=8,
        n=128,
        k=2048,
        group=128,
    ),
    _block(
        "quantize",
        zoo.MISTRAL,
        "int8 quantisation of the activations of 24 tokens",
        quantize,
        cut="mistral-7b-b24",
        rows=24,
        hidden=4096,
    ),
    _block(
        "embedding_norm",
        zoo.BERT,
        "word and position embedding of 160 tokens, normalised, one of 16 vocabulary shards",
        embedding_norm,
        cut="bert-base-tp16-b160",
        tokens=160,
        vocabulary=1907,
        positions=512,
        hidden=768,
    ),
    _block(
        "embedding_bag",
        zoo.DLRM,
        "sums of 40 rows of one embedding table for 128 samples",
        embedding_bag,
        cut="dlrm-b128-l40",
        bags=128,
        size=40,
        rows=10000,
        dim=64,
    ),
    _block(
        "paged_scores",
        zoo.MISTRAL,
        "scores of one query against 256 cached keys in int8 pages of 16",
        paged_scores,
        cut="mistral-7b-s256",
        tokens=256,
        page=16,
        pages=64,
        heads=8,
        group=4,
        dim=128,
    ),
)
