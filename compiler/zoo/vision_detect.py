"""What detectors do beside convolutions: regions sampled from features, boxes decoded, compared and scored."""

from typing import Any

from littledragon.compiler.zoo.block import Program, comparable, export
from littledragon.compiler.zoo.vision_conv import Sizes
from littledragon.compiler.zoo.vision_resize import bilinear

_LEAST_AREA = 1e-6


def roi_align(
    images: int, channels: int, size: Sizes, boxes: int, *, bins: int, stride: int, dtype: str = "float32"
) -> Program:
    """The features of each box, [boxes, channels, bins, bins]: means of 2 × 2 bilinear samples of each bin.

    size: of the feature map, whose pixels are `stride` image pixels apart.
    """
    from tvm import te
    from tvm.relax.frontend.nn import op

    dense = 2 * bins

    def compute(features: Any, box: Any, image: Any) -> Any:
        def place(axis: int) -> Any:
            def element(b: Any, i: Any) -> Any:
                low, high = box[b, axis] / stride - 0.5, box[b, axis + 2] / stride - 0.5
                return low + (high - low) * ((i.astype("float32") + 0.5) / dense)

            return te.compute((boxes, dense), element, name=("column", "row")[axis])

        column, row = place(0), place(1)

        def sample(b: Any, c: Any, i: Any, j: Any) -> Any:
            def pixel(y: Any, x: Any) -> Any:
                return features[image[b], c, y, x].astype("float32")

            return bilinear(pixel, row[b, i], column[b, j], size)

        samples = te.compute((boxes, channels, dense, dense), sample, name="samples")
        down, across = te.reduce_axis((0, 2), name="down"), te.reduce_axis((0, 2), name="across")
        total = te.compute(
            (boxes, channels, bins, bins),
            lambda b, c, i, j: te.sum(samples[b, c, i * 2 + down, j * 2 + across], axis=[down, across]),
            name="total",
        )
        return te.compute(total.shape, lambda *i: (total[i] * 0.25).astype(dtype), name="roi_align")

    def forward(features: Any, box: Any, image: Any) -> Any:
        return op.tensor_expr_op(compute, "roi_align", [features, box, image])

    return export(
        forward,
        features=((images, channels, *size), dtype),
        box=((boxes, 4), "float32"),
        image=((boxes,), "int32"),
    )


def deformable_attention(
    batch: int, queries: int, heads: int, dim: int, size: Sizes, *, points: int = 4, dtype: str = "float32"
) -> Program:
    """One level of deformable attention: weighted sums of bilinear samples at `points` places for each query and head.

    Places are float32, from 0 to 1 across the feature map of this size.
    """
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(values: Any, place: Any, weight: Any) -> Any:
        def sample(n: Any, q: Any, h: Any, p: Any, d: Any) -> Any:
            def pixel(y: Any, x: Any) -> Any:
                return values[n, y, x, h, d].astype("float32")

            at = [place[n, q, h, p, axis] * size[1 - axis] - 0.5 for axis in range(2)]
            return bilinear(pixel, at[1], at[0], size)

        samples = te.compute((batch, queries, heads, points, dim), sample, name="samples")
        axis = te.reduce_axis((0, points), name="point")
        total = te.compute(
            (batch, queries, heads, dim),
            lambda n, q, h, d: te.sum(samples[n, q, h, axis, d] * weight[n, q, h, axis].astype("float32"), axis=axis),
            name="total",
        )
        return te.compute(total.shape, lambda *i: total[i].astype(dtype), name="deformable_attention")

    def forward(values: Any, place: Any, weight: Any) -> Any:
        return op.tensor_expr_op(compute, "deformable_attention", [values, place, weight])

    return export(
        forward,
        values=((batch, *size, heads, dim), dtype),
        place=((batch, queries, heads, points, 2), "float32"),
        weight=((batch, queries, heads, points), dtype),
    )


def iou_matrix(boxes: int, others: int) -> Program:
    """Intersection over union of each of `boxes` with each of `others`, float32; boxes are two corners."""
    from tvm.relax.frontend.nn import op

    def forward(box: Any, other: Any) -> Any:
        return op.tensor_expr_op(_overlaps, "iou_matrix", [box, other])

    return export(forward, box=((boxes, 4), "float32"), other=((others, 4), "float32"))


def iou_max(boxes: int, truths: int) -> Program:
    """The largest intersection over union of each box with any truth, and which truth that is: how anchors are
    assigned in training.
    """
    from tvm import topi
    from tvm.relax.frontend.nn import op

    def compute(box: Any, other: Any) -> Any:
        overlaps = _overlaps(box, other)
        return [topi.max(overlaps, axis=1), topi.argmax(overlaps, axis=1)]

    def forward(box: Any, other: Any) -> Any:
        return op.tensor_expr_op(compute, "iou_max", [box, other])

    return export(forward, box=((boxes, 4), "float32"), other=((truths, 4), "float32"))


def suppression(boxes: int) -> Program:
    """Matrix NMS: each score times the least decay by an earlier box, (1 - iou) / (1 - that box's own largest overlap).

    Boxes come with the best score first.
    """
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(box: Any, score: Any) -> Any:
        overlaps = _overlaps(box, box)
        zero, one = tirx.const(0.0, "float32"), tirx.const(1.0, "float32")
        earlier, rival = te.reduce_axis((0, boxes), name="earlier"), te.reduce_axis((0, boxes), name="rival")
        largest = te.compute(
            (boxes,),
            lambda b: te.max(tirx.Select(earlier.var < b, overlaps[earlier, b], zero), axis=earlier),
            name="largest",
        )

        def decay(b: Any) -> Any:
            left = te.max(one - largest[rival], tirx.const(_LEAST_AREA, "float32"))
            return te.min(tirx.Select(rival.var < b, (one - overlaps[rival, b]) / left, one), axis=rival)

        least = te.compute((boxes,), decay, name="decay")
        return te.compute((boxes,), lambda b: score[b] * least[b], name="decayed")

    def forward(box: Any, score: Any) -> Any:
        return op.tensor_expr_op(compute, "matrix_nms", [box, score])

    return export(forward, box=((boxes, 4), "float32"), score=((boxes,), "float32"))


def class_scores(
    batch: int, anchors: int, classes: int, size: Sizes, *, dtype: str = "float32", last: bool = False
) -> Program:
    """For each anchor of each place the best class and its probability, from logits with anchors before classes."""
    from tvm import topi
    from tvm.relax.frontend.nn import op

    axis = 4 if last else 2

    def forward(logits: Any) -> Any:
        best = op.tensor_expr_op(lambda tensor: topi.sigmoid(topi.max(tensor, axis=axis)), "best_score", [logits])
        return best, op.tensor_expr_op(lambda tensor: topi.argmax(comparable(tensor), axis=axis), "argmax", [logits])

    shape = (batch, *size, anchors, classes) if last else (batch, anchors, classes, *size)
    return export(forward, logits=(shape, dtype))


def box_decode(batch: int, anchors: int, *, dtype: str = "float32") -> Program:
    """Boxes from the offsets that a detector predicts to its anchors: centre and size, then two corners."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(offset: Any, anchor: Any) -> Any:
        def center(n: Any, a: Any, c: Any) -> Any:
            extent, value = anchor[a, c % 2 + 2], offset[n, a, c].astype("float32")
            grown = te.exp(te.min(value, tirx.const(4.135, "float32"))) * extent
            return tirx.Select(c < 2, anchor[a, c % 2] + value * extent, grown)

        centers = te.compute((batch, anchors, 4), center, name="centers")

        def corner(n: Any, a: Any, c: Any) -> Any:
            half = centers[n, a, c % 2 + 2] * 0.5
            return (centers[n, a, c % 2] + tirx.Select(c < 2, -half, half)).astype(dtype)

        return te.compute((batch, anchors, 4), corner, name="corners")

    def forward(offset: Any, anchor: Any) -> Any:
        return op.tensor_expr_op(compute, "box_decode", [offset, anchor])

    return export(forward, offset=((batch, anchors, 4), dtype), anchor=((anchors, 4), "float32"))


def box_distribution(batch: int, places: int, *, bins: int, dtype: str = "float32") -> Program:
    """The four distances of each place as means of discrete distributions: softmax over bins, then the expectation."""
    from tvm.relax.frontend.nn import op

    def forward(logits: Any, distance: Any) -> Any:
        return op.sum(op.softmax(logits, axis=2) * distance, axis=2)

    return export(forward, logits=((batch, 4, bins, places), dtype), distance=((1, 1, bins, 1), dtype))


def _overlaps(box: Any, other: Any) -> Any:
    """In TE: intersection over union of all pairs."""
    from tvm import te, tirx

    zero, least = tirx.const(0.0, "float32"), tirx.const(_LEAST_AREA, "float32")

    def area(corners: Any, name: str) -> Any:
        def element(b: Any) -> Any:
            width, height = corners[b, 2] - corners[b, 0], corners[b, 3] - corners[b, 1]
            return te.max(width, zero) * te.max(height, zero)

        return te.compute((corners.shape[0],), element, name=name)

    first, second = area(box, "area"), area(other, "other_area")

    def overlap(b: Any, o: Any) -> Any:
        sides = [te.min(box[b, i + 2], other[o, i + 2]) - te.max(box[b, i], other[o, i]) for i in range(2)]
        common = te.max(sides[0], zero) * te.max(sides[1], zero)
        return common / te.max(first[b] + second[o] - common, least)

    return te.compute((box.shape[0], other.shape[0]), overlap, name="overlap")
