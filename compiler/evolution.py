"""MetaSchedule's evolutionary search, with what a GPU cannot hold left out before it is replayed.

The algorithm is TVM's (TVM 0.25, src/s_tir/meta_schedule/search_strategy/evolutionary_search.cc): a population of the
best that was measured and of random members of the design space is mutated for a few generations, each member chosen
for mutation by what the cost model thinks of it; the best new ones are proposed, and a few random ones. Spaces,
mutators, post-processors and cost model are TVM's own. Two things differ. What costs: a member whose tile factors
`limits` refuses is never replayed, features are extracted once for each schedule, and the features of what was measured
come from a cache. And for a GPU, what the loops tell before anything is measured, the outlook: it chooses among draws,
counts beside the cost model, and puts off what would take long to compile. Every function here runs in a child.
"""

import contextlib
import hashlib
import itertools
import math
import os
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from littledragon.compiler import _stepper
from littledragon.compiler.limits import BUSY, Limits, Outlook, limits, outlook

MUTATED: Final = 0.85
"""Share of a generation that is mutated, TVM's default…"""
MEASURED: Final = 0.2
"""…share of the population that comes from what was measured…"""
RANDOM: Final = 0.05
"""…share of what is proposed that is drawn at random…"""
FAILURES: Final = 10
"""…and how often a mutation may fail before its member stays as it is."""
GENERATIONS: Final = 3
"""Generations (*chosen*; TVM's default is 4)."""
TRIES: Final = 4000
"""Tilings that are drawn for one member until `limits` allows one; each takes microseconds."""
MOST_TRIES: Final = 1 << 16
"""The same where spaces are drawn, too: so many in a row, and there is none."""
WIDEST_OF: Final = 8
"""Of so many tilings that `limits` allows, one is replayed that keeps the device busy, or comes nearest to it…"""
FEWER_TRIES: Final = 400
"""…as far as so many draws give."""
UNCHOSEN: Final = 8
"""One in so many random members is drawn whatever its width, and proposed whatever its span: both may be wrong."""
HEAVY: Final = 12_000
"""A schedule of more operations than these is proposed only where nothing else is found."""
LONG: Final = 4_000
"""Of schedules of more operations than these the search proposes…"""
LONG_SHARE: Final = 8
"""…at most one in so many, unless it finds nothing else. Both rules together leave out 35% of the build time of 2,000
recorded H200 candidates. The best latency of what they keep is 1.6% longer in the geometric mean over 113 workloads,
before what is proposed instead."""
LEAST_SCORE: Final = 1e-3
"""A cost model that has learned from few candidates predicts nothing, or less, for many."""
SEEDS: Final = 1 << 30
KEY: Final = (1 << 64) - 1
"""Structural hashes are taken as 64 bits without a sign."""
KEPT: Final = 2048
"""Measured schedules that a process remembers."""


@dataclass(frozen=True)
class Space:
    """One member of the design space, whose decisions are drawn anew, and its bounds."""

    trace: Any
    limits: Limits

    def allows(self, trace: Any) -> bool:
        """Whether a trace of this space may be legal."""
        if not self.limits.blocks:
            return True
        tiles = {}
        for index in self.limits.tiles:
            decision = trace.decisions.get(trace.insts[index])
            if decision is None:
                return True
            tiles[index] = [int(factor) for factor in decision]
        return self.limits.allow(tiles)

    def draw(self, random: np.random.Generator, choices: int = 1, tries: int = TRIES) -> Any | None:
        """A trace with tiles drawn as TVM draws them (sampling.cc, SamplePerfectTile); None where none is allowed.

        choices: the widest of so many that are allowed, or the first that makes `BUSY` threads. Of 33 workloads whose
            spaces are all tiled, with 16 and more first-round candidates on an H200, the widest 4 hold a latency 1.56
            times better than 4 at random do (95% interval 1.35 to 1.84; the best are 1.79 times better).
        tries: tilings that are drawn until one is allowed.
        """
        if not self.limits.blocks:
            return _trace(self.trace.insts, {})
        found: list[tuple[int, dict[int, list[int]]]] = []
        for number in range(tries):
            tiles = {index: tile(random, *shape) for index, shape in self.limits.tiles.items()}
            if self.limits.allow(tiles):
                found.append((self.limits.width(tiles), tiles))
            if found and (found[-1][0] >= BUSY or len(found) >= choices or number >= FEWER_TRIES):
                break
        if not found:
            return None
        _, tiles = max(found, key=lambda pair: min(BUSY, pair[0]))
        return _trace(self.trace.insts, {self.trace.insts[index]: factors for index, factors in tiles.items()})


@dataclass(frozen=True)
class Member:
    """A legal schedule: the space that it is of, its trace, and the structural hash of its module."""

    space: int
    trace: Any
    key: int
    schedule: Any


class Search:
    """The search of one IRModule in one round.

    Args:
        context: TVM's tuning context, with a space generator.
        spaces: its design space.
        target: the TVM target.
        state: the seed of this round.
        folder: where features of schedules are kept between rounds; None: nowhere.
    """

    def __init__(
        self, context: Any, spaces: Sequence[Any], target: dict[str, Any], state: int, folder: str | None = None
    ) -> None:
        from tvm.s_tir import meta_schedule as ms
        from tvm_ffi import structural_hash

        self.context = context
        self.original = structural_hash(context.mod) & KEY
        self.spaces = [Space(space.trace, limits(space.trace, context.mod, target)) for space in spaces]
        self.random = np.random.default_rng(state)
        self.model = ms.cost_model.XGBModel(num_warmup_samples=0, num_tuning_cores=1)
        self._features: dict[int, Any] = {}
        self._outlooks: dict[int, Outlook] = {}
        self.gpu = target["kind"] == "cuda"
        self._folder = None if folder is None else Path(folder)
        self._scope = hashlib.sha256(f"{target}{self.original}".encode()).hexdigest()[:16]
        mutators = context.space_generator.mutator_probs or {}
        self._mutators = [(mutator, float(probability)) for mutator, probability in mutators.items()]

    def drawn(self) -> Iterator[Member | None]:
        """Random members by turns, without end; None for a draw that is not legal."""
        for number in itertools.count():
            index = number % len(self.spaces)
            chosen = self.gpu and number // len(self.spaces) % UNCHOSEN != UNCHOSEN - 1
            trace = self.spaces[index].draw(self.random, WIDEST_OF if chosen else 1)
            yield None if trace is None else self._member(index, trace)

    def sampled(self) -> Iterator[Member | None]:
        """Random members as TVM draws its first population: each draw is of a space at random, and nothing is chosen
        among them. None for one that was replayed and is not legal; it ends where `limits` refuse `MOST_TRIES`."""
        refused = 0
        while refused < MOST_TRIES:
            index = int(self.random.integers(len(self.spaces)))
            trace = self.spaces[index].draw(self.random, tries=1)
            refused = refused + 1 if trace is None else 0
            if trace is not None:
                yield self._member(index, trace)

    def outlook(self, member: Member) -> Outlook:
        """What the loops of a schedule say of it; on a CPU nothing, and all schedules are alike."""
        if member.key not in self._outlooks:
            self._outlooks[member.key] = outlook(member.schedule.mod) if self.gpu else Outlook(1.0, 0)
        return self._outlooks[member.key]

    def best(self, members: Sequence[Member], count: int) -> list[Member]:
        """The `count` members of the best outlook, which nothing was measured for; one in `UNCHOSEN` is the next drawn.

        Spans are compared by powers of two, and of equals the first drawn come first: spaces stay mixed, and a small
        difference is not believed. Of 74 workloads with 16 and more first-round candidates on an H200 (1,516), the 4
        of the best outlook hold a latency 1.47 times better than 4 at random do, the 8 best one 1.17 times better
        (95% intervals 1.35 to 1.62, 1.12 to 1.24; the best of all are 1.60 and 1.20 times better), with 0.64 to 0.69 of
        the build time; what is late was told by its statements then, not by its operations. With one in four left to
        chance the first figure is 1.44. A ranker that was fitted on the other workloads (XGBoost) reaches 1.50, 1.18:
        too little more to ship.
        """
        if not self.gpu:
            return list(members[:count])
        order = sorted(members, key=lambda member: round(math.log2(self.outlook(member).span)))
        late = self._late(order, count)
        order.sort(key=lambda member: member.key in late)
        picked = order[: count - count // UNCHOSEN]
        keys = {member.key for member in picked}
        rest = sorted((m for m in members if m.key not in keys), key=lambda member: member.key in late)
        return [*picked, *rest][:count]

    def quick(self, members: Sequence[Member], count: int) -> int:
        """How many of these `best` would propose before those that take long to compile, where it proposes `count`."""
        return len(members) - len(self._late(members, count))

    def _heavy(self, member: Member) -> bool:
        return self.outlook(member).operations > HEAVY

    def _late(self, members: Sequence[Member], count: int) -> set[int]:
        """Keys of those (the best first) that are proposed only where nothing else is: heavy, or long and too many."""
        long = [member.key for member in members if LONG < self.outlook(member).operations <= HEAVY]
        return {*long[count // LONG_SHARE :], *(member.key for member in members if self._heavy(member))}

    def recall(self, trace: str) -> tuple[int, Any]:
        """Key and features of a measured schedule (its trace as `save_json`), from the cache or by replaying it."""
        kept = self._kept(trace)
        if kept is not None:
            return kept
        member = self._replayed(trace)
        self.keep(trace, member)
        return member.key, self.features(member)

    def keep(self, trace: str, member: Member) -> None:
        """Remember key and features of a schedule, whose trace this is as `save_json`, for the rounds to come."""
        name, features = self._name(trace), self.features(member)
        _remember(name, member.key, features)
        if self._folder is not None:
            with contextlib.suppress(OSError):  # a cache: what does not fit is computed again
                descriptor, path = tempfile.mkstemp(dir=self._folder)
                try:
                    with os.fdopen(descriptor, "wb") as file:
                        np.savez(file, key=np.uint64(member.key), features=features)
                    Path(path).replace(self._folder / name)
                finally:
                    Path(path).unlink(missing_ok=True)

    def _kept(self, trace: str) -> tuple[int, Any] | None:
        name = self._name(trace)
        if name in _remembered:
            return _remembered[name]
        if self._folder is None:
            return None
        try:
            with np.load(self._folder / name, allow_pickle=False) as file:
                found = (int(file["key"]), file["features"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        _remember(name, *found)
        return found

    def _name(self, trace: str) -> str:
        return f"{self._scope}-{hashlib.sha256(trace.encode()).hexdigest()[:24]}.npz"

    def features(self, member: Member) -> Any:
        """Features of a schedule, float32, a row for each of its stores; extracted once."""
        from tvm.s_tir import meta_schedule as ms

        if member.key not in self._features:
            candidate = ms.MeasureCandidate(member.schedule, [])
            (found,) = self.model.extractor.extract_from(self.context, [candidate])
            self._features[member.key] = found.numpy().astype("float32")
        return self._features[member.key]

    def learn(self, features: Sequence[Any], latencies_us: Sequence[float]) -> None:
        """Train the cost model on measured schedules: its target is the best latency over each one's."""
        pairs = [(one, latency) for one, latency in zip(features, latencies_us, strict=True) if len(one)]
        if pairs:
            best = min(latency for _, latency in pairs)
            ratios = np.array([best / latency for _, latency in pairs], dtype="float32")
            self.model._train(xs=[one for one, _ in pairs], ys=ratios)

    def scores(self, members: Sequence[Member]) -> list[float]:
        """What the cost model thinks: higher is faster; at random where it has learned nothing."""
        if self.model.booster is None:
            return [float(score) for score in self.random.random(len(members))]
        features = [self.features(member) for member in members]
        rated = [one for one in features if len(one)]
        found = iter(self.model._predict(rated) if rated else ())
        return [float(max(0.0, next(found))) if len(one) else 0.0 for one in features]

    def evolve(self, best: Sequence[str], known: set[int], count: int, population: int) -> list[tuple[Member, float]]:
        """Up to `count` members that are not known, with their scores: the best, random ones, then those that are late.

        Args:
            best: traces of what was measured, the fastest first.
            known: keys of modules that are not proposed.
            population: how many members a generation has.
        """
        measured = [self._replayed(trace) for trace in best[: int(MEASURED * population)]]
        fresh: list[Member] = []
        for member in itertools.islice(self.drawn(), 2 * population):
            if member is not None:
                fresh.append(member)
            if len(measured) + len(fresh) >= population:
                break
        members, seen = [*measured, *fresh], set(known)
        found: list[tuple[Member, float]] = []
        for generation in range(GENERATIONS + 1):
            scores = self.scores(members)
            for member, score in zip(members, scores, strict=True):
                if member.key not in seen:
                    seen.add(member.key)
                    found.append((member, score))
            if generation < GENERATIONS and members:
                worths = [self._worth(member, score) for member, score in zip(members, scores, strict=True)]
                members = self._next(members, worths, population)
        found.sort(key=lambda pair: -self._worth(*pair))
        late = self._late([member for member, _ in found], count)
        found.sort(key=lambda pair: pair[0].key in late)
        wanted = count - int(RANDOM * count)
        picked, keys = found[:wanted], {member.key for member, _ in found[:wanted]}
        rest = [pair for pair in found if pair[0].key not in keys]
        others = {member.key for member in fresh}
        rest.sort(key=lambda pair: (pair[0].key in late, pair[0].key not in others))
        return (picked + rest)[:count]

    def _worth(self, member: Member, score: float) -> float:
        """A score over the fourth root of the span: the cost model has learned from few, and the loops know more.

        Of 13 workloads with 26 and more first-round candidates on an H200, 16 at random were learned from, three times.
        Of the others the best 4 by this worth hold a latency 1.71 times better than 4 at random do; by the score 1.64,
        by the span 1.58 (the best are 1.88 times better). Rank correlations with the latency are 0.72, 0.61 and 0.76.
        Higher powers of the span do no better, and of what the model itself had picked the span tells nothing.
        """
        return score if not self.gpu else max(score, LEAST_SCORE) / self.outlook(member).span ** 0.25

    def _next(self, members: Sequence[Member], worths: Sequence[float], population: int) -> list[Member]:
        weights = np.cumsum(np.maximum(worths, 1e-15))
        following, kept = [], set()
        for _ in range(population):
            result = members[0]
            for _ in range(FAILURES + 1):
                place = int(np.searchsorted(weights, self.random.random() * weights[-1], side="right"))
                result = members[min(place, len(members) - 1)]
                if not self._mutators or self.random.random() >= MUTATED:
                    if result.key not in kept:
                        kept.add(result.key)
                        break
                    continue
                mutated = self._mutated(result)
                if mutated is not None:
                    result = mutated
                    break
            following.append(result)
        return following

    def _mutated(self, member: Member) -> Member | None:
        from tvm.s_tir.meta_schedule import _ffi_api

        weights = np.cumsum([probability for _, probability in self._mutators])
        mutator = self._mutators[int(np.searchsorted(weights, self.random.random() * weights[-1], side="right"))][0]
        trace = _ffi_api.MutatorApply(mutator, member.trace, int(self.random.integers(1, SEEDS)))
        if trace is None or not self.spaces[member.space].allows(trace):
            return None
        return self._member(member.space, trace)

    def _member(self, space: int, trace: Any) -> Member | None:
        """Replay and post-process a trace; None where that is not legal."""
        from tvm.s_tir import Schedule
        from tvm_ffi import structural_hash

        schedule = Schedule(self.context.mod, seed=int(self.random.integers(1, SEEDS)))
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            if not all(processor.apply(schedule) for processor in self.context.space_generator.postprocs):
                return None
        except Exception:  # TVM raises whatever its primitives raise
            return None
        return Member(space, schedule.trace, structural_hash(schedule.mod) & KEY, schedule)

    def _replayed(self, trace: str) -> Member:
        """A measured schedule again; of the space whose instructions it has, or the first."""
        from tvm.s_tir import Schedule, Trace
        from tvm_ffi import structural_hash

        schedule = Schedule(self.context.mod)
        Trace.apply_json_to_schedule(_stepper.load(trace), schedule)
        kinds = [step.kind.name for step in schedule.trace.insts]
        own = [[step.kind.name for step in space.trace.insts] for space in self.spaces]
        index = next((index for index, steps in enumerate(own) if kinds[: len(steps)] == steps), 0)
        return Member(index, schedule.trace, structural_hash(schedule.mod) & KEY, schedule)


def tile(random: np.random.Generator, extent: int, parts: int, most_innermost: int) -> list[int]:
    """Factors of a perfect tile, each prime's powers spread evenly over the parts, the last at most `most_innermost`.

    As TVM draws them; -1 is no bound.
    """
    while True:
        factors = [1] * parts
        for prime, power in _primes(extent):
            cuts = np.sort(random.choice(power + parts - 1, parts - 1, replace=False)).tolist()
            ends = [-1, *cuts, power + parts - 1]
            for place in range(parts):
                factors[place] *= prime ** (ends[place + 1] - ends[place] - 1)
        if most_innermost == -1 or factors[-1] <= most_innermost:
            return factors


@cache
def _primes(number: int) -> tuple[tuple[int, int], ...]:
    found, divisor = [], 2
    while number > 1:
        power = 0
        while number % divisor == 0:
            number, power = number // divisor, power + 1
        if power:
            found.append((divisor, power))
        divisor += 1
        if divisor * divisor > number > 1:
            divisor = number
    return tuple(found)


def _trace(steps: Any, decisions: dict[Any, list[int]]) -> Any:
    from tvm.s_tir import Trace

    return Trace(steps, decisions)


def _remember(name: str, key: int, features: Any) -> None:
    _remembered[name] = (key, features)
    _remembered.move_to_end(name)
    while len(_remembered) > KEPT:
        _remembered.popitem(last=False)


_remembered: OrderedDict[str, tuple[int, Any]] = OrderedDict()
