"""What follows from the router's scores: which experts are chosen, their weights, the tables of rows, and the losses.

Functions compute in float32 whatever the scores' type; index tensors are int32.
"""

from typing import Any, Literal

from littledragon.compiler.zoo.block import Program, export


def router_softmax(tokens: int, experts: int, dtype: str) -> Program:
    """Softmax of the router's logits over the experts, float32."""
    from tvm import te, topi
    from tvm.relax.frontend.nn import op

    def compute(logits: Any) -> Any:
        if dtype == "float32":
            return topi.nn.softmax(logits, axis=-1)
        wide = te.compute((tokens, experts), lambda t, e: logits[t, e].astype("float32"), name="wide")
        return topi.nn.softmax(wide, axis=-1)

    def forward(logits: Any) -> Any:
        return op.tensor_expr_op(compute, "router_softmax", [logits])

    return export(forward, logits=((tokens, experts), dtype))


def top_expert(tokens: int, experts: int, dtype: str) -> Program:
    """The expert with the largest score of each token, the first of equals, and that score: routing to one expert."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def join(left: Any, right: Any) -> Any:
        first = tirx.Or(left[1] > right[1], tirx.And(left[1] == right[1], left[0] < right[0]))
        return tirx.Select(first, left[0], right[0]), tirx.Select(first, left[1], right[1])

    def nothing(index: str, value: str) -> Any:
        return tirx.const(-1, index), te.min_value(value)

    def compute(scores: Any) -> Any:
        axis, best = te.reduce_axis((0, experts), name="k"), te.comm_reducer(join, nothing, name="best")
        chosen, score = te.compute(
            (tokens,), lambda t: best((axis.var, scores[t, axis].astype("float32")), axis=axis), name="top_expert"
        )
        return [chosen, score]

    def forward(scores: Any) -> Any:
        return op.tensor_expr_op(compute, "top_expert", [scores])

    return export(forward, scores=((tokens, experts), dtype))


def group_scores(tokens: int, groups: int, size: int, best: Literal[1, 2], dtype: str = "float32") -> Program:
    """The score of each group of `size` experts: its largest one (DeepSeek-V2), or the sum of its two largest plus
    the correction that choices are made by (DeepSeek-V3)."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def largest(scores: Any) -> Any:
        axis = te.reduce_axis((0, size), name="k")
        return te.compute(
            (tokens, groups),
            lambda t, g: te.max(scores[t, g * size + axis].astype("float32"), axis=axis),
            name="group_max",
        )

    def join(left: Any, right: Any) -> Any:
        return te.max(left[0], right[0]), te.max(te.min(left[0], right[0]), te.max(left[1], right[1]))

    def two_largest(scores: Any, correction: Any) -> Any:
        axis = te.reduce_axis((0, size), name="k")
        two = te.comm_reducer(join, lambda a, b: (te.min_value(a), te.min_value(b)), name="two")

        def pair(t: Any, g: Any) -> Any:
            place = g * size + axis
            score = scores[t, place].astype("float32") + correction[place]
            return two((score, te.min_value("float32")), axis=axis)

        first, second = te.compute((tokens, groups), pair, name="two_largest")
        return te.compute((tokens, groups), lambda t, g: first[t, g] + second[t, g], name="group_sum")

    def forward(scores: Any) -> Any:
        return op.tensor_expr_op(largest, "group_max", [scores])

    def corrected(scores: Any, correction: Any) -> Any:
        return op.tensor_expr_op(two_largest, "group_top2", [scores, correction])

    matrix = ((tokens, groups * size), dtype)
    if best == 1:
        return export(forward, scores=matrix)
    return export(corrected, scores=matrix, correction=((groups * size,), "float32"))


def expert_rank(tokens: int, experts: int, top: int, dtype: str) -> Program:
    """Scores of the `top` experts of each token, 0 for the others. An expert is chosen where fewer than `top` score
    higher, or the same at a lower number: a choice without sorting."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(scores: Any) -> Any:
        axis = te.reduce_axis((0, experts), name="k")

        def ahead(t: Any, e: Any) -> Any:
            other, own = scores[t, axis], scores[t, e]
            before = tirx.Or(other > own, tirx.And(other == own, axis.var < e))
            return te.sum(tirx.Select(before, tirx.const(1, "int32"), tirx.const(0, "int32")), axis=axis)

        rank = te.compute((tokens, experts), ahead, name="rank")
        return te.compute(
            (tokens, experts),
            lambda t, e: tirx.Select(rank[t, e] < top, scores[t, e].astype("float32"), tirx.const(0.0, "float32")),
            name="chosen",
        )

    def forward(scores: Any) -> Any:
        return op.tensor_expr_op(compute, "expert_rank", [scores])

    return export(forward, scores=((tokens, experts), dtype))


def topk_weights(tokens: int, experts: int, top: int, scores: Literal["share", "softmax"], dtype: str) -> Program:
    """Weights of each token's chosen experts: their scores over the sum of these, or a softmax of their logits."""
    from tvm import te, tirx, topi
    from tvm.relax.frontend.nn import op

    def compute(table: Any, chosen: Any) -> Any:
        def taken(t: Any, c: Any) -> Any:
            return table[t, chosen[t, c]].astype("float32")

        if scores == "softmax":
            return topi.nn.softmax(te.compute((tokens, top), taken, name="taken"), axis=-1)
        axis, least = te.reduce_axis((0, top), name="k"), tirx.const(1e-9, "float32")
        # Scores are probabilities; of any other number the absolute value keeps the sum from 0.
        total = te.compute((tokens,), lambda t: te.sum(te.abs(taken(t, axis)), axis=axis), name="total")
        return te.compute((tokens, top), lambda t, c: te.abs(taken(t, c)) / te.max(total[t], least), name="weight")

    def forward(table: Any, chosen: Any) -> Any:
        return op.tensor_expr_op(compute, f"topk_{scores}", [table, chosen])

    return export(forward, table=((tokens, experts), dtype), chosen=((tokens, top), "int32"))


def expert_counts(slots: int, experts: int, chunks: int = 1) -> Program:
    """How many of the choices fall on each expert, int32; in each of `chunks` equal parts by itself, from which a
    slot's place follows by adding up."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    size = slots // chunks

    def compute(chosen: Any) -> Any:
        axis = te.reduce_axis((0, size), name="k")

        def hits(p: Any, e: Any) -> Any:
            one, zero = tirx.const(1, "int32"), tirx.const(0, "int32")
            return te.sum(tirx.Select(chosen[p, axis] == e, one, zero), axis=axis)

        return te.compute((chunks, experts), hits, name="count")

    def forward(chosen: Any) -> Any:
        return op.tensor_expr_op(compute, "expert_counts", [chosen])

    return export(forward, chosen=((chunks, size), "int32"))


def tile_experts(tiles: int, experts: int, tile: int) -> Program:
    """The expert of each tile of rows, int32: how many experts' rows end at or before the tile's first row."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(end: Any) -> Any:
        axis = te.reduce_axis((0, experts), name="k")

        def ended(t: Any) -> Any:
            one, zero = tirx.const(1, "int32"), tirx.const(0, "int32")
            return te.sum(tirx.Select(end[axis] <= t * tile, one, zero), axis=axis)

        return te.compute((tiles,), ended, name="tile_expert")

    def forward(end: Any) -> Any:
        return op.tensor_expr_op(compute, "tile_experts", [end])

    return export(forward, end=((experts,), "int32"))


def queue_place(tokens: int, experts: int, capacity: int) -> Program:
    """The place of each token in each expert's queue, int32: how many before it chose the expert, -1 where it did not
    itself or the queue is full. The running sum of a mask, as a product with a triangle."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(mask: Any) -> Any:
        axis = te.reduce_axis((0, tokens), name="k")

        def before(t: Any, e: Any) -> Any:
            hit = tirx.And(axis.var < t, mask[axis, e])
            return te.sum(tirx.Select(hit, tirx.const(1, "int32"), tirx.const(0, "int32")), axis=axis)

        place = te.compute((tokens, experts), before, name="before")

        def kept(t: Any, e: Any) -> Any:
            inside = tirx.And(mask[t, e], place[t, e] < capacity)
            return tirx.Select(inside, place[t, e], tirx.const(-1, "int32"))

        return te.compute((tokens, experts), kept, name="place")

    def forward(mask: Any) -> Any:
        return op.tensor_expr_op(compute, "queue_place", [mask])

    return export(forward, mask=((tokens, experts), "bool"))


def balance_loss(tokens: int, experts: int, dtype: str) -> Program:
    """Terms of the load-balancing loss, one an expert, float32: E times its mean probability times its share of the
    tokens."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(probabilities: Any, share: Any) -> Any:
        axis = te.reduce_axis((0, tokens), name="k")
        total = te.compute(
            (experts,), lambda e: te.sum(probabilities[axis, e].astype("float32"), axis=axis), name="total"
        )
        return te.compute((experts,), lambda e: total[e] * share[e] * (experts / tokens), name="term")

    def forward(probabilities: Any, share: Any) -> Any:
        return op.tensor_expr_op(compute, "balance_loss", [probabilities, share])

    return export(forward, probabilities=((tokens, experts), dtype), share=((experts,), "float32"))


def router_z_loss(tokens: int, experts: int, dtype: str) -> Program:
    """Terms of the router's z-loss, one a token, float32: log(Σ exp(logit))², what keeps logits small (ST-MoE)."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(logits: Any) -> Any:
        first, second = te.reduce_axis((0, experts), name="k"), te.reduce_axis((0, experts), name="k")
        largest = te.compute(
            (tokens,), lambda t: te.max(logits[t, first].astype("float32"), axis=first), name="largest"
        )
        total = te.compute(
            (tokens,),
            lambda t: te.sum(te.exp(logits[t, second].astype("float32") - largest[t]), axis=second),
            name="total",
        )
        log = te.compute((tokens,), lambda t: te.log(total[t]) + largest[t], name="log")
        return te.compute((tokens,), lambda t: log[t] * log[t], name="square")

    def forward(logits: Any) -> Any:
        return op.tensor_expr_op(compute, "router_z_loss", [logits])

    return export(forward, logits=((tokens, experts), dtype))
