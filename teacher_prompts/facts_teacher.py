"""The `facts` teacher: explanations from templates over facts, the same for the same facts.

It says what is true of the payload at hand: each deed that the facts report (`out.deeds`) has an analysis that
rests on evidence, the edits that do it are motivated by that analysis, and predict an effect. Refining, it
tells what differs from graph A. The sentences stand in `templates/facts.txt`.
"""

from typing import Final

from littledragon.schemas.graph import Edge, Effect
from littledragon.teacher_prompts._summaries import summary
from littledragon.teacher_prompts._writer import Writer, product, segment
from littledragon.teacher_prompts.protocol import Explanation, Request

MODEL: Final = "templates"
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
    writer = Writer(request)
    if request.mode == "refine":
        _refinement(writer)
    _tiles(writer)
    _loops(writer)
    _placement(writer)
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
    summaries = {edit.id: summary(writer, edit) for edit in request.graph.edits}
    edges = tuple(dict.fromkeys(writer.edges))
    return Explanation(tuple(writer.evidence), tuple(writer.analyses), summaries, tuple(writer.effects), edges)


def _tiles(writer: Writer) -> None:
    """One analysis for the longest reduction and one for the longest spatial loop of M0 that are split."""
    longest: dict[str, tuple[int, str, str, str, str, str]] = {}
    for (block, loop), (edit, base) in writer.splits("out").items():
        at = f"in.block.{segment(block)}.loop.{segment(loop)}"
        if writer.has(f"{at}.extent", f"{at}.kind", f"{base}.innermost"):
            kind, extent = writer.value(f"{at}.kind"), writer.value(f"{at}.extent")
            if extent > max(1, longest[kind][0] if kind in longest else 0):
                longest[kind] = (extent, at, base, edit, block, loop)
    for kind in ("reduction", "spatial"):
        if kind not in longest:
            continue
        _, at, base, edit, block, loop = longest[kind]
        factors = writer.value(f"{base}.factors")
        sentence = f"tile_{kind}"
        if sum(factor > 1 for factor in factors) < 2:
            sentence += "_whole"
        elif kind == "reduction" and factors[-1] == 1:
            sentence = "tile_other"
        first = not writer.evidence
        writer.analysis(
            sentence,
            [f"{at}.kind", f"{at}.extent"] if first else [f"{at}.extent"],
            [edit, *(writer.doing("reorder") if first else [])],
            loop=loop,
            block=block,
            extent=writer.cite(f"{at}.extent"),
            product=product(factors),
            inner=writer.cite(f"{base}.innermost"),
        )


def _placement(writer: Writer) -> None:
    """Where blocks are computed and where values are kept: compute-at, inlining, stages, decomposition."""
    for edit in writer.doing("compute_at")[:2]:
        for what in ("reverse_compute_at", "compute_at"):
            for path, suffix in writer.parts(edit, what, "block")[:1]:
                loop = writer.values.get(f"out.{edit}.{what}.loop{suffix}")
                if isinstance(loop, str):
                    _moved(writer, what, edit, writer.value(path), loop)
    for edit in writer.doing("inline")[:1]:
        for path, _ in writer.parts(edit, "inline", "block")[:1]:
            block = writer.value(path)
            iterations = f"in.block.{segment(block)}.iterations"
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


def _moved(writer: Writer, what: str, edit: str, block: str, loop: str) -> None:
    """The analysis of a block that is computed under a loop of its producer or of its consumer."""
    own = f"in.block.{segment(block)}.producers"
    if what == "reverse_compute_at" and writer.has(own):
        writer.analysis(what, [own], [edit], block=block, producer=writer.value(own)[0], loop=loop)
        return
    for path, producers in writer.values.items():
        if what == "compute_at" and path.startswith("in.block.") and path.endswith(".producers") and block in producers:
            consumer = writer.value(path.replace(".producers", ".name"))
            writer.analysis(what, [path], [edit], block=block, consumer=consumer, loop=loop)
            return
    rests = [f"in.block.{segment(block)}.iterations", f"in.block.{writer.main}.iterations"]
    writer.analysis("compute_at_plain", rests, [edit], block=block, loop=loop)


def _stage(writer: Writer, deed: str, edit: str, block: str, scope: str) -> None:
    reduction = f"in.block.{segment(block)}.reduction"
    if not writer.has(scope) or (deed == "cache_write" and not writer.values.get(reduction)):
        return
    slots = {"block": block, "scope": writer.cite(scope)}
    if deed == "cache_write":
        slots["reduction"] = writer.cite(reduction)
    writer.analysis(deed, [reduction, f"in.block.{writer.main}.reads"], [edit], **slots)


def _loops(writer: Writer) -> None:
    """How loops run: in parallel, bound to threads, vectorised, unrolled, on tensor cores."""
    longest = [f"in.block.{writer.main}.iterations"]
    if "tensorize" in writer.deeds:
        buffer = _buffer(writer, "reads")
        rests = [f"in.buffer.{segment(buffer)}.dtype"]
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
        slots = {"buffer": buffer, "dtype": writer.cite(f"in.buffer.{segment(buffer)}.dtype")}
        sentence = "vectorize_thin"
        if writer.has("out.vectorized.widest"):
            sentence, slots["extent"] = "vectorize", writer.cite("out.vectorized.widest")
        writer.analysis(sentence, [f"in.buffer.{segment(buffer)}.dtype"], writer.doing("vectorize"), **slots)
    if "unroll" in writer.deeds and writer.has("out.unroll_step"):
        slots = {"block": writer.value(f"in.block.{writer.main}.name"), "iterations": writer.cite(longest[0])}
        writer.analysis("unroll", longest, writer.doing("unroll"), step=writer.cite("out.unroll_step"), **slots)


def _buffer(writer: Writer, what: str) -> str:
    """The name of the first buffer that the main block reads or writes."""
    return str(writer.value(f"in.block.{writer.main}.{what}")[0])


def _refinement(writer: Writer) -> None:
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


def _band(writer: Writer) -> str:
    return writer.cite("in.request.gain_band") if writer.has("in.request.gain_band") else ""


def _effects(writer: Writer) -> None:
    for name, deeds in _EFFECTS:
        edits = [edit for edit in writer.doing(*deeds) if set(deeds) & writer.done(edit)]
        if len(writer.effects) >= MAX_EFFECTS or not edits or (name == "parallel" and "bind" in writer.deeds):
            continue
        _effect(writer, f"effect_{name}", edits)
    if not writer.effects:
        _effect(writer, "effect_untouched", [writer.request.graph.edits[0].id])


def _effect(writer: Writer, sentence: str, edits: list[str]) -> None:
    node = f"p{len(writer.effects) + 1}"
    writer.effects.append(Effect(node, writer.say(sentence)))
    writer.edges += [Edge("predicts", edit, node) for edit in edits]
