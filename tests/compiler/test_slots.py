"""Children that are forked from a nursery, and the slots that threads share."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from littledragon.compiler import children, slots
from littledragon.compiler.children import Child, ChildError

PROBE = "littledragon.probe.calls"
FOLDER = str(Path(__file__).parent / "probe")


@pytest.fixture(autouse=True)
def _probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", FOLDER)
    monkeypatch.setitem(slots.MODULES, "probe", (PROBE,))
    yield
    children.close_all()
    slots.use(None)


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child((PROBE,))
    yield child
    child.close()


def pid(child: Child) -> int:
    return int(child.call(f"{PROBE}:pid", deadline_s=20))


def gone(process: int) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if not psutil.pid_exists(process):
            return True
        time.sleep(0.02)
    return False


def dead(process: int) -> bool:
    """Gone, or an orphan that this process has adopted and not reaped."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_forked_children_have_one_nursery_and_are_this_process_s_own(child: Child) -> None:
    other = Child((PROBE,))
    first, second = pid(child), pid(other)
    assert first != second
    assert {psutil.Process(one).ppid() for one in (first, second)} == {os.getpid()}
    assert len({os.getpgid(one) for one in (first, second)}) == 2
    assert child.call(f"{PROBE}:imported", deadline_s=20, name=PROBE) is True
    other.close()
    assert gone(second)  # reaped, too
    assert pid(child) == first


def test_a_child_finds_no_torch_and_nothing_of_that_name(child: Child) -> None:
    """Libraries take whatever stands under that name among the loaded modules for PyTorch itself."""
    for one in (child, Child()):
        with pytest.raises(ChildError, match="ModuleNotFoundError: No module named 'torch'"):
            one.call(f"{PROBE}:load", deadline_s=20, name="torch")
        assert one.call(f"{PROBE}:imported", deadline_s=20, name="torch") is False
        one.close()


@pytest.mark.parametrize("by", [signal.SIGSEGV, signal.SIGKILL])
def test_a_crash_names_the_signal_and_the_last_words(child: Child, by: signal.Signals) -> None:
    with pytest.raises(ChildError, match=f"crashed: {by.name}: last words"):
        child.call(f"{PROBE}:die", deadline_s=20, by=int(by))
    with pytest.raises(ChildError, match="crashed: exit code 3"):
        child.call(f"{PROBE}:leave", deadline_s=20)
    before = pid(child)
    with pytest.raises(ChildError, match="deadline"):
        child.call(f"{PROBE}:sleep", deadline_s=0.3, seconds=60)
    assert gone(before)


def test_a_nursery_that_was_killed_is_replaced_and_its_children_live_on(child: Child) -> None:
    before = pid(child)
    nursery = children._nurseries[PROBE,]
    nursery.process.kill()
    nursery.process.wait(10)
    assert pid(child) == before
    other = Child((PROBE,))
    assert pid(other) != before


def test_a_nursery_that_cannot_import_says_so() -> None:
    with pytest.raises(OSError, match=r"no child came from the nursery of littledragon\.nowhere: ModuleNotFoundError"):
        Child(("littledragon.nowhere",)).start()


def test_forked_children_and_nurseries_die_with_a_killed_parent() -> None:
    code = (
        "import os, signal, threading\n"
        "from littledragon.compiler import children\n"
        f"child = children.Child(('{PROBE}',))\n"
        f"print(child.call('{PROBE}:pid', deadline_s=20), children._nurseries['{PROBE}',].process.pid, flush=True)\n"
        f"threading.Thread(target=lambda: child.call('{PROBE}:sleep', deadline_s=60, seconds=60)).start()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == -signal.SIGKILL
    for process in said.stdout.split():
        assert dead(int(process)), said.stderr


def test_what_a_killed_child_had_started_is_reaped(child: Child) -> None:
    grandchild = child.call(f"{PROBE}:grandchild", deadline_s=20, seconds=60)
    child.close()
    assert gone(grandchild)


def test_urgent_ones_go_first_while_there_are_enough_of_them() -> None:
    slots.use(1)
    shared = slots.of("probe")
    order: list[str] = []
    occupied = shared._take(urgent=False, turn=0)

    def ask(name: str, urgent: bool, turn: int) -> None:
        shared.call(f"{PROBE}:echo", deadline_s=20, urgent=urgent, turn=turn, within=Noted(name, order))

    asked = (("d", False, 2), ("c", False, 1), ("e", True, 2), ("b", True, 1), ("a", True, 0))
    threads = []
    for number, one in enumerate(asked):
        threads.append(threading.Thread(target=ask, args=one))
        threads[-1].start()
        while len(shared._waiting) <= number:
            time.sleep(0.005)
    with shared._changed:
        shared._idle.append(occupied)
        shared._changed.notify_all()
    for thread in threads:
        thread.join(20)
    assert slots.AHEAD * shared.count == 2
    assert order == ["a", "b", "c", "d", "e"]


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns far more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_nobody_sleeps_through_his_turn(restless: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes may make it the turn of another than himself, who sleeps."""
    monkeypatch.setattr(slots, "Child", Idler)
    shared, ended = slots.Slots("probe", 1), threading.Event()

    def ask(number: int) -> None:
        chance = random.Random(number)
        while not ended.is_set():
            shared.call("any:thing", deadline_s=1, urgent=chance.random() < 0.5, turn=number % 3)
            time.sleep(chance.random() * 1e-3)

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(4)
    ended.set()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


class Idler:
    """A child without a process."""

    pid = None

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def start(self) -> None:
        pass

    def call(self, *_: object, **__: object) -> None:
        time.sleep(random.random() * 5e-4)


def test_so_many_work_at_once() -> None:
    slots.use(2)
    shared = slots.of("probe")
    met = threading.Barrier(2, timeout=20)

    @contextlib.contextmanager
    def both() -> Iterator[None]:
        met.wait()  # a third would wait here for a fourth
        yield

    with ThreadPoolExecutor(6) as pool:
        pids = list(pool.map(lambda _: shared.call(f"{PROBE}:pid", deadline_s=20, within=both), range(6)))
    assert len(set(pids)) == shared.count == 2


class Noted:
    """A context that says when it was entered."""

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self.order = name, order

    def __call__(self) -> "Noted":
        return self

    def __enter__(self) -> None:
        self.order.append(self.name)

    def __exit__(self, *error: object) -> None:
        pass


def test_a_slot_whose_child_died_serves_the_next_call() -> None:
    slots.use(1)
    shared = slots.of("probe")
    with pytest.raises(ChildError, match="crashed"):
        shared.call(f"{PROBE}:die", deadline_s=20, by=int(signal.SIGSEGV))
    answer: dict[str, Any] = shared.call(f"{PROBE}:echo", deadline_s=20, a=1)
    assert answer == {"a": 1}


def test_slots_leave_the_cpu_to_whoever_measures() -> None:
    slots.use(1)
    shared = slots.of("probe")
    one = shared.call(f"{PROBE}:pid", deadline_s=20)
    assert psutil.Process(one).nice() == psutil.Process().nice() + slots.NICE
