"""What texts of a model are worth: each through every gate, many at once, on the engine's slots and its device.

A verdict says how far a text came. What goes wrong with a text (its child dies or is late, its kernel is wrong) is its
gate; what goes wrong with us (a full disk, an interrupt, no reference, a device that no longer runs even the default
schedule) is a `fault`, and then nothing is known of the text. Equal texts of a task share a verdict; texts whose
scheduled modules are equal share the build and the measurement, also where they come at the same time.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import math
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from littledragon.compiler import making, targets
from littledragon.compiler.children import ChildError
from littledragon.schemas import tsel
from littledragon.schemas.gates import OK, Gate
from littledragon.schemas.ids import canonical_json
from littledragon.validators import device as devices
from littledragon.validators import scratch
from littledragon.validators.device import Deadlines, Device, GateFailed, Kernel, Made, Unmeasured, Workload

_RUNS: Final = 3
"""So often must a right kernel run hopelessly long: a first call may."""
_TRIES: Final = 4
"""So often in a row another text may take a module up and drop it again before that is a fault."""
_MEMORY: Final = re.compile(r"MemoryError|bad_alloc", re.ASCII)
"""What a limited child says that a text has made too large."""
ROOM: Final = 1 << 20
"""Where the disk has fewer bytes left, a compiler that dies may have died of that, and its last words are lost."""


@dataclass(frozen=True)
class Task:
    """One workload to schedule, as a release folder's `tasks` tell of it; see `release.tasks`.

    task_id: the workload's id. module: M0 as `tvm.ir.save_json`. specs: how to make each argument
    (`compiler.inputs`). target: the TVM target. default_us, anchor_us: L0 and a, microseconds. noise_band, margin:
    shares of a latency.
    """

    task_id: str
    module: str
    specs: list[dict[str, Any]]
    target: dict[str, Any]
    default_us: float
    anchor_us: float
    noise_band: float
    margin: float


@dataclass(frozen=True)
class Verdict:
    """How far a text came.

    gate: the first gate that refused it, or ok; None where there is a fault. reason: why, in one line.
    f_div: the share of its tiles whose factors multiply to their extent; 0 without tiles.
    emitted: instructions that a well-formed text spells, derived post-processing left aside. applied: how many of them
    could be applied, also where its child died of the next one.
    error: the largest error over its bound, over all cases; correct when at most 1, None where nothing was compared.
    latency_us: the median of repeats_us: five repeats; of a hopelessly slow kernel the shortest of three runs.
    module_hash: structural hash of the scheduled module, hex, once there is one.
    fault: a line where our own machinery failed, so that nothing is known of the text.
    seconds: how long each step took, waiting included: read, make (admission and build, in a child), check (comparing
    and timing); build, within make. Where another text had the same module first, build and check are that one's, and
    not the time of waiting for them.
    """

    task_id: str
    gate: Gate | Literal["ok"] | None
    reason: str | None = None
    f_div: float = 0.0
    emitted: int = 0
    applied: int = 0
    error: float | None = None
    latency_us: float | None = None
    repeats_us: tuple[float, ...] = ()
    module_hash: str | None = None
    fault: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def p(self) -> float:
        """The fraction of the emitted instructions that could be applied."""
        return self.applied / self.emitted if self.emitted else 0.0

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it, with p; an infinite error is the largest number."""
        row = dataclasses.asdict(self) | {"p": self.p, "repeats_us": list(self.repeats_us)}
        if self.error is not None and not math.isfinite(self.error):
            row["error"] = 1.7976931348623157e308
        return row


@dataclass(frozen=True)
class _Outcome:
    """What a scheduled module came to once it was admitted; the fields are those of `Verdict`."""

    gate: Gate | Literal["ok"] | None
    reason: str | None = None
    error: float | None = None
    repeats_us: tuple[float, ...] = ()
    fault: str | None = None
    build_s: float = 0.0
    check_s: float = 0.0
    """How long building and measuring took, seconds: whoever has the same module would have needed as long."""


@dataclass
class _Held:
    """A task in use: what keeps its reference, and its default schedule, which tells whether the device is well."""

    workload: Workload
    users: int = 0
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    lock: threading.Lock = field(default_factory=threading.Lock)
    default: Kernel | None = None


class Service:
    """See the module's docstring. A context manager; `evaluate` may be called from any number of threads.

    Callers wait for one of this process's CPU slots (`compiler.slots`), then for the device, which measures one kernel
    at a time under the host's lock.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        device: str = "real",
        *,
        deadlines: Deadlines | None = None,
        repeat_ms: float = 10.0,
        cases: Sequence[int] = (0,),
        seed: int = 0,
        held: int = 16,
        kept: int = 4096,
    ) -> None:
        """Take these tasks on a device of this kind, real or simulated.

        Args:
            repeat_ms: each of the five repeats takes at least so long.
            cases: the input cases to compare on (`compiler.inputs.CASES`); the first is timed.
            seed: of the inputs.
            held: of so many tasks the references are kept.
            kept: of so many texts, and so many modules, the verdicts are kept.

        Raises:
            targets.DeviceMissing: real, and a task's device is not on this machine.
            ValueError: two tasks of one id; real, and a target that is not this machine's; a wrong kind of device.
        """
        if device not in ("real", "simulated"):
            raise ValueError(f"device '{device}': choose real or simulated")
        if not cases:
            raise ValueError("a kernel is compared on one case at least")
        self._tasks: dict[str, Task] = {}
        for task in tasks:
            if task.task_id in self._tasks:
                raise ValueError(f"two tasks have the id {task.task_id}")
            self._tasks[task.task_id] = task
        self._devices: dict[str, Device] = {}
        for task in self._tasks.values():
            key = canonical_json(task.target)
            if key not in self._devices:
                if device == "real" and task.target != (here := targets.target(task.target["kind"])):
                    raise ValueError(f"task {task.task_id}: its target is {key}, here it is {canonical_json(here)}")
                self._devices[key] = devices.open_device(device, task.target, deadlines)
        self._kind, self._repeat_ms, self._cases, self._seed = device, repeat_ms, tuple(cases), seed
        self._most_held, self._most_kept = held, kept
        self._lock = threading.Lock()
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._texts: OrderedDict[tuple[str, bytes], Future[Verdict]] = OrderedDict()
        self._modules: OrderedDict[tuple[str, str], Future[_Outcome]] = OrderedDict()
        self._warm: set[str] = set()
        """Targets of which a slot and a child that measures have worked before."""
        self._owed: dict[str, set[tuple[str, str]]] = {}
        """By the folder of a text that is under way: the modules that others expect of it."""
        self._numbers = itertools.count()
        self._counts: Counter[str] = Counter()
        self._closed = False
        self._own = contextlib.ExitStack()
        self._folder = self._own.enter_context(scratch.temporary("service"))

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of references and files. What is still being evaluated ends in a fault."""
        with self._lock:
            self._closed = True
            held = list(self._held.values())
            self._held.clear()
        for one in held:
            one.stack.close()
        self._own.close()

    @property
    def tasks(self) -> list[Task]:
        """The tasks, in the order given."""
        return list(self._tasks.values())

    def task(self, task_id: str) -> Task:
        """The task of this id. Raises KeyError."""
        return self._tasks[task_id]

    def counts(self) -> dict[str, int]:
        """So far: texts evaluated (asked for), made (given to a child), built, measured and faults."""
        with self._lock:
            return {name: self._counts[name] for name in ("evaluated", "made", "built", "measured", "faults")}

    def evaluate(self, task_id: str, text: str) -> Verdict:
        """The verdict of a text, whatever it holds.

        Raises:
            KeyError: no such task. Nothing that the text holds raises.
        """
        task = self._tasks[task_id]
        key = (task_id, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
        with self._lock:
            self._counts["evaluated"] += 1
            future, known = self._remembered(self._texts, key)
        if not known:
            try:
                verdict = self._evaluate(task, text)
            except BaseException as error:
                with self._lock:
                    self._texts.pop(key, None)
                future.set_result(_fault(task_id, error))
                raise
            with self._lock:
                if verdict.fault is not None:  # it may pass
                    self._texts.pop(key, None)
            future.set_result(verdict)
        told: Verdict = future.result()
        if told.fault is not None:
            with self._lock:
                self._counts["faults"] += 1
        return told

    def again(self, task_id: str, text: str) -> Verdict:
        """The verdict of a text that is built, checked and timed here and now, whatever is known of it or its module.

        Nothing of it is remembered: what `evaluate` says stays as it was.

        Raises:
            KeyError: no such task.
        """
        task = self._tasks[task_id]
        with self._lock:
            self._counts["evaluated"] += 1
        told = self._evaluate(task, text, again=True)
        if told.fault is not None:
            with self._lock:
                self._counts["faults"] += 1
        return told

    def default(self, task_id: str) -> Verdict:
        """The verdict of the default schedule, whose latency was L0: built, checked and timed here and now, each time.

        Raises:
            KeyError: no such task.
        """
        return self._through(self._tasks[task_id], None, Verdict(task_id, OK), again=True)

    def get_ready(self, task_id: str) -> None:
        """Make, ahead of a task's texts, what their own time should not hold: the reference, and once for each target
        the first start of a slot and of a child that measures. What goes wrong will be said of the texts.

        Raises:
            KeyError: no such task.
        """
        task = self._tasks[task_id]
        device, key = self._device(task), canonical_json(task.target)
        with contextlib.suppress(Exception), self._holding(task) as held:
            device.get_ready(held.workload, self._cases, self._seed)
            with self._lock:
                warm = key in self._warm
                self._warm.add(key)
            if not warm:
                self._ill(device, held)

    def _remembered(self, memory: "OrderedDict[Any, Future[Any]]", key: Any) -> "tuple[Future[Any], bool]":
        """The future of a key, and whether it was there before; the oldest that are done go. The caller has the lock.

        Where there is none, the caller must see to it that it gets its result.
        """
        known = key in memory
        future = memory.setdefault(key, Future())
        memory.move_to_end(key)
        excess = max(0, len(memory) - self._most_kept)
        for old in [old for old, one in itertools.islice(memory.items(), excess) if one.done()]:
            del memory[old]
            if memory is self._modules:
                (self._claims(old[0]) / old[1]).unlink(missing_ok=True)
        return future, known

    def _evaluate(self, task: Task, text: str, *, again: bool = False) -> Verdict:
        began = time.monotonic()
        found = tsel.diagnose(text)
        seconds = {"read": time.monotonic() - began}
        verdict = Verdict(
            task.task_id, found.gate or OK, found.reason, found.f_div, found.instructions, seconds=seconds
        )
        return verdict if found.gate is not None else self._through(task, text, verdict, again=again)

    def _through(self, task: Task, text: str | None, verdict: Verdict, *, again: bool = False) -> Verdict:
        """The verdict of a well-formed text, or of the default schedule; again: of what nobody else has a share in."""
        try:
            with self._holding(task) as held:
                for _ in range(_TRIES):
                    with self._under_way() as folder:
                        done = self._gates(task, held, text, folder, verdict, again)
                    if done is not None:
                        return done
        except Exception as error:  # no descriptors, no memory, no threads: whatever it is, it is not the text's
            return _fault(task.task_id, error)
        return _fault(task.task_id, f"the same module was given up {_TRIES} times")

    def _gates(
        self, task: Task, held: _Held, text: str | None, folder: Path, verdict: Verdict, again: bool
    ) -> Verdict | None:
        """The verdict as in `_through`; None where another text that had taken its module up gave it up."""
        device, claims = self._device(task), None if again else self._claims(task.task_id)
        if claims is not None:
            claims.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._counts["made"] += 1
        seconds, began = dict(verdict.seconds), time.monotonic()
        made = device.make(held.workload, folder, text=text, claims=claims)
        seconds |= {"make": time.monotonic() - began} | ({} if made.build_s is None else {"build": made.build_s})
        if (fault := _fault_of(made)) is not None:
            self._give_up(folder, fault)
            return _fault(task.task_id, fault)
        verdict = _admitted(verdict, made, making.applied(folder), seconds)
        if verdict.gate != OK:
            return verdict
        began = time.monotonic()
        if made.kernel is None and made.failed is None:
            if (outcome := self._others(task, str(verdict.module_hash))) is None:
                return None
            seconds["make"] += outcome.build_s
            seconds |= {"build": outcome.build_s, "check": outcome.check_s}
        else:
            outcome = self._measure(task, device, held, made)
            seconds["check"] = time.monotonic() - began
            if not again:
                known = dataclasses.replace(outcome, build_s=made.build_s or 0.0, check_s=seconds["check"])
                self._settle((task.task_id, str(verdict.module_hash)), known)
        if outcome.fault is not None:
            return _fault(task.task_id, outcome.fault)
        return dataclasses.replace(
            verdict,
            gate=outcome.gate,
            reason=outcome.reason,
            error=outcome.error,
            latency_us=statistics.median(outcome.repeats_us) if outcome.repeats_us else None,
            repeats_us=outcome.repeats_us,
        )

    def _measure(self, task: Task, device: Device, held: _Held, made: Made) -> _Outcome:
        """What became of the module of whoever builds it: its build, its results, its latency."""
        with self._lock:
            self._counts["built"] += 1
        if made.kernel is None:
            assert made.failed is not None
            return _Outcome(made.failed.gate, made.failed.reason)
        with self._lock:
            self._counts["measured"] += 1
        error, hopeless_s = None, devices.hopeless_s(task.default_us)
        ran_us = math.inf
        try:
            for _ in range(_RUNS):
                checked = device.check(
                    made.kernel,
                    held.workload,
                    self._cases,
                    self._seed,
                    repeat_ms=self._repeat_ms,
                    hopeless_s=hopeless_s,
                )
                error = checked.error
                checked.judge()
                ran_us = min(ran_us, checked.run_s * 1e6)
                if checked.repeats_us is not None:
                    break
        except Unmeasured as failed:
            return _Outcome(None, fault=str(failed))
        except GateFailed as failed:
            if failed.gate != "correct" and (ill := self._ill(device, held)) is not None:
                return _Outcome(None, fault=f"{failed}; and the default schedule does not run either: {ill}")
            return _Outcome(failed.gate, failed.reason, error)
        if checked.repeats_us is None:
            return _Outcome(OK, f"hopeless: a run took {ran_us / task.default_us:.3g} times L0", error, (ran_us,))
        return _Outcome(OK, None, error, tuple(checked.repeats_us))

    def _ill(self, device: Device, held: _Held) -> str | None:
        """Why the device does not compute the default schedule; None where it is well, so that the kernel was not."""
        with held.lock:
            if held.default is None:
                folder = self._folder / str(next(self._numbers))
                folder.mkdir()
                made = device.make(held.workload, folder)
                if made.kernel is None:
                    shutil.rmtree(folder, ignore_errors=True)
                    return str(made.failed)
                held.default = made.kernel
                held.stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            device.check(held.default, held.workload, self._cases[:1], self._seed).judge()
        except GateFailed as failed:
            return str(failed)
        return None

    def _others(self, task: Task, module_hash: str) -> _Outcome | None:
        """What a module came to that another text took up first; None where that one has given it up."""
        key = (task.task_id, module_hash)
        with self._lock:
            if key not in self._modules:
                claims = self._claims(task.task_id)
                if (owner := making.claimed(claims, module_hash)) is None:
                    return None
                if owner not in self._owed:  # it has ended and said nothing
                    (claims / module_hash).unlink(missing_ok=True)
                    return None
                self._owed[owner].add(key)
            future, _ = self._remembered(self._modules, key)
        outcome: _Outcome = future.result()
        return outcome

    def _settle(self, key: tuple[str, str], outcome: _Outcome) -> None:
        """Tell all who wait for a module what it came to. A fault is told and forgotten."""
        with self._lock:
            future, _ = self._remembered(self._modules, key)
            if outcome.fault is not None:
                del self._modules[key]
                (self._claims(key[0]) / key[1]).unlink(missing_ok=True)
            if not future.done():
                future.set_result(outcome)

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[Path]:
        """A folder for a text that is given to a child; whatever ends that, nobody waits for its module afterwards."""
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        with self._lock:
            self._owed[str(folder)] = set()
        why: object = "it was given up"
        try:
            yield folder
        except BaseException as error:
            why = error
            raise
        finally:
            self._give_up(folder, why)
            shutil.rmtree(folder, ignore_errors=True)

    def _give_up(self, folder: Path, why: object) -> None:
        """Tell whoever still waits for a module of this folder's text that nothing will come of it."""
        with self._lock:
            owed = self._owed.pop(str(folder), set())
            waited = [key for key in owed if key in self._modules and not self._modules[key].done()]
        for key in waited:
            self._settle(key, _Outcome(None, fault=_line(why)))

    @contextlib.contextmanager
    def _holding(self, task: Task) -> Iterator[_Held]:
        """A task in use: its reference is kept for now, and for longer while it is among the latest."""
        with self._lock:
            if self._closed:
                raise OSError("the service is closed")
            held = self._held.get(task.task_id)
            if held is None:
                held = self._held[task.task_id] = _Held(Workload(task.module, task.specs))
                held.stack.enter_context(self._device(task).hold(held.workload, self._seed))
            held.users += 1
            self._held.move_to_end(task.task_id)
            idle = [id for id, one in self._held.items() if not one.users]
            gone = [self._held.pop(id) for id in idle[: max(0, len(self._held) - self._most_held)]]
        for one in gone:
            one.stack.close()
        try:
            yield held
        finally:
            with self._lock:
                held.users -= 1

    def _device(self, task: Task) -> Device:
        return self._devices[canonical_json(task.target)]

    def _claims(self, task_id: str) -> Path:
        """The folder where texts of a task say which modules they build."""
        return self._folder / "claims" / hashlib.sha256(task_id.encode()).hexdigest()[:16]


def _admitted(verdict: Verdict, made: Made, applied: int, seconds: dict[str, float]) -> Verdict:
    """The verdict with what admission said; where it came to no end, with the count of instructions until then."""
    admitted = made.admitted
    if admitted is None:
        reason = str(made.ended)
        return dataclasses.replace(verdict, gate="applicable", reason=reason, applied=applied, seconds=seconds)
    return dataclasses.replace(
        verdict,
        gate=admitted["failed"] or OK,
        reason=admitted["reason"],
        emitted=admitted["emitted"],
        applied=admitted["applied"],
        module_hash=admitted["module_hash"],
        seconds=seconds,
    )


def _fault_of(made: Made) -> str | None:
    """Why nothing is known of a text that was given to a child; None where something is.

    Admission raises for a module or a target that is none, never for a text, but one that grows beyond the child's
    limit. A build raises for what does not compile.
    """
    ended = made.ended
    if ended is None:
        return "what its admission said could not be read" if made.admitted is None else None
    if not is_fault(ended, raising=made.admitted is None):
        return None
    return f"no space left on device: {ended}" if ended.kind == "crashed" and not ended.interrupted else str(ended)


def is_fault(error: ChildError | OSError, *, raising: bool = False) -> bool:
    """Whether a call that gave no answer says nothing of what it was given: an interrupt, or a disk that is full.

    raising: of a function that raises for nothing that it was given but what is too large for it.
    """
    if not isinstance(error, ChildError) or error.interrupted:
        return True
    if error.kind == "raised":
        return raising and not own_limit(error)
    return error.kind == "crashed" and shutil.disk_usage(tempfile.gettempdir()).free < ROOM


def own_limit(error: BaseException) -> bool:
    """Whether a child says that what it was given grew beyond the memory it may have: then that is a verdict about what
    it was given, and no fault of ours. False for whatever is no `ChildError`."""
    return isinstance(error, ChildError) and error.kind == "raised" and bool(_MEMORY.search(error.detail))


def _fault(task_id: str, why: object) -> Verdict:
    return Verdict(task_id, None, fault=_line(why))


def _line(why: object) -> str:
    said = f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)
    return " ".join(said.split())[:500]
