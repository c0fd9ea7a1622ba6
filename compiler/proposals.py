"""One round of MetaSchedule's search, rebuilt from what was measured before: nothing is kept between rounds.

The space is MetaSchedule's (post-order apply of a rule set, `compiler/rules.py`), the search its evolutionary search
(`compiler/evolution.py`), the cost model its XGBoost model, trained on the recorded candidates. A first round, which
has nothing to learn from, draws members at random; for a GPU those are proposed that keep it busy, and are not too long
to compile. The same records and the same seed give the same proposals (paper, section 4.1).
"""

import hashlib
from collections.abc import Iterator
from typing import Any, Final

from littledragon.compiler.evolution import Member, Search
from littledragon.compiler.rules import generator, intrinsics_where_needed

RANDOM_TRIES: Final = 6
"""Random members that are drawn for each one that is wanted, at most, where the evolutionary search gives up."""
DRAWS: Final = 3
"""Random members that are drawn on a GPU for each one that is wanted: those of the best outlook are proposed. With it
a first round of 16 takes 1.6 times the CPU time."""
MORE_DRAWS: Final = 12
"""The same at most where those that are quick to compile do not suffice: in spaces of large products they are few."""
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
    warm_up: int = 0,
    folder: str | None = None,
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
        population: size of a generation of the evolutionary search.
        warm_up: with fewer measured records the cost model is not asked, and members are drawn at random.
        folder: where features may be kept between rounds; what is proposed does not depend on it.

    Returns:
        `{"trace": canonical save_json text, "score": float or null, "source": "evolutionary" or "random"}`. On a GPU
        those of most operations come first, which take longest to build: a round ends with its slowest build. Empty
        where the rules give no space, or nothing new is found in it.

    Raises:
        ValueError: there is no such rule set, or it is not for this target.
    """
    import tvm

    from littledragon.schemas.tsel import canonical

    mod = tvm.ir.load_json(module)
    state = state_of(mod, seed, round)
    context = tune_context(mod, target, rules, state)
    try:
        spaces = context.generate_design_space()
    except Exception:  # a rule that does not fit the program: there is no space
        return []
    if not spaces:
        return []
    search = Search(context, spaces, target, state, folder)
    found = []
    members = list(_members(search, records, count, population, warm_up))
    for member, score in sorted(members, key=lambda pair: -search.outlook(pair[0]).operations):
        trace = canonical(str(tvm.ir.save_json(member.trace.as_json())))
        search.keep(trace, member)
        found.append({"trace": trace, "score": score, "source": "random" if score is None else "evolutionary"})
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
        return ms.TuneContext(
            mod,
            target=tvm.target.Target(target),
            space_generator=generator(rules, target),
            search_strategy=strategy,
            rand_state=state,
            num_threads=1,
            logger=_quiet(),
        )


def _members(
    search: Search, records: list[dict[str, Any]], count: int, population: int, warm_up: int
) -> Iterator[tuple[Member, float | None]]:
    """New members of the design space: what the search picks, then random ones where that is not enough."""
    recalled = [(record, *search.recall(record["trace"])) for record in records]
    known = {search.original, *(key for _, key, _ in recalled)}
    timed = [(record, features) for record, _, features in recalled if record["latency_us"] is not None]
    picked = 0
    if timed and len(timed) >= warm_up:
        search.learn([features for _, features in timed], [record["latency_us"] for record, _ in timed])
        timed.sort(key=lambda pair: float(pair[0]["latency_us"]))
        for member, score in search.evolve([record["trace"] for record, _ in timed], known, count, population):
            known.add(member.key)
            picked += 1
            yield member, score
    wanted = count - picked
    draws, tries, found = DRAWS * wanted if search.gpu else 0, RANDOM_TRIES * wanted, len(known) - 1
    pool: list[Member] = []
    for number, drawn in zip(range(max(tries, MOST_DRAWS)), search.drawn(), strict=False):
        if number >= draws and len(pool) >= wanted:
            if number >= MORE_DRAWS * wanted or search.quick(pool, wanted) >= wanted:
                break
        elif number >= tries and found >= LEAST:
            break
        if drawn is not None and drawn.key not in known:
            known.add(drawn.key)
            found += 1
            pool.append(drawn)
    yield from ((member, None) for member in search.best(pool, wanted))


def _quiet() -> Any:
    import logging

    logger = logging.getLogger("littledragon.proposals")
    logger.setLevel(logging.ERROR)
    return logger
