"""Strided, rolled and padded operators of published models of images, sound and series."""

from collections.abc import Iterator
from itertools import product
from typing import Final, NamedTuple

from littledragon.compiler.zoo import quant_irregular_slices as slices
from littledragon.compiler.zoo.block import Block, Model
from littledragon.compiler.zoo.grids.quant_irregular_listing import WIDTH, Entry, listed

_MIT, _APACHE, _BSD = "MIT", "Apache-2.0", "BSD-3-Clause"


class Windows(NamedTuple):
    """A Swin transformer: side of its first stage in patches, its channels, and side of a window."""

    model: Model
    key: str
    side: int
    channels: int
    window: int


def _swin(name: str, source: str, key: str, side: int, channels: int, window: int) -> Windows:
    return Windows(Model(name, f"microsoft/{source}", _APACHE), key, side, channels, window)


SWIN: Final = (
    _swin("Swin-T", "swin-tiny-patch4-window7-224", "swin-t", 56, 96, 7),
    _swin("Swin-L", "swin-large-patch4-window7-224", "swin-l", 56, 192, 7),
    _swin("Swin-B-384", "swin-base-patch4-window12-384", "swin-b-384", 96, 128, 12),
    _swin("SwinV2-L", "swinv2-large-patch4-window12-192-22k", "swinv2-l", 48, 192, 12),
)


class Joint(NamedTuple):
    """Patches joined before a product: side of the image in patches, how many side by side, widths in and out."""

    model: Model
    key: str
    side: int
    stack: int
    channels: int
    n: int
    batches: tuple[int, ...]


JOINTS: Final = (
    Joint(Model("Qwen2-VL", "Qwen/Qwen2-VL-7B-Instruct", _APACHE), "qwen2-vl", 32, 2, 1280, 5120, (1, 4, 16)),
    Joint(Model("Qwen2.5-VL", "Qwen/Qwen2.5-VL-7B-Instruct", _APACHE), "qwen2.5-vl", 74, 2, 1280, 5120, (1, 4)),
    Joint(Model("InternVL2-1B", "OpenGVLab/InternVL2-1B", _MIT), "internvl2-1b", 32, 2, 1024, 896, (1, 7, 13)),
    Joint(Model("InternVL2-8B", "OpenGVLab/InternVL2-8B", _MIT), "internvl2-8b", 32, 2, 1024, 4096, (1, 7, 13)),
    Joint(Model("InternVL2-26B", "OpenGVLab/InternVL2-26B", _MIT), "internvl2-26b", 32, 2, 3200, 6144, (1, 7)),
    Joint(Model("Idefics3-8B", "HuggingFaceM4/Idefics3-8B-Llama3", _APACHE), "idefics3", 26, 2, 1152, 4096, (1, 5, 17)),
    Joint(
        Model("SmolVLM-256M", "HuggingFaceTB/SmolVLM-256M-Instruct", _APACHE), "smolvlm", 32, 4, 768, 576, (1, 5, 17)
    ),
    Joint(
        Model("SmolVLM-2.2B", "HuggingFaceTB/SmolVLM-Instruct", _APACHE), "smolvlm-2b", 27, 3, 1152, 2048, (1, 5, 17)
    ),
    Joint(
        Model("Llama-4-Scout", "meta-llama/Llama-4-Scout-17B-16E", "Llama 4 Community License"),
        "llama-4-scout",
        24,
        2,
        1408,
        4096,
        (1, 5, 17),
    ),
    Joint(Model("Kimi-VL", "moonshotai/Kimi-VL-A3B-Instruct", _MIT), "kimi-vl", 64, 2, 1152, 2048, (1, 4)),
    Joint(
        Model("Phi-3.5-vision", "microsoft/Phi-3.5-vision-instruct", _MIT),
        "phi-3.5-vision",
        24,
        2,
        1024,
        3072,
        (1, 5, 17),
    ),
)


class Sound(NamedTuple):
    """A short-time Fourier transform: samples of a piece, of a frame, and between frames."""

    model: Model
    key: str
    samples: int
    size: int
    hop: int
    batches: tuple[int, ...]


_ENCODEC = Model("EnCodec discriminator", "facebookresearch/audiocraft", _MIT)
_HIFIGAN = Model("Parallel WaveGAN loss", "kan-bayashi/ParallelWaveGAN", _MIT)
SOUNDS: Final = (
    Sound(Model("Whisper", "openai/whisper-large-v3", _APACHE), "whisper", 480000, 400, 160, (1, 4, 16)),
    Sound(Model("Parakeet", "nvidia/parakeet-tdt-0.6b-v2", "CC-BY-4.0"), "parakeet", 320000, 512, 160, (1, 8, 32)),
    Sound(Model("AST", "MIT/ast-finetuned-audioset-10-10-0.4593", _BSD), "ast", 163840, 512, 160, (1, 8, 32)),
    Sound(Model("CLAP", "laion/clap-htsat-fused", _APACHE), "clap", 480000, 1024, 480, (1, 4, 16)),
    Sound(Model("Tacotron 2", "NVIDIA/tacotron2", _BSD), "tacotron2", 131072, 1024, 256, (1, 8, 32)),
    Sound(Model("BigVGAN", "NVIDIA/BigVGAN", _MIT), "bigvgan", 65536, 2048, 512, (1, 8, 32)),
    Sound(Model("Demucs", "facebookresearch/demucs", _MIT), "demucs", 343980, 4096, 1024, (1, 4)),
    Sound(Model("PANNs", "qiuqiangkong/audioset_tagging_cnn", _MIT), "panns", 320000, 1024, 320, (1, 4, 16)),
    *(Sound(_ENCODEC, f"encodec-{size}", 24000, size, size // 4, (4, 16)) for size in (2048, 1024, 512, 256, 128)),
    Sound(_HIFIGAN, "wavegan-1024", 25600, 1024, 120, (6, 32)),
    Sound(_HIFIGAN, "wavegan-2048", 25600, 2048, 240, (6, 32)),
    Sound(_HIFIGAN, "wavegan-512", 25600, 512, 50, (6, 32)),
)


class Series(NamedTuple):
    """Forecasting: channels of a series, or width of a model of it, and steps looked back on."""

    model: Model
    key: str
    channels: int
    steps: tuple[int, ...]


_DLINEAR, _AUTOFORMER, _FEDFORMER = "cure-lab/LTSF-Linear", "thuml/Autoformer", "MAZiqing/FEDformer"
SERIES: Final = (
    Series(Model("DLinear, ETT", _DLINEAR, _APACHE), "dlinear-ett", 7, (96, 336, 720)),
    Series(Model("DLinear, Weather", _DLINEAR, _APACHE), "dlinear-weather", 21, (96, 336, 720)),
    Series(Model("DLinear, Electricity", _DLINEAR, _APACHE), "dlinear-electricity", 321, (96, 336, 720)),
    Series(Model("DLinear, Traffic", _DLINEAR, _APACHE), "dlinear-traffic", 862, (96, 336, 720)),
    Series(Model("Autoformer", _AUTOFORMER, _MIT), "autoformer", 512, (96, 240, 768)),
    Series(Model("Autoformer, ILI", _AUTOFORMER, _MIT), "autoformer-ili", 512, (36,)),
    Series(Model("FEDformer, univariate", _FEDFORMER, _MIT), "fedformer-u", 128, (96, 384)),
    Series(Model("TimeMixer", "kwuking/TimeMixer", _APACHE), "timemixer", 16, (96, 512, 3072)),
)


class Frames(NamedTuple):
    """Frames of a sound or tokens of a text that are averaged by the stride."""

    model: Model
    key: str
    frames: int
    channels: int
    stride: int


FRAMES: Final = (
    Frames(Model("Qwen2-Audio-7B", "Qwen/Qwen2-Audio-7B", _APACHE), "qwen2-audio", 1500, 1280, 2),
    Frames(Model("Ultravox-v0.5-8B", "fixie-ai/ultravox-v0_5-llama-3_1-8b", _MIT), "ultravox", 1500, 1280, 6),
    Frames(Model("Funnel-small", "funnel-transformer/small", _APACHE), "funnel", 512, 768, 2),
    Frames(Model("Funnel-xlarge", "funnel-transformer/xlarge", _APACHE), "funnel-xlarge", 256, 1024, 2),
    Frames(Model("HuBERT to 25 Hz", "facebook/hubert-large-ll60k", _APACHE), "hubert", 748, 1024, 2),
    Frames(Model("wav2vec2 to words", "facebook/wav2vec2-base-960h", _APACHE), "wav2vec2", 480, 768, 8),
    Frames(Model("MegaByte patches", "lucidrains/MEGABYTE-pytorch", _MIT), "megabyte", 8192, 512, 8),
    Frames(Model("AudioMAE to seconds", "facebookresearch/AudioMAE", "CC-BY-NC-4.0"), "audiomae", 512, 768, 64),
)


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    yield from listed("merge_norm", slices.merge_norm, _merged())
    yield from listed("shifted_window_norm", slices.shifted_window_norm, _rolled())
    yield from listed("merge_matmul", slices.merge_matmul, _joined())
    yield from listed("frame_spectrum", slices.frame_spectrum, _spectra())
    yield from listed("trend_remainder", slices.trend_remainder, _trends())
    yield from listed("delayed_sum", slices.delayed_sum, _delays())
    yield from listed("strided_mean", slices.strided_mean, _means())


def _merged() -> Iterator[Entry]:
    for one, stage, batch, dtype in product(SWIN, (0, 1, 2), (1, 8, 64), ("float16", "float32")):
        side, channels = one.side >> stage, one.channels << stage
        yield Entry(
            one.model,
            one.key,
            f"s{stage}-b{batch}-{dtype}",
            f"merging after stage {stage + 1}, {side} x {side} patches of {channels} channels, {batch} images",
            batch * side**2 * channels * 2 * WIDTH[dtype],
            batch * side**2 * channels * 8,
            {"batch": batch, "height": side, "width": side, "channels": channels, "dtype": dtype},
        )


def _rolled() -> Iterator[Entry]:
    for one, stage, batch, dtype in product(SWIN, (0, 1, 2), (1, 8, 64), ("float16", "float32")):
        side, channels = one.side >> stage, one.channels << stage
        yield Entry(
            one.model,
            one.key,
            f"s{stage}-b{batch}-{dtype}",
            f"shifted windows of stage {stage + 1}, {side} x {side} patches of {channels} channels, {batch} images",
            batch * side**2 * channels * 2 * WIDTH[dtype],
            batch * side**2 * channels * 8,
            {"batch": batch, "size": side, "channels": channels, "window": one.window, "dtype": dtype},
        )


def _joined() -> Iterator[Entry]:
    swin = (
        Joint(
            one.model,
            f"{one.key}-s{stage}",
            one.side >> stage,
            2,
            one.channels << stage,
            2 * one.channels << stage,
            (1, 16),
        )
        for one, stage in product(SWIN, (0, 1, 2))
    )
    for one in (*JOINTS, *swin):
        for batch, dtype in product(one.batches, ("bfloat16", "float16")):
            tokens = batch * (one.side // one.stack) ** 2
            depth = one.stack**2 * one.channels
            yield Entry(
                one.model,
                one.key,
                f"b{batch}-{dtype}",
                f"{one.stack} x {one.stack} patches of {one.channels} channels to {one.n}, "
                f"{batch} images of {one.side} x {one.side} patches",
                (tokens * (depth + one.n) + depth * one.n) * 2,
                tokens * depth * one.n * 2,
                {
                    **{"batch": batch, "height": one.side, "width": one.side, "stack": one.stack},
                    **{"channels": one.channels, "n": one.n, "dtype": dtype},
                },
            )


def _spectra() -> Iterator[Entry]:
    for one in SOUNDS:
        for batch in one.batches:
            frames, bins = 1 + one.samples // one.hop, one.size // 2 + 1
            yield Entry(
                one.model,
                one.key,
                f"b{batch}",
                f"spectrum of {batch} pieces of {one.samples} samples, frames of {one.size} every {one.hop}",
                (batch * (one.samples + frames * bins) + 2 * bins * one.size) * 4,
                batch * frames * bins * one.size * 4,
                {"batch": batch, "samples": one.samples, "size": one.size, "hop": one.hop},
            )


def _trends() -> Iterator[Entry]:
    for one in SERIES:
        for steps, batch, kernel in product(one.steps, (1, 8, 64), (25, 13)):
            yield Entry(
                one.model,
                one.key,
                f"t{steps}-b{batch}-w{kernel}",
                f"trend and remainder of {batch} series of {steps} steps, {one.channels} channels, window of {kernel}",
                batch * steps * one.channels * 12,
                batch * steps * one.channels * (kernel + 3),
                {"batch": batch, "steps": steps, "channels": one.channels, "kernel": kernel},
            )


def _delays() -> Iterator[Entry]:
    for one in SERIES:
        if one.channels < 128:
            continue
        # Autoformer keeps the logarithm of the steps times 1 to 3 as delays.
        for steps, batch, delays in product(one.steps, (1, 8, 32), (5, 15)):
            yield Entry(
                one.model,
                one.key,
                f"t{steps}-b{batch}-k{delays}",
                f"{batch} series of {steps} steps, {one.channels} wide, rolled by {delays} delays of each and summed",
                batch * steps * one.channels * 8,
                batch * steps * one.channels * delays * 2,
                {"batch": batch, "steps": steps, "channels": one.channels, "delays": delays},
            )


def _means() -> Iterator[Entry]:
    for one, batch, dtype in product(FRAMES, (1, 8, 64), ("float16", "float32")):
        yield Entry(
            one.model,
            one.key,
            f"b{batch}-{dtype}",
            f"means of each {one.stride} of {one.frames} frames {one.channels} wide, masked, {batch} pieces",
            batch * one.frames * one.channels * WIDTH[dtype] * 1.5,
            batch * one.frames * one.channels * 2,
            {"batch": batch, "frames": one.frames, "channels": one.channels, "stride": one.stride, "dtype": dtype},
        )
