"""Random members of a workload's design space as texts, and the text of a proposal. Runs in a child."""

import itertools
import math
import time
from typing import Any, Final

from littledragon.compiler import proposals, traces
from littledragon.compiler._stepper import Refused
from littledragon.compiler.evolution import Search
from littledragon.schemas import tsel

REPLAYS: Final = proposals.MOST_DRAWS
"""So many draws are replayed at most for each member that is wanted."""


def draw(
    module: str, target: dict[str, Any], rules: str, count: int, state: int, budget_s: float | None = None
) -> list[dict[str, Any]]:
    """So many random legal members of the design space, each by itself: two may be the same.

    A member is drawn as TVM draws its first population (`Search.sampled`) until one passes the post-processors, and the
    language has a text for it. Where that took too many draws, or too long, the rest is not tried.

    Args:
        module: M0, as `tvm.ir.save_json`.
        target: the TVM target.
        rules: the rule set, one of this target's kind.
        count: how many are wanted.
        state: the random state, from 1 to 2²⁸.
        budget_s: no draw begins after so many seconds, all members counted; None for no such limit.

    Returns:
        For each `{"text": its text, or None where no draw was legal in time, "seconds": what it took, the design space
        counted}`.

    Raises:
        ValueError: there is no such rule set, or it is not for this target.
    """
    import tvm

    began = time.monotonic()
    end = math.inf if budget_s is None else began + budget_s
    context = proposals.tune_context(tvm.ir.load_json(module), target, rules, state)
    try:
        spaces = list(context.generate_design_space())
    except Exception:  # a rule that does not fit the program: there is no space
        spaces = []
    search = Search(context, spaces, target, state) if spaces else None
    space_s = time.monotonic() - began
    found: list[dict[str, Any]] = []
    for _ in range(count):
        began = time.monotonic()
        given_up = search is None or (found and found[-1]["text"] is None)
        text = None if search is None or given_up else _text(search, module, target, end)
        found.append({"text": text, "seconds": space_s + time.monotonic() - began})
    return found


def _text(search: Search, module: str, target: dict[str, Any], end: float) -> str | None:
    import tvm

    in_time = itertools.takewhile(lambda _: time.monotonic() < end, range(REPLAYS))
    for _, member in zip(in_time, search.sampled(), strict=False):
        if member is not None:
            trace = tsel.canonical(str(tvm.ir.save_json(member.trace.as_json())))
            spelled = spell(module, trace, target)
            if spelled["text"] is not None:
                return str(spelled["text"])
    return None


def spell(module: str, trace: str, target: dict[str, Any]) -> dict[str, Any]:
    """`{"text": the text of a trace, or None, "gate": the gate that refused it, or None, "reason"}`.

    Args:
        module: M0, as `tvm.ir.save_json`.
        trace: the whole trace, as `save_json` text.
        target: the TVM target.
    """
    try:
        return {"text": traces.encode(module, trace, target).text, "gate": None, "reason": None}
    except (Refused, tsel.TselError) as error:
        return {"text": None, "gate": error.gate, "reason": str(error)}
