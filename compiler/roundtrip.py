"""Whether traces survive the codec, how long their texts are, and how fast it all goes. Everything runs in a child.

A trace is encoded to text and decoded again, in each notation: the trees must be equal. What was decoded is replayed
by TVM: it must build the module that the original schedule has in memory.
"""

import functools
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from littledragon.compiler import corpus, targets
from littledragon.compiler._stepper import import_intrinsics
from littledragon.compiler.corpus import BY_HAND, RULES, Shot
from littledragon.schemas import tsel

TEXTS: Final = ("python", "line", "json", "line derived", "json derived")
"""What is measured of a trace: TVM's printed Python, and our texts, `derived` with post-processing left out."""
Row = dict[str, Any]


def measure(family: str, block: str, variant: int, rules: str, seed: int, count: int, keep: int) -> Row:
    """Draw up to `count` members of one workload's spaces, and check each before and after post-processing.

    Returns:
        `traces` (a row of `_check` for each), `kinds` (instructions by kind), `refused` (draws by reason) and
        `kept`: up to `keep` of the post-processed traces, `{"trace", "module"}`, to time.
    """
    import tvm

    source = corpus.variant(next(b for b in corpus.blocks(family) if b.id == block), variant, seed)
    refused: Counter[str] = Counter()
    answer: Row = {"traces": [], "kept": []}
    kinds: Counter[str] = Counter()
    for member in corpus.members(source, rules, seed, count, refused):
        module = str(tvm.ir.save_json(member.start))
        for shot in (member.before, member.after):
            answer["traces"].append(_check(member.start, module, shot, rules))
            kinds.update(shot.kinds)
        if len(answer["kept"]) < keep and not answer["traces"][-1]["failures"]:
            answer["kept"].append({"trace": member.after.trace, "module": module})
    return answer | {"kinds": dict(kinds), "refused": dict(refused)}


def recorded(module: str, traces: list[str], rules: str, keep: int) -> Row:
    """The same for recorded traces: the original module is what TVM builds of the original trace."""
    import tvm
    from tvm.s_tir import Schedule, Trace

    for trace in traces:
        import_intrinsics(trace)
    start = tvm.ir.load_json(module)
    kinds: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    rows, kept = [], []
    for trace in traces:
        schedule = Schedule(start, seed=1)
        try:
            Trace.apply_json_to_schedule(tvm.ir.load_json(trace), schedule)
        except Exception as error:
            refused[f"recorded: {corpus.reason(error)}"] += 1
            continue
        shot = corpus.shot(schedule)
        rows.append(_check(start, module, Shot(trace, shot.python, shot.kinds, shot.module), rules))
        kinds.update(shot.kinds)
        if not rows[-1]["failures"]:
            kept.append({"trace": trace, "module": module})
    return {"traces": rows, "kinds": dict(kinds), "refused": dict(refused), "kept": kept[:keep]}


def _check(start: Any, module: str, shot: Shot, rules: str) -> Row:
    """One trace through the codec and TVM.

    Returns:
        `after` (whether post-processing is in it), `key` (equal for equal traces of one module), `tree` and `module`
        (whether it came back as each), `derived` (whether its post-processing follows; None where it has none that
        is known), `failures` (reasons), `lossy` (why TVM itself cannot keep this trace, asked where ours failed),
        `sizes` ({text: [characters, tokens]}).
    """
    after = "EnterPostproc" in shot.kinds
    key = hashlib.sha256(module.encode() + shot.trace.encode()).hexdigest()[:16]
    row: Row = {"after": after, "key": key, "tree": False, "module": False, "derived": None, "lossy": None}
    failures: list[str] = []
    texts = {"python": shot.python}
    try:
        trace = tsel.canonical(shot.trace)
        graph = tsel.lift(shot.trace)
    except tsel.TselError as error:
        failures.append(f"encoding: {_said(error)}")
    else:
        decoded = [_text(graph, trace, notation, texts, failures) for notation in tsel.NOTATIONS]
        row["tree"] = all(decoded)
        row["module"] = _same_module(start, shot.module, decoded[0].trace, failures) if decoded[0] else False
        if after and rules != BY_HAND:
            row["derived"] = _derive(module, graph, trace, rules, texts, failures)
    if failures:
        row["lossy"] = _lossy(start, shot)
    return row | {"failures": failures, "sizes": {name: [len(text), _tokens(text)] for name, text in texts.items()}}


def _text(graph: Any, trace: str, notation: tsel.Notation, texts: dict[str, str], failures: list[str]) -> Any:
    """What the graph's text in this notation decodes to; None where that is another trace."""
    try:
        texts[notation] = tsel.render(graph, notation).text
        decoded = tsel.decode(texts[notation])
    except tsel.TselError as error:
        failures.append(f"{notation}: {_said(error)}")
        return None
    if decoded.trace != trace:  # equal trees have equal canonical texts
        failures.append(f"{notation}: decodes to another tree")
        return None
    return decoded


def _same_module(start: Any, wanted: Any, trace: str, failures: list[str]) -> bool:
    """Whether TVM builds this very module of a decoded trace."""
    from tvm_ffi import structural_equal

    try:
        built = _replay(start, trace)
    except Exception as error:
        failures.append(f"replay: {corpus.reason(error)}")
        return False
    if not structural_equal(built.mod, wanted):
        failures.append("replay: builds another module")
        return False
    return True


def _derive(module: str, graph: Any, trace: str, rules: str, texts: dict[str, str], failures: list[str]) -> bool:
    """Whether post-processing can be left out of the text; if so, the text must expand to the whole trace."""
    from littledragon.compiler import traces

    target = targets.target(RULES[rules])
    try:
        short = traces.derive(module, graph, trace, target, rules)
        for notation in tsel.NOTATIONS:
            texts[f"{notation} derived"] = tsel.render(short, notation).text
        if short.postproc is None:
            return False
        decoded = [tsel.decode(texts[f"{notation} derived"]) for notation in tsel.NOTATIONS]
        if decoded[0].tree != decoded[1].tree:
            failures.append("derived: the notations decode to different trees")
        elif traces.expand(module, decoded[0].trace, target, short.postproc) != trace:
            failures.append("derived: expands to another trace")
    except tsel.TselError as error:
        failures.append(f"derived: {_said(error)}")
    except Exception as error:
        failures.append(f"derived: {corpus.reason(error)}")
    return True


def _lossy(start: Any, shot: Shot) -> str | None:
    """Why TVM itself cannot save and load this trace; None where it can."""
    from tvm_ffi import structural_equal

    try:
        built = _replay(start, shot.trace)
    except Exception as error:
        return corpus.reason(error)
    return None if structural_equal(built.mod, shot.module) else "TVM builds another module of its own trace"


def _replay(start: Any, trace: str) -> Any:
    import tvm
    from tvm.s_tir import Schedule, Trace

    schedule = Schedule(start, seed=1)
    Trace.apply_json_to_schedule(tvm.ir.load_json(trace), schedule)
    return schedule


def _said(error: tsel.TselError) -> str:
    """A refusal without its place, so that equal ones are counted together."""
    return f"{error.gate}: {error.message[:80]} ({error.rule})"


def _tokens(text: str) -> int | None:
    """How many cl100k tokens a text is; None where the vocabulary is not installed."""
    encoding = _cl100k()
    return None if encoding is None else len(encoding.encode(text))


@functools.cache
def _cl100k() -> Any:
    try:
        import bpe_openai  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None
    return bpe_openai.get_encoding("cl100k_base")


def speed(kept: list[dict[str, str]], turns: int) -> dict[str, list[float]]:
    """Traces a second on one core, a figure a turn, by turns.

    Returns:
        For each of `line` and `json`: trace to text, text to tree, trees compared, without TVM. `tvm`: TVM's own
        `load_json` and `save_json`, read again and compared. `replay`: TVM builds the module of the trace. The first
        turn of each is one of a process that has not seen the traces.
    """
    import tvm

    for item in kept:
        import_intrinsics(item["trace"])
    starts = [tvm.ir.load_json(item["module"]) for item in kept]
    texts = [item["trace"] for item in kept]
    works: dict[str, Callable[[], None]] = {
        "line": lambda: _all(tsel.encode, texts, "line"),
        "json": lambda: _all(tsel.encode, texts, "json"),
        "tvm": lambda: _all(_peer, texts),
        "replay": lambda: _replay_all(starts, texts),
    }
    rates: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(turns):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            rates[name].append(len(texts) / (time.perf_counter() - begun))
    return rates


def _all(work: Callable[..., Any], texts: list[str], *arguments: Any) -> None:
    for text in texts:
        work(text, *arguments)


def _replay_all(starts: list[Any], traces: list[str]) -> None:
    for start, trace in zip(starts, traces, strict=True):
        _replay(start, trace)


def _peer(trace: str) -> None:
    import tvm

    if json.loads(str(tvm.ir.save_json(tvm.ir.load_json(trace)))) != json.loads(trace):
        raise ValueError("TVM's own JSON does not come back")
