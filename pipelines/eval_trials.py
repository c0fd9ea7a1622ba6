"""Searches of one task, trial by trial: our engine's, and stock's tuner. See `eval_search`."""

import contextlib
import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
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
from littledragon.validators.service import Service, Task, Verdict, is_fault

Row = dict[str, Any]

FIRST: Final = 8
"""Rounds grow up to their full size: after 8, 16 and 32 trials one has ended, where others are read at."""
CHANCES: Final = 3
"""Of the best, so many are judged anew until one is right: stock never checks results, and ours may be so by luck."""
AGAIN: Final = 2
"""So often a trial is judged that meets a fault, and so often is tried what a child dies of."""
STOCK_TRIAL_S: Final = 60.0
"""Stock's tuner may take so long for each trial, beyond its builder's time-out, before it is given up."""
TUNER: Final = "littledragon.compiler.stock:tune"
PROPOSER: Final = "littledragon.compiler.proposals:propose"


@dataclass
class Search:
    """What is known of one task's search: trials by number, the row that says that there are no more, and the fault
    that it stopped at."""

    trials: dict[int, Row] = field(default_factory=dict)
    end: Row | None = None
    fault: str | None = None

    def first(self, count: int) -> list[Row]:
        """Its first trials, whose verdicts are known once they have ended: none of a batch that goes on beyond them."""
        found = self._first(count)
        beyond = self.trials.get(count + 1, {}).get("elapsed_s")
        return [row for row in found if row["elapsed_s"] != beyond]

    def _first(self, count: int) -> list[Row]:
        return [row for number, row in sorted(self.trials.items()) if number <= count]

    def ended(self, trials: int) -> bool:
        """Whether there will be no more, of so many."""
        return self.end is not None or len(self._first(trials)) == trials

    def elapsed_s(self, count: int) -> float | None:
        """How long the first `count` trials took, or all that there are; None where the search has not come so far."""
        if len(self._first(count)) == count:
            return max((float(row["elapsed_s"]) for row in self.first(count)), default=0.0)
        return None if self.end is None else float(self.end["elapsed_s"])


def recorded(journal: Journal, judged: bool) -> defaultdict[str, Search]:
    """The searches of a trials file; judged: its trials have verdicts. Raises UserError: it is none."""
    found: defaultdict[str, Search] = defaultdict(Search)
    for row in journal.rows:
        id, number = row.get("task_id"), row.get("trial")
        fine = isinstance(id, str) and type(number) is int and is_number(row.get("elapsed_s"))
        fine = fine and (row.get("latency_us") is None or is_number(row["latency_us"]))
        fine = fine and all(isinstance(row.get(name), str | None) for name in ("gate", "text", "proposal", "trace"))
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

    def record_end(self, known: Search, why: str, elapsed_s: float, reason: str | None = None) -> None:
        """Write down that there are no more trials, where there are fewer than were wanted."""
        if not known.ended(self.settings.trials):
            nothing = {"gate": None, "latency_us": None, "text": None}
            row = {"task_id": self.task.task_id, "trial": max(known.trials, default=0) + 1, "elapsed_s": elapsed_s}
            self.record(known, row | nothing | {"end": why} | ({} if reason is None else {"reason": reason}))


# -- our engine's -------------------------------------------------------------------------------------


def proposing() -> Row:
    """What decides what our engine proposes, and is no setting of `dragon eval`: the pipeline's defaults."""
    defaults = Config()
    return {name: getattr(defaults, name) for name in ("population", "warm_up", "propose_deadline_s")}


def search(work: Work, known: Search) -> None:
    """Rounds of proposals, each trial through the service's gates; stops at a fault.

    What is proposed again after an interrupt was counted when it was proposed first: the clock goes on after it.
    """
    settings, task = work.settings, work.task
    before = max((float(row["elapsed_s"]) for row in known.trials.values()), default=0.0)
    clock: float | None = None
    done = number = 0
    records: list[Row] = []
    why, reason = "exhausted", None
    with scratch.temporary("features") as folder:
        while done < settings.trials:
            began = time.monotonic()
            count = min(settings.per_round, settings.trials - done, max(FIRST, done))
            proposals, reason = _proposed(work, known, records, count, number, folder)
            if known.fault is not None:
                return
            numbered = list(enumerate([str(one["trace"]) for one in proposals], done + 1))
            for trial, trace in numbered:
                if trial in known.trials and known.trials[trial].get("proposal") != _name(trace):
                    raise UserError(
                        f"{work.journal.path}: trial {trial} of {published.short(task.task_id)} is not what is "
                        "proposed here: of another version: choose another --out"
                    )
            wanted = [one for one in numbered if one[0] not in known.trials]
            if clock is None and (wanted or not proposals):
                clock = (began if len(wanted) == len(numbered) else time.monotonic()) - before
            if not proposals:
                why = "died" if reason else "exhausted" if done else "no_space"
                break
            if wanted and clock is not None:
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
    work.record_end(known, why, took, reason)


def _proposed(
    work: Work, known: Search, records: Sequence[Row], count: int, number: int, folder: Path
) -> tuple[list[Row], str | None]:
    """The proposals of a round, and why there are none where its child died each time; a fault is told to `known`."""
    reason = None
    for _ in range(AGAIN):
        try:
            return _propose(work, records, count, number, folder), None
        except (ChildError, OSError) as error:
            reason = published.short(error)
            if is_fault(error):
                known.fault = f"proposing: {reason}"
                break
    return [], reason


def _propose(work: Work, records: Sequence[Row], count: int, number: int, folder: Path) -> list[Row]:
    defaults = Config()
    found: list[Row] = work.device.on_slot(
        PROPOSER,
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
        spelled = spelled_by(work.device, work.task, work.settings, trace)
        verdict = verdict_of(work.service.evaluate, work.task.task_id, spelled)
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


def spelled_by(device: Device, task: Task, settings: Settings, trace: str) -> Row:
    """The text of a trace, the gate that refuses one, or a fault: see `compiler.draws:spell`."""
    try:
        answer: Row = device.on_slot(
            "littledragon.compiler.draws:spell",
            settings.build_s,
            module=task.module,
            trace=trace,
            target=task.target,
        )
    except (ChildError, OSError) as error:
        nothing = {"text": None, "gate": None, "reason": None}
        if is_fault(error, raising=True):
            return nothing | {"fault": published.short(error)}
        return nothing | {"gate": "replayed", "reason": str(error)}  # TVM died of this trace
    return answer


def verdict_of(judge: Callable[[str, str], Verdict], task_id: str, spelled: Row) -> Row:
    """The verdict of a spelled trace: of its text, judged again at a fault, or of the gate that refuses it one."""
    if spelled["text"] is None:
        verdict = Verdict(task_id, spelled["gate"], spelled["reason"], fault=spelled.get("fault"))
        return verdict.as_dict()
    for _ in range(AGAIN):
        verdict = judge(task_id, spelled["text"])
        if verdict.fault is None:
            break
    return verdict.as_dict()


# -- stock's ------------------------------------------------------------------------------------------


def stock(work: Work, known: Search) -> None:
    """Stock's tuner, from nothing, in a process of its own that has the device alone.

    All trials are written down as they are; those that may be the best with their traces, whose texts are made when
    they are read.
    """
    settings, task = work.settings, work.task
    answer: Row | None = None
    reason, took = None, 0.0
    for _ in range(AGAIN):
        began = time.monotonic()
        try:
            with work.device.alone():
                began = time.monotonic()  # waiting for the device is none of its time
                answer = children.once(
                    TUNER,
                    deadline_s=600.0 + settings.trials * (settings.timeout_s + STOCK_TRIAL_S),
                    module=task.module,
                    target=task.target,
                    rules=work.rules,
                    trials=settings.trials,
                    seed=settings.seed % (1 << 30) + 1,
                    build_timeout_s=settings.timeout_s,
                )
            break
        except (ChildError, OSError) as error:
            reason, took = published.short(error), time.monotonic() - began
            if is_fault(error):
                known.fault = f"stock's tuner: {reason}"
                return
    known.trials.clear()  # of a run that was killed while it wrote
    if answer is None:
        work.record_end(known, "died", took, reason)
        return
    trials, reasons = answer["trials"][: settings.trials], answer["reasons"]
    if all(latency_us is None for _, latency_us, _ in trials):
        default = work.service.default(task.task_id)
        if default.gate != OK:  # then that says nothing of stock
            said = f"stock measured nothing ({reasons[0] if reasons else 'no trial'}), and the default schedule fails"
            known.fault = f"{said}: {published.short(default.fault or default.reason)}"
            return
    best: list[float] = []
    for trial, ((elapsed_s, latency_us, trace), why) in enumerate(zip(trials, reasons, strict=False), 1):
        best = best if latency_us is None else sorted([*best, latency_us])[:CHANCES]
        row = {
            "task_id": task.task_id,
            "trial": trial,
            "elapsed_s": elapsed_s,
            "gate": None if latency_us is None else OK,  # as stock sees it, which checks no results
            "latency_us": latency_us,
            "text": None,
        }
        kept = {"trace": trace} if latency_us in best else {}
        work.record(known, row | kept | ({} if why is None else {"reason": why}))
    work.record_end(known, "exhausted", answer["seconds"])
