"""The device on which kernels are built, checked and timed: a real one, or a simulated one.

Whatever a kernel does is a verdict about that kernel: `GateFailed` names the gate and the reason. Building and
checking share the host's lock of the device, timing has it alone, so a kernel is never timed while anything else
of ours runs. Callers hold the locks (`shared`, `exclusive`), for as short a piece of work as makes sense.
"""

import contextlib
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import targets
from littledragon.schemas.gates import Gate

BUILDERS: Final = 2
"""Candidates that one process builds at once; more callers of `build` wait."""


class GateFailed(Exception):
    """A candidate stops here: the gate that it failed, and why, in one line."""

    def __init__(self, gate: Gate, reason: str) -> None:
        super().__init__(f"{gate}: {reason}")
        self.gate: Gate = gate
        self.reason = reason


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
class Checked:
    """error: largest error over its bound, over all cases; correct when at most 1. run_s: the slowest run."""

    error: float
    cases: int
    run_s: float

    @property
    def correct(self) -> bool:
        return self.error <= 1


class Device(ABC):
    """See the module's docstring. `open_device` gives one."""

    simulated: bool

    @abstractmethod
    def shared(self) -> contextlib.AbstractContextManager[None]:
        """Held while proposing, building and checking."""

    @abstractmethod
    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """Held while timing."""

    @abstractmethod
    def build(self, scheduled: str, module_hash: str, folder: Path, *, default: bool = False) -> tuple[Kernel, float]:
        """Compile a scheduled module into `folder`: the kernel, and the seconds. Raises GateFailed (built)."""

    @abstractmethod
    def check(self, kernel: Kernel, workload: Workload, cases: Sequence[int], seed: int) -> Checked:
        """Run the kernel on these input cases and compare. Raises GateFailed (ran; correct without a reference)."""

    @abstractmethod
    def time(self, kernel: Kernel, workload: Workload, repeat_ms: float, run_s: float) -> list[float]:
        """Five repeats, in microseconds; `run_s` is what one run took. Raises GateFailed (timed)."""

    @abstractmethod
    def time_fresh(
        self, timed: Sequence[tuple[Kernel, float]], workload: Workload, repeat_ms: float, process: int
    ) -> list[list[float] | GateFailed]:
        """Five repeats of each (kernel, run_s) in one fresh process, the `process`-th; in one each if that fails."""

    @abstractmethod
    def time_empty(self, folder: Path, repeat_ms: float) -> float:
        """Median latency of an empty kernel, in microseconds. Raises GateFailed."""


def open_device(
    kind: str, target: dict[str, Any], *, build_deadline_s: float = 30.0, run_deadline_s: float = 20.0
) -> Device:
    """The device of this kind (real or simulated) for a TVM target.

    Raises:
        targets.DeviceMissing: real, and the target's device is not on this machine.
    """
    from littledragon.validators.real import RealDevice
    from littledragon.validators.simulated import SimulatedDevice

    if kind == "simulated":
        return SimulatedDevice()
    targets.require_device(target["kind"])
    return RealDevice(target, build_deadline_s, run_deadline_s)


def threads(target: dict[str, Any]) -> int:
    """CPU threads that a kernel of this target may use."""
    return int(target.get("num-cores", os.cpu_count() or 1))
