"""Published networks on images, volumes and sound: channels and pixels of their layers, written down where they are few
and derived from the configuration where it gives them."""

from dataclasses import dataclass
from typing import Final

from littledragon.compiler.zoo.block import Model

Site = tuple[int, tuple[int, ...]]
"""Channels and pixels of a layer."""


@dataclass(frozen=True)
class Network:
    """A model, its key in block ids, and the sites of one operator in it, shallow ones first."""

    model: Model
    key: str
    sites: tuple[Site, ...]


def sites(text: str) -> tuple[Site, ...]:
    """`64@56 256@28x32 512@300x1` → channels and pixels; one extent is the side of a square, `x1` sound or points."""
    found = []
    for word in text.split():
        channels, _, pixels = word.partition("@")
        extents = tuple(int(extent) for extent in pixels.split("x"))
        square = len(extents) == 1
        found.append((int(channels), extents * 2 if square else tuple(extent for extent in extents if extent > 1)))
    return tuple(dict.fromkeys(found))


def network(name: str, source: str, licence: str, key: str, text: str) -> Network:
    """The network of `Model(name, source, licence)` with the sites of `text`."""
    return Network(Model(name, source, licence), key, sites(text))


def _torchvision(name: str, function: str, text: str) -> Network:
    return network(name, f"torchvision {function}", "BSD-3-Clause", function.replace("_", "-"), text)


CONVOLUTIONAL: Final = (
    _torchvision("ResNet-18", "resnet18", "64@112 64@56 128@28 256@14 512@7"),
    _torchvision(
        "ResNet-50", "resnet50", "64@112 64@56 256@56 128@56 128@28 512@28 256@28 256@14 1024@14 512@14 512@7 2048@7"
    ),
    _torchvision("VGG-16 BN", "vgg16_bn", "64@224 128@112 256@56 512@28 512@14"),
    _torchvision(
        "DenseNet-121", "densenet121", "64@112 128@56 192@56 256@56 32@28 256@28 384@28 512@28 640@14 1024@14 1024@7"
    ),
    _torchvision(
        "MobileNetV2",
        "mobilenet_v2",
        "32@112 16@112 96@112 96@56 24@56 144@56 144@28 32@28 192@28 192@14 64@14 384@14 96@14 576@14 576@7 160@7 "
        "960@7 1280@7",
    ),
    _torchvision(
        "EfficientNet-B3",
        "efficientnet_b3",
        "40@150 24@150 144@150 144@75 192@75 288@38 576@19 816@19 816@10 1392@10 1536@10",
    ),
    _torchvision("RegNetY-8GF", "regnet_y_8gf", "32@112 224@56 448@28 896@14 2016@7"),
    _torchvision(
        "Inception v3", "inception_v3", "32@149 32@147 64@147 80@73 192@71 64@35 96@35 384@17 192@17 320@8 448@8"
    ),
    _torchvision("DeepLabV3 ResNet-50", "deeplabv3_resnet50", "256@65 512@65 2048@65"),
    _torchvision("R3D-18", "r3d_18", "64@16x56x56 128@8x28x28 256@4x14x14 512@2x7x7"),
    network("YOLOv5s", "ultralytics/yolov5", "AGPL-3.0", "yolov5s", "32@320 64@160 128@80 256@40 512@20"),
    network("YOLOX-L", "Megvii-BaseDetection/YOLOX", "Apache-2.0", "yolox-l", "64@320 128@160 256@80 512@40 1024@20"),
    network(
        "Darknet-53", "pjreddie/darknet", "public domain", "darknet53", "32@416 64@208 128@104 256@52 512@26 1024@13"
    ),
    network("HRNet-W32", "HRNet/HRNet-Image-Classification", "MIT", "hrnet-w32", "32@64x48 64@32x24 128@16x12 256@8x6"),
    network("U-Net", "milesial/Pytorch-UNet", "GPL-3.0", "unet", "64@512 128@256 256@128 512@64 1024@32"),
    network(
        "PointNet++",
        "erikwijmans/Pointnet2_PyTorch",
        "Unlicense",
        "pointnet2",
        "64@512x32 128@512x32 128@128x64 256@128x64 512@128x1 1024@128x1",
    ),
    network("PointNet", "fxia22/pointnet.pytorch", "MIT", "pointnet", "64@2500x1 128@2500x1 1024@2500x1"),
    network(
        "ECAPA-TDNN", "speechbrain/spkrec-ecapa-voxceleb", "Apache-2.0", "ecapa-tdnn", "1024@300x1 128@300x1 1536@300x1"
    ),
    network("QuartzNet-15x5", "NVIDIA/NeMo", "Apache-2.0", "quartznet", "256@800x1 512@800x1 1024@800x1"),
)
"""Networks with batch normalisation: its sites, for images of the size that each is trained on."""

PROJECTORS: Final = (
    (Model("Barlow Twins", "facebookresearch/barlowtwins", "MIT"), "barlow-twins", (8192,)),
    (Model("SimCLR", "google-research/simclr", "Apache-2.0"), "simclr", (2048, 128)),
    (Model("BYOL", "google-deepmind/byol", "Apache-2.0"), "byol", (4096, 256)),
)
"""Networks whose batch normalisation sees one row for each input: its width."""

POOLED: Final = (
    _torchvision("ResNet-18", "resnet18", "512@7 512@12"),
    _torchvision("ResNet-50", "resnet50", "2048@7 2048@12"),
    _torchvision("MobileNetV2", "mobilenet_v2", "1280@7"),
    _torchvision("MobileNetV3 large", "mobilenet_v3_large", "960@7"),
    _torchvision("EfficientNet-B2", "efficientnet_b2", "1408@9"),
    _torchvision("EfficientNet-B3", "efficientnet_b3", "1536@10"),
    _torchvision("EfficientNet-B5", "efficientnet_b5", "2048@15"),
    _torchvision("EfficientNet-B7", "efficientnet_b7", "2560@19"),
    _torchvision("DenseNet-121", "densenet121", "1024@7"),
    _torchvision("DenseNet-161", "densenet161", "2208@7"),
    _torchvision("Inception v3", "inception_v3", "2048@8"),
    _torchvision("RegNetY-16GF", "regnet_y_16gf", "3024@7"),
    _torchvision("SqueezeNet 1.1", "squeezenet1_1", "1000@13"),
    _torchvision("ConvNeXt-T", "convnext_tiny", "768@7"),
    _torchvision("ConvNeXt-B-384", "convnext_base", "1024@12"),
    _torchvision("R3D-18", "r3d_18", "512@2x7x7"),
    network("NASNet-A large", "timm/nasnetalarge.tf_in1k", "Apache-2.0", "nasnet-a-large", "4032@11"),
    network("Xception", "timm/legacy_xception.tf_in1k", "Apache-2.0", "xception", "2048@10"),
    network("I3D", "google-deepmind/kinetics-i3d", "Apache-2.0", "i3d", "1024@8x7x7"),
    network("SlowFast R50", "facebookresearch/SlowFast", "Apache-2.0", "slowfast-r50", "2048@8x7x7 256@32x7x7"),
    network(
        "DeepLabV3 image pooling", "torchvision deeplabv3_resnet50", "BSD-3-Clause", "deeplabv3-aspp", "2048@65 2048@33"
    ),
)
"""What classifiers average over all pixels, at the size of image that each is published for, or also is run at."""

SQUEEZED: Final = (
    _torchvision(
        "EfficientNet-B0", "efficientnet_b0", "32@112 96@56 144@56 144@28 240@28 240@14 480@14 672@14 672@7 1152@7"
    ),
    _torchvision(
        "EfficientNet-B4",
        "efficientnet_b4",
        "48@190 144@95 192@95 192@48 336@48 336@24 672@24 960@24 960@12 1632@12 2688@12",
    ),
    _torchvision(
        "EfficientNet-B7", "efficientnet_b7", "64@300 288@150 288@75 480@75 480@38 960@38 1344@19 2304@19 3840@19"
    ),
    _torchvision("MobileNetV3 large", "mobilenet_v3_large", "72@28 120@28 480@14 672@14 672@7 960@7"),
    _torchvision("RegNetY-8GF", "regnet_y_8gf", "224@56 448@28 896@14 2016@7"),
    network("SENet-154", "timm/legacy_senet154.in1k", "Apache-2.0", "senet154", "256@56 512@28 1024@14 2048@7"),
    network("NAFNet", "megvii-research/NAFNet", "MIT", "nafnet", "32@256 64@128 128@64 256@32 512@16"),
    network("RCAN", "sanghyun-son/EDSR-PyTorch", "MIT", "rcan", "64@48 64@128x128 64@320x180"),
    network("HAT", "XPixelGroup/HAT", "Apache-2.0", "hat", "180@64 180@256"),
)
"""Squeeze-and-excitation and other channel attention: what is averaged before the gate."""

CBAM: Final = (
    network("CBAM ResNet-50", "Jongchan/attention-module", "MIT", "cbam-resnet50", "256@56 512@28 1024@14 2048@7"),
    network("CBAM ResNet-18", "Jongchan/attention-module", "MIT", "cbam-resnet18", "64@56 128@28 256@14 512@7"),
)
"""Networks with spatial attention: it looks at the mean and maximum over channels."""

RETRIEVAL: Final = (
    network(
        "GeM ResNet-101", "filipradenovic/cnnimageretrieval-pytorch", "MIT", "gem-resnet101", "2048@32x24 2048@16x12"
    ),
    network("CosPlace ResNet-50", "gmberton/CosPlace", "MIT", "cosplace-resnet50", "2048@16 512@16"),
)
"""Image retrieval: pooled by the cubic mean."""

NEXT: Final = (
    ("ConvNeXt-T", "facebook/convnext-tiny-224", "convnext-t", (96, 192, 384, 768), 224),
    ("ConvNeXt-B", "facebook/convnext-base-224", "convnext-b", (128, 256, 512, 1024), 224),
    ("ConvNeXt-L-384", "facebook/convnext-large-384", "convnext-l-384", (192, 384, 768, 1536), 384),
    ("ConvNeXt-XL", "facebook/convnext-xlarge-224-22k", "convnext-xl", (256, 512, 1024, 2048), 224),
    ("ConvNeXtV2-A", "facebook/convnextv2-atto-1k-224", "convnext-v2-atto", (40, 80, 160, 320), 224),
    ("ConvNeXtV2-F", "facebook/convnextv2-femto-1k-224", "convnext-v2-femto", (48, 96, 192, 384), 224),
    ("ConvNeXtV2-N", "facebook/convnextv2-nano-22k-224", "convnext-v2-nano", (80, 160, 320, 640), 224),
    ("ConvNeXtV2-H-384", "facebook/convnextv2-huge-22k-384", "convnext-v2-huge-384", (352, 704, 1408, 2816), 384),
)
"""ConvNeXt: name, source, key, widths of its stages, side of the image; V2 normalises responses, four times as wide."""

CHANNELS_FIRST: Final = (
    network("SAM ViT-H", "facebook/sam-vit-huge", "Apache-2.0", "sam-vit-h", "256@64 64@128"),
    network("NAFNet width 64", "megvii-research/NAFNet", "MIT", "nafnet-w64", "64@256 128@128 256@64 512@32 1024@16"),
    network("Restormer", "swz30/Restormer", "MIT", "restormer", "48@256 96@128 192@64 384@32"),
    network("EdgeNeXt-S", "mmaaz60/EdgeNeXt", "MIT", "edgenext-s", "48@64 96@32 160@16 304@8"),
)
"""Other networks that normalise each pixel over channels that lie first."""

DESCRIPTORS: Final = (
    (network("SSD300 VGG-16", "torchvision ssd300_vgg16", "BSD-3-Clause", "ssd300", "512@38"), True),
    (
        network(
            "SuperPoint", "magic-leap-community/superpoint", "Magic Leap licence", "superpoint", "256@60x80 256@120x160"
        ),
        False,
    ),
    (network("R2D2", "naver/r2d2", "CC-BY-NC-SA-3.0", "r2d2", "128@480x640"), False),
    (network("NetVLAD VGG-16", "Nanne/pytorch-NetVlad", "MIT", "netvlad-vgg16", "512@30x40"), False),
    (network("ALIKED", "Shiaoming/ALIKED", "BSD-3-Clause", "aliked", "128@240x320"), False),
    (
        network(
            "Progressive GAN",
            "tkarras/progressive_growing_of_gans",
            "CC-BY-NC-4.0",
            "progan",
            "512@4 512@16 512@32 256@64 128@128 64@256",
        ),
        False,
    ),
    (
        network(
            "Wan2.1 VAE",
            "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
            "Apache-2.0",
            "wan2.1-vae",
            "384@60x104 384@120x208 192@240x416 96@480x832",
        ),
        True,
    ),
    (network("Qwen-Image VAE", "Qwen/Qwen-Image", "Apache-2.0", "qwen-image-vae", "384@128 384@256 192@512"), True),
    (
        network("DC-AE f32", "mit-han-lab/dc-ae-f32c32-in-1.0", "MIT", "dc-ae-f32", "1024@8 512@32 512@64 1024@16"),
        True,
    ),
)
"""Networks that divide each pixel by the length of its channels, and whether a weight follows."""

INSTANCES: Final = (
    (
        network(
            "CycleGAN",
            "junyanz/pytorch-CycleGAN-and-pix2pix",
            "BSD-2-Clause",
            "cyclegan",
            "64@256 128@128 256@64 512@31",
        ),
        "relu",
    ),
    (
        network(
            "pix2pixHD",
            "NVIDIA/pix2pixHD",
            "BSD-3-Clause",
            "pix2pixhd",
            "64@512x1024 128@256x512 256@128x256 512@64x128 1024@32x64",
        ),
        "relu",
    ),
    (
        network(
            "Fast neural style",
            "pytorch/examples",
            "BSD-3-Clause",
            "fast-neural-style",
            "32@512 64@256 128@128 32@1080x1920 64@540x960 128@270x480",
        ),
        "relu",
    ),
    (
        network(
            "nnU-Net 3D",
            "MIC-DKFZ/nnUNet",
            "Apache-2.0",
            "nnunet-3d",
            "32@128x128x128 64@64x64x64 128@32x32x32 256@16x16x16 320@8x8x8 320@4x4x4",
        ),
        "relu",
    ),
    (
        network(
            "nnU-Net 2D",
            "MIC-DKFZ/nnUNet",
            "Apache-2.0",
            "nnunet-2d",
            "32@512 64@256 128@128 256@64 512@32 512@16 512@8",
        ),
        "relu",
    ),
    (
        network(
            "Swin UNETR",
            "MONAI SwinUNETR",
            "Apache-2.0",
            "swin-unetr",
            "48@96x96x96 48@48x48x48 96@24x24x24 192@12x12x12 384@6x6x6",
        ),
        "relu",
    ),
    (
        network("RAFT", "torchvision raft_large", "BSD-3-Clause", "raft-large", "64@220x512 96@110x256 128@55x128"),
        "relu",
    ),
    (
        network(
            "wav2vec2-base features", "facebook/wav2vec2-base", "Apache-2.0", "wav2vec2-base", "512@3199x1 512@31999x1"
        ),
        "plain",
    ),
    (network("AdaIN style transfer", "naoto0804/pytorch-AdaIN", "MIT", "adain", "512@32 512@64 512@128"), "style"),
    (
        network(
            "StyleGAN",
            "NVlabs/stylegan",
            "CC-BY-NC-4.0",
            "stylegan",
            "512@8 512@16 512@32 256@64 128@128 64@256 32@512 16@1024",
        ),
        "style",
    ),
    (
        network(
            "StarGAN v2", "clovaai/stargan-v2", "CC-BY-NC-4.0", "stargan-v2", "512@16 512@32 512@64 256@128 128@256"
        ),
        "style",
    ),
)
"""Networks with instance normalisation, and what follows it."""
