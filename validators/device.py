"""The device on which kernels are built, checked and timed: a real one, or a simulated one.

Whatever a kernel does is a verdict about that kernel: `GateFailed` names the gate and the reason. What runs on CPU
slots (`working`) goes on while the device measures, unless the CPU is the device; the device runs one kernel at a time,
under a lock of the host, and nothing of ours beside it.
"""

import contextlib
import hashlib
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import build, making, slots, targets
from littledragon.compiler.children import ChildError
from littledragon.schemas.gates import Gate

HOPELESS: Final = 8
"""A kernel whose one run took so many times L0 is not timed further (*chosen*)…"""
HOPELESS_S: Final = 0.02
"""…where that run took longer than this: shorter ones cost little, and a first call of a quick kernel misleads."""


def hopeless_s(default_us: float) -> float:
    """A kernel that runs longer, in seconds, is not timed further where L0 is `default_us` microseconds."""
    return max(HOPELESS_S, HOPELESS * default_us * 1e-6)


class GateFailed(Exception):
    """A candidate stops here: the gate that it failed, and why, in one line."""

    def __init__(self, gate: Gate, reason: str) -> None:
        super().__init__(f"{gate}: {reason}")
        self.gate: Gate = gate
        self.reason = reason


class Unmeasured(GateFailed):
    """The same where nothing is known of the candidate: what failed is ours, such as a reference, or an interrupt."""


@dataclass(frozen=True)
class Deadlines:
    """How long each may take, in seconds, before it counts as failed: admission and lowering to the compiler's end,
    one run of a kernel, one case of a reference."""

    build_s: float = 30.0
    run_s: float = 20.0
    reference_s: float = 300.0


@dataclass(frozen=True)
class Workload:
    """What the device needs to know of a workload: M0 as `save_json`, and how to make each argument."""

    module: str
    specs: list[dict[str, Any]]

    @property
    def key(self) -> str:
        """A name for its reference outputs."""
        return hashlib.sha256(repr((self.module, self.specs)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Kernel:
    """A built kernel: its file (none on the simulated device), its scheduled module's hash, whether it is L0's."""

    path: str
    module_hash: str
    default: bool = False


@dataclass(frozen=True)
class Made:
    """What became of a trace or a text on a CPU slot.

    admitted: see `compiler.traces:admit`, without `scheduled`; None where admission came to no end. kernel: where it
    was built; failed says why not, or which gate before that it failed; neither where another call with the same
    `claims` builds the same module. build_s, headers: of the build. ended: how the child ended that gave no answer.
    """

    admitted: dict[str, Any] | None
    kernel: Kernel | None = None
    failed: GateFailed | None = None
    build_s: float | None = None
    headers: str | None = None
    ended: ChildError | None = None


@dataclass(frozen=True)
class Checked:
    """error: largest error over its bound, over all cases; correct when at most 1. run_s: the slowest run.

    overwritten: inputs that the kernel changed. repeats_us: five repeats, where it was timed in the same call.
    """

    error: float
    cases: int
    run_s: float
    overwritten: tuple[str, ...] = ()
    repeats_us: list[float] | None = None

    @property
    def correct(self) -> bool:
        return self.error <= 1 and not self.overwritten

    def judge(self) -> None:
        """Raises GateFailed (correct) where the kernel is wrong."""
        if self.overwritten:
            raise GateFailed("correct", f"it overwrites its input {self.overwritten[0]}")
        if not self.correct:
            raise GateFailed("correct", f"error is {self.error:.3g} times its bound")


class Device(ABC):
    """See the module's docstring. `open_device` gives one."""

    simulated: bool

    def __init__(self, target: dict[str, Any], deadlines: Deadlines) -> None:
        self.target = target
        self.deadlines = deadlines
        self._turn = next(_turns)

    @abstractmethod
    def working(self) -> contextlib.AbstractContextManager[None]:
        """Held while a CPU slot works."""

    @abstractmethod
    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Held by what builds and measures by itself: nothing of ours has the device meanwhile."""

    def on_slot(self, function: str, deadline_s: float, *, urgent: bool = True, **arguments: Any) -> Any:
        """Call a function on a CPU slot: what is urgent goes before what the device will only want later, and what a
        device that was opened earlier asks for before what a later one does.

        Raises:
            ChildError: as `Child.call`.
        """
        return slots.of(self.target["kind"]).call(
            function, deadline_s=deadline_s, urgent=urgent, turn=self._turn, within=self.working, **arguments
        )

    def make(
        self,
        workload: Workload,
        folder: Path,
        *,
        trace: str | None = None,
        text: str | None = None,
        build: bool = True,
        claims: Path | None = None,
    ) -> Made:
        """Admit a trace or a text (with neither, the default schedule) and build it into `folder`, new and empty.

        claims: a folder that calls share; of those with the same module the first builds it. See `compiler.making`.
        """
        default = trace is None and text is None
        given: dict[str, Any] = {
            "module": workload.module,
            "target": self.target,
            "folder": str(folder),
            "trace": trace,
            "text": text,
            "claims": None if claims is None else str(claims),
        }
        try:
            built = self.on_slot("littledragon.compiler.making:make", self.deadlines.build_s, build=build, **given)
            late = None
        except ChildError as error:
            built, late = {}, error
        admitted = making.admitted(folder)
        if admitted is None:
            return Made(None, failed=GateFailed("replayed", str(late)), ended=late)
        if admitted["failed"]:
            return Made(admitted, failed=GateFailed(admitted["failed"], admitted["reason"]))
        if claims is not None and making.claimed(claims, admitted["module_hash"]) != str(folder):
            return Made(admitted)
        if late is not None:
            return Made(admitted, failed=GateFailed("built", str(late)), ended=late)
        kernel = Kernel(built.get("path", ""), admitted["module_hash"], default)
        return Made(admitted, kernel, None, built.get("build_s", 0.0), built.get("headers"))

    def hold(self, workload: Workload, seed: int) -> contextlib.AbstractContextManager[None]:
        """Keep what checking this workload needs for as long as the block lasts, once it is made."""
        return contextlib.nullcontext()

    @abstractmethod
    def get_ready(self, workload: Workload, cases: Sequence[int], seed: int) -> None:
        """Make what checking will need, ahead of it. What goes wrong will be said when it is needed."""

    @abstractmethod
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
        """Run the kernel on these input cases and compare; with `repeat_ms`, time it on the first as well.

        Args:
            hopeless_s: a kernel that ran longer is not timed.

        Raises:
            GateFailed: ran; timed; correct, where there is no reference.
        """

    @abstractmethod
    def time_fresh(
        self, timed: Sequence[tuple[Kernel, float]], workload: Workload, repeat_ms: float, process: int, seed: int
    ) -> list[list[float] | GateFailed]:
        """Five repeats of each (kernel, seconds of one run) in the `process`-th fresh process; in one each if it fails.

        Two calls of one workload with different `process` are never the same process.
        """

    @abstractmethod
    def time_empty(self, repeat_ms: float) -> float:
        """Median latency of an empty kernel, in microseconds. Raises GateFailed."""

    def observe(self) -> dict[str, Any]:
        """What the device and the host are doing just now: load, clocks, temperature, co-tenants."""
        return {}


_turns = itertools.count()


def open_device(kind: str, target: dict[str, Any], deadlines: Deadlines | None = None) -> Device:
    """The device of this kind (real or simulated) for a TVM target.

    Raises:
        targets.DeviceMissing: real, and the target's device, or what builds for it, is not on this machine.
    """
    from littledragon.validators.real import RealDevice
    from littledragon.validators.simulated import SimulatedDevice

    if kind == "simulated":
        return SimulatedDevice(target, deadlines or Deadlines())
    targets.require_device(target["kind"])
    build.require_toolchain(target)
    return RealDevice(target, deadlines or Deadlines())


def threads(target: dict[str, Any]) -> int:
    """CPU threads that a kernel of this target may use."""
    return int(target.get("num-cores", os.cpu_count() or 1))
