"""The rule sets of MetaSchedule whose post-processing a text may leave out, and what their post-processors do.

A rule set here is a list of post-processors: what TVM runs on a schedule, in this order, once it has crossed the
boundary. They draw nothing at random, so their part of a trace follows from M0, the steps before it and the target.
The lists are written down, with a version of ours in `schemas.tsel.RULES`: where TVM's own list changes, a text
would mean something else, and the version must go up.
"""

from collections.abc import Mapping
from typing import Any, Final

from littledragon.compiler.proposals import PLAIN_CPUS, intrinsics_where_needed
from littledragon.schemas import tsel
from littledragon.schemas.graph import Postproc

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
    annotated, `tvm.s_tir.tensor_intrin` must have been imported. Runs in a child.

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
