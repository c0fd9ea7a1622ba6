"""A model's reply, read as hostile input: a JSON object of bounded size, depth and counts, and nothing else.

{"evidence": [{"id": "e1", "cite": "in.…"}, …],       its text is looked up, so it cannot be misquoted
 "analyses": [{"id": "a1", "text": "…", "supported_by": ["e1"], "motivates": ["t0"]}, …],
 "summaries": {"t0": "…", …},
 "effects": [{"id": "p1", "text": "…", "predicted_by": ["t0"]}, …]}
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from littledragon.schemas.graph import Analysis, Edge, EdgeKind, Effect, Evidence
from littledragon.teacher_prompts.protocol import Explanation, Request

MAX_REPLY: Final = 1 << 18
"""Characters of a reply."""
MAX_DEPTH: Final = 8
MAX_NODES: Final = 64
MAX_TEXT: Final = 2000
MAX_EDGES: Final = 64
"""Edges of one node."""

# Possessive, and an open string ends with the text: a reply of quotes alone must not cost quadratic time.
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_SPELLING = str.maketrans(
    {"‐": "-", "‑": "-", "‒": "-", "―": "—", "⋅": "*", "∗": "*", "⁄": "/", "∕": "/", "\t": " ", "\r": " "}
)


class InvalidReply(Exception):
    """The reply is not an explanation. Its text says what is wrong, in one line, for the model that is asked again."""


def parse(text: str, request: Request) -> Explanation:
    """The explanation that a reply spells.

    Unicode is folded to its plain forms here (NFKC, hyphens), so that the verifier need not forgive anything.

    Raises:
        InvalidReply: it is not such an object, too large, or refers to an unknown node or fact.
    """
    reply = _object(text)
    _keys(reply, "the reply", ("evidence", "analyses", "summaries", "effects"))
    texts = {str(fact["path"]): str(fact["text"]) for fact in request.facts}
    edits = {edit.id for edit in request.graph.edits}
    evidence = [_evidence(item, i, texts) for i, item in enumerate(_list(reply, "evidence"))]
    edges: list[Edge] = []
    analyses, effects = [], []
    for i, item in enumerate(_list(reply, "analyses")):
        _keys(item, f"analyses[{i}]", ("id", "text", "supported_by", "motivates"))
        analyses.append(Analysis(_id(item, "a", f"analyses[{i}]"), _text(item["text"], f"analyses[{i}].text")))
        edges += _edges(item, "supported_by", "supports", analyses[-1].id, {e.id for e in evidence})
        edges += _edges(item, "motivates", "motivates", analyses[-1].id, edits)
    for i, item in enumerate(_list(reply, "effects")):
        _keys(item, f"effects[{i}]", ("id", "text", "predicted_by"))
        effects.append(Effect(_id(item, "p", f"effects[{i}]"), _text(item["text"], f"effects[{i}].text")))
        edges += _edges(item, "predicted_by", "predicts", effects[-1].id, edits)
    for name, nodes in (("evidence", evidence), ("analyses", analyses), ("effects", effects)):
        if len({node.id for node in nodes}) != len(nodes):
            raise InvalidReply(f"{name}: an id stands twice")
    return Explanation(
        tuple(evidence), tuple(analyses), _summaries(reply["summaries"], edits), tuple(effects), tuple(edges)
    )


def _object(text: str) -> dict[str, Any]:
    if len(text) > MAX_REPLY:
        raise InvalidReply(f"the reply has {len(text)} characters; at most {MAX_REPLY} are read")
    body = text.strip()
    if body.startswith("```") and body.endswith("```"):
        body = body[3:-3].removeprefix("json")
    if _depth(body) > MAX_DEPTH:
        raise InvalidReply(f"the reply is nested deeper than {MAX_DEPTH}")
    try:
        reply = json.loads(
            body, object_pairs_hook=_once, parse_constant=_refuse, parse_int=_number, parse_float=_number
        )
    except InvalidReply:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidReply(f"the reply is not one JSON object: {str(error)[:120]}") from None
    if not isinstance(reply, dict):
        raise InvalidReply("the reply is not a JSON object")
    return reply


def _depth(text: str) -> int:
    """The deepest nesting of brackets outside strings."""
    depth = deepest = 0
    for char in _STRING.sub("", text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(char, 0)
        deepest = max(deepest, depth)
    return deepest


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise InvalidReply("a key stands twice in one object")
    return dict(pairs)


def _refuse(name: str) -> Any:
    raise InvalidReply(f"{name} is not JSON")


def _number(text: str) -> Any:
    """No field of a reply is a number, so none is built: a long one would cost quadratic time."""
    raise InvalidReply(f"a number stands where text is expected: {text[:20]}")


def _keys(item: Any, place: str, wanted: tuple[str, ...]) -> None:
    if not isinstance(item, Mapping):
        raise InvalidReply(f"{place} is not an object")
    if set(item) != set(wanted):
        raise InvalidReply(f"{place} has the keys {', '.join(wanted)}, each once, and no others")


def _list(reply: Mapping[str, Any], name: str) -> list[Any]:
    items = reply[name]
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_NODES:
        raise InvalidReply(f"{name} is a list of 1 to {MAX_NODES} objects")
    return items


def _id(item: Mapping[str, Any], letter: str, place: str) -> str:
    name = item["id"]
    if not isinstance(name, str) or not re.fullmatch(rf"{letter}\d{{1,4}}", name):
        raise InvalidReply(f"{place}.id is {letter} and a number")
    return name


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidReply(f"{place} is a text")
    if len(value) > MAX_TEXT:
        raise InvalidReply(f"{place} has {len(value)} characters, at most {MAX_TEXT} are allowed")
    plain = unicodedata.normalize("NFKC", value).translate(_SPELLING)
    for char in plain:
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn") and char != "\n":
            raise InvalidReply(f"{place} holds the character U+{ord(char):04X}")
    return " ".join(plain.split())


def _evidence(item: Any, index: int, texts: Mapping[str, str]) -> Evidence:
    place = f"evidence[{index}]"
    _keys(item, place, ("id", "cite"))
    cite = item["cite"]
    if not isinstance(cite, str) or cite not in texts or not cite.startswith("in."):
        raise InvalidReply(f"{place}.cite is the path of a fact of in.…; '{str(cite)[:80]}' is none")
    return Evidence(_id(item, "e", place), cite, texts[cite])


def _edges(item: Mapping[str, Any], key: str, kind: EdgeKind, node: str, known: set[str]) -> list[Edge]:
    ends = item[key]
    if not isinstance(ends, list) or len(ends) > MAX_EDGES or not all(isinstance(end, str) for end in ends):
        raise InvalidReply(f"{node}.{key} is a list of at most {MAX_EDGES} ids")
    for end in ends:
        if end not in known:
            raise InvalidReply(f"{node}.{key}: there is no '{end[:40]}'")
    unique = list(dict.fromkeys(ends))
    return [Edge(kind, node, end) if kind == "motivates" else Edge(kind, end, node) for end in unique]


def _summaries(value: Any, edits: set[str]) -> dict[str, str]:
    given = set(value) if isinstance(value, Mapping) else set()
    if given != edits:
        missing = ", ".join(sorted(edits - given)[:20]) or "none, but unknown ones are there"
        raise InvalidReply(f"summaries is an object with one text for each edit; missing: {missing}")
    return {edit: _text(text, f"summaries.{edit}") for edit, text in value.items()}
