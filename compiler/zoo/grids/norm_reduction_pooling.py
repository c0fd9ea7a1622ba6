"""Sentence and image embeddings: pooling over tokens, lengths, similarities."""

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

from littledragon.compiler.zoo import norm_reduction_pooling as zoo
from littledragon.compiler.zoo.block import Model
from littledragon.compiler.zoo.grids.norm_reduction_listing import HALF, MIXED, SIZE, Group, counted, run

EMBEDDERS: Final = (
    (
        Model("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2", "Apache-2.0"),
        "minilm-l6",
        384,
        (32, 128, 512),
    ),
    (
        Model("all-mpnet-base-v2", "sentence-transformers/all-mpnet-base-v2", "Apache-2.0"),
        "mpnet-base",
        768,
        (32, 128, 512),
    ),
    (Model("multilingual-e5-large", "intfloat/multilingual-e5-large", "MIT"), "e5-large", 1024, (32, 128, 512)),
    (Model("nomic-embed-text-v1.5", "nomic-ai/nomic-embed-text-v1.5", "Apache-2.0"), "nomic-embed", 768, (2048, 8192)),
    (Model("gtr-t5-xxl", "sentence-transformers/gtr-t5-xxl", "Apache-2.0"), "gtr-t5-xxl", 1024, (64, 256)),
    (
        Model("distiluse-base", "sentence-transformers/distiluse-base-multilingual-cased-v2", "Apache-2.0"),
        "distiluse",
        512,
        (128,),
    ),
    (Model("stella_en_1.5B_v5", "NovaSearch/stella_en_1.5B_v5", "MIT"), "stella-1.5b", 1536, (128, 512, 2048)),
    (Model("NV-Embed-v2", "nvidia/NV-Embed-v2", "CC-BY-NC-4.0"), "nv-embed-v2", 4096, (128, 512, 2048)),
    (Model("ESM-2 650M", "facebook/esm2_t33_650M_UR50D", "MIT"), "esm2-650m", 1280, (256, 1024)),
    (Model("ESM-2 8M", "facebook/esm2_t6_8M_UR50D", "MIT"), "esm2-8m", 320, (256, 1024)),
)
"""Models whose embedding is a mean over tokens: its width, and tokens of what they are given."""
SENTENCES: Final = (1, 8, 32, 128)
"""Texts in one request or batch."""


def groups() -> Iterator[Group]:
    """All of them."""
    yield from _texts()
    yield from _pictures()
    yield from _speakers()
    yield from _lengths()
    yield from _similarities()


def _texts() -> Iterator[Group]:
    for model, key, hidden, lengths in EMBEDDERS:
        mean, highest = [], []
        for sentences, tokens, dtype in product(SENTENCES, lengths, MIXED):
            shape: dict[str, Any] = {"sentences": sentences, "tokens": tokens, "hidden": hidden, "dtype": dtype}
            name = f"b{sentences}-s{tokens}-{dtype}"
            cell, size = (sentences, hidden, tokens), sentences * tokens * hidden * SIZE[dtype]
            of = f"of {counted(sentences, 'text')} of up to {tokens} tokens"
            for normalised in (False, True):
                words = "mean pooling and normalisation" if normalised else "mean pooling"
                part = f"{name}-unit" if normalised else name
                mean.append(run(part, f"{words} {of}", "column", cell, size, **shape, normalised=normalised))
            highest.append(run(name, f"max pooling {of}", "column", cell, size, **shape))
        yield Group("mean_pool", model, key, zoo.mean_pool, mean)
        yield Group("max_pool_tokens", model, key, zoo.max_pool, highest)


VISION: Final = (
    (Model("MAE ViT-B/16", "facebook/vit-mae-base", "Apache-2.0"), "mae-b16", ((196, 768),)),
    (Model("ViT-L/16 fine-tuned MAE", "facebook/vit-mae-large", "Apache-2.0"), "mae-l16", ((196, 1024),)),
    (Model("BEiT-L-384", "microsoft/beit-large-patch16-384", "Apache-2.0"), "beit-l-384", ((576, 1024),)),
    (Model("Swin-T", "microsoft/swin-tiny-patch4-window7-224", "Apache-2.0"), "swin-t", ((49, 768),)),
    (Model("Swin-L-384", "microsoft/swin-large-patch4-window12-384", "Apache-2.0"), "swin-l-384", ((144, 1536),)),
    (Model("MLP-Mixer-B/16", "google-research/vision_transformer", "Apache-2.0"), "mixer-b16", ((196, 768),)),
    (Model("ViT-G/14", "timm/vit_giant_patch14_clip_224.laion2b", "MIT"), "vit-g14", ((256, 1408),)),
    (Model("I-JEPA ViT-H/14", "facebook/ijepa_vith14_1k", "CC-BY-NC-4.0"), "ijepa-h14", ((256, 1280),)),
    (Model("VideoMAE-B", "MCG-NJU/videomae-base", "CC-BY-NC-4.0"), "videomae-b", ((1568, 768),)),
    (Model("wav2vec2-base", "facebook/wav2vec2-base", "Apache-2.0"), "wav2vec2-base", ((499, 768), (499, 256))),
    (Model("Whisper-small classifier", "openai/whisper-small", "Apache-2.0"), "whisper-small", ((1500, 256),)),
    (Model("BEATs iter3+", "microsoft/unilm BEATs", "MIT"), "beats", ((496, 768),)),
    (
        Model("EVA-02-L-448", "timm/eva02_large_patch14_448.mim_m38m_ft_in22k_in1k", "MIT"),
        "eva02-l-448",
        ((1024, 1024),),
    ),
)
"""Models that average over all tokens: tokens and width."""


def _pictures() -> Iterator[Group]:
    for model, key, shapes in VISION:
        runs = [
            run(
                f"b{images}-s{tokens}-h{hidden}-{dtype}",
                f"mean over the {tokens} tokens of {counted(images, 'input')}, {hidden} channels",
                "column",
                (images, hidden, tokens),
                images * tokens * hidden * SIZE[dtype],
                images=images,
                tokens=tokens,
                hidden=hidden,
                dtype=dtype,
            )
            for (tokens, hidden), images, dtype in product(shapes, SENTENCES, MIXED)
        ]
        yield Group("token_mean", model, key, zoo.token_mean, runs)


ATTENTIVE: Final = (
    (Model("ECAPA-TDNN", "speechbrain/spkrec-ecapa-voxceleb", "Apache-2.0"), "ecapa-tdnn", 1536, (200, 800)),
    (
        Model("TitaNet large", "nvidia/speakerverification_en_titanet_large", "CC-BY-4.0"),
        "titanet-l",
        3072,
        (300, 1000),
    ),
)
"""Speaker and sound models that pool with weights of each channel: channels and frames."""


def _speakers() -> Iterator[Group]:
    for model, key, channels, lengths in ATTENTIVE:
        runs = [
            run(
                f"b{clips}-s{frames}-{dtype}",
                f"attentive pooling of {counted(clips, 'clip')} of {frames} frames, {channels} channels",
                "column",
                (clips, channels, frames),
                2 * clips * channels * frames * SIZE[dtype],
                clips=clips,
                frames=frames,
                channels=channels,
                dtype=dtype,
            )
            for clips, frames, dtype in product(SENTENCES, lengths, MIXED)
        ]
        yield Group("attentive_pool", model, key, zoo.attentive_pool, runs)


WIDTHS: Final = (
    (
        Model("Matryoshka nomic-embed-text-v1.5", "nomic-ai/nomic-embed-text-v1.5", "Apache-2.0"),
        "nomic-embed",
        (64, 128, 256, 512, 768),
    ),
    (Model("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2", "Apache-2.0"), "minilm-l6", (384,)),
    (Model("bge-m3", "BAAI/bge-m3", "MIT"), "bge-m3", (1024,)),
    (Model("stella_en_1.5B_v5", "NovaSearch/stella_en_1.5B_v5", "MIT"), "stella-1.5b", (1536,)),
    (Model("e5-mistral-7b", "intfloat/e5-mistral-7b-instruct", "MIT"), "e5-mistral-7b", (4096,)),
    (Model("gte-Qwen2-7B", "Alibaba-NLP/gte-Qwen2-7B-instruct", "Apache-2.0"), "gte-qwen2-7b", (3584,)),
    (Model("sentence-t5-xxl", "sentence-transformers/sentence-t5-xxl", "Apache-2.0"), "sentence-t5", (768,)),
    (Model("ArcFace", "deepinsight/insightface", "MIT"), "arcface", (512,)),
    (Model("CosPlace ResNet-50", "gmberton/CosPlace", "MIT"), "cosplace-resnet50", (2048,)),
)
"""Embeddings and their widths."""
VECTORS: Final = (64, 1024, 16384, 131072)
"""Vectors that are normalised or compared together: a batch, a page of results, a block of an index."""


def _lengths() -> Iterator[Group]:
    for model, key, widths in WIDTHS:
        runs = [
            run(
                f"m{rows}-w{width}-{dtype}",
                f"normalisation of {rows} embeddings of {width}",
                "row",
                (rows, width),
                2 * rows * width * SIZE[dtype],
                rows=rows,
                width=width,
                dtype=dtype,
            )
            for width, rows, dtype in product(widths, VECTORS, MIXED)
        ]
        yield Group("l2_normalize", model, key, zoo.l2_normalize, runs)
    for model, key, stages in COSINE:
        runs = [
            run(
                f"b{batch}-t{tokens}-h{heads}-{dtype}",
                f"normalisation of the {what} of {counted(batch, of)}, {tokens} tokens, {heads} heads of {width}",
                "row",
                (batch, heads, tokens, width),
                2 * batch * heads * tokens * width * SIZE[dtype],
                rows=(batch, heads, tokens) if batch > 1 else (heads, tokens),
                width=width,
                dtype=dtype,
            )
            for (batch, heads, tokens, width, what, of), dtype in product(stages, HALF)
        ]
        yield Group("l2_normalize", model, key, zoo.l2_normalize, runs)


def _windows(side: int, window: int, heads: tuple[int, ...]) -> tuple[tuple[int, int, int, int, str, str], ...]:
    """Windows, heads, tokens and width of the queries of each stage of a Swin V2, for one and for eight images."""
    stages = [
        (images * (side // (4 << stage) // window) ** 2, of) for images in (1, 8) for stage, of in enumerate(heads)
    ]
    return tuple((windows, of, window * window, 32, "queries", "window") for windows, of in stages)


COSINE: Final = (
    (
        Model("SwinV2-T", "microsoft/swinv2-tiny-patch4-window8-256", "Apache-2.0"),
        "swin-v2-t",
        _windows(256, 8, (3, 6, 12, 24)),
    ),
    (
        Model("SwinV2-B", "microsoft/swinv2-base-patch4-window16-256", "Apache-2.0"),
        "swin-v2-b",
        _windows(256, 16, (4, 8, 16, 32)),
    ),
    (
        Model("Qwen3-Next-80B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "Apache-2.0"),
        "qwen3-next-80b-a3b",
        tuple((1, 16, tokens, 128, "keys", "sequence") for tokens in (32, 128, 512, 2048, 8192)),
    ),
)
"""Attention by cosines, or by a delta rule, which normalise queries and keys: batch, heads, tokens, width, and what."""


def _similarities() -> Iterator[Group]:
    for model, key, widths in WIDTHS:
        pairs, passages = [], []
        for width, rows, dtype in product(widths, VECTORS, MIXED):
            name, size = f"m{rows}-w{width}-{dtype}", rows * width * SIZE[dtype]
            about = f"cosines of {rows} pairs of embeddings of {width}"
            pairs.append(run(name, about, "row", (rows, width), 2 * size, rows=rows, width=width, dtype=dtype))
            about = f"cosines of a query with {rows} passages, embeddings of {width}"
            passages.append(run(name, about, "row", (rows, width), size, passages=rows, width=width, dtype=dtype))
        yield Group("cosine_pairs", model, key, zoo.cosine_pairs, pairs)
        yield Group("passage_scores", model, key, zoo.passage_scores, passages)
    for model, key, queries, tokens in (
        (Model("ColBERTv2", "colbert-ir/colbertv2.0", "MIT"), "colbertv2", 32, (180, 300)),
        (Model("ColPali", "vidore/colpali-v1.2", "MIT"), "colpali", 25, (1030,)),
        (Model("jina-colbert-v2", "jinaai/jina-colbert-v2", "CC-BY-NC-4.0"), "jina-colbert-v2", 32, (512, 2048)),
    ):
        runs = [
            run(
                f"p{passages}-s{length}-{dtype}",
                f"late interaction of a query of {queries} tokens with {passages} passages of {length}",
                "row",
                (passages, queries, length),
                passages * queries * length * SIZE[dtype],
                passages=passages,
                queries=queries,
                tokens=length,
                dtype=dtype,
            )
            for passages, length, dtype in product((16, 128, 1024), tokens, MIXED)
        ]
        yield Group("late_interaction", model, key, zoo.late_interaction, runs)
