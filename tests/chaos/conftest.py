"""The toy driver as real processes, for tests that kill, starve and double them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@dataclass
class Toy:
    """Drivers of one work directory, and the notes of what they worked on."""

    workdir: Path
    notes: Path

    def start(
        self, executor: str = "serial", *, seed: int = 0, ms: float = 30, retry: bool = False
    ) -> subprocess.Popen:
        command = [sys.executable, str(HERE / "toydriver.py"), self.workdir, self.notes, executor, str(seed), str(ms)]
        env = {**os.environ, "PYTHONPATH": str(HERE)}  # Dask's workers import the toy stage by its name
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(
            [*map(str, command), *(["retry"] if retry else [])], env=env, start_new_session=True, **pipes
        )

    def run(self, executor: str = "serial", **options: object) -> tuple[int, str]:
        process = self.start(executor, **options)
        _, said = process.communicate(timeout=60)
        return process.returncode, said

    def worked(self) -> list[str]:
        return self.notes.read_text(encoding="ascii").split() if self.notes.exists() else []

    def wait_for(self, count: int, process: subprocess.Popen, deadline_s: float = 30) -> bool:
        """Until so many units were begun; False when the driver ended before."""
        until = time.monotonic() + deadline_s
        while len(self.worked()) < count:
            if process.poll() is not None:
                return False
            assert time.monotonic() < until, f"only {len(self.worked())} of {count} units were begun"
            time.sleep(0.005)
        return True


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "work", tmp_path / "notes")


@pytest.fixture
def other_toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "other", tmp_path / "other notes")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], check=False, capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)
