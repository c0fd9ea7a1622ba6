"""Table 1's figures from rows of judged outputs, each with an interval; and whose first outputs are faster.

Pure functions of `Output`s. The columns are the paper's (Table 1): per output, not per prompt. Outputs of one task are
not independent, so that intervals are of a bootstrap over tasks, with all outputs of a task drawn together. An output
that met a fault tells nothing: it is counted apart and changes no share.
"""

import dataclasses
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from littledragon.schemas.gates import GATES, OK

if TYPE_CHECKING:
    from rich.table import Table

Mode = Literal["construct", "refine"]
Row = dict[str, Any]

MODES: Final[tuple[Mode, ...]] = ("construct", "refine")
MODE_NAMES: Final[Mapping[Mode, str]] = {"construct": "Construction", "refine": "Refinement"}
ALL: Final = "all"
"""The name of the group of all families."""
FAST: Final = (1, 2, 10)
"""fast_p is the share of outputs that are correct with L0/L of at least p."""
TWICE: Final = 2.0
CONFIDENCE: Final = 0.95
RESAMPLES: Final = 2000
_CHUNK: Final = 100
"""So many resamples are held at once."""
_STEPS: Final = ("read", "make", "check", "wait")
"""What adds up to the time that a verdict took; `build` lies within make."""
_ENDLESS_US: Final = 1e15
_REPRODUCED: Final = 0.05
"""A latency is that of the reference within so much, or within two noise bands where these are wider."""


@dataclass(frozen=True)
class Output:
    """One judged output of a prompt.

    example_id: the prompt. task_id: its workload. number: 0 for the first output. verdict: the fields of
    `validators.service.Verdict`. default_us, anchor_us, parent_us: L0, a and, refining, the latency of A,
    microseconds. margin, noise_band: shares of a latency. generation_s: seconds until the text was there, None where
    nobody knows. reference_us: latency of the prompt's reference answer. environment_id, device: where the latencies
    come from.

    Raises:
        ValueError: numbers that no output has.
    """

    example_id: str
    task_id: str
    mode: Mode
    family: str
    number: int
    verdict: Mapping[str, Any]
    default_us: float
    anchor_us: float
    margin: float
    noise_band: float
    parent_us: float | None = None
    generation_s: float | None = None
    reference_us: float | None = None
    environment_id: str = ""
    device: str = ""

    def __post_init__(self) -> None:
        where = f"output {self.number} of {self.example_id}"
        if self.mode not in MODES:
            raise ValueError(f"{where}: mode {str(self.mode)[:40]!r}: choose {' or '.join(MODES)}")
        if type(self.number) is not int or self.number < 0:
            raise ValueError(f"{where}: outputs are numbered from 0")
        if self.mode == "refine" and self.parent_us is None:
            raise ValueError(f"{where}: a refinement needs the latency of graph A, parent_us")
        for name in ("default_us", "anchor_us", "parent_us", "reference_us"):
            value = getattr(self, name)
            if value is not None and not _within(value, 0, _ENDLESS_US):
                raise ValueError(f"{where}: {name} is {str(value)[:40]}, which is no latency")
        for name in ("margin", "noise_band", "generation_s"):
            value = getattr(self, name)
            if value is not None and value != 0 and not _within(value, 0, math.inf):
                raise ValueError(f"{where}: {name} is {str(value)[:40]}")
        gate = self.verdict.get("gate")
        if not self.fault and gate != OK and gate not in GATES:
            raise ValueError(f"{where}: its verdict has neither a gate nor a fault")
        if self.correct and not _within(self.verdict.get("latency_us"), 0, _ENDLESS_US):
            raise ValueError(f"{where}: it is correct and has no latency")

    @property
    def fault(self) -> bool:
        """Our own machinery failed, so that nothing is known of the output."""
        return self.verdict.get("fault") is not None

    @property
    def correct(self) -> bool:
        """It passed every gate."""
        return not self.fault and self.verdict.get("gate") == OK

    @property
    def latency_us(self) -> float:
        """Its latency; infinite where it is not correct."""
        return float(self.verdict["latency_us"]) if self.correct else math.inf

    @property
    def seconds(self) -> float | None:
        """Time to kernel: generation, decoding, build, check and timing, waiting included; None where one is unknown.

        Where many outputs are judged at once, most of it is waiting for the others.
        """
        steps = self.verdict.get("seconds") or {}
        known = [steps[name] for name in _STEPS if _within(steps.get(name), -1e-9, math.inf)]
        return None if self.generation_s is None or not known else self.generation_s + sum(known)


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95% interval. value: None where nothing counts. of: how many outputs or prompts count.

    low, high: None where fewer than two tasks say anything.
    """

    value: float | None
    low: float | None
    high: float | None
    of: int


@dataclass(frozen=True)
class Group:
    """What the outputs of one mode and family come to; `all` holds every family.

    tasks, prompts, outputs, faults: counts, outputs without faults. empty: outputs that schedule nothing, which are
    correct where the default schedule is. failures: outputs by the first gate that refused them.
    correct: Correct@1, the mean over outputs. fast: constructing, fast_p by p. improves, doubles: refining, correct and
    beyond A by the margin, and by two times.
    over_default, over_anchor, over_parent: geometric means of the correct first outputs' L0/L, a/L and L_A/L.
    or_kept: the same of L0/L (refining L_A/L) over all first outputs, where one that is not correct counts 1: whoever
    gets it keeps what there was.
    to_kernel_s: median over correct first outputs of the time to kernel, seconds.
    reproduced: the share of correct outputs with the latency of the reference answer, within max(5%, 2 · noise band).
    """

    mode: Mode
    family: str
    tasks: int
    prompts: int
    outputs: int
    faults: int
    empty: int
    failures: dict[str, int]
    correct: Estimate
    fast: dict[str, Estimate]
    improves: Estimate | None
    doubles: Estimate | None
    over_default: Estimate
    over_anchor: Estimate
    over_parent: Estimate | None
    or_kept: Estimate
    to_kernel_s: Estimate
    reproduced: Estimate


@dataclass(frozen=True)
class Evaluation:
    """Groups by mode, `all` first and then each family; and what the intervals are of."""

    groups: tuple[Group, ...]
    confidence: float = CONFIDENCE
    resamples: int = RESAMPLES
    seed: int = 0

    def group(self, mode: Mode, family: str = ALL) -> Group:
        """Raises KeyError."""
        for group in self.groups:
            if (group.mode, group.family) == (mode, family):
                return group
        raise KeyError((mode, family))

    def as_dict(self) -> Row:
        """All of it as JSON can hold it."""
        return dataclasses.asdict(self)


def summarise(outputs: Iterable[Output], *, resamples: int = RESAMPLES, seed: int = 0) -> Evaluation:
    """The figures of all outputs, by mode and family.

    Raises:
        ValueError: two outputs of one prompt have the same number.
    """
    ordered = _ordered(outputs)
    groups = []
    for mode in MODES:
        of_mode = [output for output in ordered if output.mode == mode]
        families = sorted({output.family for output in of_mode})
        for family in [ALL, *families] if of_mode else []:
            chosen = [output for output in of_mode if family in (ALL, output.family)]
            groups.append(_group(mode, family, chosen, resamples, seed))
    return Evaluation(tuple(groups), CONFIDENCE, resamples, seed)


def _ordered(outputs: Iterable[Output]) -> list[Output]:
    """By prompt and number, so that the order of the rows never matters."""
    ordered = sorted(outputs, key=lambda output: (output.example_id, output.number))
    for one, other in itertools.pairwise(ordered):
        if (one.example_id, one.number) == (other.example_id, other.number):
            raise ValueError(f"two outputs of {one.example_id} have the number {one.number}")
    return ordered


def _group(mode: Mode, family: str, outputs: list[Output], resamples: int, seed: int) -> Group:
    known = [output for output in outputs if not output.fault]
    first = [output for output in known if output.number == 0]
    right = [output for output in first if output.correct]
    timed = [output for output in right if output.seconds is not None]
    compared = [output for output in known if output.correct and output.reference_us is not None]
    refining = mode == "refine"

    def share(of: Sequence[Output], holds: Callable[[Output], bool]) -> Estimate:
        return _share(of, [holds(output) for output in of], resamples, seed)

    def geometric(of: Sequence[Output], ratio: Callable[[Output], float]) -> Estimate:
        logs = _mean(of, [math.log(ratio(output)) for output in of], resamples, seed)
        value, low, high = (None if log is None else math.exp(log) for log in (logs.value, logs.low, logs.high))
        return Estimate(value, low, high, logs.of)

    return Group(
        mode=mode,
        family=family,
        tasks=len({output.task_id for output in outputs}),
        prompts=len({output.example_id for output in outputs}),
        outputs=len(known),
        faults=len(outputs) - len(known),
        empty=sum(output.verdict["gate"] not in ("parsed", "wellformed") and not output.verdict.get("emitted")
                  for output in known),
        failures=_by_gate(known),
        correct=share(known, lambda output: output.correct),
        fast={} if refining else {
            f"{p:g}": share(known, lambda output, p=p: output.default_us / output.latency_us >= p) for p in FAST  # type: ignore[misc]
        },
        improves=share(known, lambda o: _parent(o) / o.latency_us - 1 > o.margin) if refining else None,
        doubles=share(known, lambda o: _parent(o) / o.latency_us >= TWICE) if refining else None,
        over_default=geometric(right, lambda o: o.default_us / o.latency_us),
        over_anchor=geometric(right, lambda o: o.anchor_us / o.latency_us),
        over_parent=geometric(right, lambda o: _parent(o) / o.latency_us) if refining else None,
        or_kept=geometric(
            first, lambda o: (_parent(o) if refining else o.default_us) / o.latency_us if o.correct else 1.0
        ),
        to_kernel_s=median(timed, [float(output.seconds or 0.0) for output in timed], resamples, seed),
        reproduced=share(compared, _is_reproduced),
    )  # fmt: skip


def _by_gate(outputs: Iterable[Output]) -> dict[str, int]:
    counts = Counter(output.verdict["gate"] for output in outputs if not output.correct)
    return {gate: counts[gate] for gate in GATES if counts[gate]}


def _parent(output: Output) -> float:
    assert output.parent_us is not None  # `Output` has seen to it
    return output.parent_us


def _is_reproduced(output: Output) -> bool:
    assert output.reference_us is not None
    return abs(output.latency_us / output.reference_us - 1) <= max(_REPRODUCED, 2 * output.noise_band)


# -- intervals ----------------------------------------------------------------------------------------


def _weights(tasks: int, resamples: int, seed: int) -> Iterable[np.ndarray]:
    """How often each of the tasks is drawn: arrays of (some resamples, tasks)."""
    random = np.random.default_rng(seed)
    for done in range(0, resamples, _CHUNK):
        yield random.multinomial(tasks, np.full(tasks, 1 / tasks), size=min(_CHUNK, resamples - done))


def _places(outputs: Sequence[Output]) -> tuple[list[str], np.ndarray]:
    """The tasks in order, and for each output the place of its own."""
    tasks = sorted({output.task_id for output in outputs})
    place = {task: number for number, task in enumerate(tasks)}
    return tasks, np.array([place[output.task_id] for output in outputs], dtype=np.int64)


def _between(value: float, resampled: Sequence[np.ndarray], of: int) -> Estimate:
    """The percentiles of what the resamples came to, widened to hold the value itself where they do not."""
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(np.concatenate(resampled), [tail, 100 - tail])
    return Estimate(value, min(float(low), value), max(float(high), value), of)


def _mean(outputs: Sequence[Output], values: Sequence[float], resamples: int, seed: int) -> Estimate:
    """The mean over outputs, and its interval over tasks."""
    if not outputs:
        return Estimate(None, None, None, 0)
    tasks, places = _places(outputs)
    sums = np.bincount(places, weights=np.array(values, dtype=float), minlength=len(tasks))
    counts = np.bincount(places, minlength=len(tasks))
    value = math.fsum(values) / len(values)
    if len(tasks) < 2:
        return Estimate(value, None, None, len(values))
    means = [(drawn @ sums) / (drawn @ counts) for drawn in _weights(len(tasks), resamples, seed)]
    return _between(value, means, len(values))


def _share(outputs: Sequence[Output], holds: Sequence[bool], resamples: int, seed: int) -> Estimate:
    """The same of a share.

    Where all outputs agree, no resample differs and a bootstrap would be certain: there the exact binomial bound
    stands, with each task as one trial.
    """
    mean = _mean(outputs, [float(one) for one in holds], resamples, seed)
    tasks = len({output.task_id for output in outputs})
    if tasks < 2 or mean.value not in (0.0, 1.0):
        return mean
    far = ((1 - CONFIDENCE) / 2) ** (1 / tasks)
    return dataclasses.replace(mean, low=far) if mean.value else dataclasses.replace(mean, high=1 - far)


def median(outputs: Sequence[Output], values: Sequence[float], resamples: int, seed: int) -> Estimate:
    """The median, and its interval over tasks."""
    if not outputs:
        return Estimate(None, None, None, 0)
    tasks, places = _places(outputs)
    order = np.argsort(np.array(values), kind="stable")
    ranked, owners = np.array(values, dtype=float)[order], places[order]

    def middle(drawn: np.ndarray) -> np.ndarray:
        upto = np.cumsum(drawn[:, owners], axis=1)
        half = upto[:, -1:] / 2
        lower, upper = ((upto >= half).argmax(axis=1), (upto > half).argmax(axis=1))
        result: np.ndarray = (ranked[lower] + ranked[upper]) / 2
        return result

    value = float(middle(np.ones((1, len(tasks)), dtype=np.int64))[0])
    if len(tasks) < 2:
        return Estimate(value, None, None, len(values))
    return _between(value, [middle(drawn) for drawn in _weights(len(tasks), resamples, seed)], len(values))


# -- whose are faster ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """First outputs of A and B on the prompts that both have, of one mode and family.

    faster, slower: prompts where A's first output is faster, or slower, than B's by more than the noise band.
    undecided: where they differ by no more. ties: where the latencies are equal. only_a, only_b, neither: where only
    one's, or nobody's, first output is correct. faults: where one of both met a fault.
    unshared: prompts whose first output only one of both has.
    ratio: geometric mean of L_B / L_A where both are correct: above 1, A is faster.
    tasks_faster, tasks_slower: tasks on more of whose prompts A is faster, or slower.
    p_value: of the two-sided sign test over these; None where there are none.
    """

    mode: Mode
    family: str
    faster: int
    slower: int
    undecided: int
    ties: int
    only_a: int
    only_b: int
    neither: int
    faults: int
    unshared: int
    ratio: float | None
    tasks_faster: int
    tasks_slower: int
    p_value: float | None

    @property
    def both(self) -> int:
        """Prompts where both first outputs are correct."""
        return self.faster + self.slower + self.undecided + self.ties

    def as_dict(self) -> Row:
        """All of it as JSON can hold it."""
        return dataclasses.asdict(self) | {"both": self.both}


def compare(a: Iterable[Output], b: Iterable[Output]) -> tuple[Comparison, ...]:
    """On how many prompts A's first output is faster than B's: by mode, `all` first and then each family.

    Raises:
        ValueError: a prompt's latencies come from two environments or devices, or it is not the same prompt.
    """
    firsts = [{output.example_id: output for output in _ordered(side) if output.number == 0} for side in (a, b)]
    for id in sorted(firsts[0].keys() & firsts[1].keys()):
        _require_comparable(firsts[0][id], firsts[1][id])
    every = firsts[1] | firsts[0]
    result = []
    for mode in MODES:
        of_mode = {id: output.family for id, output in sorted(every.items()) if output.mode == mode}
        for family in [ALL, *sorted(set(of_mode.values()))] if of_mode else []:
            ids = [id for id, its in of_mode.items() if family in (ALL, its)]
            result.append(_compared(mode, family, [(firsts[0].get(id), firsts[1].get(id)) for id in ids]))
    return tuple(result)


def _require_comparable(a: Output, b: Output) -> None:
    for name in ("environment_id", "device", "task_id", "mode", "family"):
        ours, theirs = getattr(a, name), getattr(b, name)
        if ours != theirs:
            said = f"{name} is {ours!r} on one side and {theirs!r} on the other"
            raise ValueError(f"{a.example_id}: {said}: these are not comparable")


def _compared(mode: Mode, family: str, pairs: Sequence[tuple[Output | None, Output | None]]) -> Comparison:
    counts: Counter[str] = Counter()
    logs: list[float] = []
    lead: defaultdict[str, int] = defaultdict(int)
    for a, b in pairs:
        outcome = _outcome(a, b)
        counts[outcome] += 1
        if a is not None and b is not None and outcome in ("faster", "slower", "undecided", "ties"):
            logs.append(math.log(b.latency_us / a.latency_us))
            lead[a.task_id] += (outcome == "faster") - (outcome == "slower")
    won, lost = (sum(sign * ahead > 0 for ahead in lead.values()) for sign in (1, -1))
    names = ("faster", "slower", "undecided", "ties", "only_a", "only_b", "neither", "faults", "unshared")
    return Comparison(
        mode,
        family,
        **{name: counts[name] for name in names},
        ratio=math.exp(math.fsum(logs) / len(logs)) if logs else None,
        tasks_faster=won,
        tasks_slower=lost,
        p_value=sign_test(won, lost),
    )


def _outcome(a: Output | None, b: Output | None) -> str:
    if a is None or b is None:
        return "unshared"
    if a.fault or b.fault:
        return "faults"
    if not (a.correct and b.correct):
        return "only_a" if a.correct else "only_b" if b.correct else "neither"
    if a.latency_us == b.latency_us:
        return "ties"
    noise = max(a.noise_band, b.noise_band)
    if max(a.latency_us, b.latency_us) / min(a.latency_us, b.latency_us) - 1 <= noise:
        return "undecided"
    return "faster" if a.latency_us < b.latency_us else "slower"


def sign_test(wins: int, losses: int) -> float | None:
    """How likely a split at least so uneven is where both sides are equal: exact, two-sided; None without a trial."""
    trials = wins + losses
    if not trials:
        return None
    tail = sum(math.comb(trials, count) for count in range(min(wins, losses) + 1))
    return min(1.0, float(2 * tail / 2**trials))


# -- rows and tables ----------------------------------------------------------------------------------

_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Output))


def output_of(row: Mapping[str, Any]) -> Output:
    """An output from a row of a file; what else the row holds is left aside.

    Raises:
        ValueError: the row is none.
    """
    texts = ("example_id", "task_id", "mode", "family", "environment_id", "device")
    known = {name: row[name] for name in _FIELDS if name in row}
    lacking = [name for name in _FIELDS[:10] if name not in known]
    if lacking:
        raise ValueError(f"{', '.join(lacking)} is missing")
    for name in texts:
        if not isinstance(known.get(name, ""), str):
            raise ValueError(f"{name} is no text")
    if not isinstance(known["verdict"], Mapping):
        raise ValueError("verdict is no object")
    if not isinstance(known["verdict"].get("seconds", {}), Mapping):
        raise ValueError("the verdict's seconds are no object")
    return Output(**known)


def dumps(value: Evaluation | Sequence[Comparison]) -> str:
    """As JSON text."""
    plain = value.as_dict() if isinstance(value, Evaluation) else [one.as_dict() for one in value]
    return json.dumps(plain, indent=1, allow_nan=False) + "\n"


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, and the text of a row's cell. right: numbers, which stand to the right."""

    name: str
    cell: Callable[[Any], str]
    right: bool = field(default=True)


def columns(mode: Mode, groups: Sequence[Group]) -> list[tuple[str, list[Column]]]:
    """The tables of a mode, by title: Table 1's columns, what first outputs come to, and failures by gate, if any."""
    shares = [Column("Correct@1", lambda g: percent(g.correct))]
    if mode == "construct":
        shares += [Column(f"fast_{p:g}", lambda g, p=p: percent(g.fast[f"{p:g}"])) for p in FAST]  # type: ignore[misc]
    else:
        shares += [
            Column("beyond A", lambda g: percent(g.improves)),
            Column("2× over A", lambda g: percent(g.doubles)),
        ]
    first = [Column("correct", lambda g: f"{g.over_default.of:,}")]
    if mode == "refine":
        first.append(Column("over A", lambda g: ratio(g.over_parent)))
    first += [
        Column("over L0", lambda g: ratio(g.over_default)),
        Column("over the anchor", lambda g: ratio(g.over_anchor)),
        Column("over what was kept", lambda g: ratio(g.or_kept)),
        Column("to kernel,\N{NO-BREAK SPACE}s", lambda g: told(g.to_kernel_s, three)),
    ]
    if any(group.reproduced.of for group in groups):
        first.append(Column("as the reference,\N{NO-BREAK SPACE}%", lambda g: percent(g.reproduced)))
    counts = [count(name) for name in ("tasks", "prompts", "outputs", "faults", "empty")]
    found = [("per output, % [95%]", [*shares, *counts]), ("first outputs, geometric means [95%]", first)]
    if gates := [gate for gate in GATES if any(gate in group.failures for group in groups)]:
        refused = [*map(_refused, gates), count("outputs"), count("faults")]
        found.append(("outputs refused, by the first gate that refused them", refused))
    return found


def count(name: str, words: str | None = None) -> Column:
    """A column of a group's number of this name."""
    return Column(words or name, lambda g: f"{getattr(g, name):,}")


def _refused(gate: str) -> Column:
    return Column(
        "not run" if gate == "ran" else f"not {gate}", lambda g: f"{g.failures[gate]:,}" if gate in g.failures else ""
    )


def tables(evaluation: Evaluation) -> list["Table"]:
    """For each mode, its `columns` by family."""
    found = []
    for mode in MODES:
        groups = [group for group in evaluation.groups if group.mode == mode]
        for title, of_it in columns(mode, groups) if groups else []:
            found.append(table(f"{MODE_NAMES[mode]}, {title}", [FAMILY, *of_it], groups))
    return found


def comparison_tables(comparisons: Sequence[Comparison]) -> list["Table"]:
    """For each mode, on how many prompts A's first output is faster than B's."""
    found = []
    for mode in MODES:
        of_mode = [one for one in comparisons if one.mode == mode]
        if not of_mode:
            continue
        of_it = [
            FAMILY,
            Column("A faster", lambda c: f"{c.faster} of {c.both}"),
            Column("B faster", lambda c: str(c.slower)),
            Column("within noise", lambda c: str(c.undecided)),
            Column("equal", lambda c: str(c.ties)),
            Column("L_B/L_A", lambda c: "" if c.ratio is None else f"{c.ratio:.3g}"),
            Column("tasks", lambda c: f"{c.tasks_faster}:{c.tasks_slower}"),
            Column("p", lambda c: "" if c.p_value is None else f"{c.p_value:.2g}"),
            *(
                Column(words, lambda c, name=name: str(getattr(c, name)))  # type: ignore[misc]
                for words, name in (
                    ("only A correct", "only_a"), ("only B", "only_b"), ("neither", "neither"), ("faults", "faults"),
                    ("in one file", "unshared"),
                )
            ),
        ]  # fmt: skip
        found.append(table(f"{MODE_NAMES[mode]}: first outputs of A and B", of_it, of_mode))
    return found


FAMILY: Final = Column("family", lambda group: str(group.family), right=False)


def table(title: str, columns: Sequence[Column], rows: Sequence[Any], note: str | None = None) -> "Table":
    """A table for a terminal. note: a line below it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    below = {"caption": None if note is None else Text(note), "caption_justify": "left"}
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), **below)  # type: ignore[arg-type]
    for column in columns:
        table.add_column(column.name, justify="right" if column.right else "left")
    for row in rows:
        table.add_row(*(Text(column.cell(row)) for column in columns))  # brackets are no markup
    return table


def told(estimate: Estimate | None, said: str | Callable[[float], str], unit: str = "") -> str:
    """An estimate and its interval, "3 [2, 4]", as a format or a function writes a number."""
    write = said.format if isinstance(said, str) else said
    if estimate is None or estimate.value is None or not math.isfinite(estimate.value):
        return ""
    value = write(estimate.value) + unit
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{write(estimate.low)}, {write(estimate.high)}]"


def percent(estimate: Estimate | None) -> str:
    return told(estimate, lambda value: f"{100 * value:.1f}")


def ratio(estimate: Estimate | None) -> str:
    return told(estimate, "{:,.2f}", "×")


def three(value: float) -> str:
    """Three digits that tell, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _within(value: Any, above: float, below: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and above < value < below
