"""Rule sets of MetaSchedule: what a search may do to a program, and the post-processing that a text may leave out.

A rule set has schedule rules, which span the design space, and post-processors: what TVM runs on a schedule, in this
order, once it has crossed the boundary. They draw nothing at random, so their part of a trace follows from M0, the
steps before it and the target. The lists are written down, with a version of ours in `schemas.tsel.RULES`: where
TVM's own list changes, a text would mean something else, and the version must go up.

TVM's sets are `llvm`, `cuda` and `cuda-tensorcore`. `cuda-local` is ours, for what TVM's tiling through shared memory
fails on, or all but fails on: a reduction of which an operand is read at loaded indices (grouped products, embedding
bags, paged caches), reductions that wait for one another (variance), tilings of which too few are legal (many axes,
long reductions in float32), large element-wise programs. Its post-processors are those of TVM's set for the target,
so a text derives them as any other.
"""

import contextlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

from littledragon.schemas import tsel
from littledragon.schemas.graph import Postproc

PLAIN_CPUS: Final = ("", "generic", "x86-64", "x86-64-v2", "x86-64-v3")
"""CPUs for which TVM's rules use no tensor intrinsics."""
LOCAL: Final = "cuda-local"
"""Our rule set for cuda targets."""
_CUDA: Final = (
    "DisallowDynamicLoop",
    "RewriteCooperativeFetch",
    "RewriteUnboundBlock",
    "RewriteParallelVectorizeUnroll",
    "RewriteReductionBlock",
    "VerifyGPUCode",
)
POSTPROCS: Final[Mapping[str, tuple[str, ...]]] = {
    "llvm": ("DisallowDynamicLoop", "RewriteParallelVectorizeUnroll", "RewriteReductionBlock", "RewriteLayout"),
    "cuda": _CUDA,
    "cuda-tensorcore": (*_CUDA, "RewriteTensorize"),
}
"""Post-processors of each set, in order, for the version that `schemas.tsel.RULES` holds (TVM 0.25,
src/s_tir/meta_schedule/postproc/postproc.cc). TVM's sets for Hexagon and for CPUs with VNNI, AVX-512, RISC-V vectors
or Arm dot products are left out: no target of ours meets them."""


def rules_of(target: dict[str, Any]) -> str | None:
    """The rule set that MetaSchedule takes for a target; None where it is none of `POSTPROCS`.

    As TVM 0.25 chooses it (src/s_tir/meta_schedule/space_generator/space_generator.cc, GetRuleKindFromTarget).
    """
    if target["kind"] == "cuda":
        digits = str(target.get("arch", "")).removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz")
        return "cuda-tensorcore" if digits.isdecimal() and int(digits) >= 75 else "cuda"
    if target["kind"] == "llvm" and target.get("mcpu", "") in PLAIN_CPUS and not target.get("mattr"):
        return "llvm"
    return None


def kind_of(rules: str) -> str:
    """The kind of target that a rule set is for: llvm or cuda."""
    return rules.partition("-")[0]


def postproc_of(rules: str) -> Postproc:
    """A reference to this rule set in the version that is known here."""
    return Postproc(rules, tsel.RULES[rules])


def processors(postproc: Postproc, module: Any, target: dict[str, Any]) -> list[Any]:
    """TVM's post-processors of a rule set, ready for schedules of this IRModule. Where tensor intrinsics are
    annotated, `compiler.intrinsics` must have been imported. Runs in a child.

    Raises:
        ValueError: the rule set or its version is not known, or TVM's list is not the one that is recorded.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    if tsel.RULES.get(postproc.rules) != postproc.version:
        raise ValueError(f"post-processing by {postproc.rules} version {postproc.version} is not known here")
    found = list(ms.Postproc.create(postproc.rules))
    names = tuple(type(processor).__name__ for processor in found)
    if names != POSTPROCS[postproc.rules]:
        raise ValueError(f"TVM's post-processors of {postproc.rules} are other ones than those recorded: {names}")
    with intrinsics_where_needed(target):
        context = ms.TuneContext(module, target=tvm.target.Target(target), num_threads=1)
    for processor in found:
        processor._initialize_with_tune_context(context)
    return found


def generator(rules: str, target: dict[str, Any]) -> Any:
    """The space generator of a rule set: its schedule rules, post-processors and mutators, applied in post-order.

    Runs in a child. The tensor intrinsics must have been imported for `cuda-tensorcore`.

    Raises:
        ValueError: there is no such set, or it is not for this target.
    """
    from tvm.s_tir import meta_schedule as ms

    if rules not in (*POSTPROCS, LOCAL) or kind_of(rules) != target["kind"]:
        raise ValueError(f"there are no rules '{rules}' for {target['kind']} targets")
    own = rules_of(target) if rules == LOCAL else rules
    if own is None:
        raise ValueError(f"no post-processors are known for the target {target}")
    return ms.space_generator.PostOrderApply(
        sch_rules=_local(target) if rules == LOCAL else ms.ScheduleRule.create(rules),
        postprocs=ms.Postproc.create(own),
        mutator_probs=_mutators() if rules == LOCAL else ms.Mutator.create(rules),
    )


def _local(target: dict[str, Any]) -> list[Any]:
    """The schedule rules of `cuda-local`: TVM's for cuda, with its own parameters but for these.

    Tiling keeps its levels of threads, and the tile of the result in registers, and reads its operands where they
    are: nothing goes through shared memory. It is a choice, so each tiled block also gives the space in which it is
    only bound to threads. A rule that raises an error on a block leaves that block as it is. And what is only bound
    may take any number of blocks.
    """
    from tvm.s_tir.meta_schedule import schedule_rule as rule

    tiling = rule.MultiLevelTiling(
        structure="SSSRRSRS",
        tile_binds=["blockIdx.x", "vthread.x", "threadIdx.x"],
        max_innermost_factor=64,
        vector_load_lens=None,
        reuse_read=None,
        reuse_write=rule.ReuseType(req="must", levels=[3], scope="local"),
    )
    # Where a GPU can copy asynchronously, TVM's tiling takes the copies to shared memory for granted.
    return [
        _lenient(tiling, {**target, "arch": "sm_75"}, keep=True),
        rule.InlineConstantScalars(),
        rule.AutoInline(
            into_producer=True,
            into_consumer=True,
            inline_const_tensor=True,
            disallow_if_then_else=False,
            require_injective=False,
            require_ordered=False,
        ),
        _lenient(rule.CrossThreadReduction([4, 8, 16, 32, 64, 128, 256, 512]), target, keep=False),
        rule.ParallelizeVectorizeUnroll(
            max_jobs_per_core=-1, max_vectorize_extent=-1, unroll_max_steps=[0, 16, 64, 512, 1024]
        ),
        # TVM's own, of 256 blocks, has one way to bind more than 256 x 1024 points: this has one for each number here.
        rule.AutoBind(max_threadblocks=1 << 20, thread_extents=[32, 64, 128, 256, 512, 1024]),
    ]


def _lenient(rule: Any, target: dict[str, Any], *, keep: bool) -> Any:
    """A schedule rule, made for a target, that leaves a block as it is where the rule in it raises an error.

    keep: whether the block as it is stays in the space where the rule has changed it.
    """
    import tvm
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.schedule_rule import PyScheduleRule

    class Lenient(PyScheduleRule):  # type: ignore[misc]
        def _initialize_with_tune_context(self, context: Any) -> None:
            self.context = ms.TuneContext(context.mod, target=tvm.target.Target(target), num_threads=1)
            rule._initialize_with_tune_context(self.context)

        def apply(self, schedule: Any, block: Any) -> list[Any]:
            steps = len(schedule.trace.insts)
            try:
                found = list(rule.apply(schedule.copy(), block))
            except Exception:  # TVM raises whatever its primitives raise
                return [schedule]
            changed = any(len(other.trace.insts) > steps for other in found)
            return [*found, schedule] if keep and changed else found

        def clone(self) -> Any:
            return _lenient(rule.clone(), target, keep=keep)

    return derived_object(Lenient)()


def _mutators() -> dict[Any, float]:
    """Mutators of `cuda-local`, with their probabilities: a space may have no tiles, so the others get their turn."""
    from tvm.s_tir.meta_schedule import mutator

    return {mutator.MutateTileSize(): 0.6, mutator.MutateUnroll(): 0.2, mutator.MutateThreadBinding(): 0.2}


@contextlib.contextmanager
def intrinsics_where_needed(target: dict[str, Any]) -> Iterator[None]:
    """TuneContext imports the tensor intrinsics of every target, though plain CPU rules use none: spare that."""
    name = "tvm.s_tir.tensor_intrin"
    if target["kind"] != "llvm" or target.get("mcpu", "") not in PLAIN_CPUS:
        import littledragon.compiler.intrinsics  # noqa: F401
    if name in sys.modules:
        yield
        return
    sys.modules[name] = types.ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]
