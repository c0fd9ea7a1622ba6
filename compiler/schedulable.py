"""Whether MetaSchedule finds schedules for a workload, and by which rule set: predicted from F(M0), and proved.

A workload is schedulable where a rule set of its target gives at least `LEAST` different candidates.
"""

import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from littledragon.compiler.rules import LOCAL, rules_of

Json = Mapping[str, Any]

LEAST: Final = 2
"""Candidates that make a workload schedulable."""
MOST_BOUND: Final = 256 * 1024
"""Iterations of an element-wise block that TVM's rules bind in ways to choose from; more of them in one way."""
LEAST_CHANCE: Final = 0.01
"""Where a random tiling is legal less often than this, TVM's tiling through shared memory is not searched."""
TENSOR_CHANCE: Final = 0.15
"""How often a random tiling for tensor cores is legal, about."""
SAMPLES: Final = 1024
"""Tilings by which it is judged how often one is legal."""

_NAMES: Final = re.compile(r"[A-Za-z_]\w*")
_TERM: Final = re.compile(r"([A-Za-z_]\w*)((?: (?:\*|//) \d+)*)")
_WRAPPED: Final = re.compile(r"%|\b(min|max|if_then_else|Select)\(")
_VECTORS: Final = (1, 2, 3, 4, 8, 16)
"""Elements that TVM's rules load at once into shared memory, one of these for each operand; at most 16 bytes."""


@dataclass(frozen=True)
class Prediction:
    """The rule set that schedules a workload on a target; or None, and why."""

    rules: str | None
    reason: str | None


def predict(features: Json, target: Mapping[str, Any]) -> Prediction:
    """Which rule set gives at least two different candidates for a workload, judged by F(M0) alone. TVM is not needed.

    The rule, in order:

    1. A target for which no rule set is known (`rules.rules_of`): None.
    2. A program without a block that has a loop, or with a loop whose extent is not constant: None; nothing can be
       split or bound.
    3. llvm: `llvm`; None where no block reduces, which TVM's rules schedule in one way.
    4. cuda, a *tiled* block reads at loaded indices: `cuda-local`. TVM's tiling copies what a tile reads to shared
       memory, and cannot bound a region that depends on data.
    5. cuda, a reduction feeds one block alone (through element-wise blocks that are inlined), and that block is a
       reduction: `cuda-local`. TVM's cross-thread reduction puts the first into the loops of the second, which then
       are no chain that it could fuse.
    6. cuda, no block reduces, and each block that is left once those that others read are inlined has more than
       262,144 iterations: `cuda-local`. TVM's rules have one way to bind such a block.
    7. cuda, random tilings of the tiled blocks are legal less often than 1%: `cuda-local`. For each block 1,024
       tilings are drawn as TVM draws them, always the same ones: the exponent of each prime factor of an extent is
       cut at random into five parts (three where the axis reduces), the innermost at most 64. One is legal with at
       most 8 virtual threads, 32 to 1,024 threads, and operands whose tiles fit in shared memory (48 KiB); then the
       share of vector lengths of at most 16 bytes counts, and the chances of several blocks multiply. For products
       that tensor cores take the chance is set to 15%.
    8. cuda, a convolution for tensor cores gives one position of one image: `cuda-local`. TVM's rules find no layout.
    9. cuda, all else: TVM's set for the target.

    A block is tiled (TVM's NeedsMultiLevelTiling) where it reduces, writes one buffer, is bound to its loops as they
    are, and reads some buffer at indices that leave out a spatial iterator of more than one point.

    Args:
        features: F(M0), see `schemas.features`.
        target: the TVM target.
    """
    stock = rules_of(dict(target))
    if stock is None:
        return Prediction(None, f"no rule set is known for the target {target['kind']}")
    blocks: Sequence[Json] = features["blocks"]
    if any(loop["extent"] is None for loop in features["loops"]):
        return Prediction(None, "a loop's extent is not constant")
    if not any(block["loops"] for block in blocks):
        return Prediction(None, "no block has a loop")
    if target["kind"] != "cuda":
        if not any(map(_reduces, blocks)):
            return Prediction(None, "no block reduces: the rules have one schedule for it")
        return Prediction(stock, None)
    loops = {loop["index"]: loop["name"] for loop in features["loops"]}
    if not any(map(_reduces, blocks)) and min(_points_left(blocks), default=0) > MOST_BOUND:
        return Prediction(LOCAL, None)
    tiled = [block for block in blocks if _tiled(block, loops)]
    if any(read["indirect"] for block in tiled for read in block["reads"]) or _chained(blocks):
        return Prediction(LOCAL, None)
    buffers = {buffer["name"]: buffer for buffer in features["buffers"]}
    chance = 1.0
    for block in tiled:
        wmma = stock == "cuda-tensorcore" and _tensor_product(block, buffers)
        if wmma and _one_position(block):
            return Prediction(LOCAL, None)
        chance *= TENSOR_CHANCE if wmma else _chance(block, buffers, target)
    return Prediction(stock if chance >= LEAST_CHANCE else LOCAL, None)


def _points_left(blocks: Sequence[Json]) -> list[int]:
    """Iterations of each block that is left once those that others read are inlined."""
    read = {name for block in blocks for name in block["producers"]}
    return [block["iterations"] for block in blocks if block["name"] not in read]


def _reduces(block: Json) -> bool:
    return any(axis["kind"] == "reduce" for axis in block["iterators"])


def _tiled(block: Json, loops: Mapping[int, str]) -> bool:
    """Whether TVM's multi-level tiling takes a block."""
    if not _reduces(block) or len(block["writes"]) != 1 or not block["reads"]:
        return False
    names = {loops[index] for index in block["loops"]}
    if any(axis["binding"] not in names and axis["extent"] != 1 for axis in block["iterators"]):
        return False
    spatial = {axis["name"] for axis in block["iterators"] if axis["kind"] == "spatial" and axis["extent"] != 1}
    return any(spatial - _used(read) for read in block["reads"])


def _used(read: Json) -> set[str]:
    """Names in the indices of a read."""
    return {name for index in read["indices"] for name in _NAMES.findall(index)}


def _chained(blocks: Sequence[Json]) -> bool:
    """Whether a reduction feeds one block alone, which is a reduction, element-wise blocks between them left out."""
    consumers: dict[str, list[str]] = {block["name"]: [] for block in blocks}
    for block in blocks:
        for producer in block["producers"]:
            consumers[producer].append(block["name"])
    reductions = {block["name"] for block in blocks if _reduces(block)}
    for reduction in reductions:
        ends: set[str] = set()
        seen, rest = {reduction}, list(consumers[reduction])
        while rest:
            name = rest.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in reductions or not consumers[name]:
                ends.add(name)
            else:
                rest += consumers[name]
        if len(ends) == 1 and ends <= reductions:
            return True
    return False


def _tensor_product(block: Json, buffers: Mapping[str, Json]) -> bool:
    """Whether tensor cores take a block: a sum of products of two float16 or int8 operands, each with a spatial
    iterator of its own, and with a reduced one in common."""
    if [buffers[read["buffer"]]["dtype"] for read in block["reads"]] not in (["float16"] * 2, ["int8"] * 2):
        return False
    if not {"add", "mul"} <= set(block["operators"]) <= {"add", "mul", "cast float16", "cast float32", "cast int32"}:
        return False
    left, right = (_used(read) for read in block["reads"])
    spatial = {axis["name"] for axis in block["iterators"] if axis["kind"] == "spatial"}
    reduced = {axis["name"] for axis in block["iterators"] if axis["kind"] == "reduce"}
    return bool((left - right) & spatial and (right - left) & spatial and left & right & reduced)


def _one_position(block: Json) -> bool:
    """Whether a product is a convolution that gives one position of one image."""
    extents = {axis["name"]: axis["extent"] for axis in block["iterators"] if axis["kind"] == "spatial"}
    left, right = (_used(read) & set(extents) for read in block["reads"])
    shifted = any(" + " in index for index in block["reads"][0]["indices"])
    return shifted and all(extents[name] == 1 for name in left - right)


def _chance(block: Json, buffers: Mapping[str, Json], target: Mapping[str, Any]) -> float:
    """How often a random tiling of a tiled block, as TVM draws it, is legal for a GPU."""
    import numpy as np

    virtual = threads = np.ones(SAMPLES)
    sizes: dict[str, Any] = {}
    for place, axis in enumerate(block["iterators"]):
        tiles = _tiles(axis["extent"], 5 if axis["kind"] == "spatial" else 3, place)
        sizes[axis["name"]] = tiles[1:].prod(axis=0)
        if axis["kind"] == "spatial":
            virtual, threads = virtual * tiles[1], threads * tiles[2]
    held, vectors = np.zeros(SAMPLES), 1.0
    for read in block["reads"]:
        buffer = buffers[read["buffer"]]
        width = _width(buffer["dtype"])
        spans = (_span(*dimension, sizes) for dimension in zip(read["indices"], buffer["shape"], strict=False))
        held += width * math.prod(spans, start=np.ones(SAMPLES))
        vectors *= sum(length * width <= 16 for length in _VECTORS) / len(_VECTORS)
    legal = (virtual <= 8) & (threads >= target.get("thread_warp_size", 32))
    legal &= threads <= target.get("max_threads_per_block", 1024)
    return float((legal & (held <= target.get("max_shared_memory_per_block", 49152))).mean()) * vectors


def _span(index: str, dimension: int, sizes: Mapping[str, Any]) -> Any:
    """Elements along one dimension that a tile reads at this index, where the iterators take these sizes; all of them
    where TVM does not see how many."""
    if _WRAPPED.search(index):
        return dimension
    start, _, end = index.partition(":")
    length = re.search(r" \+ (\d+)$", end)
    span: Any = int(end) - int(start) if end.isdigit() and start.isdigit() else int(length[1]) if length else 1
    for name, scaled in _TERM.findall(start):
        if name in sizes:
            steps = sizes[name] - 1
            for sign, by in zip(*[iter(scaled.split())] * 2, strict=True):
                steps = steps * int(by) if sign == "*" else -(-steps // int(by))
            span = span + steps
    return span


def _width(dtype: str) -> int:
    """Bytes of an element, at least one."""
    digits = re.search(r"\d+", dtype)
    return max(1, int(digits.group()) // 8) if digits else 1


@cache
def _tiles(extent: int, parts: int, place: int) -> Any:
    """Tile factors of an extent, parts by samples, as TVM's SamplePerfectTile draws them; other ones for each place."""
    import numpy as np

    chance = random.Random(f"{extent}:{parts}:{place}")
    primes = _primes(extent)
    found = np.empty((parts, SAMPLES))
    for sample in range(SAMPLES):
        tile = _tile(primes, parts, chance)
        while tile[-1] > 64:
            tile = _tile(primes, parts, chance)
        found[:, sample] = tile
    return found


def _tile(primes: Mapping[int, int], parts: int, chance: random.Random) -> list[int]:
    """One tiling: each exponent is cut in parts, every way of cutting it as likely as any other."""
    tile = [1] * parts
    for prime, exponent in primes.items():
        part, bars = 0, parts - 1
        for left in range(exponent + parts - 1, 0, -1):  # stars and bars
            if chance.random() * left < bars:
                part, bars = part + 1, bars - 1
            else:
                tile[part] *= prime
    return tile


def _primes(extent: int) -> dict[int, int]:
    """Prime factors with their exponents."""
    found: dict[int, int] = {}
    prime = 2
    while extent > 1:
        if prime * prime > extent:
            prime = extent
        while extent % prime == 0:
            found[prime] = found.get(prime, 0) + 1
            extent //= prime
        prime += 1
    return found


def prove(
    module: str,
    target: dict[str, Any],
    rules: str,
    want: int = LEAST,
    seed: int = 0,
    prove_s: float = 120.0,
) -> dict[str, Any]:
    """How many different candidates random draws from the design space of a rule set give. Runs in a child.

    A candidate is what `proposals.propose` could propose: a schedule that has passed the post-processors (VerifyGPUCode
    among them), and is not M0. Nothing is built.

    Args:
        module: M0, as `tvm.ir.save_json`.
        target: the TVM target.
        rules: the rule set.
        want: draw until there are so many, at most `proposals.MOST_DRAWS` times.
        seed: of the draws.
        prove_s: no draw begins later than this.

    Returns:
        `rules`, `found` (different candidates), `spaces` (design spaces), `draws`, `seconds`, and `reason` (why
        there are fewer than were wanted, or None).

    Raises:
        ValueError: there is no such rule set, or it is not for this target.
    """
    import tvm

    from littledragon.compiler import proposals
    from littledragon.compiler.evolution import Search

    mod = tvm.ir.load_json(module)
    state = proposals.state_of(mod, seed, 0)
    context = proposals.tune_context(mod, target, rules, state)
    clock = time.monotonic()
    answer: dict[str, Any] = {"rules": rules, "found": 0, "spaces": 0, "draws": 0, "reason": None}
    try:
        spaces = list(context.generate_design_space())
    except Exception as error:  # TVM raises whatever its rules raise
        said = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        why = next((line for line in said if line.startswith("Error message:")), said[-1])
        answer["reason"] = f"no space: {type(error).__name__}: {why[:200]}"
        return answer | {"seconds": time.monotonic() - clock}
    answer["spaces"] = len(spaces)
    search = Search(context, spaces, target, state)
    known = {search.original}
    for member in search.drawn():
        answer["draws"] += 1
        if member is not None:
            known.add(member.key)
        late = time.monotonic() - clock > prove_s
        if len(known) > want or answer["draws"] == proposals.MOST_DRAWS or late:
            break
    answer["found"] = len(known) - 1
    if answer["found"] < want:
        answer["reason"] = f"{answer['found']} of {answer['draws']} draws gave a new candidate" + (
            ", late" if late else ""
        )
    return answer | {"seconds": time.monotonic() - clock}
