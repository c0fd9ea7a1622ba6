"""Leases, with real processes where a process matters. tests/chaos has whole drivers in contention."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from littledragon.pipelines import lease
from littledragon.pipelines.errors import UserError


def held_by(folder: Path, **values: object) -> Path:
    """A lease as a process of this machine that is alive (our parent) would hold it."""
    path = folder / "search" / "lease.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    holder = {"host": socket.gethostname(), "space": lease._process_space(), "token": "theirs", "since": "then"}
    path.write_text(json.dumps({**holder, **lease._process(os.getppid()), **values}))
    return path


def test_a_lease_is_held_and_given_back(tmp_path):
    with lease.acquire(tmp_path, "search") as mine:
        mine.check()
        assert json.loads(mine.path.read_text())["pid"] == os.getpid()
        assert f"process {os.getpid()}" in (lease.holder(tmp_path, "search") or "")
        with pytest.raises(UserError, match=f"process {os.getpid()} on .*dragon status"):
            lease.acquire(tmp_path, "search")
        with lease.acquire(tmp_path, "verify"):
            pass
    assert not mine.path.exists()
    assert lease.holder(tmp_path, "search") is None
    with lease.acquire(tmp_path, "search"):
        pass


def test_leases_of_all_stages_or_of_none(tmp_path):
    with lease.acquire(tmp_path, "verify"):
        with pytest.raises(UserError, match="verify"), lease.acquire_all(tmp_path, ["search", "verify"]):
            pass
        assert not (tmp_path / "search" / "lease.json").exists()


def test_a_heartbeat_from_the_future_is_none(tmp_path):
    path = held_by(tmp_path, host="elsewhere")
    os.utime(path, (time.time() + 86400,) * 2)
    assert lease.holder(tmp_path, "search") is None
    with lease.acquire(tmp_path, "search") as mine:
        mine.check()
    path = held_by(tmp_path, host="elsewhere")
    os.utime(path, (time.time() + 20,) * 2)
    assert lease.holder(tmp_path, "search"), "clocks of two machines differ a little"


@pytest.mark.parametrize("text", ["[" * 50_000, "\xff", "", "[]"])
def test_a_damaged_lease_is_held_by_nobody_known(tmp_path, text):
    path = held_by(tmp_path)
    path.write_text(text, encoding="latin-1")
    assert "process ?" in (lease.holder(tmp_path, "search") or "")
    os.utime(path, (1, 1))
    with lease.acquire(tmp_path, "search") as mine:
        mine.check()


def test_the_heartbeat_touches_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "HEARTBEAT_S", 0.02)
    with lease.acquire(tmp_path, "search") as mine:
        os.utime(mine.path, (1, 1))
        until = time.monotonic() + 10
        while mine.path.stat().st_mtime == 1:
            assert time.monotonic() < until
            time.sleep(0.01)


@pytest.mark.parametrize(
    "values",
    [
        {"pid": 2**22 + 1},
        {"process_started": 1.0},
        {"pid": None},
        {"pid": "x"},
    ],
)
def test_a_dead_driver_of_this_machine_loses_it_at_once(tmp_path, values):
    held_by(tmp_path, **values)
    with lease.acquire(tmp_path, "search") as mine:
        mine.check()


def test_a_killed_driver_that_nobody_waited_for_is_dead(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    held_by(tmp_path, **lease._process(process.pid))
    with pytest.raises(UserError):
        lease.acquire(tmp_path, "search")
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the process table
    with lease.acquire(tmp_path, "search"):
        pass
    process.wait()


@pytest.mark.parametrize("values", [{}, {"host": "elsewhere"}, {"space": "another container", "pid": 1}])
def test_a_silent_driver_loses_it_after_a_minute_wherever_it_is(tmp_path, values):
    path = held_by(tmp_path, **values)
    with pytest.raises(UserError, match="is being run by"):
        lease.acquire(tmp_path, "search")
    os.utime(path, (time.time() - 59, time.time() - 59))
    with pytest.raises(UserError, match="is being run by"):
        lease.acquire(tmp_path, "search")
    os.utime(path, (time.time() - 61, time.time() - 61))
    with lease.acquire(tmp_path, "search"):
        pass


def test_who_lost_its_lease_says_so_and_leaves_the_new_one_alone(tmp_path):
    with lease.acquire(tmp_path, "search") as mine:
        path = held_by(tmp_path)
        with pytest.raises(UserError, match="lost its lease"):
            mine.check()
    assert json.loads(path.read_text())["token"] == "theirs"
    path.unlink()
    with pytest.raises(UserError, match="lost its lease"):
        mine.check()


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_an_unreadable_lease_is_one_of_a_dead_driver_after_a_minute(tmp_path, text):
    path = held_by(tmp_path)
    path.write_text(text)
    os.utime(path, (1, 1))
    with lease.acquire(tmp_path, "search") as mine:
        mine.check()
