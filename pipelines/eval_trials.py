"""Searches of one task, trial by trial: our engine's, and stock's tuner. See `eval_search`."""

import contextlib
import hashlib
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import children, slots
from littledragon.compiler.children import ChildError
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.journal import Journal
from littledragon.pipelines.progress import Counts
from littledragon.pipelines.questions import Settings, is_number
from littledragon.pipelines.search import MOST_AT_ONCE
from littledragon.pipelines.threads import in_children
from littledragon.release import published
from littledragon.schemas.gates import OK
from littledragon.validators import scratch
from littledragon.validators.device import Device
from littledragon.validators.service import Service, Task, Verdict

Row = dict[str, Any]

FIRST: Final = 8
"""Rounds grow up to their full size: after 8, 16 and 32 trials one has ended, where others are read at."""
CHANCES: Final = 3
"""Stock never checks results: of its best, so many are tried until one is right."""
AGAIN: Final = 2
"""So often a trial is judged that meets a fault."""
STOCK_TRIAL_S: Final = 60.0
"""Stock's tuner may take so long for each trial, beyond its builder's time-out, before it is given up."""


@dataclass
class Search:
    """What is known of one task's search: trials by number, the row that says that there are no more, and the fault
    that it stopped at."""

    trials: dict[int, Row] = field(default_factory=dict)
    end: Row | None = None
    fault: str | None = None

    def first(self, count: int) -> list[Row]:
        """Its first trials."""
        return [row for number, row in sorted(self.trials.items()) if number <= count]

    def ended(self, trials: int) -> bool:
        """Whether there will be no more, of so many."""
        return self.end is not None or len(self.first(trials)) == trials

    def elapsed_s(self, count: int) -> float | None:
        """How long the first `count` trials took, or all that there are; None where the search has not come so far."""
        first = self.first(count)
        if len(first) == count:
            return max(float(row["elapsed_s"]) for row in first)
        return None if self.end is None else float(self.end["elapsed_s"])


def recorded(journal: Journal, judged: bool) -> defaultdict[str, Search]:
    """The searches of a trials file; judged: its trials have verdicts. Raises UserError: it is none."""
    found: defaultdict[str, Search] = defaultdict(Search)
    for row in journal.rows:
        id, number = row.get("task_id"), row.get("trial")
        fine = isinstance(id, str) and type(number) is int and is_number(row.get("elapsed_s"))
        fine = fine and (row.get("latency_us") is None or is_number(row["latency_us"]))
        fine = fine and all(isinstance(row.get(name), str | None) for name in ("gate", "text", "proposal"))
        if not fine or (judged and "end" not in row and not isinstance(row.get("verdict"), dict)):
            raise UserError(f"{journal.path}: a row that is no trial: choose another --out")
        if "end" in row:
            found[str(id)].end = row
        else:
            found[str(id)].trials[int(number or 0)] = row
    for one in found.values():
        if one.end is not None:
            one.trials = {number: row for number, row in one.trials.items() if number < one.end["trial"]}
    return found


@dataclass(frozen=True)
class Work:
    """What one task's search needs."""

    task: Task
    rules: str
    device: Device
    service: Service
    settings: Settings
    journal: Journal
    progress: Counts

    def record(self, known: Search, row: Row) -> None:
        """Write a row down."""
        self.journal.append(row)
        if "end" in row:
            known.end = row
        else:
            known.trials[row["trial"]] = row
            self.progress.one("correct" if row["gate"] == OK else "refused")

    def record_end(self, known: Search, why: str, elapsed_s: float) -> None:
        """Write down that there are no more trials, where there are fewer than were wanted."""
        if not known.ended(self.settings.trials):
            nothing = {"gate": None, "latency_us": None, "text": None}
            row = {"task_id": self.task.task_id, "trial": len(known.trials) + 1, "elapsed_s": elapsed_s}
            self.record(known, row | nothing | {"end": why})


# -- our engine's -------------------------------------------------------------------------------------


def search(work: Work, known: Search) -> None:
    """Rounds of proposals, each trial through the service's gates; stops at a fault."""
    settings, task = work.settings, work.task
    before = max((float(row["elapsed_s"]) for row in known.trials.values()), default=0.0)
    clock: float | None = None
    done = number = 0
    records: list[Row] = []
    with scratch.temporary("features") as folder:
        while done < settings.trials:
            began = time.monotonic()
            count = min(settings.per_round, settings.trials - done, max(FIRST, done))
            try:
                proposals = _propose(work, records, count, number, folder)
            except (ChildError, OSError) as error:
                known.fault = f"proposing: {published.short(error)}"
                return
            if not proposals:
                break
            numbered = list(enumerate([str(one["trace"]) for one in proposals], done + 1))
            for trial, trace in numbered:
                if trial in known.trials and known.trials[trial].get("proposal") != _name(trace):
                    raise UserError(
                        f"{work.journal.path}: trial {trial} of {published.short(task.task_id)} is not what is "
                        "proposed here: of another version: choose another --out"
                    )
            wanted = [one for one in numbered if one[0] not in known.trials]
            if wanted:
                clock = began - before if clock is None else clock
                _judge(work, known, wanted, clock)
            if known.fault is not None:
                return
            records += [
                {"trace": trace, "latency_us": known.trials[trial]["latency_us"]}
                for trial, trace in numbered
                if known.trials[trial]["verdict"].get("module_hash") is not None
            ]
            done, number = done + len(proposals), number + 1
    took = before if clock is None else time.monotonic() - clock
    work.record_end(known, "exhausted" if done else "no_space", took)


def _propose(work: Work, records: Sequence[Row], count: int, number: int, folder: Path) -> list[Row]:
    defaults = Config()
    found: list[Row] = work.device.on_slot(
        "littledragon.compiler.proposals:propose",
        defaults.propose_deadline_s,
        urgent=False,
        module=work.task.module,
        target=work.task.target,
        rules=work.rules,
        records=records,
        count=count,
        seed=work.settings.seed,
        round=number,
        population=defaults.population,
        warm_up=defaults.warm_up,
        folder=str(folder),
    )
    return found


def _judge(work: Work, known: Search, wanted: Sequence[tuple[int, str]], clock: float) -> None:
    """Have these trials of a round judged side by side, and write down those that meet no fault."""

    def judge(one: tuple[int, str]) -> Row:
        trial, trace = one
        spelled = _spelled(work, trace)
        verdict = verdict_of(work.service, work.task.task_id, spelled)
        return {
            "task_id": work.task.task_id,
            "trial": trial,
            "elapsed_s": time.monotonic() - clock,
            "gate": verdict["gate"],
            "latency_us": verdict.get("latency_us") if verdict["gate"] == OK else None,
            "text": spelled["text"],
            "proposal": _name(trace),
            "verdict": verdict,
        }

    width = work.settings.threads or min(MOST_AT_ONCE, slots.of(work.task.target["kind"]).count + 2)
    with contextlib.closing(in_children(judge, wanted, width)) as judged:
        for row in judged:
            if row["verdict"].get("fault") is None:
                work.record(known, row)
            else:
                known.fault = row["verdict"]["fault"]


def _name(trace: str) -> str:
    return hashlib.sha256(trace.encode()).hexdigest()[:16]


def _spelled(work: Work, trace: str) -> Row:
    """The text of a trace, the gate that refuses one, or a fault: see `compiler.draws:spell`."""
    try:
        answer: Row = work.device.on_slot(
            "littledragon.compiler.draws:spell",
            work.settings.build_s,
            module=work.task.module,
            trace=trace,
            target=work.task.target,
        )
    except (ChildError, OSError) as error:
        nothing = {"text": None, "gate": None, "reason": None}
        if isinstance(error, OSError) or error.interrupted or error.kind == "raised":
            return nothing | {"fault": published.short(error)}
        return nothing | {"gate": "replayed", "reason": str(error)}  # TVM died of this trace
    return answer


def verdict_of(service: Service, task_id: str, spelled: Row) -> Row:
    if spelled["text"] is None:
        verdict = Verdict(task_id, spelled["gate"], spelled["reason"], fault=spelled.get("fault"))
        return verdict.as_dict()
    for _ in range(AGAIN):
        verdict = service.evaluate(task_id, spelled["text"])
        if verdict.fault is None:
            break
    return verdict.as_dict()


# -- stock's ------------------------------------------------------------------------------------------


def stock(work: Work, known: Search) -> None:
    """Stock's tuner, from nothing, in a process of its own. Trials that may be the best get their texts."""
    settings, task = work.settings, work.task
    try:
        answer = children.once(
            "littledragon.compiler.stock:tune",
            deadline_s=600.0 + settings.trials * (settings.timeout_s + STOCK_TRIAL_S),
            module=task.module,
            target=task.target,
            rules=work.rules,
            trials=settings.trials,
            seed=settings.seed % (1 << 30) + 1,
            build_timeout_s=settings.timeout_s,
        )
    except (ChildError, OSError) as error:
        known.fault = f"stock's tuner: {published.short(error)}"
        return
    best: list[float] = []
    known.trials.clear()  # of a run that was killed while it wrote
    for trial, (elapsed_s, latency_us, trace) in enumerate(answer["trials"][: settings.trials], 1):
        spelled: Row = {"text": None}
        if latency_us is not None:
            best = sorted([*best, latency_us])[:CHANCES]
            if latency_us in best:
                spelled = _spelled(work, trace)
        if spelled.get("fault") is not None:
            known.fault = spelled["fault"]
            return
        row = {
            "task_id": task.task_id,
            "trial": trial,
            "elapsed_s": elapsed_s,
            "gate": None if latency_us is None else OK,  # as stock sees it, which checks no results
            "latency_us": latency_us,
            "text": spelled["text"],
        }
        work.record(known, row | ({"refused": spelled} if spelled.get("gate") else {}))
    work.record_end(known, "exhausted", answer["seconds"])
