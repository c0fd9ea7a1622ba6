"""Point clouds and sparse volumes: published configurations, and the lists of neighbours that they read by."""

from collections.abc import Iterator
from itertools import product
from typing import Final, NamedTuple

from littledragon.compiler.zoo import quant_irregular_graph as graph
from littledragon.compiler.zoo.block import Block, Model
from littledragon.compiler.zoo.grids.quant_irregular_listing import WIDTH, Entry, listed

_MIT, _APACHE = "MIT", "Apache-2.0"


class Points(NamedTuple):
    """Layers of a point-cloud network: (centres, neighbours, points that they are among, channels) of each."""

    model: Model
    key: str
    layers: tuple[tuple[int, int, int, int], ...]
    relative: bool
    batches: tuple[int, ...]


POINTS: Final = (
    Points(
        Model("PointNet++ SSG", "charlesq34/pointnet2", _MIT),
        *("pointnet2-ssg", ((512, 32, 1024, 128), (128, 64, 512, 256)), False, (1, 8, 32)),
    ),
    Points(
        Model("PointNet++ MSG", "charlesq34/pointnet2", _MIT),
        *("pointnet2-msg", ((512, 16, 1024, 64), (512, 128, 1024, 128), (128, 128, 512, 256)), False, (1, 8, 32)),
    ),
    Points(
        Model("DGCNN, ModelNet40", "WangYueFt/dgcnn", _MIT),
        *("dgcnn", ((1024, 20, 1024, 64), (1024, 20, 1024, 128), (1024, 20, 1024, 256)), True, (1, 8, 32)),
    ),
    Points(
        Model("DGCNN, part segmentation", "WangYueFt/dgcnn", _MIT),
        *("dgcnn-parts", ((2048, 40, 2048, 64), (2048, 40, 2048, 192)), True, (1, 16)),
    ),
    Points(
        Model("RandLA-Net", "QingyongHu/RandLA-Net", "CC-BY-NC-SA-4.0"),
        *("randla-net", ((45056, 16, 45056, 16), (11264, 16, 11264, 64), (2816, 16, 2816, 128)), False, (1, 6)),
    ),
    Points(
        Model("Point Transformer", "POSTECH-CVLab/point-transformer", _MIT),
        *("point-transformer", ((40000, 8, 40000, 32), (10000, 16, 40000, 64), (2500, 16, 10000, 128)), True, (1, 4)),
    ),
    Points(
        Model("PointNeXt-XL, S3DIS", "guochengqian/PointNeXt", _MIT),
        *("pointnext", ((6000, 32, 24000, 128), (1500, 32, 6000, 256), (375, 32, 1500, 512)), True, (1, 8)),
    ),
    Points(
        Model("VoteNet", "facebookresearch/votenet", _MIT),
        *("votenet", ((2048, 64, 20000, 128), (1024, 32, 2048, 256), (256, 16, 512, 256)), False, (1, 8)),
    ),
    Points(
        Model("KPConv", "HuguesTHOMAS/KPConv-PyTorch", _MIT),
        *("kpconv", ((20000, 26, 20000, 64), (6000, 31, 20000, 128), (1800, 38, 6000, 256)), False, (1,)),
    ),
)


class Voxels(NamedTuple):
    """Layers of a sparse convolution network: (voxels of a scan, about; taps, channels, filters) of each."""

    model: Model
    key: str
    layers: tuple[tuple[int, int, int, int], ...]


_NUSCENES: Final = (
    (75000, 27, 5, 16),
    (60000, 27, 16, 16),
    (55000, 27, 32, 32),
    (33000, 27, 64, 64),
    (15000, 27, 128, 128),
)
VOXELS: Final = (
    Voxels(
        Model("MinkUNet-42, SemanticKITTI", "mit-han-lab/torchsparse", _MIT),
        "minkunet-kitti",
        (
            *(
                (80000, 27, 4, 32),
                (80000, 27, 32, 32),
                (42000, 27, 64, 64),
                (20000, 27, 128, 128),
                (9000, 27, 256, 256),
            ),
            *((20000, 27, 384, 256), (42000, 27, 192, 128), (80000, 27, 128, 96), (80000, 27, 96, 96)),
            *((42000, 8, 32, 32), (20000, 8, 64, 64), (9000, 8, 128, 128), (4000, 8, 256, 256)),
        ),
    ),
    Voxels(
        Model("MinkUNet-18, ScanNet", "NVIDIA/MinkowskiEngine", _MIT),
        "minkunet-scannet",
        (
            *((150000, 125, 3, 32), (150000, 27, 32, 32), (40000, 27, 64, 64), (10000, 27, 128, 128)),
            *((2500, 27, 256, 256), (10000, 27, 192, 128), (40000, 27, 128, 96), (150000, 27, 96, 96)),
        ),
    ),
    Voxels(Model("CenterPoint, nuScenes", "tianweiy/CenterPoint", _MIT), "centerpoint", _NUSCENES),
    Voxels(
        Model("SECOND, KITTI", "open-mmlab/OpenPCDet", _APACHE),
        *(
            "second",
            ((16000, 27, 4, 16), (16000, 27, 16, 16), (18000, 27, 32, 32), (9000, 27, 64, 64), (4500, 3, 64, 128)),
        ),
    ),
    Voxels(
        Model("VoxelNeXt", "dvlab-research/VoxelNeXt", _APACHE),
        *(
            "voxelnext",
            (
                (110000, 27, 16, 16),
                (70000, 27, 32, 32),
                (25000, 27, 64, 64),
                (6000, 27, 128, 128),
                (2200, 27, 256, 256),
            ),
        ),
    ),
    Voxels(
        Model("Cylinder3D", "xinge008/Cylinder3D", _APACHE),
        *(
            "cylinder3d",
            ((50000, 9, 16, 32), (50000, 9, 32, 32), (30000, 9, 64, 64), (16000, 9, 128, 128), (7000, 9, 256, 256)),
        ),
    ),
    Voxels(
        Model("PointGroup, ScanNet", "dvlab-research/PointGroup", _APACHE),
        *(
            "pointgroup",
            ((120000, 27, 16, 16), (30000, 27, 32, 32), (8000, 27, 48, 48), (2000, 27, 64, 64), (500, 27, 112, 112)),
        ),
    ),
    Voxels(
        Model("OctFormer", "octree-nn/octformer", _MIT),
        *("octformer", ((100000, 27, 96, 96), (25000, 27, 192, 192), (6000, 27, 384, 384), (1500, 27, 768, 768))),
    ),
)


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    yield from listed("neighbour_max", graph.neighbour_max, _largest())
    yield from listed("sparse_conv", graph.sparse_conv, _volumes())


def _largest() -> Iterator[Entry]:
    for one in POINTS:
        for (centres, width, points, channels), batch, dtype in product(
            one.layers, one.batches, ("float32", "float16")
        ):
            yield Entry(
                one.model,
                one.key,
                f"p{centres}-c{channels}-b{batch}-n{width}-{dtype}",
                f"largest of {width} neighbours of {batch} x {centres} points, {channels} channels, {dtype}",
                batch * (points + 2 * centres) * channels * WIDTH[dtype] + batch * centres * width * 4,
                batch * centres * width * channels * 2,
                {
                    **{"nodes": batch * centres, "width": width, "sources": batch * points, "dim": channels},
                    **{"relative": one.relative, "dtype": dtype},
                },
            )


def _volumes() -> Iterator[Entry]:
    for one in VOXELS:
        # One scan, and a training batch.
        for (voxels, taps, channels, filters), frames, dtype in product(one.layers, (1, 4), ("float16", "float32")):
            points = voxels * frames
            yield Entry(
                one.model,
                one.key,
                f"v{voxels}-b{frames}-q{taps}-c{channels}-f{filters}-{dtype}",
                f"{taps} taps, {channels} to {filters} channels, {points} voxels, {dtype}",
                points * (taps * 4 + (channels + filters) * WIDTH[dtype]),
                points * taps * channels * filters * 2,
                {"points": points, "taps": taps, "channels": channels, "filters": filters, "dtype": dtype},
            )
