"""Executors with a small stage of their own: this module is one."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from distributed import LocalCluster

from littledragon.compiler import children
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.executor import Local, Serial, Threads, executor, work_here
from littledragon.pipelines.stage import Result

ME = __name__


class KindlyError(Exception):
    kind, detail = "deadline", "build: 30 s"


def work(payload, config):
    if payload == {"raise": "plain"}:
        raise ValueError("line one\nline two")
    if payload == {"raise": "kind"}:
        raise KindlyError
    if payload == {"n": 7}:
        raise ValueError("seven")
    time.sleep(0.01)
    return Result(
        {
            "t": [
                {"thread": threading.current_thread().name, "seed": config.seed, "families": config.families, **payload}
            ]
        }
    )


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setitem(sys.modules, ME, sys.modules[__name__])


def test_work_here_gives_json_like_answers():
    import dataclasses
    import json

    answer = work_here(ME, dataclasses.asdict(Config(seed=4, families=("gemm",))), "u", {"n": 1})
    json.dumps(answer)
    assert answer["id"] == "u"
    assert answer["result"]["rows"]["t"][0]["seed"] == 4
    assert answer["wall_s"] >= 0


def test_what_work_raises_is_a_failed_result():
    answers = {
        a.id: a.result for a in Serial().run(ME, Config(), iter([("p", {"raise": "plain"}), ("k", {"raise": "kind"})]))
    }
    assert (answers["p"].state, answers["p"].reason) == ("failed", "raised")
    assert answers["p"].detail.startswith("ValueError: line one\nline two (test_executor.py:")
    assert (answers["k"].state, answers["k"].reason) == ("failed", "deadline")
    assert "build: 30 s" in answers["k"].detail


def test_serial_takes_an_item_only_when_it_is_wanted():
    taken = []

    def items():
        for number in range(5):
            taken.append(number)
            yield str(number), {}

    answers = Serial().run(ME, Config(), items())
    next(answers)
    assert taken == [0]


def test_dask_takes_a_window_and_not_more():
    taken = []

    def items():
        for number in range(50):
            taken.append(number)
            yield str(number), {"n": number}

    with executor("local", workers=1) as place:
        assert isinstance(place, Local)
        answers = place.run("math", Config(), items())  # no stage: each item fails, which is an answer too
        next(answers)
        time.sleep(0.3)
        assert len(taken) <= 3
        rest = list(answers)
        assert len(rest) == 49
        assert {a.result.state for a in rest} == {"failed"}
        assert "has no attribute 'work'" in rest[0].result.detail


def test_threads_take_a_window_and_one_failure_is_one_answer():
    taken = []

    def items():
        for number in range(30):
            taken.append(number)
            yield str(number), {"n": number}

    answers = Threads(4).run(ME, Config(), items())
    first = next(answers)
    assert len(taken) <= 8
    every = [first, *answers]
    assert sorted(int(a.id) for a in every) == list(range(30))
    assert [a.id for a in every if a.result.state == "failed"] == ["7"]
    used = {a.result.rows["t"][0]["thread"] for a in every if a.result.state == "ok"}
    assert 1 < len(used) <= 4


def test_a_driver_that_stops_does_not_wait_for_its_children(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "compiler" / "probe"))
    begun = threading.Event()

    child = children.Child()
    child.start()

    def hang():
        begun.set()
        with pytest.raises(children.ChildError):
            child.call("littledragon.probe.calls:sleep", deadline_s=60, seconds=60)
        ended.set()

    def items():
        threading.Thread(target=hang).start()
        begun.wait(20)
        raise KeyboardInterrupt
        yield

    ended = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        list(Threads(1).run(ME, Config(), items()))
    assert ended.wait(20)
    with pytest.raises(children.ChildError, match="interrupted"):
        child.call("littledragon.probe.calls:pid", deadline_s=20)
    assert list(Serial().run(ME, Config(), iter([]))) == []
    assert child.call("littledragon.probe.calls:pid", deadline_s=20) > 0
    child.close()


def test_a_scheduler_elsewhere():
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp"
    ) as cluster:
        with executor(cluster.scheduler_address) as place:
            answers = list(place.run("math", Config(), iter([("a", {}), ("b", {})])))
        assert sorted(a.id for a in answers) == ["a", "b"]
        cluster.scale(0)


def test_nobody_at_the_address():
    with pytest.raises(UserError, match="no Dask scheduler answers there"), executor("tcp://127.0.0.1:9"):
        pass


@pytest.mark.parametrize("name", ["", "dask", "http://localhost:1", "tcp:/x"])
def test_an_unknown_executor(name):
    with pytest.raises(UserError, match="choose serial, local, or tcp://"), executor(name):
        pass


@pytest.mark.parametrize("name", ["tcp://", "tcp://nohost", "tcp://a:b:c"])
def test_an_address_that_is_none(name):
    with pytest.raises(UserError, match="no Dask scheduler answers"), executor(name):
        pass


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_while_workers_start(tmp_path, signals):
    code = f"""
import os, signal, sys, time
from littledragon.pipelines.executor import _first_signal_waits
stood = False
def stop(number, frame):
    print("stopped", stood)
    sys.exit(7)
signal.signal(signal.SIGTERM, stop)
with _first_signal_waits():
    for _ in range({signals}):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
    stood = True
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (7, f"stopped {signals == 1}\n"), done.stderr


def test_a_run_that_is_ended_while_workers_start(tmp_path):
    code = """
import signal, threading, os
from littledragon.pipelines import cli
import distributed, littledragon.pipelines.driver
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
cli.sys.argv[1:] = ["workloads", "--device", "simulated", "--executor", "local", "--workers", "1"]
cli.main()
"""
    place = {**os.environ, "DRAGON_WORKDIR": str(tmp_path / "work")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=place, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 143, done.stderr
    assert "Traceback" not in done.stderr
