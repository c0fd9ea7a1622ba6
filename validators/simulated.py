"""The simulated device: verdicts and latencies that nothing but the scheduled module's hash decides."""

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

from littledragon.validators.device import Checked, Device, GateFailed, Kernel, Made, Workload


class SimulatedDevice(Device):
    """Everything is a function of the scheduled module's hash, and of whether it is the default schedule.

    Latency is 4096 µs × 2^-u with u even in 0 … 6 (0 … 0.5 for the default schedule); 1.5% compute a wrong result,
    3% are unstable, the default schedule never. Nothing is built or run.
    """

    simulated = True

    def working(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def alone(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

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
        return super().make(workload, folder, trace=trace, text=text, build=False, claims=claims)

    def get_ready(self, workload: Workload, cases: Sequence[int], seed: int) -> None:
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
        draw = _draw(kernel, "numerics")
        wrong = draw < 0.015 and not kernel.default
        repeats = None if repeat_ms is None else self._repeats(kernel, 0)
        return Checked(2 + 100 * draw if wrong else draw / 2, len(cases), 0.0, repeats_us=repeats)

    def time_fresh(
        self, timed: Sequence[tuple[Kernel, float]], workload: Workload, repeat_ms: float, process: int, seed: int
    ) -> list[list[float] | GateFailed]:
        return [self._repeats(kernel, process) for kernel, _ in timed]

    def time_empty(self, repeat_ms: float) -> float:
        return 1.0

    def _repeats(self, kernel: Kernel, process: int) -> list[float]:
        octaves = _draw(kernel, "latency") * (0.5 if kernel.default else 6)
        unstable = _draw(kernel, "stability") < 0.03 and not kernel.default
        spread = (0.2 if unstable else 0.01) * _draw(kernel, f"process {process}")
        if unstable and process:
            spread += 0.1 * process
        middle = 4096 * 2**-octaves * (1 + spread)
        return [middle * (1 + 0.001 * step) for step in (0, 1, -1, 2, -2)]


def _draw(kernel: Kernel, what: str) -> float:
    """A number in [0, 1) that only the module's hash decides."""
    word = hashlib.sha256(f"{what}:{kernel.module_hash}".encode()).digest()[:8]
    return int.from_bytes(word, "big") / 2.0**64
