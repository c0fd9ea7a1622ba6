"""Sparse products as lists of equal width: the neighbours of a node, of a point, of a voxel; and ragged rows.

`sources` rows of features are read at the places that an index names; short lists are padded.
"""

from typing import Any

from littledragon.compiler.zoo.block import Argument, Program, computed


def neighbour_mean(nodes: int, width: int, sources: int, dim: int, counted: bool, dtype: str = "float32") -> Program:
    """Mean of the features of `width` neighbours, or (`counted`) of the first count[v] of them (GraphSAGE)."""
    from tvm import te, tirx

    def compute(x: Any, neighbour: Any, *count: Any) -> Any:
        axis = te.reduce_axis((0, width), name="j")

        def element(v: Any, d: Any) -> Any:
            row = x[neighbour[v, axis], d].astype("float32")
            if counted:
                row = tirx.Select(axis.var < count[0][v], row, tirx.const(0.0, "float32"))
            return te.sum(row, axis=axis)

        total = te.compute((nodes, dim), element, name="total")

        def mean(v: Any, d: Any) -> Any:
            if not counted:
                return (total[v, d] * (1.0 / width)).astype(dtype)
            return (total[v, d] / te.max(count[0][v], tirx.const(1, "int32")).astype("float32")).astype(dtype)

        return te.compute((nodes, dim), mean, name="mean")

    more: dict[str, Argument] = {"count": ((nodes,), "int32")} if counted else {}
    return computed("neighbour_mean", compute, x=((sources, dim), dtype), neighbour=((nodes, width), "int32"), **more)


def neighbour_max(nodes: int, width: int, sources: int, dim: int, relative: bool, dtype: str = "float32") -> Program:
    """Largest feature of `width` neighbours after a ReLU; `relative` takes the node's own off first (EdgeConv)."""
    from tvm import te, tirx

    def compute(x: Any, neighbour: Any, *own: Any) -> Any:
        axis = te.reduce_axis((0, width), name="j")

        def element(v: Any, d: Any) -> Any:
            row = x[neighbour[v, axis], d]
            return te.max(row - own[0][v, d] if relative else row, axis=axis)

        largest = te.compute((nodes, dim), element, name="largest")
        return te.compute((nodes, dim), lambda v, d: te.max(largest[v, d], tirx.const(0.0, dtype)), name="relu")

    more: dict[str, Argument] = {"own": ((nodes, dim), dtype)} if relative else {}
    return computed("neighbour_max", compute, x=((sources, dim), dtype), neighbour=((nodes, width), "int32"), **more)


def padded_product(nodes: int, width: int, sources: int, dim: int, bias: bool, dtype: str = "float32") -> Program:
    """Y = A·X of a sparse A with at most `width` values in a row (ELL), then bias and ReLU where the layer has them."""
    from tvm import te, tirx

    def compute(x: Any, place: Any, value: Any, *shift: Any) -> Any:
        axis = te.reduce_axis((0, width), name="j")
        total = te.compute(
            (nodes, dim),
            lambda v, d: te.sum(value[v, axis] * x[place[v, axis], d].astype("float32"), axis=axis),
            name="product",
        )

        def last(v: Any, d: Any) -> Any:
            y = te.max(total[v, d] + shift[0][d], tirx.const(0.0, "float32")) if bias else total[v, d]
            return y.astype(dtype)

        return te.compute((nodes, dim), last, name="finish")

    number: dict[str, Argument] = {"place": ((nodes, width), "int32"), "value": ((nodes, width), "float32")}
    if bias:
        number["shift"] = ((dim,), "float32")
    return computed("padded_product", compute, x=((sources, dim), dtype), **number)


def attention_weights(nodes: int, width: int, sources: int, heads: int) -> Program:
    """softmax over the neighbours j of leaky_relu(left[v] + right[j]), for each head, float32 (GAT)."""
    from tvm import te, topi

    def compute(left: Any, right: Any, neighbour: Any) -> Any:
        def score(v: Any, h: Any, j: Any) -> Any:
            total = left[v, h] + right[neighbour[v, j], h]
            return te.max(total, total * 0.2)

        return topi.nn.softmax(te.compute((nodes, heads, width), score, name="scores"), axis=-1)

    return computed(
        "attention_weights",
        compute,
        left=((nodes, heads), "float32"),
        right=((sources, heads), "float32"),
        neighbour=((nodes, width), "int32"),
    )


def attention_sum(nodes: int, width: int, sources: int, heads: int, dim: int, activation: bool) -> Program:
    """Σⱼ weight[v, h, j]·X[neighbour j, h], float32, then ELU between layers (GAT)."""
    from tvm import te, tirx

    def compute(x: Any, neighbour: Any, weight: Any) -> Any:
        axis = te.reduce_axis((0, width), name="j")
        total = te.compute(
            (nodes, heads, dim),
            lambda v, h, d: te.sum(weight[v, h, axis] * x[neighbour[v, axis], h, d], axis=axis),
            name="total",
        )
        if not activation:
            return total

        def elu(v: Any, h: Any, d: Any) -> Any:
            value = total[v, h, d]
            negative = te.exp(te.min(value, tirx.const(0.0, "float32"))) - 1.0
            return tirx.Select(value > 0.0, value, negative)

        return te.compute(total.shape, elu, name="elu")

    return computed(
        "attention_sum",
        compute,
        x=((sources, heads, dim), "float32"),
        neighbour=((nodes, width), "int32"),
        weight=((nodes, heads, width), "float32"),
    )


def edge_scores(edges: int, nodes: int, heads: int, dim: int, dtype: str = "float32") -> Program:
    """S[e, h] = X[from[e], h]·Y[to[e], h], float32: link prediction, and attention along edges."""
    from tvm import te

    def compute(x: Any, y: Any, source: Any, target: Any) -> Any:
        axis = te.reduce_axis((0, dim), name="d")

        def dot(e: Any, h: Any) -> Any:
            return te.sum(x[source[e], h, axis].astype("float32") * y[target[e], h, axis].astype("float32"), axis=axis)

        return te.compute((edges, heads), dot, name="scores")

    features, ends = ((nodes, heads, dim), dtype), ((edges,), "int32")
    return computed("edge_scores", compute, x=features, y=features, source=ends, target=ends)


def message_sum(nodes: int, width: int, sources: int, dim: int, form: str) -> Program:
    """Σⱼ of messages from neighbours and edges, float32: `add` relu(x[j] + edge) (GINE), `filter` x[j] * edge (SchNet),
    `gate` sigmoid(edge) * x[j] over the sum of the gates (GatedGCN).
    """
    from tvm import te, tirx

    def compute(x: Any, neighbour: Any, edge: Any) -> Any:
        axis, other = te.reduce_axis((0, width), name="j"), te.reduce_axis((0, width), name="e")

        def message(v: Any, d: Any) -> Any:
            row, mine = x[neighbour[v, axis], d], edge[v, axis, d]
            if form == "add":
                return te.sum(te.max(row + mine, tirx.const(0.0, "float32")), axis=axis)
            return te.sum(row * (mine if form == "filter" else tirx.sigmoid(mine)), axis=axis)

        total = te.compute((nodes, dim), message, name="total")
        if form != "gate":
            return total
        gates = te.compute((nodes, dim), lambda v, d: te.sum(tirx.sigmoid(edge[v, other, d]), axis=other), name="gates")
        return te.compute((nodes, dim), lambda v, d: total[v, d] / (gates[v, d] + 1e-6), name="share")

    return computed(
        "message_sum",
        compute,
        x=((sources, dim), "float32"),
        neighbour=((nodes, width), "int32"),
        edge=((nodes, width, dim), "float32"),
    )


def neighbour_product(nodes: int, width: int, sources: int, inner: int, dim: int) -> Program:
    """relu(W·mean of the neighbours), float32: GraphSAGE's aggregation and its product in one."""
    from tvm import te, tirx

    def compute(x: Any, neighbour: Any, weight: Any, bias: Any) -> Any:
        axis, step = te.reduce_axis((0, width), name="j"), te.reduce_axis((0, inner), name="k")
        total = te.compute((nodes, inner), lambda v, i: te.sum(x[neighbour[v, axis], i], axis=axis), name="total")
        product = te.compute(
            (nodes, dim), lambda v, d: te.sum(total[v, step] * weight[d, step], axis=step), name="product"
        )
        return te.compute(
            (nodes, dim),
            lambda v, d: te.max(product[v, d] * (1.0 / width) + bias[d], tirx.const(0.0, "float32")),
            name="relu",
        )

    return computed(
        "neighbour_product",
        compute,
        x=((sources, inner), "float32"),
        neighbour=((nodes, width), "int32"),
        weight=((dim, inner), "float32"),
        bias=((dim,), "float32"),
    )


def sparse_conv(points: int, taps: int, channels: int, filters: int, dtype: str) -> Program:
    """Submanifold sparse convolution: Σ over the taps' neighbours, row 0 of X the empty one; norm folded in, ReLU."""
    from tvm import te, tirx

    def compute(x: Any, neighbour: Any, weight: Any, bias: Any) -> Any:
        tap, channel = te.reduce_axis((0, taps), name="q"), te.reduce_axis((0, channels), name="k")

        def element(p: Any, c: Any) -> Any:
            row = x[neighbour[p, tap], channel].astype("float32")
            return te.sum(row * weight[tap, channel, c].astype("float32"), axis=[tap, channel])

        total = te.compute((points, filters), element, name="sparse_conv")
        return te.compute(
            (points, filters),
            lambda p, c: te.max(total[p, c] + bias[c], tirx.const(0.0, "float32")).astype(dtype),
            name="relu",
        )

    return computed(
        "sparse_conv",
        compute,
        x=((points + 1, channels), dtype),
        neighbour=((points, taps), "int32"),
        weight=((taps, channels, filters), dtype),
        bias=((filters,), "float32"),
    )


def ragged_mean(segments: int, longest: int, rows: int, dim: int, dtype: str) -> Program:
    """Mean of the rows first[s] … of each segment, length[s] and at most `longest` of them: readout, packed batches."""
    from tvm import te, tirx

    def compute(x: Any, first: Any, length: Any) -> Any:
        axis = te.reduce_axis((0, longest), name="j")

        def element(s: Any, d: Any) -> Any:
            row = x[first[s] + axis, d].astype("float32")
            return te.sum(tirx.Select(axis.var < length[s], row, tirx.const(0.0, "float32")), axis=axis)

        total = te.compute((segments, dim), element, name="total")
        return te.compute(
            (segments, dim),
            lambda s, d: (total[s, d] / te.max(length[s], tirx.const(1, "int32")).astype("float32")).astype(dtype),
            name="mean",
        )

    return computed(
        "ragged_mean",
        compute,
        x=((rows, dim), dtype),
        first=((segments,), "int32"),
        length=((segments,), "int32"),
    )
