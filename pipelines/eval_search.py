"""`dragon eval --baseline search` and `stock`: what a search finds in its first trials of each task.

Tasks are searched one after the other, so that the time of a trial is that of its search alone. A trajectory does not
depend on prompts; each prompt of its task is answered with the best of the first N trials, for each N to read at.

    FILE.trials.jsonl   a line that says what was run; then a line for each trial: {"task_id", "trial", "elapsed_s",
                        "gate", "latency_us", "text"}; ours also hold "proposal", by which a trial is known when it is
                        proposed again, and the "verdict"; stock's hold "trace" where it may be the best, "reason" where
                        there is no latency, "refused" where its trace has no text. One with "end" where a search found
                        no more: "no_space", "exhausted", or "died", with a "reason", where its child did each time
    FILE-N.jsonl        the results of the first N trials, as any results of `dragon eval`

Trials are numbered from 1 in the order of their proposal; elapsed_s counts from the beginning of the task's search
until the trial's verdict is known, waiting included. What is there before the first trial, slots, the child that
measures and the reference, is made before. A line that comes again with the same trial takes the place of the first. A
search that was interrupted goes on: what was recorded is proposed again, outside of its time, and not judged again. A
fault ends a task's search until the next run. Winners are measured anew, outside of the search's time.
"""

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import rules as rule_sets
from littledragon.compiler import slots
from littledragon.compiler.stock import BATCH as STOCK_BATCH
from littledragon.pipelines import evaluate
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.eval_baselines import rules_of
from littledragon.pipelines.eval_trials import (
    CHANCES,
    Search,
    Work,
    proposing,
    recorded,
    search,
    spelled_by,
    stock,
    verdict_of,
)
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
_BATCHES: Final = f"stock measures {STOCK_BATCH} at once: give multiples of {STOCK_BATCH}, or all of its {{}} trials"


def searched(release: Path, source: Source, results: Path, settings: Settings) -> dict[int, Evaluation]:
    """Search every task, or go on with it; write and return the figures at each number of trials.

    Raises:
        UserError: as `evaluate.evaluate`; stock on a simulated device; trials that this engine does not propose.
    """
    reads = reads_of(settings, source)
    stocks = source.baseline == "stock"
    if stocks and settings.device == "simulated":
        raise UserError("--baseline stock measures by itself: it needs --device real")
    if stocks:  # what its builder has time for, the service has time for
        settings = dataclasses.replace(settings, build_s=max(settings.build_s, settings.timeout_s))
    prompts, tasks = evaluate.asked(release, settings)
    chosen = in_turn(prompts.values(), settings.limit)
    kept = set(chosen)
    prompts = {id: prompt for id, prompt in prompts.items() if prompt.task_id in kept}
    wanted = [tasks[id] for id in chosen]
    rules = own_rules(wanted) if stocks else rules_of(release, wanted)
    run = evaluate.run_of(prompts, source, settings) | ({} if stocks else proposing())
    make_directory(results.parent)
    with contextlib.ExitStack() as stack:
        shared = {name: value for name, value in run.items() if name != "prompts"}  # more tasks may come
        journal = stack.enter_context(Journal(evaluate.beside(results, "trials.jsonl"), {"run": shared}))
        files = {n: stack.enter_context(Journal(at(results, n), {"run": run | {"read": n}})) for n in reads}
        known = recorded(journal, not stocks)
        slots.use(settings.workers)
        service = stack.enter_context(evaluate.service_of(wanted, settings))
        total = settings.trials * len(chosen)
        before = sum(len(known[id].trials) for id in chosen)
        progress = Counts(str(source.baseline), total, {"kept": before} if before else {})
        for id in chosen:
            if known[id].ended(settings.trials):
                continue
            device = devices.open_device(settings.device, tasks[id].target, devices.Deadlines(settings.build_s))
            if not stocks:  # slots, what measures and the reference are there before the clock starts
                service.get_ready(id)
            work = Work(tasks[id], rules[id], device, service, settings, journal, progress)
            (stock if stocks else search)(work, known[id])
            if known[id].fault is not None:
                say(f"{source.baseline}: {id}: a fault, to be tried again by the same command: {known[id].fault}")
            elif (known[id].end or {}).get("reason"):
                say(f"{source.baseline}: {id}: it found no more trials: {(known[id].end or {})['reason']}")
        progress.end()
        found = {}
        held = {n: evaluate.latest(file.rows, file.path) for n, file in files.items()}
        judged = {key: verdict for rows in held.values() for key, verdict in _judged(rows).items()}
        reader = _Reader(service, settings, journal, judged)
        for n, file in files.items():
            answers = {id: reader.best(id, known[id], n) for id in chosen}
            rows = _answers(file, held[n], answers, prompts, tasks, settings)
            found[n] = evaluate.summarised(at(results, n), run | {"read": n}, rows, prompts, settings)
    return found


def reads_of(settings: Settings, source: Source) -> tuple[int, ...]:
    """At how many trials it is read: our search after any number, stock where one of its batches ends.

    Raises:
        UserError: more than there are, none, or not a batch's end.
    """
    stocks = source.baseline == "stock"
    usual = (STOCK_BATCH,) if stocks else READ
    reads = settings.read or (*(n for n in usual if n < settings.trials), settings.trials)
    if not all(0 < n <= settings.trials for n in reads):
        raise UserError(f"--read {','.join(map(str, reads))}: give numbers from 1 to --trials, {settings.trials}")
    if stocks and not all(ends_batch(n, settings.trials) for n in reads):
        raise UserError(f"--read {','.join(map(str, reads))}: {_BATCHES.format(settings.trials)}")
    return tuple(sorted(set(reads)))


def ends_batch(count: int, trials: int) -> bool:
    """Whether one of stock's batches ends after so many of its trials: before, none of the batch is known."""
    return count == trials or count % STOCK_BATCH == 0


def own_rules(tasks: Iterable[Task]) -> dict[str, str]:
    """The rule set that TVM itself chooses for each task's target: stock's, whatever space the release was made in.

    Raises:
        UserError: none that is known here.
    """
    found = {task.task_id: rule_sets.rules_of(task.target) for task in tasks}
    lacking = [id for id, rules in found.items() if rules is None]
    if lacking:
        raise UserError(f"--baseline stock: no rule set of TVM's is known for the target of {lacking[0]}")
    return {id: str(rules) for id, rules in found.items()}


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


@dataclass(frozen=True)
class _Reader:
    """What measures the winners of searches anew: of many latencies that were measured once the least is too low.

    judged: the verdicts that are known of winners, by task and hash of the text. A winner of several numbers of trials
    is measured once.
    """

    service: Service
    settings: Settings
    journal: Journal
    judged: dict[tuple[str, str], Row]

    def best(self, task_id: str, known: Search, count: int) -> _Best:
        """The first that is right of the `CHANCES` best of the first `count` trials; where none is, the best one that
        has a text, and where none of them is correct, the first one that has one."""
        took = known.elapsed_s(count)
        if took is None:
            return "", Verdict(task_id, None, fault=f"no search: {known.fault}").as_dict(), None
        first = known.first(count)
        timed = [row for row in first if row["gate"] == OK and row["latency_us"] is not None]
        tried: list[tuple[str, Row]] = []
        for row in sorted(timed, key=lambda row: (row["latency_us"], row["trial"]))[:CHANCES]:
            tried.append(self._anew(task_id, row, known))
            if tried[-1][1]["gate"] in (OK, None):
                return *tried[-1], took
        others = [(row["text"], row["verdict"]) for row in first if row["text"] and "verdict" in row]
        spoken = [one for one in (tried or others) if one[0]]
        if spoken:
            return *spoken[0], took
        empty = self.service.evaluate(task_id, "").as_dict()  # a trial that no text spells schedules nothing
        return "", empty | ({"reason": f"no text: {tried[0][1]['reason']}"} if tried else {}), took

    def _anew(self, task_id: str, row: Row, known: Search) -> tuple[str, Row]:
        """The text of a trial, and its verdict measured anew."""
        spelled = row if row["text"] is not None else row.get("refused")
        if spelled is None:  # stock's: its trace is spelled once it is wanted, and written down
            task = self.service.task(task_id)
            device = devices.open_device(self.settings.device, task.target, devices.Deadlines(self.settings.build_s))
            spelled = spelled_by(device, task, self.settings, row["trace"])
            if spelled.get("fault") is None:
                said = {"text": spelled["text"]} if spelled["text"] is not None else {"refused": spelled}
                known.trials[int(row["trial"])] = {**row, **said}
                self.journal.append({**row, **said})
        text = spelled["text"] or ""
        key = (task_id, text_hash(text))
        verdict = self.judged.get(key) if text else None
        if verdict is None:
            verdict = verdict_of(self.service.again, task_id, spelled)
            if text and verdict["fault"] is None:
                self.judged[key] = verdict
        return text, verdict


def _judged(held: Mapping[tuple[str, int], Row]) -> dict[tuple[str, str], Row]:
    """The verdicts of a result file, by task and hash of the text."""
    rows = (row for row in held.values() if row["verdict"].get("fault") is None)
    return {(str(row.get("task_id")), str(row.get("text_sha256"))): row["verdict"] for row in rows}


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
        if took is not None:  # its time is all of the search's: measuring it anew is none of it
            verdict = verdict | {"seconds": {"read": 0.0}}
        row = evaluate.row_of(Text(id, 0, text, took), prompt, tasks[prompt.task_id], verdict, settings)
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
        if source.get("baseline") == "stock" and not ends_batch(count or searched, searched):
            raise UserError(f"{path}: --trials {count}: {_BATCHES.format(searched)}")
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
