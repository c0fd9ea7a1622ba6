"""Which schedules are taught, and why the others are not: pure logic over the rows of one workload.

Construction takes the anchor where `L0 / a - 1 > margin`, and where more are asked for, the next fastest that are as
far beyond L0. Refinement takes pairs of verified candidates, A slower
and B faster, with `L_A / L_B - 1 > margin`, a few in each band of the ratio (paper, section 4; bands
and counts chosen).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from littledragon.schemas.gates import OK
from littledragon.schemas.ids import content_id

Row = dict[str, Any]

BANDS: Final = ((1.5, "up to 1.5x"), (2.0, "1.5x to 2x"), (5.0, "2x to 5x"), (float("inf"), "5x or more"))
"""(upper end of L_A / L_B, exclusive; the words in which a prompt asks for it). The first begins at 1 + margin."""


def band(ratio: float) -> str:
    """The gain band of a ratio L_A / L_B."""
    return next(words for end, words in BANDS if ratio < end)


def select(
    workload_id: str,
    environment_id: str,
    candidates: Sequence[Mapping[str, Any]],
    verdicts: Sequence[Mapping[str, Any]],
    anchor: Mapping[str, Any],
    traced: Collection[str],
    per_band: int,
    best: int = 1,
) -> list[Row]:
    """All rows of `selections` of one workload in one environment.

    Args:
        candidates: every candidate of the workload's search.
        verdicts: what verify found of those that it chose.
        anchor: the workload's row of `anchors`.
        traced: the candidates that have a trace; the default schedule of a CPU has none, and is nobody's parent.
        per_band: refinement pairs in one band at most.
        best: so many of the fastest are for construction, at most.
    """
    maker = _Rows(workload_id, environment_id, anchor["margin"])
    why = {str(c["candidate_id"]): _unverified(c, verdicts, anchor) for c in candidates}
    verified = [v for v in verdicts if why.get(v["candidate_id"], ("", "")) is None]
    verified.sort(key=lambda v: (v["latency_us"], v["candidate_id"]))
    taught = [v for v in verified if v["candidate_id"] in {anchor["anchor_id"], *traced}]
    taught.sort(
        key=lambda v: v["candidate_id"] != anchor["anchor_id"]
    )  # the anchor first, also where another is as fast
    fastest = {v["candidate_id"]: v["latency_us"] for v in taught[:best]}
    rows = [_construct(maker, c, anchor, fastest, why[c["candidate_id"]]) for c in candidates]
    pairs = _pairs(verified, traced, anchor, per_band) if anchor["state"] == OK else []
    rows += [
        maker.ok("refine", b["candidate_id"], a["candidate_id"], a["latency_us"] / b["latency_us"]) for a, b in pairs
    ]
    used = {v["candidate_id"] for pair in pairs for v in pair}
    for candidate in candidates:
        name = candidate["candidate_id"]
        if name not in used:
            reason, detail = why[name] or _unpaired(name, verified, traced, anchor)
            rows.append(maker.rejected("refine", name, reason, detail))
    return rows


def _unverified(
    candidate: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]], anchor: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Why a candidate has no verified latency, or None where it has one."""
    if candidate["status"] != OK:
        return "not_timed", f"{candidate['status']}: {candidate['reason'] or 'no particulars'}"
    if anchor["state"] != OK:
        return "no_anchor", f"{anchor['reason']}: {anchor['detail'] or 'no particulars'}"
    own = [v for v in verdicts if v["candidate_id"] == candidate["candidate_id"]]
    if not own:
        return "not_chosen", "it was not among the candidates that were verified"
    if own[0]["status"] != OK:
        return "not_stable", f"{own[0]['status']}: {own[0]['reason'] or 'no particulars'}"
    return None


def _construct(
    maker: "_Rows",
    candidate: Mapping[str, Any],
    anchor: Mapping[str, Any],
    fastest: Mapping[str, float],
    why: tuple[str, str] | None,
) -> Row:
    name = candidate["candidate_id"]
    if why is not None:
        return maker.rejected("construct", name, *why)
    if name not in fastest:
        return maker.rejected("construct", name, "not_best", f"the anchor is {anchor['anchor_id']}")
    ratio = anchor["default_us"] / fastest[name]
    if ratio - 1 > anchor["margin"]:
        return maker.ok("construct", name, None, ratio)
    detail = f"L0 / L - 1 is {ratio - 1:.4f}, the margin {anchor['margin']:.4f}"
    return maker.rejected("construct", name, "below_margin", detail) | {"ratio": ratio}


def _pairs(
    verified: Sequence[Mapping[str, Any]], traced: Collection[str], anchor: Mapping[str, Any], per_band: int
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(A, B) pairs, band by band. B is the anchor where the band has such a pair, else another verified candidate.

    `verified` is ordered from fast to slow. In a band the fastest parents come first.
    """
    chosen = []
    apart = [
        (a, b)
        for b in verified
        for a in verified
        if {a["candidate_id"], b["candidate_id"]} <= set(traced)
        and a["latency_us"] / b["latency_us"] - 1 > anchor["margin"]
    ]
    for _, words in BANDS:
        here = [(a, b) for a, b in apart if band(a["latency_us"] / b["latency_us"]) == words]
        best = [(a, b) for a, b in here if b["candidate_id"] == anchor["anchor_id"]]
        chosen += (best or here)[:per_band]
    return chosen


def _unpaired(
    name: str, verified: Sequence[Mapping[str, Any]], traced: Collection[str], anchor: Mapping[str, Any]
) -> tuple[str, str]:
    """Why a verified candidate stands in no pair."""
    if name not in traced:
        return "no_trace", "the default schedule of this target has no trace, so it is no parent"
    own = next(v["latency_us"] for v in verified if v["candidate_id"] == name)
    others = [v["latency_us"] for v in verified if v["candidate_id"] in traced and v["candidate_id"] != name]
    ratios = [max(own, other) / min(own, other) for other in others]
    if any(ratio - 1 > anchor["margin"] for ratio in ratios):
        return "enough_pairs", "its bands have the pairs that they need"
    widest = max(ratios, default=1.0)
    return "below_margin", f"its widest gap to another candidate is {widest - 1:.4f}, the margin {anchor['margin']:.4f}"


class _Rows:
    """Makes rows of `selections` for one workload in one environment."""

    def __init__(self, workload_id: str, environment_id: str, margin: float | None) -> None:
        self.head = {"workload_id": workload_id, "environment_id": environment_id}
        self.margin = margin

    def ok(self, mode: str, candidate_id: str, parent_id: str | None, ratio: float) -> Row:
        words = band(ratio) if mode == "refine" else None
        return self._row(mode, candidate_id, parent_id) | {"state": OK, "ratio": ratio, "gain_band": words}

    def rejected(self, mode: str, candidate_id: str, reason: str, detail: str) -> Row:
        return self._row(mode, candidate_id, None) | {"reason": reason, "detail": detail}

    def _row(self, mode: str, candidate_id: str, parent_id: str | None) -> Row:
        named = {**self.head, "mode": mode, "candidate_id": candidate_id, "parent_id": parent_id}
        rest = {"state": "rejected", "reason": None, "detail": None, "ratio": None, "gain_band": None}
        return {"selection_id": content_id("s", named), **named, **rest, "margin": self.margin}
