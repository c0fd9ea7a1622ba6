"""Networks that are short enough to write down: generators, super-resolution, pose, and convolutions of sound."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from littledragon.compiler.zoo.models.networks.network import APACHE, BSD, MIT, Network

Layer = tuple[Any, ...]
"""("conv" | "up", inputs, outputs, kernel, stride, padding, then an activation or None, then dilation or groups)."""


def networks() -> Iterator[Network]:
    """Images, then sound."""
    yield from _images()
    yield from _sound()


def _images() -> Iterator[Network]:
    dcgan = "pytorch/examples dcgan"
    widths = (100, 512, 256, 128, 64, 3)
    generator = [
        ("up2", a, b, 4, 2 if place else 1, 1 if place else 0, "tanh" if b == 3 else "norm-relu")
        for place, (a, b) in enumerate(pairwise(widths))
    ]
    yield _network("dcgan-generator", "DCGAN generator", dcgan, BSD, generator, (100, 1, 1))
    critic = [("conv2", a, b, 4, 2, 1, "norm-leaky") for a, b in ((3, 64), (64, 128), (128, 256), (256, 512))]
    yield _network("dcgan-critic", "DCGAN discriminator", dcgan, BSD, critic, (3, 64, 64))
    pix2pix, cyclegan = (
        "junyanz/pytorch-CycleGAN-and-pix2pix unet_256",
        "junyanz/pytorch-CycleGAN-and-pix2pix resnet_9blocks",
    )
    for place, (inner, outer) in enumerate(((512, 512), (1024, 512), (1024, 256), (512, 128), (256, 64), (128, 3))):
        size = 256 // 2 ** (6 - place)
        layers = [("up2", inner, outer, 4, 2, 1, "tanh" if outer == 3 else "norm-relu")]
        yield _network(f"pix2pix-{size}", "pix2pix U-Net 256", pix2pix, BSD, layers, (inner, size, size))
    down = [("conv2", a, b, 4, 2, 1, "norm-leaky") for a, b in ((3, 64), (64, 128), (128, 256), (256, 512), (512, 512))]
    yield _network("pix2pix-down", "pix2pix U-Net 256", pix2pix, BSD, down, (3, 256, 256))
    cycle: list[Layer] = [
        ("conv2", 3, 64, 7, 1, 3, "norm-relu"),
        ("conv2", 64, 128, 3, 2, 1, "norm-relu"),
        ("conv2", 128, 256, 3, 2, 1, "norm-relu"),
        ("conv2", 256, 256, 3, 1, 1, "norm-relu"),
        ("up2", 256, 128, 3, 2, 1, "norm-relu", 1),
        ("up2", 128, 64, 3, 2, 1, "norm-relu", 1),
        ("conv2", 64, 3, 7, 1, 3, "tanh"),
    ]
    yield _network("cyclegan", "CycleGAN generator", cyclegan, BSD, cycle, (3, 256, 256))
    pose = "microsoft/human-pose-estimation.pytorch"
    for width in (2048, 768):
        head = [("up2", a, 256, 4, 2, 1, "norm-relu") for a in (width, 256, 256)] + [("conv2", 256, 17, 1, 1, 0, None)]
        name = "Simple Baselines R50" if width == 2048 else "ViTPose-B"
        source = pose if width == 2048 else "ViTAE-Transformer/ViTPose"
        size = (8, 6) if width == 2048 else (16, 12)
        yield _network(f"pose-{width}", name, source, MIT if width == 2048 else APACHE, head, (width, *size))
    fcn = [("up2", 21, 21, 4, 2, 1, None), ("up2", 21, 21, 16, 8, 4, None)]
    yield _network("fcn-8s", "FCN-8s", "shelhamer/fcn.berkeleyvision.org voc-fcn8s", "BSD-2-Clause", fcn, (21, 16, 16))
    for factor, padding, more in ((2, 4, 1), (3, 4, 2), (4, 4, 3)):
        small: list[Layer] = [
            ("conv2", 1, 56, 5, 1, 2, "prelu"),
            ("conv2", 56, 12, 1, 1, 0, "prelu"),
            ("conv2", 12, 12, 3, 1, 1, "prelu"),
            ("conv2", 12, 56, 1, 1, 0, "prelu"),
            ("up2", 56, 1, 9, factor, padding, None, more),
        ]
        yield _network(
            f"fsrcnn-x{factor}", f"FSRCNN x{factor}", "arXiv:1608.00367", "none stated", small, (1, 240, 320)
        )
    for key, name, width, size, factor in (
        ("edsr-baseline", "EDSR baseline", 64, 128, 2),
        ("edsr", "EDSR", 256, 48, 2),
        ("rcan", "RCAN", 64, 48, 3),
        ("srresnet", "SRResNet", 64, 96, 2),
        ("espcn", "ESPCN", 32, 256, 3),
        ("carn-mobile", "CARN-M", 64, 320, 4),
    ):
        colours = 3 if key == "espcn" else width
        layers = [
            ("conv2", width, width, 3, 1, 1, "relu"),
            ("conv2", width, colours * factor**2, 3, 1, 1, f"shuffle{factor}"),
        ]
        yield _network(key, name, _SUPER[key], MIT, layers, (width, size, size))
    rrdb: list[Layer] = [
        ("conv2", 64 + 32 * n, 64 if n == 4 else 32, 3, 1, 1, None if n == 4 else "leaky") for n in range(5)
    ]
    for place, layer in enumerate(rrdb):
        yield _network(f"real-esrgan-{place}", "Real-ESRGAN", "xinntao/Real-ESRGAN", BSD, [layer], (layer[1], 256, 256))
    for place, (width, size) in enumerate(((512, 28), (512, 60), (256, 60), (128, 60))):
        dilated: list[Layer] = [("conv2", width, width // 2 if place > 1 else width, 3, 1, 2, "relu", 2)]
        yield _network(
            f"csrnet-{place}", "CSRNet", "leeyeehoo/CSRNet-pytorch", "none stated", dilated, (width, size, size)
        )
    for dilation in (2, 4, 8, 16):
        bottleneck: list[Layer] = [("conv2", 32, 32, 3, 1, dilation, "norm-relu", dilation)]
        yield _network(f"enet-d{dilation}", "ENet", "arXiv:1606.02147", "none stated", bottleneck, (32, 64, 128))
        drn: list[Layer] = [
            (
                "conv2",
                512 // (2 if dilation < 4 else 1),
                512 if dilation > 2 else 256,
                3,
                1,
                dilation,
                "norm-relu",
                dilation,
            )
        ]
        if dilation < 8:
            yield _network(f"drn-d{dilation}", "DRN-D-105", "fyu/drn", BSD, drn, (drn[0][1], 112, 112))


_SUPER = {
    "edsr-baseline": "sanghyun-son/EDSR-PyTorch EDSR_baseline",
    "edsr": "sanghyun-son/EDSR-PyTorch EDSR",
    "rcan": "yulunzhang/RCAN",
    "srresnet": "arXiv:1609.04802",
    "espcn": "arXiv:1609.05158",
    "carn-mobile": "nmhkahn/CARN-pytorch",
}


def _sound() -> Iterator[Network]:
    """Half a second to ten seconds of sound, or the frames of that."""
    demucs: list[Layer] = []
    for a, b in ((2, 64), (64, 128), (128, 256), (256, 512), (512, 1024)):
        demucs += [("conv1", a, b, 8, 4, 2, "relu"), ("conv1", b, b, 1, 1, 0, None)]
    yield _network("demucs", "Demucs", "facebookresearch/demucs v2", MIT, demucs, (2, 176400))
    for place, (a, b) in enumerate(((1024, 512), (512, 256), (256, 128), (128, 64), (64, 8))):
        up: list[Layer] = [("up1", a, b, 8, 4, 2, None if b == 8 else "relu")]
        yield _network(f"demucs-up{place}", "Demucs", "facebookresearch/demucs v2", MIT, up, (a, 172 * 4**place))
    tacotron: list[Layer] = [("conv1", 512, 512, 5, 1, 2, "norm-relu")]
    tacotron += [("conv1", a, b, 5, 1, 2, "norm-tanh") for a, b in ((512, 80), (80, 512), (512, 512))]
    yield _network("tacotron2", "Tacotron 2", "NVIDIA/tacotron2", BSD, tacotron, (512, 800))
    gan: list[Layer] = []
    for stage, width in enumerate((512, 256, 128, 64)):
        kernel, stride = (16, 8) if stage < 2 else (4, 2)
        gan.append(("up1", width, width // 2, kernel, stride, (kernel - stride) // 2, "leaky"))
        for wide in (3, 7, 11):
            for dilation in (1, 3, 5):
                gan.append(("conv1", width // 2, width // 2, wide, 1, (wide - 1) // 2 * dilation, "leaky", dilation))
    yield _network("hifi-gan-v1", "HiFi-GAN V1", "jik876/hifi-gan V1", MIT, gan, (512, 128))
    for dilation in (1, 4, 16, 64, 256):
        wave: list[Layer] = [("conv1", 64, 128, 3, 1, dilation, None, dilation), ("conv1", 128, 64, 1, 1, 0, None)]
        key = f"parallel-wavegan-d{dilation}"
        yield _network(key, "Parallel WaveGAN", "kan-bayashi/ParallelWaveGAN", MIT, wave, (64, 25600))
        tasnet: list[Layer] = [
            ("conv1", 128, 512, 1, 1, 0, "prelu"),
            ("conv1", 512, 512, 3, 1, dilation, "prelu", dilation, 512),
            ("conv1", 512, 128, 1, 1, 0, "add"),
        ]
        yield _network(f"conv-tasnet-d{dilation}", "Conv-TasNet", "kaituoxu/Conv-TasNet", MIT, tasnet, (128, 3200))
    for place, (width, kernel) in enumerate(((256, 33), (256, 39), (512, 51), (512, 63), (512, 75))):
        quartz: list[Layer] = [
            ("conv1", width, width, kernel, 1, kernel // 2, None, 1, width),
            ("conv1", width, width, 1, 1, 0, "norm-relu"),
        ]
        yield _network(
            f"quartznet-{place}", "QuartzNet 15x5", "NVIDIA/NeMo stt_en_quartznet15x5", APACHE, quartz, (width, 800)
        )
    ecapa: list[Layer] = [("conv1", 80, 1024, 5, 1, 2, "norm-relu")]
    ecapa += [("conv1", 128, 128, 3, 1, dilation, "norm-relu", dilation, 1, (128, 300)) for dilation in (2, 3, 4)]
    for layer, shape in ((ecapa[0], (80, 300)), (ecapa[1], (128, 300)), (ecapa[2], (128, 300)), (ecapa[3], (128, 300))):
        key = f"ecapa-{layer[1]}-{layer[7] if len(layer) > 7 else 1}"
        yield _network(key, "ECAPA-TDNN", "speechbrain/spkrec-ecapa-voxceleb", APACHE, [layer[:9]], shape)
    mixed: list[Layer] = [("conv1", 1024, 1024, 1, 1, 0, "norm-relu"), ("conv1", 1024, 1536, 1, 1, 0, "relu")]
    yield _network("ecapa-mfa", "ECAPA-TDNN", "speechbrain/spkrec-ecapa-voxceleb", APACHE, mixed, (1024, 300))
    for width, frames in ((512, 400), (144, 1000)):
        glu: list[Layer] = [("conv1", width, width, 31, 1, 15, "norm-silu", 1, width)]
        name = "Conformer-L" if width == 512 else "Conformer-S"
        yield _network(f"conformer-{width}", name, "NVIDIA/NeMo stt_en_conformer", APACHE, glu, (width, frames))


def _network(key: str, name: str, source: str, licence: str, layers: list[Layer], shape: tuple[int, ...]) -> Network:
    return Network(key, name, source, licence, _sequence(layers), (shape,))


def _sequence(layers: list[Layer]) -> Callable[[], Any]:
    """These layers one after the other; batch norms and activations between them."""

    def build() -> Any:
        from torch import nn

        activations = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "prelu": nn.PReLU}
        found: list[Any] = []
        for kind, inputs, outputs, kernel, stride, padding, then, *rest in layers:
            words = (then or "").split("-")
            given: dict[str, Any] = {"bias": "norm" not in words}
            if kind.startswith("conv"):
                given |= {"dilation": rest[0] if rest else 1, "groups": rest[1] if len(rest) > 1 else 1}
                made = getattr(nn, f"Conv{kind[-1]}d")
            else:
                given |= {"output_padding": rest[0] if rest else 0}
                made = getattr(nn, f"ConvTranspose{kind[-1]}d")
            found.append(made(inputs, outputs, kernel, stride, padding, **given))
            for word in words:
                if word == "norm":
                    found.append(getattr(nn, f"BatchNorm{kind[-1]}d")(outputs))
                elif word == "leaky":
                    found.append(nn.LeakyReLU(0.2))
                elif word.startswith("shuffle"):
                    found.append(nn.PixelShuffle(int(word.removeprefix("shuffle"))))
                elif word in activations:
                    found.append(activations[word]())
        return nn.Sequential(*found)

    return build
