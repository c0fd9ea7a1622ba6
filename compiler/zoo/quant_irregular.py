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
    """Row by row: scale = max|X| / 127, Y = int8(round(X / scale)); both are kept."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(x: Any) -> Any:
        axis = te.reduce_axis((0, hidden), name="k")
        largest = te.compute((rows,), lambda r: te.max(te.abs(x[r, axis].astype("float32")), axis=axis), name="absmax")
        scale = te.compute((rows,), lambda r: te.max(largest[r], tirx.const(1e-6, "float32")) / 127.0, name="scale")
        whole = te.compute(
            (rows, hidden), lambda r, c: te.round(x[r, c].astype("float32") / scale[r]).astype("int8"), name="quantize"
        )
        return [whole, scale]

    def forward(x: Any) -> Any:
        return op.tensor_expr_op(compute, "quantize", [x])

    return export(forward, x=((rows, hidden), "float16"))


def embedding(tokens: int, vocabulary: int, positions: int, hidden: int) -> Any:
    """E[token] + P[position], float32: two look-ups and a sum."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(token: Any, position: Any, words: Any, places: Any) -> Any:
        return te.compute((tokens, hidden), lambda t, h: words[token[t], h] + places[position[t], h], name="embedding")

    def forward(token: Any, position: Any, words: Any, places: Any) -> Any:
        return op.tensor_expr_op(compute, "embedding", [token, position, words, places])

    return export(
        forward,
        token=((tokens,), "int32"),
        position=((tokens,), "int32"),
        words=((vocabulary, hidden), "float32"),
        places=((positions, hidden), "float32"),
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


def paged_gather(tokens: int, page: int, pages: int, heads: int, dim: int) -> Any:
    """Keys of one sequence out of a paged int8 cache, made float16 with a scale for each head of each slot."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(cache: Any, scale: Any, page_table: Any) -> Any:
        def element(t: Any, h: Any, d: Any) -> Any:
            place = page_table[t // page]
            return cache[place, t % page, h, d].astype("float16") * scale[place, t % page, h]

        return te.compute((tokens, heads, dim), element, name="paged_gather")

    def forward(cache: Any, scale: Any, page_table: Any) -> Any:
        return op.tensor_expr_op(compute, "paged_gather", [cache, scale, page_table])

    return export(
        forward,
        cache=((pages, page, heads, dim), "int8"),
        scale=((pages, page, heads), "float16"),
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
        "embedding",
        zoo.GPT2,
        "word and position embedding of 128 tokens, one of 16 vocabulary shards",
        embedding,
        cut="gpt2-tp16-b128",
        tokens=128,
        vocabulary=3141,
        positions=1024,
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
        "paged_gather",
        zoo.MISTRAL,
        "256 cached keys of 8 heads out of pages of 16",
        paged_gather,
        cut="mistral-7b-s256",
        tokens=256,
        page=16,
        pages=64,
        heads=8,
        dim=128,
    ),
)
