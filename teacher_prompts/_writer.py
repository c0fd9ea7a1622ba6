"""What the `facts` teacher writes with: the facts at hand, the sentences, and the nodes written so far."""

import json
from dataclasses import dataclass, field
from string import Template
from typing import Any, Final

from littledragon.schemas.graph import Analysis, Edge, Effect, Evidence
from littledragon.schemas.ids import canonical_json
from littledragon.teacher_prompts import load
from littledragon.teacher_prompts.protocol import Request

TEMPLATE: Final = "facts"
MAX_EVIDENCE: Final = 6
MAX_ANALYSES: Final = 8


@dataclass
class Writer:
    """The facts at hand, the sentences, and what has been written so far."""

    request: Request
    evidence: list[Evidence] = field(default_factory=list)
    analyses: list[Analysis] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values: dict[str, Any] = {str(f["path"]): json.loads(f["value"]) for f in self.request.facts}
        self.texts = {str(f["path"]): str(f["text"]) for f in self.request.facts}
        lines = (line for line in load(TEMPLATE).text.splitlines() if line and not line.startswith("#"))
        self.sentences = {name: Template(text) for name, text in (line.split(": ", 1) for line in lines)}
        self.deeds = frozenset(self.value("out.deeds"))
        self.main = self._main_block()

    def _main_block(self) -> str:
        """The path segment of the block that does most: a reduction before others, then by iterations."""
        blocks = [p.split(".")[2] for p in self.values if p.startswith("in.block.") and p.endswith(".iterations")]
        if not blocks:
            raise ValueError("facts: no block of M0")
        return max(
            blocks,
            key=lambda b: (self.values.get(f"in.block.{b}.reduction", 0) > 0, self.values[f"in.block.{b}.iterations"]),
        )

    def has(self, *paths: str) -> bool:
        return all(path in self.values for path in paths)

    def value(self, path: str) -> Any:
        """The value of a fact.

        Raises:
            ValueError: there is no such fact.
        """
        if path not in self.values:
            raise ValueError(f"facts: {path} is missing")
        return self.values[path]

    def cite(self, path: str) -> str:
        """The citation of a fact in prose."""
        value = self.value(path)
        return f"[{path}={value if isinstance(value, str) else canonical_json(value)}]"

    def say(self, sentence: str, **slots: str) -> str:
        return self.sentences[sentence].substitute(slots)

    def quote(self, path: str) -> str:
        """The id of the evidence that quotes a fact; it is written at the first use."""
        for evidence in self.evidence:
            if evidence.cite == path:
                return evidence.id
        self.evidence.append(Evidence(f"e{len(self.evidence) + 1}", path, self.texts[path]))
        return self.evidence[-1].id

    def analysis(self, sentence: str, rests_on: list[str], edits: list[str], **slots: str) -> bool:
        """Write an analysis, if there is evidence for it; whether it was written.

        `rests_on` are the facts that it wants quoted. Where the evidence is used up, it rests on what has been quoted
        of the block that it speaks of.
        """
        known = [e.cite for e in self.evidence]
        room = MAX_EVIDENCE - len(known)
        chosen = [path for path in rests_on if path in self.texts]
        new = [path for path in chosen if path not in known][: max(room, 0)]
        chosen = [path for path in chosen if path in known or path in new]
        own = f"in.block.{segment(slots.get('block', ''))}."
        chosen = chosen or [path for path in known if path.startswith(own)][:1]
        if not chosen or len(self.analyses) == MAX_ANALYSES:
            return False
        text = self.say(sentence, **slots)
        if any(analysis.text == text for analysis in self.analyses):
            return False
        node = f"a{len(self.analyses) + 1}"
        self.analyses.append(Analysis(node, text))
        self.edges += [Edge("supports", self.quote(path), node) for path in chosen]
        self.edges += [Edge("motivates", node, edit) for edit in edits]
        return True

    def doing(self, *deeds: str) -> list[str]:
        """The edits that do, or ask for, one of these deeds."""
        found = []
        for edit in self.request.graph.edits:
            own = {*self.values.get(f"out.{edit.id}.deeds", ()), *self.values.get(f"out.{edit.id}.asks", ())}
            if own & set(deeds):
                found.append(edit.id)
        return found

    def done(self, edit: str) -> set[str]:
        """The deeds that come of an edit: its own, and what it asks of derived post-processing and that does."""
        asked = set(self.values.get(f"out.{edit}.asks", ()))
        return {*self.values.get(f"out.{edit}.deeds", ()), *(asked & {*self.values.get("out.postproc.deeds", ())})}

    def parts(self, edit: str, what: str, last: str, prefix: str = "out") -> list[tuple[str, str]]:
        """(path, suffix) of the facts `<prefix>.<edit>.<what>.<last>`, in order: one for each such instruction."""
        start = f"{prefix}.{edit}.{what}.{last}"
        return [(p, p[len(start) :]) for p in self.values if p == start or p.startswith(f"{start}_")]

    def splits(self, prefix: str) -> dict[tuple[str, str], tuple[str, str]]:
        """(block, loop) → (edit, path of the split) for each loop that the payload splits."""
        found: dict[tuple[str, str], tuple[str, str]] = {}
        for path in self.values:
            parts = path.split(".")
            if path.startswith(f"{prefix}.t") and parts[-1] == "factors" and parts[-3] == "split":
                base = path.rsplit(".", 1)[0]
                edit = parts[1 if prefix == "out" else 2]
                block = self.values.get(f"{base}.block")
                loop = self.values.get(f"{base}.name")
                if isinstance(block, str) and isinstance(loop, str):
                    found.setdefault((block, loop), (edit, base))
        return found


def product(factors: list[int]) -> str:
    """`32 * 2 * 2 = 128`; a single factor stands alone as a comparison with itself."""
    total = 1
    for factor in factors:
        total *= factor
    return f"{' * '.join(map(str, factors))} = {total}"


def segment(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name.lower())
