"""Reads whose place is data: embeddings, features of recommenders, adapters, labels; and their one-hot transposes."""

from typing import Any

from littledragon.compiler.zoo.block import Program
from littledragon.compiler.zoo.quant_irregular import Argument, computed


def embedding_layer_norm(tokens: int, vocabulary: int, positions: int, hidden: int, dtype: str) -> Program:
    """layer_norm(E[token] + P[position] + S[segment]) of half-precision tables, in float32 (BERT's embeddings)."""
    from tvm import te, topi

    def compute(
        token: Any, place: Any, segment: Any, words: Any, places: Any, kinds: Any, weight: Any, bias: Any
    ) -> Any:
        def total(t: Any, h: Any) -> Any:
            parts = (words[token[t], h], places[place[t], h], kinds[segment[t], h])
            first, second, third = (part.astype("float32") for part in parts)
            return first + second + third

        x = te.compute((tokens, hidden), total, name="embedding")
        normal = topi.nn.layer_norm(x, weight, bias, axis=[1], epsilon=1e-12)
        return te.compute((tokens, hidden), lambda t, h: normal[t, h].astype(dtype), name="cast")

    number, vector = ((tokens,), "int32"), ((hidden,), "float32")
    return computed(
        "embedding_layer_norm",
        compute,
        token=number,
        place=number,
        segment=number,
        words=((vocabulary, hidden), dtype),
        places=((positions, hidden), dtype),
        kinds=((2, hidden), dtype),
        weight=vector,
        bias=vector,
    )


def embedding_rms_norm(tokens: int, vocabulary: int, hidden: int, dtype: str, scaled: bool) -> Program:
    """E[token], times √hidden where `scaled` (Gemma), and its RMS normalisation; both are kept."""
    from tvm import te

    def compute(token: Any, words: Any, weight: Any) -> Any:
        def row(t: Any, h: Any) -> Any:
            return words[token[t], h] * te.const(hidden**0.5, dtype) if scaled else words[token[t], h]

        x = te.compute((tokens, hidden), row, name="embedding")
        axis = te.reduce_axis((0, hidden), name="k")
        square = te.compute(
            (tokens,),
            lambda t: te.sum(x[t, axis].astype("float32") * x[t, axis].astype("float32"), axis=axis),
            name="square",
        )

        def normal(t: Any, h: Any) -> Any:
            wide = x[t, h].astype("float32") * te.rsqrt(square[t] / hidden + 1e-6)
            return (wide * weight[h].astype("float32")).astype(dtype)

        return [x, te.compute((tokens, hidden), normal, name="normal")]

    return computed(
        "embedding_rms_norm",
        compute,
        token=((tokens,), "int32"),
        words=((vocabulary, hidden), dtype),
        weight=((hidden,), dtype),
    )


def vocabulary_shard(tokens: int, vocabulary: int, hidden: int, dtype: str) -> Program:
    """One shard's part of an embedding: E[token - first] where the token is one of its own, else 0 (Megatron-LM)."""
    from tvm import te, tirx

    def compute(token: Any, words: Any) -> Any:
        def row(t: Any, h: Any) -> Any:
            place = token[t] - vocabulary
            kept = tirx.all(place >= 0, place < vocabulary)
            word = words[tirx.max(tirx.min(place, vocabulary - 1), 0), h]
            return tirx.Select(kept, word, tirx.const(0.0, dtype))

        return te.compute((tokens, hidden), row, name="embedding")

    return computed("vocabulary_shard", compute, token=((tokens,), "int32"), words=((vocabulary, hidden), dtype))


def position_embedding(tokens: int, vocabulary: int, positions: int, hidden: int, dtype: str) -> Program:
    """E[token] + P[position]: the input of decoders with learned positions."""
    from tvm import te

    def compute(token: Any, place: Any, words: Any, places: Any) -> Any:
        return te.compute((tokens, hidden), lambda t, h: words[token[t], h] + places[place[t], h], name="embedding")

    number = ((tokens,), "int32")
    return computed(
        "position_embedding",
        compute,
        token=number,
        place=number,
        words=((vocabulary, hidden), dtype),
        places=((positions, hidden), dtype),
    )


def packed_embedding(tokens: int, vocabulary: int, hidden: int, group: int, dtype: str) -> Program:
    """Rows of a 4-bit embedding, eight to a uint32, with a scale for each group, as half precision (MLC's q4f16)."""
    from tvm import te

    def compute(token: Any, packed: Any, scale: Any) -> Any:
        def row(t: Any, h: Any) -> Any:
            code = (packed[token[t], h // 8] >> (h % 8 * 4).astype("uint32")) & te.const(15, "uint32")
            return (code.astype(dtype) - te.const(7, dtype)) * scale[token[t], h // group]

        return te.compute((tokens, hidden), row, name="dequantize")

    return computed(
        "packed_embedding",
        compute,
        token=((tokens,), "int32"),
        packed=((vocabulary, hidden // 8), "uint32"),
        scale=((vocabulary, hidden // group), dtype),
    )


def int8_embedding_bag(bags: int, size: int, rows: int, dim: int) -> Program:
    """Sums of rows of uint8, each with a scale and a least value of its own, float32 (row-wise quantised tables)."""
    from tvm import te

    def compute(table: Any, scale: Any, least: Any, index: Any) -> Any:
        axis = te.reduce_axis((0, size), name="s")

        def element(b: Any, d: Any) -> Any:
            row = index[b, axis]
            return te.sum(table[row, d].astype("float32") * scale[row] + least[row], axis=axis)

        return te.compute((bags, dim), element, name="embedding_bag")

    return computed(
        "int8_embedding_bag",
        compute,
        table=((rows, dim), "uint8"),
        scale=((rows,), "float32"),
        least=((rows,), "float32"),
        index=((bags, size), "int64"),
    )


def factorization_machine(batch: int, fields: int, rows: int, dim: int) -> Program:
    """½ Σ_d ((Σ_f v)² - Σ_f v²) of the embeddings v = T[index[b, f]] of a sample's fields, float32 (DeepFM)."""
    from tvm import te

    def compute(table: Any, index: Any) -> Any:
        axis, other = te.reduce_axis((0, fields), name="s"), te.reduce_axis((0, fields), name="e")
        width = te.reduce_axis((0, dim), name="k")
        total = te.compute((batch, dim), lambda b, d: te.sum(table[index[b, axis], d], axis=axis), name="total")
        square = te.compute(
            (batch, dim),
            lambda b, d: te.sum(table[index[b, other], d] * table[index[b, other], d], axis=other),
            name="square",
        )
        return te.compute(
            (batch,),
            lambda b: te.sum((total[b, width] * total[b, width] - square[b, width]) * 0.5, axis=width),
            name="pairs",
        )

    return computed("factorization_machine", compute, table=((rows, dim), "float32"), index=((batch, fields), "int64"))


def gathered_interaction(batch: int, fields: int, rows: int, dim: int, dtype: str) -> Program:
    """Dot products of all pairs of a sample's embeddings, read from one table that holds all fields' rows (DLRM)."""
    from tvm import te

    def compute(table: Any, index: Any) -> Any:
        rows_of = te.compute((batch, fields, dim), lambda b, f, d: table[index[b, f], d], name="gather")
        axis = te.reduce_axis((0, dim), name="k")

        def dot(b: Any, f: Any, g: Any) -> Any:
            return te.sum(rows_of[b, f, axis].astype("float32") * rows_of[b, g, axis].astype("float32"), axis=axis)

        total = te.compute((batch, fields, fields), dot, name="interaction")
        return te.compute(total.shape, lambda b, f, g: total[b, f, g].astype(dtype), name="cast")

    return computed("gathered_interaction", compute, table=((rows, dim), dtype), index=((batch, fields), "int64"))


def hash_embedding(tokens: int, hashes: int, buckets: int, dim: int, dtype: str) -> Program:
    """Σₙ T[n, (token * prime[n]) mod buckets]: one row of each of several hashed tables, summed in float32."""
    from tvm import te

    def compute(token: Any, primes: Any, table: Any) -> Any:
        axis = te.reduce_axis((0, hashes), name="n")

        def element(t: Any, d: Any) -> Any:
            bucket = token[t] * primes[axis] % te.const(buckets, "int64")
            return te.sum(table[axis, bucket, d].astype("float32"), axis=axis)

        total = te.compute((tokens, dim), element, name="hash_embedding")
        return te.compute((tokens, dim), lambda t, d: total[t, d].astype(dtype), name="cast")

    return computed(
        "hash_embedding",
        compute,
        token=((tokens,), "int64"),
        primes=((hashes,), "int64"),
        table=((hashes, buckets, dim), dtype),
    )


def embedding_gradient(tokens: int, rows: int, hidden: int, dtype: str) -> Program:
    """G[v] = Σₜ (index[t] = v) * dY[t], float32: the gradient of a small table as a one-hot product."""
    from tvm import te, tirx

    def compute(index: Any, gradient: Any) -> Any:
        axis = te.reduce_axis((0, tokens), name="t")

        def element(v: Any, h: Any) -> Any:
            kept = tirx.Select(
                index[axis] == v.astype("int32"), gradient[axis, h].astype("float32"), tirx.const(0.0, "float32")
            )
            return te.sum(kept, axis=axis)

        return te.compute((rows, hidden), element, name="embedding_gradient")

    return computed("embedding_gradient", compute, index=((tokens,), "int32"), gradient=((tokens, hidden), dtype))


def histogram(rows: int, items: int, bins: int, dtype: str) -> Program:
    """How often each of `bins` values occurs in each row, int32: a one-hot sum."""
    from tvm import te, tirx

    def compute(values: Any) -> Any:
        axis = te.reduce_axis((0, items), name="t")
        return te.compute(
            (rows, bins),
            lambda r, b: te.sum(
                tirx.Select(values[r, axis].astype("int32") == b.astype("int32"), 1, 0).astype("int32"), axis=axis
            ),
            name="histogram",
        )

    return computed("histogram", compute, values=((rows, items), dtype))


def label_log_prob(tokens: int, vocabulary: int, dtype: str) -> Program:
    """log softmax(X)[label] of each row, in float32: what cross-entropy and policy gradients are made of."""
    from tvm import te

    def compute(logits: Any, label: Any) -> Any:
        axis, other = te.reduce_axis((0, vocabulary), name="k"), te.reduce_axis((0, vocabulary), name="e")
        largest = te.compute((tokens,), lambda t: te.max(logits[t, axis].astype("float32"), axis=axis), name="largest")
        total = te.compute(
            (tokens,),
            lambda t: te.sum(te.exp(logits[t, other].astype("float32") - largest[t]), axis=other),
            name="total",
        )
        return te.compute(
            (tokens,),
            lambda t: logits[t, label[t]].astype("float32") - largest[t] - te.log(total[t]),
            name="log_prob",
        )

    return computed("label_log_prob", compute, logits=((tokens, vocabulary), dtype), label=((tokens,), "int32"))


def sampled_scores(batch: int, samples: int, rows: int, dim: int, dtype: str) -> Program:
    """Y[b, j] = U[b]·T[item[b, j]]: a user against the items that were drawn for it, in float32."""
    from tvm import te

    def compute(user: Any, table: Any, item: Any) -> Any:
        axis = te.reduce_axis((0, dim), name="d")

        def dot(b: Any, j: Any) -> Any:
            return te.sum(user[b, axis].astype("float32") * table[item[b, j], axis].astype("float32"), axis=axis)

        return te.compute((batch, samples), dot, name="scores")

    return computed(
        "sampled_scores",
        compute,
        user=((batch, dim), dtype),
        table=((rows, dim), dtype),
        item=((batch, samples), "int64"),
    )


def triple_scores(batch: int, negatives: int, entities: int, relations: int, dim: int, form: str) -> Program:
    """Scores of (head, relation, tail) for `negatives` tails a triple, float32: `transe` -Σ|h + r - t|, `distmult`
    Σ h·r·t, `complex` the real part of Σ h·r·conj(t) with halves of a row for real and imaginary parts.
    """
    from tvm import te

    width = 2 * dim if form == "complex" else dim

    def compute(entity: Any, relation: Any, head: Any, kind: Any, tail: Any) -> Any:
        def query(b: Any, d: Any) -> Any:
            h, r = entity[head[b], d], relation[kind[b], d]
            return h + r if form == "transe" else h * r

        def turned(b: Any, p: Any, d: Any) -> Any:
            """The product of head and relation as complex numbers: real part for p = 0, imaginary for 1."""
            sign = te.const(1.0, "float32") - p.astype("float32") * 2.0
            straight = entity[head[b], p * dim + d] * relation[kind[b], d]
            return straight - sign * entity[head[b], (1 - p) * dim + d] * relation[kind[b], dim + d]

        def parted(b: Any, j: Any) -> Any:
            half, step = te.reduce_axis((0, 2), name="p"), te.reduce_axis((0, dim), name="d")
            return te.sum(known[b, half, step] * entity[tail[b, j], half * dim + step], axis=[half, step])

        def score(b: Any, j: Any) -> Any:
            step = te.reduce_axis((0, dim), name="d")
            other = entity[tail[b, j], step]
            part = known[b, step] * other if form == "distmult" else te.abs(known[b, step] - other)
            return te.sum(part, axis=step)

        if form == "complex":
            known = te.compute((batch, 2, dim), turned, name="query")
            return te.compute((batch, negatives), parted, name="scores")
        known = te.compute((batch, dim), query, name="query")
        total = te.compute((batch, negatives), score, name="scores")
        return te.compute(total.shape, lambda b, j: -total[b, j], name="negative") if form == "transe" else total

    return computed(
        "triple_scores",
        compute,
        entity=((entities, width), "float32"),
        relation=((relations, width), "float32"),
        head=((batch,), "int64"),
        kind=((batch,), "int64"),
        tail=((batch, negatives), "int64"),
    )


def relative_bias_softmax(batch: int, heads: int, queries: int, tokens: int, buckets: int, dtype: str) -> Program:
    """softmax(S + bias[bucket[q, t], head]) in float32: a bias learned for each bucket of distances (T5, Swin)."""
    from tvm import te, topi

    def compute(scores: Any, bucket: Any, bias: Any) -> Any:
        biased = te.compute(
            (batch, heads, queries, tokens),
            lambda b, h, q, t: scores[b, h, q, t].astype("float32") + bias[bucket[q, t], h].astype("float32"),
            name="biased",
        )
        weights = topi.nn.softmax(biased, axis=-1)
        return te.compute(weights.shape, lambda b, h, q, t: weights[b, h, q, t].astype(dtype), name="cast")

    return computed(
        "relative_bias_softmax",
        compute,
        scores=((batch, heads, queries, tokens), dtype),
        bucket=((queries, tokens), "int32"),
        bias=((buckets, heads), dtype),
    )


def lora_shrink(tokens: int, hidden: int, rank: int, adapters: int, dtype: str) -> Program:
    """Y[t] = A[adapter[t]]·X[t], float32: every token by the adapter of its request (Punica's first product)."""
    from tvm import te

    def compute(x: Any, down: Any, adapter: Any) -> Any:
        axis = te.reduce_axis((0, hidden), name="k")

        def element(t: Any, r: Any) -> Any:
            return te.sum(x[t, axis].astype("float32") * down[adapter[t], r, axis].astype("float32"), axis=axis)

        return te.compute((tokens, rank), element, name="shrink")

    return computed(
        "lora_shrink",
        compute,
        x=((tokens, hidden), dtype),
        down=((adapters, rank, hidden), dtype),
        adapter=((tokens,), "int32"),
    )


def lora_expand(tokens: int, hidden: int, rank: int, adapters: int, dtype: str) -> Program:
    """Y[t] = base[t] + B[adapter[t]]·X[t]: the second product, added to what the layer itself gave."""
    from tvm import te

    def compute(x: Any, up: Any, adapter: Any, base: Any) -> Any:
        axis = te.reduce_axis((0, rank), name="k")

        def element(t: Any, c: Any) -> Any:
            return te.sum(x[t, axis] * up[adapter[t], c, axis].astype("float32"), axis=axis)

        total = te.compute((tokens, hidden), element, name="expand")
        return te.compute(
            (tokens, hidden), lambda t, c: (base[t, c].astype("float32") + total[t, c]).astype(dtype), name="add"
        )

    more: dict[str, Argument] = {"base": ((tokens, hidden), dtype)}
    return computed(
        "lora_expand",
        compute,
        x=((tokens, rank), "float32"),
        up=((adapters, hidden, rank), dtype),
        adapter=((tokens,), "int32"),
        **more,
    )
