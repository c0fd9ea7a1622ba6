"""Kernels, builds and disks that do their worst: each is a verdict of its own candidate, and of nobody beside it."""

import contextlib
import errno
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine import Engine, finish, matches, probe_path, store_of, verdict, workloads

from littledragon.compiler import children, slots, targets
from littledragon.compiler.children import Child, ChildError
from littledragon.validators import scratch
from littledragon.validators.device import Deadlines, Device, GateFailed, Kernel, Made, Workload, open_device
from littledragon.validators.real import RealDevice

TARGET = targets.target("llvm")
N = 64
PROBE = "littledragon.probe.calls"
FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "spills a little": ("faulty.kernels:spilling", {"by": 16}, "ran: crashed: SIG(ABRT|SEGV|BUS)"),
    "spills much": ("faulty.kernels:spilling", {"by": 1 << 26}, "ran: crashed: SIG(SEGV|BUS|ABRT)"),
    "reads far away": ("probe.modules:wild", {}, "ran: crashed: SIG(SEGV|BUS)"),
    "takes all memory": ("faulty.kernels:greedy", {"size": 1 << 29}, "ran: (raised: .*bad_alloc|crashed: SIGABRT)"),
    "does not end": ("probe.modules:looping", {}, "ran: deadline"),
    "stops itself": ("faulty.kernels:calling", {"name": "raise", "arguments": [signal.SIGSTOP]}, "ran: deadline"),
    "exits": ("faulty.kernels:calling", {"name": "exit", "arguments": [3]}, "ran: crashed: exit code 3"),
    "aborts": ("faulty.kernels:calling", {"name": "abort", "arguments": []}, "ran: crashed: SIGABRT"),
    "kills itself": ("faulty.kernels:calling", {"name": "raise", "arguments": [9]}, "ran: crashed: SIGKILL"),
    "forks": ("faulty.kernels:calling", {"name": "fork", "arguments": []}, "ran: crashed: it leaves processes behind"),
    "closes files": ("faulty.kernels:calling", {"name": "close_range", "arguments": [3, 1000, 0]}, "ran: crashed"),
    "answers itself": ("faulty.kernels:talking", {}, "ran: crashed: (an answer of|its answer|it does not begin)"),
    "changes its input": ("probe.modules:meddling", {"by": 1.0}, "correct: it overwrites its input x"),
    "is wrong": ("probe.modules:shifted", {"by": 1.01}, "correct: error is"),
}
"""What makes the kernel, and what is to be said of it."""
QUICK = ("spills a little", "takes all memory", "exits", "forks", "closes files", "answers itself", "is wrong")
"""Those that cost no deadline."""


class Bench:
    """A real device, and kernels of one workload, y = x + 1, right and wrong."""

    def __init__(self, folder: Path) -> None:
        device = open_device("real", TARGET, Deadlines(build_s=120, run_s=6))
        assert isinstance(device, RealDevice)
        self.device, self.folder = device, folder
        self.maker = Child()
        self.built: dict[str, Kernel] = {}
        right = self.made("probe.modules:shifted", by=1.0)
        self.workload = Workload(right["module"], right["specs"])

    def made(self, function: str, **arguments: Any) -> Any:
        return self.maker.call(f"littledragon.{function}", deadline_s=120, **{"n": N, **arguments})

    def kernel(self, name: str) -> Kernel:
        if name not in self.built:
            function, arguments, _ = FAULTS.get(name, ("probe.modules:shifted", {"by": 1.0}, ""))
            made, path = self.made(function, **arguments), f"{tempfile.mkdtemp(dir=self.folder)}/kernel.o"
            build = "littledragon.compiler.build:build"
            self.maker.call(build, deadline_s=120, scheduled=made["module"], target=TARGET, path=path)
            self.built[name] = Kernel(path, made["module_hash"])
        return self.built[name]

    def verdict(self, name: str, cases: tuple[int, ...] = (0, 1)) -> str:
        """Gate and reason, or nothing where every gate is passed."""
        return verdict(self.device, self.kernel(name), self.workload, cases)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", probe_path())
        patch.setattr(children, "MEMORY_SHARE", (1 << 30) / (children.memory() / children.MEMORY_SHARE))  # 1 GiB
        bench = Bench(tmp_path_factory.mktemp("kernels"))
        yield bench
        bench.maker.close()
        children.close_all()


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", probe_path())
    monkeypatch.setitem(slots.MODULES, "probe", (PROBE,))
    yield
    children.close_all()
    slots.use(None)


# -- kernels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", QUICK)
def test_a_faulty_kernel_is_told_by_its_gate_and_its_neighbours_are_well(bench: Bench, fault: str) -> None:
    assert bench.verdict("right") == ""
    matches(bench.verdict(fault), FAULTS[fault][2])
    assert bench.verdict("right") == ""


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - set(QUICK)))
def test_a_faulty_kernel_that_takes_its_time(bench: Bench, fault: str) -> None:
    matches(bench.verdict(fault), FAULTS[fault][2])
    assert bench.verdict("right") == ""


@pytest.mark.slow
def test_threads_that_share_the_device_have_each_its_own_verdict(bench: Bench) -> None:
    names = [name for fault in QUICK for name in ("right", fault)] + ["right", "right"]
    for name in names:
        bench.kernel(name)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(bench.verdict, names))
    assert [said for name, said in zip(names, found, strict=True) if name == "right"] == [""] * (len(QUICK) + 2)
    for name, said in zip(names, found, strict=True):
        if name != "right":
            matches(said, FAULTS[name][2])


@pytest.mark.slow
def test_timing_in_a_fresh_process_costs_the_faulty_ones_alone(bench: Bench) -> None:
    names = ["right", "exits", "right", "spills a little", "takes all memory"]
    found = bench.device.time_fresh([(bench.kernel(name), 0.0) for name in names], bench.workload, 1.0, 0, 0)
    for name, answer in zip(names, found, strict=True):
        if name == "right":
            assert isinstance(answer, list)
        else:
            assert isinstance(answer, GateFailed)
            assert answer.gate == "timed"


# -- builds -----------------------------------------------------------------------------------------


def test_a_build_without_an_end_is_late_and_the_others_go_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "MEMORY_SHARE", 0.5)  # it shall meet its deadline, not its limit
    slots.use(2)
    endless = bench.made("probe.modules:unrolled", n=4)
    hasty = open_device("real", TARGET, Deadlines(build_s=3))

    def make(device: Device, program: dict[str, Any]) -> Made:
        folder = Path(tempfile.mkdtemp(dir=bench.folder))
        return device.make(Workload(program["module"], program["specs"]), folder)

    right = bench.made("probe.modules:shifted", by=1.0)
    with ThreadPoolExecutor(3) as pool:
        late = pool.submit(make, hasty, endless)
        others = list(pool.map(lambda _: make(bench.device, right), range(6)))
    assert all(other.kernel is not None for other in others)
    failed = late.result().failed
    assert failed is not None
    assert (failed.gate, failed.reason.split(":")[0]) == ("built", "deadline")
    with ThreadPoolExecutor(2) as pool:  # both slots work
        assert all(made.kernel is not None for made in pool.map(lambda _: make(bench.device, right), range(4)))
    children.close_all()
    slots.use(None)


# -- kills from outside -----------------------------------------------------------------------------


def kill_when_it_works(child: Child, times: int) -> threading.Thread:
    """Kill the process of a child as often, each time another one, once it has begun to sleep in its call."""

    def kill() -> None:
        seen: set[int] = set()
        while len(seen) < times:
            pid = child.pid
            with contextlib.suppress(psutil.Error):
                if pid is not None and pid not in seen and psutil.Process(pid).num_threads() > 1:
                    os.kill(pid, signal.SIGKILL)
                    seen.add(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.parametrize("modules", [(), (PROBE,)])
def test_a_call_whose_child_somebody_kills_is_made_again(probe: None, modules: tuple[str, ...]) -> None:
    child = Child(modules)
    killer = kill_when_it_works(child, children.LIVES - 1)
    child.call(f"{PROBE}:sleep", deadline_s=60, seconds=1)
    killer.join()
    child.close()


def test_a_call_whose_every_child_dies_so_is_told_it(probe: None) -> None:
    child = Child((PROBE,))
    with pytest.raises(ChildError, match="crashed: SIGKILL"):
        child.call(f"{PROBE}:die", deadline_s=60, by=int(signal.SIGKILL))
    child.close()


def test_slots_whose_children_and_nursery_are_killed_answer_every_call(probe: None) -> None:
    slots.use(2)
    shared = slots.of("probe")
    stop = threading.Event()

    def kill() -> None:
        while not stop.wait(0.3):
            for process in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if "nurse" in process.cmdline():
                        process.kill()
                        break

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda a: shared.call(f"{PROBE}:echo", deadline_s=60, a=a), range(3000)))
    finally:
        stop.set()
        killer.join()
    assert found == [{"a": a} for a in range(3000)]


def test_an_interrupt_is_no_kill_from_outside(probe: None) -> None:
    child = Child((PROBE,))
    child.start()
    asked = threading.Timer(0.5, child.interrupt)
    asked.start()
    with pytest.raises(ChildError, match="crashed"):
        child.call(f"{PROBE}:sleep", deadline_s=60, seconds=60)
    asked.join()
    child.close()


def test_a_child_that_closes_its_pipe_and_lives_on_is_no_kill_from_outside(probe: None) -> None:
    child = Child((PROBE,))
    with pytest.raises(ChildError, match=r"crashed: (exit code|it closed its pipe and lived on)"):
        child.call("littledragon.faulty.calls:hush", deadline_s=60)
    child.close()


def test_a_build_that_was_killed_while_it_wrote_is_made_again(bench: Bench) -> None:
    """The call that is made again finds the file of the first one, which is no fault of the candidate."""
    folder = Path(tempfile.mkdtemp(dir=bench.folder))
    (folder / "kernel.o").write_bytes(b"half of a ker")
    made = bench.device.make(bench.workload, folder)
    assert made.kernel is not None
    assert bench.device.check(made.kernel, bench.workload, [0], 0).correct


@pytest.mark.parametrize("modules", [(), (PROBE,)])
def test_what_a_child_leaves_lies_where_it_goes_with_this_process(
    probe: None, tmp_path: Path, modules: tuple[str, ...]
) -> None:
    children.keep_in(tmp_path)
    child = Child(modules)
    assert Path(child.call("littledragon.faulty.calls:litter", deadline_s=60)).parent == tmp_path
    child.close()
    children._forget()


# -- memory and disk --------------------------------------------------------------------------------


def test_a_limited_child_may_not_hold_more_than_its_share(probe: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "MEMORY_SHARE", (1 << 29) / (children.memory() / children.MEMORY_SHARE))
    free, limited = Child((PROBE,)), Child((PROBE,), limited=True)
    assert free.call(f"{PROBE}:grow", deadline_s=60, count=1 << 30)
    with pytest.raises(ChildError, match="raised: MemoryError"):
        limited.call(f"{PROBE}:grow", deadline_s=60, count=1 << 30)
    assert limited.call(f"{PROBE}:echo", deadline_s=60) == {}
    free.close()
    limited.close()


def fill(place: Path, free: int) -> None:
    with contextlib.suppress(OSError), (place / "ballast").open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
    os.truncate(place / "ballast", (place / "ballast").stat().st_size - free)


@pytest.mark.parametrize("free", [0, 4096, 8192])
def test_a_full_disk_is_no_fault_of_the_candidate_that_is_built(bench: Bench, small_disk: Path, free: int) -> None:
    folder = Path(tempfile.mkdtemp(dir=small_disk))
    fill(small_disk, free)
    with pytest.raises(OSError, match="No space left on device") as said:
        bench.device.make(bench.workload, folder)
    assert said.value.errno == errno.ENOSPC
    (small_disk / "ballast").unlink()
    assert bench.device.make(bench.workload, Path(tempfile.mkdtemp(dir=small_disk))).kernel is not None


@pytest.mark.parametrize("free", [0, 20_480, 1 << 17])
def test_a_full_disk_is_no_fault_of_the_candidate_that_is_run(
    bench: Bench, small_disk: Path, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 128 KiB it is linked, and then its result of 256 KiB does not fit."""
    large = bench.made("probe.modules:shifted", n=1 << 16, by=1.0)
    workload = Workload(large["module"], large["specs"])
    bench.device.get_ready(workload, [0], 0)
    made = bench.device.make(workload, Path(tempfile.mkdtemp(dir=small_disk)))
    assert made.kernel is not None
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    scratch._own.cache_clear()
    with scratch.temporary("warm"):
        fill(small_disk, free)
    with pytest.raises(OSError, match=r"No space left|requested and"):
        bench.device.check(made.kernel, workload, [0], 0)
    (small_disk / "ballast").unlink()
    assert bench.device.check(made.kernel, workload, [0], 0).correct
    scratch._own.cache_clear()


@pytest.mark.slow
def test_a_disk_that_fills_up_fails_units_and_rejects_no_candidate(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", probe_path())
    store = store_of(
        tmp_path / "work", workloads([("shifted", {"n": 4096, "by": 1.0}), ("softmax", {"m": 16, "n": 64})])
    )
    settings = {"device": "real", "candidates_per_round": 4, "population": 16, "search_repeat_ms": 1.0}
    engine = Engine(tmp_path / "work", small_disk, settings, stages="search")
    fill(small_disk, 100_000)
    process = engine.start()
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0 or "the disk is full: free some space" in said.splitlines()[-1], said
    ended = store.rows("outcomes", "stage = 'search'")
    assert [row["state"] for row in ended] == ["failed"] * 2
    assert all("No space left" in row["detail"] or "requested and" in row["detail"] for row in ended)
    assert not store.rows("candidates")
    (small_disk / "ballast").unlink()
    finish(engine.start(retry=True), 600)
    assert [row["state"] for row in store.rows("outcomes", "stage = 'search'")] == ["ok"] * 2
    assert {row["status"] for row in store.rows("candidates")} <= {"ok", "timed"}
