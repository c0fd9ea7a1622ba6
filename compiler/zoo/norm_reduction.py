"""Normalisations and reductions over rows, columns and images."""

from functools import partial
from typing import Any

from littledragon.compiler.zoo import block as zoo
from littledragon.compiler.zoo.block import Block, export


def rms_norm(rows: int, hidden: int) -> Any:
    """Y = X / rms(X) * w, float16."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any) -> Any:
        return op.rms_norm(x, w, axes=-1, epsilon=1e-5)

    return export(forward, x=((rows, hidden), "float16"), w=((hidden,), "float16"))


def add_rms_norm(rows: int, hidden: int) -> Any:
    """Residual addition, then RMS normalisation, float32; both the sum and the normalised rows are kept."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, residual: Any, w: Any) -> Any:
        total = x + residual
        return op.rms_norm(total, w, axes=-1, epsilon=1e-6), total

    row = ((rows, hidden), "float32")
    return export(forward, x=row, residual=row, w=((hidden,), "float32"))


def layer_norm(rows: int, hidden: int) -> Any:
    """Layer normalisation with weight and bias, float32."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        return op.layer_norm(x, hidden, weight, bias, eps=1e-12)

    vector = ((hidden,), "float32")
    return export(forward, x=((rows, hidden), "float32"), weight=vector, bias=vector)


def softmax(rows: int, columns: int) -> Any:
    """Softmax over the last axis, float32."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.softmax(x, axis=-1)

    return export(forward, x=((rows, columns), "float32"))


def log_softmax(rows: int, columns: int) -> Any:
    """Logarithm of softmax over the last axis, float32."""
    from tvm import relax
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.wrap_nested(relax.op.nn.log_softmax(x._expr, axis=-1), "log_softmax")

    return export(forward, x=((rows, columns), "float32"))


def argmax(rows: int, columns: int) -> Any:
    """Index of the largest logit of each row, int32; the first of equals."""
    from tvm import topi
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.tensor_expr_op(lambda a: topi.argmax(a, axis=1), "argmax", [x])

    return export(forward, x=((rows, columns), "float32"))


def variance(rows: int, columns: int) -> Any:
    """Variance of each row, float32."""
    from tvm import relax
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.wrap_nested(relax.op.variance(x._expr, axis=[1]), "variance")

    return export(forward, x=((rows, columns), "float32"))


def masked_mean(sentences: int, tokens: int, hidden: int) -> Any:
    """Mean over the first length[s] tokens of each sentence s, float32."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(x: Any, length: Any) -> Any:
        axis = te.reduce_axis((0, tokens), name="t")

        def total(s: Any, h: Any) -> Any:
            zero = tirx.const(0.0, "float32")
            return te.sum(tirx.Select(axis.var < length[s], x[s, axis, h], zero), axis=axis)

        kept = te.compute((sentences, hidden), total, name="total")
        one = tirx.const(1, "int32")
        return te.compute(
            (sentences, hidden), lambda s, h: kept[s, h] / te.max(length[s], one).astype("float32"), name="mean"
        )

    def forward(x: Any, length: Any) -> Any:
        return op.tensor_expr_op(compute, "masked_mean", [x, length])

    return export(forward, x=((sentences, tokens, hidden), "float32"), length=((sentences,), "int32"))


_block = partial(zoo.block, family="norm_reduction")

BLOCKS: tuple[Block, ...] = (
    _block(
        "rms_norm",
        zoo.LLAMA2,
        "RMS normalisation of 32 tokens",
        rms_norm,
        cut="llama-2-7b-b32",
        rows=32,
        hidden=4096,
    ),
    _block(
        "add_rms_norm",
        zoo.QWEN,
        "residual addition and RMS normalisation of 192 tokens",
        add_rms_norm,
        cut="qwen2.5-0.5b-b192",
        rows=192,
        hidden=896,
    ),
    _block(
        "layer_norm",
        zoo.BERT,
        "layer normalisation of 64 tokens",
        layer_norm,
        cut="bert-base-b64",
        rows=64,
        hidden=768,
    ),
    _block(
        "softmax",
        zoo.TINYLLAMA,
        "probabilities of 24 tokens over one of 4 vocabulary shards",
        softmax,
        cut="tinyllama-1.1b-tp4-b24",
        rows=24,
        columns=8000,
    ),
    _block(
        "log_softmax",
        zoo.BERT,
        "log-probabilities of 6 tokens over the whole vocabulary",
        log_softmax,
        cut="bert-base-b6",
        rows=6,
        columns=30522,
    ),
    _block(
        "argmax",
        zoo.QWEN,
        "greedy choice for 32 sequences over one of 8 vocabulary shards",
        argmax,
        cut="qwen2.5-0.5b-tp8-b32",
        rows=32,
        columns=18992,
    ),
    _block(
        "variance",
        zoo.WHISPER,
        "variance of 80 mel channels over 1500 frames",
        variance,
        cut="whisper-tiny",
        rows=80,
        columns=1500,
    ),
    _block(
        "masked_mean",
        zoo.MINILM,
        "mean pooling of 16 sentences of 128 tokens",
        masked_mean,
        cut="minilm-l6-b16-s128",
        sentences=16,
        tokens=128,
        hidden=384,
    ),
)
