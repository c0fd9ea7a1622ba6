"""Testing what prose says of a schedule: which words claim which deed, and whether the payload does it.

A clause that uses a deed's word claims the deed; a clause that negates the word claims its absence. The names
that prose uses (loops, blocks, buffers, types) must be known to the facts or to the payload.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from littledragon.compiler.deeds import BY_KIND, deeds, values
from littledragon.schemas.graph import Analysis, Edit, Effect, Graph, Instruction
from littledragon.validators._prose import Token, skeleton

_LEXICON: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (r"paralleli[sz]|\bparallel\b|\bmulti-?thread|\bconcurrent", ("parallel",)),
    (r"vectori[sz]|\bsimd\b|\bvector (?:lane|instruction|width|load|store|op|register|unit)", ("vectorize",)),
    (r"unroll", ("unroll",)),
    (r"\btil(?:e|es|ed|ing)\b|\bsplit(?:s|ting)?\b|\bstrip-?min|\bsub-?tile", ("tile",)),
    (r"\bfus(?:e|es|ed|ing) (?:\S+ ){0,3}?(?:loops?|axes|axis)\b|\b(?:loops?|axes) (?:\S+ ){0,4}?fused\b"
     r"|\bcollaps(?:e|es|ed|ing)\b|\bcoalesc(?:e|es|ed|ing) (?:\S+ ){0,3}?(?:loops?|axes)\b", ("fuse_loops",)),
    (r"\bfus(?:e|es|ed|ing|ion)\b|\bmerg(?:e|es|ed|ing)\b", ("fuse_loops", "compute_at", "inline")),
    (r"\breorder|\binterchang|\bre-order|\bpermut(?:e|es|ed|ing)\b (?:\S+ ){0,3}?loops?", ("reorder",)),
    (r"\binlin(?:e|es|ed|ing)\b", ("inline",)),
    (r"\bcache[- ]?read|\bread[- ]cache", ("cache_read",)),
    (r"\bcache[- ]?write|\bwrite[- ]cache", ("cache_write",)),
    (r"\bcach(?:ed|ing)\b|\bcaches (?:the|a|an|its|each|every|input|output|operand|block|buffer|tile)\b"
     r"|\bcache (?:stage|buffer|cop|block)|\bstag(?:ed|ing)\b|\bcopied into\b|\bcop(?:y|ies) (?:\S+ ){0,4}?into\b",
     ("cache",)),
    (r"\bcompute[- ]?at\b|\bcomputed at\b|\breverse[-_ ]compute", ("compute_at",)),
    (r"\bdecompos", ("decompose", "decompose_padding")),
    (r"\brfactor|\br-factor|\bfactori[sz]es? (?:\S+ ){0,3}?reduction", ("rfactor",)),
    (r"\btensor[- ]?cores?\b|\btensori[sz]|\bwmma\b|\bmma\b|\bmatrix (?:core|unit|fragment|intrinsic)", ("tensorize",)),
    (r"\bthread ?block|\bblockidx|\bthreadidx|\bthread (?:binding|index|axis|axes)|\bgpu (?:block|thread)"
     r"|\bbind(?:s|ing)?\b|\bbound to\b|\bwarps?\b|\bvthread|\bvirtual thread", ("bind",)),
    (r"\bthreads?\b|\bthreading\b|\bacross (?:\S+ ){0,3}?cores\b|\bworkers?\b", ("parallel",)),
    (r"\bpipelin|\bprefetch|\basync|\bsoftware-pip", ("pipeline",)),
    (r"\bdouble[- ]buffer", ("double_buffer",)),
    (r"\bshared[- ]memory|\bshared scope|\bscratch-?pad|\bshared buffer", ("shared",)),
    (r"\blocal (?:memory|scope|buffer|stage)", ("local",)),
    (r"\bstorage[- ]align|\bbank[- ]conflict", ("storage_align",)),
    (r"\blayouts? (?:is |are |gets? )?(?:transform|rewrit|chang)|\b(?:transform|rewrit|chang)\w* (?:\S+ ){0,4}?layout"
     r"|\bre-?pack",
     ("layout",)),
    (r"\bre-?index", ("reindex",)),
    (r"\bblocki[sz]", ("blockize", "bind")),
    (r"\bcooperative", ("cooperative_fetch",)),
    (r"\bpad(?:s|ded|ding)\b (?:\S+ ){0,3}?(?:einsum|loop|extent|reduction)", ("pad",)),
    (r"\brolling buffer", ("rolling_buffer",)),
)  # fmt: skip
_COMPILED: Final = tuple((re.compile(pattern), wanted) for pattern, wanted in _LEXICON)

_COMPOUND = re.compile(r"\b[A-Za-z]\w*\.[A-Za-z][\w.]*\w|\b[A-Za-z]\w*_\w+|\b(?:[A-Z][a-z]+){2,}\b")
_CLAUSE = re.compile(
    r"[;:!?\n]|\.(?=\s|$)|,|(?<!nothing )\bbut\b|\bwhile\b|\bwhereas\b|\balthough\b|\bthough\b| - |[–—]"
)
_NEGATOR = (
    r"(?:\bnot\b(?! (?:the )?only)|n't\b|n’t\b|\bno\b(?! (?:more|fewer|less) than)|\bnever\b|\bwithout\b|\bnone\b|"
    r"\bneither\b|\bnor\b|\bcannot\b|\bnothing\b(?! but)|\bnobody\b|\bnowhere\b|\bhardly\b|\bscarcely\b|\bbarely\b|"
    r"\binstead of\b|\brather than\b|\babsence of\b|\bfree (?:of|from)\b|\b(?:de)?void of\b|\bbereft of\b|\bfar from\b|"
    r"\baway from\b|\bclear of\b|\bavoid\w*|\black\w*|\bskip\w*|\bomit\w*|\bleaves? out\b|\brefrain\w*|\bforgo\w*|"
    r"\beschew\w*|\bdispens\w* with\b|\bdisabl\w*|\babst(?:ain|ention)\w* from\b|\bshun\w*|\bwaiv\w*|\bexclud\w*|"
    r"\bignor\w*|\brenounc\w*|\b(?:fail|declin|refus)\w* to\b)"
)
_NEGATED = re.compile(_NEGATOR + r"(?:\s+\S+){0,6}\s*$")
_NO_SUBJECT = re.compile(
    r"\b(?:no|none|nothing|nobody|neither|not (?:a|one|any|even))\b(?! (?:but|more|less|fewer)\b)"
    r"(?: (?!(?:and|so|because|since|which|that|where|when|hence|thus|as|if)\b)\S+){1,16}?"
    r" (?:is|are|gets?|be|been|was|were|runs?)(?: \S+){0,3}\s*$"
)
"""No loop, of whatever kind, is … : the subject may be far from the word."""
_COUNTED_OUT = re.compile(r"(?:\bzero|(?<![\w.])0)(?:\s+\S+){0,2}\s*$")
_REACH: Final = 400
"""Characters before a word in which its negation is looked for."""
_PREFIXED = re.compile(r"(?:\bun-?|\bnon-?|\bde-)$")
_TRAILING = re.compile(
    r"^\w*\s+(?:is|are|was|were|does|do|has|have|stays?|remains?|gets?)\s+(?:\w+\s+)?"
    r"(?:not(?! (?:the )?only)|never|absent|missing|avoided|omitted|skipped|disabled|unused|nowhere(?! else)|none|"
    r"nil|off|gone|foregone|forgone|waived|excluded|dropped|abandoned|ruled out|"
    r"(?:left|turned|switched|kept) (?:out|off|aside|away)|"
    r"dispensed with|out of the question|no (?:part|role|place|use)|done without)\b"
    r"|^\w*\s+(?:\w+ly\s+)?(?:nothing|none|nowhere|neither|nobody|zero|0|no|not (?:a|one|any|even))\b"
    r"(?!\s+(?:but|else|more|other|except|beyond|besides|apart|save|less|fewer|longer|later|further|matter|doubt)\b)"
    r"|^\w*\s+(?:\S+\s+){0,4}?nowhere\b(?!\s+else)"
    r"|^\w*\s+(?:plays?|has|have|takes?|finds?|makes?|sees?)\s+no\s+(?:part|role|place|use|appearance)\b"
    r"|^\w*\s+never\s+(?:happen|occur|take|come|appear|appl|use|used|show)"
)
_UN = re.compile(r"\b(un|non)-?(?=(?:til|split|strip|fus|merg|reorder|inlin|cach|stag|pipelin|bound|pad|re-?order))")
"""Untiled is un-tiled, so that its word is seen, and what it says of it."""
_PRIOR = re.compile(r"\b(?:prior|previous|previously|supplied|parent|graph a|schedule a|earlier schedule)\b")
PRIOR_DEEDS: Final = "in.prior.deeds"


@dataclass(frozen=True)
class Scope:
    """What a node's claims are tested on: the deeds (and asks) of an edit or of the payload, and those of graph A."""

    done: frozenset[str]
    prior: frozenset[str] | None
    whose: str


def scopes(graph: Graph, added: Sequence[Instruction], facts: Mapping[str, Any]) -> tuple[Scope, dict[str, Scope]]:
    """The scope of analyses and effects, and that of each edit's summary, by the edit's id.

    `added` is what derived post-processing adds to the edits.
    """
    prior = frozenset(facts[PRIOR_DEEDS]) if isinstance(facts.get(PRIOR_DEEDS), list) else None
    known = values(graph.edits)
    done, _ = deeds((*(i for edit in graph.edits for i in edit.instructions), *added), known)
    return Scope(done, prior, "the schedule"), {edit.id: _edit_scope(edit, known, prior) for edit in graph.edits}


def _edit_scope(edit: Edit, known: Mapping[str, Any], prior: frozenset[str] | None) -> Scope:
    done, asked = deeds(edit.instructions, known)
    return Scope(done | asked, prior, f"edit {edit.id}")


def claims(text: str, scope: Scope) -> tuple[int, list[str]]:
    """How many claims the prose makes of the scope, and those that are false, each with the reason.

    `text` is prose without its citations.
    """
    count, false = 0, []
    for clause in _CLAUSE.split(_UN.sub(r"\1-", skeleton(_COMPOUND.sub(_unfolded, text)))):
        of_prior = scope.prior is not None and _PRIOR.search(clause) is not None
        done, whose = (scope.prior or frozenset(), "graph A") if of_prior else (scope.done, scope.whose)
        for pattern, wanted in _COMPILED:
            for match in pattern.finditer(clause):
                count += 1
                does = any(deed in done for deed in wanted)
                if _denied(clause, match.start(), match.end()) == does:
                    verb = "does" if does else "does not"
                    false.append(f"'{clause.strip()[:80]}': {whose} {verb} {' or '.join(wanted)}")
    return count, false


def _unfolded(match: re.Match[str]) -> str:
    """A name inside prose: that of a deed or an instruction as words (`compute at`), any other as a blank."""
    name = _snake(match.group())
    return name.replace("_", " ") if name in _DEED_NAMES else "#"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


_DEED_NAMES: Final = {_snake(kind) for kind in BY_KIND} | {deed for found in BY_KIND.values() for deed in found}


def _denied(clause: str, start: int, end: int) -> bool:
    before = clause[max(0, start - _REACH) : start]
    negated = any(pattern.search(before) for pattern in (_NEGATED, _NO_SUBJECT, _COUNTED_OUT, _PREFIXED))
    return negated or _TRAILING.search(clause[end:]) is not None


_IDENTIFIER = re.compile(r"[a-z0-9_]*[_\d][a-z0-9_.]*|[a-z0-9_]+(?:\.[a-z0-9_]+)+|[b-hj-z]", re.IGNORECASE)
_CAMEL = re.compile(r"[a-z]+[A-Z]\w*|[A-Z][a-z]+[A-Z]\w*")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
PROSE_WORDS: Final = frozenset({"e.g", "i.e", "etc", "vs", "TensorIR", "MetaSchedule", "s"})


def names(graph: Graph, added: Iterable[Instruction], facts: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Every name that the facts or the payload use, in lower case: loops, blocks, buffers, types, kinds, ids."""
    found: set[str] = set()
    for fact in facts:
        for text in (str(fact["value"]), str(fact["text"]), str(fact["path"])):
            found.update(n.lower() for n in _NAME.findall(text))
            found.update(part.lower() for n in _NAME.findall(text) for part in n.split("."))
    for edit in graph.edits:
        found.update((edit.id.lower(), edit.kind.lower()))
        for instruction in edit.instructions:
            found.update((instruction.kind.lower(), _snake(instruction.kind)))
            for leaf in _leaves([instruction.inputs, instruction.attrs]):
                found.update(n.lower() for n in _NAME.findall(leaf))
    for instruction in added:
        found.update((instruction.kind.lower(), _snake(instruction.kind)))
    found.update(e.id for e in graph.evidence)
    found.update(n.id for n in explained(graph))
    return frozenset(found)


def explained(graph: Graph) -> tuple[Analysis | Effect, ...]:
    """The nodes of a graph that hold prose, its edits left out."""
    return (*graph.analyses, *graph.effects)


def _leaves(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from _leaves(member)


def unknown_names(tokens: Iterable[Token], known: frozenset[str]) -> list[str]:
    """The words of a text that can only be names (`i7`, `NT_matmul`, `threadIdx.x`, `q`), and that nobody knows."""
    found = []
    for token in tokens:
        if token.kind != "word" or token.text in PROSE_WORDS or token.text.lower() in known:
            continue
        if _IDENTIFIER.fullmatch(token.text) or _CAMEL.fullmatch(token.text):
            found.append(token.text)
    return found


_KIND_OF = re.compile(
    r"\b(spatial|reduction) (?:loop|axis|loops|axes) `?(\w+)`?|`?\b(\w+)`? is an? (spatial|reduction)\b"
)


def wrong_kinds(text: str, kinds: Mapping[str, frozenset[str]]) -> tuple[int, list[str]]:
    """Claims that a loop is spatial or a reduction: how many there are, and those that no such loop bears out."""
    count, false = 0, []
    for match in _KIND_OF.finditer(text):
        kind, name = match.group(1) or match.group(4), match.group(2) or match.group(3)
        known = kinds.get(name.lower())
        if known is not None:
            count += 1
            if kind not in known:
                false.append(f"'{match.group()}': {name} is {' and '.join(sorted(known))}")
    return count, false


_RUN_OF = re.compile(
    r"\bloop `?(?P<first>\w+)`? (?:is|gets|becomes|runs) (?:(?:also|then|itself|run|executed) )?"
    r"(?P<how>vectori[sz]ed|paralleli[sz]ed|in parallel|bound)\b"
    r"|\b(?P<verb>vectori[sz]|paralleli[sz]|bind)\w* (?:the )?(?:\w+ )?loop `?(?P<second>\w+)`?",
    re.IGNORECASE,
)
_RUNS: Final = {"v": "vectorize", "p": "parallel", "i": "parallel", "b": "bind"}
_TAKEN = re.compile(r"out\.(?:t\d+|postproc)\.(vectorize|parallel|bind)\.loop(?:_\d+)?")


def taken(facts: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The names of the loops that are vectorised, run in parallel, bound to threads, by the deed."""
    found: dict[str, set[str]] = {deed: set() for deed in _RUNS.values()}
    for path, value in facts.items():
        if match := _TAKEN.fullmatch(path):
            found[match.group(1)].add(str(value).lower())
    found["parallel"] |= found["bind"]
    return {deed: frozenset(names) for deed, names in found.items()}


def wrong_loops(
    text: str, loops: Iterable[str], runs: Mapping[str, frozenset[str]], prior: bool
) -> tuple[int, list[str]]:
    """Claims that a loop of M0 is vectorised, parallel or bound: how many, and those that no part of it bears out.

    Parts of loop `i0` are called `i0_0`, and `i0_0_i1_0_fused` where they were fused. `prior`: clauses that name
    graph A are left alone.
    """
    count, false = 0, []
    for clause in _CLAUSE.split(text):
        for match in _RUN_OF.finditer(clause):
            name = (match.group("first") or match.group("second")).lower()
            deed = _RUNS[(match.group("how") or match.group("verb"))[0].lower()]
            denied = _denied(clause.lower(), match.start(), match.end())
            if name not in loops or denied or (prior and _PRIOR.search(clause.lower())):
                continue
            count += 1
            if not any(re.search(rf"(?:^|_){re.escape(name)}(?:_|$)", one) for one in runs[deed]):
                false.append(f"'{match.group()}': {deed} takes no part of loop {name}")
    return count, false
