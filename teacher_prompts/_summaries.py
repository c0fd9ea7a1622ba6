"""The `facts` teacher's summaries of edits: a sentence for each kind of thing that an edit's facts tell."""

from collections.abc import Mapping
from typing import Final

from littledragon.schemas.graph import Edit
from littledragon.teacher_prompts._writer import Writer, product

MAX_SENTENCES: Final = 6
_AT_A_BLOCK: Final = (
    *("cache_read", "cache_write", "compute_at", "reverse_compute_at", "stay", "inline", "set_scope", "decompose"),
    *("tensorize", "rfactor", "reindex", "layout", "blockize", "storage_align"),
)


def summary(writer: Writer, edit: Edit) -> str:
    """The summary of an edit: a sentence for each kind of thing that its facts tell."""
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
    return " ".join(list(dict.fromkeys(sentences))[:MAX_SENTENCES]) or writer.say("edit_lookup")


def _split_sentences(writer: Writer, edit: str) -> list[str]:
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


def _loop_sentences(writer: Writer, edit: str) -> list[str]:
    found = []
    for path, suffix in writer.parts(edit, "fuse", "loops"):
        *first, last = writer.value(path)
        names = f"{', '.join(first)} and {last}"
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


def _block_sentences(writer: Writer, edit: str) -> list[str]:
    found = []
    for what in _AT_A_BLOCK:
        for _, suffix in writer.parts(edit, what, "block") or writer.parts(edit, what, "loop"):
            base = f"out.{edit}.{what}"
            slots = {key: str(writer.values.get(f"{base}.{key}{suffix}", "")) for key in ("block", "loop")}
            scope = f"{base}.scope{suffix}"
            slots["scope"] = writer.cite(scope) if writer.has(scope) else ""
            if what in ("compute_at", "reverse_compute_at") and not slots["loop"]:
                continue
            found.append(writer.say(f"edit_{what}", **slots))
    return found


def _marks(writer: Writer, edit: str) -> Mapping[str, None]:
    """A sentence for each annotation; its key as TVM writes it, from the fact's words."""
    found: dict[str, None] = {}
    for path in writer.values:
        if path.startswith(f"out.{edit}.annotation."):
            words = writer.texts[path].split()
            target, key = words[3], words[5]
            found[writer.say("edit_mark", target=target, key=key, value=writer.cite(path))] = None
    return found
