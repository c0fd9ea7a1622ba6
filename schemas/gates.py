"""The gates that a candidate passes, the final states of a unit, and the closed lists of reasons."""

from typing import Final, Literal, get_args

Gate = Literal[
    "parsed",
    "wellformed",
    "applicable",
    "replayed",
    "postprocessed",
    "encoded",
    "built",
    "ran",
    "correct",
    "timed",
    "stable",
]
GATES: Final[tuple[Gate, ...]] = get_args(Gate)

OK: Final = "ok"
"""Status of a candidate that failed no gate of the stage that wrote the row."""

State = Literal["ok", "rejected", "failed"]
"""Final states of a unit, and of a row: done; refused for a reason of the closed list (redone where that is asked for);
broken by something that may pass (redone with `--retry failed`)."""
STATES: Final[tuple[State, ...]] = ("ok", "rejected", "failed")

REASONS: Final[dict[str, tuple[str, ...]]] = {
    "workloads": (
        "lowering_failed",  # the block could not be exported or legalised
        "no_task",  # nothing tunable was left after extraction
        "trivial",  # no reduction, no indirect access and a single block; too few iterations; too large
        "unschedulable",  # no rule set of MetaSchedule is expected to find two candidates on the target
        "duplicate",  # the same workload as one of a smaller block id
        "cell_full",  # the cell already has its six workloads, of smaller block ids
    ),
    "search": (
        "no_space",  # MetaSchedule generates no design space for the workload
        "exhausted",  # the search proposes nothing new
    ),
    "verify": (
        "default_failed",  # the default schedule does not build, run or compute the right answer
        "default_unstable",  # its noise band is above the limit
        "launch_bound",  # L0 is within 1.5 times an empty kernel
        "no_candidates",  # no candidate passed the search's gates
    ),
    "pairs": (
        "not_timed",  # the candidate failed a gate of the search
        "not_chosen",  # it passed, but was not among those verified
        "not_stable",  # it failed a gate of verify
        "not_best",  # constructing: verified, but not the anchor
        "below_margin",  # no gain beyond the margin
        "no_anchor",  # the workload was set aside by verify
        "enough_pairs",  # refining: a pair in this band was already chosen
        "no_trace",  # refining: the default schedule of a CPU has no trace, so it is no parent
    ),
    "teach": (
        "invalid_reply",  # the teacher's reply stayed malformed or unverifiable after all re-asks
        "too_long",  # the reply is larger than the limit
        "declined",  # the endpoint refused the request for good
    ),
    "check": (
        "malformed",  # the graph does not parse or is not well-formed
        "payload_changed",  # the payload is not the selected candidate's trace
        "unknown_citation",  # a cited fact does not exist, or may not be cited there
        "misquoted",  # the quotation differs from its source
        "arithmetic",  # a statement does not compute
        "unbacked_number",  # a number that no citation or computation yields
        "false_claim",  # a statement about the payload that is not true of it
        "speedup_claimed",  # a measured gain is claimed
        "broken_edge",  # an edge of the wrong type, or between missing nodes
    ),
    "publish": ("embargo",),  # the cell is too near to one of another split
}
"""For each stage, why a unit or a row may be `rejected`."""
