"""What training and calibration reduce over the tables of language models and encoders."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

from littledragon.compiler.zoo import norm_reduction_logits as logits
from littledragon.compiler.zoo import norm_reduction_training as zoo
from littledragon.compiler.zoo.block import Model, Program
from littledragon.compiler.zoo.grids.norm_reduction_listing import HALF, LANGUAGE, MIXED, SIZE, Group, Run, run
from littledragon.compiler.zoo.models.language import DECODERS, MIXTURES, Decoder, Encoder

BATCHES: Final = ((1, 4096), (8, 512), (4, 2048))
"""Sequences and tokens of a micro-batch on one device."""
ROWS: Final = (1024, 4096, 16384)
"""Tokens of a micro-batch where its sequences lie one after the other."""
CALIBRATION: Final = (512, 2048)
"""Tokens of one calibration sample of AWQ and of SmoothQuant."""


def groups() -> Iterator[Group]:
    """All of them."""
    yield from _norms()
    yield from _biases()
    yield from _calibration()
    yield from _matrices()
    yield from _sounds()
    yield from _variances()
    yield from _attention()


def _norms() -> Iterator[Group]:
    for model in LANGUAGE:
        centred = _centred(model)
        # Training keeps its activations in bfloat16; small encoders are trained in float32 too.
        dtypes = ("bfloat16", "float32") if isinstance(model, Encoder) else ("bfloat16",)
        inputs, weights = [], []
        for (sequences, tokens), dtype in product(BATCHES, dtypes):
            lead: Any = (sequences, tokens) if sequences > 1 else tokens
            inputs.append(
                run(
                    f"b{sequences}-s{tokens}-{dtype}",
                    f"gradient of {_words(centred)} of {sequences} x {tokens} tokens for its input",
                    "centred" if centred else "row",
                    (sequences, tokens, model.hidden),
                    3 * sequences * tokens * model.hidden * SIZE[dtype],
                    rows=lead,
                    hidden=model.hidden,
                    dtype=dtype,
                )
            )
        for rows, dtype in product(ROWS, dtypes):
            weights.append(
                run(
                    f"m{rows}-{dtype}",
                    f"gradient of {_words(centred)} of {rows} tokens for its weight{' and bias' if centred else ''}",
                    "column",
                    (model.hidden, rows),
                    2 * rows * model.hidden * SIZE[dtype],
                    rows=rows,
                    hidden=model.hidden,
                    dtype=dtype,
                    centred=centred,
                )
            )
        name = "layer_norm" if centred else "rms_norm"
        build: Callable[..., Program] = zoo.layer_norm_gradient if centred else zoo.rms_norm_gradient
        yield Group(f"{name}_gradient", model, model.key, build, inputs)
        yield Group("norm_weight_gradient", model, model.key, zoo.norm_weight_gradient, weights)


def _centred(model: Decoder | Encoder) -> bool:
    """Whether it has layer normalisation."""
    if isinstance(model, Decoder):
        return model.norm == "layer"
    return not model.key.startswith(("t5-", "flan-t5-"))


def _words(centred: bool) -> str:
    return "layer normalisation" if centred else "RMS normalisation"


def _biases() -> Iterator[Group]:
    for model in LANGUAGE:
        biased, kv = ("all", model.heads) if isinstance(model, Encoder) else (model.bias, model.kv_heads)
        if biased == "none":
            continue
        widths = {"heads": (model.heads + 2 * kv) * model.head}
        if biased == "all":
            widths |= {"hidden": model.hidden, "inner": model.inner}
        dtypes = ("bfloat16", "float32") if isinstance(model, Encoder) else ("bfloat16",)
        runs = [
            run(
                f"{what}-m{rows}-{dtype}",
                f"gradient of a bias of {columns} over {rows} tokens",
                "column",
                (columns, rows),
                rows * columns * SIZE[dtype],
                rows=rows,
                columns=columns,
                dtype=dtype,
            )
            for (what, columns), rows, dtype in product(widths.items(), ROWS, dtypes)
            if columns
        ]
        yield Group("bias_gradient", model, model.key, zoo.bias_gradient, runs)
        if "inner" not in widths or not model.inner:
            continue
        inner = [
            run(
                f"m{rows}-{dtype}",
                f"gradient of {model.activation} and of the bias before it, {model.inner} channels, {rows} tokens",
                "column",
                (model.inner, rows),
                3 * rows * model.inner * SIZE[dtype],
                rows=rows,
                columns=model.inner,
                dtype=dtype,
                activation=model.activation,
            )
            for rows, dtype in product(ROWS, dtypes)
        ]
        yield Group("activation_bias_gradient", model, model.key, zoo.activation_bias_gradient, inner)


def _calibration() -> Iterator[Group]:
    """Statistics of what enters the products of a layer: the normalised rows, the heads, the inner channels."""
    for model in (*DECODERS, *MIXTURES):
        widths = {"hidden": model.hidden, "heads": model.heads * model.head, "inner": model.inner or _experts(model)}
        runs = [
            run(
                f"{what}-m{rows}-{dtype}",
                f"largest and mean magnitude of each of {columns} channels over {rows} tokens",
                "column",
                (columns, rows),
                rows * columns * SIZE[dtype],
                rows=rows,
                columns=columns,
                dtype=dtype,
            )
            for (what, columns), rows, dtype in product(widths.items(), CALIBRATION, HALF)
        ]
        yield Group("channel_statistics", model, model.key, zoo.channel_statistics, runs)


def _experts(model: Decoder) -> int:
    return int(getattr(model, "expert_inner", 0))


def _weights(model: Decoder | Encoder) -> dict[str, tuple[int, int]]:
    """Rows and columns of a layer's matrices; the fused ones of queries, keys and values, and the embedding, not among
    them where they are as large as to be split."""
    kv = model.kv_heads if isinstance(model, Decoder) else model.heads
    inner = model.inner or (_experts(model) if isinstance(model, Decoder) else 0)
    found = {
        "queries": (model.heads * model.head, model.hidden),
        "keys": (kv * model.head, model.hidden),
        "up": (inner, model.hidden),
        "down": (model.hidden, inner),
    }
    return {name: shape for name, shape in found.items() if 0 not in shape}


MATRICES: Final[tuple[tuple[str, Callable[..., Program], str, str, tuple[str, ...]], ...]] = (
    ("square_sum", zoo.square_sum, "sum of the squares of the gradient of", "whole", ("bfloat16", "float32")),
    ("largest_magnitude", zoo.largest_magnitude, "largest magnitude in", "whole", ("bfloat16",)),
    (
        "factored_moments",
        zoo.factored_moments,
        "means of the squared gradient over rows and columns of",
        "row",
        ("float32",),
    ),
)
"""Operators of whole matrices: how the sum reads, and the dtypes that gradients and weights are kept in."""


def _matrices() -> Iterator[Group]:
    for operator, build, words, form, dtypes in MATRICES:
        for model in LANGUAGE:
            runs = [
                run(
                    f"{what}-{dtype}",
                    f"{words} a weight of {rows} x {columns} ({what})",
                    form,
                    (rows, columns),
                    rows * columns * SIZE[dtype],
                    rows=rows,
                    columns=columns,
                    dtype=dtype,
                )
                for (what, (rows, columns)), dtype in product(_weights(model).items(), dtypes)
            ]
            yield Group(operator, model, model.key, build, runs)
    for model in LANGUAGE:
        if not isinstance(model, Decoder):
            continue
        adapted = [
            run(
                f"{what}-bfloat16",
                f"magnitude and direction of an adapted weight of {rows} x {columns} ({what})",
                "row",
                (rows, columns),
                4 * rows * columns,
                filters=rows,
                taps=columns,
                dtype="bfloat16",
            )
            for what, (rows, columns) in _weights(model).items()
        ]
        yield Group("weight_norm", model, model.key, zoo.weight_norm, adapted)


SOUND: Final = (
    (
        Model("HiFi-GAN v1", "jik876/hifi-gan", "MIT"),
        "hifi-gan-v1",
        ((512, 560), (512, 4096), (256, 2048), (256, 2816), (128, 1408), (64, 704), (32, 352)),
    ),
    (
        Model("EnCodec 24 kHz", "facebook/encodec_24khz", "CC-BY-NC-4.0"),
        "encodec-24khz",
        ((64, 128), (128, 512), (256, 2048), (512, 8192)),
    ),
    (
        Model("DAC 44 kHz", "descriptinc/descript-audio-codec", "MIT"),
        "dac-44khz",
        ((128, 448), (256, 1024), (512, 4096), (1024, 16384), (1536, 10752)),
    ),
    (
        Model("WaveGlow", "NVIDIA/waveglow", "BSD-3-Clause"),
        "waveglow",
        ((512, 768), (512, 256), (1024, 1536), (512, 640)),
    ),
    (Model("wav2vec2-base", "facebook/wav2vec2-base", "Apache-2.0"), "wav2vec2-base", ((768, 6144),)),
    (
        Model("BigVGAN v2", "nvidia/bigvgan_v2_24khz_100band_256x", "MIT"),
        "bigvgan-v2",
        ((1536, 700), (768, 12288), (768, 8448), (384, 4224), (192, 2112)),
    ),
)
"""Sound models whose convolutions are weight-normalised: filters, and weights of one."""


def _sounds() -> Iterator[Group]:
    for model, key, shapes in SOUND:
        runs = [
            run(
                f"f{filters}-t{taps}-{dtype}",
                f"weight normalisation of {filters} filters of {taps} weights",
                "row",
                (filters, taps),
                2 * filters * taps * SIZE[dtype],
                filters=filters,
                taps=taps,
                dtype=dtype,
            )
            for (filters, taps), dtype in product(shapes, MIXED)
        ]
        yield Group("weight_norm", model, key, zoo.weight_norm, runs)


FEATURES: Final = (
    (Model("VICReg", "facebookresearch/vicreg", "CC-BY-NC-4.0"), "vicreg", (8192, 2048)),
    (Model("SimSiam", "facebookresearch/simsiam", "CC-BY-NC-4.0"), "simsiam", (2048, 512)),
    (Model("DINO ViT-S/16", "facebookresearch/dino", "Apache-2.0"), "dino-s16", (65536, 384)),
    (Model("VICRegL ConvNeXt-B", "facebookresearch/VICRegL", "CC-BY-NC-4.0"), "vicregl-convnext-b", (1024, 512)),
)
"""Self-supervised models whose features are watched: widths."""


def _variances() -> Iterator[Group]:
    for model, key, widths in FEATURES:
        runs = [
            run(
                f"b{rows}-w{columns}-{dtype}",
                f"variance of each of {columns} features over {rows} inputs",
                "batch-centred",
                (columns, rows),
                rows * columns * SIZE[dtype],
                rows=rows,
                columns=columns,
                dtype=dtype,
            )
            for columns, rows, dtype in product(widths, (32, 128, 512, 2048), MIXED)
        ]
        yield Group("variance", model, key, zoo.column_variance, runs)


def _attention() -> Iterator[Group]:
    """Gradients of attention's softmax, where it is trained without a fused kernel: short contexts, encoders."""
    for model in LANGUAGE:
        lengths = (512, 1024) if isinstance(model, Decoder) else (min(model.tokens, 512), min(model.tokens, 128))
        runs: list[Run] = []
        for batch, tokens, dtype in product((1, 8), sorted(set(lengths)), ("bfloat16", "float32")):
            runs.append(
                run(
                    f"b{batch}-s{tokens}-{dtype}",
                    f"gradient of the softmax of {batch} x {model.heads} heads of {tokens} x {tokens} scores",
                    "row",
                    (batch * model.heads, tokens, tokens),
                    3 * batch * model.heads * tokens * tokens * SIZE[dtype],
                    rows=(batch * model.heads, tokens),
                    columns=tokens,
                    dtype=dtype,
                )
            )
        yield Group("softmax_gradient", model, model.key, logits.softmax_gradient, runs)
