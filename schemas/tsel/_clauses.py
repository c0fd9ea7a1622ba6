"""The clauses of a summary while an edit is told: what they are about, and what follows them."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from littledragon.schemas.graph import Edit
from littledragon.schemas.tsel._names import Names, listed, things, word

MAX_SUMMARY: Final = 300
"""Characters of a derived summary."""
_MORE: Final = "; and more"
_AGREES: Final = re.compile(r"\[([^|\]]*)\|([^\]]*)\]")


class Clause:
    """`{}` of its pattern stands for what it is about, `[one|many]` for what agrees with that."""

    def __init__(self, pattern: str, key: str = "", weak: bool = False) -> None:
        self.pattern = pattern
        self.key = key
        self.things: list[str] = []
        self.loops: list[Any] = []
        self.tails: list[str] = []
        self.weak = weak
        """Told only where the edit does nothing else."""

    def text(self, names: Names) -> str:
        told = [*self.things, *([names.several(self.loops)] if self.loops else [])]
        one = len(told) == 1 and len(self.loops) < 2
        text = _AGREES.sub(lambda match: match.group(1 if one else 2), self.pattern)
        return ", ".join([text.replace("{}", things(told), 1), *self.tails])


class Telling:
    """An edit that is being told. `names` knows what earlier edits made."""

    def __init__(self, names: Names, edit: Edit) -> None:
        self.names = names
        self.clauses: list[Clause] = []
        self.copies: dict[str, Clause] = {}
        """Clauses that go on with what becomes of a block, by the block's name in the trace."""
        self.fused: dict[Any, tuple[Clause, Sequence[Any]]] = {}
        """Loops that this edit fused, by the name of the one that came of them."""
        self.shares: dict[str, list[str]] = {}
        """Over what post-processing shares out the fetch of a block."""
        self.after = any(i.kind == "EnterPostproc" for i in edit.instructions)
        splits = (i.inputs[1:] for i in edit.instructions if i.kind == "Split")
        self.consumed = {factors for factors in splits if hashable(factors)}
        """The numbers that this edit splits a loop by."""

    def say(self, pattern: str, thing: str = "", *, loop: Any = None, weak: bool = False, key: str = "") -> Clause:
        """Add to the clause of a pattern (or of a key, whatever its pattern), or begin it."""
        for clause in self.clauses:
            if (clause.key == key if key else clause.pattern == pattern) and not clause.tails:
                break
        else:
            clause = Clause(pattern, key, weak)
            self.clauses.append(clause)
        if loop is not None:
            clause.loops.append(loop)
        elif thing and thing not in clause.things:
            clause.things.append(thing)
        return clause

    def begin(self, pattern: str, thing: str, blocks: Sequence[str]) -> Clause:
        """A clause of its own that goes on with what becomes of these blocks."""
        clause = Clause(pattern)
        clause.things.append(thing)
        self.clauses.append(clause)
        self.copies.update(dict.fromkeys(blocks, clause))
        return clause

    def follow(self, block: Any, tail: str) -> Clause | None:
        """Go on with the clause of a block, if this edit has one."""
        clause = self.copies.get(block) if isinstance(block, str) else None
        if clause is not None and tail not in clause.tails:
            clause.tails.append(tail)
        return clause

    def text(self, edit: Edit) -> str:
        """The whole summary."""
        self.clauses[1:1] = self._shared()
        strong = [clause for clause in self.clauses if not clause.weak] or self.clauses
        clauses = [clause.text(self.names) for clause in strong]
        return _sentence(self._elided(edit, clauses or [_looked_up(edit)]))

    def _shared(self) -> Iterable[Clause]:
        """The fetches that post-processing carries out, those over the same threads in one clause."""
        alike: dict[str, list[str]] = {}
        for block, ways in self.shares.items():
            alike.setdefault(listed([way for way in ways if way]), []).append(block)
        for threads, blocks in alike.items():
            wide = ["" in self.shares[block] for block in blocks]
            how = " in vectors" if all(wide) else ", some of it in vectors" if any(wide) else ""
            clause = Clause(f"share out the fetch of {{}}{f' over {threads}' if threads else ''}{how}")
            clause.things.append(self.names.copies(blocks))
            yield clause

    def _elided(self, edit: Edit, clauses: list[str]) -> list[str]:
        """Where all is done to one block, only the first mention of a loop says whose it is."""
        given = (i.inputs[0] for i in edit.instructions if i.inputs and i.kind not in ("GetConsumers", "GetProducers"))
        owners = {self.names.owner(name) for name in given if isinstance(name, str)}
        if len(owners) != 1:
            return clauses
        whose = re.compile(rf" of {re.escape(self.names.of(owners.pop()))}(?![\w.'])")
        first = whose.search(text := "\n".join(clauses))
        if first is None:
            return clauses
        return (text[: first.end()] + whose.sub("", text[first.end() :])).split("\n")


def hashable(values: Sequence[Any]) -> bool:
    return not any(isinstance(value, (list, dict)) for value in values)


def at(values: Sequence[Any], index: int, default: Any = "") -> Any:
    """The value at an index, where there is one."""
    return values[index] if index < len(values) else default


def _looked_up(edit: Edit) -> str:
    found = [word(at(i.attrs, 0)) for i in edit.instructions if i.kind == "GetSBlock"]
    return f"look up {listed(found)}" if found else "look up blocks and loops"


def _sentence(clauses: Sequence[str]) -> str:
    """As many of the clauses as there is room for."""
    text = clauses[0]
    for number, more in enumerate(clauses[1:], 2):
        room = MAX_SUMMARY - len("; .") - (0 if number == len(clauses) else len(_MORE))
        if len(text) + len(more) > room:
            text += _MORE
            break
        text += f"; {more}"
    text = text if len(text) < MAX_SUMMARY else "change blocks with long names"
    return f"{text[0].upper()}{text[1:]}."
