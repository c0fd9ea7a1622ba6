"""Look-ups of published language models: embeddings, labels, relative positions, adapters."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final, NamedTuple

from littledragon.compiler.zoo import quant_irregular_lookup as lookup
from littledragon.compiler.zoo.block import Block, Model
from littledragon.compiler.zoo.grids.quant_irregular_listing import WIDTH, Entry, apart, listed
from littledragon.compiler.zoo.models.language import DECODERS, ENCODERS, MIXTURES, Decoder, Encoder

HALF: Final = ("float16", "bfloat16")
EVERY: Final = ("float16", "bfloat16", "float32")


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    yield from listed("embedding_layer_norm", lookup.embedding_layer_norm, _layer_norms())
    yield from listed("embedding_rms_norm", lookup.embedding_rms_norm, _rms_norms())
    yield from listed("vocabulary_shard", lookup.vocabulary_shard, _shards())
    yield from listed("position_embedding", lookup.position_embedding, _positions())
    yield from listed("packed_embedding", lookup.packed_embedding, _packed())
    yield from listed("hash_embedding", lookup.hash_embedding, _hashed())
    yield from listed("hash_shards", lookup.hash_shards, _characters())
    yield from listed("label_log_prob", lookup.label_log_prob, _labels())
    yield from listed("relative_bias_softmax", lookup.relative_bias_softmax, _biases())
    widths = apart((width for model in (*DECODERS, *MIXTURES) for width in _widths(model)), lambda w: (w.width,))
    yield from listed("lora_shrink", lookup.lora_shrink, _adapters(widths, shrink=True))
    yield from listed("lora_expand", lookup.lora_expand, _adapters(widths, shrink=False))


def _layer_norms() -> Iterator[Entry]:
    readers = [m for m in ENCODERS if m.vocab and not m.key.startswith(("t5", "flan", "clip", "whisper", "wav2vec"))]
    for model, tokens, dtype in product(
        apart(readers, lambda m: (m.hidden,)), (128, 512, 2048, 8192, 32768), ("float16", "float32")
    ):
        table = (model.vocab + model.tokens) * model.hidden * WIDTH[dtype]
        yield Entry(
            model,
            model.key,
            f"m{tokens}-{dtype}",
            f"words, positions and segments of {tokens} tokens, added and normalised",
            table + tokens * model.hidden * WIDTH[dtype],
            tokens * model.hidden * 12,
            {
                **{"tokens": tokens, "vocabulary": model.vocab, "positions": model.tokens},
                **{"hidden": model.hidden, "dtype": dtype},
            },
        )


def _rms_norms() -> Iterator[Entry]:
    for model, tokens, dtype in product(
        apart((m for m in DECODERS if m.norm == "rms" and m.vocab * m.hidden < 120 << 20), lambda m: (m.hidden,)),
        (16, 128, 1024, 4096),
        HALF,
    ):
        yield Entry(
            model,
            model.key,
            f"m{tokens}-{dtype}",
            f"embeddings of {tokens} tokens and their norm in the first layer",
            (model.vocab + tokens * 2) * model.hidden * 2,
            tokens * model.hidden * 6,
            {"tokens": tokens, "vocabulary": model.vocab, "hidden": model.hidden, "dtype": dtype},
        )


def _shards() -> Iterator[Entry]:
    found = ((model, tp, -(-model.vocab // tp)) for tp in (2, 4, 8) for model in DECODERS)
    kept = ((model, tp, rows) for model, tp, rows in found if rows * model.hidden * 2 < 240 << 20)
    # How many rows a shard has matters little: the width of a row does.
    for (model, tp, rows), tokens, dtype in product(apart(kept, lambda one: (one[0].hidden,)), (64, 512, 4096), HALF):
        yield Entry(
            model,
            model.key,
            f"tp{tp}-m{tokens}-{dtype}",
            f"embeddings of {tokens} tokens from 1 of {tp} shards of the vocabulary",
            (rows + tokens) * model.hidden * 2,
            tokens * model.hidden,
            {"tokens": tokens, "vocabulary": rows, "hidden": model.hidden, "dtype": dtype},
        )


def _positions() -> Iterator[Entry]:
    learned = [m for m in DECODERS if m.key.startswith(("gpt2", "opt"))]
    for model, tokens, dtype in product(apart(learned, lambda m: (m.hidden,)), (32, 128, 1024, 8192), EVERY):
        yield Entry(
            model,
            model.key,
            f"m{tokens}-{dtype}",
            f"words and learned positions of {tokens} tokens",
            (model.vocab + model.context + tokens) * model.hidden * WIDTH[dtype],
            tokens * model.hidden,
            {
                **{"tokens": tokens, "vocabulary": model.vocab, "positions": model.context},
                **{"hidden": model.hidden, "dtype": dtype},
            },
        )


def _packed() -> Iterator[Entry]:
    for model, tokens, (group, dtype) in product(
        apart(DECODERS, lambda m: (m.hidden,)), (16, 256, 4096), ((32, "float16"), (64, "bfloat16"))
    ):
        if model.hidden % group == 0:
            yield Entry(
                model,
                model.key,
                f"m{tokens}-g{group}",
                f"4-bit embeddings in groups of {group} of {tokens} tokens, as {dtype}",
                (model.vocab * 0.6 + tokens * 2) * model.hidden,
                tokens * model.hidden * 4,
                {
                    **{"tokens": tokens, "vocabulary": model.vocab, "hidden": model.hidden},
                    **{"group": group, "dtype": dtype},
                },
            )


_SPACY: Final = Model("spaCy en_core_web", "explosion/spacy-models", "MIT")


def _hashed() -> Iterator[Entry]:
    """MultiHashEmbed of four attributes, with the widths and rows of spaCy's pipelines and of its defaults."""
    attributes = (("norm", 5000), ("prefix", 1000), ("suffix", 2500), ("orth", 10000))
    for (name, rows), width, tokens in product(attributes, (96, 300), (1000, 8000, 64000)):
        yield Entry(
            _SPACY,
            "spacy",
            f"{name}-w{width}-m{tokens}",
            f"four hashed rows of the {name}s of {tokens} words, {width} wide",
            (rows + tokens) * width * 4,
            tokens * width * 4,
            {"tokens": tokens, "hashes": 4, "rows": rows, "dim": width},
        )


def _characters() -> Iterator[Entry]:
    for batch, length, dtype in product((1, 8, 32), (512, 2048), ("float32", "float16")):
        yield Entry(
            Model("CANINE", "google/canine-s", "Apache-2.0"),
            "canine",
            f"b{batch}-s{length}-{dtype}",
            f"8 hashed parts of the embeddings of {batch * length} characters, normalised",
            (8 * 16384 * 96 + batch * length * 768) * WIDTH[dtype],
            batch * length * 768 * 10,
            {"tokens": batch * length, "hashes": 8, "rows": 16384, "dim": 96, "dtype": dtype},
        )


def _labels() -> Iterator[Entry]:
    speakers: tuple[Decoder | Encoder, ...] = (*DECODERS, *MIXTURES, *ENCODERS)
    found = apart((m for m in speakers if m.vocab), lambda m: (m.vocab,))
    for model, tokens, dtype in product(found, (4, 16, 64, 256, 1024, 4096), EVERY):
        if tokens * model.vocab < 4096:
            continue
        yield Entry(
            model,
            model.key,
            f"m{tokens}-{dtype}",
            f"log-probabilities of the labels of {tokens} tokens among {model.vocab}",
            tokens * model.vocab * WIDTH[dtype],
            tokens * model.vocab * 5,
            {"tokens": tokens, "vocabulary": model.vocab, "dtype": dtype},
        )


class Bias(NamedTuple):
    """Attention with a learned bias for each bucket of distances: layers' heads, tokens, buckets, and batches."""

    model: Model
    key: str
    heads: tuple[int, ...]
    tokens: tuple[int, ...]
    buckets: int
    batches: tuple[int, ...]


def _bias(
    name: str,
    source: str,
    licence: str,
    key: str,
    heads: tuple[int, ...],
    tokens: tuple[int, ...],
    buckets: int,
    batches: tuple[int, ...],
) -> Bias:
    return Bias(Model(name, source, licence), key, heads, tokens, buckets, batches)


_TEXT: Final = ((128, 512, 1024), 32, (1, 8))
_WINDOWS_OF_7: Final = ((49,), 169, (64, 1024))
"""Windows of 7 x 7 patches: 64 of an image's first stage of 224 x 224 pixels, and those of 16 images."""
BIASES: Final = (
    _bias("T5-small", "google-t5/t5-small", "Apache-2.0", "t5-small", (8,), *_TEXT),
    _bias("T5-base", "google-t5/t5-base", "Apache-2.0", "t5-base", (12,), *_TEXT),
    _bias("T5-large", "google-t5/t5-large", "Apache-2.0", "t5-large", (16,), *_TEXT),
    _bias("T5-3B", "google-t5/t5-3b", "Apache-2.0", "t5-3b", (32,), *_TEXT),
    _bias("FLAN-T5-XXL", "google/flan-t5-xxl", "Apache-2.0", "flan-t5-xxl", (64,), *_TEXT),
    _bias("MPNet-base", "microsoft/mpnet-base", "MIT", "mpnet-base", (12,), (384,), 32, (1, 32)),
    _bias("WavLM-base", "microsoft/wavlm-base", "MIT", "wavlm-base", (12,), (249, 749), 320, (1, 4)),
    _bias("WavLM-large", "microsoft/wavlm-large", "MIT", "wavlm-large", (16,), (249, 749), 320, (1, 4)),
    _bias("BEiT-base", "microsoft/beit-base-patch16-224", "Apache-2.0", "beit-base", (12,), (197, 577), 732, (1, 8)),
    _bias(
        "BEiT-large", "microsoft/beit-large-patch16-224", "Apache-2.0", "beit-large", (16,), (197, 577), 732, (4, 16)
    ),
    _bias("Swin-T", "microsoft/swin-tiny-patch4-window7-224", "Apache-2.0", "swin-t", (3, 6, 12, 24), *_WINDOWS_OF_7),
    _bias("Swin-B", "microsoft/swin-base-patch4-window7-224", "Apache-2.0", "swin-b", (4, 8, 16, 32), *_WINDOWS_OF_7),
    _bias(
        "Swin-L-384",
        "microsoft/swin-large-patch4-window12-384",
        "Apache-2.0",
        "swin-l-384",
        (6, 12, 24, 48),
        (144,),
        529,
        (16, 64),
    ),
    _bias(
        "SwinV2-T",
        "microsoft/swinv2-tiny-patch4-window8-256",
        "Apache-2.0",
        "swinv2-t",
        (3, 6, 12, 24),
        (64,),
        225,
        (16, 256),
    ),
)


def _biases() -> Iterator[Entry]:
    for one, dtype in product(BIASES, ("float16", "float32")):
        for heads, tokens, batch in product(one.heads, one.tokens, one.batches):
            yield Entry(
                one.model,
                one.key,
                f"h{heads}-b{batch}-s{tokens}-{dtype}",
                f"{batch} of {heads} heads on {tokens} tokens, {one.buckets} buckets of distances",
                batch * heads * tokens**2 * 2 * WIDTH[dtype] + tokens**2 * 4 + one.buckets * heads * 4,
                batch * heads * tokens**2 * 6,
                {
                    **{"batch": batch, "heads": heads, "queries": tokens, "tokens": tokens},
                    **{"buckets": one.buckets, "dtype": dtype},
                },
            )


class Width(NamedTuple):
    """A side of a linear layer that adapters are for."""

    model: Decoder
    name: str
    words: str
    width: int


def _widths(model: Decoder) -> Iterator[Width]:
    yield Width(model, "hidden", "hidden states", model.hidden)
    if model.inner:
        yield Width(model, "inner", "inner states", model.inner)
    yield Width(model, "kv", "keys or values", model.kv_heads * model.head)


def _adapters(widths: Iterable[Width], shrink: bool) -> Iterator[Entry]:
    """Adapters of the usual ranks, 8 of them in a batch of requests (Punica, S-LoRA, vLLM)."""
    for (model, name, words, width), rank, tokens in product(widths, (8, 16, 64), (4, 32, 256)):
        dtype = "float16" if rank == 16 else "bfloat16"
        yield Entry(
            model,
            model.key,
            f"{name}-r{rank}-m{tokens}",
            f"{'from' if shrink else 'to'} the {words} of {tokens} tokens, 8 adapters of rank {rank}",
            8 * rank * width * 2 + tokens * width * 6,
            tokens * rank * width * 2,
            {"tokens": tokens, "hidden": width, "rank": rank, "adapters": 8, "dtype": dtype},
        )
