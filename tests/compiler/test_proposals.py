"""Rounds of the search on small real workloads, in a child, as the stage asks for them."""

from pathlib import Path
from typing import Any

import pytest

from littledragon.compiler import children, targets
from littledragon.schemas import tsel

TARGET = targets.target("llvm")
CUDA = targets.target("cuda")
Call = Any


@pytest.fixture(scope="module")
def matmul(call: Call) -> Any:
    return call("probe.modules:matmul", m=32, n=32, k=32, dtype="float16", accumulate="float32")


def propose(call: Call, workload: Any, **changed: Any) -> Any:
    wanted = {"target": TARGET, "rules": "llvm", "records": [], "count": 6, "seed": 3, "round": 0, "population": 24}
    return call("compiler.proposals:propose", module=workload["module"], **wanted | changed)


def test_first_round_proposes_distinct_canonical_traces_without_a_score(call: Call, matmul: Any) -> None:
    found = propose(call, matmul)
    assert len({row["trace"] for row in found}) == len(found) == 6
    assert {row["source"] for row in found} == {"random"}
    assert {row["score"] for row in found} == {None}
    assert all(tsel.canonical(row["trace"]) == row["trace"] for row in found)


def test_same_records_and_seed_propose_the_same_and_another_seed_does_not(call: Call, matmul: Any) -> None:
    first = propose(call, matmul)
    assert propose(call, matmul) == first
    assert propose(call, matmul, seed=4) != first
    records = [{"trace": row["trace"], "latency_us": 10.0 + n} for n, row in enumerate(first)]
    second = propose(call, matmul, records=records, round=1)
    assert propose(call, matmul, records=records, round=1) == second


def test_later_round_learns_and_proposes_nothing_that_is_known(call: Call, matmul: Any) -> None:
    first = propose(call, matmul)
    # One candidate failed: it is known, though there is nothing to learn from it.
    records = [{"trace": row["trace"], "latency_us": 10.0 + n if n else None} for n, row in enumerate(first)]
    second = propose(call, matmul, records=records, round=1)
    assert second
    assert not {row["trace"] for row in first} & {row["trace"] for row in second}
    assert all(isinstance(row["score"], float) for row in second if row["source"] == "evolutionary")


@pytest.mark.slow
def test_what_is_proposed_does_not_depend_on_what_is_kept(call: Call, matmul: Any, tmp_path: Path) -> None:
    first = propose(call, matmul, folder=str(tmp_path))
    assert first == propose(call, matmul)
    kept = sorted(tmp_path.glob("*.npz"))
    assert len(kept) == len(first)
    records = [{"trace": row["trace"], "latency_us": 10.0 + n} for n, row in enumerate(first)]
    second = propose(call, matmul, records=records, round=1)
    assert propose(call, matmul, records=records, round=1, folder=str(tmp_path)) == second
    for path in kept:
        path.write_bytes(path.read_bytes()[:100])
    here = {"round": 1, "folder": str(tmp_path), "records": records}
    child = children.Child()  # one that remembers nothing
    try:
        assert (
            propose(lambda name, **given: child.call(f"littledragon.{name}", deadline_s=120, **given), matmul, **here)
            == second
        )
    finally:
        child.close()


def test_the_cost_model_is_not_asked_before_it_is_warm(call: Call, matmul: Any) -> None:
    records = [{"trace": row["trace"], "latency_us": 10.0 + n} for n, row in enumerate(propose(call, matmul))]
    cold = propose(call, matmul, records=records, round=1, warm_up=len(records) + 1)
    assert {row["source"] for row in cold} == {"random"}
    warm = propose(call, matmul, records=records, round=1, warm_up=len(records))
    assert "evolutionary" in {row["source"] for row in warm}


def test_thin_space_gives_what_it_has_and_is_then_exhausted(call: Call) -> None:
    workload = call("probe.modules:scalar", n=8)
    records: list[Any] = []
    for number in range(6):
        found = propose(call, workload, records=records, round=number, count=16)
        if not found:
            break
        records += [{"trace": row["trace"], "latency_us": 1.0} for row in found]
    else:
        pytest.fail("a space of a few members was never exhausted")


def test_default_schedule_on_a_cpu_is_the_module_itself(call: Call, matmul: Any) -> None:
    found = call("compiler.proposals:default", module=matmul["module"], target=TARGET)
    assert found == {"scheduled": matmul["module"], "module_hash": matmul["module_hash"]}


def test_proposals_pass_admission(call: Call, matmul: Any) -> None:
    for row in propose(call, matmul, count=3):
        admitted = call("compiler.traces:admit", module=matmul["module"], trace=row["trace"], target=TARGET)
        assert (admitted["failed"], admitted["trace"]) == (None, row["trace"])


def test_rules_of_another_target_are_refused(call: Call, matmul: Any) -> None:
    with pytest.raises(children.ChildError, match="no rules 'cuda-local' for llvm targets"):
        propose(call, matmul, rules="cuda-local")
    with pytest.raises(children.ChildError, match="no rules 'other' for llvm targets"):
        propose(call, matmul, rules="other")


@pytest.fixture(scope="module")
def gathered(call: Call) -> Any:
    """A sum over rows of a table that are read at loaded indices: the stock rules for cuda have no space for it."""
    block_id = "quant_irregular/embedding_bag/dlrm-b128-l40"
    (row,) = call("compiler.lowering:extract", zoo="demo", block_ids=[block_id], target=CUDA)
    return row


@pytest.mark.slow
def test_local_rules_propose_what_is_admitted_with_derived_post_processing(call: Call, gathered: Any) -> None:
    assert propose(call, gathered, target=CUDA, rules="cuda-tensorcore") == []
    found = propose(call, gathered, target=CUDA, rules="cuda-local")
    assert len({row["trace"] for row in found}) == len(found) == 6
    for row in found:
        admitted = call("compiler.traces:admit", module=gathered["module"], trace=row["trace"], target=CUDA)
        assert (admitted["failed"], admitted["trace"]) == (None, row["trace"])
        assert admitted["rules"] == "cuda-tensorcore"
        again = call("compiler.traces:apply", module=gathered["module"], text=admitted["tsel"], target=CUDA)
        assert (again["failed"], again["trace"]) == (None, row["trace"])


@pytest.mark.slow
def test_local_rules_propose_the_same_again_and_learn(call: Call, gathered: Any) -> None:
    first = propose(call, gathered, target=CUDA, rules="cuda-local")
    assert propose(call, gathered, target=CUDA, rules="cuda-local") == first
    records = [{"trace": row["trace"], "latency_us": 10.0 + n} for n, row in enumerate(first)]
    wanted = {"target": CUDA, "rules": "cuda-local", "records": records, "round": 1}
    second = propose(call, gathered, **wanted)
    assert propose(call, gathered, **wanted) == second
    assert second
    assert not {row["trace"] for row in first} & {row["trace"] for row in second}
    assert all(isinstance(row["score"], float) for row in second if row["source"] == "evolutionary")


@pytest.mark.slow
def test_first_round_draws_on_until_it_has_two_though_few_tilings_are_legal(call: Call) -> None:
    """Of 96 random tilings of this product for a GPU, about one is legal, and a population of 4 gives up."""
    rare = call("probe.modules:matmul", m=16, n=16, k=1187, dtype="float32", accumulate="float32")
    found = propose(call, rare, target=CUDA, rules="cuda", count=2, population=4)
    assert [row["source"] for row in found] == ["random", "random"]
