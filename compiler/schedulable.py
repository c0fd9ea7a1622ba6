"""Whether MetaSchedule finds schedules for a workload, and by which rule set: predicted from F(M0), and proved.

A workload is schedulable where a rule set of its target gives at least `LEAST` different candidates.
"""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from littledragon.compiler.rules import LOCAL, rules_of

Json = Mapping[str, Any]

LEAST: Final = 2
"""Candidates that make a workload schedulable."""
LEAST_CHANCE: Final = 0.02
"""Where fewer random tilings than this have a legal number of threads, TVM's tiling is not worth its search."""
MOST_BOUND: Final = 256 * 1024
"""Points of an element-wise block that TVM binds in ways to choose from; larger ones in one way."""
LARGEST_TILE: Final = 64
"""TVM's tiling cuts no innermost loop longer than this: a larger prime factor of an extent hardly fits anywhere."""
LARGEST_WINDOW: Final = 64
"""Elements of one operand that one output element reads around itself along the axes that it strides over."""

_NAMES: Final = re.compile(r"[A-Za-z_]\w*")
_SCALED: Final = re.compile(r"(\w+) \* (\d+)")


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
    3. llvm: `llvm`.
    4. cuda, a *tiled* block reads at loaded indices: `cuda-local`. TVM's tiling copies what a tile reads to shared
       memory, and cannot bound a region that depends on data.
    5. cuda, a reduction feeds one block alone (through element-wise blocks that are inlined), and that block is a
       reduction: `cuda-local`. TVM's cross-thread reduction puts the first into the loops of the second, which then
       are no chain that it could fuse.
    6. cuda, random tilings of a tiled block are hardly ever legal: `cuda-local`. That is so where an extent has a
       prime factor above 64; where a window of more than 64 elements of one operand goes with an output element;
       and where, of tilings that give each prime factor of the spatial extents to one of five loops at random, less
       than 2% have at most 8 virtual threads and 32 to 1,024 threads. Products that tensor cores take are exempt.
    7. cuda, all else: TVM's set for the target.

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
        return Prediction(stock, None)
    loops = {loop["index"]: loop["name"] for loop in features["loops"]}
    if not any(map(_reduces, blocks)) and min(_points_left(blocks), default=0) > MOST_BOUND:
        return Prediction(LOCAL, None)
    tiled = [block for block in blocks if _tiled(block, loops)]
    if any(read["indirect"] for block in tiled for read in block["reads"]) or _chained(blocks):
        return Prediction(LOCAL, None)
    dtypes = {buffer["name"]: buffer["dtype"] for buffer in features["buffers"]}
    for block in tiled:
        if not (stock == "cuda-tensorcore" and _tensor_product(block, dtypes)) and _hardly_legal(block):
            return Prediction(LOCAL, None)
    return Prediction(stock, None)


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


def _tensor_product(block: Json, dtypes: Mapping[str, str]) -> bool:
    """Whether tensor cores take a block: a product of float16 or int8 with each of its iterators in a read."""
    operands = [read for read in block["reads"] if dtypes[read["buffer"]] in ("float16", "int8")]
    return len(operands) == len(block["reads"]) == 2 and "mul" in block["operators"] and "add" in block["operators"]


def _hardly_legal(block: Json) -> bool:
    """Whether hardly a random tiling of a tiled block is legal for a GPU."""
    bits = 0.0
    for axis in block["iterators"]:
        extent = axis["extent"]
        for prime in (2, 3, 5, 7):
            while extent % prime == 0:
                extent //= prime
        if extent > LARGEST_TILE:
            return True
        bits += math.log2(axis["extent"]) if axis["kind"] == "spatial" else 0.0
    return (
        max(map(_stride, block["reads"])) > LARGEST_WINDOW or _CHANCE[min(round(bits), len(_CHANCE) - 1)] < LEAST_CHANCE
    )


def _stride(read: Json) -> int:
    """Elements by which an output element's neighbours are apart in what is read: the product over dimensions."""
    return math.prod(int(by) for index in read["indices"] if "+" in index for _, by in _SCALED.findall(index))


def _chance(bits: int) -> float:
    """Share of random tilings of 2^bits points, of which each factor of 2 goes to one of five loops, with at most 8
    virtual threads and 32 to 1,024 threads."""
    legal = sum(
        math.comb(bits, virtual) * math.comb(bits - virtual, threads) * 3 ** max(0, bits - virtual - threads)
        for virtual in range(4)
        for threads in range(5, 11)
        if virtual + threads <= bits
    )
    return float(legal / 5**bits)


_CHANCE: Final = tuple(map(_chance, range(64)))


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
    from tvm_ffi import structural_hash

    from littledragon.compiler import proposals

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
    known = {structural_hash(mod)}
    for schedule in proposals.drawn(context, spaces, state):
        answer["draws"] += 1
        if schedule is not None:
            known.add(structural_hash(schedule.mod))
        late = time.monotonic() - clock > prove_s
        if len(known) > want or answer["draws"] == proposals.MOST_DRAWS or late:
            break
    answer["found"] = len(known) - 1
    if answer["found"] < want:
        answer["reason"] = f"{answer['found']} of {answer['draws']} draws gave a new candidate" + (
            ", late" if late else ""
        )
    return answer | {"seconds": time.monotonic() - clock}
