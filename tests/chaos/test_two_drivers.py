"""Two drivers on one work directory: one works, the other says who it is; a dead one's lease passes on."""

import os
import signal

from littledragon.pipelines.store import Store


def test_the_second_driver_is_told_who_holds_the_stage(toy):
    first = toy.start(ms=100)
    assert toy.wait_for(1, first)
    code, said = toy.run()
    assert code == 2
    assert said.startswith("error: ")
    assert f"process {first.pid} on " in said
    _, said = first.communicate(timeout=30)
    assert first.returncode == 0, said
    assert len(toy.worked()) == 24


def test_of_many_drivers_at_once_one_works(toy):
    Store.open(toy.workdir, create=True)
    drivers = [toy.start(ms=60) for _ in range(6)]
    said = [driver.communicate(timeout=60)[1] for driver in drivers]
    codes = [driver.returncode for driver in drivers]
    assert sorted(set(codes)) == [0, 2], said
    assert len(toy.worked()) == 24, "each unit was worked on once, by whichever driver held the lease"


def test_a_stopped_driver_that_lost_its_lease_commits_nothing_more(toy):
    first = toy.start(ms=40)
    assert toy.wait_for(2, first)
    os.kill(first.pid, signal.SIGSTOP)
    lease = toy.workdir / "workloads" / "lease.json"
    os.utime(lease, (1, 1))  # as if it had been silent for long
    assert toy.run(ms=1)[0] == 0
    kept = sorted(p.stat().st_mtime_ns for p in toy.workdir.glob("workloads/*/*.parquet"))
    os.kill(first.pid, signal.SIGCONT)
    _, said = first.communicate(timeout=30)
    assert first.returncode == 2
    assert "lost its lease" in said
    assert sorted(p.stat().st_mtime_ns for p in toy.workdir.glob("workloads/*/*.parquet")) == kept
