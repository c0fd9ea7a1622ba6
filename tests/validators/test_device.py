"""The device, real and simulated, and the host's lock."""

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from littledragon.compiler import build, children, nvrtc, targets
from littledragon.schemas.ids import digest
from littledragon.validators import real
from littledragon.validators.device import Deadlines, GateFailed, Kernel, Made, Workload, open_device
from littledragon.validators.locks import HostLock
from littledragon.validators.real import RealDevice
from littledragon.validators.simulated import SimulatedDevice

TARGET = targets.target("llvm")
N = 64


class Bench:
    """A real device and the modules of the probe, built."""

    def __init__(self, folder: Path) -> None:
        device = open_device("real", TARGET, Deadlines(run_s=3))
        assert isinstance(device, RealDevice)
        self.device = device
        self.folder = folder
        self.maker = children.Child()
        right = self.make("shifted", n=N, by=1.0)
        self.workload = Workload(right["module"], right["specs"])

    def make(self, name: str, **arguments: Any) -> Any:
        return self.maker.call(f"littledragon.probe.modules:{name}", deadline_s=60, **arguments)

    def kernel(self, name: str, **arguments: Any) -> Kernel:
        made = self.make(name, n=N, **arguments)
        path = f"{tempfile.mkdtemp(dir=self.folder)}/kernel.o"
        build = "littledragon.compiler.build:build"
        self.maker.call(build, deadline_s=60, scheduled=made["module"], target=TARGET, path=path)
        return Kernel(path, made["module_hash"])


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(Path(__file__).parent.parent / "compiler" / "probe"))
    bench = Bench(tmp_path_factory.mktemp("kernels"))
    yield bench
    bench.maker.close()
    children.close_all()
    patch.undo()


def test_right_kernel_passes_every_case(bench: Bench) -> None:
    checked = bench.device.check(bench.kernel("shifted", by=1.0), bench.workload, [0, 1, 2, 3], 0)
    assert (checked.error, checked.cases, checked.correct) == (0, 4, True)


def test_wrong_kernel_is_a_verdict(bench: Bench) -> None:
    checked = bench.device.check(bench.kernel("shifted", by=1.001), bench.workload, [0], 0)
    assert checked.error > 1
    assert not checked.correct


def test_crash_and_hang_are_verdicts_and_the_next_kernel_is_well(bench: Bench) -> None:
    with pytest.raises(GateFailed, match="crashed: SIGSEGV") as crashed:
        bench.device.check(bench.kernel("wild"), bench.workload, [0], 0)
    with pytest.raises(GateFailed, match="deadline") as late:
        bench.device.check(bench.kernel("looping"), bench.workload, [0], 0)
    assert (crashed.value.gate, late.value.gate) == ("ran", "ran")
    assert bench.device.check(bench.kernel("shifted", by=1.0), bench.workload, [0], 0).correct


def test_making_says_which_gate_a_candidate_failed(bench: Bench) -> None:
    def make(workload: Workload, **given: Any) -> Made:
        return bench.device.make(workload, Path(tempfile.mkdtemp(dir=bench.folder)), **given)

    default = make(bench.workload)
    assert default.kernel is not None
    assert default.kernel.default
    assert bench.device.check(default.kernel, bench.workload, [0], 0).correct
    for workload, given, gate in (
        (bench.workload, {"trace": "no trace"}, "parsed"),
        (bench.workload, {"text": "<graph"}, "parsed"),
        (Workload("{}", bench.workload.specs), {}, "replayed"),
    ):
        made = make(workload, **given)
        assert (made.kernel, made.failed and made.failed.gate) == (None, gate)
    endless = bench.make("unrolled", n=4)
    hasty = open_device("real", TARGET, Deadlines(build_s=3))
    late = hasty.make(Workload(endless["module"], endless["specs"]), Path(tempfile.mkdtemp(dir=bench.folder)))
    assert (late.kernel, late.failed and late.failed.gate) == (None, "built")
    assert "deadline" in str(late.failed)
    assert late.admitted is not None
    assert late.admitted["failed"] is None


def test_a_kernel_that_changes_its_input_is_wrong(bench: Bench) -> None:
    checked = bench.device.check(bench.kernel("meddling", by=1.0), bench.workload, [0, 1], 0)
    assert (checked.error, checked.overwritten, checked.correct) == (0, ("x",), False)
    with pytest.raises(GateFailed, match="correct: it overwrites its input x"):
        checked.judge()


def test_outputs_that_died_with_their_child_are_computed_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU they are fetched by a second call, once the device is free for another child's kernel."""
    device = open_device("real", TARGET)
    assert isinstance(device, RealDevice)
    device.cuda = True
    good, call, killed = bench.kernel("shifted", by=1.0), children.Child.call, []

    def call_and_kill(child: children.Child, function: str, **given: Any) -> Any:
        answer = call(child, function, **given)
        if function.endswith(":measure") and not killed:
            killed.append(child.pid)
            child.close()
        return answer

    monkeypatch.setattr(children.Child, "call", call_and_kill)
    checked = device.check(good, bench.workload, [0, 1], 0, repeat_ms=1.0)
    assert len(killed) == 1
    assert (checked.correct, checked.cases) == (True, 2)
    assert checked.repeats_us is not None


def test_what_a_kernel_left_is_looked_at_however_much_its_child_has_grown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a context and the outputs come after the child's first answer."""
    monkeypatch.setattr(children, "MAX_GROWTH", -(1 << 50))  # every child has
    device = open_device("real", TARGET)
    assert isinstance(device, RealDevice)
    device.cuda = True
    made = bench.make("shifted", n=1 << 12, by=1.0)
    workload = Workload(made["module"], made["specs"])
    kernel = device.make(workload, Path(tempfile.mkdtemp(dir=bench.folder))).kernel
    assert kernel is not None
    checked = device.check(kernel, workload, [0, 1], 0, repeat_ms=1.0)
    assert (checked.correct, checked.cases) == (True, 2)


def test_a_process_times_a_workload_once(bench: Bench) -> None:
    good = bench.kernel("shifted", by=1.0)
    other = Workload(bench.workload.module + " ", bench.workload.specs)
    pids = []
    for asked in (bench.workload, other, bench.workload):
        bench.device.time_fresh([(good, 0.0)], asked, 1.0, 0, 0)
        pids.append(real._processes["llvm", 0][0].pid)
    assert len(set(pids)) == 3
    first = real._fresh("cuda", 9, "a")
    first.start()
    assert real._fresh("cuda", 9, "b") is first
    again = real._fresh("cuda", 9, "a")
    assert again is not first
    assert first.pid is None


def test_a_machine_without_a_compiler_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(targets.DeviceMissing, match="target llvm: no C compiler here to link kernels"):
        open_device("real", TARGET)


def test_a_machine_without_nvrtc_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> None:
        raise ValueError(nvrtc.INSTALL)

    monkeypatch.setattr(nvrtc, "toolkit", nothing)
    with pytest.raises(targets.DeviceMissing) as missing:
        build.require_toolchain(targets.target("cuda"))
    assert str(missing.value) == nvrtc.INSTALL


def test_checking_times_in_the_same_call_what_is_not_hopeless(bench: Bench) -> None:
    good = bench.kernel("shifted", by=1.0)
    timed = bench.device.check(good, bench.workload, [0], 0, repeat_ms=1.0)
    assert timed.repeats_us is not None
    assert len(timed.repeats_us) == 5
    assert bench.device.check(good, bench.workload, [0], 0, repeat_ms=1.0, hopeless_s=0.0).repeats_us is None


def test_workload_without_a_reference_fails_the_gate_correct(bench: Bench) -> None:
    broken = Workload("{}", bench.workload.specs)
    with pytest.raises(GateFailed, match="no reference") as failed:
        bench.device.check(bench.kernel("shifted", by=1.0), broken, [0], 0)
    assert failed.value.gate == "correct"


def test_fresh_process_times_all_and_one_crash_costs_only_that_kernel(bench: Bench) -> None:
    good, bad = bench.kernel("shifted", by=1.0), bench.kernel("wild")
    device = open_device("real", TARGET)  # a busy machine takes seconds to start a process
    answers = device.time_fresh([(good, 0.0), (good, 0.0)], bench.workload, 1.0, 0, 0)
    assert [len(answer) for answer in answers if isinstance(answer, list)] == [5, 5]
    first, second, third = device.time_fresh([(good, 0.0), (bad, 0.0), (good, 0.0)], bench.workload, 1.0, 0, 0)
    assert isinstance(first, list)
    assert isinstance(third, list)
    assert isinstance(second, GateFailed)
    assert second.gate == "timed"


def test_empty_kernel_has_a_latency(bench: Bench) -> None:
    assert bench.device.time_empty(1.0) > 0


def test_cuda_without_a_device_is_refused() -> None:
    try:
        targets.require_device("cuda")
    except targets.DeviceMissing:
        with pytest.raises(targets.DeviceMissing, match="simulated"):
            open_device("real", targets.target("cuda"))


# -- simulated --------------------------------------------------------------------------------------

HASHES = [digest(number) for number in range(3000)]
NOTHING = Workload("", [])


def simulated(hash_: str, default: bool = False) -> tuple[float, bool, float]:
    device = SimulatedDevice(TARGET, Deadlines())
    kernel = Kernel("", hash_, default)
    medians = []
    for process in range(3):
        (answer,) = device.time_fresh([(kernel, 0.0)], NOTHING, 20.0, process, 0)
        assert isinstance(answer, list)
        medians.append(statistics.median(answer))
    spread = (max(medians) - min(medians)) / statistics.median(medians)
    return statistics.median(medians), device.check(kernel, NOTHING, [0], 0).correct, spread


def test_simulated_verdicts_are_a_function_of_the_hash() -> None:
    assert [simulated(hash_) for hash_ in HASHES[:20]] == [simulated(hash_) for hash_ in HASHES[:20]]
    # Pinned: two machines, and two versions of this code, must agree.
    pinned = SimulatedDevice(TARGET, Deadlines()).check(Kernel("", "0123456789abcdef"), NOTHING, [0], 0, repeat_ms=1.0)
    assert pinned.repeats_us is not None
    assert pinned.repeats_us[0] == pytest.approx(PINNED_US)


PINNED_US = 2139.0043680404196


def test_simulated_shares_of_wrong_and_unstable_kernels_are_those_that_are_said() -> None:
    found = [simulated(hash_) for hash_ in HASHES]
    assert 0.01 < sum(not correct for _, correct, _ in found) / len(found) < 0.02
    assert 0.02 < sum(spread > 0.05 for _, _, spread in found) / len(found) < 0.04
    default, correct, spread = zip(*(simulated(hash_, default=True) for hash_ in HASHES), strict=True)
    assert all(correct)
    assert max(spread) < 0.05
    slower = sum(latency < statistics.median(default) for latency, _, _ in found) / len(found)
    assert slower > 0.9
    assert statistics.median(default) / min(latency for latency, _, _ in found) > 32


# -- the lock ---------------------------------------------------------------------------------------


def test_lock_is_shared_by_many_and_exclusive_for_one(tmp_path: Path) -> None:
    lock = HostLock("t", tmp_path)
    inside, most, alone = [0], [0], []
    guard = threading.Lock()

    def share() -> None:
        for _ in range(5):
            with lock.shared():
                with guard:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                time.sleep(0.005)
                with guard:
                    inside[0] -= 1

    def exclude() -> None:
        for _ in range(5):
            with lock.exclusive():
                alone.append(inside[0])
                time.sleep(0.002)
                alone.append(inside[0])

    threads = [threading.Thread(target=share) for _ in range(4)] + [threading.Thread(target=exclude) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(alone) == 20
    assert set(alone) == {0}
    assert most[0] > 1


def test_writer_is_not_starved_by_readers_that_keep_coming(tmp_path: Path) -> None:
    lock = HostLock("t", tmp_path)
    stop = threading.Event()

    def share() -> None:
        while not stop.is_set():
            with lock.shared():
                time.sleep(0.02)

    readers = [threading.Thread(target=share) for _ in range(4)]
    for reader in readers:
        reader.start()
    began = time.monotonic()
    with lock.exclusive():
        waited = time.monotonic() - began
    stop.set()
    for reader in readers:
        reader.join()
    assert waited < 5


def test_killed_process_lets_go_and_other_processes_wait_until_then(tmp_path: Path) -> None:
    body = (
        "import sys, time; from pathlib import Path\n"
        "from littledragon.validators.locks import HostLock\n"
        "with HostLock('t', Path(sys.argv[1])).exclusive():\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", body, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    got = threading.Event()

    def wait() -> None:
        with HostLock("t", tmp_path).shared():
            got.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not got.wait(0.3)
    holder.kill()
    holder.wait()
    assert got.wait(5)
    waiter.join()
