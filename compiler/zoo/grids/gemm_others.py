"""Products of models that are no transformers, or only partly: recommendation, radiance fields, point clouds, graphs,
proteins, mixers of patches, recurrent networks, and the search among embeddings.
"""

from itertools import pairwise
from typing import Final, Literal, NamedTuple

from littledragon.compiler.zoo import gemm_recurrent
from littledragon.compiler.zoo.block import Model
from littledragon.compiler.zoo.gemm import Activation
from littledragon.compiler.zoo.grids.gemm_listing import Listing, Owner

BOTH: Final = ("float16", "float32")
HALVES: Final = ("float16", "bfloat16")
REQUESTS: Final = (128, 2048, 16384)
"""Candidates of one request, and batches of training."""
IMAGES: Final = (1, 8, 32, 128)
"""Images of one step."""
SEQUENCES: Final = (8, 32, 128)
"""Sequences of one step of a recurrent layer, served or trained on."""
RESIDUES: Final = (64, 128, 256, 384)
"""Residues of a crop, or of a small protein."""
QUERIES: Final = (1, 32, 512)
PASSAGES: Final = (4096, 32768, 131072)
"""Embeddings of one shard of an index."""
PAIRS: Final = (512, 2048, 8192)
"""Pairs of a contrastive training batch."""


class Perceptron(NamedTuple):
    """A multilayer perceptron: its widths from the input on, and on how many rows it runs."""

    model: Model
    key: str
    part: str
    what: str
    rows: tuple[int, ...]
    widths: tuple[int, ...]
    activation: Activation = "relu"
    bias: bool = True
    dtypes: tuple[str, ...] = ("float16",)


class Graph(NamedTuple):
    """A graph network: the nodes of its graph, and the widths of their features from layer to layer."""

    model: Model
    key: str
    name: str
    nodes: int
    widths: tuple[int, ...]


class Mixer(NamedTuple):
    """A mixer of patches: channels, patches, and the width of the hidden layer over patches, if there is one."""

    model: Model
    key: str
    hidden: int
    patches: int
    width: int


class Recurrent(NamedTuple):
    """Recurrent layers: their cell and hidden sizes."""

    model: Model
    key: str
    cell: Literal["lstm", "gru"]
    hidden: tuple[int, ...]


class Embedder(NamedTuple):
    """A model of sentences or images that are searched by their embeddings, and the width of these."""

    model: Model
    key: str
    width: int


_DLRM: Final = Model("DLRM", "facebookresearch/dlrm", "MIT")
_DCN: Final = Model("DLRM-DCNv2", "mlcommons/training recommendation_v2/torchrec_dlrm", "Apache-2.0")
_NCF: Final = Model("NCF", "mlcommons/training recommendation/pytorch", "Apache-2.0")
_WIDE: Final = Model("Wide & Deep", "arXiv:1606.07792", "arXiv non-exclusive licence")
_DEEPFM: Final = Model("DeepFM", "arXiv:1703.04247", "arXiv non-exclusive licence")
_CROSS: Final = Model("DCN", "arXiv:1708.05123", "arXiv non-exclusive licence")
_YOUTUBE: Final = Model("YouTube DNN", "doi:10.1145/2959100.2959190", "ACM copyright")
_NERF: Final = Model("NeRF", "bmild/nerf", "MIT")
_MIPNERF: Final = Model("Mip-NeRF 360", "google-research/multinerf", "Apache-2.0")
_NGP: Final = Model("Instant NGP", "NVlabs/instant-ngp", "NVIDIA Source Code License")
_POINTNET: Final = Model("PointNet", "charlesq34/pointnet", "MIT")
_GRAPHCAST: Final = Model("GraphCast", "google-deepmind/graphcast", "Apache-2.0")
_ALPHAFOLD: Final = Model("AlphaFold 2", "google-deepmind/alphafold", "Apache-2.0")

_POINTS: Final = (65536, 196608)
"""Points of a chunk of 1024 rays: 64 coarse samples of each, and the fine ones too."""
_NODES: Final = (10242, 40962, 65160)
"""Nodes of meshes of refinement 5 and 6, and of a grid of 1 degree."""
PERCEPTRONS: Final = (
    Perceptron(_DLRM, "dlrm", "kaggle-bottom", "bottom network", REQUESTS, (13, 512, 256, 64, 16), dtypes=BOTH),
    Perceptron(_DLRM, "dlrm", "kaggle-top", "top network", REQUESTS, (367, 512, 256), dtypes=BOTH),
    Perceptron(_DLRM, "dlrm", "terabyte-bottom", "bottom network", REQUESTS, (13, 512, 256, 64), dtypes=BOTH),
    Perceptron(_DLRM, "dlrm", "terabyte-top", "top network", REQUESTS, (415, 512, 512, 256), dtypes=BOTH),
    Perceptron(_DLRM, "dlrm", "mlperf-bottom", "bottom network", REQUESTS, (13, 512, 256, 128), dtypes=BOTH),
    Perceptron(_DLRM, "dlrm", "mlperf-top", "top network", REQUESTS, (479, 1024, 1024, 512, 256), dtypes=BOTH),
    Perceptron(_DCN, "dlrm-dcnv2", "top", "top network", REQUESTS, (3456, 1024, 1024, 512, 256), dtypes=BOTH),
    Perceptron(_NCF, "ncf", "mlp", "perceptron", REQUESTS, (256, 256, 128, 64), dtypes=BOTH),
    Perceptron(_WIDE, "wide-deep", "deep", "deep part", REQUESTS, (1200, 1024, 512, 256), dtypes=BOTH),
    Perceptron(_DEEPFM, "deepfm", "deep", "deep part, 39 fields of 10", REQUESTS, (390, 400, 400), dtypes=BOTH),
    Perceptron(_CROSS, "dcn", "deep", "deep part on Criteo", REQUESTS, (1026, 1024, 1024), dtypes=BOTH),
    Perceptron(_YOUTUBE, "youtube-dnn", "tower", "tower", REQUESTS, (2048, 1024, 512, 256)),
    Perceptron(_NERF, "nerf", "points", "network of points", _POINTS, (63, 256, 256), dtypes=BOTH),
    Perceptron(_NERF, "nerf", "skip", "network of points after its skip connection", _POINTS, (319, 256)),
    Perceptron(_NERF, "nerf", "views", "network of directions", _POINTS, (283, 128)),
    Perceptron(_MIPNERF, "mip-nerf-360", "points", "network of intervals", (16384, 65536), (1024, 1024)),
    Perceptron(_MIPNERF, "mip-nerf-360", "proposal", "proposal network", (65536, 262144), (256, 256)),
    Perceptron(_NGP, "instant-ngp", "density", "density network", (65536, 262144), (32, 64, 16), bias=False),
    Perceptron(_NGP, "instant-ngp", "colour", "colour network", (65536, 262144), (32, 64, 64), bias=False),
    # 32 clouds of 1024 or 4096 points.
    Perceptron(
        *(_POINTNET, "pointnet", "points", "shared perceptron", (32768, 131072), (3, 64, 64, 64, 128, 1024)),
        dtypes=BOTH,
    ),
    Perceptron(_POINTNET, "pointnet", "transform", "input transform", (32, 512), (1024, 512, 256), dtypes=BOTH),
    # A node's own state beside the sum of its messages.
    Perceptron(_GRAPHCAST, "graphcast", "nodes", "update of nodes", _NODES, (1024, 512), "silu"),
    Perceptron(_GRAPHCAST, "graphcast", "output", "update of nodes, second half", _NODES, (512, 512), "none"),
    Perceptron(_ALPHAFOLD, "alphafold2", "pair", "transition of pairs", (16384, 65536, 147456), (128, 512)),
    Perceptron(_ALPHAFOLD, "alphafold2", "msa", "transition of the alignment", (16384, 65536), (256, 1024)),
    Perceptron(_ALPHAFOLD, "alphafold2", "extra", "transition of the extra alignment", (65536, 262144), (64, 256)),
)

_GCN: Final = Model("GCN", "tkipf/gcn", "MIT")
_OGB: Final = Model("GCN of the Open Graph Benchmark", "snap-stanford/ogb", "MIT")
_SAGE: Final = Model("GraphSAGE", "williamleif/GraphSAGE", "MIT")
_GAT: Final = Model("GAT", "PetarV-/GAT", "MIT")
GRAPHS: Final = (
    Graph(_GCN, "gcn-cora", "Cora", 2708, (1433, 16)),
    Graph(_GCN, "gcn-citeseer", "Citeseer", 3327, (3703, 16)),
    Graph(_GCN, "gcn-pubmed", "Pubmed", 19717, (500, 16)),
    Graph(_GAT, "gat-cora", "Cora", 2708, (1433, 64, 7)),
    Graph(_OGB, "ogb-arxiv", "ogbn-arxiv", 169343, (128, 256, 256, 40)),
    Graph(_OGB, "ogb-proteins", "ogbn-proteins", 132534, (8, 256, 256, 112)),
    Graph(_SAGE, "graphsage-reddit", "Reddit", 232965, (602, 128, 41)),
)

_MIXER: Final = Model("MLP-Mixer", "google-research/vision_transformer", "Apache-2.0")
_RESMLP: Final = Model("ResMLP", "facebookresearch/deit", "Apache-2.0")
_GMLP: Final = Model("gMLP", "huggingface/pytorch-image-models", "Apache-2.0")
MIXERS: Final = (
    Mixer(_MIXER, "mixer-s32", 512, 49, 256),
    Mixer(_MIXER, "mixer-s16", 512, 196, 256),
    Mixer(_MIXER, "mixer-b32", 768, 49, 384),
    Mixer(_MIXER, "mixer-b16", 768, 196, 384),
    Mixer(_MIXER, "mixer-l32", 1024, 49, 512),
    Mixer(_MIXER, "mixer-l16", 1024, 196, 512),
    Mixer(_MIXER, "mixer-h14", 1280, 256, 640),
    Mixer(_RESMLP, "resmlp-s24", 384, 196, 196),
    Mixer(_RESMLP, "resmlp-b24", 768, 196, 196),
    # Half of the hidden channels gate the other half.
    Mixer(_GMLP, "gmlp-ti16", 384, 196, 196),
    Mixer(_GMLP, "gmlp-s16", 768, 196, 196),
    Mixer(_GMLP, "gmlp-b16", 1536, 196, 196),
)

_DEEPBENCH: Final = Model("Deep Speech 2 (DeepBench)", "baidu-research/DeepBench", "Apache-2.0")
_RNNT: Final = Model("RNN-T", "mlcommons/inference retired_benchmarks/speech_recognition/rnnt", "Apache-2.0")
RECURRENT: Final = (
    Recurrent(Model("GNMT", "tensorflow/nmt", "Apache-2.0"), "gnmt", "lstm", (512, 1024)),
    Recurrent(_RNNT, "rnnt", "lstm", (320, 1024)),
    Recurrent(Model("AWD-LSTM", "salesforce/awd-lstm-lm", "BSD-3-Clause"), "awd-lstm", "lstm", (400, 1150)),
    Recurrent(Model("LSTM of PTB", "tensorflow/models", "Apache-2.0"), "ptb", "lstm", (200, 650, 1500)),
    Recurrent(Model("Tacotron 2", "NVIDIA/tacotron2", "BSD-3-Clause"), "tacotron2", "lstm", (256, 1024)),
    Recurrent(_DEEPBENCH, "deepbench-lstm", "lstm", (1536, 2048, 4096)),
    Recurrent(_DEEPBENCH, "deepbench-gru", "gru", (1024, 1536, 2048, 2560, 2816)),
    Recurrent(Model("WaveRNN", "fatchord/WaveRNN", "MIT"), "wavernn", "gru", (512, 896)),
    Recurrent(Model("GRU4Rec", "hidasib/GRU4Rec", "GRU4Rec licence"), "gru4rec", "gru", (100, 1000)),
)

EMBEDDERS: Final = (
    Embedder(Model("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2", "Apache-2.0"), "minilm-l6", 384),
    Embedder(Model("BGE-base", "BAAI/bge-base-en-v1.5", "MIT"), "bge-base", 768),
    Embedder(Model("BGE-M3", "BAAI/bge-m3", "MIT"), "bge-m3", 1024),
    Embedder(Model("SigLIP-so400m", "google/siglip-so400m-patch14-384", "Apache-2.0"), "siglip-so400m", 1152),
    Embedder(Model("GTE-Qwen2-1.5B", "Alibaba-NLP/gte-Qwen2-1.5B-instruct", "Apache-2.0"), "gte-qwen2-1.5b", 1536),
    Embedder(Model("Qwen3-Embedding-4B", "Qwen/Qwen3-Embedding-4B", "Apache-2.0"), "qwen3-embedding-4b", 2560),
    Embedder(Model("E5-Mistral-7B", "intfloat/e5-mistral-7b-instruct", "MIT"), "e5-mistral-7b", 4096),
)


def list_all(listing: Listing) -> None:
    """Perceptrons, graphs, crosses, proteins, mixers, recurrent layers, search."""
    for perceptron in PERCEPTRONS:
        _perceptron(listing, perceptron)
    for graph in GRAPHS:
        _graph(listing, graph)
    _recommendation(listing)
    _proteins(listing)
    for mixer in MIXERS:
        _mixer(listing, mixer)
    for layer in RECURRENT:
        _recurrent(listing, layer)
    for embedder in EMBEDDERS:
        _similarity(listing, embedder)


def _perceptron(listing: Listing, perceptron: Perceptron) -> None:
    activation, bias = perceptron.activation, perceptron.bias
    operator = "_".join(["linear", *["bias"] * bias, *[activation] * (activation != "none")])
    owner = Owner(perceptron.model, perceptron.key)
    for number, (k, n) in enumerate(pairwise(perceptron.widths), 1):
        for m in perceptron.rows:
            for dtype in perceptron.dtypes:
                name = f"{perceptron.part}-layer{number}-m{m}-{dtype}"
                about = f"layer {number} of the {perceptron.what}, {m} rows"
                listing.linear(operator, owner, name, about, m, n, k, dtype=dtype, bias=bias, activation=activation)


def _graph(listing: Listing, graph: Graph) -> None:
    """H·W, before the sum over neighbours."""
    for number, (k, n) in enumerate(pairwise(graph.widths), 1):
        for dtype in BOTH:
            name, about = f"layer{number}-{dtype}", f"layer {number}, {graph.nodes} nodes of {graph.name}"
            owner = Owner(graph.model, graph.key)
            listing.linear("node_transform", owner, name, about, graph.nodes, n, k, dtype=dtype, stored="kn")


def _recommendation(listing: Listing) -> None:
    """Products of pairs of 27 feature vectors, and low-rank cross layers."""
    for m in REQUESTS:
        for dtype in HALVES:
            for width in (16, 64, 128):
                name, about = f"m{m}-d{width}-{dtype}", f"products of all pairs of 27 vectors of {width}, {m} rows"
                extents = {"b": m, "f": 27, "g": 27, "d": width}
                listing.contraction(
                    *("dot_interaction", Owner(_DLRM, "dlrm"), name, about, "bfd,bgd->bfg", extents),
                    dtype=dtype,
                    shared=True,
                )
            owner, about = Owner(_DCN, "dlrm-dcnv2"), f"cross layer, {m} rows"
            down, up = f"down-m{m}-{dtype}", f"up-m{m}-{dtype}"
            listing.linear("cross_layer", owner, down, f"{about}, to rank 512", m, 512, 3456, dtype=dtype)
            listing.linear(
                *("cross_layer", owner, up, f"{about}, from rank 512", m, 3456, 512),
                dtype=dtype,
                bias=True,
                join="cross",
            )


def _proteins(listing: Listing) -> None:
    """What pairs of residues learn from third residues, and from columns of an alignment."""
    owner = Owner(_ALPHAFOLD, "alphafold2")
    for dtype in HALVES:
        for residues in RESIDUES:
            for width in (64, 128):
                for way, equation in (("outgoing", "ikc,jkc->ijc"), ("incoming", "kic,kjc->ijc")):
                    name = f"{way}-r{residues}-c{width}-{dtype}"
                    about = f"triangle update by {way} edges, {residues} residues, {width} channels"
                    extents = {"i": residues, "j": residues, "k": residues, "c": width}
                    listing.contraction("triangle_update", owner, name, about, equation, extents, dtype=dtype)
            for rows in (128, 512):
                name, about = (
                    f"r{residues}-s{rows}-{dtype}",
                    f"outer product mean, {residues} residues, {rows} sequences",
                )
                extents = {"s": rows, "i": residues, "j": residues, "c": 32, "e": 32}
                listing.contraction(
                    *("outer_product_mean", owner, name, about, "sic,sje->ijce", extents),
                    dtype=dtype,
                    factor=1 / rows,
                )


def _mixer(listing: Listing, mixer: Mixer) -> None:
    """Products over patches, channel by channel: there and, where there is a hidden layer, back."""
    layers = [("up", "first", mixer.width, mixer.patches), ("down", "second", mixer.patches, mixer.width)]
    for name, which, out, into in layers[: 1 if mixer.width == mixer.patches else 2]:
        activation: Activation = "gelu" if name == "up" and mixer.width != mixer.patches else "none"
        for batch in IMAGES:
            about = f"{which} layer over patches, {batch} images"
            extents = {"b": batch, "p": into, "q": out, "c": mixer.hidden}
            listing.contraction(
                *("token_mixing", Owner(mixer.model, mixer.key), f"{name}-b{batch}", about, "qp,bpc->bqc", extents),
                joined="q",
                activation=activation,
            )


def _recurrent(listing: Listing, layer: Recurrent) -> None:
    gates, build = (4, gemm_recurrent.lstm_step) if layer.cell == "lstm" else (3, gemm_recurrent.gru_step)
    for hidden in layer.hidden:
        for batch in SEQUENCES:
            for dtype in BOTH:
                listing.add(
                    *(f"{layer.cell}_step", Owner(layer.model, layer.key), build, f"h{hidden}-b{batch}-{dtype}"),
                    f"step of a layer of {hidden}, {batch} sequences",
                    ("nk", batch, gates * hidden, hidden),
                    4 * (gates * hidden * hidden + (2 + 2 * gates) * batch * hidden),
                    {"batch": batch, "hidden": hidden, "dtype": dtype},
                )


def _similarity(listing: Listing, embedder: Embedder) -> None:
    """Query embeddings against an index, or a batch of pairs against itself, times a learnt scale."""
    owner, width = Owner(embedder.model, embedder.key), embedder.width
    for passages in PASSAGES:
        for queries in QUERIES:
            name, about = f"q{queries}-p{passages}", f"{queries} query embeddings against {passages} of an index"
            listing.linear("similarity", owner, name, about, queries, passages, width)
    for pairs in PAIRS:
        about = f"similarities of a training batch of {pairs} pairs"
        listing.linear("similarity", owner, f"pairs{pairs}", about, pairs, pairs, width, factor=20.0)
