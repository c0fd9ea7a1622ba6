"""The `facts` teacher: explanations from templates over facts, the same for the same facts.

It says what is true of the payload at hand: each deed that the facts report (`out.deeds`) has an analysis that
rests on evidence, the edits that do it are motivated by that analysis, and predict an effect. Refining, it
tells what differs from graph A. The sentences stand in `templates/facts.txt`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Template
from typing import Any, Final

from littledragon.schemas.graph import Analysis, Edge, Edit, Effect, Evidence
from littledragon.schemas.ids import canonical_json
from littledragon.teacher_prompts import load
from littledragon.teacher_prompts.protocol import Explanation, Request

MODEL: Final = "templates"
TEMPLATE: Final = "facts"
MAX_EVIDENCE: Final = 6
_EFFECTS: Final = (
    ("tile", ("tile",)), ("tensorize", ("tensorize",)), ("bind", ("bind",)), ("parallel", ("parallel",)),
    ("vectorize", ("vectorize",)), ("unroll", ("unroll",)), ("cache", ("cache_read", "cache_write")),
    ("compute_at", ("compute_at",)), ("inline", ("inline",)), ("rfactor", ("rfactor",)), ("decompose", ("decompose",)),
)  # fmt: skip
"""Effects in the order of their weight, and the deeds that each is predicted by."""
MAX_EFFECTS: Final = 4


def explain(request: Request) -> Explanation:
    """The explanation of one payload. Pure: equal requests give equal explanations.

    Raises:
        ValueError: a fact that every selection has is missing.
    """
    writer = _Writer(request)
    if request.mode == "refine":
        _refinement(writer)
    _tiles(writer)
    _placement(writer)
    _loops(writer)
    if not writer.analyses:
        block = writer.main
        writer.analysis(
            "untouched",
            [f"in.block.{block}.iterations", "in.flops"],
            [edit.id for edit in request.graph.edits],
            block=writer.value(f"in.block.{block}.name"),
            iterations=writer.cite(f"in.block.{block}.iterations"),
        )
    for path in (f"in.block.{writer.main}.iterations", "in.flops"):
        if len(writer.evidence) < 2:
            writer.edges.append(Edge("supports", writer.quote(path), writer.analyses[0].id))
    _effects(writer)
    summaries = {edit.id: _summary(writer, edit) for edit in request.graph.edits}
    edges = tuple(dict.fromkeys(writer.edges))
    return Explanation(tuple(writer.evidence), tuple(writer.analyses), summaries, tuple(writer.effects), edges)


@dataclass
class _Writer:
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
        """Write an analysis, if evidence for it is left; whether it was written."""
        known = {e.cite for e in self.evidence}
        room = MAX_EVIDENCE - len(known)
        chosen = [path for path in rests_on if path in self.texts]
        new = [path for path in chosen if path not in known][: max(room, 0)]
        chosen = [path for path in chosen if path in known or path in new]
        if not chosen:
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


def _tiles(writer: _Writer) -> None:
    """One analysis for each split loop of M0, reductions first, then the longest."""
    found = []
    for (block, loop), (edit, base) in writer.splits("out").items():
        at = f"in.block.{_segment(block)}.loop.{_segment(loop)}"
        if writer.has(f"{at}.extent", f"{at}.kind", f"{base}.innermost"):
            kind, extent = writer.value(f"{at}.kind"), writer.value(f"{at}.extent")
            found.append(((kind != "reduction", -extent, edit), at, kind, base, edit, block, loop))
    found.sort(key=lambda item: item[0])
    for position, (_, at, kind, base, edit, block, loop) in enumerate(found[:3]):
        factors = writer.value(f"{base}.factors")
        whole = sum(factor > 1 for factor in factors) < 2
        writer.analysis(
            f"tile_{kind}{'_whole' if whole else ''}",
            [f"{at}.kind" if position == 0 else f"{at}.extent", f"{at}.extent"],
            [edit, *(writer.doing("reorder") if position == 0 else [])],
            loop=loop,
            block=block,
            extent=writer.cite(f"{at}.extent"),
            product=product(factors),
            inner=writer.cite(f"{base}.innermost"),
        )


def _segment(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name.lower())


def _placement(writer: _Writer) -> None:
    """Where blocks are computed and where values are kept: compute-at, inlining, stages, decomposition."""
    for edit in writer.doing("compute_at")[:1]:
        for path, suffix in writer.parts(edit, "compute_at", "block")[:1]:
            block, at = writer.value(path), f"out.{edit}.compute_at.loop{suffix}"
            own = f"in.block.{_segment(block)}"
            loop = str(writer.values.get(at, ""))
            producers = writer.values.get(f"{own}.producers", [])
            if producers and loop:
                writer.analysis(
                    "compute_at", [f"{own}.producers"], [edit], block=block, producer=producers[0], loop=loop
                )
            elif loop:
                rests = [f"{own}.iterations", f"in.block.{writer.main}.iterations"]
                writer.analysis("compute_at_plain", rests, [edit], block=block, loop=loop)
    for edit in writer.doing("inline")[:1]:
        for path, _ in writer.parts(edit, "inline", "block")[:1]:
            block = writer.value(path)
            iterations = f"in.block.{_segment(block)}.iterations"
            if writer.has(iterations):
                writer.analysis("inline", [iterations], [edit], block=block, iterations=writer.cite(iterations))
    for deed in ("cache_write", "cache_read"):
        for edit in writer.doing(deed)[:1]:
            for path, suffix in writer.parts(edit, deed, "block")[:1]:
                _stage(writer, deed, edit, writer.value(path), f"out.{edit}.{deed}.scope{suffix}")
    reduction = f"in.block.{writer.main}.reduction"
    if writer.value(reduction):
        name = writer.value(f"in.block.{writer.main}.name")
        for deed in ("rfactor", "decompose"):
            if deed in writer.deeds:
                writer.analysis(deed, [reduction], writer.doing(deed), block=name, reduction=writer.cite(reduction))


def _stage(writer: _Writer, deed: str, edit: str, block: str, scope: str) -> None:
    reduction = f"in.block.{_segment(block)}.reduction"
    if not writer.has(scope) or (deed == "cache_write" and not writer.values.get(reduction)):
        return
    slots = {"block": block, "scope": writer.cite(scope)}
    if deed == "cache_write":
        slots["reduction"] = writer.cite(reduction)
    writer.analysis(deed, [reduction, f"in.block.{writer.main}.reads"], [edit], **slots)


def _loops(writer: _Writer) -> None:
    """How loops run: in parallel, bound to threads, vectorised, unrolled, on tensor cores."""
    longest = [f"in.block.{writer.main}.iterations"]
    if "tensorize" in writer.deeds:
        buffer = _buffer(writer, "reads")
        rests = [f"in.buffer.{_segment(buffer)}.dtype"]
        dtype = writer.cite(rests[0])
        writer.analysis("tensorize", rests, writer.doing("tensorize"), buffer=buffer, dtype=dtype)
    if "bind" in writer.deeds:
        edits = writer.doing("bind")
        if writer.has("out.grid", "out.threads_per_block"):
            slots = {"grid": writer.cite("out.grid"), "threads": writer.cite("out.threads_per_block")}
            writer.analysis("bind", ["in.target.threads_per_block", *longest], edits, **slots)
        else:
            writer.analysis("bind_loose", longest, edits)
    elif writer.has("in.target.cores"):
        cores = writer.cite("in.target.cores")
        if writer.has("out.parallel.widest"):
            extent = writer.cite("out.parallel.widest")
            writer.analysis("parallel", ["in.target.cores"], writer.doing("parallel"), cores=cores, extent=extent)
        elif "parallel" not in writer.deeds:
            writer.analysis("serial", ["in.target.cores"], [], cores=cores)
    if "vectorize" in writer.deeds:
        buffer = _buffer(writer, "writes")
        slots = {"buffer": buffer, "dtype": writer.cite(f"in.buffer.{_segment(buffer)}.dtype")}
        sentence = "vectorize_thin"
        if writer.has("out.vectorized.widest"):
            sentence, slots["extent"] = "vectorize", writer.cite("out.vectorized.widest")
        writer.analysis(sentence, [f"in.buffer.{_segment(buffer)}.dtype"], writer.doing("vectorize"), **slots)
    if "unroll" in writer.deeds and writer.has("out.unroll_step"):
        slots = {"block": writer.value(f"in.block.{writer.main}.name"), "iterations": writer.cite(longest[0])}
        writer.analysis("unroll", longest, writer.doing("unroll"), step=writer.cite("out.unroll_step"), **slots)


def _buffer(writer: _Writer, what: str) -> str:
    """The name of the first buffer that the main block reads or writes."""
    return str(writer.value(f"in.block.{writer.main}.{what}")[0])


def _refinement(writer: _Writer) -> None:
    """What differs from graph A: at most one analysis for each kind of difference, splits at most two."""
    writer.analysis("refine_band", ["in.request.gain_band"], [], band=_band(writer))
    prior, here = writer.splits("in.prior"), writer.splits("out")
    told = 0
    for key, (_, base) in prior.items():
        if key not in here or told == 2:
            continue
        edit, own = here[key]
        before, after = writer.value(f"{base}.factors"), writer.value(f"{own}.factors")
        if before != after:
            slots = {"loop": key[1], "block": key[0], "before": product(before), "after": product(after)}
            told += writer.analysis("refine_split", [f"{base}.factors"], [edit], **slots)
    for what, path in (("parallel", "parallel.widest"), ("vectorize", "vectorized.widest"), ("unroll", "unroll_step")):
        old, new = f"in.prior.{path}", f"out.{path}"
        if writer.has(old, new) and writer.value(old) != writer.value(new):
            slots = {"before": writer.cite(old), "after": writer.cite(new)}
            writer.analysis(f"refine_{what}", [old], writer.doing(what), **slots)
    earlier = frozenset(writer.value("in.prior.deeds"))
    for sentence, differing in (("refine_new", writer.deeds - earlier), ("refine_gone", earlier - writer.deeds)):
        for deed in sorted(differing):
            if f"deed_{deed}" in writer.sentences:
                edits = writer.doing(deed) if sentence == "refine_new" else []
                writer.analysis(sentence, ["in.prior.deeds"], edits, deed=writer.say(f"deed_{deed}"))


def _band(writer: _Writer) -> str:
    return writer.cite("in.request.gain_band") if writer.has("in.request.gain_band") else ""


def _effects(writer: _Writer) -> None:
    for name, deeds in _EFFECTS:
        edits = [e for e in writer.doing(*deeds) if set(deeds) & set(writer.values.get(f"out.{e}.deeds", ()))]
        if len(writer.effects) >= MAX_EFFECTS or not edits or (name == "parallel" and "bind" in writer.deeds):
            continue
        _effect(writer, f"effect_{name}", edits)
    if not writer.effects:
        _effect(writer, "effect_untouched", [writer.request.graph.edits[0].id])


def _effect(writer: _Writer, sentence: str, edits: list[str]) -> None:
    node = f"p{len(writer.effects) + 1}"
    writer.effects.append(Effect(node, writer.say(sentence)))
    writer.edges += [Edge("predicts", edit, node) for edit in edits]


def _summary(writer: _Writer, edit: Edit) -> str:
    """The summary of an edit: a sentence for each kind of thing that its facts tell, four at most."""
    kinds = {i.kind for i in edit.instructions}
    sentences = [
        *_split_sentences(writer, edit.id),
        *_loop_sentences(writer, edit.id),
        *_block_sentences(writer, edit.id),
    ]
    sentences += _marks(writer, edit.id)
    if "Unannotate" in kinds:
        sentences.append(writer.say("edit_unmark"))
    if "EnterPostproc" in kinds:
        sentences.append(writer.say("edit_boundary"))
    return " ".join(list(dict.fromkeys(sentences))[:4]) or writer.say("edit_lookup")


def _split_sentences(writer: _Writer, edit: str) -> list[str]:
    found = []
    for path in writer.values:
        if path.startswith(f"out.{edit}.split.") and path.endswith(".factors"):
            base = path.rsplit(".", 1)[0]
            slots = {
                name: str(writer.values.get(f"{base}.{key}", ""))
                for name, key in (("loop", "name"), ("block", "block"))
            }
            extent, factors = writer.cite(f"{base}.extent"), writer.value(path)
            found.append(writer.say("edit_split", extent=extent, product=product(factors), **slots))
    if not found:
        found = [writer.say("edit_split_bare", loop=writer.value(p)) for p, _ in writer.parts(edit, "split", "loop")]
    return found


def _loop_sentences(writer: _Writer, edit: str) -> list[str]:
    found = []
    for path, suffix in writer.parts(edit, "fuse", "loops"):
        names = " and ".join(writer.value(path))
        extents = writer.values.get(f"out.{edit}.fuse.extents{suffix}")
        found.append(
            writer.say("edit_fuse", loops=names, product=product(extents))
            if extents
            else writer.say("edit_fuse_bare", loops=names)
        )
    for what in ("parallel", "vectorize", "unroll", "bind"):
        for path, suffix in writer.parts(edit, what, "loop"):
            extent = f"out.{edit}.{what}.extent{suffix}"
            slots = {"loop": writer.value(path), "extent": writer.cite(extent) if writer.has(extent) else "unknown"}
            thread = f"out.{edit}.{what}.thread{suffix}"
            if writer.has(thread):
                slots["thread"] = writer.value(thread)
            found.append(writer.say(f"edit_{what}", **slots))
    for path, _ in writer.parts(edit, "reorder", "loops"):
        found.append(writer.say("edit_reorder", loops=", ".join(writer.value(path))))
    return found


def _block_sentences(writer: _Writer, edit: str) -> list[str]:
    found = []
    names = ("cache_read", "cache_write", "compute_at", "inline", "set_scope", "decompose", "tensorize", "rfactor")
    for what in (*names, "reindex", "layout", "blockize", "storage_align"):
        for path, suffix in writer.parts(edit, what, "block") or writer.parts(edit, what, "loop"):
            base = f"out.{edit}.{what}"
            slots = {key: str(writer.values.get(f"{base}.{key}{suffix}", "")) for key in ("block", "loop")}
            scope = f"{base}.scope{suffix}"
            slots["scope"] = writer.cite(scope) if writer.has(scope) else ""
            if what == "compute_at" and not slots["loop"]:
                continue
            found.append(writer.say(f"edit_{what}", **slots))
            del path
    return found


def _marks(writer: _Writer, edit: str) -> Mapping[str, None]:
    """A sentence for each annotation; its key as TVM writes it, from the fact's words."""
    found: dict[str, None] = {}
    for path in writer.values:
        if path.startswith(f"out.{edit}.annotation."):
            words = writer.texts[path].split()
            target, key = words[3], words[5]
            found[writer.say("edit_mark", target=target, key=key, value=writer.cite(path))] = None
    return found
