"""From the vectors of tokens to one vector of a text or an image, and from vectors to their similarities.

Shapes are [sentences, tokens, hidden]; sums are float32.
"""

from typing import Any

from littledragon.compiler.zoo.block import Program, computed
from littledragon.compiler.zoo.norm_reduction_te import along_last, elements, reduced, shape, square, wide


def mean_pool(sentences: int, tokens: int, hidden: int, dtype: str, normalised: bool = False) -> Program:
    """Mean over the tokens that the mask keeps; `normalised`: then divided by its length."""

    def compute(x: Any, mask: Any) -> Any:
        from tvm import te, tirx

        one = tirx.const(1.0, "float32")
        kept = elements(x.shape, lambda s, t, h: tirx.Select(mask(s, t), wide(x(s, t, h)), one * 0.0), "kept")
        total = reduced(te.sum, (sentences, hidden), (tokens,), lambda at, inner: kept(at[0], *inner, at[1]), "total")
        count = along_last(te.sum, mask, "count")

        def mean(s: Any, h: Any) -> Any:
            return total(s, h) / te.max(count(s), one)

        if not normalised:
            return elements((sentences, hidden), lambda s, h: mean(s, h).astype(dtype), "mean")
        average = elements((sentences, hidden), mean, "mean")
        return _unit(average, dtype)

    mask = ((sentences, tokens), "bool")
    return computed("mean_pool", compute, x=((sentences, tokens, hidden), dtype), mask=mask)


def max_pool(sentences: int, tokens: int, hidden: int, dtype: str) -> Program:
    """Maximum over the tokens that the mask keeps, -10⁴ where it keeps none."""

    def compute(x: Any, mask: Any) -> Any:
        from tvm import te, tirx

        least = tirx.const(-1e4, "float32")
        kept = elements(x.shape, lambda s, t, h: tirx.Select(mask(s, t), wide(x(s, t, h)), least), "kept")
        highest = reduced(
            te.max, (sentences, hidden), (tokens,), lambda at, inner: kept(at[0], *inner, at[1]), "highest"
        )
        return elements((sentences, hidden), lambda s, h: highest(s, h).astype(dtype), "maximum")

    mask = ((sentences, tokens), "bool")
    return computed("max_pool", compute, x=((sentences, tokens, hidden), dtype), mask=mask)


def token_mean(images: int, tokens: int, hidden: int, dtype: str) -> Program:
    """Mean over all tokens: the pooling of vision transformers without a class token."""

    def compute(x: Any) -> Any:
        from tvm import te

        total = reduced(te.sum, (images, hidden), (tokens,), lambda at, inner: wide(x(at[0], *inner, at[1])), "total")
        return elements((images, hidden), lambda n, h: (total(n, h) / float(tokens)).astype(dtype), "mean")

    return computed("token_mean", compute, x=((images, tokens, hidden), dtype))


def attentive_pool(clips: int, frames: int, channels: int, dtype: str) -> Program:
    """Weighted mean over frames, the weights a softmax over the frames of each channel's own scores (ECAPA-TDNN)."""

    def compute(x: Any, scores: Any) -> Any:
        from tvm import te

        def score(at: Any, inner: Any) -> Any:
            return wide(scores(at[0], *inner, at[1]))

        like = (clips, channels)
        peak = reduced(te.max, like, (frames,), score, "peak")
        likely = elements(x.shape, lambda n, t, c: te.exp(wide(scores(n, t, c)) - peak(n, c)), "likely")
        mass = reduced(te.sum, like, (frames,), lambda at, inner: likely(at[0], *inner, at[1]), "mass")

        def weighted(at: Any, inner: Any) -> Any:
            place = (at[0], *inner, at[1])
            return likely(*place) * wide(x(*place))

        total = reduced(te.sum, like, (frames,), weighted, "weighted")
        return elements(like, lambda n, c: (total(n, c) / mass(n, c)).astype(dtype), "mean")

    frame = ((clips, frames, channels), dtype)
    return computed("attentive_pool", compute, x=frame, scores=frame)


def l2_normalize(rows: int | tuple[int, ...], width: int, dtype: str) -> Program:
    """Rows divided by their Euclidean length."""

    def compute(x: Any) -> Any:
        return _unit(x, dtype)

    return computed("l2_normalize", compute, x=(shape(rows, width), dtype))


def cosine_pairs(rows: int, width: int, dtype: str) -> Program:
    """Cosine of the angle between the two vectors of each pair, float32."""

    def compute(left: Any, right: Any) -> Any:
        from tvm import te

        dot = along_last(te.sum, left, "dot", lambda r, c: wide(left(r, c)) * wide(right(r, c)))
        one = along_last(te.sum, left, "left_squares", lambda r, c: square(wide(left(r, c))))
        two = along_last(te.sum, right, "right_squares", lambda r, c: square(wide(right(r, c))))
        return elements((rows,), lambda r: dot(r) * te.rsqrt(one(r) * two(r) + 1e-12), "cosine")

    row = ((rows, width), dtype)
    return computed("cosine_pairs", compute, left=row, right=row)


def passage_scores(passages: int, width: int, dtype: str) -> Program:
    """Cosine of one query with each of many passages, float32; the query's length is 1."""

    def compute(passage: Any, query: Any) -> Any:
        from tvm import te

        product = elements(passage.shape, lambda r, c: wide(passage(r, c)) * wide(query(c)), "product")
        dot = along_last(te.sum, product, "dot")
        squares = along_last(te.sum, passage, "squares", lambda r, c: square(wide(passage(r, c))))
        return elements((passages,), lambda r: dot(r) * te.rsqrt(squares(r) + 1e-12), "score")

    return computed("passage_scores", compute, passage=((passages, width), dtype), query=((width,), dtype))


def late_interaction(passages: int, queries: int, tokens: int, dtype: str) -> Program:
    """ColBERT's score of each passage, float32: for each token of the query the most similar of the passage's tokens
    that the mask keeps, summed over the query."""

    def compute(similarity: Any, mask: Any) -> Any:
        from tvm import te, tirx

        least = tirx.const(-1e4, "float32")

        def term(p: Any, q: Any, t: Any) -> Any:
            return tirx.Select(mask(p, t), wide(similarity(p, q, t)), least)

        kept = elements(similarity.shape, term, "kept")
        best = along_last(te.max, kept, "best")
        return along_last(te.sum, best, "score")

    mask = ((passages, tokens), "bool")
    return computed("late_interaction", compute, similarity=((passages, queries, tokens), dtype), mask=mask)


def _unit(x: Any, dtype: str) -> Any:
    """In TE: rows divided by their length."""
    from tvm import te

    squares = along_last(te.sum, x, "unit_squares", lambda *at: square(wide(x(*at))))
    return elements(x.shape, lambda *at: (wide(x(*at)) * te.rsqrt(squares(*at[:-1]) + 1e-12)).astype(dtype), "unit")
