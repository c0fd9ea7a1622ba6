"""Networks that are short enough to write down: generators, super-resolution, pose, and convolutions of sound."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from littledragon.compiler.zoo.models.networks.network import APACHE, BSD, MIT, Network, Shape, library

_UNSTATED = "none stated"


class Conv(NamedTuple):
    """A convolution over `space` dimensions, transposed if `up`, then what `then` names, in order."""

    space: int
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    then: tuple[str, ...] = ()
    dilation: int = 1
    groups: int = 1
    up: bool = False
    more: int = 0


def networks() -> Iterator[Network]:
    """Images, then sound."""
    yield from _generators()
    yield from _larger_images()
    yield from _dilated_images()
    yield from _vocoders()
    yield from _listeners()


def _generators() -> Iterator[Network]:
    """Images from noise or from other images, and poses from features."""
    norm, leaky = ("norm", "relu"), ("norm", "leaky")
    dcgan = "pytorch/examples dcgan"
    first = [Conv(2, 100, 512, 4, then=norm, up=True)]
    rest = [Conv(2, a, b, 4, 2, 1, norm, up=True) for a, b in pairwise((512, 256, 128, 64))]
    last = [Conv(2, 64, 3, 4, 2, 1, ("tanh",), up=True)]
    yield _network("dcgan-generator", "DCGAN generator", dcgan, BSD, (100, 1, 1), [*first, *rest, *last])
    critic = [Conv(2, a, b, 4, 2, 1, leaky) for a, b in pairwise((3, 64, 128, 256, 512))]
    yield _network("dcgan-critic", "DCGAN discriminator", dcgan, BSD, (3, 64, 64), critic)
    source = "junyanz/pytorch-CycleGAN-and-pix2pix"
    down = [Conv(2, a, b, 4, 2, 1, leaky) for a, b in pairwise((3, 64, 128, 256, 512, 512))]
    yield _network("pix2pix-down", "pix2pix U-Net 256", f"{source} unet_256", BSD, (3, 256, 256), down)
    ups = ((512, 512, 4), (1024, 512, 8), (1024, 256, 16), (512, 128, 32), (256, 64, 64), (128, 3, 128))
    for inner, outer, size in ups:
        layer = Conv(2, inner, outer, 4, 2, 1, norm if outer > 3 else ("tanh",), up=True)
        yield _network(f"pix2pix-{size}", "pix2pix U-Net 256", f"{source} unet_256", BSD, (inner, size, size), [layer])
    cycle = [
        Conv(2, 3, 64, 7, 1, 3, norm),
        Conv(2, 64, 128, 3, 2, 1, norm),
        Conv(2, 128, 256, 3, 2, 1, norm),
        Conv(2, 256, 256, 3, 1, 1, norm),
        Conv(2, 256, 128, 3, 2, 1, norm, up=True, more=1),
        Conv(2, 128, 64, 3, 2, 1, norm, up=True, more=1),
        Conv(2, 64, 3, 7, 1, 3, ("tanh",)),
    ]
    yield _network("cyclegan", "CycleGAN generator", f"{source} resnet_9blocks", BSD, (3, 256, 256), cycle)
    simple, vitpose = "microsoft/human-pose-estimation.pytorch", "ViTAE-Transformer/ViTPose"
    head = [Conv(2, a, b, 4, 2, 1, norm, up=True) for a, b in pairwise((2048, 256, 256, 256))]
    yield _network("pose-resnet50", "Simple Baselines R50", simple, MIT, (2048, 8, 6), [*head, Conv(2, 256, 17, 1)])
    head = [Conv(2, a, b, 4, 2, 1, norm, up=True) for a, b in pairwise((768, 256, 256))]
    yield _network("vitpose-b", "ViTPose-B", vitpose, APACHE, (768, 16, 12), [*head, Conv(2, 256, 17, 1)])
    fcn = [Conv(2, 21, 21, 4, 2, up=True), Conv(2, 21, 21, 16, 8, up=True)]
    yield _network("fcn-8s", "FCN-8s", "shelhamer/fcn.berkeleyvision.org voc-fcn8s", "BSD-2-Clause", (21, 16, 16), fcn)


def _larger_images() -> Iterator[Network]:
    """Super-resolution of crops, frames and pictures."""
    for factor in (2, 3, 4):
        small = [
            Conv(2, 1, 56, 5, 1, 2),
            Conv(2, 56, 12, 1),
            Conv(2, 12, 12, 3, 1, 1),
            Conv(2, 12, 56, 1),
            Conv(2, 56, 1, 9, factor, 4, up=True, more=factor - 1),
        ]
        name = f"FSRCNN x{factor}"
        yield _network(f"fsrcnn-x{factor}", name, "arXiv:1608.00367", _UNSTATED, (1, 240, 320), small)
    edsr, swinir = "sanghyun-son/EDSR-PyTorch", "JingyunLiang/SwinIR"
    ends: tuple[tuple[str, str, str, str, int, int, int, tuple[int, ...]], ...] = (
        ("edsr-baseline-x2", "EDSR baseline x2", edsr, MIT, 64, 64, 2, (48, 128, 339)),
        ("edsr-x2", "EDSR x2", edsr, MIT, 256, 256, 2, (48, 128)),
        ("edsr-x3", "EDSR x3", edsr, MIT, 256, 256, 3, (48, 128)),
        ("rcan-x3", "RCAN x3", "yulunzhang/RCAN", _UNSTATED, 64, 64, 3, (48, 226)),
        ("espcn-x3", "ESPCN x3", "arXiv:1609.05158", _UNSTATED, 32, 3, 3, (17, 256)),
        ("swinir-light-x4", "SwinIR x4, lightweight", swinir, APACHE, 60, 3, 4, (64, 256)),
    )
    for key, name, source, licence, width, colours, factor, sizes in ends:
        for size in sizes:
            end = [Conv(2, width, colours * factor**2, 3, 1, 1, (f"shuffle{factor}",))]
            yield _network(f"{key}-{size}", name, source, licence, (width, size, size), end)
    body = [Conv(2, 256, 256, 3, 1, 1, ("relu",))]
    yield _network("edsr-body", "EDSR", edsr, MIT, (256, 48, 48), body)
    for width in (64, 96, 128, 160, 192):
        dense = [Conv(2, width, 64, 3, 1, 1) if width == 192 else Conv(2, width, 32, 3, 1, 1, ("leaky",))]
        yield _network(f"real-esrgan-{width}", "Real-ESRGAN", "xinntao/Real-ESRGAN", BSD, (width, 256, 256), dense)


def _dilated_images() -> Iterator[Network]:
    """Crowds and streets: convolutions that look further without stride."""
    for a, b, size in ((512, 512, 28), (512, 512, 60), (256, 128, 60), (128, 64, 60)):
        crowd = [Conv(2, a, b, 3, 1, 2, ("relu",), 2)]
        key = f"csrnet-{a}-{size}"
        yield _network(key, "CSRNet", "leeyeehoo/CSRNet-pytorch", _UNSTATED, (a, size, size), crowd)
    for dilation in (2, 4, 8, 16):
        narrow = [Conv(2, 32, 32, 3, 1, dilation, ("norm", "relu"), dilation)]
        yield _network(f"enet-d{dilation}", "ENet", "arXiv:1606.02147", _UNSTATED, (32, 64, 128), narrow)
    for width, dilation in ((256, 2), (512, 4)):
        stage = [Conv(2, width, width, 3, 1, dilation, ("norm", "relu"), dilation)]
        yield _network(f"drn-d-105-d{dilation}", "DRN-D-105", "fyu/drn", BSD, (width, 112, 112), stage)


def _vocoders() -> Iterator[Network]:
    """Sound made or taken apart: four seconds of music, one second of speech and more."""
    music = "facebookresearch/demucs v2"
    widths = (64, 128, 256, 512, 1024)
    down: list[Conv] = []
    for a, b in pairwise((2, *widths)):
        down += [Conv(1, a, b, 8, 4, then=("relu",)), Conv(1, b, 2 * b, 1, then=("glu",))]
    yield _network("demucs", "Demucs", music, MIT, (2, 176400), down)
    for place, (b, a) in enumerate(reversed(list(pairwise((8, *widths))))):
        up = [Conv(1, a, b, 8, 4, then=("relu",) if b > 8 else (), up=True)]
        yield _network(f"demucs-up-{a}", "Demucs", music, MIT, (a, 172 * 4**place), up)
    gan: list[Conv] = []
    for width, kernel, stride in ((512, 16, 8), (256, 16, 8), (128, 4, 2), (64, 4, 2)):
        half = width // 2
        gan.append(Conv(1, width, half, kernel, stride, (kernel - stride) // 2, ("leaky",), up=True))
        for wide, dilation in ((wide, dilation) for wide in (3, 7, 11) for dilation in (1, 3, 5)):
            gan.append(Conv(1, half, half, wide, 1, wide // 2 * dilation, ("leaky",), dilation))
    yield _network("hifi-gan-v1", "HiFi-GAN V1", "jik876/hifi-gan", MIT, (512, 128), gan)
    for dilation in (1, 4, 16, 64, 256):
        wave = [Conv(1, 64, 128, 3, 1, dilation, ("glu",), dilation), Conv(1, 64, 64, 1)]
        key = f"parallel-wavegan-d{dilation}"
        yield _network(key, "Parallel WaveGAN", "kan-bayashi/ParallelWaveGAN", MIT, (64, 25600), wave)
    for dilation in (1, 4, 16, 64):
        talk = [Conv(1, 128, 512, 1), Conv(1, 512, 512, 3, 1, dilation, (), dilation, 512), Conv(1, 512, 128, 1)]
        yield _network(f"conv-tasnet-d{dilation}", "Conv-TasNet", "kaituoxu/Conv-TasNet", MIT, (128, 3200), talk)
    speak = [Conv(1, 512, 512, 5, 1, 2, ("norm", "relu")), Conv(1, 512, 80, 5, 1, 2, ("norm",))]
    speak.append(Conv(1, 80, 512, 5, 1, 2, ("norm", "tanh")))
    yield _network("tacotron2", "Tacotron 2", "NVIDIA/tacotron2", BSD, (512, 800), speak)


def _listeners() -> Iterator[Network]:
    """Speech and speakers recognised: three to sixteen seconds, in frames."""
    for width, kernel in ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75)):
        separable = [
            Conv(1, width, width, kernel, 1, kernel // 2, groups=width),
            Conv(1, width, width, 1, then=("norm", "relu")),
        ]
        key, source = f"quartznet-k{kernel}", "NVIDIA/NeMo stt_en_quartznet15x5"
        yield _network(key, "QuartzNet 15x5", source, APACHE, (width, 800), separable)
    ecapa = "speechbrain/spkrec-ecapa-voxceleb"
    yield _network("ecapa-stem", "ECAPA-TDNN", ecapa, APACHE, (80, 300), [Conv(1, 80, 1024, 5, 1, 2, ("relu",))])
    for dilation in (2, 3, 4):
        part = [Conv(1, 128, 128, 3, 1, dilation, ("relu",), dilation)]
        yield _network(f"ecapa-d{dilation}", "ECAPA-TDNN", ecapa, APACHE, (128, 300), part)
    for width in (1024, 3072):
        mix = [Conv(1, width, width, 1, then=("relu",))]
        yield _network(f"ecapa-{width}", "ECAPA-TDNN", ecapa, APACHE, (width, 300), mix)
    for name, width in (("Large", 512), ("Small", 176)):
        inner = [Conv(1, width, width, 31, 1, 15, ("norm", "silu"), 1, width)]
        key, source = f"conformer-{name.lower()}", f"NVIDIA/NeMo stt_en_conformer_ctc_{name.lower()}"
        yield _network(key, f"Conformer-CTC {name}", source, APACHE, (width, 400), inner)


def _network(key: str, name: str, source: str, licence: str, shape: Shape, layers: list[Conv]) -> Network:
    return Network(key, name, source, licence, _sequence(layers), (shape,))


def _sequence(layers: list[Conv]) -> Callable[[], Any]:
    """These layers one after the other."""

    def build() -> Any:
        nn = library("torch.nn")

        plain = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}
        found: list[Any] = []
        for layer in layers:
            kind = f"Conv{'Transpose' if layer.up else ''}{layer.space}d"
            given = {"output_padding": layer.more} if layer.up else {"dilation": layer.dilation}
            numbers = (layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.padding)
            bias = "norm" not in layer.then
            found.append(getattr(nn, kind)(*numbers, groups=layer.groups, bias=bias, **given))
            for word in layer.then:
                if word == "norm":
                    found.append(getattr(nn, f"BatchNorm{layer.space}d")(layer.outputs))
                elif word == "leaky":
                    found.append(nn.LeakyReLU(0.2))
                elif word == "glu":
                    found.append(nn.GLU(dim=1))
                elif word.startswith("shuffle"):
                    found.append(nn.PixelShuffle(int(word.removeprefix("shuffle"))))
                else:
                    found.append(plain[word]())
        return nn.Sequential(*found)

    return build
