"""Reads whose place is data in language models: embeddings, hashed ones too, labels, relative positions, adapters."""

from typing import Any

from littledragon.compiler.zoo.block import Argument, Program, computed


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


def embedding_rms_norm(tokens: int, vocabulary: int, hidden: int, dtype: str) -> Program:
    """E[token] and its RMS normalisation: what a decoder's first layer takes; both are kept."""
    from tvm import te

    def compute(token: Any, words: Any, weight: Any) -> Any:
        x = te.compute((tokens, hidden), lambda t, h: words[token[t], h], name="embedding")
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


def hash_embedding(tokens: int, hashes: int, rows: int, dim: int) -> Program:
    """Σₙ T[(token * prime[n]) mod rows], float32: several hashed rows of one small table, summed (spaCy)."""
    from tvm import te

    def compute(token: Any, primes: Any, table: Any) -> Any:
        axis = te.reduce_axis((0, hashes), name="n")

        def element(t: Any, d: Any) -> Any:
            return te.sum(table[token[t] * primes[axis] % te.const(rows, "int64"), d], axis=axis)

        return te.compute((tokens, dim), element, name="hash_embedding")

    return computed(
        "hash_embedding",
        compute,
        token=((tokens,), "int64"),
        primes=((hashes,), "int64"),
        table=((rows, dim), "float32"),
    )


def hash_shards(tokens: int, hashes: int, rows: int, dim: int, dtype: str) -> Program:
    """layer_norm of the rows T[n, (token * prime[n]) mod rows] side by side: each hash gives a part of the width
    (CANINE's characters).
    """
    from tvm import te, topi

    def compute(token: Any, primes: Any, table: Any, weight: Any, bias: Any) -> Any:
        def element(t: Any, c: Any) -> Any:
            shard = c // dim
            return table[shard, token[t] * primes[shard] % te.const(rows, "int64"), c % dim].astype("float32")

        whole = te.compute((tokens, hashes * dim), element, name="hash_shards")
        normal = topi.nn.layer_norm(whole, weight, bias, axis=[1], epsilon=1e-12)
        return te.compute(normal.shape, lambda t, c: normal[t, c].astype(dtype), name="cast")

    vector = ((hashes * dim,), "float32")
    return computed(
        "hash_shards",
        compute,
        token=((tokens,), "int64"),
        primes=((hashes,), "int64"),
        table=((hashes, rows, dim), dtype),
        weight=vector,
        bias=vector,
    )


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
