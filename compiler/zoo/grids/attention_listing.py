"""How this family lists its cases: heads of each model, near twins left out, a block for each model of an operator."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from littledragon.compiler.zoo.block import MOST_CASES, Block, Case, Model, Program, block
from littledragon.compiler.zoo.models.language import DECODERS, LATENTS, MIXTURES, Decoder

MOST_BYTES: Final = 250 << 20
"""A little less than what is not too large, for the small arguments that are not counted here."""
MOST_FLOPS: Final = 300e9

APART: Final = 1.5
"""Two shapes whose numbers all lie within this factor of each other are near twins."""

WIDTH: Final = {"float8_e4m3fn": 1, "float16": 2, "bfloat16": 2, "float32": 4}
"""Bytes of an element."""

_LATENT: Final = {model.key for model in LATENTS}
MODELS: Final = tuple(
    model
    for model in (*DECODERS, *MIXTURES)
    if model.key not in _LATENT and not model.key.startswith(("switch", "nllb"))
)
"""Decoders whose attention is by keys and values of each head, those in encoder-decoders left out."""

_HALF: Final = ("gpt", "pythia", "opt", "llama-2", "codellama", "phi-1", "phi-2", "command-r", "stablelm")
"""Beginnings of the keys of models that run in float16; the others run in bfloat16."""


LEARNED: Final = ("gpt2", "opt", "bloom", "mpt", "jamba", "baichuan2-13b")
"""Beginnings of the keys of decoders without rotary embedding."""


class Heads(NamedTuple):
    """The heads of a model, or of a tensor-parallel shard: key-value heads, queries for each, their width."""

    model: Decoder
    tp: int
    kv_heads: int
    group: int
    dim: int


class Entry(NamedTuple):
    """A case that may be listed, with the most bytes and operations of its functions."""

    model: Model
    part: str
    name: str
    about: str
    bytes: float
    flops: float
    shape: Mapping[str, Any]


class Choice:
    """Heads of which no two that are taken together are near twins; `group` may be left out of what is compared."""

    def __init__(self, heads: Iterable[Heads], *, grouped: bool = True) -> None:
        first: dict[tuple[int, ...], Heads] = {}
        for one in heads:
            first.setdefault((one.kv_heads, one.group, one.dim) if grouped else (one.kv_heads, one.dim), one)
        self.heads = tuple(first.values())
        self.twins = [{place for place, two in enumerate(first) if near(one, two)} for one in first]

    def taken(self, number: int) -> Iterator[Heads]:
        """The first, then each that is no near twin of those before, beginning somewhere else for each `number`: so
        that other models are taken for other lengths.
        """
        count, kept = len(self.heads), set[int]()
        for step in range(count):
            place = (step + 17 * number) % count
            if kept.isdisjoint(self.twins[place]):
                kept.add(place)
                yield self.heads[place]


def near(one: Sequence[int], two: Sequence[int]) -> bool:
    """Whether all numbers lie within `APART` of each other."""
    return all(a <= APART * b and b <= APART * a for a, b in zip(one, two, strict=True))


def shards(model: Decoder) -> Iterator[Heads]:
    """The tensor-parallel shards that models of this width are run in."""
    least = 4 if model.hidden >= 12288 else 2 if model.hidden >= 8192 else 1
    most = 8 if model.hidden >= 5120 else 4 if model.hidden >= 4096 else 2 if model.hidden >= 2048 else 1
    for tp in (1, 2, 4, 8):
        whole = model.kv_heads % tp == 0 or tp % model.kv_heads == 0
        if least <= tp <= most and whole and model.heads % tp == 0:
            kv_heads = max(1, model.kv_heads // tp)
            yield Heads(model, tp, kv_heads, model.heads // tp // kv_heads, model.head)


def own(model: Decoder) -> str:
    """The dtype that a model is run in."""
    return "float16" if model.key.startswith(_HALF) else "bfloat16"


def words(one: Heads) -> str:
    """Heads as a person would say them."""
    heads = "1 head" if one.kv_heads == 1 else f"{one.kv_heads} heads"
    grouped = f"{one.kv_heads} key-value head{'s' if one.kv_heads > 1 else ''} with {one.group} queries each"
    shard = f", 1 of {one.tp} tensor-parallel shards" if one.tp > 1 else ""
    return (heads if one.group == 1 else grouped) + shard


def sequences(batch: int, tokens: int) -> str:
    """For example `8 sequences of 2048 tokens`."""
    return f"{batch} sequence{'s' if batch > 1 else ''} of {tokens} tokens"


def listed(operator: str, build: Callable[..., Program], entries: Iterable[Entry]) -> Iterator[Block]:
    """The blocks of one operator, in order; a case that is too large, or was listed before, is left out."""
    seen: set[tuple[Any, ...]] = set()
    parts: dict[str, tuple[Model, list[Case]]] = {}
    for entry in entries:
        values = tuple(entry.shape.values())
        if values in seen or entry.bytes > MOST_BYTES or entry.flops > MOST_FLOPS:
            continue
        seen.add(values)
        parts.setdefault(entry.part, (entry.model, []))[1].append(Case(entry.name, entry.about, entry.shape))
    for part, (model, cases) in parts.items():
        for start in range(0, len(cases), MOST_CASES):
            number = f"-{start // MOST_CASES + 1}" if len(cases) > MOST_CASES else ""
            yield block("attention", operator, model, part + number, build, *cases[start : start + MOST_CASES])
