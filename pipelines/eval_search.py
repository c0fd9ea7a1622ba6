"""`dragon eval --baseline search` and `stock`: what a search finds in its first trials of each task.

Tasks are searched one after the other, so that the time of a trial is that of its search alone. A trajectory does not
depend on prompts; each prompt of its task is answered with the best of the first N trials, for each N to read at.

    FILE.trials.jsonl   a line that says what was run; then a line for each trial: {"task_id", "trial", "elapsed_s",
                        "gate", "latency_us", "text"}, and one with "end" where a search found no more
    FILE-N.jsonl        the results of the first N trials, as any results of `dragon eval`

Trials are numbered from 1 in the order of their proposal; elapsed_s counts from the beginning of the task's search
until the trial's verdict is known, waiting included. A search that was interrupted goes on: what was recorded is
proposed again, outside of its time, and not judged again. A fault ends a task's search until the next run.
"""

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import slots
from littledragon.compiler.children import ChildError
from littledragon.pipelines import evaluate
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.eval_baselines import rules_of
from littledragon.pipelines.eval_trials import CHANCES, Search, Work, recorded, search, stock, verdict_of
from littledragon.pipelines.files import make_directory
from littledragon.pipelines.journal import Journal, lines_of
from littledragon.pipelines.progress import Counts, say
from littledragon.pipelines.questions import Prompt, Settings, Source, Text, text_hash
from littledragon.release import published
from littledragon.release.evaluation import Evaluation
from littledragon.release.times import Times, times, trajectories_of
from littledragon.schemas.gates import OK
from littledragon.validators import device as devices
from littledragon.validators.service import Service, Task, Verdict

Row = dict[str, Any]

READ: Final = (8, 32, 128)


def searched(release: Path, source: Source, results: Path, settings: Settings) -> dict[int, Evaluation]:
    """Search every task, or go on with it; write and return the figures at each number of trials.

    Raises:
        UserError: as `evaluate.evaluate`; stock on a simulated device; trials that this engine does not propose.
    """
    reads = reads_of(settings)
    if source.baseline == "stock" and settings.device == "simulated":
        raise UserError("--baseline stock measures by itself: it needs --device real")
    prompts, tasks = evaluate.asked(release, settings)
    chosen = in_turn(prompts.values(), settings.limit)
    prompts = {id: prompt for id, prompt in prompts.items() if prompt.task_id in set(chosen)}
    rules = rules_of(release, [tasks[id] for id in chosen])
    run = evaluate.run_of(prompts, source, settings)
    make_directory(results.parent)
    with contextlib.ExitStack() as stack:
        shared = {name: value for name, value in run.items() if name != "prompts"}  # more tasks may come
        journal = stack.enter_context(Journal(evaluate.beside(results, "trials.jsonl"), {"run": shared}))
        files = {n: stack.enter_context(Journal(at(results, n), {"run": run | {"read": n}})) for n in reads}
        known = recorded(journal, source.baseline == "search")
        slots.use(settings.workers)
        service = stack.enter_context(evaluate.service_of([tasks[id] for id in chosen], settings))
        total = settings.trials * len(chosen)
        kept = sum(len(known[id].trials) for id in chosen)
        progress = Counts(str(source.baseline), total, {"kept": kept} if kept else {})
        warm = False
        for id in chosen:
            if known[id].ended(settings.trials):
                continue
            device = devices.open_device(settings.device, tasks[id].target, devices.Deadlines(settings.build_s))
            if not warm:  # slots, and what they import, are there before the first clock starts
                with contextlib.suppress(ChildError):
                    name = "littledragon.compiler.proposals:default"
                    device.on_slot(name, 600.0, module=tasks[id].module, target=tasks[id].target)
                warm = True
            work = Work(tasks[id], rules[id], device, service, settings, journal, progress)
            (search if source.baseline == "search" else stock)(work, known[id])
            if known[id].fault is not None:
                say(f"{source.baseline}: {id}: a fault, to be tried again by the same command: {known[id].fault}")
        progress.end()
        found = {}
        for n, file in files.items():
            held = evaluate.latest(file.rows, file.path)
            best = _best if source.baseline == "search" else functools.partial(_best_of_stock, _judged(held))
            answers = {id: best(service, id, known[id], n) for id in chosen}
            rows = _answers(file, held, answers, prompts, tasks, settings)
            found[n] = evaluate.summarised(at(results, n), run | {"read": n}, rows, prompts, settings)
    return found


def reads_of(settings: Settings) -> tuple[int, ...]:
    """At how many trials it is read. Raises UserError: more than there are, or none."""
    reads = settings.read or (*(n for n in READ if n < settings.trials), settings.trials)
    if not all(0 < n <= settings.trials for n in reads):
        raise UserError(f"--read {','.join(map(str, reads))}: give numbers from 1 to --trials, {settings.trials}")
    return tuple(sorted(set(reads)))


def at(results: Path, n: int) -> Path:
    """The result file of the first n trials."""
    return results.with_name(f"{results.name.removesuffix('.jsonl')}-{n}.jsonl")


def in_turn(prompts: Iterable[Prompt], limit: int) -> list[str]:
    """Task ids, of each family in turn; at most `limit`, 0 for all."""
    of_family: defaultdict[str, set[str]] = defaultdict(set)
    for prompt in prompts:
        of_family[prompt.family].add(prompt.task_id)
    turns = [
        (turn, text_hash(id), id)
        for ids in of_family.values()
        for turn, id in enumerate(sorted(ids, key=lambda id: (text_hash(id), id)))
    ]
    found = list(dict.fromkeys(id for *_, id in sorted(turns)))
    return found[: limit or len(found)]


# -- results ------------------------------------------------------------------------------------------

_Best = tuple[str, Row, float | None]
"""The text that a task is answered with, its verdict, and how long the search took until then."""


def _best(service: Service, task_id: str, known: Search, count: int) -> _Best:
    """The best correct of the first `count` trials; where none is, the first one."""
    took = known.elapsed_s(count)
    if took is None:
        return "", Verdict(task_id, None, fault=f"no search: {known.fault}").as_dict(), None
    first = known.first(count)
    if not first:  # no legal schedule was found
        return "", service.evaluate(task_id, "").as_dict(), took
    correct = [row for row in first if row["gate"] == OK]
    best = min(correct, key=lambda row: (row["latency_us"], row["trial"])) if correct else first[0]
    return best["text"] or "", best["verdict"], took


def _judged(held: Mapping[tuple[str, int], Row]) -> dict[tuple[str, str], Row]:
    """The verdicts of a result file, by task and hash of the text."""
    rows = (row for row in held.values() if row["verdict"].get("fault") is None)
    return {(str(row.get("task_id")), str(row.get("text_sha256"))): row["verdict"] for row in rows}


def _best_of_stock(
    judged: Mapping[tuple[str, str], Row], service: Service, task_id: str, known: Search, count: int
) -> _Best:
    """The first that is correct of the `CHANCES` best of the first `count` trials; where none is, the best one."""
    took = known.elapsed_s(count)
    if took is None:
        return "", Verdict(task_id, None, fault=f"no search: {known.fault}").as_dict(), None
    timed = [row for row in known.first(count) if row["latency_us"] is not None]
    tried: list[tuple[str, Row]] = []
    for row in sorted(timed, key=lambda row: (row["latency_us"], row["trial"]))[:CHANCES]:
        text = row["text"] or ""
        verdict = judged.get((task_id, text_hash(text))) or verdict_of(service, task_id, row.get("refused", row))
        tried.append((text, verdict))
        if tried[-1][1]["gate"] in (OK, None):
            return *tried[-1], took
    if not tried:
        tried.append(("", service.evaluate(task_id, "").as_dict()))
    return *tried[0], took


def _answers(
    file: Journal,
    held: Mapping[tuple[str, int], Row],
    best: dict[str, _Best],
    prompts: dict[str, Prompt],
    tasks: dict[str, Task],
    settings: Settings,
) -> list[Row]:
    """The rows of all prompts, which the file gets where it does not end in them."""
    rows = []
    for id, prompt in prompts.items():
        text, verdict, took = best[prompt.task_id]
        row = evaluate.row_of(Text(id, 0, text, 0.0), prompt, tasks[prompt.task_id], verdict, settings)
        steps = evaluate.output_of(row, file.path).seconds or 0.0
        row["generation_s"] = None if took is None else max(0.0, took - steps)  # its time is all of the search's
        if held.get((id, 0)) != row:
            file.append(row)
        rows.append(row)
    return rows


def times_of(results: Path, trials: Sequence[Path], count: int | None, seed: int = 0) -> list[Times]:
    """The first outputs of a result file against the searches in each trials file, at so many trials or all of them.

    Raises:
        UserError: a file that is none, or files of different environments or devices; more trials than were searched.
    """
    outputs = [evaluate.output_of(row, results) for row in evaluate.latest(lines_of(results), results).values()]
    found = []
    for path in trials:
        rows = lines_of(path)
        run = next(rows, {}).get("run")
        source, searched = (run.get("source"), run.get("trials")) if isinstance(run, dict) else (None, None)
        if not isinstance(run, dict) or not isinstance(source, dict) or type(searched) is not int:
            raise UserError(f"{path}: not the trials of dragon eval --baseline search or stock")
        if (count or 1) > searched:
            raise UserError(f"{path}: --trials {count}: its searches have {searched}")
        places = [({output.device for output in outputs}, {run.get("device")}, "device")]
        environments = run.get("environments")
        places += [({output.environment_id for output in outputs}, set(map(str, environments or ())), "environment")]
        for ours, theirs, what in places:
            if not ours <= theirs:
                said = (
                    f"{what} {published.short(sorted(map(str, ours)))} and {published.short(sorted(map(str, theirs)))}"
                )
                raise UserError(f"{results} and {path}: {said}: these are not comparable")
        try:
            trajectories = trajectories_of(rows)
            found.append(times(outputs, trajectories, count or searched, str(source.get("baseline")), seed=seed))
        except ValueError as error:
            raise UserError(f"{path}: {published.short(error)}") from None
    return found
