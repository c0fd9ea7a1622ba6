"""Features looked up by recommenders and knowledge graphs, and what is counted or summed by a one-hot product."""

from typing import Any

from littledragon.compiler.zoo.block import Argument, Program, computed


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


def composed_embedding_bag(bags: int, size: int, rows: int, dim: int, collisions: int) -> Program:
    """Σₛ Q[index // c] * R[index mod c], float32: a large table as the product of two small ones (DLRM's QR trick)."""
    from tvm import te

    def compute(quotient: Any, remainder: Any, index: Any) -> Any:
        axis = te.reduce_axis((0, size), name="s")

        def element(b: Any, d: Any) -> Any:
            place = index[b, axis]
            return te.sum(quotient[place // collisions, d] * remainder[place % collisions, d], axis=axis)

        return te.compute((bags, dim), element, name="embedding_bag")

    return computed(
        "composed_embedding_bag",
        compute,
        quotient=((rows, dim), "float32"),
        remainder=((collisions, dim), "float32"),
        index=((bags, size), "int64"),
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


def histogram(rows: int, items: int, bins: int, dtype: str, weighted: bool = False) -> Program:
    """How often each of `bins` values occurs in each row, int32: a one-hot sum.

    `weighted` sums a float32 of each item instead: histograms of gradients, of which boosted trees are grown.
    """
    from tvm import te, tirx

    def compute(values: Any, *weight: Any) -> Any:
        axis = te.reduce_axis((0, items), name="t")

        def element(r: Any, b: Any) -> Any:
            one = weight[0][axis] if weighted else tirx.const(1, "int32")
            hit = values[r, axis].astype("int32") == b.astype("int32")
            return te.sum(tirx.Select(hit, one, tirx.const(0, one.dtype)), axis=axis)

        return te.compute((rows, bins), element, name="histogram")

    more: dict[str, Argument] = {"weight": ((items,), "float32")} if weighted else {}
    return computed("histogram", compute, values=((rows, items), dtype), **more)


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
