"""The supervisor of child processes, against functions that misbehave (`probe/littledragon/probe/calls.py`)."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from littledragon.compiler import children
from littledragon.compiler.children import Child, ChildError

PROBE = "littledragon.probe.calls:"
FOLDER = str(Path(__file__).parent / "probe")


@pytest.fixture(autouse=True)
def _probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", FOLDER)


@pytest.fixture
def child() -> Any:
    child = Child()
    yield child
    child.close()


def gone(pid: int, within_s: float = 5.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_once_answers_and_leaves_no_process() -> None:
    assert children.once(f"{PROBE}echo", deadline_s=10, a=[1, 2.5, None], b={"c": "ü"}) == {
        "a": [1, 2.5, None],
        "b": {"c": "ü"},
    }
    assert gone(children.once(f"{PROBE}pid", deadline_s=10))


def test_lasting_child_keeps_its_process_over_many_calls(child: Child) -> None:
    pids = {child.call(f"{PROBE}pid", deadline_s=10) for _ in range(300)}
    assert pids == {child.pid}


def test_deadline_kills_the_child_and_the_next_call_has_another(child: Child) -> None:
    before = child.call(f"{PROBE}pid", deadline_s=10)
    began = time.monotonic()
    with pytest.raises(ChildError) as caught:
        child.call(f"{PROBE}sleep", deadline_s=0.3, seconds=60)
    assert time.monotonic() - began < 5
    assert caught.value.kind == "deadline"
    assert gone(before)
    assert child.call(f"{PROBE}pid", deadline_s=10) != before


def test_deadline_counts_while_the_question_is_being_sent(child: Child) -> None:
    child.call(f"{PROBE}pid", deadline_s=10)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)  # nobody reads the pipe
    with pytest.raises(ChildError) as caught:
        child.call(f"{PROBE}size", deadline_s=0.5, text="x" * 5_000_000)
    assert caught.value.kind == "deadline"


@pytest.mark.parametrize("by", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_crash_names_the_signal_and_the_last_words(child: Child, by: signal.Signals) -> None:
    with pytest.raises(ChildError) as caught:
        child.call(f"{PROBE}die", deadline_s=10, by=int(by))
    assert caught.value.kind == "crashed"
    assert caught.value.detail == f"{by.name}: last words"
    assert child.call(f"{PROBE}echo", deadline_s=10) == {}


def test_exit_is_a_crash(child: Child) -> None:
    with pytest.raises(ChildError, match="crashed: exit code 3"):
        child.call(f"{PROBE}leave", deadline_s=10)


def test_death_between_two_calls_is_not_the_next_call_s_fault(child: Child) -> None:
    first = child.call(f"{PROBE}pid", deadline_s=10)
    os.kill(first, signal.SIGKILL)
    assert gone(first)
    assert child.call(f"{PROBE}pid", deadline_s=10) != first


def test_a_child_that_dies_before_it_begins_a_call_hands_it_on(child: Child) -> None:
    """Stopped, it takes the question and does not begin; then it dies."""
    first = child.call(f"{PROBE}pid", deadline_s=10)
    os.kill(first, signal.SIGSTOP)
    killer = threading.Timer(0.3, os.kill, (first, signal.SIGKILL))
    killer.start()
    assert child.call(f"{PROBE}pid", deadline_s=10) != first
    killer.join()


def test_exception_is_one_line_and_the_child_lives_on(child: Child) -> None:
    before = child.call(f"{PROBE}pid", deadline_s=10)
    with pytest.raises(ChildError) as caught:
        child.call(f"{PROBE}fail", deadline_s=10, message="two\nlines")
    assert (caught.value.kind, caught.value.detail) == ("raised", "LookupError: two lines")
    with pytest.raises(ChildError, match="raised: TypeError"):
        child.call(f"{PROBE}thing", deadline_s=10)
    assert child.call(f"{PROBE}pid", deadline_s=10) == before


def test_big_frames_both_ways(child: Child) -> None:
    assert child.call(f"{PROBE}size", deadline_s=30, text="x" * 30_000_000) == 30_000_000
    assert len(child.call(f"{PROBE}text", deadline_s=30, size=30_000_000)) == 30_000_000


def test_frames_beyond_the_limit_are_refused(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "MAX_FRAME", 1000)
    with pytest.raises(ValueError, match="exceed the largest frame"):
        child.call(f"{PROBE}size", deadline_s=10, text="x" * 2000)
    with pytest.raises(ChildError, match="crashed"):
        child.call(f"{PROBE}text", deadline_s=10, size=2000)


@pytest.mark.parametrize("data", ["oops", "[]", "{}", "\x00" * 9, '{"ok": 1, "error": 2}', "[" * 100_000])
def test_an_answer_that_cannot_be_read_is_a_crash(child: Child, data: str) -> None:
    before = child.call(f"{PROBE}pid", deadline_s=10)
    with pytest.raises(ChildError, match="crashed: its answer cannot be read"):
        child.call(f"{PROBE}garble", deadline_s=10, data=data)
    assert gone(before)
    assert child.call(f"{PROBE}echo", deadline_s=10) == {}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_child_that_cannot_be_started_leaves_no_open_file(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    child.call(f"{PROBE}pid", deadline_s=10)
    child.close()
    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", "/nowhere")
        for _ in range(3):
            with pytest.raises(FileNotFoundError):
                child.call(f"{PROBE}pid", deadline_s=10)
    assert open_files() == before
    child.call(f"{PROBE}pid", deadline_s=10)


def test_output_of_a_child_is_bounded(child: Child) -> None:
    for _ in range(3):
        assert child.call(f"{PROBE}chatter", deadline_s=30, lines=3000) == 3000
    with pytest.raises(ChildError, match="last words"):
        child.call(f"{PROBE}die", deadline_s=10, by=int(signal.SIGSEGV))


def test_grandchildren_go_with_the_child(child: Child) -> None:
    grandchild = child.call(f"{PROBE}grandchild", deadline_s=10, seconds=60)
    child.close()
    assert gone(grandchild)


def test_crash_is_seen_though_a_grandchild_lives(child: Child) -> None:
    began = time.monotonic()
    with pytest.raises(ChildError, match="SIGSEGV"):
        child.call(f"{PROBE}orphan", deadline_s=30, seconds=60)
    assert time.monotonic() - began < 10


def test_child_that_has_grown_is_replaced(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "MAX_GROWTH", 50 << 20)
    child.call(f"{PROBE}pid", deadline_s=10)
    grown = child.call(f"{PROBE}grow", deadline_s=10, count=200 << 20)
    assert child.call(f"{PROBE}pid", deadline_s=10) != grown
    assert gone(grown)


@pytest.mark.parametrize("function", ["os:system", "littledragon.compiler._child:_serve", "littledragon:x", "a.b"])
def test_only_our_public_functions_can_be_called(child: Child, function: str) -> None:
    with pytest.raises(ValueError, match="must be 'littledragon"):
        child.call(function, deadline_s=10)


def test_workers_are_kept_by_name_and_survive_the_thread_that_started_them() -> None:
    pids: list[int] = []
    thread = Thread(target=lambda: pids.append(children.worker("t").call(f"{PROBE}pid", deadline_s=10)))
    thread.start()
    thread.join()
    time.sleep(0.3)  # long enough for a parent-death signal of that thread
    try:
        assert children.worker("t").call(f"{PROBE}pid", deadline_s=10) == pids[0]
        assert children.worker("u").call(f"{PROBE}pid", deadline_s=10) != pids[0]
    finally:
        children.close_all()
    assert gone(pids[0])


def test_threads_share_a_worker_one_at_a_time(child: Child) -> None:
    answers: list[Any] = []
    threads = [
        Thread(target=lambda n=n: answers.append(child.call(f"{PROBE}echo", deadline_s=20, n=n))) for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer["n"] for answer in answers) == list(range(20))


def script(body: str) -> subprocess.Popen[str]:
    text = f"from littledragon.compiler import children\nimport os, sys, time\nP = {PROBE!r}\n{body}"
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)


def test_killed_parent_leaves_no_child_even_in_a_call() -> None:
    parent = script(
        "from threading import Thread\n"
        "idle, busy = children.worker('idle'), children.worker('busy')\n"
        "print(idle.call(P + 'pid', deadline_s=10), busy.call(P + 'pid', deadline_s=10), flush=True)\n"
        "busy.call(P + 'sleep', deadline_s=60, seconds=60)\n"
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert all(gone(pid) for pid in pids)


def test_parent_that_ends_normally_leaves_no_child() -> None:
    parent = script("print(children.worker('a').call(P + 'pid', deadline_s=10), flush=True)")
    out, _ = parent.communicate(timeout=30)
    assert parent.returncode == 0
    assert gone(int(out))


def test_fork_has_workers_of_its_own_and_leaves_the_parent_s_alone() -> None:
    parent = script(
        "first = children.worker('a').call(P + 'pid', deadline_s=10)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    print(children.worker('a').call(P + 'pid', deadline_s=10), flush=True)\n"
        "    children.close_all()\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "print(first, children.worker('a').call(P + 'pid', deadline_s=10), flush=True)\n"
    )
    out, _ = parent.communicate(timeout=30)
    forked, first, again = (int(word) for word in out.split())
    assert first == again != forked
