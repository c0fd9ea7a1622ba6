"""The one error of the language, and the limits that keep a hostile text from costing more than it is worth."""

from typing import Final, Literal

MAX_TEXT: Final = 1 << 20
"""Bytes of a label text."""
MAX_TRACE: Final = 1 << 22
"""Bytes of a trace as `save_json` text."""
MAX_JSON_DEPTH: Final = 48
MAX_LEAVES: Final = 200_000
"""Leaves of a trace's tree, shared objects counted each time that they occur."""
MAX_INSTRUCTIONS: Final = 10_000
MAX_OUTPUTS: Final = 512
"""Outputs of one instruction, and inputs of one."""
MAX_STRING: Final = 8192
"""Characters of one string of a trace that is not an index map, quotes counted."""


class TselError(Exception):
    """A text or trace is refused.

    gate: "parsed" where it is no graph at all, "wellformed" where it is one that breaks a rule.
    rule: the rule's short name. place: where (a line, an edit, an instruction). message: what is wrong there.
    str(): one line with all three.
    """

    def __init__(self, gate: Literal["parsed", "wellformed"], rule: str, place: str, message: str) -> None:
        line = "".join(c if c.isprintable() else "?" for c in message)
        super().__init__(f"{place}: {line[:300]} ({rule})")
        self.message = message
        self.gate = gate
        self.rule = rule
        self.place = place


def malformed(rule: str, place: str, message: str) -> TselError:
    """An error of the gate `parsed`."""
    return TselError("parsed", rule, place, message)


def illegal(rule: str, place: str, message: str) -> TselError:
    """An error of the gate `wellformed`."""
    return TselError("wellformed", rule, place, message)
