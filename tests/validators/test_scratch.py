"""Folders of a process's own: kept while it lives, gone after it, however it ends."""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from littledragon.validators import scratch

BODY = (
    "import sys, time; from littledragon.validators import scratch\n"
    "path = scratch.folder('own'); (path / 'file').write_text('x'); print(path, flush=True); sys.stdin.read()\n"
)


@pytest.fixture(autouse=True)
def _base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def process() -> tuple["subprocess.Popen[str]", Path]:
    started = subprocess.Popen(
        [sys.executable, "-c", BODY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert started.stdout is not None
    return started, Path(started.stdout.readline().strip())


def test_a_folder_goes_with_its_process(tmp_path: Path) -> None:
    started, path = process()
    assert (path / "file").exists()
    started.communicate(timeout=20)
    assert started.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_s_folder_is_swept_and_a_living_one_s_is_not(tmp_path: Path) -> None:
    killed, left = process()
    living, kept = process()
    killed.kill()
    killed.wait()
    assert left.exists()
    mine = scratch.folder("own")
    assert set(tmp_path.iterdir()) == {kept, mine}
    assert (kept / "file").exists()
    other = scratch.folder("other")
    assert set(tmp_path.iterdir()) == {kept, mine, other}
    living.communicate(timeout=20)


def test_what_is_no_folder_of_ours_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "own-link").symlink_to(target)
    (tmp_path / "own-file").write_text("x")
    scratch.folder("own")
    assert target.exists()
    assert (tmp_path / "own-file").exists()


def test_a_block_s_folder_goes_with_the_block() -> None:
    with scratch.temporary("search") as folder:
        (folder / "kernel").write_text("x")
        assert folder.parent.name.startswith("dragon-scratch-")
    assert not folder.exists()
    assert folder.parent.exists()


def test_what_a_killed_process_had_not_yet_locked_is_swept_and_a_living_one_s_is_not(tmp_path: Path) -> None:
    body = (
        "import os, signal; from littledragon.validators import scratch\n"
        "scratch.fcntl.flock = lambda *_: None\n"
        "scratch.Path.rename = lambda *_: os.kill(os.getpid(), signal.{})\nscratch.folder('own')\n"
    )
    killed = subprocess.run([sys.executable, "-c", body.format("SIGKILL")], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".own-")
    stopped = subprocess.Popen([sys.executable, "-c", body.format("SIGSTOP")])
    try:
        for _ in range(3000):
            if found := {*tmp_path.iterdir()} - {left}:
                break
            time.sleep(0.01)
        mine = scratch.folder("own")
        assert set(tmp_path.iterdir()) == {mine, *found}
        assert len(found) == 1
    finally:
        stopped.kill()
        stopped.wait(60)
