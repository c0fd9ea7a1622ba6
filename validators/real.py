"""The real device: kernels run and are timed in children of this process, one at a time.

The lasting child that measures serves one candidate after another. What a kernel did to it must not count against the
next one: a kernel that fails or computes something wrong is tried once more in a child of its own, and on a GPU, where
one fault ends every later call of a process, the child is replaced after any error.
"""

import contextlib
import functools
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from littledragon.compiler import build, children, kernels, targets
from littledragon.compiler.children import Child, ChildError
from littledragon.compiler.environment import gpu_name
from littledragon.schemas.gates import Gate
from littledragon.validators import observed, scratch
from littledragon.validators.device import (
    Checked,
    Deadlines,
    Device,
    GateFailed,
    Kernel,
    Unmeasured,
    Workload,
    threads,
)
from littledragon.validators.locks import HostLock
from littledragon.validators.numerics import compare
from littledragon.validators.references import Reference, references
from littledragon.validators.turns import Turns

MODULES: Final = ("tvm", "littledragon.compiler.kernels", "littledragon.compiler.inputs")
"""What a child that measures has imported: no tensor intrinsics."""
WORKLOADS_A_PROCESS: Final = {"llvm": 1, "cuda": 8}
"""How many workloads one fresh process times before the next takes its place. On a GPU a process costs a context,
a second; its kernels run in a context of their own all the same, which no kernel of the same workload was in before."""


class RealDevice(Device):
    """See the module's docstring."""

    simulated = False

    def __init__(self, target: dict[str, Any], deadlines: Deadlines) -> None:
        super().__init__(target, deadlines)
        self.threads = threads(target)
        self.cuda = target["kind"] == "cuda"
        self.limited = not self.cuda
        children.keep_in(scratch.own("children"))
        self._cpu = HostLock("cpu")  # a kernel of the CPU may be timed by somebody else on this host
        self._lock = HostLock(f"cuda-{gpu_name()}") if self.cuda else self._cpu

    def working(self) -> contextlib.AbstractContextManager[None]:
        return self._cpu.shared()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self.working() if self.cuda else contextlib.nullcontext(), self._lock.exclusive(self._turn):
            yield

    def hold(self, workload: Workload, seed: int) -> contextlib.AbstractContextManager[None]:
        return references().hold(workload, seed)

    def get_ready(self, workload: Workload, cases: Sequence[int], seed: int) -> None:
        with contextlib.suppress(ChildError), self._reference(workload, cases, seed):
            pass

    def check(
        self,
        kernel: Kernel,
        workload: Workload,
        cases: Sequence[int],
        seed: int,
        *,
        repeat_ms: float | None = None,
        hopeless_s: float | None = None,
    ) -> Checked:
        guard = len(cases) > 1
        try:
            held = contextlib.ExitStack()
            reference = held.enter_context(self._reference(workload, cases, seed))
        except ChildError as error:
            raise Unmeasured("correct", f"no reference: {error}") from None
        with held:

            def measured(child: Child) -> Checked:
                return self._check(child, kernel, workload, cases, reference, repeat_ms, hopeless_s, guard)

            with self._measuring() as lasting:
                try:
                    checked = measured(lasting)
                    if checked.correct:
                        return checked
                except GateFailed:
                    pass
                # What this kernel may have left behind must not count against the next, nor the last one's against it.
                with self._lock.exclusive(self._turn):  # its end is felt on the device
                    lasting.close()
            alone = Child(MODULES, limited=self.limited)
            try:
                return measured(alone)
            finally:
                with self._lock.exclusive(self._turn):
                    alone.close()

    def _check(
        self,
        child: Child,
        kernel: Kernel,
        workload: Workload,
        cases: Sequence[int],
        reference: Reference,
        repeat_ms: float | None,
        hopeless_s: float | None,
        guard: bool,
    ) -> Checked:
        found = Checked(0.0, len(cases), 0.0)
        dtypes = [workload.specs[position]["dtype"] for position in kernels.outputs(workload.specs)]
        for number, case in enumerate(cases):
            timed, arguments = repeat_ms is not None and number == 0, reference.arguments[case]
            with scratch.temporary("check") as folder:
                try:
                    ran, left = self._run(
                        child,
                        kernel,
                        workload,
                        arguments,
                        f"{folder}/out",
                        repeat_ms if timed else None,
                        hopeless_s,
                        guard,
                    )
                except ChildError as error:
                    raise _failed("ran", error) from None
                worst = found.error
                with self.working():
                    for path, truth, dtype in zip(left["outputs"], reference.outputs[case], dtypes, strict=True):
                        actual, expected = (np.load(one, mmap_mode="r", allow_pickle=False) for one in (path, truth))
                        worst = max(worst, compare(actual, expected, dtype, reference.rounding))
            found = replace(
                found,
                error=worst,
                run_s=max(found.run_s, ran["run_s"]),
                overwritten=found.overwritten or tuple(left["overwritten"]),
            )
            if timed and repeat_ms is not None and (hopeless_s is None or ran["run_s"] <= hopeless_s):
                found = replace(found, repeats_us=ran["repeats_us"])
                if found.repeats_us is None and found.error <= 1:  # a slow one: now it is known how long that may take
                    found = replace(
                        found, repeats_us=self._time_slow(child, kernel, workload, arguments, repeat_ms, found)
                    )
        return found

    def _run(
        self,
        child: Child,
        kernel: Kernel,
        workload: Workload,
        arguments: list[str | None],
        out: str,
        repeat_ms: float | None,
        hopeless_s: float | None,
        guard: bool,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What `compiler.kernels:measure` says, and `save`.

        On a GPU arguments are read before the child has the device, and what the kernel left is looked at and written
        once another has it; where the child was replaced in between, the kernel runs again.
        """
        for last in (False, False, True):
            if self.cuda:
                wanted = {"specs": workload.specs, "arrays": arguments}
                self._ask(child, "fetch", self.deadlines.run_s, holding=True, **wanted)
            with self._lock.exclusive(self._turn):
                ran = self._ask(
                    child,
                    "measure",
                    self.deadlines.run_s + _timing_s(repeat_ms or 0.0),
                    holding=self.cuda,
                    threads=self.threads,
                    library=kernel.path,
                    specs=workload.specs,
                    arrays=arguments,
                    repeat_ms=repeat_ms or 1.0,
                    hopeless_s=0.0 if repeat_ms is None else hopeless_s,
                    guard=guard,
                    out=None if self.cuda else out,
                )
            if ran["left"] is not None:
                return ran, ran["left"]
            try:
                return ran, child.call("littledragon.compiler.kernels:save", deadline_s=self.deadlines.run_s, out=out)
            except ChildError as error:
                if last or not error.detail.startswith("LookupError"):
                    raise
        raise AssertionError("the last try raises")

    def _time_slow(
        self,
        child: Child,
        kernel: Kernel,
        workload: Workload,
        arguments: list[str | None],
        repeat_ms: float,
        found: Checked,
    ) -> list[float]:
        try:
            with self._lock.exclusive(self._turn):
                return self._timed(child, [(kernel, found.run_s)], workload, arguments, repeat_ms)[0]
        except ChildError as error:
            raise _failed("timed", error) from None

    @contextlib.contextmanager
    def _reference(self, workload: Workload, cases: Sequence[int], seed: int) -> Iterator[Reference]:
        target = targets.target("llvm") if self.cuda else self.target
        call = functools.partial(self.on_slot, deadline_s=self.deadlines.reference_s)
        with references().of(workload, cases, seed, target, call) as reference:
            yield reference

    def time_fresh(
        self, timed: Sequence[tuple[Kernel, float]], workload: Workload, repeat_ms: float, process: int, seed: int
    ) -> list[list[float] | GateFailed]:
        with self._reference(workload, [0], seed) as reference:
            arrays = reference.arguments[0]
            with self._lock.exclusive(self._turn):
                child = _fresh(self.target["kind"], process, workload.key)
                try:
                    return list(self._timed(child, timed, workload, arrays, repeat_ms))
                except ChildError:
                    child.close()
                found: list[list[float] | GateFailed] = []
                for one in timed:
                    alone = Child(limited=self.limited)
                    try:
                        found.extend(self._timed(alone, [one], workload, arrays, repeat_ms))
                    except ChildError as error:
                        found.append(GateFailed("timed", str(error)))
                    finally:
                        alone.close()
                return found

    def _timed(
        self,
        child: Child,
        timed: Sequence[tuple[Kernel, float]],
        workload: Workload,
        arrays: list[str | None],
        repeat_ms: float,
    ) -> list[list[float]]:
        # Of a slow kernel it is ten calls.
        deadline_s = self.deadlines.run_s + sum(10 * run_s + _timing_s(repeat_ms) for _, run_s in timed)
        answer: list[list[float]] = self._ask(
            child,
            "time_all",
            deadline_s,
            kernels=[kernel.path for kernel, _ in timed],
            specs=workload.specs,
            arrays=arrays,
            repeat_ms=repeat_ms,
            threads=self.threads,
        )
        return answer

    def _ask(self, child: Child, function: str, deadline_s: float, **arguments: Any) -> Any:
        """Call a function of `compiler/kernels.py`. Raises ChildError, and ends a child that may be poisoned."""
        try:
            answer = child.call(f"littledragon.compiler.kernels:{function}", deadline_s=deadline_s, **arguments)
            if child.offspring():  # they would run while the next kernel is timed
                child.close()
                raise ChildError("crashed", "it leaves processes behind")
        except ChildError:
            if self.cuda:
                child.close()
            raise
        return answer

    @contextlib.contextmanager
    def _measuring(self) -> Iterator[Child]:
        """One of this process's lasting children that measure; taken before the device is, never after."""
        kind = self.target["kind"]
        with _permits(kind).permit(self._turn) as number:
            yield children.worker(f"measure-{kind}-{number}", MODULES, limited=self.limited)

    def time_empty(self, repeat_ms: float) -> float:
        specs = [{"name": "out", "shape": [1], "dtype": "float32", "role": "output", "low": None, "high": None}]
        with scratch.temporary("empty") as folder:
            path = str(folder / f"kernel{build.suffix(self.target)}")
            try:
                name = "littledragon.compiler.build:build_empty"
                self.on_slot(name, self.deadlines.build_s, target=self.target, path=path)
            except ChildError as error:
                raise GateFailed("built", str(error)) from None
            try:
                with self._measuring() as child, self._lock.exclusive(self._turn):
                    timed = [(Kernel(path, ""), 0.0)]
                    repeats = self._timed(child, timed, Workload("", specs), [None], repeat_ms)[0]
            except ChildError as error:
                raise GateFailed("timed", str(error)) from None
        return statistics.median(repeats)

    def observe(self) -> dict[str, Any]:
        return observed.observe(self.target)


def _failed(gate: Gate, error: ChildError) -> GateFailed:
    """What a child's end says of the kernel that it ran."""
    return (Unmeasured if error.interrupted else GateFailed)(gate, str(error))


def _timing_s(repeat_ms: float) -> float:
    """How long timing a kernel takes: five repeats, warm-up and the evaluator's own calls are about 14 repeats."""
    return 14e-3 * repeat_ms


def _fresh(kind: str, process: int, workload: str) -> Child:
    """The `process`-th of the processes that time: one that has not served this workload, and few others.

    For CPUs it is executed anew, so that its memory lies elsewhere. Whoever calls holds the device.
    """
    child, served = _processes.get((kind, process), (None, []))
    if child is None or child.pid is None or workload in served or len(served) >= WORKLOADS_A_PROCESS[kind]:
        if child is not None:
            child.close()
        child, served = (Child(MODULES) if kind == "cuda" else Child(limited=True)), []
    _processes[kind, process] = child, [*served, workload]
    return child


MEASURING: Final = {"llvm": 1, "cuda": 2}
"""Lasting children that measure: on a GPU one writes down what its kernel computed while the other has the device."""


@functools.cache
def _permits(kind: str) -> Turns:
    return Turns(MEASURING[kind])


_processes: dict[tuple[str, int], tuple[Child, list[str]]] = {}
os.register_at_fork(after_in_child=_processes.clear)
os.register_at_fork(after_in_child=_permits.cache_clear)
