"""Attention of vision and diffusion transformers: over packed projections, and jointly with a text."""

from typing import Any

from littledragon.compiler.zoo.attention import rounded, softmax, stage, wide
from littledragon.compiler.zoo.block import Program, export


def packed_attention(batch: int, tokens: int, heads: int, dim: int, dtype: str) -> Program:
    """Attention that reads queries, keys and values where their one projection left them, [batch, tokens, 3, heads,
    dim]. Scores, softmax, context.
    """
    from tvm import te

    def scores(packed: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            (batch, heads, tokens, tokens),
            lambda b, h, q, t: te.sum(wide(packed[b, q, 0, h, d]) * wide(packed[b, t, 1, h, d]), axis=d),
            name="qk",
        )
        return te.compute(raw.shape, lambda b, h, q, t: raw[b, h, q, t] * dim**-0.5, name="scores")

    def context(weights: Any, packed: Any) -> Any:
        t = te.reduce_axis((0, tokens), name="t")
        raw = te.compute(
            (batch, tokens, heads, dim),
            lambda b, q, h, d: te.sum(wide(weights[b, h, q, t]) * wide(packed[b, t, 2, h, d]), axis=t),
            name="pv",
        )
        return rounded(raw, dtype)

    def forward(packed: Any) -> Any:
        weights = softmax(stage("packed_scores", "scores", scores, packed), dtype)
        return stage("packed_context", "context", context, weights, packed)

    return export(forward, packed=((batch, tokens, 3, heads, dim), dtype))


def joint_attention(batch: int, heads: int, words: int, patches: int, dim: int, dtype: str) -> Program:
    """Attention of a text's and an image's tokens to both (MM-DiT): two streams of queries, keys and values, of which
    the text's tokens come first. Scores, softmax, context.
    """
    from tvm import te, tirx

    tokens = words + patches

    def either(text: Any, image: Any, b: Any, n: Any, h: Any, d: Any) -> Any:
        first, second = text[b, te.min(n, words - 1), h, d], image[b, te.max(n - words, 0), h, d]
        return wide(tirx.if_then_else(n < words, first, second))

    def scores(text_query: Any, image_query: Any, text_key: Any, image_key: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            (batch, heads, tokens, tokens),
            lambda b, h, q, t: te.sum(
                either(text_query, image_query, b, q, h, d) * either(text_key, image_key, b, t, h, d), axis=d
            ),
            name="qk",
        )
        return te.compute(raw.shape, lambda b, h, q, t: raw[b, h, q, t] * dim**-0.5, name="scores")

    def context(weights: Any, text_value: Any, image_value: Any) -> Any:
        t = te.reduce_axis((0, tokens), name="t")
        raw = te.compute(
            (batch, tokens, heads, dim),
            lambda b, q, h, d: te.sum(wide(weights[b, h, q, t]) * either(text_value, image_value, b, t, h, d), axis=t),
            name="pv",
        )
        return rounded(raw, dtype)

    def forward(
        text_query: Any, image_query: Any, text_key: Any, image_key: Any, text_value: Any, image_value: Any
    ) -> Any:
        found = stage("joint_scores", "scores", scores, text_query, image_query, text_key, image_key)
        return stage("joint_context", "context", context, softmax(found, dtype), text_value, image_value)

    text, image = ((batch, words, heads, dim), dtype), ((batch, patches, heads, dim), dtype)
    return export(
        forward,
        text_query=text,
        image_query=image,
        text_key=text,
        image_key=image,
        text_value=text,
        image_value=image,
    )
