"""The demonstration's zoo: pieces of published models, their shapes cut down to what one core computes in a fraction
of a second. What runs on a laptop in minutes is tested on these; each `about` says how the published shape was cut.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from littledragon.compiler.zoo import attention, gemm, moe, norm_reduction, quant_irregular, vision
from littledragon.compiler.zoo import block as zoo
from littledragon.compiler.zoo.block import Block, Case, Family, Model, Program

_LLAMA2 = Model("Llama-2-7B", "meta-llama/Llama-2-7b-hf", "Llama 2 Community License")
_MISTRAL = Model("Mistral-7B", "mistralai/Mistral-7B-v0.1", "Apache-2.0")
_MIXTRAL = Model("Mixtral-8x7B", "mistralai/Mixtral-8x7B-v0.1", "Apache-2.0")
_OLMOE = Model("OLMoE-1B-7B", "allenai/OLMoE-1B-7B-0924", "Apache-2.0")
_DEEPSEEK = Model("DeepSeek-V2-Lite", "deepseek-ai/DeepSeek-V2-Lite", "DeepSeek Model License")
_QWEN = Model("Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B", "Apache-2.0")
_QWEN3 = Model("Qwen3-0.6B", "Qwen/Qwen3-0.6B", "Apache-2.0")
_TINYLLAMA = Model("TinyLlama-1.1B", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "Apache-2.0")
_SMOLLM = Model("SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M", "Apache-2.0")
_BERT = Model("BERT-base", "google-bert/bert-base-uncased", "Apache-2.0")
_MINILM = Model("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2", "Apache-2.0")
_GPT2 = Model("GPT-2", "openai-community/gpt2", "MIT")
_WHISPER = Model("Whisper-tiny", "openai/whisper-tiny", "Apache-2.0")
_DLRM = Model("DLRM", "facebookresearch/dlrm", "MIT")
_VIT = Model("ViT-B/16", "google/vit-base-patch16-224", "Apache-2.0")
_RESNET = Model("ResNet-50", "torchvision resnet50", "BSD-3-Clause")
_MOBILENET = Model("MobileNetV2", "torchvision mobilenet_v2", "BSD-3-Clause")
_CONVNEXT = Model("ConvNeXt-Tiny", "facebook/convnext-tiny-224", "Apache-2.0")
_UNET = Model("Stable Diffusion 1.5 U-Net", "stable-diffusion-v1-5/stable-diffusion-v1-5", "CreativeML OpenRAIL-M")


def _block(
    operator: str, model: Model, about: str, build: Callable[..., Program], *, cut: str, family: Family, **shape: Any
) -> Block:
    """The block `<family>/<operator>/<cut>` with its one case, `cut`."""
    return zoo.block(family, operator, model, cut, build, Case("cut", about, shape))


_attention = partial(_block, family="attention")

_ATTENTION = (
    _attention(
        "qk_scores",
        _LLAMA2,
        "attention scores of 4 of 32 heads, 64 tokens",
        attention.qk_scores,
        cut="llama-2-7b-tp8-s64",
        heads=4,
        tokens=64,
        dim=128,
    ),
    _attention(
        "pv_context",
        _BERT,
        "attention context of all 12 heads, 96 tokens",
        attention.pv_context,
        cut="bert-base-s96",
        heads=12,
        tokens=96,
        dim=64,
    ),
    _attention(
        "masked_softmax",
        _GPT2,
        "causal softmax of all 12 heads, 64 tokens",
        attention.masked_softmax,
        cut="gpt2-s64",
        heads=12,
        tokens=64,
    ),
    _attention(
        "gqa_decode",
        _QWEN,
        "one decoding step over 2048 cached tokens, 2 key-value heads with 7 queries each",
        attention.gqa_decode,
        cut="qwen2.5-0.5b-c2048",
        kv_heads=2,
        group=7,
        context=2048,
        dim=64,
    ),
    _attention(
        "norm_rotary",
        _QWEN3,
        "normalisation and rotary embedding of the queries of 32 tokens",
        attention.norm_rotary,
        cut="qwen3-0.6b-s32",
        tokens=32,
        heads=16,
        dim=128,
        positions=2048,
    ),
    _attention(
        "mla_decode",
        _DEEPSEEK,
        "one decoding step of latent attention over 1024 cached tokens, 16 heads",
        attention.mla_decode,
        cut="deepseek-v2-lite-c1024",
        heads=16,
        context=1024,
        rank=512,
        rope=64,
    ),
)


_gemm = partial(_block, family="gemm")

_GEMM = (
    _gemm(
        "nt_matmul_cast",
        _LLAMA2,
        "query projection, cut 32 x 32 ways to one head and one 128-wide slice of the hidden size, 128 tokens",
        gemm.nt_matmul_cast,
        cut="llama-2-7b-tp32-b128",
        m=128,
        n=128,
        k=128,
    ),
    _gemm(
        "nt_matmul_cast",
        _TINYLLAMA,
        "output projection, one of 32 column shards, 32 tokens",
        gemm.nt_matmul_cast,
        cut="tinyllama-1.1b-tp32-b32",
        m=32,
        n=2048,
        k=64,
    ),
    _gemm(
        "skinny_matmul",
        _MISTRAL,
        "up projection while decoding 4 sequences, one of 64 row shards",
        gemm.nt_matmul_cast,
        cut="mistral-7b-tp64-b4",
        m=4,
        n=224,
        k=4096,
    ),
    _gemm(
        "linear_bias_gelu",
        _BERT,
        "first layer of the feed-forward network, one of 8 row shards, 64 tokens",
        gemm.linear_bias_gelu,
        cut="bert-base-tp8-b64",
        m=64,
        n=384,
        k=768,
    ),
    _gemm(
        "gated_mlp",
        _SMOLLM,
        "gated feed-forward network, one of 8 shards, 48 tokens",
        gemm.gated_mlp,
        cut="smollm2-135m-tp8-b48",
        m=48,
        hidden=576,
        inner=192,
    ),
    _gemm(
        "batched_matmul",
        _QWEN,
        "rank-16 adapters of 8 requests, 16 tokens each",
        gemm.batched_matmul,
        cut="qwen2.5-0.5b-lora16-b8",
        batch=8,
        m=16,
        n=16,
        k=896,
    ),
    _gemm(
        "int8_matmul",
        _QWEN,
        "key projection with int8 weights and activations, 64 tokens",
        gemm.int8_matmul,
        cut="qwen2.5-0.5b-w8a8-b64",
        m=64,
        n=128,
        k=896,
    ),
)


_moe = partial(_block, family="moe")

_MOE = (
    _moe(
        "router",
        _OLMOE,
        "router over 64 experts, 256 tokens, hidden size cut in 2",
        moe.router,
        cut="olmoe-1b-7b-b256",
        tokens=256,
        experts=64,
        hidden=1024,
    ),
    _moe(
        "grouped_gemm",
        _MIXTRAL,
        "first product of 8 experts on 24 routed rows, one of 128 row shards, hidden size cut in 4",
        moe.grouped_gemm,
        cut="mixtral-8x7b-tp128-r24",
        rows=24,
        experts=8,
        n=112,
        k=1024,
    ),
    _moe(
        "silu_mul_quantize",
        _MIXTRAL,
        "gate of the experts and int8 quantisation of 64 rows, one of 32 shards",
        moe.silu_mul_quantize,
        cut="mixtral-8x7b-tp32-r64",
        rows=64,
        inner=448,
    ),
    _moe(
        "combine",
        _OLMOE,
        "weighted sum of the 8 experts of each of 96 tokens",
        moe.combine,
        cut="olmoe-1b-7b-b96",
        tokens=96,
        top=8,
        hidden=2048,
    ),
    _moe(
        "dispatch_quantize",
        _OLMOE,
        "rows of 16 tokens sent to 8 experts each, quantised to int8",
        moe.dispatch_quantize,
        cut="olmoe-1b-7b-b16",
        tokens=16,
        top=8,
        hidden=2048,
    ),
    _moe(
        "expert_mlp",
        _DEEPSEEK,
        "gated networks of 8 of 64 experts on 6 rows each, inner size one of 16 shards, hidden size cut in 2",
        moe.expert_mlp,
        cut="deepseek-v2-lite-tp16-e8",
        experts=8,
        rows=6,
        hidden=1024,
        inner=88,
    ),
)


_norm_reduction = partial(_block, family="norm_reduction")

_NORM_REDUCTION = (
    _norm_reduction(
        "rms_norm",
        _LLAMA2,
        "RMS normalisation of 32 tokens",
        norm_reduction.rms_norm,
        cut="llama-2-7b-b32",
        rows=32,
        hidden=4096,
    ),
    _norm_reduction(
        "add_rms_norm",
        _QWEN,
        "residual addition and RMS normalisation of 192 tokens",
        norm_reduction.add_rms_norm,
        cut="qwen2.5-0.5b-b192",
        rows=192,
        hidden=896,
    ),
    _norm_reduction(
        "layer_norm",
        _BERT,
        "layer normalisation of 64 tokens",
        norm_reduction.layer_norm,
        cut="bert-base-b64",
        rows=64,
        hidden=768,
    ),
    _norm_reduction(
        "softmax",
        _TINYLLAMA,
        "probabilities of 24 tokens over one of 4 vocabulary shards",
        norm_reduction.softmax,
        cut="tinyllama-1.1b-tp4-b24",
        rows=24,
        columns=8000,
    ),
    _norm_reduction(
        "log_softmax",
        _BERT,
        "log-probabilities of 6 tokens over the whole vocabulary",
        norm_reduction.log_softmax,
        cut="bert-base-b6",
        rows=6,
        columns=30522,
    ),
    _norm_reduction(
        "argmax",
        _QWEN,
        "greedy choice for 32 sequences over one of 8 vocabulary shards",
        norm_reduction.argmax,
        cut="qwen2.5-0.5b-tp8-b32",
        rows=32,
        columns=18992,
    ),
    _norm_reduction(
        "variance",
        _WHISPER,
        "variance of 80 mel channels over 1500 frames",
        norm_reduction.variance,
        cut="whisper-tiny",
        rows=80,
        columns=1500,
    ),
    _norm_reduction(
        "masked_mean",
        _MINILM,
        "mean pooling of 16 sentences of 128 tokens",
        norm_reduction.masked_mean,
        cut="minilm-l6-b16-s128",
        sentences=16,
        tokens=128,
        hidden=384,
    ),
)


_quant_irregular = partial(_block, family="quant_irregular")

_QUANT_IRREGULAR = (
    _quant_irregular(
        "w8a16_matmul",
        _QWEN,
        "gate projection with int8 weights, one of 16 row shards, 16 tokens",
        quant_irregular.w8a16_matmul,
        cut="qwen2.5-0.5b-tp16-b16",
        m=16,
        n=304,
        k=896,
    ),
    _quant_irregular(
        "w4a16_matmul",
        _LLAMA2,
        "value projection with 4-bit weights in groups of 128, one head, hidden size cut in 2, 8 tokens",
        quant_irregular.w4a16_matmul,
        cut="llama-2-7b-tp32-g128-b8",
        m=8,
        n=128,
        k=2048,
        group=128,
    ),
    _quant_irregular(
        "quantize",
        _MISTRAL,
        "int8 quantisation of the activations of 24 tokens",
        quant_irregular.quantize,
        cut="mistral-7b-b24",
        rows=24,
        hidden=4096,
    ),
    _quant_irregular(
        "embedding_norm",
        _BERT,
        "word and position embedding of 160 tokens, normalised, one of 16 vocabulary shards",
        quant_irregular.embedding_norm,
        cut="bert-base-tp16-b160",
        tokens=160,
        vocabulary=1907,
        positions=512,
        hidden=768,
    ),
    _quant_irregular(
        "embedding_bag",
        _DLRM,
        "sums of 40 rows of one embedding table for 128 samples",
        quant_irregular.embedding_bag,
        cut="dlrm-b128-l40",
        bags=128,
        size=40,
        rows=10000,
        dim=64,
    ),
    _quant_irregular(
        "paged_scores",
        _MISTRAL,
        "scores of one query against 256 cached keys in int8 pages of 16",
        quant_irregular.paged_scores,
        cut="mistral-7b-s256",
        tokens=256,
        page=16,
        pages=64,
        heads=8,
        group=4,
        dim=128,
    ),
)


_vision = partial(_block, family="vision")

_VISION = (
    _vision(
        "conv3x3",
        _RESNET,
        "3 x 3 convolution of the second stage with batch norm folded in, filters cut in 4",
        vision.conv_bias_relu,
        cut="resnet50-s2-tp4",
        channels=128,
        filters=32,
        size=28,
        kernel=3,
        stride=1,
        padding=1,
    ),
    _vision(
        "conv1x1",
        _RESNET,
        "1 x 1 convolution of the third stage with batch norm folded in, filters cut in 2",
        vision.conv_bias_relu,
        cut="resnet50-s3-tp2",
        channels=256,
        filters=128,
        size=14,
        kernel=1,
        stride=1,
        padding=0,
    ),
    _vision(
        "conv_strided",
        _RESNET,
        "the 7 x 7 stem at stride 2 with batch norm folded in, on a 64 x 64 image",
        vision.conv_bias_relu,
        cut="resnet50-stem-64",
        channels=3,
        filters=64,
        size=64,
        kernel=7,
        stride=2,
        padding=3,
    ),
    _vision(
        "depthwise3x3",
        _MOBILENET,
        "3 x 3 depthwise convolution of 144 channels",
        vision.depthwise,
        cut="mobilenet-v2-28",
        channels=144,
        size=28,
        kernel=3,
        clip=True,
    ),
    _vision(
        "depthwise7x7",
        _CONVNEXT,
        "7 x 7 depthwise convolution of 96 channels on a 28 x 28 image",
        vision.depthwise,
        cut="convnext-tiny-28",
        channels=96,
        size=28,
        kernel=7,
        clip=False,
    ),
    _vision(
        "patch_embedding",
        _VIT,
        "patches of a 112 x 112 image, filters cut in 4",
        vision.patch_embedding,
        cut="vit-b16-112-tp4",
        size=112,
        patch=16,
        filters=192,
    ),
    _vision(
        "max_pool",
        _RESNET,
        "3 x 3 max pooling after the stem, 56 x 56 pixels",
        vision.max_pool,
        cut="resnet50-56",
        channels=64,
        size=56,
    ),
    _vision(
        "global_avg_pool",
        _RESNET,
        "global mean of 2048 channels of 4 images",
        vision.global_avg_pool,
        cut="resnet50-b4",
        images=4,
        channels=2048,
        size=7,
    ),
    _vision(
        "group_norm_silu",
        _UNET,
        "group normalisation of 320 channels in 32 groups, 16 x 16 pixels",
        vision.group_norm_silu,
        cut="sd15-unet-320-16",
        channels=320,
        size=16,
        groups=32,
    ),
)

BLOCKS: tuple[Block, ...] = (*_ATTENTION, *_GEMM, *_MOE, *_NORM_REDUCTION, *_QUANT_IRREGULAR, *_VISION)
"""By family, each family's most telling ones first: `--limit` takes from the front."""
