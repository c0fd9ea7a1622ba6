"""What a zoo block is, and the one way in which a block becomes a Relax module."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Family = Literal["attention", "gemm", "moe", "norm_reduction", "quant_irregular", "vision"]


@dataclass(frozen=True)
class Block:
    """A piece of a published model, with its shapes cut down to what one core computes in a fraction of a second.

    `build(**shape)` imports TVM and gives a Relax module; listing blocks imports nothing.
    `about` says in words what is computed and how the published shape was cut.
    """

    id: str
    family: Family
    operator: str
    about: str
    model: str
    source: str
    licence: str
    build: Callable[..., Any] = field(repr=False)
    shape: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Model:
    """A published model: its name, where its configuration stands, and the licence there."""

    name: str
    source: str
    licence: str


LLAMA2 = Model("Llama-2-7B", "meta-llama/Llama-2-7b-hf", "Llama 2 Community License")
MISTRAL = Model("Mistral-7B", "mistralai/Mistral-7B-v0.1", "Apache-2.0")
MIXTRAL = Model("Mixtral-8x7B", "mistralai/Mixtral-8x7B-v0.1", "Apache-2.0")
OLMOE = Model("OLMoE-1B-7B", "allenai/OLMoE-1B-7B-0924", "Apache-2.0")
DEEPSEEK = Model("DeepSeek-V2-Lite", "deepseek-ai/DeepSeek-V2-Lite", "DeepSeek Model License")
QWEN = Model("Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B", "Apache-2.0")
QWEN3 = Model("Qwen3-0.6B", "Qwen/Qwen3-0.6B", "Apache-2.0")
TINYLLAMA = Model("TinyLlama-1.1B", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "Apache-2.0")
SMOLLM = Model("SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M", "Apache-2.0")
BERT = Model("BERT-base", "google-bert/bert-base-uncased", "Apache-2.0")
MINILM = Model("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2", "Apache-2.0")
GPT2 = Model("GPT-2", "openai-community/gpt2", "MIT")
WHISPER = Model("Whisper-tiny", "openai/whisper-tiny", "Apache-2.0")
DLRM = Model("DLRM", "facebookresearch/dlrm", "MIT")
VIT = Model("ViT-B/16", "google/vit-base-patch16-224", "Apache-2.0")
RESNET = Model("ResNet-50", "torchvision resnet50", "BSD-3-Clause")
MOBILENET = Model("MobileNetV2", "torchvision mobilenet_v2", "BSD-3-Clause")
CONVNEXT = Model("ConvNeXt-Tiny", "facebook/convnext-tiny-224", "Apache-2.0")
UNET = Model("Stable Diffusion 1.5 U-Net", "stable-diffusion-v1-5/stable-diffusion-v1-5", "CreativeML OpenRAIL-M")


def block(
    path: str, model: Model, about: str, build: Callable[..., Any], *, cut: str, family: Family, **shape: Any
) -> Block:
    """The block `<family>/<path>/<cut>`, whose operator is `path`."""
    return Block(
        f"{family}/{path}/{cut}", family, path, about, model.name, model.source, model.licence, build, dict(shape)
    )


def export(forward: Callable[..., Any], **arguments: tuple[tuple[int, ...], str]) -> Any:
    """A Relax module of one function, `forward`, traced through `tvm.relax.frontend.nn`.

    arguments: name → (shape, dtype) of each parameter of `forward`; weights are arguments like the rest.
    """
    from tvm.relax.frontend import nn

    module = nn.Module()
    module.forward = forward
    specs = {name: nn.spec.Tensor(list(shape), dtype) for name, (shape, dtype) in arguments.items()}
    return module.export_tvm({"forward": specs})[0]


def quantized(x: Any) -> Any:
    """In TE: a matrix made int8 row by row, scale = max|x| / 127 and y = round(x / scale); gives [y, scale]."""
    from tvm import te, tirx

    rows, columns = x.shape
    axis = te.reduce_axis((0, columns), name="k")
    largest = te.compute((rows,), lambda r: te.max(te.abs(x[r, axis].astype("float32")), axis=axis), name="absmax")
    scale = te.compute((rows,), lambda r: te.max(largest[r], tirx.const(1e-6, "float32")) / 127.0, name="scale")
    whole = te.compute(
        (rows, columns), lambda r, c: te.round(x[r, c].astype("float32") / scale[r]).astype("int8"), name="quantize"
    )
    return [whole, scale]
