"""Linear layers in int8 and float8 on many rows: which models are published so, and how they are scaled."""

from typing import Any, Final

from littledragon.compiler.zoo import gemm, gemm_narrow
from littledragon.compiler.zoo.grids import gemm_encoders
from littledragon.compiler.zoo.grids.gemm_layers import Layer, layers
from littledragon.compiler.zoo.grids.gemm_listing import Listing, Owner, tokens
from littledragon.compiler.zoo.models.language import DECODERS, ENCODERS, MIXTURES, Decoder

ROWS: Final = (128, 2048)
"""A decoding batch, and a chunk of prompts: fewer rows are not bound by arithmetic."""

FP8: Final = (
    *("llama-3", "mistral", "qwen2.5", "qwen3", "gemma-2-9b", "gemma-2-27b", "gemma-3-12b", "gemma-3-27b"),
    *("phi-3", "phi-4", "mixtral", "granite-3.0-8b", "deepseek-v2", "jamba", "llama-2-70b", "llama-4", "glm-4.5"),
)
"""With float8 weights and activations: published by their makers, by Neural Magic or by NVIDIA."""
TENSOR: Final = ("llama-3-70b", "mixtral", "llama-3.1-405b", "llama-2-70b")
"""NVIDIA's and Neural Magic's first checkpoints: one scale a matrix."""
BLOCKS: Final = ("deepseek-v3", "kimi-k2", "qwen3", "ernie-4.5")
"""Scaled by blocks of 128, in training or by their makers."""
INT8: Final = (
    *("llama-2", "llama-3", "qwen2.5", "mistral-7b", "mistral-nemo", "gemma-2", "phi-3", "granite-3.0", "yi-34b"),
    *("opt", "bloom", "codellama", "internlm2", "baichuan2", "mixtral", "stablelm", "glm-4-9b"),
)
"""With int8 weights and activations: what TensorRT-LLM's SmoothQuant converts, or Neural Magic published."""
BITSANDBYTES: Final = ("opt", "bloom", "gpt-neox", "gpt-j", "falcon", "mpt", "llama-2", "pythia-12b")
"""LLM.int8(): the product gives int32, and is scaled elsewhere, with the outliers' product."""
INT8_ENCODERS: Final = ("bert", "minilm", "vit", "deit", "roberta", "xlm-roberta", "t5", "whisper", "wav2vec2")
"""Encoders that CTranslate2 and ONNX Runtime run in int8, with float32 between the products."""


def list_all(listing: Listing) -> None:
    """Decoders, then encoders."""
    for model in (*DECODERS, *MIXTURES):
        for layer in layers(model):
            if layer.kind in ("qkv", "o", "gate_up", "up", "down"):
                for m in ROWS:
                    _decoder(listing, model, layer, m)
    for encoder in ENCODERS:
        if encoder.key.startswith(INT8_ENCODERS):
            bias = not encoder.key.startswith(gemm_encoders.UNBIASED)
            for name, words, n, k in gemm_encoders.layers(encoder):
                for batch, length in gemm_encoders.sequences(encoder):
                    listing.scaled(
                        *("int8_dequantize", Owner(encoder, encoder.key), f"{name}-b{batch}-s{length}"),
                        f"{words} in int8, {gemm_encoders.inputs_of(batch, length)}",
                        *(length, n, k),
                        batch=batch,
                        narrow="int8",
                        dtype="float32",
                        bias=bias,
                    )


def _decoder(listing: Listing, model: Decoder, layer: Layer, m: int) -> None:
    """The formats in which one layer is published."""
    owner, name, rows = Owner(model, model.key), f"{layer.name}-m{m}", tokens(m)
    n, k = layer.n, layer.k
    narrow: dict[str, Any] = {"narrow": gemm_narrow.E4M3, "dtype": "bfloat16"}
    if model.key.startswith(FP8):
        about = f"{layer.words} in float8, {rows}"
        listing.scaled("fp8_matmul", owner, name, about, m, n, k, **narrow)
    if model.key.startswith(TENSOR):
        about = f"{layer.words} in float8 with one scale a matrix, {rows}"
        listing.scaled("fp8_matmul", owner, f"{name}-tensor", about, m, n, k, **narrow, scales="tensor")
    if model.key.startswith(BLOCKS):
        size = m * k + n * k + 2 * m * n
        listing.add(
            *("fp8_block_matmul", owner, gemm_narrow.block_scaled, name),
            f"{layer.words} in float8 scaled by blocks, {rows}",
            *(("blocks", m, n, k), size, {"m": m, "n": n, "k": k}),
            operations=4,
        )
    if model.key.startswith(INT8):
        # Where shards are summed, the bias joins after the sum.
        biased = {"all": ("qkv", "up"), "qkv": ("qkv",), "none": ()}[model.bias]
        about = f"{layer.words} in int8, {rows}"
        narrow = {"narrow": "int8", "dtype": "bfloat16", "bias": layer.kind in biased}
        listing.scaled("int8_dequantize", owner, name, about, m, n, k, **narrow)
    if model.key.startswith(BITSANDBYTES):
        size = m * k + n * k + 4 * m * n
        listing.add(
            *("int8_matmul", owner, gemm.int8_matmul, name),
            f"{layer.words} in int8 but for outliers, {rows}",
            *(("nk", m, n, k), size, {"m": m, "n": n, "k": k}),
        )
