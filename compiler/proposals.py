"""One round of MetaSchedule's search, rebuilt from what was measured before: nothing is kept between rounds.

The space is MetaSchedule's (post-order apply of a rule set, `compiler/rules.py`), the search its evolutionary
search, the cost model its XGBoost model, trained on the recorded candidates. With one thread and a seed the same
records give the same proposals (paper, section 4.1).
"""

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any, Final

from littledragon.compiler.rules import generator, intrinsics_where_needed

GENERATIONS: Final = 4
"""Generations of the evolutionary search, TVM's default."""
RANDOM_TRIES: Final = 6
"""Random members that are drawn for each one that is wanted, at most, where the evolutionary search gives up."""
LEAST: Final = 2
"""What can be scheduled has so many candidates: a first round that found fewer draws on…"""
MOST_DRAWS: Final = 1024
"""…up to so many times: of random tilings of a product for a GPU, one in a hundred is legal where its extents are few
or unlike."""


def propose(
    module: str,
    target: dict[str, Any],
    rules: str,
    records: list[dict[str, Any]],
    count: int,
    seed: int,
    round: int,
    population: int,
) -> list[dict[str, Any]]:
    """Propose up to `count` schedules that are not among the records. Runs in a child.

    Args:
        module: M0, as `tvm.ir.save_json`.
        target: the TVM target.
        rules: the rule set, one of this target's kind.
        records: `{"trace": save_json text, "latency_us": float or null}` of every earlier candidate that replayed.
        count: how many are wanted.
        seed: of the whole run; each round draws its own from it.
        round: the round, from 0.
        population: size of the evolutionary search's population.

    Returns:
        `{"trace": canonical save_json text, "score": float or null, "source": "evolutionary" or "random"}`, the
        evolutionary ones first. Empty where the rules give no space, or nothing new is found in it.

    Raises:
        ValueError: there is no such rule set, or it is not for this target.
    """
    import numpy as np
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from littledragon.schemas.tsel import canonical

    mod = tvm.ir.load_json(module)
    state = state_of(mod, seed, round)
    np.random.seed(state)
    # A model without data predicts noise; generations of evolution under it change nothing but the cost.
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=population,
        init_min_unmeasured=min(50, population),
        genetic_num_iters=GENERATIONS if records else 1,
    )
    context = tune_context(mod, target, rules, state, strategy)
    try:
        spaces = context.generate_design_space()
    except Exception:  # a rule that does not fit the program: there is no space
        return []
    known, database, model = _recall(context, records)
    found: list[dict[str, Any]] = []
    for schedule, score, source in _members(context, spaces, known, database, model, count, state):
        found.append(
            {"trace": canonical(str(tvm.ir.save_json(schedule.trace.as_json()))), "score": score, "source": source}
        )
        if len(found) == count:
            break
    return found


def default(module: str, target: dict[str, Any]) -> dict[str, str]:
    """The default schedule, L0's: on llvm the module as it is, on cuda dlight's Fallback. Runs in a child.

    Returns:
        `{"scheduled": save_json text, "module_hash"}`.
    """
    import tvm
    from tvm_ffi import structural_hash

    mod = tvm.ir.load_json(module)
    if target["kind"] == "cuda":
        from tvm.s_tir import dlight

        with tvm.target.Target(target):
            mod = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(mod)
    return {"scheduled": str(tvm.ir.save_json(mod)), "module_hash": f"{structural_hash(mod) & (1 << 64) - 1:016x}"}


def state_of(mod: Any, seed: int, round: int) -> int:
    """The random state of one round of an IRModule's search, from 1 to 2²⁸."""
    from tvm_ffi import structural_hash

    return int(hashlib.sha256(f"{seed}:{round}:{structural_hash(mod)}".encode()).hexdigest()[:7], 16) + 1


def tune_context(mod: Any, target: dict[str, Any], rules: str, state: int, strategy: Any = None) -> Any:
    """TVM's context of one IRModule's search by a rule set, on one thread. Runs in a child.

    Raises:
        ValueError: there is no such rule set, or it is not for this target.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    with intrinsics_where_needed(target):
        if target["kind"] == "cuda":
            import tvm.s_tir.tensor_intrin.cuda  # the rules look intrinsics up when they are made
        return ms.TuneContext(
            mod,
            target=tvm.target.Target(target),
            space_generator=generator(rules, target),
            search_strategy=strategy,
            rand_state=state,
            num_threads=1,
            logger=_quiet(),
        )


def drawn(context: Any, spaces: list[Any], state: int) -> Iterator[Any]:
    """Random members of design spaces, by turns, post-processed, without end; None for a draw that is not legal."""
    for number in itertools.count():
        yield _random(context, spaces[number % len(spaces)], (state + number) % (1 << 30) + 1)


def _members(
    context: Any, spaces: Any, known: set[int], database: Any, model: Any, count: int, state: int
) -> Iterator[tuple[Any, float | None, str]]:
    """New members of the design space: what the search picks, then random ones where that is not enough."""
    from tvm_ffi import structural_hash

    context.pre_tuning(
        max_trials=1 << 30,
        # Recorded ones may be picked again, and are dropped.
        num_trials_per_iter=count + len(known),
        design_spaces=spaces,
        database=database,
        cost_model=model,
    )
    # None: the search gave up, as it does in thin spaces.
    picked = [candidate.sch for candidate in context.generate_measure_candidates() or ()]
    fresh = [(schedule, structural_hash(schedule.mod)) for schedule in picked]
    fresh = [(schedule, key) for schedule, key in fresh if not (key in known or known.add(key))]  # type: ignore[func-returns-value]
    scores = _scores(context, model, [schedule for schedule, _ in fresh])
    for (schedule, _), score in zip(fresh, scores, strict=True):
        yield schedule, score, "evolutionary"
    tries, found = RANDOM_TRIES * max(0, count - len(fresh)) if spaces else 0, len(known) - 1
    most = max(tries, MOST_DRAWS) if tries else 0
    for number, schedule in zip(range(most), drawn(context, spaces, state), strict=False):
        if number >= tries and found >= LEAST:
            break
        key = None if schedule is None else structural_hash(schedule.mod)
        if key is not None and key not in known:
            known.add(key)
            found += 1
            yield schedule, None, "random"


def _recall(context: Any, records: list[dict[str, Any]]) -> tuple[set[int], Any, Any]:
    """The state of the search after these records: hashes of known modules, database, trained cost model."""
    import tvm
    from tvm.s_tir import Schedule, Trace
    from tvm.s_tir import meta_schedule as ms
    from tvm_ffi import structural_hash

    database = ms.database.MemoryDatabase()
    workload = database.commit_workload(context.mod)
    model = ms.cost_model.XGBModel(num_warmup_samples=0, num_tuning_cores=1)
    known = {structural_hash(context.mod)}
    candidates, results = [], []
    for record in records:
        schedule = Schedule(context.mod)
        Trace.apply_json_to_schedule(tvm.ir.load_json(record["trace"]), schedule)
        known.add(structural_hash(schedule.mod))
        if record["latency_us"] is None:
            continue
        arguments = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
        seconds = [record["latency_us"] * 1e-6]
        database.commit_tuning_record(
            ms.database.TuningRecord(schedule.trace, workload, seconds, context.target, arguments)
        )
        candidates.append(ms.MeasureCandidate(schedule, arguments))
        results.append(ms.runner.RunnerResult(seconds, None))
    model.update(context, candidates, results)
    return known, database, model


def _scores(context: Any, model: Any, schedules: list[Any]) -> list[float | None]:
    """What the cost model thinks of the schedules; None where it has no data."""
    from tvm.s_tir import meta_schedule as ms

    if model.booster is None or not schedules:
        return [None] * len(schedules)
    return [float(score) for score in model.predict(context, [ms.MeasureCandidate(s, []) for s in schedules])]


def _random(context: Any, space: Any, state: int) -> Any:
    """A random member of a design space, post-processed; None where the draw is not legal."""
    from tvm.s_tir import Schedule, Trace

    schedule = Schedule(context.mod, seed=state)
    try:
        Trace(space.trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)  # no decisions: they are drawn
        schedule.enter_postproc()
        if not all(processor.apply(schedule) for processor in context.space_generator.postprocs):
            return None
    except Exception:
        return None
    return schedule


def _quiet() -> Any:
    import logging

    logger = logging.getLogger("littledragon.proposals")
    logger.setLevel(logging.ERROR)
    return logger
