"""What is computed from logits: over vocabularies and their shards, classes of images and sounds, pixels, and codes."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

from littledragon.compiler.zoo import norm_reduction as zoo
from littledragon.compiler.zoo import norm_reduction_logits as logits
from littledragon.compiler.zoo.block import Model, Program
from littledragon.compiler.zoo.grids.norm_reduction_listing import HALF, LANGUAGE, MIXED, SIZE, Group, Run, counted, run

SEQUENCES: Final = (1, 8, 32, 128)
"""Sequences that a server decodes together, one row of logits each."""
DRAFTED: Final = 5
"""Tokens that a draft model proposes, which the large one then checks in one step."""
LOSS_ROWS: Final = (128, 512, 2048)
"""Tokens of one piece of a loss that is computed piece by piece, so that its logits fit."""
SHARD_ROWS: Final = (512, 2048, 8192)
"""Tokens of a micro-batch whose vocabulary is sharded."""


def groups() -> Iterator[Group]:
    """All of them."""
    for model, key, columns, half in vocabularies():
        yield from _decoding(model, key, columns, half)
        yield from _training(model, key, columns, half)
    yield from _classes()
    yield from _frames()
    yield from _pixels()
    yield from _codes()
    yield from _pairs()


def vocabularies() -> Iterator[tuple[Model, str, int, str]]:
    """Model, key, size of its vocabulary and the dtype that it is published in."""
    for model in LANGUAGE:
        if model.vocab < 1000:  # wav2vec2 spells: 32 letters
            continue
        early = model.key.startswith(("gpt", "opt", "bloom", "bert", "clip", "t5", "whisper", "llama-2", "xlm"))
        yield model, model.key, model.vocab, "float16" if early else "bfloat16"


Operator = tuple[str, Callable[..., Program], str, str, tuple[str, ...], int]


def _decoding(model: Model, key: str, columns: int, half: str) -> Iterator[Group]:
    """Operator, function, words, form of its cell, dtypes of the logits, bytes that it moves beside the logits."""
    operators: tuple[Operator, ...] = (
        (
            "sampling_softmax",
            logits.sampling_softmax,
            "probabilities at a temperature of",
            "centred",
            (half, "float32"),
            4,
        ),
        ("min_p_softmax", logits.min_p_softmax, "min-p probabilities of", "centred", (half,), 4),
        ("argmax", zoo.argmax, "greedy choice for", "row", (half, "float32"), 0),
        ("gumbel_argmax", logits.gumbel_argmax, "sample for", "centred", ("float32",), 4),
    )
    for operator, build, words, form, dtypes, more in operators:
        runs = []
        for rows, dtype in product(SEQUENCES, dtypes):
            size = rows * columns * (SIZE[dtype] + more)
            about = f"{words} {counted(rows, 'sequence')}"
            shape: dict[str, Any] = {"rows": rows, "columns": columns, "dtype": dtype}
            runs.append(run(f"m{rows}-{dtype}", about, form, (rows, columns), size, **shape))
        yield Group(operator, model, key, build, runs)
    if key.startswith("gemma-2-"):
        runs = [
            run(
                f"m{sequences}-d{DRAFTED}-{dtype}",
                f"probabilities of {DRAFTED} drafted tokens of {counted(sequences, 'sequence')}, logits soft-capped",
                "centred",
                (DRAFTED * sequences, columns),
                DRAFTED * sequences * columns * (SIZE[dtype] + 4),
                rows=DRAFTED * sequences,
                columns=columns,
                dtype=dtype,
                cap=True,
            )
            for sequences, dtype in product(SEQUENCES, (half, "float32"))
        ]
        yield Group("softcap_softmax", model, key, logits.sampling_softmax, runs)
    for operator, build, words, form in (
        ("softmax", zoo.softmax, "probabilities of", "row"),
        ("log_softmax", logits.log_probabilities, "log-probabilities of", "centred"),
    ):
        runs = [
            run(
                f"m{rows}",
                f"{words} {counted(rows, 'sequence')}",
                form,
                (rows, columns),
                8 * rows * columns,
                rows=rows,
                columns=columns,
            )
            for rows in SEQUENCES
        ]
        yield Group(operator, model, key, build, runs)


def _training(model: Model, key: str, columns: int, half: str) -> Iterator[Group]:
    """Losses over the whole vocabulary, then over one shard of it. The last entry: tensors of the logits' size."""
    both = (half, "float32")
    operators: tuple[Operator, ...] = (
        ("cross_entropy", logits.cross_entropy, "cross-entropy", "centred", both, 1),
        ("cross_entropy_gradient", logits.cross_entropy_gradient, "gradient of the cross-entropy", "centred", both, 2),
        ("entropy", logits.entropy, "entropy of the distribution", "centred", (half,), 1),
        ("divergence", logits.divergence, "divergence from the teacher", "centred", (half,), 2),
        ("log_sum_exp", logits.log_sum_exp, "normaliser and z-loss", "centred", ("float32",), 1),
    )
    for operator, build, words, form, dtypes, tensors in operators:
        runs = [
            run(
                f"m{rows}-{dtype}",
                f"{words} of {rows} tokens",
                form,
                (rows, columns),
                tensors * rows * columns * SIZE[dtype],
                rows=rows,
                columns=columns,
                dtype=dtype,
            )
            for rows, dtype in product(LOSS_ROWS, dtypes)
        ]
        yield Group(operator, model, key, build, runs)
    shards: list[Run] = []
    for parts, rows, dtype in product((4, 8), SHARD_ROWS, both):
        # Vocabularies are padded until they divide.
        own = -(-columns // parts)
        about = f"cross-entropy of {rows} tokens over 1 of {parts} vocabulary shards"
        shape: dict[str, Any] = {"rows": rows, "columns": own, "dtype": dtype}
        shards.append(
            run(f"tp{parts}-m{rows}-{dtype}", about, "centred", (rows, own), rows * own * SIZE[dtype], **shape)
        )
    yield Group("sharded_cross_entropy", model, key, logits.sharded_cross_entropy, shards)


CLASSES: Final = (
    (Model("ResNet-50", "torchvision resnet50", "BSD-3-Clause"), "resnet50", 1000),
    (Model("ViT-B/16-in21k", "google/vit-base-patch16-224-in21k", "Apache-2.0"), "vit-b16-in21k", 21843),
    (Model("BEiT-B-in22k", "microsoft/beit-base-patch16-224-pt22k-ft22k", "Apache-2.0"), "beit-b-in22k", 21841),
    (
        Model("ConvNeXt-B in12k", "timm/convnext_base.clip_laion2b_augreg_ft_in12k", "Apache-2.0"),
        "convnext-b-in12k",
        11821,
    ),
    (Model("Places365 ResNet-50", "CSAILVision/places365", "MIT"), "places365", 365),
    (Model("AST AudioSet", "MIT/ast-finetuned-audioset-10-10-0.4593", "BSD-3-Clause"), "ast-audioset", 527),
    (
        Model("VideoMAE-B Kinetics", "MCG-NJU/videomae-base-finetuned-kinetics", "CC-BY-NC-4.0"),
        "videomae-kinetics",
        400,
    ),
    (Model("iNaturalist ViT", "timm/vit_large_patch14_clip_336.laion2b_ft_augreg_inat21", "MIT"), "vit-inat21", 10000),
    (Model("InsightFace Glint360k", "deepinsight/insightface", "MIT"), "glint360k-tp4", 90058),
    (Model("BEiT-B pretraining", "microsoft/beit-base-patch16-224-pt22k", "Apache-2.0"), "beit-tokens", 8192),
    (Model("HuBERT-base", "facebook/hubert-base-ls960", "Apache-2.0"), "hubert-base", 504),
)
"""Classifiers, their number of classes (of one of 4 shards where there are very many), and pretraining's targets."""
BATCHES: Final = (8, 32, 128, 512)
"""Inputs that are classified together, or trained on."""


def _classes() -> Iterator[Group]:
    for model, key, columns in CLASSES:
        runs: dict[str, list[Run]] = {"argmax": [], "cross_entropy": [], "cross_entropy_gradient": []}
        for rows, dtype in product(BATCHES, MIXED):
            cell, size = (rows, columns), rows * columns * SIZE[dtype]
            shape: dict[str, Any] = {"rows": rows, "columns": columns, "dtype": dtype}
            name = f"m{rows}-{dtype}"
            runs["argmax"].append(run(name, f"likeliest class of {rows} inputs", "row", cell, size, **shape))
            about = f"gradient of the cross-entropy of {rows} inputs"
            runs["cross_entropy_gradient"].append(run(name, about, "centred", cell, 2 * size, **shape))
            about = f"cross-entropy of {rows} inputs with smoothed labels"
            runs["cross_entropy"].append(run(name, about, "centred", cell, size, **shape, smoothed=True))
        whole: dict[str, Any] = {"columns": columns}
        softmaxes = [
            run(
                f"m{rows}",
                f"probabilities of {rows} inputs",
                "row",
                (rows, columns),
                8 * rows * columns,
                rows=rows,
                **whole,
            )
            for rows in BATCHES
        ]
        yield Group("softmax", model, key, zoo.softmax, softmaxes)
        yield Group("argmax", model, key, zoo.argmax, runs["argmax"])
        yield Group("cross_entropy", model, key, logits.cross_entropy, runs["cross_entropy"])
        yield Group("cross_entropy_gradient", model, key, logits.cross_entropy_gradient, runs["cross_entropy_gradient"])


SPEECH: Final = (
    (Model("wav2vec2-base-960h", "facebook/wav2vec2-base-960h", "Apache-2.0"), "wav2vec2-base-960h", (499, 1499), 32),
    (Model("Conformer-CTC large", "nvidia/stt_en_conformer_ctc_large", "CC-BY-4.0"), "conformer-ctc", (251, 751), 129),
    (Model("FastConformer-CTC", "nvidia/parakeet-ctc-1.1b", "CC-BY-4.0"), "parakeet-ctc", (126, 376), 1025),
    (Model("MMS-1B", "facebook/mms-1b-all", "CC-BY-NC-4.0"), "mms-1b", (499, 1499), 154),
    (Model("PaddleOCR recognition", "PaddlePaddle/PaddleOCR", "Apache-2.0"), "paddleocr-ch", (40, 80), 6625),
    (Model("DETR ResNet-50", "facebook/detr-resnet-50", "Apache-2.0"), "detr-r50", (100,), 92),
    (
        Model("Mask2Former COCO", "facebook/mask2former-swin-large-coco-panoptic", "MIT"),
        "mask2former-coco",
        (100, 200),
        134,
    ),
)
"""Sequences of frames, columns of text or queries, each with a distribution: their lengths and number of classes."""


def _frames() -> Iterator[Group]:
    for model, key, lengths, columns in SPEECH:
        runs: dict[str, list[Run]] = {"log_softmax": [], "softmax": [], "argmax": []}
        for number, length in product((1, 8, 32, 128), lengths):
            lead: Any = (number, length) if number > 1 else length
            cell, size = (number, length, columns), 4 * number * length * columns
            for operator, words, form in (
                ("log_softmax", "log-probabilities", "centred"),
                ("softmax", "probabilities", "row"),
                ("argmax", "likeliest class", "row"),
            ):
                about = f"{words} of each of {length} steps of {counted(number, 'input')}"
                moved = size if operator == "argmax" else 2 * size
                runs[operator].append(run(f"b{number}-s{length}", about, form, cell, moved, rows=lead, columns=columns))
        yield Group("log_softmax", model, key, logits.log_probabilities, runs["log_softmax"])
        yield Group("softmax", model, key, zoo.softmax, runs["softmax"])
        yield Group("argmax", model, key, zoo.argmax, runs["argmax"])


SEGMENTERS: Final = (
    (
        Model("DeepLabV3 ResNet-50", "torchvision deeplabv3_resnet50", "BSD-3-Clause"),
        "deeplabv3-voc",
        21,
        ((65, 65), (520, 520)),
    ),
    (
        Model("SegFormer-B5 ADE20K", "nvidia/segformer-b5-finetuned-ade-640-640", "NVIDIA Source Code License"),
        "segformer-ade",
        150,
        ((160, 160), (640, 640)),
    ),
    (
        Model(
            "SegFormer-B0 Cityscapes",
            "nvidia/segformer-b0-finetuned-cityscapes-1024-1024",
            "NVIDIA Source Code License",
        ),
        "segformer-cityscapes",
        19,
        ((256, 256), (1024, 1024)),
    ),
    (Model("BiSeNetV2", "open-mmlab/mmsegmentation", "Apache-2.0"), "bisenet-v2", 19, ((64, 128), (512, 1024))),
    (Model("UperNet Swin-T", "openmmlab/upernet-swin-tiny", "MIT"), "upernet-ade", 150, ((128, 128), (512, 512))),
    (Model("COCO-Stuff DeepLabV2", "nightrome/cocostuff", "CC-BY-4.0"), "cocostuff", 182, ((81, 81), (321, 321))),
    (Model("FCN ResNet-50", "torchvision fcn_resnet50", "BSD-3-Clause"), "fcn-voc", 21, ((32, 32), (256, 256))),
    (Model("nnU-Net BraTS", "MIC-DKFZ/nnUNet", "Apache-2.0"), "nnunet-brats", 4, ((128, 128, 128), (64, 64, 64))),
    (Model("nnU-Net BTCV", "MIC-DKFZ/nnUNet", "Apache-2.0"), "nnunet-btcv", 14, ((48, 192, 192), (24, 96, 96))),
    (Model("Swin UNETR", "MONAI SwinUNETR", "Apache-2.0"), "swin-unetr-btcv", 14, ((96, 96, 96), (48, 48, 48))),
    (
        Model("SegFormer-B2 clothes", "mattmdjaga/segformer_b2_clothes", "MIT"),
        "segformer-clothes",
        18,
        ((128, 128), (512, 512)),
    ),
)
"""Segmentation networks: classes, and the pixels that they are told apart on: where the network ends, and full size."""


def _pixels() -> Iterator[Group]:
    for model, key, classes, sizes in SEGMENTERS:
        soft, best = [], []
        for images, pixels in product((1, 4, 16), sizes):
            shape: dict[str, Any] = {"images": images, "classes": classes, "pixels": pixels}
            place = "x".join(map(str, pixels))
            cell, size = (images, *pixels, classes), images * classes
            for extent in pixels:
                size *= extent
            about = f"of each of {place} pixels of {counted(images, 'image')}"
            soft.append(run(f"b{images}-{place}", f"probabilities {about}", "pixel", cell, 8 * size, **shape))
            best += [
                run(
                    f"b{images}-{place}-{dtype}",
                    f"likeliest class {about}",
                    "pixel",
                    cell,
                    SIZE[dtype] * size,
                    **shape,
                    dtype=dtype,
                )
                for dtype in MIXED
            ]
        yield Group("pixel_softmax", model, key, logits.pixel_softmax, soft)
        yield Group("pixel_argmax", model, key, logits.pixel_argmax, best)


CODERS: Final = (
    (Model("EnCodec 24 kHz", "facebook/encodec_24khz", "CC-BY-NC-4.0"), "encodec-24khz", 1024, (75, 750)),
    (Model("Mimi", "kyutai/mimi", "CC-BY-4.0"), "mimi", 2048, (125, 1500)),
    (Model("VQGAN f16", "CompVis/taming-transformers", "MIT"), "vqgan-f16", 16384, (256, 1024)),
    (Model("Chameleon VQGAN", "facebook/chameleon-7b", "Chameleon Research License"), "chameleon-vqgan", 8192, (1024,)),
    (Model("Emu3 vision tokenizer", "BAAI/Emu3-VisionTokenizer", "Apache-2.0"), "emu3-tokenizer", 32768, (4096,)),
    (Model("VQ-VAE-2", "rosinality/vq-vae-2-pytorch", "MIT"), "vq-vae-2", 512, (1024, 4096)),
    (Model("HuBERT k-means targets", "facebook/hubert-base-ls960", "Apache-2.0"), "hubert-kmeans", 500, (499, 1499)),
    (Model("Faiss IVF4096", "facebookresearch/faiss", "MIT"), "faiss-ivf4096", 4096, (128, 1024)),
)
"""Vector quantisers: codes, and vectors of one input (a second of sound, an image, a block of queries)."""


def _codes() -> Iterator[Group]:
    for model, key, codes, lengths in CODERS:
        nearest, least = [], []
        for inputs, length, dtype in product((1, 8, 32), lengths, MIXED):
            rows, name = inputs * length, f"b{inputs}-s{length}-{dtype}"
            about = f"nearest of {codes} codes for {length} vectors of {counted(inputs, 'input')}"
            cell, size = (rows, codes), rows * codes * SIZE[dtype]
            nearest.append(run(name, about, "centred", cell, size, rows=rows, codes=codes, dtype=dtype))
            least.append(
                run(name, f"{about}, from distances", "row", cell, size, rows=rows, columns=codes, dtype=dtype)
            )
        yield Group("nearest_code", model, key, logits.nearest_code, nearest)
        yield Group("argmin", model, key, logits.argmin, least)


PAIRS: Final = (
    (Model("CLIP-ViT-B/32", "openai/clip-vit-base-patch32", "MIT"), "clip-b32", (256, 1024, 4096)),
    (Model("SimCSE-BERT-base", "princeton-nlp/unsup-simcse-bert-base-uncased", "MIT"), "simcse-bert-base", (64, 512)),
    (Model("BGE-large", "BAAI/bge-large-en-v1.5", "MIT"), "bge-large", (128, 2048, 8192)),
)
"""Contrastive training: pairs in a batch."""


def _pairs() -> Iterator[Group]:
    for model, key, batches in PAIRS:
        runs = [
            run(
                f"b{batch}-{dtype}",
                f"symmetric contrastive loss of {batch} pairs",
                "centred",
                (batch, batch),
                batch * batch * SIZE[dtype],
                batch=batch,
                dtype=dtype,
            )
            for batch, dtype in product(batches, (*HALF, "float32"))
        ]
        yield Group("contrastive_loss", model, key, logits.contrastive_loss, runs)
