"""Time to kernel: a model's first outputs against the searches of their tasks.

Pure functions of judged outputs and of trajectories: what a search had tried by when. A model's time is that of its
first output of a prompt, where it is correct: generation, decoding, build, check and timing. It is compared with the
whole search at a number of trials, and with the first trial that is as fast, within the task's noise band. Where none
is, the whole search is a lower bound, and an interval over such bounds has no upper end. Intervals are of the bootstrap
over tasks of `release.evaluation`.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from littledragon.release import evaluation
from littledragon.release.evaluation import ALL, MODE_NAMES, MODES, RESAMPLES, Estimate, Mode, Output

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """A trial: seconds from the beginning of its search until it was judged; latency (µs), None where it failed."""

    number: int
    elapsed_s: float
    latency_us: float | None


@dataclass(frozen=True)
class Trajectory:
    """The search of one task: its trials by number, from 1; and how long it took where it found no more of them."""

    task_id: str
    trials: tuple[Trial, ...]
    ended_s: float | None = None

    def first(self, count: int) -> tuple[Trial, ...]:
        """Its first trials; none of a batch that goes on beyond them, of which all trials end together."""
        beyond = {trial.elapsed_s for trial in self.trials if trial.number == count + 1}
        return tuple(trial for trial in self.trials if trial.number <= count and trial.elapsed_s not in beyond)

    def whole_s(self, count: int) -> float | None:
        """Seconds that the first `count` trials took, or all where it found no more; None where it was cut short."""
        if sum(trial.number <= count for trial in self.trials) == count:
            return max((trial.elapsed_s for trial in self.first(count)), default=0.0)
        return self.ended_s


@dataclass(frozen=True)
class Pair:
    """A model's first output of a prompt, which is correct, and the search of its task.

    seconds, latency_us: the output's. whole_s: seconds of the whole search. reached_s: of its first trial that is as
    fast as the output, or slower by no more than the noise band; None where none is. ratio, reached_ratio: these over
    the output's seconds. at_least: no trial is as fast, so that reached_ratio is that of the whole search, a lower
    bound. over_default, search_over_default: L0 over the latency of the output, and of the search's best (None: it has
    none).
    """

    example_id: str
    task_id: str
    mode: Mode
    family: str
    seconds: float
    latency_us: float
    whole_s: float
    ratio: float
    reached_s: float | None
    reached_ratio: float
    at_least: bool
    over_default: float
    search_over_default: float | None


@dataclass(frozen=True)
class Group:
    """The pairs of one mode and family; `all` holds every family. Estimates are medians over pairs.

    tasks, pairs: counts. never: pairs where no trial is as fast as the output; with any, reached_ratio is a lower
    bound. Left out are first outputs that are incorrect, that met a fault, whose time is unknown (untimed), or whose
    task was not searched up to so many trials (unsearched).
    """

    mode: Mode
    family: str
    tasks: int
    pairs: int
    never: int
    incorrect: int
    faults: int
    untimed: int
    unsearched: int
    seconds: Estimate
    whole_s: Estimate
    ratio: Estimate
    reached_ratio: Estimate
    over_default: Estimate
    search_over_default: Estimate


@dataclass(frozen=True)
class Times:
    """A model's first outputs against one file of trajectories, read at so many trials."""

    name: str
    trials: int
    groups: tuple[Group, ...]
    pairs: tuple[Pair, ...]

    def group(self, mode: Mode, family: str = ALL) -> Group:
        """Raises KeyError."""
        for group in self.groups:
            if (group.mode, group.family) == (mode, family):
                return group
        raise KeyError((mode, family))

    def as_dict(self) -> Row:
        """All of it as JSON can hold it."""
        return dataclasses.asdict(self)


def times(
    outputs: Iterable[Output],
    trajectories: Mapping[str, Trajectory],
    trials: int,
    name: str = "",
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Times:
    """Compare the first outputs with the first trials of their tasks' trajectories (by task).

    Raises:
        ValueError: fewer than one trial; two first outputs of one prompt.
    """
    if trials < 1:
        raise ValueError("a search has one trial at least")
    first = sorted((output for output in outputs if output.number == 0), key=lambda output: output.example_id)
    if len({output.example_id for output in first}) < len(first):
        raise ValueError("two first outputs of one prompt")
    found = [(output, _pair(output, trajectories.get(output.task_id), trials)) for output in first]
    groups = []
    for mode in MODES:
        of_mode = [one for one in found if one[0].mode == mode]
        for family in [ALL, *sorted({output.family for output, _ in of_mode})] if of_mode else []:
            chosen = [one for one in of_mode if family in (ALL, one[0].family)]
            groups.append(_group(mode, family, chosen, resamples, seed))
    return Times(name, trials, tuple(groups), tuple(pair for _, pair in found if isinstance(pair, Pair)))


def _pair(output: Output, search: Trajectory | None, trials: int) -> Pair | str:
    """The pair, or why there is none."""
    if output.fault:
        return "faults"
    if not output.correct:
        return "incorrect"
    seconds, whole_s = output.seconds, None if search is None else search.whole_s(trials)
    if not seconds:
        return "untimed"
    if search is None or whole_s is None:
        return "unsearched"
    timed = [(trial.elapsed_s, trial.latency_us) for trial in search.first(trials) if trial.latency_us is not None]
    enough_us = output.latency_us * (1 + output.noise_band)  # beyond it a trial is slower by more than noise
    reached_s = min((at for at, latency_us in timed if latency_us <= enough_us), default=None)
    return Pair(
        example_id=output.example_id,
        task_id=output.task_id,
        mode=output.mode,
        family=output.family,
        seconds=seconds,
        latency_us=output.latency_us,
        whole_s=whole_s,
        ratio=whole_s / seconds,
        reached_s=reached_s,
        reached_ratio=(whole_s if reached_s is None else reached_s) / seconds,
        at_least=reached_s is None,
        over_default=output.default_us / output.latency_us,
        search_over_default=output.default_us / min(us for _, us in timed) if timed else None,
    )


def _group(mode: Mode, family: str, found: Sequence[tuple[Output, Pair | str]], resamples: int, seed: int) -> Group:
    pairs = [(output, pair) for output, pair in found if isinstance(pair, Pair)]
    left = Counter(pair for _, pair in found if isinstance(pair, str))

    def median(name: str) -> Estimate:
        known = [(output, value) for output, pair in pairs if (value := getattr(pair, name)) is not None]
        return evaluation.median([output for output, _ in known], [value for _, value in known], resamples, seed)

    return Group(
        mode=mode,
        family=family,
        tasks=len({output.task_id for output, _ in pairs}),
        pairs=len(pairs),
        never=sum(pair.at_least for _, pair in pairs),
        incorrect=left["incorrect"],
        faults=left["faults"],
        untimed=left["untimed"],
        unsearched=left["unsearched"],
        seconds=median("seconds"),
        whole_s=median("whole_s"),
        ratio=median("ratio"),
        reached_ratio=median("reached_ratio"),
        over_default=median("over_default"),
        search_over_default=median("search_over_default"),
    )


# -- rows and tables ----------------------------------------------------------------------------------


def trajectories_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Trajectory]:
    """Trajectories by task, from the rows of a trials file; a trial that stands there twice counts as it stands last.

    Raises:
        ValueError: a row that is no trial.
    """
    trials: dict[str, dict[int, Trial]] = {}
    ends: dict[str, Trial] = {}
    for row in rows:
        id, number = row.get("task_id"), row.get("trial")
        if not isinstance(id, str) or type(number) is not int or number < 1:
            raise ValueError("a trial has a task_id and a number from 1")
        elapsed_s, latency_us = (_amount(row.get(name)) for name in ("elapsed_s", "latency_us"))
        if elapsed_s is None or latency_us == 0 or (latency_us is None) != (row.get("latency_us") is None):
            raise ValueError(f"trial {number} of {id[:40]!r}: elapsed_s and latency_us are numbers, or no latency")
        trial = Trial(number, elapsed_s, latency_us)
        of_task = trials.setdefault(id, {})
        if "end" in row:
            ends[id] = trial
        else:
            of_task[number] = trial
    found = {}
    for id, of_task in trials.items():
        end = ends.get(id)
        kept = [trial for number, trial in sorted(of_task.items()) if end is None or number < end.number]
        found[id] = Trajectory(id, tuple(kept), None if end is None else end.elapsed_s)
    return found


def _amount(value: Any) -> float | None:
    """A finite number from 0; None for anything else."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15
    return float(value) if fine else None


def dumps(found: Sequence[Times]) -> str:
    """As JSON text."""
    return json.dumps([one.as_dict() for one in found], indent=1, allow_nan=False) + "\n"


def reached(group: Group) -> str:
    """The median of reached_ratio with its interval; with lower bounds among them it is one, and has no upper end."""
    one, said = group.reached_ratio, evaluation.three
    if not group.never or one.value is None:
        return evaluation.told(one, said)
    return f"≥ {said(one.value)}" + ("" if one.low is None else f" [{said(one.low)}, …)")


def left_out(group: Group) -> str:
    """How many first outputs have no pair, by why."""
    names = ("incorrect", "faults", "untimed", "unsearched")
    return ", ".join(f"{getattr(group, name)} {name}" for name in names if getattr(group, name))


COLUMNS: Final = (
    evaluation.FAMILY,
    evaluation.count("tasks"),
    evaluation.count("pairs"),
    evaluation.Column("model,\N{NO-BREAK SPACE}s", lambda g: evaluation.told(g.seconds, evaluation.three)),
    evaluation.Column("search,\N{NO-BREAK SPACE}s", lambda g: evaluation.told(g.whole_s, evaluation.three)),
    evaluation.Column("search/model", lambda g: evaluation.told(g.ratio, evaluation.three)),
    evaluation.Column("until as fast/model", reached),
    evaluation.count("never", "never as fast"),
    evaluation.Column("model over L0", lambda g: evaluation.ratio(g.over_default)),
    evaluation.Column("search over L0", lambda g: evaluation.ratio(g.search_over_default)),
    evaluation.Column("left out", left_out, right=False),
)
"""What is printed of a group."""


def tables(found: Times, note: str | None = None) -> list["Table"]:
    """For each mode the groups' medians with their intervals. note: a line below each."""
    made = []
    for mode in MODES:
        groups = [group for group in found.groups if group.mode == mode]
        if groups:
            said = f"{MODE_NAMES[mode]}: time to kernel against {found.name} of {found.trials} trials, medians [95%]"
            made.append(evaluation.table(said, COLUMNS, groups, note))
    return made


def task_table(found: Times) -> "Table":
    """Every pair."""
    columns = [
        evaluation.Column("task", lambda p: str(p.task_id), right=False),
        evaluation.Column("mode", lambda p: str(p.mode), right=False),
        evaluation.FAMILY,
        evaluation.Column("model, s", lambda p: f"{p.seconds:.3g}"),
        evaluation.Column("µs", lambda p: f"{p.latency_us:.4g}"),
        evaluation.Column("search, s", lambda p: f"{p.whole_s:.3g}"),
        evaluation.Column("search/model", lambda p: f"{p.ratio:.3g}"),
        evaluation.Column("until as fast, s", lambda p: "never" if p.reached_s is None else f"{p.reached_s:.3g}"),
        evaluation.Column("/model", lambda p: ("≥ " if p.at_least else "") + f"{p.reached_ratio:.3g}"),
        evaluation.Column("model over L0", lambda p: f"{p.over_default:.2f}"),
        evaluation.Column(
            "search over L0", lambda p: "" if p.search_over_default is None else f"{p.search_over_default:.2f}"
        ),
    ]
    return evaluation.table(f"{found.name} of {found.trials} trials, each pair", columns, found.pairs)
