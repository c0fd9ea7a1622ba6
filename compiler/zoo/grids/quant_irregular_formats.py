"""Formats of quantised weights and activations: the models that are published or commonly run in each of them."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from littledragon.compiler.zoo import quant_irregular as dense
from littledragon.compiler.zoo import quant_irregular_packed as packed
from littledragon.compiler.zoo.block import Model, Program

FEW: Final = (1, 4, 16)
"""Sequences of a decoding batch for which weights are unpacked where they are used."""


class Format(NamedTuple):
    """A format of weights and activations: its operator, what a case calls it, and who runs it on how many tokens."""

    operator: str
    build: Callable[..., Program]
    words: str
    bits: float
    """Of a weight, scales included."""
    unit: int
    """What divides the reduction axis."""
    tokens: tuple[int, ...]
    models: tuple[str, ...]
    options: Callable[[int], dict[str, Any]]
    """Further arguments of the operator, by the number of tokens."""
    cost: int = 2
    """Operations for each product of two elements on many tokens."""
    variant: str = ""
    """What tells apart the blocks of an operator that has several formats."""


def _staged(**more: Any) -> Callable[[int], dict[str, Any]]:
    """The operator's own switch between few and many tokens, and these options."""
    return lambda m: {"staged": m > max(FEW), **more}


def _always(**more: Any) -> Callable[[int], dict[str, Any]]:
    return lambda _: more


_LLAMA: Final = ("llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b", "llama-3-70b", "llama-3.1-405b")
_QWEN: Final = tuple(f"qwen2.5-{size}b" for size in ("0.5", "1.5", "3", "7", "14", "32", "72"))
_QWEN3: Final = tuple(f"qwen3-{size}b" for size in ("0.6", "1.7", "4", "8", "14", "32"))
_OPT: Final = tuple(f"opt-{size}b" for size in ("1.3", "2.7", "6.7", "13", "30", "66"))
_PHONE: Final = (
    *("llama-3.2-1b", "llama-3.2-3b", "gemma-2b", "gemma-2-2b", "gemma-3-1b", "gemma-3-4b", "phi-3-mini", "phi-2"),
    *("tinyllama-1.1b", "smollm2-135m", "smollm2-360m", "smollm2-1.7b", "stablelm-2-1.6b", "minicpm-2b"),
)
"""Models for phones and laptops."""

FORMATS: Final = (
    # Official and community AWQ checkpoints: groups of 128.
    Format(
        *("awq_matmul", packed.awq_matmul, "AWQ 4-bit weights in groups of 128", 4.25, 128, (*FEW, 64, 512)),
        (*_LLAMA, *_QWEN, "qwen3-4b", "qwen3-14b", "qwen3-32b", "codellama-34b", "yi-34b", "mixtral-8x7b"),
        _staged(group=128),
    ),
    # MPT and Falcon divide into 64 only.
    Format(
        *("awq_matmul", packed.awq_matmul, "AWQ 4-bit weights in groups of 64", 4.5, 64, (1, 16, 256)),
        ("falcon-7b", "mpt-7b", "mpt-30b", "opt-6.7b"),
        _staged(group=64, dtype="bfloat16"),
        variant="g64",
    ),
    Format(
        *("gptq_matmul", packed.gptq_matmul, "GPTQ 4-bit weights in groups of 128", 4.25, 128, (*FEW, 128, 1024)),
        (*_LLAMA[:4], *_OPT, *_QWEN, "bloom-176b", "gpt-neox-20b", "gpt-j-6b", "baichuan2-13b", "falcon-40b"),
        _staged(group=128),
    ),
    Format(
        *("gptq_8bit_matmul", packed.gptq_matmul, "GPTQ 8-bit weights in groups of 128", 8.25, 128, (1, 8, 64, 512)),
        (*_QWEN, "llama-3-8b", "llama-3-70b", "granite-3.0-8b"),
        _staged(group=128, bits=8),
    ),
    # Checkpoints with desc_act: the order of the groups is data.
    Format(
        *("gptq_ordered_matmul", packed.gptq_matmul, "GPTQ 4-bit weights, groups of 32 by activation order", 5, 128),
        (1, 8, 32, 256),
        ("llama-2-7b", "llama-2-13b", "llama-2-70b", "mistral-7b", "yi-34b", "phi-2", "mixtral-8x7b", "gemma-7b"),
        _staged(group=32, ordered=True),
    ),
    Format(
        *("w4a16_matmul", dense.w4a16_matmul, "4-bit weights in groups of 32 (MLC's q4f16)", 4.5, 128, (1, 8, 64, 512)),
        (*_PHONE, "llama-2-7b", "mistral-7b", "qwen2.5-1.5b", "qwen2.5-7b", "gemma-2-9b", "phi-3-medium"),
        _always(group=32),
    ),
    Format(
        *("w8a16_matmul", dense.w8a16_matmul, "int8 weights with a scale a channel", 8, 64, (2, 16, 128, 1024)),
        (
            *("gpt2-xl", "gpt-j-6b", "gpt-neox-20b", "bloom-7.1b", "bloom-176b", "falcon-40b", "starcoder2-15b"),
            *("gemma-7b", "llama-2-13b", "t5-11b", "flan-t5-xxl", "whisper-large-v3", "nemotron-4-15b", "command-r"),
        ),
        _always(dtype="bfloat16"),
    ),
    Format(
        *("w8a8_matmul", dense.w8a8_matmul, "int8 weights and activations", 8, 64, (4, 32, 256, 2048)),
        (*_OPT, "bloom-176b", "bert-large", "vit-l16", "siglip-so400m"),
        _always(bias=True),
    ),
    Format(
        *("w8a8_matmul", dense.w8a8_matmul, "int8 weights and activations with zero points", 8, 64, (1, 16, 128, 1024)),
        (*_LLAMA, "qwen2.5-7b", "qwen2.5-72b", "mixtral-8x7b", "deepseek-v2-lite", "phi-3-medium"),
        _always(zero_point=True),
        variant="zero",
    ),
    Format(
        *("fp8_matmul", dense.fp8_matmul, "float8 with a scale a token and channel", 8, 64, (1, 8, 64, 512)),
        (
            *("llama-3-8b", "llama-3-70b", "llama-3.1-405b", "mistral-nemo-12b", "mistral-large-123b", "gemma-2-27b"),
            *("qwen2.5-14b", "command-r-plus", "dbrx", "phi-3-mini", "granite-3.0-8b", "smollm2-1.7b", "jamba-v0.1"),
        ),
        _always(per_token=True),
    ),
    Format(
        *("fp8_matmul", dense.fp8_matmul, "float8 with a scale a matrix", 8, 64, (4, 32, 256, 2048)),
        ("flux.1", "sd3-medium", "llama-2-70b", "mixtral-8x22b", "gpt-j-6b", "deepseek-v2", "grok-1"),
        _always(per_token=False, dtype="float16"),
        variant="tensor",
    ),
    Format(
        *("fp8_block_matmul", dense.fp8_block_matmul, "float8 with scales of 128 x 128 weights", 8, 128),
        (1, 8, 64, 512),
        (
            *("deepseek-v3", "kimi-k2", "glm-4.5", "glm-4.5-air", "ernie-4.5-300b-a47b", *_QWEN3),
            *("qwen3-30b-a3b", "qwen3-235b-a22b", "hunyuan-a13b", "dots.llm1"),
        ),
        _always(),
        cost=4,
    ),
    Format(
        *("mxfp8_matmul", dense.fp8_block_matmul, "MXFP8: float8 with a power of two for each 32", 8.25, 128),
        (2, 16, 128, 1024),
        (
            "llama-3-8b",
            "llama-3-70b",
            "gemma-3-27b",
            "olmo-2-13b",
            "nemotron-mini-4b",
            "qwen3-next-80b-a3b",
            "nemotron-4-15b",
        ),
        _always(block=32, tile=1, scales="float8_e8m0fnu"),
        cost=4,
    ),
    Format(
        *("w4a8_matmul", dense.w4a8_matmul, "4-bit weights in groups of 128, int8 activations", 4.25, 128),
        (1, 16, 64, 512),
        (*_LLAMA[:5], "mistral-7b", "yi-34b", "qwen2.5-72b", "mixtral-8x7b", "llama-3.2-3b", "gemma-2-9b"),
        _staged(group=128),
    ),
    # QLoRA trains on whole sequences; what it trained is served from the same weights.
    Format(
        *("nf4_matmul", packed.nf4_matmul, "NF4 weights in blocks of 64", 4.5, 64, (1, 8, 64, 512)),
        (
            *("llama-2-7b", "llama-2-13b", "llama-3-8b", "falcon-7b", "falcon-40b", "pythia-12b", "gpt-neox-20b"),
            *("opt-30b", "phi-2", "gemma-7b", "gemma-3-12b", "mistral-small-24b", "t5-11b", "flux.1", "phi-4"),
        ),
        _staged(),
    ),
    Format(
        *("mxfp4_matmul", packed.mxfp4_matmul, "MXFP4 weights", 4.25, 128, (1, 16, 128, 512)),
        ("llama-3-70b", "llama-3.1-405b", "llama-2-70b", "mixtral-8x7b", "deepseek-v3", "qwen3-235b-a22b"),
        _staged(),
    ),
    Format(
        *("nvfp4_matmul", packed.nvfp4_matmul, "NVFP4 weights and activations", 4.5, 64, (1, 4, 32, 256)),
        (
            *("llama-3-8b", "llama-3-70b", "llama-3.1-405b", "qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "deepseek-v3"),
            *("llama-4-scout", "llama-4-maverick", "gemma-3-27b", "phi-4", "flux.1", "kimi-k2"),
        ),
        _always(),
        cost=4,
    ),
    Format(
        *("codebook_matmul", packed.codebook_matmul, "AQLM weights, one of 65536 vectors for each 8", 2.1, 128),
        (1, 4, 16, 64),
        (*_LLAMA[:5], "gemma-2b", "mistral-7b", "mixtral-8x7b", "command-r", "phi-3-mini", "qwen2.5-72b"),
        _always(books=1, codes=65536),
        cost=4,
    ),
    Format(
        *("codebook_matmul", packed.codebook_matmul, "AQLM weights, two of 256 vectors for each 8", 2.1, 128),
        (1, 8, 32),
        ("llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b", "mixtral-8x7b"),
        _always(books=2, codes=256),
        variant="2x8",
    ),
    # Sparse-Llama, SparseGPT and Wanda prune decoders, the vendors' tools BERT and ViT.
    Format(
        *("sparse24_matmul", packed.sparse24_matmul, "half of the weights pruned, 2 of each 4 kept", 9, 128),
        (1, 16, 256, 1024),
        (
            "llama-3-8b",
            "llama-2-7b",
            "llama-2-13b",
            "llama-2-70b",
            "opt-13b",
            "opt-66b",
            "bert-large",
            "vit-l16",
            "vit-h14",
        ),
        _always(),
    ),
    Format(
        *("ggml_q4_0_matmul", packed.ggml_q4_0_matmul, "Q4_0 weights, Q8_0 activations", 4.5, 128, (1, 8, 128, 512)),
        ("tinyllama-1.1b", "phi-2", "gemma-2b", "gemma-3-4b", "llama-2-7b", "llama-2-70b", "falcon-7b", "bloom-3b"),
        _always(),
        cost=8,
    ),
    Format(
        *("ggml_q4_k_matmul", packed.ggml_q4_k_matmul, "Q4_K weights, Q8_K activations", 4.5, 256, (1, 8, 128, 512)),
        (
            "llama-3-8b",
            "llama-3-70b",
            "mistral-7b",
            "mixtral-8x7b",
            "qwen2.5-7b",
            "qwen2.5-32b",
            "gemma-2-27b",
            "phi-4",
        ),
        _always(),
        cost=10,
    ),
)


class Small(NamedTuple):
    """A model that is published with ternary weights: its widths."""

    model: Model
    key: str
    hidden: int
    kv_width: int
    """Width of all keys, and of all values."""
    inner: int


_FALCON3: Final = "Falcon 3 TII License"
TERNARY: Final = (
    Small(Model("BitNet-b1.58-2B-4T", "microsoft/bitnet-b1.58-2B-4T", "MIT"), "bitnet-2b", 2560, 640, 6912),
    Small(Model("BitNet-b1.58-large", "1bitLLM/bitnet_b1_58-large", "MIT"), "bitnet-0.7b", 1536, 1536, 4096),
    Small(Model("BitNet-b1.58-3B", "1bitLLM/bitnet_b1_58-3B", "MIT"), "bitnet-3b", 3200, 3200, 8640),
    Small(
        Model("Llama3-8B-1.58", "HF1BitLLM/Llama3-8B-1.58-100B-tokens", "Llama 3 Community License"),
        *("llama3-8b-1.58", 4096, 1024, 14336),
    ),
    Small(Model("Falcon3-1B-1.58", "tiiuae/Falcon3-1B-Instruct-1.58bit", _FALCON3), "falcon3-1b", 2048, 1024, 8192),
    Small(Model("Falcon3-7B-1.58", "tiiuae/Falcon3-7B-Instruct-1.58bit", _FALCON3), "falcon3-7b", 3072, 1024, 23040),
    Small(Model("TriLM-390M", "SpectraSuite/TriLM_390M_Unpacked", "Apache-2.0"), "trilm-390m", 1024, 1024, 2560),
    Small(Model("TriLM-1.1B", "SpectraSuite/TriLM_1.1B_Unpacked", "Apache-2.0"), "trilm-1.1b", 1792, 1792, 5120),
)

EXPERTS: Final = ("gpt-oss-20b", "gpt-oss-120b")
"""Published with MXFP4 experts."""
