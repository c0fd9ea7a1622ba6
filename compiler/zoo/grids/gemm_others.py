"""Products of models that are no transformers, or only partly: recommendation, radiance fields, point clouds, graphs,
proteins, mixers of patches, recurrent networks, and the search among embeddings.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

from littledragon.compiler.zoo import gemm, gemm_recurrent
from littledragon.compiler.zoo.block import Block, Case, Model
from littledragon.compiler.zoo.gemm import Activation
from littledragon.compiler.zoo.gemm_contractions import contraction
from littledragon.compiler.zoo.grids.gemm_listing import Listing, blocks_of
from littledragon.compiler.zoo.models.language import ENCODERS, Encoder


class Perceptron(NamedTuple):
    """A multilayer perceptron: its widths from the input on, and on how many rows it runs."""

    model: Model
    key: str
    what: str
    rows: tuple[int, ...]
    widths: tuple[int, ...]
    activation: Activation = "relu"
    bias: bool = True
    dtypes: tuple[str, ...] = ("float16",)


_DLRM: Final = Model("DLRM", "facebookresearch/dlrm", "MIT")
_DCN: Final = Model("DLRM-DCNv2", "mlcommons/training recommendation_v2/torchrec_dlrm", "Apache-2.0")
_NERF: Final = Model("NeRF", "bmild/nerf", "MIT")
_MIPNERF: Final = Model("Mip-NeRF 360", "google-research/multinerf", "Apache-2.0")
_NGP: Final = Model("Instant NGP", "NVlabs/instant-ngp", "NVIDIA Source Code License")
_POINTNET: Final = Model("PointNet", "charlesq34/pointnet", "MIT")
_GRAPHCAST: Final = Model("GraphCast", "google-deepmind/graphcast", "Apache-2.0")
_ALPHAFOLD: Final = Model("AlphaFold 2", "google-deepmind/alphafold", "Apache-2.0")
_ALPHAFOLD3: Final = Model("Boltz-1", "jwohlwend/boltz", "MIT")

REQUESTS: Final = (128, 2048, 16384)
"""Candidates of one request, and batches of training."""
BOTH: Final = ("float16", "float32")
PERCEPTRONS: Final = (
    Perceptron(_DLRM, "kaggle-bottom", "bottom network", REQUESTS, (13, 512, 256, 64, 16), dtypes=BOTH),
    Perceptron(_DLRM, "kaggle-top", "top network", REQUESTS, (367, 512, 256), dtypes=BOTH),
    Perceptron(_DLRM, "terabyte-bottom", "bottom network", REQUESTS, (13, 512, 256, 64), dtypes=BOTH),
    Perceptron(_DLRM, "terabyte-top", "top network", REQUESTS, (415, 512, 512, 256), dtypes=BOTH),
    Perceptron(_DLRM, "mlperf-bottom", "bottom network", REQUESTS, (13, 512, 256, 128), dtypes=BOTH),
    Perceptron(_DLRM, "mlperf-top", "top network", REQUESTS, (479, 1024, 1024, 512, 256), dtypes=BOTH),
    Perceptron(_DCN, "top", "top network", REQUESTS, (3456, 1024, 1024, 512, 256), dtypes=BOTH),
    Perceptron(
        *(Model("NCF", "mlcommons/training recommendation/pytorch", "Apache-2.0"), "mlp", "perceptron"),
        *(REQUESTS, (256, 256, 128, 64)),
        dtypes=BOTH,
    ),
    Perceptron(
        *(Model("Wide & Deep", "Cheng et al. 2016, arXiv:1606.07792", "paper"), "deep", "deep part"),
        *(REQUESTS, (1200, 1024, 512, 256)),
        dtypes=BOTH,
    ),
    Perceptron(
        *(Model("DeepFM", "Guo et al. 2017, arXiv:1703.04247", "paper"), "deep", "deep part, 39 fields of 10"),
        *(REQUESTS, (390, 400, 400, 400)),
        dtypes=BOTH,
    ),
    Perceptron(
        *(Model("DCN", "Wang et al. 2017, arXiv:1708.05123", "paper"), "deep", "deep part on Criteo"),
        *(REQUESTS, (1026, 1024, 1024)),
        dtypes=BOTH,
    ),
    Perceptron(
        *(Model("YouTube DNN", "Covington et al. 2016, doi:10.1145/2959100.2959190", "paper"), "tower", "tower"),
        *(REQUESTS, (2048, 1024, 512, 256)),
    ),
    # Points: rays of a chunk by coarse samples, and by coarse and fine ones.
    Perceptron(_NERF, "points", "network of points", (65536, 196608), (63, 256, 256), dtypes=BOTH),
    Perceptron(_NERF, "skip", "layer after the skip connection", (65536, 196608), (319, 256)),
    Perceptron(_NERF, "views", "layer of viewing directions", (65536, 196608), (283, 128)),
    Perceptron(_MIPNERF, "points", "network of intervals", (16384, 65536), (1024, 1024)),
    Perceptron(_MIPNERF, "proposal", "proposal network", (65536, 262144), (256, 256)),
    Perceptron(_NGP, "density", "density network", (65536, 262144), (32, 64, 16), bias=False),
    Perceptron(_NGP, "colour", "colour network", (65536, 262144), (32, 64, 64), bias=False),
    # 32 clouds of 1024 or 4096 points.
    Perceptron(_POINTNET, "points", "shared perceptron", (32768, 131072), (3, 64, 64, 64, 128, 1024), dtypes=BOTH),
    Perceptron(_POINTNET, "transform", "perceptron of the input transform", (32, 512), (1024, 512, 256), dtypes=BOTH),
    # Mesh nodes of refinements 5 and 6, grid nodes at 1 degree; nodes with their messages.
    Perceptron(_GRAPHCAST, "nodes", "update of nodes", (10242, 40962, 65160), (1024, 512), "silu"),
    Perceptron(_GRAPHCAST, "output", "second layer of an update", (10242, 40962, 65160), (512, 512), "none"),
    # Pairs of 128, 256 and 384 residues; rows of alignments.
    Perceptron(_ALPHAFOLD, "pair", "transition of pairs", (16384, 65536, 147456), (128, 512)),
    Perceptron(_ALPHAFOLD, "msa", "transition of the alignment", (16384, 32768 * 2), (256, 1024)),
    Perceptron(_ALPHAFOLD, "extra", "transition of the extra alignment", (65536, 262144), (64, 256)),
    Perceptron(_ALPHAFOLD3, "single", "transition of single tokens", (384, 1536), (384, 1536), "silu", bias=False),
)


class Graph(NamedTuple):
    """Features of all nodes of a graph, and the widths of a graph network on them."""

    model: Model
    key: str
    nodes: int
    widths: tuple[int, ...]


_GCN: Final = Model("GCN", "tkipf/gcn", "MIT")
_OGB: Final = Model("GCN of OGB", "snap-stanford/ogb", "MIT")
GRAPHS: Final = (
    Graph(_GCN, "cora", 2708, (1433, 16)),
    Graph(_GCN, "citeseer", 3327, (3703, 16)),
    Graph(_GCN, "pubmed", 19717, (500, 16)),
    Graph(_OGB, "arxiv", 169343, (128, 256, 256, 40)),
    Graph(_OGB, "proteins", 132534, (8, 256, 256, 112)),
    Graph(Model("GraphSAGE", "williamleif/GraphSAGE", "MIT"), "reddit", 232965, (602, 128, 41)),
    Graph(Model("GAT", "PetarV-/GAT", "MIT"), "cora", 2708, (1433, 64, 7)),
)

# Google's Mixers: (hidden, patches, width of the token perceptron); ResMLP has one layer over patches.
_MIXER: Final = Model("MLP-Mixer", "google-research/vision_transformer", "Apache-2.0")
_GMLP: Final = Model("gMLP", "huggingface/pytorch-image-models", "Apache-2.0")
_RESMLP: Final = Model("ResMLP", "facebookresearch/deit", "Apache-2.0")
MIXERS: Final = (
    *((_MIXER, "s32", 512, 49, 256), (_MIXER, "s16", 512, 196, 256), (_MIXER, "b32", 768, 49, 384)),
    *((_MIXER, "b16", 768, 196, 384), (_MIXER, "l32", 1024, 49, 512), (_MIXER, "l16", 1024, 196, 512)),
    *((_MIXER, "h14", 1280, 256, 640), (_RESMLP, "s24", 384, 196, 196), (_RESMLP, "b24", 768, 196, 196)),
    *((_GMLP, "ti16", 384, 196, 196), (_GMLP, "s16", 768, 196, 196), (_GMLP, "b16", 1536, 196, 196)),
)
IMAGES: Final = (1, 8, 32, 128)
"""Images of one step."""


class Recurrent(NamedTuple):
    """A recurrent layer: its cell, its hidden size, and how many sequences it runs on at once."""

    model: Model
    key: str
    cell: str
    hidden: tuple[int, ...]


_DEEPBENCH: Final = Model("Deep Speech 2 (DeepBench)", "baidu-research/DeepBench", "Apache-2.0")
RECURRENT: Final = (
    Recurrent(Model("GNMT", "tensorflow/nmt", "Apache-2.0"), "gnmt", "lstm", (512, 1024)),
    Recurrent(Model("RNN-T", "mlcommons/training retired_benchmarks/rnn_speech_recognition", "Apache-2.0"), "rnnt", "lstm", (320, 1024)),
    Recurrent(Model("ELMo", "allenai/allennlp", "Apache-2.0"), "elmo", "lstm", (2048, 4096)),
    Recurrent(Model("AWD-LSTM", "salesforce/awd-lstm-lm", "BSD-3-Clause"), "awd", "lstm", (400, 1150)),
    Recurrent(Model("LSTM of Zaremba et al.", "tensorflow/models tutorials/rnn/ptb", "Apache-2.0"), "ptb", "lstm", (200, 650, 1500)),
    Recurrent(Model("Tacotron 2", "NVIDIA/tacotron2", "BSD-3-Clause"), "tacotron2", "lstm", (256, 1024)),
    Recurrent(Model("CRNN", "bgshih/crnn", "MIT"), "crnn", "lstm", (256,)),
    Recurrent(_DEEPBENCH, "deepbench-lstm", "lstm", (512, 1536, 2560)),
    Recurrent(_DEEPBENCH, "deepbench-gru", "gru", (1024, 1536, 2048, 2560, 2816)),
    Recurrent(Model("WaveRNN", "fatchord/WaveRNN", "MIT"), "wavernn", "gru", (512, 896)),
    Recurrent(Model("GRU4Rec", "hidasib/GRU4Rec", "GRU4Rec licence"), "gru4rec", "gru", (100, 512, 1000)),
    Recurrent(Model("RNNsearch", "nyu-dl/dl4mt-tutorial", "BSD-3-Clause"), "rnnsearch", "gru", (1000,)),
)
SEQUENCES: Final = (8, 32, 128)
"""Sequences of one step, served or trained on."""

EMBEDDERS: Final = ("minilm-l6", "bert-base", "bert-large", "clip-l14-text", "siglip", "t5-11b", "xlm-roberta-xl")
"""Sentence and image embeddings of all their widths, 384 to 2560."""
PASSAGES: Final = (4096, 32768, 131072)
"""Embeddings of one shard of an index."""
QUERIES: Final = (1, 32, 512)


def blocks(listing: Listing) -> Iterator[Block]:
    """Perceptrons, graphs, crosses, proteins, mixers, recurrent layers, search."""
    for perceptron in PERCEPTRONS:
        operator = f"linear_bias_{perceptron.activation}" if perceptron.bias else f"linear_{perceptron.activation}"
        operator = operator.removesuffix("_none")
        yield from blocks_of(operator, perceptron.model, _part(perceptron), gemm.linear, _perceptron(listing, perceptron))
    for graph in GRAPHS:
        part = f"{graph.model.name.lower().split()[0]}-{graph.key}"
        yield from blocks_of("node_transform", graph.model, part, gemm.linear, _graph(listing, graph))
    yield from _recommendation(listing)
    yield from _proteins(listing)
    for model, key, hidden, patches, width in MIXERS:
        part = f"{model.name.lower()}-{key}"
        cases = _mixer(listing, hidden, patches, width, model is not _RESMLP)
        yield from blocks_of("token_mixing", model, part, contraction, cases)
    for layer in RECURRENT:
        build = gemm_recurrent.lstm_step if layer.cell == "lstm" else gemm_recurrent.gru_step
        yield from blocks_of(f"{layer.cell}_step", layer.model, layer.key, build, _recurrent(listing, layer))
    for encoder in ENCODERS:
        if encoder.key in EMBEDDERS:
            yield from blocks_of("similarity", encoder, encoder.key, gemm.linear, _similarity(listing, encoder))


def _part(perceptron: Perceptron) -> str:
    name = perceptron.model.name.lower().replace(" ", "-").replace("&-", "")
    return f"{name}-{perceptron.key}"


def _perceptron(listing: Listing, perceptron: Perceptron) -> Iterator[Case]:
    for number, (k, n) in enumerate(pairwise(perceptron.widths), 1):
        for m in perceptron.rows:
            for dtype in perceptron.dtypes:
                yield from listing.linear(
                    f"layer{number}-m{m}-{dtype}",
                    f"layer {number} of the {perceptron.what}, {m} rows",
                    *(m, n, k),
                    dtype=dtype,
                    bias=perceptron.bias,
                    activation=perceptron.activation,
                )


def _graph(listing: Listing, graph: Graph) -> Iterator[Case]:
    """H·W before the sum over neighbours."""
    for number, (k, n) in enumerate(pairwise(graph.widths), 1):
        for dtype in BOTH:
            about = f"layer {number}, {graph.nodes} nodes of {graph.key}"
            name = f"layer{number}-{dtype}"
            yield from listing.linear(name, about, graph.nodes, n, k, dtype=dtype, stored="kn")


def _recommendation(listing: Listing) -> Iterator[Block]:
    """Products of pairs of 27 feature vectors, and low-rank cross layers."""
    found: list[Case] = []
    for m in REQUESTS:
        for width in (16, 64, 128):
            about = f"products of all pairs of 27 vectors of {width}, {m} rows"
            extents = {"b": m, "f": 27, "g": 27, "d": width}
            for dtype in ("float16", "bfloat16"):
                found += listing.contraction(
                    f"m{m}-d{width}-{dtype}", about, "bfd,bgd->bfg", extents, dtype=dtype, shared=True
                )
    yield from blocks_of("dot_interaction", _DLRM, "dlrm", contraction, found)
    found = []
    for m in REQUESTS:
        for dtype in ("float16", "bfloat16"):
            about = f"cross layer, {m} rows"
            found += listing.linear(f"down-m{m}-{dtype}", f"{about}, to rank 512", m, 512, 3456, dtype=dtype)
            found += listing.linear(
                f"up-m{m}-{dtype}", f"{about}, from rank 512", m, 3456, 512, dtype=dtype, bias=True, join="cross"
            )
    yield from blocks_of("cross_layer", _DCN, "dcnv2", gemm.linear, found)


def _proteins(listing: Listing) -> Iterator[Block]:
    """What pairs of residues learn from third residues, and from columns of an alignment."""
    for model, key, hidden, outer in ((_ALPHAFOLD, "alphafold2", 128, 32), (_ALPHAFOLD3, "boltz1", 128, 32)):
        triangles: list[Case] = []
        means: list[Case] = []
        for dtype in ("bfloat16", "float16"):
            for residues in (64, 128, 256, 384):
                channels = (64, hidden) if key == "alphafold2" else (hidden,)
                for width in channels:
                    extents = {"i": residues, "j": residues, "k": residues, "c": width}
                    for way, equation in (("outgoing", "ikc,jkc->ijc"), ("incoming", "kic,kjc->ijc")):
                        about = f"triangle update by {way} edges, {residues} residues, {width} channels"
                        triangles += listing.contraction(
                            f"{way}-r{residues}-c{width}-{dtype}", about, equation, extents, dtype=dtype
                        )
                for rows in (128, 512):
                    about = f"outer product mean, {residues} residues, {rows} sequences"
                    extents = {"s": rows, "i": residues, "j": residues, "c": outer, "e": outer}
                    means += listing.contraction(
                        f"r{residues}-s{rows}-{dtype}", about, "sic,sje->ijce", extents, dtype=dtype, factor=1 / rows
                    )
        yield from blocks_of("triangle_update", model, key, contraction, triangles)
        yield from blocks_of("outer_product_mean", model, key, contraction, means)


def _mixer(listing: Listing, hidden: int, patches: int, width: int, activated: bool) -> Iterator[Case]:
    """Products over patches, channel by channel: there and, where there is a hidden layer, back."""
    options: dict[str, Any] = {"activation": "gelu"} if activated and width != patches else {}
    for batch in IMAGES:
        for name, out, into in (("up", width, patches), ("down", patches, width))[: 2 if width != patches else 1]:
            extents = {"b": batch, "p": into, "q": out, "c": hidden}
            more = options if name == "up" else {}
            about = f"{'first' if name == 'up' else 'second'} layer over patches, {batch} images"
            yield from listing.contraction(f"{name}-b{batch}", about, "qp,bpc->bqc", extents, joined="q", **more)


def _recurrent(listing: Listing, layer: Recurrent) -> Iterator[Case]:
    gates = 4 if layer.cell == "lstm" else 3
    build = gemm_recurrent.lstm_step if layer.cell == "lstm" else gemm_recurrent.gru_step
    for hidden in layer.hidden:
        for batch in SEQUENCES:
            for dtype in BOTH:
                width = 2 if dtype == "float16" else 4
                size = width * (gates * hidden * hidden + (2 + 2 * gates) * batch * hidden)
                about = f"step of a layer of {hidden}, {batch} sequences"
                cell = ("nk", batch, gates * hidden, hidden)
                shape = {"batch": batch, "hidden": hidden, "dtype": dtype}
                yield from listing.case(build, f"h{hidden}-b{batch}-{dtype}", about, cell, size, shape)


def _similarity(listing: Listing, model: Encoder) -> Iterator[Case]:
    """Embeddings against embeddings, with CLIP's scale where both are a batch's own."""
    for passages in PASSAGES:
        for queries in QUERIES:
            about = f"{queries} query embeddings against {passages} of an index"
            yield from listing.linear(f"q{queries}-p{passages}", about, queries, passages, model.hidden)
    for batch in (512, 2048, 8192):
        about = f"similarities of a training batch of {batch} pairs"
        yield from listing.linear(f"pairs-{batch}", about, batch, batch, model.hidden, factor=100.0)
