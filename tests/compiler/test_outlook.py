"""What is told of a schedule's time to run and to compile before it is compiled, and what the search makes of it."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from littledragon.compiler import proposals, targets
from littledragon.compiler.evolution import HEAVY, LONG, LONG_SHARE, UNCHOSEN, Member, Search
from littledragon.compiler.limits import BUSY, OWN_UNROLL, Outlook

CUDA = targets.target("cuda")
SUM = 9
"""Nodes of `y[v] = 0` (v, the constant, the store) and of `y[v] = y[v] + x[v, k]` (v, k, two loads, sum and store)."""
Call = Any


@pytest.fixture(scope="module")
def product(call: Call) -> Any:
    return call("probe.modules:matmul", m=512, n=512, k=512, dtype="float32", accumulate="float32")["module"]


@pytest.mark.parametrize(
    ("rows", "columns", "blocks", "unrolled", "virtual", "span", "times"),
    [
        # One thread's iterations; the sum and its initial value are two statements.
        (1024, 100, 4, 0, 1, 100, 1),
        # Marked loops are unrolled as far as they are marked, and short ones without a mark.
        (1024, 100, 4, 200, 1, 100, 100),
        (1024, 100, 4, 199, 1, 100, 1),
        (1024, OWN_UNROLL // SUM, 4, 0, 1, OWN_UNROLL // SUM, OWN_UNROLL // SUM),
        (1024, OWN_UNROLL // SUM + 1, 4, 0, 1, OWN_UNROLL // SUM + 1, 1),
        # Virtual threads are written out, and run one after the other.
        (1024, 100, 4, 0, 8, 800, 8),
        # More threads than a device runs at once wait for each other; a block of few takes a whole warp.
        (1024 * 2 * BUSY, 100, 2 * BUSY, 0, 1, 100 * 1024 * 2, 1),
        (4 * 2 * BUSY, 100, 2 * BUSY, 0, 1, 100 * 32 * 2, 1),
    ],
)
def test_span_and_operations_of_a_sum(
    call: Call, rows: int, columns: int, blocks: int, unrolled: int, virtual: int, span: int, times: int
) -> None:
    wanted = {"rows": rows, "columns": columns, "blocks": blocks, "unrolled": unrolled, "virtual": virtual}
    assert call("probe.outlooks:of_a_sum", **wanted) == {"span": span, "operations": times * SUM}


def test_a_statement_counts_with_its_expressions_and_a_vector_once(call: Call) -> None:
    one, two, many = (call("probe.outlooks:of_terms", terms=terms, lanes=1) for terms in (1, 2, 32))
    assert two > one
    assert many - one == 31 * (two - one)
    assert call("probe.outlooks:of_terms", terms=32, lanes=4) == many


@pytest.mark.slow
def test_width_is_how_many_threads_a_tiling_makes_and_the_widest_are_replayed(call: Call, product: Any) -> None:
    found = call("probe.outlooks:widths", module=product, target=CUDA, rules="cuda", count=12)
    for pairs in found.values():
        assert len(pairs) == 12
        assert all(width <= threads for width, threads in pairs), "of a rule's two blocks the narrower one counts"
        assert sum(width == threads for width, threads in pairs) > 6
    random, chosen = ([width for width, _ in found[name]] for name in ("random", "chosen"))
    assert statistics.median(chosen) > 4 * statistics.median(random)


def test_the_best_outlook_is_preferred_what_builds_long_comes_last_and_one_in_eight_is_left_to_chance(
    call: Call, product: Any
) -> None:
    found = call("probe.outlooks:ranked", module=product, target=CUDA, rules="cuda", draws=120, count=16)
    spans = [round(math.log2(span)) for span in found["spans"]]
    heavy = [place for place, operations in enumerate(found["operations"]) if operations > HEAVY]
    long = [place for place, operations in enumerate(found["operations"]) if LONG < operations <= HEAVY]
    assert heavy
    assert len(long) > 16 // LONG_SHARE
    late = {*sorted(long, key=lambda place: spans[place])[16 // LONG_SHARE :], *heavy}
    ranks = [(place in late, span) for place, span in enumerate(spans)]
    assert len(ranks) > 30
    best = found["best"]
    assert len(set(best)) == len(best) == 16
    chosen = best[: 16 - 16 // UNCHOSEN]
    others = [rank for place, rank in enumerate(ranks) if place not in chosen]
    assert max(ranks[place] for place in chosen) <= min(others)
    left = [place for place in range(len(ranks)) if place not in chosen and place not in late]
    assert best[len(chosen) :] == left[: 16 // UNCHOSEN]


def test_few_that_are_long_and_none_that_is_heavy_come_in_time(call: Call, product: Any) -> None:
    found = call("probe.outlooks:ranked", module=product, target=CUDA, rules="cuda", draws=120, count=8)
    heavy = {place for place, operations in enumerate(found["operations"]) if operations > HEAVY}
    long = [place for place, operations in enumerate(found["operations"]) if LONG < operations <= HEAVY]
    assert heavy
    assert len(long) > 8 // LONG_SHARE
    assert found["late"] == sorted({*long[8 // LONG_SHARE :], *heavy})


def propose(call: Call, module: Any, **changed: Any) -> Any:
    wanted = {"target": CUDA, "rules": "cuda", "records": [], "count": 6, "seed": 3, "round": 0, "population": 12}
    return call("compiler.proposals:propose", module=module, **wanted | changed)


@pytest.mark.slow
def test_the_same_is_proposed_again_for_a_gpu(call: Call, product: Any) -> None:
    first = propose(call, product)
    assert {row["source"] for row in first} == {"random"}
    assert len({row["trace"] for row in first}) == 6
    assert propose(call, product) == first
    records = [{"trace": row["trace"], "latency_us": 10.0 + n} for n, row in enumerate(first)]
    second = propose(call, product, records=records, round=1)
    assert "evolutionary" in {row["source"] for row in second}
    assert not {row["trace"] for row in first} & {row["trace"] for row in second}
    assert propose(call, product, records=records, round=1) == second


def test_each_space_has_draws_that_are_left_to_chance() -> None:
    for spaces in (1, 2, 3, 4, 8):
        search = object.__new__(Search)
        search.gpu, search.random = True, None
        asked: list[tuple[int, int]] = []
        search.spaces = [Asked(number, asked) for number in range(spaces)]
        list(itertools.islice(search.drawn(), 2 * spaces * UNCHOSEN))
        counts = Counter(asked)
        assert [counts[number, 1] for number in range(spaces)] == [2] * spaces
        assert len(asked) == 2 * spaces * UNCHOSEN


class Asked:
    """A space of which nothing is legal, and which remembers of how many each draw was the widest."""

    def __init__(self, number: int, asked: list[tuple[int, int]]) -> None:
        self.number, self.asked = number, asked

    def draw(self, _: Any, of: int) -> None:
        self.asked.append((self.number, of))


@pytest.mark.parametrize(("one_in", "heavy", "drawn"), [(2, 0, 25), (8, 0, 65), (100, 8, 97)])
def test_where_few_are_quick_to_compile_more_are_drawn(one_in: int, heavy: int, drawn: int) -> None:
    """For eight that are wanted: three times as many, or until eight of them are quick, or twelve times as many."""
    search = object.__new__(Search)
    search.gpu, search.original, asked = True, -1, list[int]()
    search._outlooks = {key: Outlook(1.0, 100 if key % one_in == one_in - 1 else HEAVY + 1) for key in range(200)}

    def draws() -> Iterator[Member]:
        for key in range(200):
            asked.append(key)
            yield Member(0, None, key, None)

    search.drawn = draws  # type: ignore[method-assign,assignment]
    found = [member for member, _ in proposals._members(search, [], 8, 12, 0)]
    assert len(found) == 8
    assert sum(search._heavy(member) for member in found) == heavy
    assert len(asked) == drawn  # the last one is looked at no more


def test_a_round_names_nobody_twice() -> None:
    """Also where one that was drawn at random is the best of those that were not picked."""
    search = object.__new__(Search)
    search.gpu = False
    search._outlooks = {}
    drawn, bred = Member(0, None, 100, None), [Member(0, None, key, None) for key in range(45)]
    worth = {100: 4.5} | {key: float(key) for key in range(45)}
    search.drawn = lambda: iter([drawn])  # type: ignore[method-assign]
    search.scores = lambda members: [worth[member.key] for member in members]  # type: ignore[method-assign]
    search._next = lambda *_: bred  # type: ignore[method-assign]
    for count in (8, 40, 46):
        keys = [member.key for member, _ in search.evolve([], set(), count, 10)]
        assert len(set(keys)) == len(keys) == count


def test_what_takes_longest_to_build_is_proposed_first(call: Call, product: Any) -> None:
    found = call("probe.outlooks:operations", module=product, traces=[row["trace"] for row in propose(call, product)])
    assert found == sorted(found, reverse=True)
    assert len(set(found)) > 2


def test_where_all_members_are_heavy_they_are_proposed(call: Call) -> None:
    module = call("probe.outlooks:long", n=1 << 16, terms=HEAVY)["module"]
    found = call("probe.outlooks:ranked", module=module, target=CUDA, rules="cuda", draws=16, count=3)
    assert min(found["operations"]) > HEAVY
    assert len(found["best"]) == 3
    first = propose(call, module, count=3)
    assert len(first) == 3
    records = [{"trace": row["trace"], "latency_us": 10.0 + n} for n, row in enumerate(first)]
    assert propose(call, module, records=records, round=1, count=2)
