"""Attention of published encoders, encoder-decoders, vision and diffusion transformers."""

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

from littledragon.compiler.zoo import attention, attention_bias, attention_image
from littledragon.compiler.zoo.block import Block
from littledragon.compiler.zoo.grids.attention_listing import WIDTH, Entry, listed, near, sequences
from littledragon.compiler.zoo.models.language import ENCODERS, MIXTURES, Encoder, Mixture

TEXTS: Final = ((1, 128), (1, 512), (8, 128), (8, 512), (32, 32), (32, 256), (128, 32), (128, 128))
"""Texts of a batch and tokens of each, shorter ones padded."""
BATCHES: Final = (1, 4, 16, 64, 256)
"""Images or recordings of a batch."""
STEPS: Final = ((1, 1), (8, 1), (32, 1), (128, 1), (8, 128), (1, 448), (32, 32))
"""Sequences that are decoded against an encoder's output and tokens of each: decoding steps, prompts, training."""
RELATIVE: Final = ((1, 512, 512), (8, 512, 512), (32, 128, 128), (1, 2048, 2048), (32, 1, 512), (128, 1, 128))
DIFFUSED: Final = (1, 2, 8)
"""Images made at once; two with classifier-free guidance."""
EITHER: Final = ("float16", "float32")
"""Encoders run in both."""

SPEAKING: Final = ("t5", "flan", "bart", "whisper")
SPEECH: Final = ("whisper", "wav2vec2")
PICTURES: Final = ("vit", "deit", "clip-l14-v", "clip-l14-3", "dinov2", "siglip")
DIFFUSERS: Final = ("dit", "pixart", "sd3", "flux")


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    texts = [m for m in ENCODERS if m.vocab and not m.key.startswith((*SPEECH, "t5", "flan", "clip"))]
    yield from listed("encoder_attention", attention.eager_attention, _texts(_apart(texts)))
    pictures = [m for m in ENCODERS if m.key.startswith((*PICTURES, *DIFFUSERS[:2]))]
    heard = [m for m in ENCODERS if m.key.startswith((*SPEECH, "clip-b32-t", "clip-l14-t"))]
    yield from listed("speech_attention", attention.eager_attention, _whole(_apart(heard)))
    fused = [*_apart(texts), *_apart(pictures), *_apart(heard)]
    yield from listed("fused_attention", attention.fused_attention, _fused(fused))
    yield from listed("cross_attention", attention.eager_attention, _crossed())
    yield from listed("relative_scores", attention_bias.biased_scores, _relative())
    disentangled = [m for m in ENCODERS if m.key.startswith("deberta")]
    yield from listed("disentangled_scores", attention_bias.disentangled_scores, _disentangled(disentangled))
    local = [m for m in ENCODERS if m.key.startswith("modernbert")]
    yield from listed("local_attention", attention_bias.local_attention, _local(local))
    yield from listed("packed_attention", attention_image.packed_attention, _packed(_apart(pictures)))
    yield from listed("joint_attention", attention_image.joint_attention, _joint())


def _apart(models: list[Encoder]) -> list[Encoder]:
    """The models without those whose heads and tokens are near twins of an earlier one's."""
    kept: list[Encoder] = []
    for model in models:
        if not any(near(_numbers(model), _numbers(one)) for one in kept):
            kept.append(model)
    return kept


def _numbers(model: Encoder) -> tuple[int, ...]:
    return model.heads, model.head, model.tokens


def _texts(models: list[Encoder]) -> Iterator[Entry]:
    for model, (batch, tokens), dtype in product(models, TEXTS, EITHER):
        if tokens <= model.tokens:
            about = f"attention of {model.heads} heads, {sequences(batch, tokens)}, padded"
            yield _eager(model, batch, tokens, tokens, dtype, about, mask="padding")


def _whole(models: list[Encoder]) -> Iterator[Entry]:
    for model, batch, dtype in product(models, BATCHES, EITHER):
        about = f"attention of {model.heads} heads, {sequences(batch, model.tokens)}"
        yield _eager(model, batch, model.tokens, model.tokens, dtype, about, mask="none")


def _fused(models: list[Encoder]) -> Iterator[Entry]:
    for model, batch, dtype in product(models, (2, 8, 32), EITHER):
        area = batch * model.heads * model.tokens**2
        shape = {"batch": batch, "heads": model.heads, "queries": model.tokens, "keys": model.tokens, "dim": model.head}
        yield Entry(
            model,
            model.key,
            f"b{batch}-{dtype}",
            f"attention in one function, {model.heads} heads, {sequences(batch, model.tokens)}",
            batch * model.heads * model.tokens * model.head * 4 * WIDTH[dtype],
            area * (model.head + 1) * 4,
            {**shape, "dtype": dtype},
        )


def _crossed() -> Iterator[Entry]:
    """Decoders that attend to an encoder's output, images that attend to a text (PixArt: 120 tokens, 300 in Sigma)."""
    for model in _apart([m for m in ENCODERS if m.key.startswith(SPEAKING)]):
        dtype = "bfloat16" if model.key.startswith(("t5", "flan")) else "float16"
        for batch, queries in STEPS:
            about = f"cross attention of {model.heads} heads, {queries} to {model.tokens} tokens, batch {batch}"
            yield _eager(model, batch, queries, model.tokens, dtype, about, mask="none", scaled=dtype == "float16")
    translator = next(m for m in MIXTURES if m.key.startswith("nllb"))
    for batch, queries in STEPS:
        about = f"cross attention of {translator.heads} heads, {queries} to 256 tokens, batch {batch}"
        yield _eager(translator, batch, queries, 256, "float16", about, mask="none")
    painter = next(m for m in ENCODERS if m.key.startswith("pixart"))
    for batch, patches, words in product(DIFFUSED, (256, 1024, 4096), (120, 300)):
        about = f"cross attention of {painter.heads} heads, {patches} patches to {words} words, batch {batch}"
        yield _eager(painter, batch, patches, words, "float16", about, mask="padding")


def _relative() -> Iterator[Entry]:
    for model in _apart([m for m in ENCODERS if m.key.startswith(("t5", "flan"))]):
        for (batch, queries, keys), dtype in product(RELATIVE, ("bfloat16", "float32")):
            area = batch * model.heads * queries * keys
            shape = {"batch": batch, "heads": model.heads, "queries": queries, "keys": keys, "dim": model.head}
            yield Entry(
                model,
                model.key,
                f"b{batch}-q{queries}-c{keys}-{dtype}",
                f"scores with relative bias of {model.heads} heads, {queries} to {keys} tokens, batch {batch}",
                area * 4 + batch * model.heads * keys * model.head * 8,
                area * model.head * 2,
                {**shape, "dtype": dtype, "form": "relative"},
            )


def _disentangled(models: list[Encoder]) -> Iterator[Entry]:
    for model, (batch, tokens), dtype in product(models, TEXTS, EITHER):
        rows = batch * model.heads * tokens
        shape = {"batch": batch, "heads": model.heads, "tokens": tokens, "dim": model.head, "span": 256}
        yield Entry(
            model,
            model.key,
            f"b{batch}-s{tokens}-{dtype}",
            f"disentangled scores of {model.heads} heads, {sequences(batch, tokens)}",
            rows * (4096 + 4 * tokens + 8 * model.head),
            rows * model.head * 1024,
            {**shape, "dtype": dtype},
        )


def _local(models: list[Encoder]) -> Iterator[Entry]:
    """ModernBERT sees 64 tokens on either side in two of three layers."""
    points = ((1, 128), (1, 16), (8, 8), (8, 32), (64, 2))
    for model, (batch, chunks), dtype in product(models, points, ("bfloat16", *EITHER)):
        rows = batch * model.heads * chunks * 64
        shape = {"batch": batch, "kv_heads": model.heads, "group": 1, "chunks": chunks, "width": 64, "dim": model.head}
        yield Entry(
            model,
            model.key,
            f"b{batch}-s{64 * chunks}-{dtype}",
            f"local attention of {model.heads} heads, {sequences(batch, 64 * chunks)}, 64 on either side",
            rows * (192 * 8 + model.head * 8),
            rows * 192 * model.head * 2,
            {**shape, "dtype": dtype},
        )


def _packed(models: list[Encoder]) -> Iterator[Entry]:
    for model, batch, dtype in product(models, BATCHES, EITHER):
        area = batch * model.heads * model.tokens**2
        shape = {"batch": batch, "tokens": model.tokens, "heads": model.heads, "dim": model.head}
        yield Entry(
            model,
            model.key,
            f"b{batch}-{dtype}",
            f"attention of {model.heads} heads over {model.tokens} patches, batch {batch}, packed projections",
            area * (4 + WIDTH[dtype]) + batch * model.tokens * model.heads * model.head * 3 * WIDTH[dtype],
            area * model.head * 2,
            {**shape, "dtype": dtype},
        )


def _joint() -> Iterator[Entry]:
    """Images of 256, 512 and 1024 pixels a side; the heads are spread over sequence-parallel ranks."""
    texts = {"sd3-medium": (154, 333), "flux.1": (256, 512)}
    for model in (m for m in ENCODERS if m.key in texts):
        for words, patches, batch, ranks in product(texts[model.key], (256, 1024, 4096), DIFFUSED, (1, 2, 4, 8)):
            heads, tokens = model.heads // ranks, words + patches
            area = batch * heads * tokens**2
            shape = {"batch": batch, "heads": heads, "words": words, "patches": patches, "dim": model.head}
            yield Entry(
                model,
                model.key,
                f"r{ranks}-b{batch}-w{words}-p{patches}",
                f"joint attention of {words} words and {patches} patches, {heads} heads, batch {batch}",
                area * 6 + batch * tokens * heads * model.head * 8,
                area * model.head * 2,
                {**shape, "dtype": "bfloat16"},
            )


def _eager(
    model: Encoder | Mixture, batch: int, queries: int, keys: int, dtype: str, about: str, **options: Any
) -> Entry:
    area = batch * model.heads * queries * keys
    shape = {"batch": batch, "heads": model.heads, "queries": queries, "keys": keys, "dim": model.head}
    return Entry(
        model,
        model.key,
        f"b{batch}-q{queries}-c{keys}-{dtype}",
        about,
        area * (4 + WIDTH[dtype]) + batch * model.heads * (keys + queries) * model.head * WIDTH[dtype],
        area * model.head * 2,
        {**shape, "dtype": dtype, **options},
    )
