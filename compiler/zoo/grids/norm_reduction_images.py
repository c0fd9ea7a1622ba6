"""Normalisations and pooling of feature maps."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, Final

from littledragon.compiler.zoo import norm_reduction_images as zoo
from littledragon.compiler.zoo.block import Model
from littledragon.compiler.zoo.grids import norm_reduction_networks as networks
from littledragon.compiler.zoo.grids import norm_reduction_unets as unets
from littledragon.compiler.zoo.grids.norm_reduction_listing import MIXED, SIZE, Group, Run, counted, run
from littledragon.compiler.zoo.grids.norm_reduction_networks import Network, Site

SERVED: Final = (1, 8, 32, 128)
"""Images in one batch of a classifier: one request, small and large batches."""
TRAINED: Final = (32, 128)
"""Images of a training batch on one device."""
GENERATED: Final = (1, 2, 8)
"""Images that a diffusion model makes at once: one, one with and without its prompt, four of those."""
LARGE: Final = (1, 4, 16)
"""Images of networks whose feature maps are large."""


def groups() -> Iterator[Group]:
    """All of them."""
    yield from _group_norms()
    yield from _instance_norms()
    yield from _batch_norms()
    yield from _channel_norms()
    yield from _responses()
    yield from _pools()
    yield from _sound()


def _place(pixels: tuple[int, ...]) -> str:
    return "x".join(str(extent) for extent in pixels)


def _of(images: int, site: Site) -> str:
    """In words: of which feature maps."""
    channels, pixels = site
    return f"of {counted(images, 'image')}, {channels} channels of {_place(pixels)}"


def _name(images: int, site: Site, dtype: str) -> str:
    return f"b{images}-c{site[0]}-{_place(site[1])}-{dtype}"


def _group_norms() -> Iterator[Group]:
    for unet in unets.UNETS:
        for operator, activated, sites in (
            ("group_norm_silu", True, unet.sites()),
            ("group_norm", False, unet.attended()),
        ):
            runs = [
                _grouped(images, site, dtype, activated) for site, images, dtype in product(sites, GENERATED, MIXED)
            ]
            yield from _cut(operator, unet.model, unet.key, zoo.group_norm, runs)
    for network in unets.GROUPED:
        runs = [_grouped(images, site, dtype, False) for site, images, dtype in product(network.sites, LARGE, MIXED)]
        yield from _cut("group_norm", network.model, network.key, zoo.group_norm, runs)


def _grouped(images: int, site: Site, dtype: str, activated: bool) -> Run:
    channels, pixels = site
    return run(
        _name(images, site, dtype),
        f"group normalisation{' and silu' if activated else ''} {_of(images, site)}",
        "group-centred",
        (images, 32, channels // 32, *pixels),
        2 * images * channels * prod(pixels) * SIZE[dtype],
        images=images,
        channels=channels,
        pixels=pixels,
        groups=32,
        dtype=dtype,
        activated=activated,
    )


def _cut(operator: str, model: Model, key: str, build: Any, runs: list[Run]) -> Iterator[Group]:
    """One group, or several where there are more runs than a block holds."""
    for start in range(0, len(runs), 96):
        part = key if len(runs) <= 96 else f"{key}-{start // 96 + 1}"
        yield Group(operator, model, part, build, runs[start : start + 96])


def _plain(
    operator: str,
    network: Network,
    build: Any,
    words: str,
    reads: str,
    batches: tuple[int, ...],
    tensors: int,
    **more: Any,
) -> Iterator[Group]:
    """An operator of [images, channels, *pixels] at every site of a network. `reads`: the form of its cell."""
    runs = []
    for site, images, dtype in product(network.sites, batches, MIXED):
        channels, pixels = site
        runs.append(
            run(
                _name(images, site, dtype),
                f"{words} {_of(images, site)}",
                reads,
                _extents(reads, images, channels, pixels),
                tensors * images * channels * prod(pixels) * SIZE[dtype],
                images=images,
                channels=channels,
                pixels=pixels,
                dtype=dtype,
                **more,
            )
        )
    yield from _cut(operator, network.model, network.key, build, runs)


def _extents(reads: str, images: int, channels: int, pixels: tuple[int, ...]) -> tuple[int, ...]:
    """The extents of the largest reduction, spatial ones first: by batch, by pixel, or by channel of an image."""
    if reads.startswith("batch"):
        return (channels, images, *pixels)
    if reads.startswith("pixel"):
        return (images, *pixels, channels)
    return (images, channels, *pixels)


def _instance_norms() -> Iterator[Group]:
    for network, form in networks.INSTANCES:
        words = {"relu": "instance normalisation and leaky ReLU", "style": "adaptive instance normalisation"}
        yield from _plain(
            "adaptive_instance_norm" if form == "style" else "instance_norm",
            network,
            zoo.instance_norm,
            words.get(form, "instance normalisation"),
            "instance-centred",
            LARGE,
            2,
            form=form,
        )


def _batch_norms() -> Iterator[Group]:
    for network in networks.CONVOLUTIONAL:
        words = "batch normalisation in training, with its statistics,"
        yield from _plain("batch_norm", network, zoo.batch_norm, words, "batch-centred", TRAINED, 2, relu=True)
        words = "gradients of the weight and bias of batch normalisation"
        yield from _plain("batch_norm_gradient", network, zoo.batch_norm_gradient, words, "batch-centred", TRAINED, 2)
    for model, key, widths in networks.PROJECTORS:
        runs = [
            run(
                f"b{images}-c{width}-{dtype}",
                f"batch normalisation in training of {images} rows of {width}",
                "batch-centred",
                (width, images),
                2 * images * width * SIZE[dtype],
                images=images,
                channels=width,
                pixels=(),
                dtype=dtype,
                relu=True,
            )
            for width, images, dtype in product(widths, (64, 256, 1024, 4096), MIXED)
        ]
        yield Group("batch_norm", model, key, zoo.batch_norm, runs)


def _next() -> Iterator[tuple[Network, Network]]:
    """Each ConvNeXt's stages, and the same with the four times wider channels between its two products."""
    for name, source, key, widths, side in networks.NEXT:
        model = Model(name, source, "Apache-2.0")
        sites = tuple((width, (side // (4 << stage),) * 2) for stage, width in enumerate(widths))
        yield Network(model, key, sites), Network(model, key, tuple((4 * width, pixels) for width, pixels in sites))


def _channel_norms() -> Iterator[Group]:
    words = "layer normalisation over channels, before the pixels,"
    for network, _ in _next():
        yield from _plain("channel_norm", network, zoo.channel_norm, words, "pixel-centred", SERVED, 2)
    for network in networks.CHANNELS_FIRST:
        yield from _plain("channel_norm", network, zoo.channel_norm, words, "pixel-centred", LARGE, 2)
    for network, weighted in networks.DESCRIPTORS:
        words = "division by the length over channels"
        yield from _plain("pixel_norm", network, zoo.pixel_norm, words, "pixel", LARGE, 2, weighted=weighted)


def _responses() -> Iterator[Group]:
    for _, network in _next():
        if "v2" not in network.key:
            continue
        words = "global response normalisation"
        yield from _plain("response_norm", network, zoo.response_norm, words, "response", SERVED, 2)


def _pools() -> Iterator[Group]:
    for network in networks.POOLED:
        yield from _plain(
            "global_mean", network, zoo.global_pool, "mean over pixels", "instance", SERVED, 1, how="mean"
        )
    for network in networks.SQUEEZED:
        words = "mean over pixels before channel attention"
        yield from _plain("squeeze", network, zoo.global_pool, words, "instance", SERVED, 1, how="mean")
    for network in networks.CBAM:
        words = "maximum over pixels before channel attention"
        yield from _plain("global_max", network, zoo.global_pool, words, "instance", SERVED, 1, how="max")
        words = "mean and maximum over channels"
        yield from _plain("channel_maps", network, zoo.channel_maps, words, "pixel", SERVED, 1)
    for network in networks.RETRIEVAL:
        words = "cubic mean over pixels"
        yield from _plain("power_mean", network, zoo.global_pool, words, "instance", SERVED, 1, how="power")


SPEAKERS: Final = (
    (Model("x-vector", "speechbrain/spkrec-xvect-voxceleb", "Apache-2.0"), "xvector", 1500, (300, 1000)),
    (Model("WavLM-base SV", "microsoft/wavlm-base-plus-sv", "CC-BY-SA-3.0"), "wavlm-sv", 1500, (485, 1485)),
    (Model("WeSpeaker ResNet-34", "wenet-e2e/wespeaker", "Apache-2.0"), "wespeaker-resnet34", 2560, (25, 75)),
    (Model("CAM++", "modelscope/3D-Speaker", "Apache-2.0"), "campplus", 512, (150, 500)),
    (Model("ECAPA-TDNN", "speechbrain/spkrec-ecapa-voxceleb", "Apache-2.0"), "ecapa-tdnn", 1536, (200, 800)),
)
"""Speaker encoders: channels, and frames of a short and a long utterance."""
WAVES: Final = (
    (Model("wav2vec2-base", "facebook/wav2vec2-base", "Apache-2.0"), "wav2vec2-base", (16000, 160000, 480000)),
    (Model("HTDemucs", "facebookresearch/demucs", "MIT"), "htdemucs", (343980,)),
)
"""Models that a waveform enters standardised: samples of 1, 10 and 30 seconds at 16 kHz, and of 7.8 at 44.1."""
SPECTRA: Final = (
    (Model("Conformer large", "nvidia/stt_en_conformer_ctc_large", "CC-BY-4.0"), "conformer", 80, (300, 1000, 3000)),
    (Model("Parakeet TDT", "nvidia/parakeet-tdt-1.1b", "CC-BY-4.0"), "parakeet", 128, (1000, 3000)),
)
"""Models whose mel channels are each standardised over frames of 10 ms."""
STANDARDIZED: Final = (
    (
        Model("BiT R50x1", "google-research/big_transfer", "Apache-2.0"),
        "bit-r50x1",
        ((64, 147), (64, 576), (256, 64), (128, 1152), (512, 128), (256, 2304), (1024, 256), (512, 4608), (2048, 512)),
    ),
    (
        Model("BiT R101x3", "google-research/big_transfer", "Apache-2.0"),
        "bit-r101x3",
        ((192, 1728), (768, 192), (384, 3456), (1536, 384), (768, 6912), (3072, 768), (1536, 13824), (6144, 1536)),
    ),
    (
        Model("NFNet-F0", "google-deepmind/nfnets", "Apache-2.0"),
        "nfnet-f0",
        ((128, 576), (128, 1152), (256, 128), (256, 1152), (512, 256), (768, 1152), (1536, 768), (1536, 1536)),
    ),
)
"""Networks whose convolution weights are standardised: filters, and weights of one."""


def _sound() -> Iterator[Group]:
    for model, key, channels, lengths in SPEAKERS:
        runs = [
            run(
                f"b{clips}-s{frames}-{dtype}",
                f"mean and deviation of {channels} channels over {frames} frames of {counted(clips, 'clip')}",
                "centred",
                (clips, channels, frames),
                clips * channels * frames * SIZE[dtype],
                clips=clips,
                channels=channels,
                frames=frames,
                dtype=dtype,
            )
            for clips, frames, dtype in product(SERVED, lengths, MIXED)
        ]
        yield Group("spread_pool", model, key, zoo.spread_pool, runs)
    for model, key, waves in WAVES:
        yield _standard(model, key, "waveform", (), waves)
    for model, key, channels, frames in SPECTRA:
        yield _standard(model, key, "spectrum", (channels,), frames)
    for model, key, weights in STANDARDIZED:
        runs = [
            run(
                f"f{filters}-t{taps}-{dtype}",
                f"standardisation of {filters} filters of {taps} weights",
                "centred",
                (filters, taps),
                2 * filters * taps * SIZE[dtype],
                lead=filters,
                columns=taps,
                dtype=dtype,
            )
            for (filters, taps), dtype in product(weights, ("bfloat16", "float32"))
        ]
        yield Group("standardize", model, f"{key}-weights", zoo.standardize, runs)


def _standard(model: Model, key: str, what: str, channels: tuple[int, ...], lengths: tuple[int, ...]) -> Group:
    """What is standardised over each of `lengths` steps of sound."""
    runs = [
        run(
            f"b{clips}-s{columns}",
            f"standardisation of the {what} of {counted(clips, 'clip')} of {columns} steps",
            "centred",
            (clips, *channels, columns),
            8 * clips * prod(channels) * columns,
            lead=(clips, *channels),
            columns=columns,
            dtype="float32",
        )
        for clips, columns in product(SERVED, lengths)
    ]
    return Group("standardize", model, key, zoo.standardize, runs)
