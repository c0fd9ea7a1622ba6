"""A disk that fills up: one clear line, nothing half-written, and the next run goes on."""

import contextlib
import os
import resource
from pathlib import Path

import pytest

from littledragon.pipelines.errors import UserError
from littledragon.pipelines.files import replace
from littledragon.pipelines.store import Store


def leftovers(place: Path) -> list[Path]:
    return [path for path in place.rglob(".*") if path.name.endswith(".tmp")]


@pytest.mark.parametrize("executor", ["serial", pytest.param("local", marks=pytest.mark.slow)])
def test_a_full_disk_is_one_line_and_the_next_run_goes_on(small_disk, toy, executor):
    toy.workdir = small_disk / "work"
    ballast = small_disk / "ballast"
    Store.open(toy.workdir, create=True)
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
    os.truncate(ballast, ballast.stat().st_size - 64 * 1024)  # a few units fit
    code, said = toy.run(executor, ms=1)
    assert code == 2, said
    assert said.splitlines()[-1].startswith("error: ")
    assert "the disk is full: free some space" in said
    assert "Traceback" not in said
    assert not leftovers(small_disk)
    finished = set(Store.open(toy.workdir).complete("workloads"))
    assert finished, "some units fitted"
    ballast.unlink()
    begun = len(toy.worked())
    code, said = toy.run(executor, ms=1)
    assert code == 0, said
    assert not finished & set(toy.worked()[begun:])
    assert len(Store.open(toy.workdir).complete("workloads")) == 24


def test_a_file_size_limit_leaves_the_old_file(tmp_path):
    path = tmp_path / "kept"
    replace(path, lambda stream: stream.write(b"old"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(UserError, match="may not grow that large"):
            replace(path, lambda stream: stream.write(bytes(100_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
