"""Graph networks: published configurations, and the lists of neighbours that they read by."""

from collections.abc import Iterator
from itertools import product
from typing import Final, NamedTuple

from littledragon.compiler.zoo import quant_irregular_graph as graph
from littledragon.compiler.zoo.block import Block, Model
from littledragon.compiler.zoo.grids.quant_irregular_listing import WIDTH, Entry, listed

_MIT, _APACHE, _BSD = "MIT", "Apache-2.0", "BSD-3-Clause"
_OGB, _PYG, _DGL, _GAT = "snap-stanford/ogb", "pyg-team/pytorch_geometric", "dmlc/dgl", "PetarV-/GAT"


class Sampled(NamedTuple):
    """A graph network on sampled neighbours: width of its features and layers, seeds of a batch, fan-outs from them."""

    model: Model
    key: str
    nodes: int
    features: int
    hidden: int
    seeds: tuple[int, ...]
    fanouts: tuple[int, ...]


SAMPLED: Final = (
    Sampled(Model("GraphSAGE, ogbn-products", _OGB, _MIT), "products", 2449029, 100, 256, (256, 1024), (15, 10, 5)),
    Sampled(Model("GraphSAGE, ogbn-arxiv", _DGL, _APACHE), "arxiv", 169343, 128, 128, (256, 1024), (4, 4)),
    Sampled(Model("GraphSAGE, papers100M", _OGB, _MIT), "papers100m", 111059956, 128, 256, (128, 1024), (15, 10, 5)),
    Sampled(Model("GraphSAGE, Reddit", _PYG, _MIT), "reddit", 232965, 602, 128, (64, 512), (25, 10)),
    Sampled(Model("GraphSAGE, Flickr", _PYG, _MIT), "flickr", 89250, 500, 256, (256, 2048), (25, 10)),
    Sampled(Model("GraphSAGE, Yelp", _PYG, _MIT), "yelp", 716847, 300, 512, (256, 1024), (25, 10)),
    Sampled(Model("GraphSAGE, PPI", "williamleif/GraphSAGE", _MIT), "ppi", 56944, 50, 1024, (128, 512), (25, 10)),
    Sampled(Model("R-GAT, MAG240M", _OGB, _MIT), "mag240m", 244160499, 768, 1024, (128, 512), (25, 15)),
    Sampled(Model("R-GAT, IGB", "mlcommons/training", _APACHE), "igb", 547306935, 1024, 512, (128, 1024), (15, 10, 5)),
    Sampled(Model("PinSAGE", _DGL, _APACHE), "pinsage", 3000000, 1024, 128, (64, 512), (50, 3)),
)


class Whole(NamedTuple):
    """A graph network on whole graphs, batched: nodes, neighbours at most (padded), widths, heads."""

    model: Model
    key: str
    nodes: tuple[int, ...]
    width: int
    dims: tuple[int, ...]
    heads: int = 1


WHOLE: Final = (
    Whole(Model("GCN, Cora", "tkipf/gcn", _MIT), "cora", (2708,), 8, (16, 1433)),
    Whole(Model("GCN, Citeseer", "tkipf/gcn", _MIT), "citeseer", (3327,), 5, (16, 3703)),
    Whole(Model("GCN, Pubmed", "tkipf/gcn", _MIT), "pubmed", (19717,), 12, (16, 500)),
    Whole(Model("GCN, ogbn-arxiv", _OGB, _MIT), "arxiv", (169343,), 14, (40, 128, 256)),
    Whole(Model("GCN, ogbn-proteins", _OGB, _MIT), "proteins", (13252,), 597, (8, 112, 256)),
    Whole(Model("GIN, molhiv", _OGB, _MIT), "molhiv", (816, 6528, 52224), 4, (300,)),
    Whole(Model("GIN, ogbg-ppa", _OGB, _MIT), "ogbg-ppa", (7782, 31128), 19, (300,)),
    Whole(Model("GIN, ogbg-code2", _OGB, _MIT), "code2", (16016, 64064), 3, (300,)),
    Whole(
        Model("GatedGCN, ZINC", "graphdeeplearning/benchmarking-gnns", _MIT), "zinc", (736, 2944, 11776), 4, (70, 145)
    ),
    Whole(Model("GraphGPS, PCQM4Mv2", "rampasek/GraphGPS", _MIT), "pcqm4mv2", (3840, 15360), 4, (256, 384)),
    Whole(Model("SchNet, QM9", _PYG, _MIT), "schnet", (576, 4608), 17, (128,)),
    Whole(Model("SchNet, OC20", "facebookresearch/fairchem", _MIT), "schnet-oc20", (1600, 12800), 50, (1024,)),
    Whole(Model("CGCNN, Materials Project", "txie-93/cgcnn", _MIT), "cgcnn", (7680, 30720), 12, (64,)),
    Whole(Model("ALIGNN", "usnistgov/alignn", "NIST License"), "alignn", (1920, 7680), 12, (256,)),
    Whole(Model("M3GNet", "materialsvirtuallab/matgl", _BSD), "m3gnet", (1024, 8192), 40, (64,)),
    Whole(
        Model("MeshGraphNets, cylinder", "google-deepmind/deepmind-research", _APACHE),
        "meshgraphnets",
        (1885, 15080),
        6,
        (128,),
    ),
    Whole(Model("GNS, water", "google-deepmind/deepmind-research", _APACHE), "gns", (2000, 14000), 20, (128,)),
    Whole(Model("GraphCast mesh", "google-deepmind/graphcast", _APACHE), "graphcast", (10242, 40962), 8, (512,)),
    Whole(Model("ProteinMPNN", "dauparas/ProteinMPNN", _MIT), "proteinmpnn", (256, 1024, 8192), 48, (128,)),
    Whole(Model("GAT, Cora", _GAT, _MIT), "gat-cora", (2708,), 8, (8,), 8),
    Whole(Model("GAT, Pubmed", _GAT, _MIT), "gat-pubmed", (19717,), 12, (8,), 8),
    Whole(Model("GAT, PPI", _GAT, _MIT), "gat-ppi", (2245, 4490), 29, (256,), 4),
    Whole(Model("GAT, ogbn-arxiv", _DGL, _APACHE), "gat-arxiv", (169343,), 14, (250,), 3),
    Whole(Model("GAT, ogbn-products", _DGL, _APACHE), "gat-products", (10240, 40960), 10, (120,), 4),
    Whole(Model("R-GAT, IGB", "mlcommons/training", _APACHE), "rgat-igb", (1024, 16384, 65536), 15, (128,), 4),
    Whole(Model("GATv2, molecules", _PYG, _MIT), "gatv2", (816, 6528), 4, (64,), 4),
    Whole(
        Model("Graph transformer, ZINC", "graphdeeplearning/graphtransformer", _MIT),
        "san-zinc",
        (2944, 11776),
        4,
        (10,),
        8,
    ),
    Whole(Model("UniMP, ogbn-arxiv", "PaddlePaddle/PGL", _APACHE), "unimp", (169343,), 14, (128,), 2),
    Whole(Model("HGT, ogbn-mag", "acbull/pyHGT", _MIT), "hgt", (8192, 65536), 20, (64,), 8),
)


class Ragged(NamedTuple):
    """Rows in segments of unequal length: how many segments, the longest, all rows, and their width."""

    model: Model
    key: str
    segments: tuple[int, ...]
    longest: int
    mean: int
    dims: tuple[int, ...]


RAGGED: Final = (
    Ragged(Model("GIN, molhiv", _OGB, _MIT), "molhiv", (32, 256, 2048), 222, 26, (300,)),
    Ragged(Model("GIN, ogbg-ppa", _OGB, _MIT), "ogbg-ppa", (32, 128), 300, 243, (300,)),
    Ragged(
        Model("GatedGCN, ZINC", "graphdeeplearning/benchmarking-gnns", _MIT), "zinc", (128, 1024), 38, 23, (70, 145)
    ),
    Ragged(Model("SchNet, QM9", _PYG, _MIT), "qm9", (32, 256, 2048), 29, 18, (128,)),
    Ragged(
        Model("MiniLM-L6, packed", "sentence-transformers/all-MiniLM-L6-v2", _APACHE),
        "minilm",
        (32, 256),
        256,
        80,
        (384,),
    ),
    Ragged(Model("BGE-base, packed", "BAAI/bge-base-en-v1.5", _MIT), "bge-base", (16, 128), 512, 160, (768,)),
    Ragged(Model("BGE-M3, packed", "BAAI/bge-m3", _MIT), "bge-m3", (4, 32), 8192, 1500, (1024,)),
    Ragged(
        Model("E5-Mistral, packed", "intfloat/e5-mistral-7b-instruct", _MIT), "e5-mistral", (4, 32), 4096, 512, (4096,)
    ),
    Ragged(
        Model("HSTU histories", "facebookresearch/generative-recommenders", _APACHE),
        "hstu",
        (128, 1024),
        211,
        100,
        (50, 256),
    ),
    Ragged(Model("DLRM, jagged tables", "pytorch/torchrec", _BSD), "torchrec", (512, 4096, 32768), 100, 20, (64, 128)),
)


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    yield from listed("neighbour_mean", graph.neighbour_mean, _means())
    yield from listed("neighbour_product", graph.neighbour_product, _products())
    yield from listed("neighbour_max", graph.neighbour_max, _largest())
    yield from listed("padded_product", graph.padded_product, _sparse())
    yield from listed("attention_weights", graph.attention_weights, _weights())
    yield from listed("attention_sum", graph.attention_sum, _attended())
    yield from listed("edge_scores", graph.edge_scores, _edges())
    yield from listed("message_sum", graph.message_sum, _messages())
    yield from listed("ragged_mean", graph.ragged_mean, _segments())


class Hop(NamedTuple):
    """One layer of a sampled network: nodes, neighbours of each, the nodes that they are among, widths in and out."""

    one: Sampled
    name: str
    nodes: int
    width: int
    sources: int
    inner: int
    dim: int


def _hops() -> Iterator[Hop]:
    for one in SAMPLED:
        for seeds in one.seeds:
            nodes = seeds
            for depth, width in enumerate(one.fanouts, start=1):
                # Neighbours repeat: about two thirds of them are new.
                sources = min(one.nodes, nodes + nodes * width * 2 // 3)
                inner = one.features if depth == len(one.fanouts) else one.hidden
                yield Hop(one, f"s{seeds}-h{depth}", nodes, width, sources, inner, one.hidden)
                nodes = sources


def _means() -> Iterator[Entry]:
    for hop, counted, dtype in product(_hops(), (False, True), ("float32", "float16")):
        yield Entry(
            hop.one.model,
            hop.one.key,
            f"{hop.name}-{'padded' if counted else 'full'}-{dtype}",
            f"mean of {'up to ' if counted else ''}{hop.width} neighbours of {hop.nodes} nodes, {hop.inner} wide",
            (hop.sources + hop.nodes) * hop.inner * WIDTH[dtype] + hop.nodes * hop.width * 4,
            hop.nodes * hop.width * hop.inner,
            {
                **{"nodes": hop.nodes, "width": hop.width, "sources": hop.sources, "dim": hop.inner},
                **{"counted": counted, "dtype": dtype},
            },
        )


def _products() -> Iterator[Entry]:
    for hop in _hops():
        yield Entry(
            hop.one.model,
            hop.one.key,
            hop.name,
            f"mean of {hop.width} neighbours of {hop.nodes} nodes, {hop.inner} to {hop.dim} wide, ReLU",
            (hop.sources + hop.nodes) * max(hop.inner, hop.dim) * 4 + hop.nodes * hop.width * 4,
            hop.nodes * hop.inner * (hop.width + 2 * hop.dim),
            {"nodes": hop.nodes, "width": hop.width, "sources": hop.sources, "inner": hop.inner, "dim": hop.dim},
        )


def _largest() -> Iterator[Entry]:
    """GraphSAGE's pooling aggregator."""
    for hop in _hops():
        yield Entry(
            hop.one.model,
            f"{hop.one.key}-pool",
            hop.name,
            f"largest of {hop.width} neighbours of {hop.nodes} nodes, {hop.dim} wide",
            (hop.sources + hop.nodes) * hop.dim * 4 + hop.nodes * hop.width * 4,
            hop.nodes * hop.width * hop.dim,
            {
                **{"nodes": hop.nodes, "width": hop.width, "sources": hop.sources, "dim": hop.dim},
                **{"relative": False, "dtype": "float32"},
            },
        )


def _sparse() -> Iterator[Entry]:
    for one in WHOLE:
        for nodes, dim, bias, dtype in product(one.nodes, one.dims, (True, False), ("float32", "float16")):
            if one.heads == 1:
                yield Entry(
                    one.model,
                    one.key,
                    f"n{nodes}-d{dim}-{'relu' if bias else 'plain'}-{dtype}",
                    f"sparse product of {nodes} rows of at most {one.width} values, {dim} wide"
                    + (", bias and ReLU" if bias else ""),
                    nodes * (dim * 2 * WIDTH[dtype] + one.width * 8),
                    nodes * one.width * dim * 2,
                    {
                        **{"nodes": nodes, "width": one.width, "sources": nodes, "dim": dim},
                        **{"bias": bias, "dtype": dtype},
                    },
                )


def _weights() -> Iterator[Entry]:
    for one in WHOLE:
        for nodes in one.nodes:
            if one.heads > 1:
                yield Entry(
                    one.model,
                    one.key,
                    f"n{nodes}",
                    f"attention of {nodes} nodes to at most {one.width} neighbours, {one.heads} heads",
                    nodes * one.heads * (8 + one.width * 4) + nodes * one.width * 4,
                    nodes * one.heads * one.width * 6,
                    {"nodes": nodes, "width": one.width, "sources": nodes, "heads": one.heads},
                )


def _attended() -> Iterator[Entry]:
    for one in WHOLE:
        for nodes, dim, activation in product(one.nodes, one.dims, (True, False)):
            if one.heads > 1:
                yield Entry(
                    one.model,
                    one.key,
                    f"n{nodes}-d{dim}-{'elu' if activation else 'plain'}",
                    f"weighted sum of at most {one.width} neighbours of {nodes} nodes, {one.heads} heads of {dim}",
                    nodes * one.heads * (dim * 8 + one.width * 4) + nodes * one.width * 4,
                    nodes * one.width * one.heads * dim * 2,
                    {
                        **{"nodes": nodes, "width": one.width, "sources": nodes, "heads": one.heads},
                        **{"dim": dim, "activation": activation},
                    },
                )


def _edges() -> Iterator[Entry]:
    for one in WHOLE:
        for nodes, dim, dtype in product(one.nodes, one.dims, ("float32", "float16")):
            edges = nodes * one.width // 2
            yield Entry(
                one.model,
                one.key,
                f"n{nodes}-d{dim}-{dtype}",
                f"scores of {edges} edges among {nodes} nodes, {one.heads} heads of {dim}",
                nodes * one.heads * dim * 2 * WIDTH[dtype] + edges * (8 + one.heads * 4),
                edges * one.heads * dim * 2,
                {"edges": edges, "nodes": nodes, "heads": one.heads, "dim": dim, "dtype": dtype},
            )


_FORMS: Final = {
    **dict.fromkeys(("molhiv", "ogbg-ppa", "code2", "pcqm4mv2", "meshgraphnets", "gns", "graphcast"), "add"),
    **dict.fromkeys(("schnet", "schnet-oc20", "m3gnet", "proteinmpnn"), "filter"),
    **dict.fromkeys(("zinc", "alignn", "cgcnn"), "gate"),
}
"""How messages are made, of the models whose edges have features."""


def _messages() -> Iterator[Entry]:
    for one in (one for one in WHOLE if one.key in _FORMS):
        for nodes, dim in product(one.nodes, one.dims):
            yield Entry(
                one.model,
                one.key,
                f"n{nodes}-d{dim}",
                f"messages from at most {one.width} neighbours of {nodes} nodes, {dim} wide",
                nodes * dim * (8 + one.width * 4),
                nodes * one.width * dim * 4,
                {"nodes": nodes, "width": one.width, "sources": nodes, "dim": dim, "form": _FORMS[one.key]},
            )


def _segments() -> Iterator[Entry]:
    for one in RAGGED:
        for segments, dim, dtype in product(one.segments, one.dims, ("float32", "float16")):
            rows = segments * one.mean + one.longest
            yield Entry(
                one.model,
                one.key,
                f"s{segments}-d{dim}-{dtype}",
                f"means of {segments} segments of at most {one.longest} of {rows} rows, {dim} wide",
                (rows + segments) * dim * WIDTH[dtype],
                segments * one.longest * dim,
                {"segments": segments, "longest": one.longest, "rows": rows, "dim": dim, "dtype": dtype},
            )
