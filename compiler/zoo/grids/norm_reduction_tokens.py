"""Normalisations of the rows of transformers: language models, encoders of text, speech and images, diffusion."""

from collections.abc import Iterator
from itertools import product
from typing import Final

from littledragon.compiler.zoo import norm_reduction as zoo
from littledragon.compiler.zoo.block import Model
from littledragon.compiler.zoo.grids.norm_reduction_listing import HALF, MIXED, SIZE, Group, Run, counted, run
from littledragon.compiler.zoo.models.language import (
    DECODERS,
    ENCODERS,
    LATENTS,
    MIXTURES,
    STATE_SPACES,
    Decoder,
    Encoder,
)

TOKENS: Final = (1, 8, 32, 128, 512, 2048, 8192)
"""Rows of a served language model: sequences that decode together, then prefill chunks."""
INPUTS: Final = (1, 8, 32, 128)
"""Texts, clips or images that an encoder is given together: one request, small and large batches, training."""
WORDS: Final = (32, 128, 512)
"""Tokens of a text: a sentence, a paragraph, what the encoders of text were trained on."""
SHARDS: Final = (1, 2, 4, 8)
"""Tensor-parallel shards, each with its share of the heads."""

NO_BIAS: Final = frozenset(
    {"mpt-7b", "mpt-30b", "command-r", "command-r-plus", "dbrx", "modernbert-base", "modernbert-large"}
)
"""Models whose layer normalisations have a weight alone."""
NO_AFFINE: Final = frozenset({"olmo-1b"})
"""Models whose layer normalisations have not even that; they are left out."""
IMAGES: Final = frozenset({"vit", "deit", "clip", "dinov2", "siglip"})
RMS_ENCODERS: Final = ("t5-", "flan-t5-")


def groups() -> Iterator[Group]:
    """All of them, each model's first where two have the same shape."""
    yield from _rms()
    yield from _gemma()
    yield from _decoder_layer_norms()
    yield from _encoder_layer_norms()
    yield from _hierarchical()
    yield from _diffusion()
    yield from _heads()
    yield from _gated()


def _rms_models() -> Iterator[tuple[Model, str, int]]:
    """Model, part and width of every RMS normalisation of rows but Gemma's; the ranks of latent attention too."""
    for decoder in (*DECODERS, *MIXTURES):
        if decoder.norm == "rms" and not decoder.key.startswith("gemma"):
            yield decoder, decoder.key, decoder.hidden
    for encoder in ENCODERS:
        if encoder.key.startswith(RMS_ENCODERS):
            yield encoder, encoder.key, encoder.hidden
    for space in STATE_SPACES:
        yield space, space.key, space.hidden
    for latent in LATENTS:
        yield latent, f"{latent.key}-cache", latent.rank
        if latent.q_rank:
            yield latent, f"{latent.key}-queries", latent.q_rank


def _rms() -> Iterator[Group]:
    for model, part, hidden in _rms_models():
        plain, added = [], []
        for rows, dtype in product(TOKENS, HALF):
            name, row, cell = f"m{rows}-{dtype}", rows * hidden * SIZE[dtype], (rows, hidden)
            shape = {"rows": rows, "hidden": hidden, "dtype": dtype}
            about = f"RMS normalisation of {counted(rows, 'token')}"
            plain.append(run(name, about, "row", cell, 2 * row, **shape))
            about = f"residual addition and RMS normalisation of {counted(rows, 'token')} in one kernel"
            added.append(run(name, about, "row", cell, 4 * row, **shape))
        yield Group("rms_norm", model, part, zoo.weighted_rms_norm, plain)
        if "-cache" not in part and "-queries" not in part:
            yield Group("add_rms_norm", model, part, zoo.fused_add_rms_norm, added)


def _gemma() -> Iterator[Group]:
    for model in DECODERS:
        if not model.key.startswith("gemma"):
            continue
        runs = []
        # Gemma's activations leave the range of float16.
        for rows, dtype, residual in product(TOKENS, ("bfloat16", "float32"), (False, True)):
            if residual and model.key in ("gemma-2b", "gemma-7b"):  # the first generation has none after a layer
                continue
            what = "RMS normalisation after a layer and residual addition" if residual else "RMS normalisation"
            runs.append(
                run(
                    f"{'post' if residual else 'pre'}-m{rows}-{dtype}",
                    f"{what}, weights around one, {counted(rows, 'token')}",
                    "row",
                    (rows, model.hidden),
                    (3 if residual else 2) * rows * model.hidden * SIZE[dtype],
                    rows=rows,
                    hidden=model.hidden,
                    dtype=dtype,
                    around_one=True,
                    residual=residual,
                )
            )
        yield Group("gemma_norm", model, model.key, zoo.weighted_rms_norm, runs)


def _decoder_layer_norms() -> Iterator[Group]:
    for model in (*DECODERS, *MIXTURES):
        if model.norm != "layer" or model.key in NO_AFFINE:
            continue
        plain, added = [], []
        for rows, dtype in product(TOKENS, HALF):
            shape = {"rows": rows, "hidden": model.hidden, "dtype": dtype, "bias": model.key not in NO_BIAS}
            name, row, cell = f"m{rows}-{dtype}", rows * model.hidden * SIZE[dtype], (rows, model.hidden)
            about = f"layer normalisation of {counted(rows, 'token')}"
            plain.append(run(name, about, "centred", cell, 2 * row, **shape))
            about = f"residual addition and layer normalisation of {counted(rows, 'token')} in one kernel"
            added.append(run(name, about, "centred", cell, 4 * row, **shape))
        yield Group("layer_norm", model, model.key, zoo.layer_norm, plain)
        yield Group("add_layer_norm", model, model.key, zoo.add_layer_norm, added)


def _inputs(model: Encoder) -> tuple[str, tuple[int, ...]]:
    """What an encoder is given, and the lengths that it has in tokens."""
    if model.vocab and model.key not in ("wav2vec2-base", "wav2vec2-large") and not model.key.startswith("whisper"):
        return "text", (77,) if model.key.startswith("clip") else WORDS
    return ("image" if model.key.split("-")[0] in IMAGES else "clip"), (model.tokens,)


def _encoder_layer_norms() -> Iterator[Group]:
    for model in ENCODERS:
        if model.key.startswith(RMS_ENCODERS) or model.key in DIFFUSION_KEYS:
            continue
        what, lengths = _inputs(model)
        scaled = model.key.startswith("dinov2")
        plain, added = [], []
        for number, tokens, dtype in product(INPUTS, lengths, MIXED):
            lead = (number, tokens) if number > 1 else tokens
            shape = {"rows": lead, "hidden": model.hidden, "dtype": dtype, "bias": model.key not in NO_BIAS}
            name, cell = f"b{number}-s{tokens}-{dtype}", (number, tokens, model.hidden)
            row = number * tokens * model.hidden * SIZE[dtype]
            of = f"{counted(number, what)} of {tokens} tokens"
            plain.append(run(name, f"layer normalisation of {of}", "centred", cell, 2 * row, **shape))
            shape |= {"layer_scale": True} if scaled else {}
            about = f"{'scaled ' if scaled else ''}residual addition and layer normalisation of {of}"
            added.append(run(name, about, "centred", cell, 4 * row, **shape))
        yield Group("layer_norm", model, model.key, zoo.layer_norm, plain)
        yield Group("add_layer_norm", model, model.key, zoo.add_layer_norm, added)


SWINS: Final = (
    (Model("Swin-T", "microsoft/swin-tiny-patch4-window7-224", "Apache-2.0"), "swin-t", 224, 96),
    (Model("Swin-B", "microsoft/swin-base-patch4-window7-224", "Apache-2.0"), "swin-b", 224, 128),
    (Model("Swin-L-384", "microsoft/swin-large-patch4-window12-384", "Apache-2.0"), "swin-l-384", 384, 192),
    (Model("MViTv2-S", "facebookresearch/mvit", "Apache-2.0"), "mvit-v2-s", 224, 96),
    (Model("PVTv2-B2", "OpenGVLab/pvt_v2_b2", "Apache-2.0"), "pvt-v2-b2", 224, 64),
)
"""Hierarchical transformers: the side of their images, and the width of their first stage, of patches of 4 x 4."""
STAGES: Final = {"pvt-v2-b2": (64, 128, 320, 512)}
"""Widths of the stages where they do not double."""


def _hierarchical() -> Iterator[Group]:
    for model, key, side, width in SWINS:
        plain, added = [], []
        for stage, number, dtype in product(range(4), INPUTS, MIXED):
            tokens = (side // (4 << stage)) ** 2
            hidden = STAGES[key][stage] if key in STAGES else width << stage
            lead = (number, tokens) if number > 1 else tokens
            name, cell = f"stage{stage + 1}-b{number}-{dtype}", (number, tokens, hidden)
            shape = {"rows": lead, "hidden": hidden, "dtype": dtype, "bias": True}
            row = number * tokens * hidden * SIZE[dtype]
            of = f"{counted(number, 'image')}, {tokens} tokens each, in stage {stage + 1}"
            plain.append(run(name, f"layer normalisation of {of}", "centred", cell, 2 * row, **shape))
            about = f"residual addition and layer normalisation of {of}"
            added.append(run(name, about, "centred", cell, 4 * row, **shape))
        yield Group("layer_norm", model, key, zoo.layer_norm, plain)
        yield Group("add_layer_norm", model, key, zoo.add_layer_norm, added)


DIFFUSION: Final = (
    (Model("DiT-XL/2", "facebook/DiT-XL-2-256", "CC-BY-NC-4.0"), "dit-xl2", 1152, (256, 1024)),
    (Model("DiT-S/2", "facebookresearch/DiT", "CC-BY-NC-4.0"), "dit-s2", 384, (256,)),
    (Model("DiT-B/2", "facebookresearch/DiT", "CC-BY-NC-4.0"), "dit-b2", 768, (256,)),
    (Model("DiT-L/2", "facebookresearch/DiT", "CC-BY-NC-4.0"), "dit-l2", 1024, (256,)),
    (
        Model("PixArt-Sigma", "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS", "CreativeML OpenRAIL++-M"),
        "pixart-sigma",
        1152,
        (4096, 16384),
    ),
    (
        Model(
            "Stable Diffusion 3 medium",
            "stabilityai/stable-diffusion-3-medium-diffusers",
            "Stability AI Community License",
        ),
        "sd3-medium",
        1536,
        (333, 1024, 4096),
    ),
    (
        Model("Stable Diffusion 3.5 large", "stabilityai/stable-diffusion-3.5-large", "Stability AI Community License"),
        "sd3.5-large",
        2432,
        (333, 1024, 4096),
    ),
    (Model("FLUX.1-schnell", "black-forest-labs/FLUX.1-schnell", "Apache-2.0"), "flux.1", 3072, (512, 1024, 4096)),
    (
        Model("HunyuanDiT", "Tencent-Hunyuan/HunyuanDiT-v1.2-Diffusers", "Tencent Hunyuan Community License"),
        "hunyuan-dit",
        1408,
        (1024, 4096),
    ),
    (
        Model("Sana-1.6B", "Efficient-Large-Model/Sana_1600M_1024px_diffusers", "Apache-2.0"),
        "sana-1.6b",
        2240,
        (256, 1024),
    ),
    (Model("Open-Sora 1.2", "hpcai-tech/OpenSora-STDiT-v3", "Apache-2.0"), "open-sora-1.2", 1152, (1590, 23850)),
    (
        Model("HunyuanVideo", "hunyuanvideo-community/HunyuanVideo", "Tencent Hunyuan Community License"),
        "hunyuan-video",
        3072,
        (14850,),
    ),
    (Model("Wan2.1-T2V-1.3B", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "Apache-2.0"), "wan2.1-1.3b", 1536, (32760,)),
    (Model("Wan2.1-T2V-14B", "Wan-AI/Wan2.1-T2V-14B-Diffusers", "Apache-2.0"), "wan2.1-14b", 5120, (4095, 9450)),
)
"""Diffusion transformers: width, and tokens of an image, a video (HunyuanVideo's and Wan 14B's: one of 8 sequence
shards), or a prompt."""
DIFFUSION_KEYS: Final = frozenset({"dit-xl2-256", "dit-xl2-512", "pixart-xl2-1024", "sd3-medium", "flux.1"})
GUIDED: Final = (1, 2, 8, 32)
"""Images in one step: one, one with and without its prompt (classifier-free guidance), batches."""


def _diffusion() -> Iterator[Group]:
    for model, key, hidden, lengths in DIFFUSION:
        runs = []
        for tokens, images, dtype, gated in product(lengths, GUIDED, HALF, (False, True)):
            branch = "gated branch added, " if gated else ""
            runs.append(
                run(
                    f"{'gated-' if gated else ''}b{images}-s{tokens}-{dtype}",
                    f"{branch}adaptive layer normalisation of {counted(images, 'image')}, {tokens} tokens each",
                    "centred",
                    (images, tokens, hidden),
                    (4 if gated else 2) * images * tokens * hidden * SIZE[dtype],
                    images=images,
                    tokens=tokens,
                    hidden=hidden,
                    dtype=dtype,
                    gated=gated,
                )
            )
        yield Group("adaln_modulate", model, key, zoo.modulated_norm, runs)


HEADS: Final = (
    (
        Model(
            "Stable Diffusion 3.5 medium", "stabilityai/stable-diffusion-3.5-medium", "Stability AI Community License"
        ),
        "sd3.5-medium",
        24,
        64,
    ),
    (
        Model("Stable Diffusion 3.5 large", "stabilityai/stable-diffusion-3.5-large", "Stability AI Community License"),
        "sd3.5-large",
        38,
        64,
    ),
    (Model("FLUX.1-schnell", "black-forest-labs/FLUX.1-schnell", "Apache-2.0"), "flux.1", 24, 128),
    (Model("Qwen-Image", "Qwen/Qwen-Image", "Apache-2.0"), "qwen-image", 24, 128),
)
"""Models outside the tables whose queries and keys are normalised head by head: heads and width."""


def _heads() -> Iterator[Group]:
    every: list[tuple[Model, str, str, int, int]] = []
    for decoder in (*DECODERS, *MIXTURES):
        # OLMo-2 normalises all heads as one row.
        if decoder.qk_norm and not decoder.key.startswith(("olmo", "olmoe")):
            every += [(decoder, decoder.key, what, heads, decoder.head) for what, heads in _kinds(decoder)]
    every += [(model, key, "queries", heads, head) for model, key, heads, head in HEADS]
    for model, key, what, heads, head in every:
        runs: list[Run] = []
        for shards, tokens, dtype in product(SHARDS, TOKENS, HALF):
            if heads % shards:
                continue
            own = heads // shards
            part = f", 1 of {shards} tensor-parallel shards" if shards > 1 else ""
            runs.append(
                run(
                    f"tp{shards}-m{tokens}-{dtype}",
                    f"RMS normalisation of the {what} of {counted(tokens, 'token')} head by head{part}",
                    "row",
                    (tokens, own, head),
                    2 * tokens * own * head * SIZE[dtype],
                    rows=(tokens, own) if min(tokens, own) > 1 else tokens * own,
                    hidden=head,
                    dtype=dtype,
                )
            )
        yield Group("qk_norm", model, f"{key}-{what}", zoo.weighted_rms_norm, runs)


def _kinds(model: Decoder) -> tuple[tuple[str, int], ...]:
    return (("queries", model.heads), ("keys", model.kv_heads))


GATED: Final = (
    (Model("Mamba2-130M", "state-spaces/mamba2-130m", "Apache-2.0"), "mamba2-130m", 1, 1536, True),
    (Model("Mamba2-780M", "state-spaces/mamba2-780m", "Apache-2.0"), "mamba2-780m", 1, 3072, True),
    (Model("Mamba2-2.7B", "state-spaces/mamba2-2.7b", "Apache-2.0"), "mamba2-2.7b", 1, 5120, True),
    (
        Model("Codestral-Mamba-7B", "mistralai/Mamba-Codestral-7B-v0.1", "Apache-2.0"),
        "codestral-mamba-7b",
        8,
        1024,
        True,
    ),
    (Model("Zamba2-7B", "Zyphra/Zamba2-7B", "Apache-2.0"), "zamba2-7b", 2, 3584, True),
    (Model("Bamba-9B", "ibm-ai-platform/Bamba-9B-v2", "Apache-2.0"), "bamba-9b", 1, 8192, True),
    (
        Model("Qwen3-Next-80B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "Apache-2.0"),
        "qwen3-next-80b-a3b",
        32,
        128,
        False,
    ),
    (Model("RetNet-1.3B", "microsoft/torchscale", "MIT"), "retnet-1.3b", 8, 512, False),
    (Model("GLA-1.3B", "fla-hub/gla-1.3B-100B", "MIT"), "gla-1.3b", 4, 512, False),
)
"""State-space models and gated linear attention: groups of channels that are normalised apart, width of one, and
whether the gate comes before."""


def _gated() -> Iterator[Group]:
    for model, key, groups, width, before in GATED:
        runs = []
        for shards, tokens, dtype in product(SHARDS, TOKENS, HALF):
            if groups % shards:
                continue
            part = f", 1 of {shards} tensor-parallel shards" if shards > 1 else ""
            what = counted(groups // shards, "group")
            runs.append(
                run(
                    f"tp{shards}-m{tokens}-{dtype}",
                    f"gated RMS normalisation of {what} of {width} channels of {counted(tokens, 'token')}{part}",
                    "row",
                    (tokens, groups // shards, width),
                    3 * tokens * groups // shards * width * SIZE[dtype],
                    rows=tokens,
                    groups=groups // shards,
                    width=width,
                    dtype=dtype,
                    before=before,
                )
            )
        yield Group("gated_rms_norm", model, key, zoo.gated_rms_norm, runs)
