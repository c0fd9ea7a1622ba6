"""The rule sets that are written down are TVM's own."""

from typing import Any

import pytest

from littledragon.compiler import rules, targets
from littledragon.schemas import tsel
from littledragon.schemas.graph import Postproc

CUDA = targets.target("cuda")
LLVM = targets.target("llvm")


def test_every_known_set_has_a_version_and_a_list() -> None:
    assert set(rules.POSTPROCS) == set(tsel.RULES)
    for name in rules.POSTPROCS:
        assert rules.postproc_of(name).version == tsel.RULES[name] >= 1
        assert rules.kind_of(name) in ("cuda", "llvm")


@pytest.mark.parametrize("name", sorted(rules.POSTPROCS))
def test_the_lists_are_those_of_tvm(name: str) -> None:
    """Where this fails, texts that leave post-processing out mean something else: raise the set's version."""
    from tvm.s_tir import meta_schedule as ms

    found = tuple(type(processor).__name__ for processor in ms.Postproc.create(name))
    assert found == rules.POSTPROCS[name]


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (CUDA, "cuda-tensorcore"),
        ({**CUDA, "arch": "sm_90a"}, "cuda-tensorcore"),
        ({**CUDA, "arch": "sm_75"}, "cuda-tensorcore"),
        ({**CUDA, "arch": "sm_72"}, "cuda"),
        ({"kind": "cuda"}, "cuda"),
        (LLVM, "llvm"),
        ({"kind": "llvm", "mcpu": "cascadelake"}, None),
        ({"kind": "llvm", "mattr": ["+avx512vnni"]}, None),
        ({"kind": "hexagon"}, None),
    ],
)
def test_the_set_of_a_target(target: dict[str, Any], wanted: str | None) -> None:
    assert rules.rules_of(target) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", [CUDA, {**CUDA, "arch": "sm_90a"}, {**CUDA, "arch": "sm_75"}, {**CUDA, "arch": "sm_72"}, LLVM]
)
def test_the_set_of_a_target_is_the_one_that_tvm_takes(call: Any, target: dict[str, Any]) -> None:
    wanted = rules.rules_of(target)
    assert wanted is not None
    assert tuple(call("probe.schedules:processors", target=target)) == rules.POSTPROCS[wanted]


def test_a_set_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="llvm version 99 is not known here"):
        rules.processors(Postproc("llvm", 99), None, LLVM)
    with pytest.raises(ValueError, match="hexagon version 1 is not known here"):
        rules.processors(Postproc("hexagon", 1), None, LLVM)


@pytest.mark.parametrize(
    ("name", "target", "wanted"),
    [
        ("llvm", LLVM, "llvm"),
        ("cuda", CUDA, "cuda"),
        ("cuda-local", CUDA, "cuda-tensorcore"),
        ("cuda-local", {**CUDA, "arch": "sm_72"}, "cuda"),
    ],
)
def test_space_of_a_set_ends_in_post_processors_that_are_recorded(
    name: str, target: dict[str, Any], wanted: str
) -> None:
    generator = rules.generator(name, target)
    assert tuple(type(processor).__name__ for processor in generator.postprocs) == rules.POSTPROCS[wanted]


def test_local_rules_are_those_of_tvm_but_for_the_guards() -> None:
    """Where TVM's list of cuda rules changes, ours should be looked at again."""
    from tvm.s_tir import meta_schedule as ms

    stock = [type(rule).__name__ for rule in ms.ScheduleRule.create("cuda")]
    own = [type(rule).__name__ for rule in rules.generator("cuda-local", CUDA).sch_rules]
    guarded = {"MultiLevelTiling", "CrossThreadReduction"}
    assert [name for name in stock if name not in guarded and name != "ApplyCustomRule"] == [
        name for name in own if name != "_PyScheduleRule"
    ]
    assert own.count("_PyScheduleRule") == len(guarded & set(stock))


@pytest.mark.parametrize(("name", "target"), [("cuda", LLVM), ("cuda-local", LLVM), ("llvm", CUDA), ("bind", CUDA)])
def test_a_set_for_another_target_has_no_space(name: str, target: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"there are no rules '{name}' for {target['kind']} targets"):
        rules.generator(name, target)
