"""The paper's figures of an evaluation and of training: data in, SVG text out.

Figure 3: speed-ups of first outputs by family. Figure 4: speed-up over L0 against optimisation time, beside searches.
Figures 5 and 6: utility and correctness over the steps of reinforcement learning. And two of our own: the loss of
supervised training by kind of span, and shares against the number of training rows.

The functions above the drawing say what is drawn, and need nothing; drawing needs matplotlib, which is imported where
it is used. Equal data gives equal bytes. An SVG has a title and a description, no script, no style sheet and no outside
resource; its ids begin with the figure's key, so that several fit on one page. A group of marks says in `data-part`
what it shows.
"""

import io
import itertools
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree

from littledragon.release.evaluation import ALL, MODE_NAMES, MODES, Estimate, Evaluation, Group, Mode, Output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Log = Sequence[Mapping[str, Any]]
"""`log_history` of a trainer_state.json."""
Points = list[tuple[float, float]]

PALETTE: Final = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f", "#882255", "#999933",
)  # fmt: skip
"""Okabe and Ito's colours without their yellow, which is too light for white paper, and three of Paul Tol's."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "p", "*", "h")
DASHES: Final[tuple[Any, ...]] = ("-", (0, (5, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (1.5, 1.2)), (0, (8, 2)))
BAND: Final = 10
"""Steps of training whose mean is one point."""
MOST_POINTS: Final = 300
"""Points of one file and family that are drawn; of more, so many quantiles."""
MOST_CURVES: Final = 60
"""Searches of one file and family that are drawn one by one; their mean is of all."""
MOST_STEPS: Final = 4000
"""Points of a line that are drawn; of more, every so many, and the last."""
UTILITY: Final = ("utility", "r_lat")
"""What a log may call the utility; the first that it holds is drawn."""
CORRECTNESS: Final = ("correct", "stage/correct")
KINDS: Final = ("explanation", "structure", "decision")
_SVG: Final = "{http://www.w3.org/2000/svg}"
_XLINK: Final = "{http://www.w3.org/1999/xlink}"
_EARLIEST_S: Final = 1e-3
_WIDTH_IN: Final = 9.6
_DARK: Final = "#1a1a1a"
_GREY: Final = "#595959"
_LINE: Final = "#dddddd"


@dataclass(frozen=True)
class Result:
    """A result file: its name, its outputs, and what these come to."""

    name: str
    outputs: tuple[Output, ...]
    evaluation: Evaluation


@dataclass(frozen=True)
class Search:
    """One task's trials. steps: seconds, and the best speed-up over L0 from then on, each larger than the last.

    end_s: when its last trial ended.
    """

    task_id: str
    family: str
    steps: tuple[tuple[float, float], ...]
    end_s: float


@dataclass(frozen=True)
class Trials:
    """A trials file: its name, and a search for each task."""

    name: str
    searches: tuple[Search, ...]


@dataclass(frozen=True)
class Training:
    """A training run: its name and its log."""

    name: str
    log: Log


@dataclass(frozen=True)
class Sized:
    """What a model that was trained on so many rows comes to."""

    rows: int
    evaluation: Evaluation


@dataclass(frozen=True)
class Drawn:
    """A figure. svg: None where there is no data, and then `missing` says why. notes: what it leaves out."""

    key: str
    title: str
    caption: str
    svg: str | None = None
    missing: str = ""
    notes: tuple[str, ...] = ()


# -- what is drawn ------------------------------------------------------------------------------------


def speedups(outputs: Iterable[Output], mode: Mode) -> dict[str, list[float]]:
    """For each family, ascending, how many times as fast as L0 (refining: as A) its correct first outputs are."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for output in outputs:
        if output.mode == mode and output.number == 0 and output.correct:
            before = output.parent_us if mode == "refine" else output.default_us
            assert before is not None  # `Output` has seen to it
            found[output.family].append(before / output.latency_us)
    return {family: sorted(found[family]) for family in sorted(found)}


def mean_speedup(group: Group) -> Estimate:
    """The geometric mean of what `speedups` lists, as the tables have it."""
    return group.over_default if group.over_parent is None else group.over_parent


def thinned(values: Sequence[float], most: int = MOST_POINTS) -> list[float]:
    """Ascending values; of more than `most` so many evenly spaced ones, both ends among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(at * (len(values) - 1) / (most - 1))] for at in range(most)]


def times(outputs: Iterable[Output]) -> dict[str, Points]:
    """For each family (seconds to the kernel, speed-up over L0) of the correct first outputs of construction.

    Outputs whose time nobody knows are left out.
    """
    found: defaultdict[str, Points] = defaultdict(list)
    for output in outputs:
        if output.mode == "construct" and output.number == 0 and output.correct and (output.seconds or 0) > 0:
            seconds = max(output.seconds or 0.0, _EARLIEST_S)
            found[output.family].append((seconds, output.default_us / output.latency_us))
    return {family: sorted(found[family]) for family in sorted(found)}


def constructed(outputs: Iterable[Output]) -> list[Output]:
    """The first outputs of construction without those that met a fault."""
    return [one for one in outputs if one.mode == "construct" and one.number == 0 and not one.fault]


def centre(outputs: Iterable[Output]) -> tuple[float, float] | None:
    """The geometric means over tasks of the first outputs of construction: seconds to the kernel or to the refusal, of
    those where they are known, and speed-up over L0, where one that is not correct counts 1, as a task without a kernel
    does in `mean_search`. None where no time is known."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for one in constructed(outputs):
        ratios[one.task_id].append(math.log(one.default_us / one.latency_us) if one.correct else 0.0)
        if (one.seconds or 0) > 0:
            seconds[one.task_id].append(math.log(max(one.seconds or 0.0, _EARLIEST_S)))
    if not seconds:
        return None
    x, y = (math.fsum(math.fsum(v) / len(v) for v in of_it.values()) / len(of_it) for of_it in (seconds, ratios))
    return math.exp(x), math.exp(y)


def shared(results: Sequence[Result], trials: Sequence[Trials]) -> frozenset[str]:
    """The tasks that all of these files have."""
    sides = [{output.task_id for output in constructed(one.outputs)} for one in results]
    sides += [{search.task_id for search in one.searches} for one in trials]
    return frozenset(set.intersection(*sides)) if sides else frozenset()


def _alike(
    results: Sequence[Result], trials: Sequence[Trials], tasks: frozenset[str]
) -> tuple[dict[str, list[Output]], list[Trials], list[str]]:
    """What these files say of the tasks that they share: first outputs by name, searches, and how many there are."""
    outputs = {one.name: [o for o in constructed(one.outputs) if o.task_id in tasks] for one in results}
    searches = [Trials(one.name, tuple(s for s in one.searches if s.task_id in tasks)) for one in trials]
    notes = [
        f"{one.name}: {len(tasks)} of its {len({o.task_id for o in constructed(one.outputs)})} tasks, "
        f"{len(outputs[one.name])} first outputs, {sum(o.correct for o in outputs[one.name])} of them correct."
        for one in results
    ]
    notes += [
        f"{one.name}: {len(tasks)} of its {len(one.searches)} tasks, "
        f"{sum(bool(search.steps) for search in kept.searches)} of them with a kernel."
        for one, kept in zip(trials, searches, strict=True)
    ]
    return outputs, searches, notes


def search_of(
    task_id: str,
    family: str,
    default_us: float,
    trials: Iterable[tuple[float, float | None]],
    ended_s: float | None = None,
) -> Search:
    """The search of these trials: (seconds since it began, latency in microseconds or None where there is none).

    ended_s: when it ended, where that was after its last trial.
    """
    ordered = sorted(trials, key=lambda trial: (trial[0], trial[1] is None, trial[1] or 0.0))
    steps: Points = []
    for elapsed, latency in ordered:
        ratio = default_us / latency if latency is not None else 0.0
        if ratio > (steps[-1][1] if steps else 0.0):
            steps.append((max(elapsed, _EARLIEST_S), ratio))
    return Search(task_id, family, tuple(steps), max(_EARLIEST_S, ended_s or 0.0, *(elapsed for elapsed, _ in ordered)))


def mean_search(searches: Sequence[Search]) -> Points:
    """The geometric mean of the best speed-ups so far, a step at each time; a task without a kernel yet counts 1."""
    events = sorted((at, number, ratio) for number, one in enumerate(searches) for at, ratio in one.steps)
    best, total = [0.0] * len(searches), 0.0
    steps: Points = []
    for at, number, ratio in events:
        total += math.log(ratio) - best[number]
        best[number] = math.log(ratio)
        mean = math.exp(total / len(best))
        if steps and steps[-1][0] == at:
            steps.pop()
        steps.append((at, mean))
    last = max((one.end_s for one in searches), default=0.0)
    if steps and last > steps[-1][0]:
        steps.append((last, steps[-1][1]))
    return steps


def series(log: Log, name: str) -> Points:
    """(step, value) of a log in the order of the steps; of two values for one step the later one."""
    found = {
        float(line["step"]): float(line[name])
        for line in log
        if _is_number(line.get("step")) and _is_number(line.get(name)) and line["step"] >= 0
    }
    return sorted(found.items())


def bands(points: Sequence[tuple[float, float]], width: int = BAND) -> Points:
    """Means over `width` steps, 1 to width being the first, each at the middle of its band; the last may be cut."""
    if not points:
        return []
    last = points[-1][0]
    found = []
    for band, members in itertools.groupby(points, lambda point: max(0, math.ceil(point[0] / width) - 1)):
        values = [value for _, value in members]
        first = band * width + 1
        found.append(((first + min(first + width - 1, max(last, first))) / 2, math.fsum(values) / len(values)))
    return found


def name_in(runs: Sequence[Training], names: Sequence[str]) -> str | None:
    """The first of the names that all these logs hold, or else that one of them does."""
    for those in (all, any):
        for name in names:
            if runs and those(series(run.log, name) for run in runs):
                return name
    return None


def shares(sized: Sequence[Sized], mode: Mode) -> dict[str, list[tuple[int, Estimate]]]:
    """(rows, estimate) by column: Correct@1, and fast_2 (refining: 2× over A); files without outputs left out."""
    found: dict[str, list[tuple[int, Estimate]]] = {}
    for one in sorted(sized, key=lambda one: one.rows):
        for group in one.evaluation.groups:
            if (group.mode, group.family) == (mode, ALL) and group.correct.value is not None:
                found.setdefault("Correct@1", []).append((one.rows, group.correct))
                other = ("2× over A", group.doubles) if group.doubles is not None else ("fast_2", group.fast["2"])
                found.setdefault(other[0], []).append((one.rows, other[1]))
    return found


def sparse(points: Sequence[tuple[float, float]], most: int = MOST_STEPS) -> Points:
    """Of more than `most` points every so many, and the last."""
    every = -(-len(points) // most) if points else 1
    kept = list(points[::every])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


def _is_number(value: Any) -> bool:
    """A number that an axis can show."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


# -- the figures --------------------------------------------------------------------------------------


def first_outputs(results: Sequence[Result], names: Sequence[str]) -> Drawn:
    """Figure 3. names: of all files of the page, whose places choose the colours."""
    title = "Figure 3: speed-ups of first output kernels"
    caption = (
        "Correct first outputs by family: over L0 when constructing, over graph A when refining. A dot is a prompt, a "
        "large mark the geometric mean with its 95% interval, the line no change. What is not correct has no dot."
    )
    found = {mode: {one.name: speedups(one.outputs, mode) for one in results} for mode in MODES}
    modes = [mode for mode in MODES if any(found[mode].values())]
    if not modes:
        return Drawn("figure-3", title, caption, missing="no result file holds a correct first output")
    notes = [f"{MODE_NAMES[mode]}: no correct first output." for mode in MODES if mode not in modes]
    for mode in modes:
        if none := [name for name, of_it in found[mode].items() if not of_it]:
            notes.append(f"{MODE_NAMES[mode]}: no correct first output in {', '.join(none)}.")
    most = max(len(ratios) for mode in modes for of_it in found[mode].values() for ratios in of_it.values())
    if most > MOST_POINTS:
        notes.append(f"Of more than {MOST_POINTS} dots of a file and family, so many quantiles are drawn.")
    with _style():
        labels = [
            _cut(family) for family in {family for mode in modes for one in found[mode].values() for family in one}
        ]
        slanted = 0.7 if _crowded([*labels, "all families"]) else 0.0
        figure = _figure(_WIDTH_IN, (3.05 + slanted) * len(modes) + 0.35)
        for mode, axes in zip(modes, _grid(figure, len(modes), 1), strict=False):
            _draw_speedups(axes, mode, results, found[mode], names)
        _legend(figure, [_marker(names, one.name) for one in results])
        described = f"{caption} Geometric means over all families: " + "; ".join(
            f"{MODE_NAMES[mode].lower()}, {one.name} {_said(mean_speedup(one.evaluation.group(mode)))}"
            for mode in modes
            for one in results
            if found[mode][one.name]
        )
        svg = _svg(figure, "figure-3", title, described + ".")
    return Drawn("figure-3", title, caption, svg, notes=tuple(notes))


def _draw_speedups(
    axes: "Axes", mode: Mode, results: Sequence[Result], found: Mapping[str, Any], names: Sequence[str]
) -> None:
    families = sorted({family for of_it in found.values() for family in of_it})
    groups = [ALL, *families] if len(families) > 1 else families
    slot = 0.86 / len(results)
    for place, family in enumerate(groups):
        if place:
            axes.axvline(place - 0.5, color=_LINE, linewidth=0.7, zorder=0)
        for number, one in enumerate(results):
            of_it = found[one.name]
            ratios = sorted(itertools.chain(*of_it.values())) if family == ALL else of_it.get(family, [])
            if not ratios:
                continue
            middle, colour = place - 0.43 + slot * (number + 0.5), _colour(names, one.name)
            shown = thinned(ratios)
            # A golden ratio of a turn from each to the next spreads neighbours in rank over the slot's width.
            spread = [middle + slot * 0.62 * ((at * 0.6180339887) % 1 - 0.5) for at in range(len(shown))]
            part = f"{mode}-{names.index(one.name)}-{place}"
            axes.plot(
                spread, shown, linestyle="none", marker="o", markersize=2.6, color=colour, alpha=0.4,
                markeredgewidth=0, zorder=2, gid=f"points-{part}",
            )  # fmt: skip
            mean = mean_speedup(one.evaluation.group(mode, family))
            assert mean.value is not None
            if mean.low is not None and mean.high is not None:
                axes.plot([middle] * 2, [mean.low, mean.high], color="white", linewidth=3.2, zorder=3)
                axes.plot(
                    [middle] * 2, [mean.low, mean.high], color=colour, linewidth=1.5, zorder=4, gid=f"interval-{part}",
                )  # fmt: skip
            axes.plot(
                [middle], [mean.value], marker=_mark(names, one.name), markersize=6, color=colour, zorder=5,
                markeredgecolor="white", markeredgewidth=0.8, gid=f"mean-{part}",
            )  # fmt: skip
    _times_axis(axes)
    axes.axhline(1, color=_DARK, linewidth=0.9, zorder=1, gid=f"one-{mode}")
    axes.set_xlim(-0.5, len(groups) - 0.5)
    labels = ["all families" if family == ALL else _cut(family) for family in groups]
    axes.set_xticks(range(len(groups)), labels)
    axes.tick_params(axis="x", length=0)
    if _crowded(labels):
        for label in axes.get_xticklabels():
            label.set(rotation=35, horizontalalignment="right", rotation_mode="anchor")
    axes.set_ylabel("speed-up over A" if mode == "refine" else "speed-up over L0")
    axes.set_title(MODE_NAMES[mode])


def _crowded(labels: Sequence[str]) -> bool:
    """Whether these would touch below an axis as wide as the page."""
    return max(map(len, labels)) * 0.075 > 0.9 * _WIDTH_IN / len(labels)


def optimisation_time(results: Sequence[Result], trials: Sequence[Trials], names: Sequence[str]) -> Drawn:
    """Figure 4. names: as of `first_outputs`."""
    title = "Figure 4: kernel speed-up against optimisation time"
    caption = (
        "Speed-up over L0 by family, against seconds, of the tasks that all files here have. A dot is a model's "
        "correct first output, constructing, at its time to kernel (generation, decoding, build, check and timing); a "
        "large mark is the geometric mean over tasks of all its first outputs, where one that is not correct counts 1. "
        "A thin line is a search's best kernel so far for one task, a thick one the geometric mean over tasks, where a "
        "task without a kernel yet counts 1."
    )
    timed = [one for one in results if times(one.outputs)]
    kept = [one for one in trials if any(search.steps for search in one.searches)]
    if not timed and not kept:
        missing = "no result file holds the time to a correct first output, and there is no trial with a kernel"
        return Drawn("figure-4", title, caption, missing=missing)
    tasks = shared(timed, kept)
    if not tasks:
        of_all = [*(one.name for one in timed), *(one.name for one in kept)]
        missing = f"no task that all of these have: {', '.join(of_all)}"
        return Drawn("figure-4", title, caption, missing=missing)
    outputs, kept, counted = _alike(timed, kept, tasks)
    points = {name: times(of_it) for name, of_it in outputs.items()}
    untimed = [one.name for one in results if one not in timed]
    notes = [f"Without times to a kernel, and not drawn: {', '.join(untimed)}."] if untimed else []
    notes += [f"{one.name}: no trial found a kernel." for one in trials if one.name not in {k.name for k in kept}]
    if not trials:
        notes.append("No searches to compare with: give --trials.")
    notes += counted
    of_family = {output.task_id: output.family for of_it in outputs.values() for output in of_it}
    of_family |= {search.task_id: search.family for one in kept for search in one.searches}
    families = sorted(set(of_family.values()))
    counts = [sum(s.family == family for s in one.searches) for one in kept for family in families]
    if max(counts, default=0) > MOST_CURVES:
        notes.append(f"Of more than {MOST_CURVES} searches of a file and family, so many have a line of their own.")
    if any(len(dots) > MOST_POINTS for of_it in points.values() for dots in of_it.values()):
        notes.append(
            f"Of more than {MOST_POINTS} dots of a file and family, evenly many are drawn in the order of time."
        )
    every = [(name, mean) for name, of_it in outputs.items() if (mean := centre(of_it)) is not None]
    every += [(one.name, steps[-1]) for one in kept if (steps := mean_search(one.searches))]
    means = "; ".join(f"{name} {_ratio(y)} after {_seconds(x)}" for name, (x, y) in every)
    with _style():
        figure = _draw_optimisation(outputs, points, kept, of_family, names)
        svg = _svg(figure, "figure-4", title, f"{caption} Over all families, {_tasks(len(tasks))}: {means}.")
    return Drawn("figure-4", title, caption, svg, notes=tuple(notes))


def _draw_optimisation(
    outputs: Mapping[str, Sequence[Output]],
    points: Mapping[str, Mapping[str, Points]],
    kept: Sequence[Trials],
    of_family: Mapping[str, str],
    names: Sequence[str],
) -> "Figure":
    """First outputs and dots by name, and searches, in a place for each family; of_family: the family of each task."""
    families = sorted(set(of_family.values()))
    columns = 2 if len(families) == 4 else min(3, len(families))
    lines = -(-len(families) // columns)
    figure = _figure(max(5.2, 3.2 * columns), 2.5 * lines + 0.5)
    drawn = _grid(figure, lines, columns, sharex=True, sharey=True)
    for place, (family, axes) in enumerate(zip(families, drawn, strict=False)):
        for one in kept:
            _draw_searches(axes, f"{names.index(one.name)}-{place}", one, family, names)
        for name, of_it in outputs.items():
            mean = centre(output for output in of_it if output.family == family)
            dots = points[name].get(family, [])
            _draw_times(axes, f"{names.index(name)}-{place}", name, dots, mean, names)
        axes.axhline(1, color=_DARK, linewidth=0.9, zorder=1)
        axes.set_title(f"{_cut(family, 24)} ({_tasks(sum(one == family for one in of_family.values()))})")
    for axes in drawn:
        _times_axis(axes)
        _seconds_axis(axes)
    for axes in drawn[len(families) :]:
        axes.set_visible(False)
    for place, axes in enumerate(drawn[: len(families)]):  # also above a place that is empty
        axes.tick_params(labelbottom=place + columns >= len(families))
    figure.supxlabel("optimisation time, s", fontsize=9)
    figure.supylabel("speed-up over L0", fontsize=9)
    _legend(figure, [_marker(names, name) for name in outputs] + [_stroke(names, one.name) for one in kept])
    return figure


def _draw_searches(axes: "Axes", part: str, one: Trials, family: str, names: Sequence[str]) -> None:
    of_family = sorted((s for s in one.searches if s.family == family), key=lambda search: search.task_id)
    colour, dash = _colour(names, one.name), _dash(names, one.name)
    for number, search in enumerate([search for search in of_family if search.steps][:MOST_CURVES]):
        x, y = zip(*sparse(search.steps), (max(search.end_s, search.steps[-1][0]), search.steps[-1][1]), strict=True)
        axes.plot(
            x, y, drawstyle="steps-post", color=colour, linewidth=0.6, alpha=0.35, zorder=2,
            gid=f"search-{part}-{number}",
        )  # fmt: skip
    if mean := mean_search(of_family):
        x, y = zip(*sparse(mean), strict=True)
        axes.plot(x, y, drawstyle="steps-post", color="white", linewidth=3.4, zorder=3)
        axes.plot(
            x, y, drawstyle="steps-post", color=colour, linewidth=1.8, linestyle=dash, zorder=4, gid=f"mean-{part}",
        )  # fmt: skip


def _tasks(count: int) -> str:
    return f"{count:,} task{'' if count == 1 else 's'}"


def _draw_times(
    axes: "Axes", part: str, name: str, dots: Points, mean: tuple[float, float] | None, names: Sequence[str]
) -> None:
    if dots:
        x, y = zip(*dots[:: -(-len(dots) // MOST_POINTS)], strict=True)
        axes.plot(
            x, y, linestyle="none", marker="o", markersize=2.8, color=_colour(names, name), alpha=0.45,
            markeredgewidth=0, zorder=5, gid=f"points-{part}",
        )  # fmt: skip
    if mean is None:
        return
    axes.plot(
        [mean[0]], [mean[1]], marker=_mark(names, name), markersize=7.5, color=_colour(names, name), zorder=6,
        markeredgecolor="white", markeredgewidth=0.9, gid=f"centre-{part}",
    )  # fmt: skip


def utility(runs: Sequence[Training], names: Sequence[str]) -> Drawn:
    """Figure 5. runs: of reinforcement learning or not; the others are left aside. names: as of `first_outputs`."""
    return _over_steps("figure-5", "Figure 5: utility in reinforcement learning", UTILITY, runs, names)


def correctness(runs: Sequence[Training], names: Sequence[str]) -> Drawn:
    """Figure 6, as Figure 5."""
    return _over_steps("figure-6", "Figure 6: correctness in reinforcement learning", CORRECTNESS, runs, names)


def _over_steps(
    key: str, title: str, quantities: Sequence[str], runs: Sequence[Training], names: Sequence[str]
) -> Drawn:
    learning = [run for run in runs if any(series(run.log, name) for name in quantities)]
    quantity = name_in(learning, quantities)
    words, percent = {
        "utility": ("mean utility", False),
        "r_lat": ("mean r_lat", False),
        "correct": ("correct, %", True),
        "stage/correct": ("correct, %", True),
    }[quantity or quantities[0]]
    said = {
        "utility": "The utility of a completion, log(L0/L) / log(L0/a), 0 for what is not right.",
        "r_lat": "The part of the reward that speed adds, α times the utility, 0 for what is not right or no faster.",
    }.get(quantity or "", "The share of completions that passed every gate.")
    caption = (
        f"{said} Faint: each step's completions. Dots: means of {BAND} steps at the middle of their band. "
        "Diamonds: validation prompts."
    )
    if quantity is None:
        return Drawn(key, title, caption, missing="no log of reinforcement learning: give --training a GRPO folder")
    notes = [f"{run.name}: its log holds no {quantity}." for run in learning if not series(run.log, quantity)]
    drawn = [run for run in learning if series(run.log, quantity)]
    with _style():
        figure = _figure(5.6, 3.3)
        (axes,) = _grid(figure, 1, 1)
        ends = _draw_log(axes, drawn, quantity, names, 100 if percent else 1)
        axes.set_xlabel("step")
        axes.set_ylabel(words)
        _legend(figure, [_stroke(names, run.name, "o") for run in drawn])
        described = "; ".join(f"{name} from {first:.3g} to {last:.3g}" for name, first, last in ends)
        svg = _svg(figure, key, title, f"{caption} First and last band, {words}: {described}.")
    return Drawn(key, title, caption, svg, notes=tuple(notes))


def losses(runs: Sequence[Training], names: Sequence[str]) -> Drawn:
    """The loss of supervised training by kind of span. runs, names: as of `utility`."""
    key, title = "figure-loss", "Loss of supervised training by kind of span"
    caption = (
        "Mean loss of a token in nats, unweighted, in explanation, structure and decision spans. Faint: as logged. "
        f"Dots: means of {BAND} steps at the middle of their band. Diamonds: validation rows."
    )
    kinds = [kind for kind in KINDS if any(series(run.log, f"loss_{kind}") for run in runs)]
    if not kinds:
        return Drawn(key, title, caption, missing="no log of supervised training: give --training an SFT folder")
    drawn = [run for run in runs if any(series(run.log, f"loss_{kind}") for kind in kinds)]
    with _style():
        figure = _figure(_WIDTH_IN, 2.9)
        ends = []
        for kind, axes in zip(kinds, _grid(figure, 1, len(kinds)), strict=False):
            ends += [(f"{name}, {kind}", *rest) for name, *rest in _draw_log(axes, drawn, f"loss_{kind}", names, 1)]
            axes.set_title(kind)
            axes.set_xlabel("step")
        figure.axes[0].set_ylabel("loss of a token, nats")
        _legend(figure, [_stroke(names, run.name, "o") for run in drawn])
        described = "; ".join(f"{name} from {first:.3g} to {last:.3g}" for name, first, last in ends)
        svg = _svg(figure, key, title, f"{caption} First and last band: {described}.")
    return Drawn(key, title, caption, svg)


def _draw_log(
    axes: "Axes", runs: Sequence[Training], quantity: str, names: Sequence[str], scale: float
) -> list[tuple[str, float, float]]:
    """Draw a quantity of each log from 0 up; the first and last band of each."""
    ends, top = [], 0.0
    for run in runs:
        colour, part = _colour(names, run.name), f"{quantity.replace('/', '-')}-{names.index(run.name)}"
        raw = [(step, scale * value) for step, value in series(run.log, quantity)]
        held = [(step, scale * value) for step, value in series(run.log, f"eval_{quantity}")]
        if not raw:
            continue
        x, y = zip(*sparse(raw), strict=True)
        axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.3, zorder=2, gid=f"raw-{part}")
        means = bands(raw)
        x, y = zip(*sparse(means), strict=True)
        axes.plot(
            x, y, color=colour, linewidth=1.5, linestyle=_dash(names, run.name), marker="o", markersize=4.5,
            markeredgecolor="white", markeredgewidth=0.6, zorder=4, gid=f"bands-{part}",
        )  # fmt: skip
        if held:
            x, y = zip(*sparse(held), strict=True)
            axes.plot(
                x, y, linestyle="none", marker="D", markersize=5.5, markerfacecolor="white",
                markeredgecolor=colour, markeredgewidth=1.3, zorder=5, gid=f"validation-{part}",
            )  # fmt: skip
        ends.append((run.name, means[0][1], means[-1][1]))
        top = max(top, *(value for _, value in raw + held))
    low = min((value for run in runs for _, value in series(run.log, quantity)), default=0.0)
    if low >= 0:
        axes.set_ylim(0, 1.06 * top or 1)
    axes.margins(x=0.03)
    axes.grid(axis="y", color=_LINE, linewidth=0.6)
    return ends


def data_sizes(sized: Sequence[Sized]) -> Drawn:
    """Shares against the number of rows that a model was trained on."""
    key, title = "figure-curve", "Correct and fast outputs against training rows"
    caption = (
        "Shares of outputs with 95% intervals, against the number of rows that the model was trained on: Correct@1, "
        "and what is right and twice as fast as L0 (refining: as graph A)."
    )
    found = {mode: shares(sized, mode) for mode in MODES}
    modes = [mode for mode in MODES if found[mode]]
    if not modes:
        return Drawn(key, title, caption, missing="no models of several data sizes: give --curve ROWS=RESULTS")
    with _style():
        figure = _figure(max(5.6, 4.8 * len(modes)), 3.2)
        said = []
        for mode, axes in zip(modes, _grid(figure, 1, len(modes), sharey=True), strict=False):
            for number, (column, points) in enumerate(found[mode].items()):
                said += [f"{mode}, {rows:,} rows: {column} {100 * (e.value or 0):.1f}%" for rows, e in points]
                _draw_shares(axes, f"{mode}-{number}", column, points, number)
            rows = sorted({one.rows for one in sized})
            axes.set_xscale("log")
            if len(rows) <= 7:
                axes.set_xticks(rows)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.xaxis.set_minor_formatter(lambda value, _: "")
            axes.set_title(MODE_NAMES[mode])
            axes.set_xlabel("training rows")
            axes.set_ylim(0, 100)
            axes.margins(x=0.08)
            axes.grid(axis="y", color=_LINE, linewidth=0.6)
            axes.legend(loc="best", fontsize=8)
        figure.axes[0].set_ylabel("share of outputs, %")
        svg = _svg(figure, key, title, f"{caption} {'; '.join(said)}.")
    return Drawn(key, title, caption, svg)


def _draw_shares(axes: "Axes", part: str, column: str, points: Sequence[tuple[int, Estimate]], number: int) -> None:
    colour, marker = PALETTE[number], MARKERS[number]
    for rows, estimate in points:
        if estimate.low is not None and estimate.high is not None:
            axes.plot([rows] * 2, [100 * estimate.low, 100 * estimate.high], color=colour, linewidth=1.3, zorder=3)
    at = sorted({rows for rows, _ in points})
    values = {rows: [100 * (e.value or 0.0) for other, e in points if other == rows] for rows in at}
    axes.plot(
        at, [math.fsum(values[rows]) / len(values[rows]) for rows in at], color=colour, linewidth=1.4,
        linestyle=DASHES[number], zorder=2,
    )  # fmt: skip
    axes.plot(
        [rows for rows in at for _ in values[rows]], [value for rows in at for value in values[rows]],
        linestyle="none", marker=marker, markersize=6, color=colour, markeredgecolor="white", markeredgewidth=0.8,
        zorder=4, label=column, gid=f"shares-{part}",
    )  # fmt: skip


# -- drawing ------------------------------------------------------------------------------------------


@contextmanager
def _style() -> Iterator[None]:
    """matplotlib's own defaults and ours, whatever the user's settings are; undone afterwards."""
    import matplotlib

    ours: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "littledragon", "text.parse_math": False, "font.size": 9,
        "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "axes.titlesize": 10, "axes.labelsize": 9,
        "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
        "axes.edgecolor": _GREY, "axes.linewidth": 0.8, "axes.axisbelow": True, "axes.labelcolor": _DARK,
        "text.color": _DARK, "xtick.color": _GREY, "ytick.color": _GREY, "xtick.labelcolor": _DARK,
        "ytick.labelcolor": _DARK, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "legend.frameon": False,
        "legend.fontsize": 9, "path.simplify": False,
    }  # fmt: skip
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the measuring font lacks; the reader's may have them
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(ours)
        yield


def _figure(width_in: float, height_in: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained", facecolor="white")


def _grid(figure: "Figure", lines: int, columns: int, **shared: bool) -> "list[Axes]":
    """Its axes, line by line."""
    made = figure.subplots(lines, columns, squeeze=False, **shared)  # type: ignore[call-overload]
    return [axes for line in made for axes in line]


def _legend(figure: "Figure", handles: Sequence[Any]) -> None:
    """Above the figure, in as few lines as its width takes."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    room = max(1, int(figure.get_figwidth() * 72 // (5.6 * longest + 42)))
    lines = -(-len(handles) // room)
    figure.set_figheight(figure.get_figheight() + 0.19 * (lines - 1))
    figure.legend(
        handles=handles, loc="outside upper left", ncols=-(-len(handles) // lines), handletextpad=0.5,
        columnspacing=1.6, borderaxespad=0.2,
    )  # fmt: skip


def _marker(names: Sequence[str], name: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D(
        [], [], linestyle="none", marker=_mark(names, name), markersize=7, color=_colour(names, name),
        markeredgecolor="white", markeredgewidth=0.6, label=_cut(name, 40),
    )  # fmt: skip


def _stroke(names: Sequence[str], name: str, marker: str | None = None) -> Any:
    from matplotlib.lines import Line2D

    return Line2D(
        [], [], color=_colour(names, name), linewidth=1.8, linestyle=_dash(names, name), label=_cut(name, 40),
        marker=marker, markersize=5, markeredgecolor="white", markeredgewidth=0.6,
    )  # fmt: skip


def _colour(names: Sequence[str], name: str) -> str:
    return PALETTE[names.index(name) % len(PALETTE)]


def _mark(names: Sequence[str], name: str) -> str:
    return MARKERS[names.index(name) % len(MARKERS)]


def _dash(names: Sequence[str], name: str) -> Any:
    return DASHES[names.index(name) % len(DASHES)]


def _cut(text: str, most: int = 18) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _times_axis(axes: "Axes") -> None:
    """A log scale of ratios; the line of no change lies within."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.8), max(high, 1.25))
    _log_ticks(axes.yaxis, *axes.get_ylim(), _ratio)


def _seconds_axis(axes: "Axes") -> None:
    axes.set_xscale("log")
    _log_ticks(axes.xaxis, *axes.get_xlim(), lambda value: f"{value:g}")


def _log_ticks(axis: Any, low: float, high: float, said: Callable[[float], str]) -> None:
    """Few labels: the decades, and 2 and 5 between where there are at most two of these."""
    from matplotlib.ticker import LogLocator, NullFormatter

    decades = math.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.2 else (1.0,), numticks=9))
    axis.set_major_formatter(lambda value, _: said(value))
    axis.set_minor_locator(LogLocator(subs=tuple(range(2, 10)) if decades < 6 else (1.0,), numticks=99))
    axis.set_minor_formatter(NullFormatter())
    axis.grid(True, which="major", color=_LINE, linewidth=0.6)


def _ratio(value: float) -> str:
    return f"{value:.3g}×" if value < 1000 else f"{value:,.0f}×"


def _seconds(value: float) -> str:
    return f"{value:.3g} s"


def _said(estimate: Estimate) -> str:
    if estimate.value is None:
        return "none"
    if estimate.low is None or estimate.high is None:
        return _ratio(estimate.value)
    return f"{_ratio(estimate.value)} [{_ratio(estimate.low)}, {_ratio(estimate.high)}]"


def _svg(figure: "Figure", key: str, title: str, description: str) -> str:
    """The figure as an `svg` element for a page, as wide as there is room, within bounds."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    canvas: Any = FigureCanvasSVG(figure)
    canvas.print_svg(buffer, metadata=nothing)
    drawn = ElementTree.fromstring(buffer.getvalue())
    used = {
        value.removeprefix("url(").removesuffix(")")[1:]
        for element in drawn.iter()
        for value in element.attrib.values()
        if value.startswith(("#", "url(#"))
    }
    root = _plain(drawn, key, used)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    width_in = figure.get_figwidth()  # letters are of one size in all figures, and to be read on a phone
    sizes = f"width:100%;min-width:{4.8 * width_in:.0f}rem;max-width:{7.6 * width_in:.0f}rem;height:auto"
    ours = {
        "xmlns": _SVG[1:-1], "role": "img", "aria-labelledby": f"{key}-title {key}-desc",
        "style": f"{sizes};stroke-linejoin:round;stroke-linecap:butt",
    }  # fmt: skip
    root.attrib.update(ours)
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        said = ElementTree.Element(tag, {"id": f"{key}-{tag}"})
        said.text = text
        root.insert(place, said)
    return ElementTree.tostring(root, encoding="unicode")


def _plain(element: ElementTree.Element, key: str, used: set[str]) -> ElementTree.Element:
    """The same without namespaces (a page has none), metadata and style sheets (which would be the whole page's).

    An id that something refers to gets the key before it; that of a group of marks becomes its data-part; others go.
    """
    made = ElementTree.Element(element.tag.removeprefix(_SVG))
    made.text, made.tail = element.text, element.tail
    for name, value in element.attrib.items():
        if name == "id" and value not in used:
            kind = value.partition("-")[0]
            if kind in _PARTS:
                made.set("data-part", value)
            continue
        if name == "id":
            made.set("id", f"{key}-{value}")
        elif value.startswith("url(#"):
            made.set(name, value.replace("url(#", f"url(#{key}-", 1))
        elif name == f"{_XLINK}href":
            made.set("href", f"#{key}-{value[1:]}")
        else:
            made.set(name, value)
    for child in element:
        if child.tag not in (f"{_SVG}metadata", f"{_SVG}style"):
            made.append(_plain(child, key, used))
    return made


_PARTS: Final = (
    "points", "interval", "mean", "one", "search", "centre", "raw", "bands", "validation", "shares",
)  # fmt: skip
