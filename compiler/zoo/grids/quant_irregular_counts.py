"""One-hot products: gradients of small tables, means of codebooks, and histograms of published models and data."""

from collections.abc import Iterator
from itertools import product
from typing import Final, NamedTuple

from littledragon.compiler.zoo import quant_irregular_features as features
from littledragon.compiler.zoo.block import Block, Model
from littledragon.compiler.zoo.grids.quant_irregular_listing import WIDTH, Entry, listed
from littledragon.compiler.zoo.models.language import ENCODERS, MIXTURES

_BSD, _MIT, _APACHE = "BSD-3-Clause", "MIT", "Apache-2.0"


class Table(NamedTuple):
    """A small table whose gradient is a one-hot product: rows, width, rows of the gradient."""

    model: Model
    key: str
    rows: int
    dim: int
    tokens: tuple[int, ...]


TABLES: Final = (
    *(
        Table(model, model.key, model.tokens, model.hidden, (2048, 16384))
        for model in ENCODERS
        if model.key
        in ("bert-tiny", "bert-small", "bert-base", "bert-large", "minilm-l6", "bart-large", "clip-b32-text")
    ),
    Table(Model("GPT-2", "openai-community/gpt2", _MIT), "gpt2", 1024, 768, (1024, 8192)),
    Table(Model("OPT-1.3B", "facebook/opt-1.3b", "OPT License"), "opt-1.3b", 2050, 2048, (2048, 8192)),
    Table(Model("DiT-XL/2", "facebook/DiT-XL-2-256", "CC-BY-NC-4.0"), "dit-xl2", 1001, 1152, (64, 256)),
    Table(Model("ByT5-small", "google/byt5-small", _APACHE), "byt5-small", 384, 1472, (1024, 8192)),
    Table(Model("ByT5-XL", "google/byt5-xl", _APACHE), "byt5-xl", 384, 2560, (1024, 4096)),
    Table(Model("DLRM-DCNv2", "mlcommons/training", _APACHE), "dlrm-155", 155, 128, (1024, 8192, 65536)),
    Table(Model("DLRM-DCNv2", "mlcommons/training", _APACHE), "dlrm-976", 976, 128, (1024, 8192, 65536)),
    Table(Model("DLRM-DCNv2", "mlcommons/training", _APACHE), "dlrm-7122", 7122, 128, (1024, 8192)),
    # Codebooks learn by moving means: the same sum.
    Table(Model("VQ-VAE", "google-deepmind/sonnet", _APACHE), "vq-vae", 512, 64, (2048, 32768)),
    Table(Model("VQGAN-1024", "CompVis/taming-transformers", _MIT), "vqgan-1024", 1024, 256, (256, 4096, 32768)),
    Table(Model("VQGAN-16384", "CompVis/taming-transformers", _MIT), "vqgan-16384", 16384, 256, (256, 4096)),
    Table(Model("LlamaGen", "FoundationVision/LlamaGen", _MIT), "llamagen", 16384, 8, (4096, 32768)),
    Table(Model("EnCodec-24kHz", "facebook/encodec_24khz", _MIT), "encodec", 1024, 128, (750, 12000)),
    Table(Model("DAC-44kHz", "descriptinc/descript-audio-codec", _MIT), "dac", 1024, 8, (2048, 32768)),
    Table(Model("wav2vec2 quantiser", "facebook/wav2vec2-base", _APACHE), "wav2vec2", 640, 128, (499, 8000)),
)


class Counted(NamedTuple):
    """What is counted: rows of items, and how many different values there are."""

    model: Model
    key: str
    rows: tuple[int, ...]
    items: tuple[int, ...]
    bins: int
    dtype: str
    weighted: bool = False


_LIGHTGBM: Final = "microsoft/LightGBM"
COUNTED: Final = (
    *(
        Counted(model, model.key, (1,), (512 * model.top, 8192 * model.top, 65536 * model.top), model.experts, "int32")
        for model in MIXTURES
        if model.key
        in ("mixtral-8x7b", "dbrx", "qwen1.5-moe-a2.7b", "olmoe-1b-7b", "deepseek-v2", "deepseek-v3", "kimi-k2")
    ),
    # Tokens of each sequence of a batch: the balance of a sequence.
    *(
        Counted(model, f"{model.key}-sequences", (8, 32), (4096 * model.top,), model.experts, "int32")
        for model in MIXTURES
        if model.key in ("olmoe-1b-7b", "deepseek-v3", "qwen3-next-80b-a3b")
    ),
    Counted(
        Model("Equalisation of images", "pytorch/vision", _BSD),
        "equalize",
        (3, 96),
        (224 * 224, 1080 * 1920),
        256,
        "uint8",
    ),
    Counted(
        Model("VQGAN codebook use", "CompVis/taming-transformers", _MIT), "vqgan", (1, 16), (256, 4096), 1024, "int32"
    ),
    Counted(
        Model("VQGAN codebook use", "CompVis/taming-transformers", _MIT),
        "vqgan-16384",
        (1, 16),
        (256, 4096),
        16384,
        "int32",
    ),
    Counted(
        Model("EnCodec codebook use", "facebook/encodec_24khz", _MIT), "encodec", (8, 32), (750, 12000), 1024, "int32"
    ),
    Counted(
        Model("Cityscapes confusion", "open-mmlab/mmsegmentation", _APACHE),
        "cityscapes",
        (1, 8),
        (512 * 1024,),
        361,
        "int32",
    ),
    Counted(
        Model("ADE20K classes", "open-mmlab/mmsegmentation", _APACHE), "ade20k", (1, 8), (512 * 512,), 150, "uint8"
    ),
    Counted(Model("LightGBM, HIGGS", _LIGHTGBM, _MIT), "higgs", (28,), (8192, 131072), 255, "uint8", True),
    Counted(Model("LightGBM, MSLR", _LIGHTGBM, _MIT), "mslr", (137,), (8192, 131072), 255, "uint8", True),
    Counted(Model("LightGBM, Yahoo", _LIGHTGBM, _MIT), "yahoo", (700,), (8192, 65536), 63, "uint8", True),
    Counted(Model("LightGBM, Epsilon", _LIGHTGBM, _MIT), "epsilon", (2000,), (8192, 65536), 63, "uint8", True),
    Counted(
        Model("XGBoost, Covertype", "dmlc/xgboost", _APACHE), "covertype", (54,), (8192, 131072), 256, "uint8", True
    ),
)


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    yield from listed("embedding_gradient", features.embedding_gradient, _gradients())
    yield from listed("histogram", features.histogram, _counts())


def _gradients() -> Iterator[Entry]:
    for one in TABLES:
        for tokens, dtype in product(one.tokens, ("float32", "bfloat16")):
            yield Entry(
                one.model,
                one.key,
                f"m{tokens}-{dtype}",
                f"gradient of {one.rows} rows {one.dim} wide from {tokens} tokens",
                (one.rows * 4 + tokens * WIDTH[dtype]) * one.dim,
                one.rows * one.dim * tokens * 2,
                {"tokens": tokens, "rows": one.rows, "hidden": one.dim, "dtype": dtype},
            )


def _counts() -> Iterator[Entry]:
    for one in COUNTED:
        for rows, items in product(one.rows, one.items):
            yield Entry(
                one.model,
                one.key,
                f"r{rows}-t{items}",
                f"{'sums' if one.weighted else 'counts'} of {one.bins} values in {rows} rows of {items}",
                rows * items * WIDTH.get(one.dtype, 4) + items * 4,
                rows * items * one.bins * 2,
                {
                    **{"rows": rows, "items": items, "bins": one.bins},
                    **{"dtype": one.dtype, "weighted": one.weighted},
                },
            )
