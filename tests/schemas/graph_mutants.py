"""Mutants of graphs: another legal schedule, or one that breaks a rule, with its names numbered again.

Working form: a list of instructions, each with the number of the edit that it stands in, and the pool of maps.
"""

import dataclasses
import json
import random
import re
from collections.abc import Callable
from typing import Any

from legality import AXES, KINDS

from littledragon.schemas.graph import Edit, Graph, Instruction, Postproc

NAME = re.compile(r"[blv]\d+")

Steps = list[tuple[int, Instruction]]
"""Instructions with the number of the edit that each stands in."""


def decisions(draw: random.Random, graph: Graph) -> Graph:
    """The graph with other decisions, each legal for itself."""
    steps = [(number, step) for number, edit in enumerate(graph.edits) for step in edit.instructions]
    for _ in range(draw.choice((1, 1, 2, 4))):
        draw.choice((_retile, _decide))(draw, steps, {})
    edits = []
    for number, edit in enumerate(graph.edits):
        edits.append(dataclasses.replace(edit, instructions=tuple(step for at, step in steps if at == number)))
    return dataclasses.replace(graph, edits=tuple(edits))


def regraph(draw: random.Random, graph: Graph) -> tuple[str, Graph]:
    """Another graph, mostly a well-formed one, and what was done."""
    steps = [(number, step) for number, edit in enumerate(graph.edits) for step in edit.instructions]
    maps = dict(graph.maps)
    done = []
    for _ in range(draw.choice((1, 1, 1, 2, 3, 5))):
        name, change = draw.choice(GRAPHS)
        if steps:
            change(draw, steps, maps)
            done.append(name)
    loose = draw.random() < 0.05
    steps, maps = renumber(draw, steps, maps, loose)
    edits: list[Edit] = []
    for number, edit in enumerate(graph.edits):
        own = tuple(step for at, step in steps if at == number)
        if own or loose:
            edits.append(dataclasses.replace(edit, instructions=own, summary=_words(draw)))
    if draw.random() < 0.2 and len(edits) > 1:
        done.append("regroup")
        at = draw.randrange(len(edits) - 1)
        both = edits[at].instructions + edits[at + 1].instructions
        cut = draw.randint(0, len(both))
        halves = [(edits[at], both[:cut]), (edits[at + 1], both[cut:])]
        edits[at : at + 2] = [dataclasses.replace(edit, instructions=part) for edit, part in halves if part]
    postproc = None
    if draw.random() < 0.25:
        done.append("derive")
        postproc = Postproc(*draw.choice((("cuda", 1), ("llvm", 1), ("cuda-tensorcore", 1), ("cuda", 2), ("x", 1))))
        kinds = [any(step.kind == "EnterPostproc" for step in edit.instructions) for edit in edits]
        edits = edits[: kinds.index(True)] if True in kinds else edits
    return "+".join(done), dataclasses.replace(graph, edits=tuple(edits), maps=maps, postproc=postproc)


def _words(draw: random.Random) -> str:
    return draw.choice(("", "", "", "", "", "Split it.", "a < b & c", " "))


def renumber(
    draw: random.Random, steps: Steps, maps: dict[str, Any], loose: bool = False
) -> tuple[Steps, dict[str, Any]]:
    """Names numbered again in order. What refers to nothing takes another name of the same letter, or goes; `loose`
    leaves it. Maps that nothing uses go too."""
    names: dict[str, str] = {}
    made: dict[str, list[str]] = {"b": [], "l": [], "v": []}
    count = 0
    kept: Steps = []

    def new(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(new(item) for item in value)
        if not isinstance(value, str) or not NAME.fullmatch(value) or loose:
            return names.get(value, value) if isinstance(value, str) else value
        if value not in names and not made[value[0]]:
            raise LookupError(value)
        return names.get(value) or draw.choice(made[value[0]])

    for at, step in steps:
        try:
            inputs = tuple(new(value) for value in step.inputs)
        except LookupError:
            continue
        outputs = []
        for name in step.outputs:
            outputs.append(f"{name[0]}{count}")
            count += 1
        kept.append((at, step._replace(inputs=inputs, outputs=tuple(outputs))))
        for old, name in zip(step.outputs, outputs, strict=True):
            names[old] = name
            made[name[0]].append(name)
    text = json.dumps([[list(step.inputs), list(step.attrs)] for _, step in kept], default=str)
    used = {name: value for name, value in maps.items() if loose or f'{{"map": "{name}"}}' in text}
    return kept, {name: _rename_map(value, names, value["in"]) for name, value in used.items()}


def _rename_map(value: Any, names: dict[str, str], own: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: item if key == "in" else _rename_map(item, names, own) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_rename_map(item, names, own) for item in value)
    return names.get(value, value) if isinstance(value, str) and value not in own else value


def _find(draw: random.Random, steps: Steps, fits: Callable[[Instruction], Any]) -> int | None:
    """The number of a random instruction that fits."""
    start = draw.randrange(len(steps))
    for offset in range(len(steps)):
        if fits(steps[(start + offset) % len(steps)][1]):
            return (start + offset) % len(steps)
    return None


def _put(steps: Steps, at: int, **parts: Any) -> None:
    steps[at] = (steps[at][0], steps[at][1]._replace(**parts))


def split(draw: random.Random, extent: int, n: int, limit: int) -> list[int]:
    """All factors but the last of a random tile of `extent` into `n`."""
    factors = [1] * n
    rest, prime = extent, 2
    while rest > 1:
        prime = prime if prime * prime <= rest else rest
        if rest % prime:
            prime += 1
            continue
        rest //= prime
        fits = [i for i in range(n) if i < n - 1 or limit == -1 or factors[i] * prime <= limit]
        factors[draw.choice(fits)] *= prime
    return factors[:-1]


def _retile(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    at = _find(draw, steps, lambda step: isinstance(step.decision, dict))
    if at is not None:
        extent = steps[at][1].decision["extent"]
        n, limit = len(steps[at][1].outputs), steps[at][1].attrs[1]
        factors = split(draw, extent, n, limit if isinstance(limit, int) else 64)
        _put(steps, at, decision={"extent": extent, "factors": factors})


def _all_tiles(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    for _ in range(8):
        _retile(draw, steps, maps)


def _extent(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    at = _find(draw, steps, lambda step: isinstance(step.decision, dict))
    if at is None:
        return
    by = draw.choice((1, 1, 2, 3, 1 << 10, 1 << 20))
    decision = steps[at][1].decision
    factors = list(decision["factors"])
    if not factors or not isinstance(factors[0], int):
        return
    factors[0] *= by
    if draw.random() < 0.3:
        factors[draw.randrange(len(factors))] = draw.choice((0, -1, 3, 7, 1 << 40, True, 2.0, None, "4"))
    _put(steps, at, decision={"extent": decision["extent"] * by, "factors": factors})


def _decide(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    at = _find(draw, steps, lambda step: isinstance(step.decision, int))
    if at is not None:
        high = len(steps[at][1].attrs[0]) - 1 if steps[at][1].kind == "SampleCategorical" else 6
        low = 0 if steps[at][1].kind == "SampleCategorical" else -2
        near = draw.randint(low, max(low, high))
        _put(steps, at, decision=near if draw.random() < 0.9 else draw.choice((-1, -3, high + 1, 1 << 40, None, True)))


def _refer(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    at = _find(draw, steps, lambda step: any(isinstance(v, str) and NAME.fullmatch(v) for v in step.inputs))
    if at is None:
        return
    inputs = list(steps[at][1].inputs)
    places = [i for i, v in enumerate(inputs) if isinstance(v, str) and NAME.fullmatch(v)]
    place = draw.choice(places)
    before = [name for _, step in steps[:at] for name in step.outputs]
    letter = inputs[place][0] if draw.random() < 0.9 else draw.choice("blv")
    inputs[place] = draw.choice([name for name in before if name[0] == letter] or [inputs[place]])
    _put(steps, at, inputs=tuple(inputs))


def _remove(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    at = draw.randrange(len(steps))
    del steps[at : at + draw.choice((1, 1, 1, 2, 5))]


def _cut(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    del steps[draw.randrange(len(steps)) + 1 :]


def _repeat(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    start = draw.randrange(len(steps))
    run = steps[start : start + draw.choice((1, 1, 2, 4))]
    to = draw.randint(start, len(steps))
    edit = steps[min(to, len(steps) - 1)][0]
    steps[to:to] = [(edit, step) for _, step in run]


def _swap(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    at, to = draw.randrange(len(steps)), draw.randrange(len(steps))
    if draw.random() < 0.7:
        to = min(at + 1, len(steps) - 1)
    first, second = steps[at][1], steps[to][1]
    steps[at], steps[to] = (steps[at][0], second), (steps[to][0], first)


def _move(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    _, step = steps.pop(draw.randrange(len(steps)))
    to = draw.randint(0, len(steps))
    steps.insert(to, (steps[min(to, len(steps) - 1)][0] if steps else 0, step))


def _attribute(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    at = _find(draw, steps, lambda step: step.attrs)
    if at is not None:
        step = steps[at][1]
        attrs = list(step.attrs)
        place = draw.randrange(len(attrs))
        attrs[place] = _other(draw, step.kind, attrs[place], maps)
        _put(steps, at, attrs=tuple(attrs))


def _literal(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    at = _find(draw, steps, lambda step: any(not isinstance(v, str) for v in step.inputs))
    if at is not None:
        inputs = list(steps[at][1].inputs)
        place = draw.choice([i for i, value in enumerate(inputs) if not isinstance(value, str)])
        inputs[place] = _other(draw, steps[at][1].kind, inputs[place], maps)
        _put(steps, at, inputs=tuple(inputs))


def _boundary(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    at = _find(draw, steps, lambda step: step.kind == "EnterPostproc")
    if at is None or draw.random() < 0.2:
        to = draw.randrange(len(steps))
        steps.insert(to, (steps[to][0], Instruction("EnterPostproc", (), (), ())))
    elif draw.random() < 0.5:
        del steps[at]
    else:
        del steps[at:]


def _map_change(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    if not maps:
        return
    name = draw.choice(list(maps))
    value = json.loads(json.dumps(maps[name]))
    out = value["out"] if isinstance(value["out"], list) else list(value["in"])
    value["out"] = out
    choice = draw.randrange(6)
    if choice == 0:
        draw.shuffle(out)
    elif choice == 1 and out:
        out[draw.randrange(len(out))] = _expression(draw, value["in"], 3)
    elif choice == 2:
        out.append(_expression(draw, value["in"], 2))
    elif choice == 3 and out:
        out.pop()
    elif choice == 4:
        value["in"].append(f"i{len(value['in']) + 90}")
    elif value["in"]:
        value["in"][0] = draw.choice(("i0", "v0", "v5", "x", *value["in"]))
    maps[name] = value


_INTS = (0, 1, 2, 3, 4, 8, 16, 32, 64, 128, 512, 1024, -1, -2, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 63, 10**30)
_SCOPES = ("shared", "local", "global", "shared.dyn", "wmma.matrix_a", "wmma.accumulator", "warp", "texture", "bogus")
_KEYS = (
    *("meta_schedule.cooperative_fetch", "meta_schedule.unroll_explicit", "meta_schedule.auto_tensorize"),
    *("meta_schedule.thread_extent_high_inclusive", "meta_schedule.tiling_structure", "meta_schedule.inline_rule"),
    *("pragma_auto_unroll_max_step", "pragma_unroll_explicit", "pragma_import_c", "pragma_x", "warp_execution"),
    *("software_pipeline_stage", "software_pipeline_order", "software_pipeline_async_stages", "double_buffer_scope"),
    *("tir.manifest_shared_memory_local_stage", "meta_schedule.vectorize", "meta_schedule.parallel", "x"),
    *("buffer_dim_align", "script_parsing_detect_access", "hand_threaded", "meta_schedule.layout_rewrite_preproc"),
)
_BLOCKS = (
    *("root", "root", "main", "nowhere", "matmul", "NT_matmul", "T_batch_matmul_NN", "T_batch_matmul_NT", "compute"),
    *("conv2d_nchw", "pad_temp", "depthwise_conv2d", "x_red", "x_red_temp", "T_softmax_norm", "T_softmax_expsum"),
    *("matmul_reindex_shared", "conv2d_nchw_local", "pad_temp_shared", "T_multiply", "T_add", "T_cast"),
)
_INTRINSICS = (
    *("wmma_load_16x16x16_f16_a_shared", "wmma_sync_16x16x16_f16f16f16", "wmma_fill_16x16x16_f16", "bogus"),
    *("wmma_sync_16x16x16_f16f16f32", "dot_4x4_i8i8s32_dp4a", "mma_fill_16x16_f32"),
)


def _text(draw: random.Random, kind: str) -> str:
    """A string that may stand in a kind's attribute."""
    known: dict[str, tuple[str, ...]] = {
        "GetSBlock": _BLOCKS,
        "Bind": (*AXES, "threadIdx.w", "bogus"),
        "Tensorize": _INTRINSICS,
        "Annotate": _KEYS,
        "Unannotate": _KEYS,
        "UnsafeSetDType": ("float32", "float16", "int8", "int32x4", "bogus", "handle"),
        "UnsafeHideBufferAccess": ("read", "write", "bogus"),
    }
    return draw.choice(known.get(kind, _SCOPES))


def _other(draw: random.Random, kind: str, value: Any, maps: dict[str, Any]) -> Any:
    """Another value in the place of one: mostly of the same type."""
    if draw.random() < 0.05:
        return draw.choice(
            (None, True, 0.5, -1, "b0", "v1", [], [1], {"int": 1}, {"map": "m0"}, {"str": "b3"}, "", '"')
        )
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice(_INTS) if draw.random() < 0.4 else value + draw.choice((-2, -1, 1, 1, 2, 3, 5))
    if isinstance(value, float):
        return draw.choice((0.5, 0.0, 1e30, -0.5, 1e-30))
    if isinstance(value, str):
        return _text(draw, kind) if draw.random() < 0.9 else value + draw.choice(("0", " ", "_1", "\x00", "é", '"'))
    if isinstance(value, list) and value:
        new = list(value)
        at = draw.randrange(len(new))
        change = draw.randrange(3)
        if change == 0:
            new[at] = _other(draw, kind, new[at], maps)
        elif change == 1:
            del new[at]
        else:
            new.insert(at, new[at])
        return new
    if isinstance(value, dict) and "map" in value and maps:
        return {"map": draw.choice(list(maps))}
    return draw.choice((0, 1, 4, "x"))


def _expression(draw: random.Random, own: list[str], depth: int) -> Any:
    if depth == 0 or draw.random() < 0.3:
        return draw.choice((*own, *own, *_INTS[:10], "v5", "i7") if own else _INTS[:10])
    if draw.random() < 0.15:
        inner = _expression(draw, own, depth - 1)
        special = (["cast", "int64", inner], ["select", ["<", inner, 4], inner, 0], ["call", "exp", "float32", inner])
        special += (
            ["call", "shift_left", "int32", inner, 2],
            ["call", "call_extern", "int32", inner],
            ["!", inner],
            0.5,
        )
        special += (["float32", "nan"], ["int64", 5], ["call", "if_then_else", "int32", True, inner, 1], True)
        return draw.choice(special)
    operator = draw.choice(("+", "*", "//", "%", "-", "min", "max", "/t", "%t", "==", "&&"))
    right = draw.choice(_INTS[:8]) if draw.random() < 0.6 else _expression(draw, own, depth - 1)
    return [operator, _expression(draw, own, depth - 1), right]


def _new_map(draw: random.Random, maps: dict[str, Any]) -> dict[str, str]:
    if maps and draw.random() < 0.3:
        return {"map": draw.choice(list(maps))}
    own = [f"i{n}" for n in range(draw.randint(1, 4))]
    out: list[Any] = list(own)
    draw.shuffle(out)
    if draw.random() < 0.6:
        at, by = draw.randrange(len(out)), draw.choice((2, 4, 16, 16, 0))
        out[at : at + 1] = [["//", out[at], by], ["%", out[at], by]]
    if draw.random() < 0.2:
        out = [_expression(draw, own, 2) for _ in range(draw.randint(1, 3))]
    value = {"in": own, "out": out}
    for name, other in maps.items():
        if other == value:
            return {"map": name}
    name = next(f"m{n}" for n in range(len(maps) + 1) if f"m{n}" not in maps)
    maps[name] = value
    return {"map": name}


def _insert(draw: random.Random, steps: Steps, maps: dict[str, Any]) -> None:
    """A new instruction of any kind, its inputs of the right types."""
    to = draw.randint(0, len(steps))
    made: dict[str, list[str]] = {"b": [], "l": [], "v": []}
    for _, step in steps[:to]:
        for name in step.outputs:
            made[name[0]].append(name)
    kind = draw.choice(list(KINDS))
    takes, holds, makes = KINDS[kind]
    letters = takes.rstrip("+*")
    if takes.endswith(("+", "*")):
        letters += letters[-1] * draw.choice((0, 1, 1, 2))
    try:
        inputs = [_given(draw, kind, letter, made, maps) for letter in letters]
    except IndexError:  # nothing of that type is there yet
        return
    attrs = [_given(draw, kind, letter, made, maps) for letter in holds]
    decision: Any = None
    count = draw.choice((1, 2, 3, 6)) if makes.endswith("*") else len(inputs) - 1 if makes.endswith("=") else len(makes)
    if kind == "SampleCategorical":
        attrs = [[0, 1, 4, 16], [0.25] * 4]
        decision = draw.randrange(4)
    elif kind == "SampleComputeLocation":
        decision = draw.choice((-2, -1, 0, 1, 2, 3))
    elif makes == "v=":
        count = draw.randint(2, 4)
        extent = draw.choice((1, 4, 16, 64, 128, 512, 1024, 768))
        attrs = [count, *([64] if kind == "SamplePerfectTile" else [draw.randint(0, count), draw.choice((1, 1, 2))])]
        limit = 64 if kind == "SamplePerfectTile" else -1
        decision = {"extent": extent, "factors": split(draw, extent, count, limit)}
    outputs = tuple(f"{makes[0]}{draw.randrange(10**6, 10**9)}" for _ in range(count)) if makes else ()
    edit = steps[min(to, len(steps) - 1)][0]
    steps.insert(to, (edit, Instruction(kind, tuple(inputs), tuple(attrs), outputs, decision)))


def _given(draw: random.Random, kind: str, letter: str, made: dict[str, list[str]], maps: dict[str, Any]) -> Any:
    if letter in "bl":
        return made[letter][int(len(made[letter]) * draw.random() ** 0.5)]
    if letter == "t":
        return draw.choice(made["b"] + made["l"])
    if letter in "mn":
        return None if letter == "n" and draw.random() < 0.6 else _new_map(draw, maps)
    if letter == "k" and draw.random() < 0.7:
        return draw.choice(made["l"])
    if letter in "Bk":
        return (draw.choice(made["b"]),) if draw.random() < 0.3 else ()
    if letter == "f":
        return draw.choice((None, 1, 2, 4, 8, 16, 7, draw.choice(made["v"] or [2])))
    if letter == "a":
        return draw.choice((0, 1, 2, 4, 16, 512, "x", "SSSRRSRS", [0, 0, 1], [0, 1, 2], draw.choice(made["v"] or [2])))
    if letter == "I":
        return [draw.choice((0, 1, 2, 3, 4, 16, 32)) for _ in range(draw.randint(1, 4))]
    if letter == "s":
        return _text(draw, kind)
    if kind == "Split":
        return draw.random() < 0.5
    return draw.choice((0, 0, 0, 1, 1, -1, 2, 4, 32))


GRAPHS: list[tuple[str, Callable[[random.Random, Steps, dict[str, Any]], None]]] = [
    ("retile", _retile),
    ("retile", _all_tiles),
    ("extent", _extent),
    ("decide", _decide),
    ("refer", _refer),
    ("refer", _refer),
    ("remove", _remove),
    ("cut", _cut),
    ("repeat", _repeat),
    ("swap", _swap),
    ("move", _move),
    ("attribute", _attribute),
    ("literal", _literal),
    ("boundary", _boundary),
    ("map", _map_change),
    ("insert", _insert),
    ("insert", _insert),
    ("insert", _insert),
]
