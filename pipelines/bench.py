"""`dragon bench NAME`: what is fast is measured here, against something, both sides in one run, by turns."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from littledragon.pipelines.errors import UserError

TURNS: Final = 11
_EMPTY_CLI: Final = "import click; click.Group('empty').main(['--help'], standalone_mode=False)"


def bench(name: str, console: Console, **options: Any) -> int:
    """Run one benchmark and print it; the exit code, 1 where what was measured is wrong.

    options: those of the benchmark's `measure`; help has none.

    Raises:
        UserError: there is no benchmark of that name, or it has no such option.
    """
    _require_options(name, options)
    if name == "tsel":
        from littledragon.pipelines import bench_tsel

        return bench_tsel.measure(console, **options)
    if name == "workloads":
        from littledragon.pipelines import bench_workloads

        return bench_workloads.measure(console, **options)
    if name == "schedulable":
        from littledragon.pipelines import bench_schedulable

        return bench_schedulable.measure(console, **options)
    if name == "builds":
        from littledragon.pipelines import bench_builds

        return bench_builds.measure(console, **options)
    if name == "device":
        from littledragon.pipelines import bench_device

        return bench_device.measure(console, **options)
    if name == "search":
        from littledragon.pipelines import bench_search

        return bench_search.measure(console, **options)
    if name != "help":
        raise UserError(f"unknown benchmark '{name}': choose one of {', '.join(sorted(_OPTIONS))}")
    _help(console)
    return 0


_OPTIONS: Final[dict[str, set[str]]] = {
    "builds": {"sample", "seed", "out"},
    "device": {"sample", "seed", "jobs", "out"},
    "help": set(),
    "schedulable": {"workdir", "sample", "jobs", "seed", "out"},
    "search": {
        "target",
        "device",
        "zoo",
        "limit",
        "workloads",
        "trials",
        "per_round",
        "stock",
        "jobs",
        "seed",
        "warm_up",
        "timeout",
        "peers",
        "workdir",
        "out",
    },
    "tsel": {"traces", "jobs", "seed", "families", "out"},
    "workloads": {"zoo", "jobs", "seed", "workdir"},
}


def _require_options(name: str, options: dict[str, Any]) -> None:
    if wrong := sorted(options.keys() - _OPTIONS.get(name, options.keys())):
        raise UserError(f"bench {name} has no option {', '.join('--' + option for option in wrong)}")
    if name == "schedulable" and "workdir" not in options:
        raise UserError("bench schedulable: give the work directory of a run of `dragon workloads` as --workdir")


def _help(console: Console) -> None:
    """`dragon --help` against a click command line without commands: what our imports cost a user who only asks."""
    ours = [sys.executable, "-m", "littledragon.pipelines.cli", "--help"]
    peer = [sys.executable, "-c", _EMPTY_CLI]
    _versus(console, "dragon --help", lambda: _run(ours), "empty click command", lambda: _run(peer))


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)


def _versus(console: Console, ours: str, run: Callable[[], None], peer: str, run_peer: Callable[[], None]) -> None:
    """Time both sides by turns after one unmeasured turn; print medians, ranges and the ratio of each turn."""
    run()
    run_peer()
    pairs = [(_seconds(run), _seconds(run_peer)) for _ in range(TURNS)]
    table = Table("", "median s", "least s", "most s")
    for name, times in ((ours, [a for a, _ in pairs]), (peer, [b for _, b in pairs])):
        table.add_row(name, *(f"{value:.3f}" for value in (statistics.median(times), min(times), max(times))))
    ratios = sorted(a / b for a, b in pairs)
    console.print(table)
    console.print(
        f"ratio {statistics.median(ratios):.2f} (from {ratios[0]:.2f} to {ratios[-1]:.2f} over {TURNS} turns, "
        f"{ours} over {peer})"
    )


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
