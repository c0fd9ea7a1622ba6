"""Quantisation of activations, weights and gradients of published models."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final, NamedTuple

from littledragon.compiler.zoo import quant_irregular_quantize as quantize
from littledragon.compiler.zoo.block import Block
from littledragon.compiler.zoo.grids.quant_irregular_listing import SHORT, WIDTH, Entry, apart, listed
from littledragon.compiler.zoo.models.language import DECODERS, MIXTURES, Decoder, Mixture

TOKENS: Final = (16, 64, 256, 1024, 4096)
"""Decoding batches, and chunks of a prompt or a training batch."""
FLOAT8: Final = "float8_e4m3fn"
MODELS: Final = sorted((*DECODERS, *MIXTURES), key=lambda model: model.norm != "rms")
"""Those with RMS normalisation first: it is followed by a quantisation of its own."""


class Width(NamedTuple):
    """What a layer of a model quantises before its products."""

    model: Decoder
    name: str
    words: str
    width: int


class Weight(NamedTuple):
    """A matrix of a model, or a shard of it."""

    model: Decoder
    name: str
    words: str
    rows: int
    columns: int


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    hidden = (Width(model, "hidden", "hidden states", model.hidden) for model in MODELS)
    inner = (width for model in MODELS for width in _inner_widths(model))
    widths = apart((*hidden, *inner), lambda width: (width.width,))
    weights = apart((weight for model in MODELS for weight in _weights(model)), lambda w: (w.rows, w.columns))
    yield from listed("quantize_rows", quantize.quantize_rows, _rows(widths))
    yield from listed("norm_quantize", quantize.norm_quantize, _norms(widths))
    yield from listed("quantize_groups", quantize.quantize_groups, _groups(widths))
    yield from listed("silu_mul_quantize_groups", quantize.silu_mul_quantize_groups, _gates(widths))
    yield from listed("quantize_tiles", quantize.quantize_tiles, _tiles(weights))
    yield from listed("quantize_pack", quantize.quantize_pack, _packs(weights))
    yield from listed("quantize_channels", quantize.quantize_channels, _channels(widths))
    yield from listed("cast_transpose", quantize.cast_transpose, _training(widths))
    yield from listed("hadamard_quantize", quantize.hadamard_quantize, _heads())


def _inner(model: Decoder) -> int:
    return model.inner or (model.expert_inner if isinstance(model, Mixture) else 0)


def _inner_widths(model: Decoder) -> Iterator[Width]:
    for tp in (1, 2, 4, 8):
        shard = f", 1 of {tp} tensor-parallel shards" if tp > 1 else ""
        if _inner(model) and _inner(model) % (tp * 128) == 0:
            yield Width(model, f"inner-tp{tp}", f"inner states{shard}", _inner(model) // tp)


def _weights(model: Decoder) -> Iterator[Weight]:
    for tp in (1, 2, 4, 8):
        shard = f", 1 of {tp} tensor-parallel shards" if tp > 1 else ""
        inner, heads = _inner(model) // tp, model.heads * model.head // tp
        if inner % 128 == 0 and model.hidden % 128 == 0:
            yield Weight(model, f"up-tp{tp}", f"up projection{shard}", inner, model.hidden)
            yield Weight(model, f"down-tp{tp}", f"down projection{shard}", model.hidden, inner)
            if heads % 128 == 0:
                yield Weight(model, f"o-tp{tp}", f"output projection{shard}", model.hidden, heads)


def _rows(widths: Iterable[Width]) -> Iterator[Entry]:
    for (model, name, words, width), rows in product(widths, TOKENS):
        for source, to in (("float16", "int8"), ("bfloat16", FLOAT8)):
            yield Entry(
                model,
                model.key,
                f"{name}-m{rows}-{SHORT.get(to, to)}",
                f"{words} of {rows} tokens to {to} by a scale a token",
                rows * width * 3,
                rows * width * 8,
                {"rows": rows, "hidden": width, "source": source, "to": to},
            )


def _norms(widths: Iterable[Width]) -> Iterator[Entry]:
    kinds = (("int8", False), (FLOAT8, True))
    for (model, name, words, width), rows, (to, static) in product(widths, TOKENS, kinds):
        if name == "hidden" and model.norm == "rms":
            how = "one calibrated scale" if static else "a scale a token"
            yield Entry(
                model,
                model.key,
                f"m{rows}-{SHORT.get(to, to)}",
                f"{words} of {rows} tokens, normalised, to {to} by {how}",
                rows * width * 3,
                rows * width * 12,
                {"rows": rows, "hidden": width, "source": "bfloat16", "to": to, "static": static},
            )


def _groups(widths: Iterable[Width]) -> Iterator[Entry]:
    # Float8 with 1 x 128 scales (DeepSeek-V3), the microscaling formats, and int8 in groups.
    kinds = (
        (128, "bfloat16", FLOAT8, False),
        (32, "bfloat16", FLOAT8, True),
        (32, "float32", "float8_e5m2", True),
        (64, "float16", "int8", False),
    )
    for (model, name, words, width), rows, (group, source, to, power) in product(widths, TOKENS, kinds):
        if width % group == 0:
            scales = "scales powers of two, " if power else ""
            yield Entry(
                model,
                f"{model.key}-g{group}-{SHORT.get(to, to)}",
                f"{name}-m{rows}",
                f"{words} of {rows} tokens to {to} in groups of {group}, {scales}from {source}",
                rows * width * (WIDTH[source] + 1.2),
                rows * width * 8,
                {"rows": rows, "hidden": width, "group": group, "source": source, "to": to, "power_of_two": power},
            )


def _gates(widths: Iterable[Width]) -> Iterator[Entry]:
    for (model, name, words, width), rows, (group, to) in product(widths, TOKENS, ((128, FLOAT8), (64, "int8"))):
        if name != "hidden" and width % group == 0:
            yield Entry(
                model,
                f"{model.key}-{SHORT.get(to, to)}",
                f"{name}-m{rows}",
                f"gate and {words} of {rows} tokens, multiplied, to {to} in groups of {group}",
                rows * width * 5,
                rows * width * 16,
                {"rows": rows, "inner": width, "group": group, "to": to},
            )


def _tiles(weights: Iterable[Weight]) -> Iterator[Entry]:
    for model, name, words, rows, columns in weights:
        yield Entry(
            model,
            model.key,
            name,
            f"weights of the {words} to float8 in tiles of 128 x 128",
            rows * columns * 3,
            rows * columns * 8,
            {"rows": rows, "columns": columns, "tile": 128},
        )


def _packs(weights: Iterable[Weight]) -> Iterator[Entry]:
    for (model, name, words, rows, columns), (group, source) in product(weights, ((128, "float16"), (32, "bfloat16"))):
        yield Entry(
            model,
            model.key,
            f"{name}-g{group}",
            f"weights of the {words} to 4 bits in groups of {group}, packed",
            rows * columns * 2.6,
            rows * columns * 8,
            {"rows": rows, "columns": columns, "group": group, "source": source},
        )


def _channels(widths: Iterable[Width]) -> Iterator[Entry]:
    for (model, name, words, width), rows, source in product(widths, (128, 512, 2048, 8192), ("float16", "float32")):
        yield Entry(
            model,
            model.key,
            f"{name}-m{rows}-{source}",
            f"{words} of {rows} tokens to int8 by a scale a channel",
            rows * width * (WIDTH[source] + 1),
            rows * width * 8,
            {"rows": rows, "columns": width, "source": source},
        )


def _training(widths: Iterable[Width]) -> Iterator[Entry]:
    """Activations to e4m3, gradients to e5m2, both ways about, as the forward and backward products want them."""
    kinds = (("activations", FLOAT8), ("gradients", "float8_e5m2"))
    for (model, name, words, width), rows, (what, to) in product(widths, (512, 2048, 8192), kinds):
        yield Entry(
            model,
            model.key,
            f"{name}-m{rows}-{SHORT[to]}",
            f"{what} of training, {words} of {rows} tokens, to {to} as they are and transposed",
            rows * width * 4,
            rows * width * 10,
            {"rows": rows, "columns": width, "to": to},
        )


def _heads() -> Iterator[Entry]:
    """Rotations of QuaRot and SpinQuant: Hadamard matrices of the heads' width."""
    found = (
        (model, *kind)
        for model in MODELS
        for kind in (("q", "queries", model.heads), ("kv", "keys", model.kv_heads))
        if model.head in (64, 128, 256)
    )
    unlike = apart(found, lambda one: (one[3], one[0].head))
    for (model, name, words, heads), tokens, source in product(unlike, (16, 128, 1024, 4096), ("float16", "bfloat16")):
        yield Entry(
            model,
            model.key,
            f"{name}-m{tokens}-{source}",
            f"{words} of {tokens} tokens, each head rotated by a Hadamard matrix, to int8",
            tokens * heads * model.head * 3,
            tokens * heads * model.head**2 * 2,
            {"tokens": tokens, "heads": heads, "dim": model.head, "source": source},
        )
