"""Whether prose says a true thing of the right thing: which loop, buffer, edit or schedule a clause speaks of.

A citation or a tile that is right in itself is wrong under another loop's name, in another edit's summary, or in a
clause about graph A when it belongs to the schedule that is taught.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from littledragon.validators._prose import Token, numeric

_BREAKS: Final = frozenset(";:!?.,—–")
_BREAK_WORDS: Final = frozenset(("but", "while", "whereas", "although", "though"))
_PRIOR_WORDS: Final = frozenset(("prior", "previous", "previously", "supplied", "parent"))
_SUBJECT = re.compile(r"\.(loop|split|buffer)\.([a-z0-9_]+)")


@dataclass(frozen=True)
class Subjects:
    """What the facts know of loops.

    names: loop, block or buffer → its names, in lower case. pairs: (block, loop), likewise.
    lists: prefix (`out` or `in.prior`) → loop → the lists of its factors.
    edits: edit → names of loops and blocks that it takes, in lower case. products: edit → its lists of factors. What
        derived post-processing does is that of an edit `postproc`.
    """

    names: Mapping[str, frozenset[str]]
    pairs: frozenset[tuple[str, str]]
    lists: Mapping[str, Mapping[str, list[list[Fraction]]]]
    edits: Mapping[str, frozenset[str]]
    products: Mapping[str, list[list[Fraction]]]


def subjects(facts: Mapping[str, Any]) -> Subjects:
    """Read them off the facts' paths and values."""
    pairs: set[tuple[str, str]] = set()
    names: dict[str, set[str]] = {"loop": set(), "block": set(), "buffer": set()}
    lists: dict[str, dict[str, list[list[Fraction]]]] = {"out": {}, "in.prior": {}}
    edits: dict[str, set[str]] = {}
    products: dict[str, list[list[Fraction]]] = {}
    for path, value in facts.items():
        parts = path.split(".")
        for noun in ("block", "buffer"):
            if parts[:2] == ["in", noun]:
                names[noun].add(parts[2])
        if parts[:2] == ["in", "block"] and len(parts) > 5 and parts[3] == "loop":
            pairs.add((parts[2], parts[4]))
        prefix = "in.prior" if path.startswith("in.prior.") else "out"
        base, _, last = path.rpartition(".")
        last = re.sub(r"_\d+$", "", last)
        if last == "factors" and f"{base}.name" in facts:
            loop = str(facts[f"{base}.name"]).lower()
            lists[prefix].setdefault(loop, []).append(numeric(value))
            pairs.add((str(facts.get(f"{base}.block", "")).lower(), loop))
        if parts[0] == "out" and re.fullmatch(r"t\d+|postproc", parts[1]):
            if last in ("name", "loop", "loops", "block"):
                taken = {str(name).lower() for name in ([value] if isinstance(value, str) else value)}
                names["block" if last == "block" else "loop"] |= taken
                edits.setdefault(parts[1], set()).update(taken)
            elif last in ("factors", "extents"):
                products.setdefault(parts[1], []).append(numeric(value))
    names["loop"] |= {loop for _, loop in pairs}
    names["block"] |= {block for block, _ in pairs}
    fixed = {noun: frozenset(found) for noun, found in names.items()}
    return Subjects(fixed, frozenset(pairs), lists, {e: frozenset(n) for e, n in edits.items()}, products)


def mistaken(tokens: Sequence[Token], known: Subjects, edit: str | None, refining: bool) -> list[str]:
    """What the prose says of the wrong subject, each with the reason. `edit`: of whose summary it is, or None."""
    found: list[str] = []
    named: dict[str, str] = {}
    for clause in _clauses(tokens):
        prior = refining and _of_prior(clause)
        for i, token in enumerate(clause):
            word = token.text.lower()
            if word in known.names and i + 1 < len(clause) and _segment(clause[i + 1].text) in _segments(known, word):
                named[word] = clause[i + 1].text.lower()
                found += _misplaced(word, clause[i:], known, edit)
            elif token.kind == "cite":
                found += _miscited(token, named, prior, refining)
        found += _mistiled(clause, named.get("loop"), known, edit, "in.prior" if prior else "out")
        if any(token.text == "." for token in clause):
            named = {}
    return found


def _segment(name: str) -> str:
    """A name as a fact's path spells it."""
    return re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")


def _segments(known: Subjects, noun: str) -> frozenset[str]:
    return frozenset(_segment(name) for name in known.names[noun])


def _clauses(tokens: Sequence[Token]) -> list[list[Token]]:
    """The tokens of each clause; a full stop ends a clause and stands in it."""
    clauses: list[list[Token]] = [[]]
    for token in tokens:
        if token.text == ".":
            clauses[-1].append(token)
        if (token.kind == "mark" and token.text in _BREAKS) or token.text.lower() in _BREAK_WORDS:
            clauses.append([])
        elif token.text != ".":
            clauses[-1].append(token)
    return clauses


def _of_prior(clause: Sequence[Token]) -> bool:
    words = [token.text.lower() for token in clause]
    return bool(_PRIOR_WORDS & set(words)) or ("graph", "a") in itertools.pairwise(words)


def _misplaced(word: str, rest: Sequence[Token], known: Subjects, edit: str | None) -> list[str]:
    """A loop that its block does not have, or, in a summary, one that the edit does not take."""
    name = rest[1].text.lower()
    if word == "loop" and len(rest) > 4 and [t.text.lower() for t in rest[2:4]] == ["of", "block"]:
        block = rest[4].text.lower()
        if not {(block, name), (_segment(block), _segment(name))} & known.pairs:
            return [f"block {rest[4].text} has no loop {rest[1].text}"]
    taken = known.edits.get(edit or "", frozenset())
    if word != "buffer" and taken and name not in taken:
        return [f"edit {edit} does not take {word} {rest[1].text}"]
    return []


def _miscited(token: Token, named: Mapping[str, str], prior: bool, refining: bool) -> list[str]:
    """A fact of another loop or buffer than the one just named; a fact of graph A said of the schedule, or reversed."""
    found = []
    for match in _SUBJECT.finditer(token.path):
        noun = "buffer" if match.group(1) == "buffer" else "loop"
        if noun in named and _segment(named[noun]) != match.group(2):
            found.append(f"{token.path} is no fact of {noun} {named[noun]}")
    if refining and token.path.startswith("in.prior.") and not prior:
        found.append(f"{token.path} is a fact of graph A, and the clause does not name graph A")
    if refining and token.path.startswith("out.") and prior:
        found.append(f"{token.path} is a fact of the schedule, and the clause speaks of graph A")
    return found


def _mistiled(clause: Sequence[Token], loop: str | None, known: Subjects, edit: str | None, prefix: str) -> list[str]:
    """A product that stands for a split and is not that of the loop just named, or of the edit."""
    found = []
    for factors in _products(clause):
        spelled = " * ".join(map(str, factors))
        own = known.products.get(edit or "")
        if own and factors not in own:
            found.append(f"edit {edit} has no factors {spelled}")
        lists = known.lists[prefix].get(loop or "", [])
        whole = {_product(factors) for factors in lists}
        if edit is None and lists and _product(factors) in whole and factors not in lists:
            found.append(f"loop {loop} is not split into {spelled}")
    return found


def _products(clause: Sequence[Token]) -> list[list[Fraction]]:
    """The operands of every `a * b * c` in a clause."""
    found: list[list[Fraction]] = []
    run: list[Fraction] = []
    for i, token in enumerate(clause):
        follows = i > 0 and clause[i - 1].text == "*" and bool(run)
        if token.kind == "number" and token.value is not None:
            run = [*run, token.value] if follows else [token.value]
            if i + 1 == len(clause) or clause[i + 1].text != "*":
                found += [run] if len(run) > 1 else []
                run = []
        elif token.text != "*":
            run = []
    return found


def _product(factors: Sequence[Fraction]) -> Fraction:
    total = Fraction(1)
    for factor in factors:
        total *= factor
    return total
