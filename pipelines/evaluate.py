"""`dragon eval`: what a model's outputs for a release's prompts are worth, in the terms of the paper's Table 1.

First the outputs: of a file, of a model behind an endpoint or on this machine, or of a baseline. Then each goes through
`validators.service`. A kernel is never timed while a model generates, so one comes after the other.

    FILE.jsonl          the results: a line that says what was run, then one for each judged output
    FILE.outputs.jsonl  what a model wrote (or what was drawn at random), as --outputs takes it
    FILE.summary.json   the figures

Both JSONL files only grow, and each line is flushed to the disk: a run that was interrupted goes on where it stopped.
What met a fault is done again.
"""

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from littledragon.compiler import slots, targets
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.eval_baselines import baseline, drawn
from littledragon.pipelines.eval_models import generated
from littledragon.pipelines.files import make_directory, replace_text
from littledragon.pipelines.journal import Journal, lines_of
from littledragon.pipelines.progress import Counts, busy, say
from littledragon.pipelines.questions import (
    MAX_OUTPUTS,
    SEARCHES,
    Prompt,
    Settings,
    Source,
    Text,
    is_number,
    prompts_of,
    text_hash,
)
from littledragon.pipelines.threads import in_children
from littledragon.release import evaluation, published
from littledragon.release.evaluation import Comparison, Evaluation, Output
from littledragon.release.published import Unreadable
from littledragon.release.tasks import tasks_of
from littledragon.schemas import tsel
from littledragon.schemas.ids import digest
from littledragon.validators.device import Deadlines
from littledragon.validators.service import Service, Task

Row = dict[str, Any]


def evaluate(release: Path, source: Source, results: Path, settings: Settings) -> Evaluation:
    """Have every output judged, or those that `results` does not hold yet; write and return the figures.

    Raises:
        UserError: a folder that is no release, no device of its tasks, a damaged file, an endpoint that takes no key,
            a result file of another run or one that another run writes to.
    """
    prompts, tasks = asked(release, settings)
    if settings.limit:
        prompts = _limited(prompts, settings.limit)
    run = run_of(prompts, source, settings)
    make_directory(results.parent)
    with Journal(results, {"run": run}) as journal:
        texts = _texts(release, source, prompts, tasks, results, settings)
        rows = _judge(journal, texts, prompts, tasks, settings)
    return summarised(results, run, rows, prompts, settings)


def asked(release: Path, settings: Settings) -> tuple[dict[str, Prompt], dict[str, Task]]:
    """The prompts of the split, and their tasks. Raises UserError: see `evaluate`."""
    try:
        with busy(f"reading {release}"):
            prompts = prompts_of(release, settings.split, settings.environment_id)
            tasks = {
                task.task_id: task
                for task in tasks_of(release, split=settings.split, environment_id=settings.environment_id)
            }
    except Unreadable as error:
        raise UserError(str(error)) from None
    lacking = sorted({prompt.task_id for prompt in prompts.values()} - tasks.keys())
    if lacking:
        raise UserError(f"{release}: tasks/ has no row of workload {lacking[0]}")
    return prompts, tasks


def summarised(
    results: Path, run: Row, rows: Sequence[Row], prompts: dict[str, Prompt], settings: Settings
) -> Evaluation:
    """The figures of a run's rows, which are written beside its results."""
    found = evaluation.summarise((output_of(row, results) for row in rows), seed=settings.seed)
    unanswered = len(prompts) - len({row["example_id"] for row in rows})
    summary = {"run": run, "prompts": len(prompts), "unanswered": unanswered, "evaluation": found.as_dict()}
    replace_text(beside(results, "summary.json"), json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return found


def compare(a: Path, b: Path) -> tuple[Comparison, ...]:
    """On how many prompts the first outputs of result file A are faster than those of B.

    Raises:
        UserError: a file that is none, or files of different environments or devices.
    """
    sides = [[output_of(row, path) for row in latest(lines_of(path), path).values()] for path in (a, b)]
    for path, side in zip((a, b), sides, strict=True):
        if not side:
            raise UserError(f"{path}: no result in it")
    try:
        return evaluation.compare(*sides)
    except ValueError as error:
        raise UserError(f"{a} and {b}: {error}") from None


def run_of(prompts: dict[str, Prompt], source: Source, settings: Settings) -> Row:
    """What makes results comparable; a result file holds those of one such run."""
    return {
        "version": 1,
        "split": settings.split,
        "device": settings.device,
        "environments": sorted({prompt.environment_id for prompt in prompts.values()}),
        "prompts": digest(sorted(prompts)),
        "repeat_ms": settings.repeat_ms,
        "build_s": settings.build_s,
        "threads": settings.threads if source.baseline in SEARCHES else settings.at_once,
        "source": source.as_dict(),
        **settings.deciding(source),
    }


def crowded(run: Row) -> str | None:
    """Why times to kernel of this run hold more than an output's own time: how many outputs were judged at once, or
    written by a local model. None where it was one each, or where the run does not say."""
    said = {"judged": run.get("threads"), "written": run.get("batch")}
    told = [f"{what} {count} at once" for what, count in said.items() if type(count) is int and count > 1]
    return " and ".join(told) or None


def _limited(prompts: dict[str, Prompt], limit: int) -> dict[str, Prompt]:
    """At most so many of each mode; which ones does not depend on what else there is."""
    kept: set[str] = set()
    for mode in evaluation.MODES:
        of_mode = sorted((text_hash(id), id) for id, prompt in prompts.items() if prompt.mode == mode)
        kept |= {id for _, id in of_mode[:limit]}
    return {id: prompt for id, prompt in prompts.items() if id in kept}  # still in the order of their tasks


def _texts(
    release: Path,
    source: Source,
    prompts: dict[str, Prompt],
    tasks: dict[str, Task],
    results: Path,
    settings: Settings,
) -> list[Text]:
    """The outputs to judge, in the order of their tasks. Raises UserError."""
    if source.baseline == "random":
        writer = functools.partial(drawn, release, prompts, tasks, settings)
        found = generated(source, prompts, beside(results, "outputs.jsonl"), settings, writer)
    elif source.baseline is not None:
        found = list(baseline(release, source.baseline, prompts))
    elif source.outputs is not None:
        found = read_outputs(source.outputs, prompts)
    else:
        found = generated(source, prompts, beside(results, "outputs.jsonl"), settings)
    order = {id: place for place, id in enumerate(prompts)}
    missing = len(prompts) - len({text.example_id for text in found})
    if missing:
        say(f"eval: {missing} of {len(prompts)} prompts have no output: they do not count in any figure")
    return sorted(found, key=lambda text: (order[text.example_id], text.number))


def read_outputs(path: Path, prompts: dict[str, Prompt]) -> list[Text]:
    """The outputs in a JSONL file of {"example_id", "output", "seconds"?}, numbered as they come.

    Raises:
        UserError: the file, or a line of it, is none; it says which. What an output holds is never the reason.
    """
    counts: Counter[str] = Counter()
    found = []
    other = 0
    for number, row in enumerate(lines_of(path), 1):
        where = f"{path}: line {number}"
        if number == 1 and row.keys() == {"run"}:  # a file that dragon eval wrote
            continue
        id, output, seconds = (row.get(name) for name in ("example_id", "output", "seconds"))
        if not isinstance(id, str) or not isinstance(output, str):
            raise UserError(f'{where}: not an object with the texts "example_id" and "output"')
        if seconds is not None and not (is_number(seconds) and 0 <= seconds < 1e9):
            raise UserError(f"{where}: seconds is {published.short(seconds)}, which is no duration")
        if id not in prompts:
            other += 1
            continue
        if counts[id] == MAX_OUTPUTS:
            raise UserError(f"{where}: more than {MAX_OUTPUTS} outputs of {published.short(id)}")
        found.append(Text(id, counts[id], output, None if seconds is None else float(seconds)))
        counts[id] += 1
    if not found:
        raise UserError(f"{path}: no output for a prompt of this split")
    if other:
        say(f"eval: {path}: {other} outputs belong to no prompt here (or to one that another row has): left aside")
    return found


def _judge(
    journal: "Journal", texts: list[Text], prompts: dict[str, Prompt], tasks: dict[str, Task], settings: Settings
) -> list[Row]:
    """The rows of all texts: those that the file holds, and new ones, which it gets."""
    known = {
        (row.get("example_id"), row.get("number"), row.get("text_sha256")): row
        for row in latest(journal.rows, journal.path).values()
        if isinstance(row.get("verdict"), dict) and row["verdict"].get("fault") is None
    }
    rows = [known[text.key] for text in texts if text.key in known]
    wanted = [text for text in texts if text.key not in known]
    progress = Counts("eval", len(texts), Counter(map(_ended, rows)))
    if not wanted:
        return rows
    slots.use(settings.workers)
    judged = {prompts[text.example_id].task_id for text in wanted}
    service = service_of([tasks[id] for id in sorted(judged)], settings)

    def judge(text: Text) -> Row:
        prompt = prompts[text.example_id]
        task = tasks[prompt.task_id]
        if text.fault is not None:
            verdict: Row = {"task_id": task.task_id, "gate": None, "fault": text.fault}
        else:
            id = task.task_id
            if text.default or tsel.diagnose(text.output).gate is None:
                service.get_ready(id)  # what is the task's own is no part of an output's time
            verdict = (service.default(id) if text.default else service.evaluate(id, text.output)).as_dict()
        return row_of(text, prompt, task, verdict, settings)

    with service:
        try:
            with contextlib.closing(in_children(judge, wanted, settings.at_once)) as done:
                for row in done:
                    journal.append(row)
                    rows.append(row)
                    progress.one(_ended(row))
        finally:
            progress.end()
    return rows


def service_of(tasks: Iterable[Task], settings: Settings) -> Service:
    """A service for these tasks. Raises UserError: their device is not here."""
    try:
        return Service(
            tasks, settings.device, deadlines=Deadlines(build_s=settings.build_s), repeat_ms=settings.repeat_ms
        )
    except (targets.DeviceMissing, ValueError) as error:
        raise UserError(str(error)) from None


def row_of(text: Text, prompt: Prompt, task: Task, verdict: Row, settings: Settings) -> Row:
    """The row of a judged output, as `release.evaluation.output_of` takes it."""
    return {
        "example_id": text.example_id,
        "number": text.number,
        "text_sha256": text.key[2],
        "task_id": task.task_id,
        "mode": prompt.mode,
        "family": prompt.family,
        "environment_id": prompt.environment_id,
        "device": settings.device,
        "default_us": task.default_us,
        "anchor_us": task.anchor_us,
        "parent_us": prompt.parent_us,
        "reference_us": prompt.latency_us,
        "margin": task.margin,
        "noise_band": task.noise_band,
        "generation_s": text.seconds,
        "verdict": verdict,
    }


def _ended(row: Row) -> str:
    verdict = row["verdict"]
    return "faults" if verdict.get("fault") is not None else "correct" if verdict["gate"] == "ok" else "refused"


def output_of(row: Row, path: Path) -> Output:
    """The output of a row of this file. Raises UserError: it is none."""
    try:
        return evaluation.output_of(row)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: a row that is no result: {published.short(error)}") from None


def latest(rows: Iterable[Row], path: Path) -> dict[tuple[str, int], Row]:
    """The last row of each output: a fault is followed by what came of another try."""
    found: dict[tuple[str, int], Row] = {}
    for row in rows:
        if "run" in row:
            continue
        id, number = row.get("example_id"), row.get("number")
        if not isinstance(id, str) or type(number) is not int or not isinstance(row.get("verdict"), dict):
            raise UserError(f"{path}: a row that is no result of dragon eval")
        found[id, number] = row
    return found


def beside(results: Path, ending: str) -> Path:
    """A file that belongs to a result file."""
    return results.with_name(f"{results.name.removesuffix('.jsonl')}.{ending}")
