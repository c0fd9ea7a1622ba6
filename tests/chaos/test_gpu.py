"""Kernels that do their worst on a GPU: each is a verdict of its own candidate, and of nobody beside it.

`make test-gpu` runs them.
"""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine import matches, probe_path, verdict

from littledragon.compiler import children, targets
from littledragon.compiler.children import Child
from littledragon.validators.device import Deadlines, GateFailed, Kernel, Workload, open_device

pytestmark = pytest.mark.gpu

TARGET = targets.target("cuda")
N = 64
FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "does not end": ("endless", {}, r"ran: deadline"),
    "writes far away": ("spilling", {"at": 1 << 38}, r"ran: (raised|crashed)"),
    "takes more memory than there is": ("greedy", {"size": 1 << 36}, r"ran: (raised|crashed)"),
    "takes more shared memory than there is": ("sharing", {"size": 1 << 16}, r"ran: (raised|crashed)"),
    "has too many threads": ("threaded", {"threads": 2048}, r"ran: (raised|crashed)"),
    "is wrong": ("threaded", {"by": 1.01}, r"correct: error is"),
}
"""What makes the kernel, and what is to be said of it."""


class Bench:
    """The GPU, and kernels of one workload, y = x + 1, right and wrong."""

    def __init__(self, folder: Path) -> None:
        self.device = open_device("real", TARGET, Deadlines(build_s=120, run_s=10))
        maker = Child()
        try:
            right = self._made(maker, "probe.modules:shifted", by=1.0)
            self.workload = Workload(right["module"], right["specs"])
            made = {name: (function, given) for name, (function, given, _) in FAULTS.items()}
            made |= {"right": ("threaded", {}), "writes nearby": ("spilling", {"at": 1 << 20})}
            self.kernels = {
                name: self._built(maker, folder, self._made(maker, f"faulty.gpu:{function}", **given))
                for name, (function, given) in made.items()
            }
        finally:
            maker.close()

    @staticmethod
    def _made(maker: Child, function: str, **given: Any) -> Any:
        return maker.call(f"littledragon.{function}", deadline_s=120, n=N, **given)

    @staticmethod
    def _built(maker: Child, folder: Path, made: Any) -> Kernel:
        path = f"{tempfile.mkdtemp(dir=folder)}/kernel.so"
        build = "littledragon.compiler.build:build"
        maker.call(build, deadline_s=120, scheduled=made["module"], target=TARGET, path=path)
        return Kernel(path, made["module_hash"])

    def verdict(self, name: str) -> str:
        """Gate and reason, or nothing where every gate is passed."""
        return verdict(self.device, self.kernels[name], self.workload)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        before = os.environ.get("PYTHONPATH", "")  # packages may lie there
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [probe_path(), before])))
        yield Bench(tmp_path_factory.mktemp("kernels"))
        children.close_all()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_told_by_its_gate_and_its_neighbours_are_well(bench: Bench, fault: str) -> None:
    assert bench.verdict("right") == ""
    matches(bench.verdict(fault), FAULTS[fault][2])
    assert bench.verdict("right") == ""


def test_a_kernel_that_writes_over_its_neighbours_costs_them_nothing(bench: Bench) -> None:
    """Nobody has to see what it does: what lies behind its output is nobody's but its own process's."""
    for _ in range(3):
        bench.verdict("writes nearby")
        assert bench.verdict("right") == ""


def test_threads_that_share_the_device_have_each_its_own_verdict(bench: Bench) -> None:
    names = [name for fault in FAULTS if fault != "does not end" for name in ("right", fault)] * 2
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(bench.verdict, names))
    for name, said in zip(names, found, strict=True):
        if name == "right":
            assert said == ""
        else:
            matches(said, FAULTS[name][2])


def test_timing_in_a_fresh_process_costs_the_faulty_ones_alone(bench: Bench) -> None:
    names = ["right", "does not end", "right", "writes far away", "takes more memory than there is"]
    found = bench.device.time_fresh([(bench.kernels[name], 0.0) for name in names], bench.workload, 1.0, 0, 0)
    for name, answer in zip(names, found, strict=True):
        if name == "right":
            assert isinstance(answer, list)
        else:
            assert isinstance(answer, GateFailed)
            assert answer.gate == "timed"
