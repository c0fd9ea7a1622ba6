"""Linear layers in int8 and float8 on many rows: which models are published so, and how they are scaled."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from littledragon.compiler.zoo import gemm, gemm_narrow
from littledragon.compiler.zoo.block import Block, Case
from littledragon.compiler.zoo.grids import gemm_encoders
from littledragon.compiler.zoo.grids.gemm_layers import Layer, layers
from littledragon.compiler.zoo.grids.gemm_listing import Listing, blocks_of, tokens
from littledragon.compiler.zoo.models.language import DECODERS, ENCODERS, MIXTURES, Decoder

ROWS: Final = (128, 2048)
"""A decoding batch, and a chunk of prompts: fewer rows are not bound by arithmetic."""

FP8: Final = (
    *("llama-3", "mistral", "qwen2.5", "qwen3", "gemma-2-9b", "gemma-2-27b", "gemma-3-12b", "gemma-3-27b"),
    *("phi-3", "phi-4", "mixtral", "granite-3.0-8b", "deepseek-v2", "jamba", "llama-2-70b", "llama-4", "glm-4.5"),
)
"""Published in float8 by their makers, by Neural Magic or by NVIDIA."""
TENSOR: Final = ("llama-3-70b", "mixtral", "llama-3.1-405b", "llama-2-70b")
"""NVIDIA's and Neural Magic's first checkpoints: one scale a matrix."""
BLOCKS: Final = ("deepseek-v3", "kimi-k2", "qwen3", "glm-4.5", "ernie-4.5")
"""Scaled by blocks of 128, in training or by their makers."""
INT8: Final = (
    *("llama-2", "llama-3", "qwen2.5", "mistral-7b", "mistral-nemo", "gemma-2", "phi-3", "granite-3.0", "yi-34b"),
    *("opt", "bloom", "codellama", "internlm2", "baichuan2", "mixtral", "stablelm", "glm-4-9b"),
)
"""Quantised to int8 weights and activations, by SmoothQuant or Neural Magic."""
BITSANDBYTES: Final = ("opt", "bloom", "gpt-neox", "gpt-j", "falcon", "mpt", "llama-2", "pythia-12b")
"""LLM.int8(): the product gives int32, and is scaled elsewhere, with the outliers' product."""
INT8_ENCODERS: Final = ("bert", "minilm", "vit", "deit", "roberta", "xlm-roberta", "t5", "whisper", "wav2vec2")
"""Encoders that FasterTransformer, CTranslate2 or ONNX Runtime run in int8."""


def blocks(listing: Listing) -> Iterator[Block]:
    """Format by format."""
    for model in (*DECODERS, *MIXTURES):
        dense = [layer for layer in layers(model) if layer.kind in ("qkv", "o", "gate_up", "up", "down")]
        if model.key.startswith(FP8):
            for scales in ("row", *["tensor"] * model.key.startswith(TENSOR)):
                cases = _scaled(listing, dense, narrow=gemm_narrow.E4M3, dtype="bfloat16", scales=scales)
                yield from blocks_of("fp8_matmul", model, f"{model.key}-{scales}", gemm_narrow.scaled, cases)
        if model.key.startswith(BLOCKS):
            cases = _blocks(listing, dense)
            yield from blocks_of("fp8_block_matmul", model, model.key, gemm_narrow.block_scaled, cases)
        if model.key.startswith(INT8):
            yield from _int8(listing, model, dense)
        if model.key.startswith(BITSANDBYTES):
            yield from blocks_of("int8_matmul", model, model.key, gemm.int8_matmul, _accumulators(listing, dense))
    for encoder in ENCODERS:
        if encoder.key.startswith(INT8_ENCODERS):
            bias = not encoder.key.startswith(gemm_encoders.UNBIASED)
            found = [
                case
                for name, words, n, k in gemm_encoders.layers(encoder)
                for batch, length in gemm_encoders.sequences(encoder)
                for case in listing.scaled(
                    f"{name}-b{batch}-s{length}",
                    f"{words}, int8, {batch} x {length} tokens",
                    *(length, n, k),
                    batch=batch,
                    narrow="int8",
                    bias=bias,
                )
            ]
            yield from blocks_of("int8_dequantize", encoder, encoder.key, gemm_narrow.scaled, found)


def _scaled(listing: Listing, dense: Sequence[Layer], **options: Any) -> Iterator[Case]:
    for layer in dense:
        for m in ROWS:
            about = f"{layer.words}, {options['narrow']}, {tokens(m)}"
            yield from listing.scaled(f"{layer.name}-m{m}", about, m, layer.n, layer.k, **options)


def _int8(listing: Listing, model: Decoder, dense: Sequence[Layer]) -> Iterator[Block]:
    """With the bias where the layer has one that does not wait for other shards."""
    biased = {"all": ("qkv", "up"), "qkv": ("qkv",), "none": ()}[model.bias]
    found = [
        case
        for layer in dense
        for case in _scaled(listing, [layer], narrow="int8", dtype="float16", bias=layer.kind in biased)
    ]
    yield from blocks_of("int8_dequantize", model, model.key, gemm_narrow.scaled, found)


def _blocks(listing: Listing, dense: Sequence[Layer]) -> Iterator[Case]:
    for layer in dense:
        for m in ROWS:
            shape = {"m": m, "n": layer.n, "k": layer.k}
            size = m * layer.k + layer.n * layer.k + 2 * m * layer.n
            about = f"{layer.words}, float8 scaled by blocks, {tokens(m)}"
            cell = ("blocks", m, layer.n, layer.k)
            yield from listing.case(gemm_narrow.block_scaled, f"{layer.name}-m{m}", about, cell, size, shape)


def _accumulators(listing: Listing, dense: Sequence[Layer]) -> Iterator[Case]:
    for layer in dense:
        for m in ROWS:
            shape = {"m": m, "n": layer.n, "k": layer.k}
            size = m * layer.k + layer.n * layer.k + 4 * m * layer.n
            about = f"{layer.words}, int8 without outliers, {tokens(m)}"
            cell = ("nk", m, layer.n, layer.k)
            yield from listing.case(gemm.int8_matmul, f"{layer.name}-m{m}", about, cell, size, shape)
