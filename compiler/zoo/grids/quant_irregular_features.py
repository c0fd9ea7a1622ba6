"""Recommenders and knowledge graphs: published configurations, and what they look up."""

from collections.abc import Iterator
from itertools import product
from typing import Final, NamedTuple

from littledragon.compiler.zoo import quant_irregular, quant_irregular_features
from littledragon.compiler.zoo.block import Block, Model
from littledragon.compiler.zoo.grids.quant_irregular_listing import WIDTH, Entry, listed


class Bags(NamedTuple):
    """Embedding tables of a recommender: width, (rows, look-ups a sample) of each, batches; `mean`: averages histories.

    Rows of tables beyond a GPU's memory are those of one shard.
    """

    model: Model
    key: str
    dim: int
    tables: tuple[tuple[int, int], ...]
    batches: tuple[int, ...]
    mean: bool = False


_BSD, _MIT, _APACHE = "BSD-3-Clause", "MIT", "Apache-2.0"

BAGS: Final = (
    # Multi-hot Criteo of MLPerf, tables of 40 million rows in 128 shards.
    Bags(
        Model("DLRM-DCNv2", "mlcommons/training", _APACHE),
        *("dlrm-dcnv2", 128),
        ((39060, 2), (312500, 3), (155, 5), (20265, 6), (405282, 8), (590152 // 4, 10), (312500, 27), (312500, 100)),
        (1024, 8192, 65536),
    ),
    # Tables and look-ups of the three production-like models of DeepRecSys.
    Bags(Model("DLRM-RM1", "harvard-acc/DeepRecSys", _MIT), "dlrm-rm1", 32, ((1000000, 80),), (64, 512, 4096)),
    Bags(Model("DLRM-RM2", "harvard-acc/DeepRecSys", _MIT), "dlrm-rm2", 64, ((500000, 120),), (64, 512, 4096)),
    Bags(Model("DLRM-RM3", "harvard-acc/DeepRecSys", _MIT), "dlrm-rm3", 32, ((1000000, 20),), (64, 512, 4096)),
    Bags(
        Model("FBGEMM table batched embedding", "pytorch/FBGEMM", _BSD),
        *("fbgemm", 256),
        ((100000, 20), (100000, 64)),
        (512, 4096, 32768),
    ),
    Bags(Model("DIN", "reczoo/FuxiCTR", _APACHE), "din", 64, ((63001, 100),), (256, 2048, 16384), True),
    Bags(Model("DIN, Taobao", "reczoo/FuxiCTR", _APACHE), "din-taobao", 32, ((846811, 50),), (1024, 8192), True),
    Bags(Model("YoutubeDNN", "shenweichen/DeepMatch", _APACHE), "youtubednn", 16, ((3706, 50),), (256, 4096), True),
    Bags(Model("SASRec", "pmixer/SASRec.pytorch", _APACHE), "sasrec", 50, ((3416, 200),), (128, 1024), True),
    Bags(Model("NAML", "recommenders-team/recommenders", _MIT), "naml", 300, ((42000, 30),), (64, 1024), True),
    Bags(Model("AG News classifier", "pytorch/text", _BSD), "ag-news", 64, ((95811, 128),), (64, 512, 4096), True),
    Bags(Model("fastText, DBpedia", "facebookresearch/fastText", _MIT), "fasttext", 10, ((803000, 48),), (1024,), True),
)


class Fields(NamedTuple):
    """A click model on a data set: fields, rows of all tables, width, and batches."""

    model: Model
    key: str
    fields: int
    rows: int
    dim: int


FIELDS: Final = (
    Fields(Model("DLRM, Criteo Kaggle", "facebookresearch/dlrm", _MIT), "dlrm-kaggle", 27, 2000000, 16),
    Fields(Model("DLRM, Criteo Terabyte", "facebookresearch/dlrm", _MIT), "dlrm-terabyte", 27, 1000000, 64),
    Fields(Model("DLRM, MLPerf", "mlcommons/training", _APACHE), "dlrm-mlperf", 27, 500000, 128),
    Fields(Model("DeepFM, Criteo", "reczoo/FuxiCTR", _APACHE), "deepfm-criteo", 39, 2086936, 10),
    Fields(Model("DeepFM, Criteo x4", "reczoo/FuxiCTR", _APACHE), "deepfm-criteo-x4", 39, 910000, 40),
    Fields(Model("DeepFM, Avazu", "reczoo/FuxiCTR", _APACHE), "deepfm-avazu", 22, 1544250, 16),
    Fields(Model("DeepFM, KKBox", "reczoo/FuxiCTR", _APACHE), "deepfm-kkbox", 13, 92247, 128),
    Fields(Model("FM, Frappe", "reczoo/FuxiCTR", _APACHE), "fm-frappe", 10, 5382, 10),
    Fields(Model("NFM, Frappe", "hexiangnan/neural_factorization_machine", _APACHE), "nfm-frappe", 10, 5382, 64),
    Fields(Model("AutoInt, MovieLens", "DeepGraphLearning/RecommenderSystems", _MIT), "autoint-ml", 7, 3529, 24),
    Fields(Model("DCN-v2, Criteo", "tensorflow/recommenders", _APACHE), "dcnv2-criteo", 26, 1000000, 32),
    Fields(Model("Wide & Deep, Criteo", "NVIDIA-Merlin/HugeCTR", _APACHE), "wdl-criteo", 26, 2000000, 16),
)
"""One-hot fields; rows of a shard where the whole is beyond a GPU's memory."""


class Triples(NamedTuple):
    """A knowledge graph, or a shard of it, and how it is trained: width, batch, negatives of each triple."""

    model: Model
    key: str
    entities: int
    relations: int
    dim: int
    batch: int
    negatives: int


_ROTATE, _DGL, _OGB = "DeepGraphLearning/KnowledgeGraphEmbedding", "awslabs/dgl-ke", "snap-stanford/ogb"
TRIPLES: Final = (
    Triples(Model("FB15k-237", _ROTATE, _MIT), "fb15k-237", 14541, 237, 1000, 1024, 256),
    Triples(Model("FB15k", _ROTATE, _MIT), "fb15k", 14951, 1345, 500, 1024, 64),
    Triples(Model("WN18RR", _ROTATE, _MIT), "wn18rr", 40943, 11, 500, 512, 1024),
    Triples(Model("YAGO3-10", _ROTATE, _MIT), "yago3-10", 123182, 37, 250, 1024, 400),
    Triples(Model("ogbl-wikikg2, 1 of 16 parts", _OGB, _MIT), "wikikg2", 156288, 535, 200, 512, 128),
    Triples(Model("ogbl-biokg", _OGB, _MIT), "biokg", 45085, 51, 600, 512, 128),
    Triples(Model("Freebase, 1 of 1024 parts", _DGL, _APACHE), "freebase", 84030, 14824, 400, 1000, 200),
    Triples(
        Model("WikiData5M, 1 of 64 parts", "DeepGraphLearning/graphvite", _APACHE),
        "wikidata5m",
        72000,
        822,
        512,
        2048,
        64,
    ),
    Triples(Model("DRKG", "gnn4dr/DRKG", _APACHE), "drkg", 97238, 107, 400, 2048, 256),
)


class Pairs(NamedTuple):
    """A model of users and items, or words and contexts: rows, width, batches, and items scored for each."""

    model: Model
    key: str
    rows: int
    dim: int
    batches: tuple[int, ...]
    samples: tuple[int, ...]


PAIRS: Final = (
    Pairs(Model("NCF, MovieLens-20M", "mlcommons/training", _APACHE), "ncf", 26744, 64, (128, 2048), (5, 100, 1000)),
    Pairs(
        Model("LightGCN, Amazon-Book", "gusye1234/LightGCN-PyTorch", _MIT),
        "lightgcn",
        91599,
        64,
        (512, 8192),
        (10, 128),
    ),
    Pairs(Model("word2vec", "tmikolov/word2vec", _APACHE), "word2vec", 71291, 200, (1024, 16384), (6, 26)),
    Pairs(Model("word2vec, news", "tmikolov/word2vec", _APACHE), "word2vec-news", 200000, 300, (2048, 16384), (6, 16)),
    Pairs(
        Model("Two towers, MovieLens", "tensorflow/recommenders", _APACHE),
        "two-towers",
        62423,
        32,
        (512, 4096),
        (100, 1000),
    ),
    Pairs(Model("SASRec", "pmixer/SASRec.pytorch", _APACHE), "sasrec", 57289, 50, (128, 1024), (101, 512)),
    Pairs(Model("gSASRec", "asash/gSASRec-pytorch", _APACHE), "gsasrec", 40000, 256, (256, 4096), (256, 32)),
    Pairs(
        Model("HSTU, ML-20M", "facebookresearch/generative-recommenders", _APACHE),
        "hstu",
        26744,
        256,
        (1024,),
        (128, 512),
    ),
    Pairs(Model("node2vec", "snap-stanford/ogb", _MIT), "node2vec", 169343, 128, (256, 4096), (10, 40)),
    Pairs(Model("DPR hard negatives", "facebookresearch/DPR", "CC-BY-NC-4.0"), "dpr", 80000, 768, (128, 1024), (8, 31)),
    Pairs(
        Model("PBG, LiveJournal", "facebookresearch/PyTorch-BigGraph", _BSD),
        "pbg",
        250000,
        100,
        (1000, 10000),
        (50, 200),
    ),
)


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    yield from listed("embedding_bag", quant_irregular.embedding_bag, _bags())
    yield from listed("int8_embedding_bag", quant_irregular_features.int8_embedding_bag, _row_bags("uint8 rows", 8))
    composed = quant_irregular_features.composed_embedding_bag
    yield from listed("composed_embedding_bag", composed, _composed())
    yield from listed("wide_sum", quant_irregular.embedding_bag, _wide())
    yield from listed("factorization_machine", quant_irregular_features.factorization_machine, _machines())
    yield from listed("gathered_interaction", quant_irregular_features.gathered_interaction, _interactions())
    yield from listed("triple_scores", quant_irregular_features.triple_scores, _triples())
    yield from listed("sampled_scores", quant_irregular_features.sampled_scores, _pairs())


def _bags() -> Iterator[Entry]:
    for one in BAGS:
        kinds = ("mean",) if one.mean else ("sum", "weighted")
        for (rows, size), batch, kind, dtype in product(one.tables, one.batches, kinds, ("float32", "float16")):
            what = {"mean": "means of histories of up to", "sum": "sums of", "weighted": "weighted sums of"}[kind]
            yield Entry(
                one.model,
                one.key,
                f"r{rows}-l{size}-b{batch}-{kind}-{dtype}",
                f"{what} {size} of {rows} rows {one.dim} wide for {batch} samples, {dtype}",
                rows * one.dim * WIDTH[dtype] + batch * (one.dim * 4 + size * 12),
                batch * size * one.dim * 2,
                {
                    **{"bags": batch, "size": size, "rows": rows, "dim": one.dim, "dtype": dtype},
                    **{"weighted": kind == "weighted", "mean": kind == "mean"},
                },
            )


def _row_bags(what: str, overhead: int) -> Iterator[Entry]:
    for one in BAGS:
        for (rows, size), batch in product(one.tables, one.batches):
            yield Entry(
                one.model,
                one.key,
                f"r{rows}-l{size}-b{batch}",
                f"sums of {size} of {rows} {what} {one.dim} wide for {batch} samples",
                rows * (one.dim + overhead) + batch * (one.dim * 4 + size * 8),
                batch * size * one.dim * 3,
                {"bags": batch, "size": size, "rows": rows, "dim": one.dim},
            )


def _composed() -> Iterator[Entry]:
    """DLRM's quotient and remainder, four rows to one by default."""
    for one in (one for one in BAGS if not one.mean):
        for (rows, size), batch, collisions in product(one.tables, one.batches, (4, 64)):
            if rows > 64 * collisions:
                yield Entry(
                    one.model,
                    one.key,
                    f"r{rows}-l{size}-b{batch}-q{collisions}",
                    f"sums of {size} rows {one.dim} wide, products of quotient and remainder, for {batch} samples",
                    rows // collisions * one.dim * 4 + batch * (one.dim * 4 + size * 8),
                    batch * size * one.dim * 2,
                    {
                        **{"bags": batch, "size": size, "rows": rows // collisions},
                        **{"dim": one.dim, "collisions": collisions},
                    },
                )


def _wide() -> Iterator[Entry]:
    """The linear part of click models: one weight a feature, summed over a sample's fields."""
    for one, batch in product(FIELDS, (512, 4096, 32768)):
        yield Entry(
            one.model,
            one.key,
            f"b{batch}",
            f"linear part of {one.fields} fields for {batch} samples",
            one.rows * 4 + batch * one.fields * 8,
            batch * one.fields,
            {"bags": batch, "size": one.fields, "rows": one.rows, "dim": 1},
        )


def _machines() -> Iterator[Entry]:
    for one, batch in product(FIELDS, (256, 2048, 16384, 65536)):
        yield Entry(
            one.model,
            one.key,
            f"b{batch}",
            f"pairs of {one.fields} fields {one.dim} wide for {batch} samples",
            one.rows * one.dim * 4 + batch * one.fields * 8,
            batch * one.fields * one.dim * 3,
            {"batch": batch, "fields": one.fields, "rows": one.rows, "dim": one.dim},
        )


def _interactions() -> Iterator[Entry]:
    for one, batch, dtype in product(FIELDS, (256, 2048, 16384), ("float32", "float16")):
        yield Entry(
            one.model,
            one.key,
            f"b{batch}-{dtype}",
            f"dot products of all pairs of {one.fields} embeddings {one.dim} wide for {batch} samples",
            one.rows * one.dim * WIDTH[dtype] + batch * one.fields * (8 + one.fields * 4),
            batch * one.fields**2 * one.dim * 2,
            {"batch": batch, "fields": one.fields, "rows": one.rows, "dim": one.dim, "dtype": dtype},
        )


def _triples() -> Iterator[Entry]:
    # Training as published, a small batch, and ranking against many entities.
    for one, form in product(TRIPLES, ("transe", "distmult", "complex")):
        for batch, negatives in ((one.batch, one.negatives), (one.batch // 4, one.negatives), (16, one.entities)):
            wide = 2 if form == "complex" else 1
            yield Entry(
                one.model,
                one.key,
                f"{form}-b{batch}-n{negatives}",
                f"{form} scores of {batch} triples with {negatives} tails each, {one.dim} wide",
                (one.entities + one.relations) * one.dim * 4 * wide + batch * negatives * 12,
                batch * negatives * one.dim * 3 * wide,
                {
                    **{"batch": batch, "negatives": negatives, "entities": one.entities},
                    **{"relations": one.relations, "dim": one.dim, "form": form},
                },
            )


def _pairs() -> Iterator[Entry]:
    for one in PAIRS:
        for batch, samples, dtype in product(one.batches, one.samples, ("float32", "float16")):
            yield Entry(
                one.model,
                one.key,
                f"b{batch}-n{samples}-{dtype}",
                f"{batch} rows against {samples} drawn ones of {one.rows} each, {one.dim} wide",
                one.rows * one.dim * WIDTH[dtype] + batch * (one.dim * 4 + samples * 12),
                batch * samples * one.dim * 2,
                {"batch": batch, "samples": samples, "rows": one.rows, "dim": one.dim, "dtype": dtype},
            )
