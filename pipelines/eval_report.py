"""`dragon eval report`: one HTML page of what `dragon eval`, searches and training came to: tables and figures.

The page holds all it shows: no script, no outside resource. Equal files give equal bytes. Files may be strangers':
they are read to a bound, and whatever text they hold is escaped.
"""

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from littledragon.pipelines import evaluate
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.files import disk_error, read_regular, replace_text
from littledragon.pipelines.journal import lines_of
from littledragon.pipelines.progress import busy
from littledragon.release import evaluation, figures
from littledragon.release.evaluation import ALL, FAMILY, MODE_NAMES, MODES, Column, Mode, Output
from littledragon.release.figures import Drawn, Result, Sized, Training, Trials
from littledragon.release.published import short
from littledragon.release.times import COLUMNS, Times, times, trajectories_of

Row = dict[str, Any]

MOST_FILES: Final = len(figures.PALETTE)
"""Names on a page, each with a colour of its own."""
MOST_SIZES: Final = 64
MOST_OUTPUTS: Final = 300_000
"""Rows of a result file."""
MOST_TRIALS: Final = 1_000_000
"""Rows of a trials file."""
MOST_FAMILIES: Final = 32
MOST_RATIO: Final = 1e9
"""No kernel is faster or slower than another by more."""
MOST_LOG: Final = 256 << 20
"""Bytes of a trainer_state.json."""
MOST_NAME: Final = 40
_ENDLESS_S: Final = 1e9
_COMPARABLE: Final = ("split", "device", "environments", "prompts", "repeat_ms", "build_s")
"""What result files of one table have in common, or else a line says so."""


@dataclass(frozen=True)
class Source:
    """A file of the page: the name that it goes by, where it is, and what its first line says of the run."""

    name: str
    path: Path
    run: Row


def report(
    results: Sequence[str],
    out: Path,
    *,
    trials: Sequence[str] = (),
    training: Sequence[str] = (),
    curve: Sequence[str] = (),
    seed: int = 0,
) -> list[Drawn]:
    """Write the page; the figures on it and those that lack data.

    results: NAME=FILE of `dragon eval`'s results. trials: NAME=FILE of trials. training: NAME=DIR of a trainer's
    output. curve: ROWS=FILE, results of a model trained on so many rows. seed: of the intervals.

    Raises:
        UserError: nothing to show, a name or file that is none, no matplotlib, or a disk that refuses.
    """
    named = {
        kind: _named(kind, given) for kind, given in (("result", results), ("trials", trials), ("training", training))
    }
    sizes = _sizes(curve)
    if not any((*named.values(), sizes)):
        raise UserError("dragon eval report: give NAME=RESULTS.jsonl, --trials, --training or --curve")
    names = list(dict.fromkeys(name for of_kind in named.values() for name in of_kind))
    if len(names) > MOST_FILES:
        raise UserError(f"dragon eval report: {len(names)} names, and colours for {MOST_FILES}: make several pages")
    inputs = [*named["result"].values(), *named["trials"].values(), *(path for _, path in sizes)]
    if out.resolve() in [path.resolve() for path in inputs]:
        raise UserError(f"{out}: it is read for the page: choose another --out")
    _require_matplotlib()
    sources: list[Source] = []
    found: list[Result] = []
    for name, path in named["result"].items():
        with busy(f"reading {path}"):
            result, run = _result(name, path, seed)
        found.append(result)
        sources.append(Source(name, path, run))
    searches, against = [], []
    for name, path in named["trials"].items():
        with busy(f"reading {path}"):
            one, timed = _trials(name, path, found, sources, seed)
        searches.append(one)
        against += timed
    runs = [Training(name, log_of(path)) for name, path in named["training"].items()]
    sized = [Sized(rows, _result(f"{rows} rows", path, seed)[0].evaluation) for rows, path in sizes]
    _require_few_families([*(one.evaluation for one in found), *(one.evaluation for one in sized)])
    with busy("drawing"):
        drawn = [
            figures.first_outputs(found, names),
            figures.optimisation_time(found, searches, names),
            figures.utility(runs, names),
            figures.correctness(runs, names),
            figures.losses(runs, names),
            figures.data_sizes(sized),
        ]
    replace_text(out, _page(found, sources, against, names, drawn))
    return drawn


# -- what is read -------------------------------------------------------------------------------------


def _named(kind: str, given: Sequence[str]) -> dict[str, Path]:
    """Paths by name. Raises UserError."""
    found: dict[str, Path] = {}
    for text in given:
        name, equals, path = text.partition("=")
        name = short(name)
        if not equals or not name or not path:
            raise UserError(f"'{short(text)}': give NAME=PATH for each {kind} file or folder")
        if len(name) > MOST_NAME:
            raise UserError(f"'{name}': a name has at most {MOST_NAME} letters")
        if name in found:
            raise UserError(f"'{name}': two {kind} files of this name: choose another for one of them")
        found[name] = Path(path)
    return found


def _sizes(given: Sequence[str]) -> list[tuple[int, Path]]:
    found = []
    for text in given:
        rows, _, path = text.partition("=")
        if not (rows.isascii() and rows.isdigit() and 0 < int(rows[:13]) < 10**12 and len(rows) < 13) or not path:
            raise UserError(f"'{short(text)}': give --curve ROWS=RESULTS.jsonl, ROWS a positive number")
        found.append((int(rows), Path(path)))
    if len(found) > MOST_SIZES:
        raise UserError(f"--curve: {len(found)} files, at most {MOST_SIZES}")
    return found


def _require_matplotlib() -> None:
    try:
        import matplotlib.backends.backend_svg  # noqa: F401
    except ImportError:
        raise UserError("the figures are drawn with matplotlib: pip install 'littledragon[report]'") from None


def _rows(path: Path, what: str, most: int) -> Iterator[Row]:
    """The head and the rows of a file that begins with {"run": …}. Raises UserError."""
    number = 0
    for number, row in enumerate(lines_of(path)):
        if number == 0 and not (row.keys() == {"run"} and isinstance(row["run"], dict)):
            raise UserError(f'{path}: not a {what} file: its first line is no {{"run": …}}')
        if number > most:
            raise UserError(f"{path}: more than {most} rows")
        yield row
    if number == 0:
        raise UserError(f"{path}: no {what} in it")


def _result(name: str, path: Path, seed: int) -> tuple[Result, Row]:
    """A result file, and what it says of its run. Raises UserError."""
    rows = _rows(path, "result", MOST_OUTPUTS)
    run = next(rows)["run"]
    outputs: dict[tuple[str, int], Output] = {}
    for row in rows:
        try:
            output = evaluation.output_of(row)
            _check(output)
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: a row that is no result: {short(error)}") from None
        outputs[output.example_id, output.number] = output  # a fault is followed by what came of another try
    kept = tuple(outputs.values())
    return Result(name, kept, evaluation.summarise(kept, seed=seed)), run


def _check(output: Output) -> None:
    """Raises ValueError: numbers that no kernel has, or texts that no page shows."""
    if len(output.example_id) > 200 or len(output.task_id) > 200 or len(output.family) > 200:
        raise ValueError("an id or family of more than 200 letters")
    if output.family in ("", ALL) or short(output.family) != output.family:
        raise ValueError(f"'{short(output.family)}' is no name of a family")
    if not (output.seconds or 0.0) < _ENDLESS_S:
        raise ValueError(f"a time to kernel of {output.seconds} s")
    for before in (output.default_us, output.anchor_us, output.parent_us):
        if output.correct and before is not None and not _possible(before, output.latency_us):
            raise ValueError(f"latencies of {before:.3g} and {output.latency_us:.3g} µs, which no two kernels have")


def _require_few_families(evaluations: Sequence[evaluation.Evaluation]) -> None:
    families = {group.family for one in evaluations for group in one.groups} - {ALL}
    if len(families) > MOST_FAMILIES:
        raise UserError(f"the result files have {len(families)} families, at most {MOST_FAMILIES} fit on a page")


def _trials(
    name: str, path: Path, results: Sequence[Result], sources: Sequence[Source], seed: int
) -> tuple[Trials, list[tuple[str, Times]]]:
    """A trials file: its searches of the results' tasks, and each result file against them.

    Raises:
        UserError: it is none, or of another device or environment; no such task; results that differ in L0 or family.
    """
    if not results:
        raise UserError(f"{path}: give result files of the same tasks with it: they hold L0 and the families")
    rows = _rows(path, "trials", MOST_TRIALS)
    run = next(rows)["run"]
    for source in sources:
        for field in ("device", "environments"):
            ours, theirs = run.get(field), source.run.get(field)
            if ours is not None and theirs is not None and ours != theirs:
                said = f"{field} {short(ours)}, and {short(theirs)} in {source.path}"
                raise UserError(f"{path}: measured with {said}: these are not comparable")
    tasks: dict[str, tuple[str, float]] = {}
    for result in results:
        for output in result.outputs:
            known = tasks.setdefault(output.task_id, (output.family, output.default_us))
            if known != (output.family, output.default_us):
                raise UserError(
                    f"{short(output.task_id)}: two result files differ in its family or L0: no trials file fits both"
                )
    try:
        searches = {task: search for task, search in trajectories_of(rows).items() if task in tasks}
        drawn = []
        for task, search in sorted(searches.items()):
            family, default_us = tasks[task]
            trials = [(trial.elapsed_s, trial.latency_us) for trial in search.trials]
            if not all(at < _ENDLESS_S and _possible(default_us, latency) for at, latency in trials):
                raise ValueError(f"{short(task)}: a time or latency that no trial has")
            drawn.append(figures.search_of(task, family, default_us, trials, search.ended_s))
    except ValueError as error:
        raise UserError(f"{path}: {short(error)}") from None
    if not drawn:
        raise UserError(f"{path}: no trial of a task that the result files have")
    count = run.get("trials")
    most = max((trial.number for search in searches.values() for trial in search.trials), default=1)
    count = count if type(count) is int and 0 < count <= MOST_TRIALS else most
    timed = [(result.name, times(result.outputs, searches, count, name, seed=seed)) for result in results]
    return Trials(name, tuple(drawn)), timed


def _possible(before_us: float, latency_us: float | None) -> bool:
    return latency_us is None or 1 / MOST_RATIO < before_us / latency_us < MOST_RATIO


def log_of(folder: Path) -> list[Row]:
    """The log of a trainer's output folder; of a run that has not ended, that of its last checkpoint.

    Raises:
        UserError: no such folder or log, or one that no trainer wrote.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder: give the --out of a training run")
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=_step)
    path = next((p for p in (folder / "trainer_state.json", *reversed(states)) if p.is_file()), None)
    if path is None:
        raise UserError(f"{folder}: no trainer_state.json: give the --out of a training run with a checkpoint")
    try:
        text = read_regular(path, MOST_LOG + 1)
    except OSError as error:
        raise disk_error(path, error) from None
    if len(text) > MOST_LOG:
        raise UserError(f"{path}: more than {MOST_LOG >> 20} MiB")
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {short(error)}") from None
    log = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(log, list) or not all(isinstance(line, dict) for line in log):
        raise UserError(f"{path}: it has no log_history")
    return log


def _step(path: Path) -> int:
    number = path.parent.name.partition("-")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 12 else -1


# -- the page -----------------------------------------------------------------------------------------

STYLE: Final = """
:root { color-scheme: light }
body { margin: 0 auto; padding: 1.2rem 1rem 3rem; max-width: 73rem; background: #fff; color: #1a1a1a;
  font: 1rem/1.5 system-ui, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .4rem }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .4rem; border-bottom: 1px solid #ccc; padding-bottom: .2rem }
p { max-width: 52rem; margin: .4rem 0 .8rem }
.scroll { overflow-x: auto; margin: .2rem 0 1.2rem }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; line-height: 1.35 }
h3 { font-size: .9rem; margin: 1.4rem 0 .2rem }
th, td { padding: .28rem .7rem; text-align: right; vertical-align: top; white-space: nowrap }
thead th { border-bottom: 1.5px solid #1a1a1a; font-weight: 600; vertical-align: bottom; white-space: normal;
  min-width: 3.2em; max-width: 8.5em }
tbody tr:last-child > * { border-bottom: 1px solid #ccc }
th:first-child, td:first-child { text-align: left; padding-left: 0; position: sticky; left: 0; background: #fff }
tbody th { font-weight: 400; white-space: normal; min-width: 6rem; max-width: 12.5rem }
tbody th[scope=rowgroup] { font-weight: 600; padding-top: .7rem }
.words { text-align: left; white-space: normal; min-width: 8rem }
.key { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .45em }
.ci { display: block; color: #595959; font-size: .8em }
figure { margin: 1rem 0 2rem }
figure svg { display: block }
figure svg text { font-family: Helvetica, Arial, "Liberation Sans", "DejaVu Sans", sans-serif !important }
figure.narrow { flex: 1 1 24rem; min-width: 0; max-width: 36rem; margin: 0 }
.pair { display: flex; flex-wrap: wrap; gap: 1rem 2rem; margin: 1rem 0 2rem }
figcaption { font-size: .9rem; max-width: 52rem }
.note, .missing { color: #595959; font-size: .9rem }
.warning { border-left: 4px solid #d55e00; padding: .3rem .8rem; background: #fdf3ec }
"""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
HEAD: Final = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Evaluation report</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Evaluation report</h1>
"""
NARROW: Final = ("figure-5", "figure-6")


def _page(
    results: Sequence[Result],
    sources: Sequence[Source],
    against: Sequence[tuple[str, Times]],
    names: Sequence[str],
    drawn: Sequence[Drawn],
) -> str:
    parts = [HEAD, *_warnings(results, sources)]
    for families in (False, True):
        for mode in MODES:
            kept = [_Line(one.name, _keys(names, one.name), one.evaluation.groups) for one in results]
            parts += _tables(mode, kept, families)
            kept = [_Line(f"{name} / {of.name}", _keys(names, name, of.name), of.groups) for name, of in against]
            parts += _times_table(mode, kept, families)
        if not families:
            parts += ["<h2>Figures</h2>\n", *_figures(drawn)]
    parts += _provenance(results, sources)
    parts.append("</body>\n</html>\n")
    return "".join(parts)


def _warnings(results: Sequence[Result], sources: Sequence[Source]) -> Iterator[str]:
    if any(source.run.get("device") == "simulated" for source in sources):
        yield _paragraph(
            "Latencies are those of the simulated device: they say nothing of a kernel's speed.", "warning"
        )
    different = [
        field
        for field in _COMPARABLE
        if len({json.dumps(source.run.get(field), sort_keys=True) for source in sources}) > 1
    ]
    if different:
        said = ", ".join(different)
        yield _paragraph(f"These result files differ in {said}: their rows are not comparable.", "warning")
    timed = {one.name for one in results if any(group.to_kernel_s.of for group in one.evaluation.groups)}
    why = {source.name: evaluate.crowded(source.run) for source in sources if source.name in timed}
    if crowded := "; ".join(f"{name} ({said})" for name, said in why.items() if said):
        yield _paragraph(f"Times to a kernel hold waiting for other outputs: {crowded}.", "warning")


@dataclass(frozen=True)
class _Line:
    """What stands in one row of a table, or in one for each family."""

    name: str
    key: str
    groups: Sequence[Any]

    def group(self, mode: Mode, family: str) -> Any:
        return next((g for g in self.groups if (g.mode, g.family) == (mode, family)), None)


def _keys(names: Sequence[str], *those: str) -> str:
    """The colours that names have in the figures."""
    colours = (figures.PALETTE[names.index(name)] for name in those)
    return "".join(f'<span class="key" style="background:{colour}"></span>' for colour in colours)


def _families(mode: Mode, lines: Sequence[_Line], families: bool) -> list[str]:
    """`all`, or the others."""
    found = {group.family for line in lines for group in line.groups if group.mode == mode}
    return sorted(found - {ALL}) if families else sorted(found & {ALL})


def _tables(mode: Mode, lines: Sequence[_Line], families: bool) -> Iterator[str]:
    """Table 1's columns, first outputs, and failures by gate; over all families, or by family."""
    kept = [line for line in lines if line.group(mode, ALL)]
    chosen = _families(mode, kept, families)
    if not chosen:
        return
    about = f"{MODE_NAMES[mode]} by family" if families else MODE_NAMES[mode]
    yield f"<h2>{about}</h2>\n"
    lacking = [line.name for line in lines if line not in kept]
    if lacking:
        yield _paragraph(f"Without outputs of this kind: {', '.join(lacking)}.", "note")
    groups = [group for line in kept for group in line.groups if group.mode == mode]
    for title, columns in evaluation.columns(mode, groups):
        yield _table(f"{about}: {title}", columns, mode, kept, chosen)


def _times_table(mode: Mode, lines: Sequence[_Line], families: bool) -> Iterator[str]:
    """Times to a kernel against searches, and what has none."""
    kept = [line for line in lines if line.group(mode, ALL)]
    chosen = _families(mode, kept, families)
    if not chosen:
        return

    about = f"{MODE_NAMES[mode]}{' by family' if families else ''}"
    columns = [column for column in COLUMNS if column is not FAMILY]
    yield _table(f"{about}: time to kernel against searches, medians [95%]", columns, mode, kept, chosen)


def _table(title: str, columns: Sequence[Column], mode: Mode, lines: Sequence[_Line], families: Sequence[str]) -> str:
    heads = "".join(f'<th scope="col"{_words(column)}>{html.escape(column.name)}</th>' for column in columns)
    bodies = []
    for family in families:
        rows = []
        if family != ALL:
            said = html.escape(family)
            rows.append(f'<tr><th scope="rowgroup" colspan="{len(columns) + 1}">{said}</th></tr>\n')
        for line in lines:
            group = line.group(mode, family)
            cells = "".join(_cell(column, group) for column in columns)
            rows.append(f'<tr><th scope="row">{line.key}{html.escape(line.name)}</th>{cells}</tr>\n')
        bodies.append(f"<tbody>\n{''.join(rows)}</tbody>\n")
    said = html.escape(title)
    return (
        f'<h3>{said}</h3>\n<div class="scroll" role="region" tabindex="0" aria-label="{said}"><table>\n'
        f'<thead><tr><th scope="col">results</th>{heads}</tr></thead>\n{"".join(bodies)}</table></div>\n'
    )


def _cell(column: Column, group: Any) -> str:
    """A cell; an interval stands below its value."""
    value, bracket, rest = (column.cell(group) if group else "").partition(" [")
    interval = f'<span class="ci">[{html.escape(rest)}</span>' if bracket else ""
    return f"<td{_words(column)}>{html.escape(value)}{interval}</td>"


def _words(column: Column) -> str:
    return "" if column.right else ' class="words"'


def _figures(drawn: Sequence[Drawn]) -> Iterator[str]:
    """Those that are narrow in pairs; then what is left out, and why."""
    pair = [one for one in drawn if one.svg is not None and one.key in NARROW]
    for one in drawn:
        if one in pair:
            if one is pair[0]:
                yield f'<div class="pair">\n{"".join(map(_figure, pair))}</div>\n'
        elif one.svg is not None:
            yield _figure(one)
    for one in drawn:
        if one.svg is None:
            yield _paragraph(f"{one.title} is left out: {one.missing}.", "missing")


def _figure(drawn: Drawn) -> str:
    notes = _paragraph(" ".join(drawn.notes), "note") if drawn.notes else ""
    title, caption = html.escape(drawn.title), html.escape(drawn.caption)
    return (
        f'<figure class="{"narrow" if drawn.key in NARROW else "wide"}" id="{drawn.key}">\n'
        f'<div class="scroll" role="region" tabindex="0" aria-label="{title}">{drawn.svg}</div>\n'
        f"<figcaption><strong>{title}.</strong> {caption}</figcaption>\n{notes}</figure>\n"
    )


def _provenance(results: Sequence[Result], sources: Sequence[Source]) -> Iterator[str]:
    """What each result file was made with. Addresses and folders are nobody's business."""
    if not sources:
        return
    fields = ("answers", "split", "device", "environments", "prompts", "repeats, ms", "rows")
    heads = "".join(f'<th scope="col">{field}</th>' for field in fields)
    lines = []
    for result, source in zip(results, sources, strict=True):
        run = source.run
        environments = run.get("environments")
        cells = (
            _answers(run.get("source")),
            run.get("split"),
            run.get("device"),
            " ".join(map(str, environments)) if isinstance(environments, list) else environments,
            str(run.get("prompts", ""))[:12],
            run.get("repeat_ms"),
            f"{len(result.outputs):,}",
        )
        said = "".join(f"<td>{html.escape('' if cell is None else short(cell))}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{html.escape(source.name)}</th>{said}</tr>\n')
    yield (
        '<h2>Result files</h2>\n<div class="scroll" role="region" tabindex="0" aria-label="Result files"><table>\n'
        f'<thead><tr><th scope="col">results</th>{heads}</tr></thead>\n'
        f"<tbody>\n{''.join(lines)}</tbody></table></div>\n"
    )
    yield _paragraph(
        "Intervals are percentiles of a bootstrap over tasks. Faults are failures of the machinery: they count in no "
        "share. An empty output schedules nothing. Speed-ups are of correct first outputs; over what was kept, all "
        "first outputs count, and one that is not correct counts 1.",
        "note",
    )


def _answers(source: Any) -> str:
    if not isinstance(source, dict):
        return ""
    if source.get("baseline"):
        return f"baseline {source['baseline']}"
    if source.get("model"):
        return f"model {str(source['model']).rstrip('/').rpartition('/')[2]}"
    return "a file of outputs"


def _paragraph(text: str, kind: str) -> str:
    return f'<p class="{kind}">{html.escape(text)}</p>\n'
