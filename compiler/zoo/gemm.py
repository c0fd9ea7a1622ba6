"""Matrix products: half precision, biased, gated, batched, integer and skinny."""

from functools import partial
from typing import Any

from littledragon.compiler.zoo import block as zoo
from littledragon.compiler.zoo.block import Block, export


def nt_matmul_cast(m: int, n: int, k: int) -> Any:
    """Y = cast_fp16(X·Wᵀ) with float32 accumulation: the paper's own example."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any) -> Any:
        y = op.matmul(x, op.permute_dims(w, [1, 0]), out_dtype="float32")
        return op.astype(y, "float16")

    return export(forward, x=((m, k), "float16"), w=((n, k), "float16"))


def linear_bias_gelu(m: int, n: int, k: int) -> Any:
    """Y = gelu(X·Wᵀ + b) in float32."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any, bias: Any) -> Any:
        return op.gelu(op.matmul(x, op.permute_dims(w, [1, 0])) + bias)

    return export(forward, x=((m, k), "float32"), w=((n, k), "float32"), bias=((n,), "float32"))


def gated_mlp(m: int, hidden: int, inner: int) -> Any:
    """down(silu(gate(X)) * up(X)) in float32: three products and a gate."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, gate: Any, up: Any, down: Any) -> Any:
        left = op.matmul(x, op.permute_dims(gate, [1, 0]))
        right = op.matmul(x, op.permute_dims(up, [1, 0]))
        return op.matmul(op.silu(left) * right, op.permute_dims(down, [1, 0]))

    weight = ((inner, hidden), "float32")
    return export(forward, x=((m, hidden), "float32"), gate=weight, up=weight, down=((hidden, inner), "float32"))


def batched_matmul(batch: int, m: int, n: int, k: int) -> Any:
    """Y[b] = X[b]·W[b] in float32, one pair of matrices for each adapter."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any) -> Any:
        return op.matmul(x, w)

    return export(forward, x=((batch, m, k), "float32"), w=((batch, k, n), "float32"))


def int8_matmul(m: int, n: int, k: int) -> Any:
    """Y = X·Wᵀ of int8 with int32 accumulators."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any) -> Any:
        return op.matmul(x, op.permute_dims(w, [1, 0]), out_dtype="int32")

    return export(forward, x=((m, k), "int8"), w=((n, k), "int8"))


_block = partial(zoo.block, family="gemm")

BLOCKS: tuple[Block, ...] = (
    _block(
        "nt_matmul_cast",
        zoo.LLAMA2,
        "query projection, cut 32 x 32 ways to one head and one 128-wide slice of the hidden size, 128 tokens",
        nt_matmul_cast,
        cut="llama-2-7b-tp32-b128",
        m=128,
        n=128,
        k=128,
    ),
    _block(
        "nt_matmul_cast",
        zoo.TINYLLAMA,
        "output projection, one of 32 column shards, 32 tokens",
        nt_matmul_cast,
        cut="tinyllama-1.1b-tp32-b32",
        m=32,
        n=2048,
        k=64,
    ),
    _block(
        "skinny_matmul",
        zoo.MISTRAL,
        "up projection while decoding 4 sequences, one of 64 row shards",
        nt_matmul_cast,
        cut="mistral-7b-tp64-b4",
        m=4,
        n=224,
        k=4096,
    ),
    _block(
        "linear_bias_gelu",
        zoo.BERT,
        "first layer of the feed-forward network, one of 8 row shards, 64 tokens",
        linear_bias_gelu,
        cut="bert-base-tp8-b64",
        m=64,
        n=384,
        k=768,
    ),
    _block(
        "gated_mlp",
        zoo.SMOLLM,
        "gated feed-forward network, one of 8 shards, 48 tokens",
        gated_mlp,
        cut="smollm2-135m-tp8-b48",
        m=48,
        hidden=576,
        inner=192,
    ),
    _block(
        "batched_matmul",
        zoo.QWEN,
        "rank-16 adapters of 8 requests, 16 tokens each",
        batched_matmul,
        cut="qwen2.5-0.5b-lora16-b8",
        batch=8,
        m=16,
        n=16,
        k=896,
    ),
    _block(
        "int8_matmul",
        zoo.QWEN,
        "key projection with int8 weights and activations, 64 tokens",
        int8_matmul,
        cut="qwen2.5-0.5b-w8a8-b64",
        m=64,
        n=128,
        k=896,
    ),
)
