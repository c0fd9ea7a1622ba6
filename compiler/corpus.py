"""Traces made on the spot, to measure the codec on: random members of MetaSchedule's design spaces, and by-hand ones.

A workload is a zoo block, or one of a few products in half precision that tensor cores take, with extents changed to
multiples of 11, 13, 17, 19 and 23. Its design space is MetaSchedule's own for a rule set. A member of it is the
space's trace applied anew without decisions, so that every tile, category and location is drawn again; it gives one
trace before post-processing and one after. The same seed gives the same traces.
"""

import dataclasses
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from littledragon.compiler import by_hand, lowering, targets
from littledragon.compiler.zoo import FAMILIES, Family, demo
from littledragon.compiler.zoo.block import export

RULES: Final[dict[str, str]] = {"cuda": "cuda", "cuda-tensorcore": "cuda", "llvm": "llvm"}
"""Rule sets of MetaSchedule, each with the name of its target."""
BY_HAND: Final = "by hand"
"""The family, and the rule set, of schedules that are written by hand."""
PRIMES: Final = (11, 13, 17, 19, 23)
TRIES: Final = 12
"""Draws for each member that is wanted, at most: most random tilings of a product ask too much of a GPU."""
_FIXED: Final = frozenset({"kernel", "stride", "padding", "clip", "patch", "page", "group", "groups", "top", "rope"})
"""Shape parameters that are not extents, or that others must be multiples of."""
_STEPS: Final[dict[str, dict[str, int]]] = {
    "w4a16_matmul": {"k": 128},
    "patch_embedding": {"size": 16},
    "group_norm_silu": {"channels": 32},
    "paged_scores": {"tokens": 16},
    "norm_rotary": {"dim": 2},
}
"""What an extent must stay a multiple of, by operator."""

Draw = Callable[[int], tuple[Any, Any]]
"""From a seed, a schedule before post-processing, and its post-processors; raises what TVM raises."""


@dataclass(frozen=True)
class Shot:
    """A schedule's trace at one moment: as `save_json`, as TVM prints it, its kinds, and the module built by then."""

    trace: str
    python: str
    kinds: tuple[str, ...]
    module: Any


@dataclass(frozen=True)
class Member:
    """One member of a design space: M0, and its trace before and after post-processing."""

    start: Any
    before: Shot
    after: Shot


@dataclass(frozen=True)
class Source:
    """What traces are made of: a demonstration block with its one configuration, or one of no published model."""

    id: str
    family: Family
    operator: str
    build: Callable[..., Any]
    shape: Mapping[str, Any]


def blocks(family: str) -> tuple[Source, ...]:
    """What the workloads of a family are made of. TVM is not imported.

    Raises:
        KeyError: there is no such family.
    """
    found = _HAND if family == BY_HAND else tuple(b for b in (*_DEMO, *_HALF) if b.family == family)
    if not found:
        raise KeyError(family)
    return found


def cells() -> list[tuple[str, str]]:
    """Every family with every rule set, and the schedules by hand."""
    return [*((family, rules) for family in FAMILIES for rules in RULES), (BY_HAND, BY_HAND)]


def variant(block: Source, number: int, seed: int) -> Source:
    """The block with other extents: variant 0 is the block itself, each other one has at least one awkward extent."""
    names = [name for name, value in block.shape.items() if name not in _FIXED and value >= 4]
    if number == 0 or not names:
        return block
    chance = random.Random(f"{seed}:{block.id}:{number}")
    always = chance.choice(names)
    shape = dict(block.shape)
    for name in names:
        if name == always or chance.random() < 0.6:
            unit = chance.choice(PRIMES) * _STEPS.get(block.operator, {}).get(name, 1)
            shape[name] = unit * max(1, round(shape[name] * chance.choice((0.5, 1, 1)) / unit))
    return dataclasses.replace(block, shape=shape)


def members(block: Source, rules: str, seed: int, count: int, refused: Counter[str]) -> Iterator[Member]:
    """Up to `count` different members of the design spaces of a block's tasks, by turns. For a child process.

    refused: counts, by reason, what gave no member: blocks that cannot be lowered, tasks without a space, draws that
        TVM refuses, and draws that came before.
    """
    draws = _by_hand(block) if rules == BY_HAND else _spaces(block, rules, seed, refused)
    known: set[str] = set()
    for number in range(TRIES * count if draws else 0):
        if len(known) == count:
            return
        start, draw = draws[number % len(draws)]
        try:
            member = _member(start, draw, _state(seed, block, rules, number))
        except _RefusedError as error:
            refused[str(error)] += 1
            continue
        if member.after.trace in known:
            refused["drawn before"] += 1
            continue
        known.add(member.after.trace)
        yield member


def shot(schedule: Any) -> Shot:
    """The trace of a schedule at this moment."""
    import tvm

    trace = schedule.trace
    kinds = tuple(str(instruction.kind.name) for instruction in trace.insts)
    return Shot(str(tvm.ir.save_json(trace.as_json())), str(trace), kinds, schedule.mod)


def reason(error: Exception) -> str:
    """An error of TVM in a few words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("Error message:")), lines[-1] if lines else "")
    return f"{type(error).__name__}: {said.removeprefix('Error message:').strip()[:80]}"


class _RefusedError(Exception):
    """A draw that is not legal. The text says why."""


def _state(seed: int, block: Source, *parts: str | int) -> int:
    """A seed for TVM, from 1 to 2²⁸."""
    words = ":".join(map(str, (seed, block.id, sorted(block.shape.items()), *parts)))
    return int(hashlib.sha256(words.encode()).hexdigest()[:7], 16) + 1


def _member(start: Any, draw: Draw, state: int) -> Member:
    """One draw, before and after post-processing."""
    import tvm

    try:
        schedule, postprocs = draw(state)
    except Exception as error:  # TVM raises whatever its primitives raise
        raise _RefusedError(f"draw: {reason(error)}") from None
    before = shot(schedule)
    # Going on with a schedule may change modules that were taken from it before: TVM copies on write, but not always.
    built = tvm.ir.save_json(before.module)
    schedule.enter_postproc()
    for processor in postprocs:
        name = type(processor).__name__
        try:
            passed = processor.apply(schedule)
        except Exception as error:
            raise _RefusedError(f"{name}: {reason(error)}") from None
        if not passed:
            raise _RefusedError(name)
    return Member(start, dataclasses.replace(before, module=tvm.ir.load_json(built)), shot(schedule))


def _spaces(block: Source, rules: str, seed: int, refused: Counter[str]) -> list[tuple[Any, Draw]]:
    """The design spaces of a block's tasks, each with its M0."""
    target = targets.target(RULES[rules])
    try:
        tasks = lowering.modules(block.build(**block.shape), target)
    except Exception as error:
        refused[f"lowering: {reason(error)}"] += 1
        return []
    found = []
    for name in sorted(tasks):
        module = tasks[name]
        try:
            spaces, postprocs = _space(module, target, rules, _state(seed, block, rules, name))
        except Exception as error:
            refused[f"space: {reason(error)}"] += 1
            continue
        found.append([(module, partial(_draw, module, space.trace, postprocs)) for space in spaces])
    # By turns over the tasks, so that the first few draws see each of them.
    return [spaces[i] for i in range(max(map(len, found), default=0)) for spaces in found if i < len(spaces)]


def _space(module: Any, target: dict[str, Any], rules: str, state: int) -> tuple[list[Any], Any]:
    """The design space of one module, and the post-processors of its rule set."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from littledragon.compiler.proposals import _quiet

    if rules == "cuda-tensorcore":
        import littledragon.compiler.intrinsics  # noqa: F401 - its rules look the intrinsics up when they are made
    generator = ms.space_generator.PostOrderApply(
        sch_rules=ms.ScheduleRule.create(rules), postprocs=ms.Postproc.create(rules), mutator_probs={}
    )
    context = ms.TuneContext(
        module,
        target=tvm.target.Target(target),
        space_generator=generator,
        rand_state=state,
        num_threads=1,
        logger=_quiet(),
    )
    return list(context.generate_design_space()), context.space_generator.postprocs


def _draw(module: Any, trace: Any, postprocs: Any, state: int) -> tuple[Any, Any]:
    from tvm.s_tir import Schedule, Trace

    schedule = Schedule(module, seed=state)
    Trace(trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)  # no decisions: they are drawn
    return schedule, postprocs


def _by_hand(block: Source) -> list[tuple[Any, Draw]]:
    """The one draw of a schedule that is written by hand."""
    module = block.build(**block.shape)
    return [(module, partial(by_hand.draw, module, by_hand.STEPS[block.id.split("/")[1]]))]


def _conv_nhwc(size: int, channels: int, filters: int, kernel: int) -> Any:
    """Y = conv2d(X, W), channels last, float16 with float32 accumulation: a product after im2col."""
    from tvm import topi
    from tvm.relax.frontend.nn import op

    def compute(x: Any, w: Any) -> Any:
        return topi.nn.conv2d_nhwc(x, w, 1, kernel // 2, 1, "float32")

    def forward(x: Any, w: Any) -> Any:
        return op.tensor_expr_op(compute, "conv2d_nhwc", [x, w])

    return export(forward, x=((1, size, size, channels), "float16"), w=((kernel, kernel, channels, filters), "float16"))


def _expert_products(experts: int, rows: int, n: int, k: int) -> Any:
    """Y[e] = X[e]·W[e]ᵀ in float16 with float32 accumulation."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any) -> Any:
        return op.matmul(x, op.permute_dims(w, [0, 2, 1]), out_dtype="float32")

    return export(forward, x=((experts, rows, k), "float16"), w=((experts, n, k), "float16"))


def _gram(rows: int, columns: int) -> Any:
    """G = Xᵀ·Y / rows, float16 with float32 accumulation: second moments of columns, a reduction over rows."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, y: Any) -> Any:
        return op.matmul(op.permute_dims(x, [1, 0]), y, out_dtype="float32") * (1.0 / rows)

    return export(forward, x=((rows, columns), "float16"), y=((rows, columns), "float16"))


def _made(family: Family, operator: str, build: Callable[..., Any], **shape: int) -> Source:
    """A block that is of no published model."""
    id = f"{family}/{operator}/made"
    return Source(id, family, operator, build, shape)


_DEMO: Final = tuple(Source(b.id, b.family, b.operator, b.build, b.cases[0].shape) for b in demo.BLOCKS)
_HALF: Final = (
    _made("vision", "conv_nhwc", _conv_nhwc, size=28, channels=64, filters=64, kernel=3),
    _made("vision", "conv1x1_nhwc", _conv_nhwc, size=14, channels=128, filters=64, kernel=1),
    _made("moe", "expert_products", _expert_products, experts=4, rows=32, n=128, k=256),
    _made("norm_reduction", "gram", _gram, rows=512, columns=64),
)
_HAND: Final = tuple(
    dataclasses.replace(_made("gemm", BY_HAND, by_hand.product, m=64, n=96, k=128), id=f"{BY_HAND}/{name}")
    for name in by_hand.STEPS
)
