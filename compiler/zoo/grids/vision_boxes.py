"""Boxes and their classes: what detectors do with the features of a pyramid.

Levels follow from the images that the models are published for: 800 x 1344 pixels for COCO, 640 x 640 and less for
detectors in real time.
"""

from typing import Final, NamedTuple

from littledragon.compiler.zoo import vision_detect, vision_train
from littledragon.compiler.zoo.block import Model
from littledragon.compiler.zoo.grids.vision_listing import (
    ELEMENTWISE,
    Listing,
    Sizes,
    by,
    images,
    short,
    turn_of,
    volume,
)

BATCHES: Final = (1, 8, 32)
"""One image at a time, a server's batch, and a batch of training or of offline inference."""
TRUTHS: Final = (8, 32, 128)
"""Objects of an image: few, many, a crowd."""


class Detector(NamedTuple):
    """Anchors of each place and classes, the levels of its pyramid, and bins of its distances, 0 where it has none."""

    key: str
    model: Model
    anchors: int
    classes: int
    levels: tuple[Sizes, ...]
    bins: int = 0

    @property
    def places(self) -> int:
        """Places of all levels."""
        return sum(height * width for height, width in self.levels)


def _square(*sides: int) -> tuple[Sizes, ...]:
    return tuple((side, side) for side in sides)


_COCO: Final = ((100, 168), (50, 84), (25, 42), (13, 21), (7, 11))
_BSD: Final = "BSD-3-Clause"
_APACHE: Final = "Apache-2.0"
_RETINANET: Final = Model("RetinaNet R50", "torchvision retinanet_resnet50_fpn", _BSD)
_DEFORMABLE: Final = Model("Deformable DETR", "fundamentalvision/Deformable-DETR", _APACHE)
_DINO: Final = Model("DINO, Objects365", "IDEA-Research/DINO", _APACHE)
DETECTORS: Final = (
    Detector("retinanet-r50", _RETINANET, 9, 91, _COCO),
    Detector("fcos-r50", Model("FCOS R50", "torchvision fcos_resnet50_fpn", _BSD), 1, 91, _COCO),
    Detector("ssd300", Model("SSD300", "torchvision ssd300_vgg16", _BSD), 4, 91, _square(38, 19, 10, 5, 3)),
    Detector(
        "ssd300-voc", Model("SSD300, VOC", "weiliu89/caffe ssd300_voc", "BSD-2-Clause"), 6, 21, _square(38, 19, 10)
    ),
    Detector("efficientdet-d0", Model("EfficientDet-D0", "google/automl", _APACHE), 9, 90, _square(64, 32, 16, 8, 4)),
    Detector(
        "efficientdet-d7", Model("EfficientDet-D7", "google/automl", _APACHE), 9, 90, _square(192, 96, 48, 24, 12)
    ),
    Detector("yolox-s", Model("YOLOX-S", "Megvii-BaseDetection/YOLOX", _APACHE), 1, 80, _square(80, 40, 20)),
    Detector("yolox-tiny", Model("YOLOX-Tiny", "Megvii-BaseDetection/YOLOX", _APACHE), 1, 80, _square(52, 26, 13)),
    Detector("yolov3", Model("YOLOv3", "pjreddie/darknet yolov3", "public domain"), 3, 80, _square(76, 38, 19)),
    Detector("gfl-r50", Model("GFL R50", "open-mmlab/mmdetection gfl", _APACHE), 1, 80, _COCO, 17),
    Detector(
        "pp-yoloe-s", Model("PP-YOLOE-S", "PaddlePaddle/PaddleDetection", _APACHE), 1, 80, _square(80, 40, 20), 17
    ),
    Detector("nanodet-m", Model("NanoDet-m", "RangiLyu/nanodet", _APACHE), 1, 80, _square(40, 20, 10), 8),
    Detector("nanodet-plus", Model("NanoDet-Plus", "RangiLyu/nanodet", _APACHE), 1, 80, _square(52, 26, 13, 7), 8),
    Detector("centernet", Model("CenterNet", "xingyizhou/CenterNet", "MIT"), 1, 80, _square(128)),
    Detector("detic", Model("Detic, LVIS", "facebookresearch/Detic", _APACHE), 1, 1203, ((1, 256),)),
    Detector("deformable-detr", _DEFORMABLE, 1, 91, ((1, 300),)),
    Detector("d-fine-l", Model("D-FINE-L", "Peterande/D-FINE", _APACHE), 1, 80, ((1, 300),), 33),
    Detector("dino-objects365", _DINO, 1, 365, ((1, 900),)),
)
_MASK: Final = Model("Mask R-CNN R50", "torchvision maskrcnn_resnet50_fpn", _BSD)
REGIONS: Final = (
    ("maskrcnn-r50", _MASK, 256, (((200, 336), 4), ((50, 84), 16))),
    ("faster-rcnn-c4", Model("Faster R-CNN R50-C4", "facebookresearch/detectron2", _APACHE), 1024, (((50, 84), 16),)),
    ("vitdet-b", Model("ViTDet-B", "facebookresearch/detectron2", _APACHE), 256, (((256, 256), 4), ((64, 64), 16))),
    (
        "fasterrcnn-mobile",
        Model("Faster R-CNN MobileNetV3", "torchvision fasterrcnn_mobilenet_v3_large_320_fpn", _BSD),
        256,
        (((10, 10), 32),),
    ),
)
"""Channels and levels, with their strides, from which regions are sampled."""
SAMPLED: Final = (
    ("deformable-detr", _DEFORMABLE, 300, 32, (((100, 168), 4), ((13, 21), 4))),
    ("deformable-detr-encoder", _DEFORMABLE, 22323, 32, (((100, 168), 4), ((25, 42), 4))),
    ("rt-detr", Model("RT-DETR R50", "lyuwenyu/RT-DETR", _APACHE), 300, 32, (((80, 80), 4), ((20, 20), 4))),
    ("dino", _DINO, 900, 32, (((100, 168), 4), ((25, 42), 4))),
    (
        "mask2former",
        Model("Mask2Former", "facebookresearch/Mask2Former", "MIT"),
        5376,
        32,
        (((64, 64), 4), ((16, 16), 4)),
    ),
    (
        "bevformer",
        Model("BEVFormer-base", "fundamentalvision/BEVFormer", _APACHE),
        40000,
        32,
        (((200, 200), 4), ((15, 25), 8)),
    ),
)
"""Queries and width of a head of deformable attention, 8 heads, and levels with points."""


def add(listing: Listing) -> None:
    """List all of them."""
    for detector in DETECTORS:
        _scores(listing, detector, turn_of(detector.key))
        _boxes(listing, detector, turn_of(detector.key))
    for key, model, channels, levels in REGIONS:
        _regions(listing, key, model, channels, levels, turn_of(key))
    for key, model, queries, dim, levels in SAMPLED:
        _sampled(listing, key, model, queries, dim, levels, turn_of(key))
    for boxes in (500, 2000):  # before the best 100 are kept, and of a crowd
        listing.add(
            "matrix_nms",
            "solov2",
            Model("SOLOv2", "WXinlong/SOLO", "BSD-2-Clause"),
            vision_detect.suppression,
            f"n{boxes}",
            f"decay of the scores of {boxes} masks by the overlaps of their boxes",
            elements=(5 * boxes,),
            flops=20 * boxes**2,
            boxes=boxes,
        )


def _scores(listing: Listing, each: Detector, number: int) -> None:
    for level, size in enumerate(each.levels):
        for turn, batch in enumerate(BATCHES):
            dtype, last = ("float16", "float32")[(number + level + turn) % 2], (number + turn) % 2 == 0
            elements = volume(batch, each.anchors, each.classes, *size)
            listing.add(
                "class_scores",
                each.key,
                each.model,
                vision_detect.class_scores,
                f"{short(size)}-a{each.anchors}-c{each.classes}-b{batch}-{dtype}{'-last' if last else ''}",
                f"best of {each.classes} classes of {each.anchors} anchors at {by(size)} places, {images(batch)}",
                elements=(elements,),
                flops=elements,
                batch=batch,
                anchors=each.anchors,
                classes=each.classes,
                size=size,
                dtype=dtype,
                last=last,
            )


def _boxes(listing: Listing, each: Detector, number: int) -> None:
    anchors = each.anchors * each.places
    for turn, batch in enumerate(BATCHES):
        dtype = ("float16", "float32")[(number + turn) % 2]
        name, count = f"a{anchors}-b{batch}-{dtype}", volume(batch, anchors)
        if 4 * count <= ELEMENTWISE:
            listing.add(
                "box_decode",
                each.key,
                each.model,
                vision_detect.box_decode,
                name,
                f"boxes of {anchors} anchors, {images(batch)}",
                elements=(12 * count,),
                flops=8 * count,
                batch=batch,
                anchors=anchors,
                dtype=dtype,
            )
        listing.add(
            "focal_loss",
            each.key,
            each.model,
            vision_train.focal_loss,
            name,
            f"focal loss of {anchors} anchors and {each.classes} classes, {images(batch)}",
            elements=(volume(count, each.classes), count),
            flops=20 * volume(count, each.classes),
            batch=batch,
            anchors=anchors,
            classes=each.classes,
            dtype=dtype,
        )
        if each.bins:
            listing.add(
                "box_distribution",
                each.key,
                each.model,
                vision_detect.box_distribution,
                name,
                f"distances of {anchors} places from {each.bins} bins, {images(batch)}",
                elements=(8 * count * each.bins,),
                flops=20 * count * each.bins,
                batch=batch,
                places=anchors,
                bins=each.bins,
                dtype=dtype,
            )
    for truths in TRUTHS:
        about = f"overlap of {anchors} anchors with {truths} objects"
        pairs = anchors * truths
        if pairs <= ELEMENTWISE:
            listing.add(
                "iou_matrix",
                each.key,
                each.model,
                vision_detect.iou_matrix,
                f"a{anchors}-g{truths}",
                about,
                elements=(pairs,),
                flops=2 * pairs,
                boxes=anchors,
                others=truths,
            )
        listing.add(
            "iou_max",
            each.key,
            each.model,
            vision_detect.iou_max,
            f"a{anchors}-g{truths}",
            f"largest {about}",
            elements=(4 * anchors,),
            flops=20 * pairs,
            boxes=anchors,
            truths=truths,
        )


def _regions(
    listing: Listing, key: str, model: Model, channels: int, levels: tuple[tuple[Sizes, int], ...], number: int
) -> None:
    for level, (size, stride) in enumerate(levels):
        for turn, boxes in enumerate((16, 100, 1000)):  # objects that are kept; their masks; proposals
            for bins in (7, 14):
                count = 2 if boxes == 1000 else 1
                dtype = ("float16", "float32")[(number + level + turn + bins // 7) % 2]
                result = volume(boxes, channels, bins, bins)
                listing.add(
                    "roi_align",
                    key,
                    model,
                    vision_detect.roi_align,
                    f"{short(size)}-c{channels}-r{boxes}-{bins}-{dtype}",
                    f"{bins} x {bins} features of {boxes} boxes, {channels} channels, {by(size)}, {images(count)}",
                    elements=(volume(count, channels, *size), result),
                    flops=100 * result,
                    images=count,
                    channels=channels,
                    size=size,
                    boxes=boxes,
                    bins=bins,
                    stride=stride,
                    dtype=dtype,
                )


def _sampled(
    listing: Listing, key: str, model: Model, queries: int, dim: int, levels: tuple[tuple[Sizes, int], ...], number: int
) -> None:
    for level, (size, points) in enumerate(levels):
        for turn, batch in enumerate((1, 4, 16)):
            dtype, heads = ("float16", "float32")[(number + level + turn) % 2], 8
            samples = volume(batch, queries, heads, points)
            listing.add(
                "deformable_attention",
                key,
                model,
                vision_detect.deformable_attention,
                f"q{queries}-{short(size)}-p{points}-b{batch}-{dtype}",
                f"{queries} queries at {points} places each of {by(size)}, {heads} heads, {images(batch)}",
                elements=(volume(batch, heads, dim, *size), 5 * samples, volume(batch, queries, heads, dim)),
                flops=20 * samples * dim,
                batch=batch,
                queries=queries,
                heads=heads,
                dim=dim,
                size=size,
                points=points,
                dtype=dtype,
            )
