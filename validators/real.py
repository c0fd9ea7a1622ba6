"""The real device: kernels are built, run and timed in children of this process."""

import contextlib
import itertools
import queue
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from littledragon.compiler import build, children, kernels, targets
from littledragon.compiler.children import ChildError
from littledragon.validators import scratch
from littledragon.validators.device import BUILDERS, Checked, Device, GateFailed, Kernel, Workload, threads
from littledragon.validators.locks import HostLock
from littledragon.validators.numerics import Rounding, compare

KEPT_REFERENCES: Final = 32
"""Workloads whose reference outputs a process keeps on disk."""


class RealDevice(Device):
    """Kernels run in children of this process; those that may have spoilt their process get a fresh one."""

    simulated = False

    def __init__(self, target: dict[str, Any], build_deadline_s: float, run_deadline_s: float) -> None:
        self.target = target
        self.build_deadline_s = build_deadline_s
        self.run_deadline_s = run_deadline_s
        self.threads = threads(target)
        self._lock = HostLock("cpu" if target["kind"] == "llvm" else "cuda-0")

    def shared(self) -> contextlib.AbstractContextManager[None]:
        return self._lock.shared()

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        return self._lock.exclusive()

    def build(self, scheduled: str, module_hash: str, folder: Path, *, default: bool = False) -> tuple[Kernel, float]:
        path = _new_path(folder, build.suffix(self.target))
        builder = _idle_builders.get()
        try:
            answer = children.worker(builder).call(
                "littledragon.compiler.build:build",
                deadline_s=self.build_deadline_s,
                scheduled=scheduled,
                target=self.target,
                path=path,
            )
        except ChildError as error:
            raise GateFailed("built", str(error)) from None
        finally:
            _idle_builders.put(builder)
        return Kernel(path, module_hash, default), float(answer["build_s"])

    def check(self, kernel: Kernel, workload: Workload, cases: Sequence[int], seed: int) -> Checked:
        expected, rounding = self._reference(workload, cases, seed)
        lasting = children.worker("kernel")
        try:
            checked = self._check(lasting, kernel, workload, cases, seed, expected, rounding)
            if checked.correct:
                return checked
        except GateFailed as failed:
            if failed.reason.startswith("deadline"):
                raise
        # What this kernel may have left behind must not count against the next one, nor the last one's against this.
        lasting.close()
        fresh = children.Child()
        try:
            return self._check(fresh, kernel, workload, cases, seed, expected, rounding)
        finally:
            fresh.close()

    def _check(
        self,
        child: children.Child,
        kernel: Kernel,
        workload: Workload,
        cases: Sequence[int],
        seed: int,
        expected: dict[int, list[str]],
        rounding: Rounding,
    ) -> Checked:
        worst, slowest = 0.0, 0.0
        dtypes = [workload.specs[position]["dtype"] for position in kernels.outputs(workload.specs)]
        for case in cases:
            with scratch.temporary("check") as folder:
                try:
                    ran = child.call(
                        "littledragon.compiler.kernels:run",
                        deadline_s=self.run_deadline_s,
                        library=kernel.path,
                        specs=workload.specs,
                        case=case,
                        seed=seed,
                        threads=self.threads,
                        out=f"{folder}/out",
                    )
                except ChildError as error:
                    raise GateFailed("ran", str(error)) from None
                slowest = max(slowest, ran["run_s"])
                for path, truth, dtype in zip(ran["outputs"], expected[case], dtypes, strict=True):
                    actual = np.load(path, allow_pickle=False)
                    worst = max(worst, compare(actual, np.load(truth, allow_pickle=False), dtype, rounding))
        return Checked(worst, len(cases), slowest)

    def _reference(self, workload: Workload, cases: Sequence[int], seed: int) -> tuple[dict[int, list[str]], Rounding]:
        """Paths of the expected outputs of each case, made once a process."""
        try:
            return _references.get(self.target, workload, cases, seed, self.run_deadline_s + self.build_deadline_s)
        except ChildError as error:
            raise GateFailed("correct", f"no reference: {error}") from None

    def time(self, kernel: Kernel, workload: Workload, repeat_ms: float, run_s: float) -> list[float]:
        try:
            return self._timed(children.worker("kernel"), [(kernel, run_s)], workload, repeat_ms)[0]
        except ChildError as error:
            raise GateFailed("timed", str(error)) from None

    def time_fresh(
        self, timed: Sequence[tuple[Kernel, float]], workload: Workload, repeat_ms: float, process: int
    ) -> list[list[float] | GateFailed]:
        try:
            return list(self._fresh(timed, workload, repeat_ms))
        except ChildError:
            pass
        found: list[list[float] | GateFailed] = []
        for one in timed:
            try:
                found.extend(self._fresh([one], workload, repeat_ms))
            except ChildError as error:
                found.append(GateFailed("timed", str(error)))
        return found

    def _fresh(self, timed: Sequence[tuple[Kernel, float]], workload: Workload, repeat_ms: float) -> list[list[float]]:
        child = children.Child()
        try:
            return self._timed(child, timed, workload, repeat_ms)
        finally:
            child.close()

    def _timed(
        self, child: children.Child, timed: Sequence[tuple[Kernel, float]], workload: Workload, repeat_ms: float
    ) -> list[list[float]]:
        # Five repeats, warm-up and the evaluator's own calls: about 14 repeats, or 10 calls of a slow kernel.
        deadline_s = self.run_deadline_s + sum(10 * run_s + 14e-3 * repeat_ms for _, run_s in timed)
        answer: list[list[float]] = child.call(
            "littledragon.compiler.kernels:time_all",
            deadline_s=deadline_s,
            kernels=[[kernel.path, workload.specs] for kernel, _ in timed],
            repeat_ms=repeat_ms,
            threads=self.threads,
        )
        return answer

    def time_empty(self, folder: Path, repeat_ms: float) -> float:
        path = _new_path(folder, build.suffix(self.target))
        try:
            children.worker(_BUILDERS[0]).call(
                "littledragon.compiler.build:build_empty",
                deadline_s=self.build_deadline_s,
                target=self.target,
                path=path,
            )
        except ChildError as error:
            raise GateFailed("built", str(error)) from None
        specs = [{"name": "out", "shape": [1], "dtype": "float32", "role": "output", "low": None, "high": None}]
        return float(np.median(self.time(Kernel(path, ""), Workload("", specs), repeat_ms, 0.0)))


class _References:
    """Reference outputs of the latest workloads of this process, in a folder that goes with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._made: OrderedDict[str, tuple[Rounding, dict[int, list[str]]]] = OrderedDict()

    def get(
        self, target: dict[str, Any], workload: Workload, cases: Sequence[int], seed: int, deadline_s: float
    ) -> tuple[dict[int, list[str]], Rounding]:
        with self._lock:
            return self._get(target, workload, cases, seed, deadline_s)

    def _get(
        self, target: dict[str, Any], workload: Workload, cases: Sequence[int], seed: int, deadline_s: float
    ) -> tuple[dict[int, list[str]], Rounding]:
        if self._folder is None:
            self._folder = scratch.folder("dragon-references")
        key = f"{workload.key}-{seed}"
        rounding, made = self._made.get(key, (Rounding(), {}))
        missing = [case for case in cases if case not in made]
        if missing:
            answer = children.worker(_BUILDERS[0]).call(
                "littledragon.compiler.reference:reference",
                deadline_s=deadline_s * len(missing),
                module=workload.module,
                target=target if target["kind"] == "llvm" else targets.target("llvm"),
                specs=workload.specs,
                cases=missing,
                seed=seed,
                out=f"{self._folder}/{key}",
            )
            rounding = Rounding.of(answer["rounding"])
            made = made | {int(case): paths for case, paths in answer["outputs"].items()}
        self._made[key] = (rounding, made)
        self._made.move_to_end(key)
        while len(self._made) > KEPT_REFERENCES:
            _, (_, old) = self._made.popitem(last=False)
            for path in itertools.chain.from_iterable(old.values()):
                Path(path).unlink(missing_ok=True)
        return made, rounding


_BUILDERS: Final = tuple(f"build-{number}" for number in range(BUILDERS))
_idle_builders: queue.SimpleQueue[str] = queue.SimpleQueue()
for _name in _BUILDERS:
    _idle_builders.put(_name)
_references = _References()
_paths = itertools.count()


def _new_path(folder: Path, suffix: str) -> str:
    """A path that this process never gave before: a loaded file must not be written again."""
    return str(folder / f"kernel-{next(_paths)}{suffix}")
