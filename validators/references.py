"""What workloads should compute: arguments and expected outputs of each input case, made once and kept on disk.

They are made in a CPU slot, so the device never waits for random numbers; whoever needs those of one workload waits for
them, and nobody else does. The folder goes with the process. What is in use is never thrown out; of the rest, the
latest stay, up to `KEPT_BYTES`.
"""

import contextlib
import functools
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from littledragon.compiler.children import ChildError
from littledragon.validators import scratch
from littledragon.validators.device import Workload
from littledragon.validators.numerics import Rounding

KEPT_BYTES: Final = 4 << 30
_MACHINE: Final = re.compile(r"\[Errno |MemoryError|bad_alloc|requested and \d+ written", re.ASCII)
"""What a child says when the machine refused it something, a full disk say: another time it may not."""


@dataclass
class Reference:
    """Of one workload and seed: paths of its prepared arguments and of its expected outputs, by case."""

    rounding: Rounding = field(default_factory=Rounding)
    arguments: dict[int, list[str | None]] = field(default_factory=dict)
    outputs: dict[int, list[str]] = field(default_factory=dict)
    size: int = 0
    users: int = 0
    failed: dict[int, ChildError] = field(default_factory=dict)
    """Cases that cannot be made of this program, and why: that is found out once."""
    locks: dict[int, threading.Lock] = field(default_factory=dict)
    """One a case: cases are made beside each other."""

    def paths(self) -> list[str]:
        """Every file of it."""
        made = [path for paths in self.arguments.values() for path in paths if path is not None]
        return [*made, *(path for paths in self.outputs.values() for path in paths)]


Call = Callable[..., Any]
"""Calls a function of ours in a child: `Slots.call` with a deadline."""


class References:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._folder = scratch.folder("dragon-references")
        self._lock = threading.Lock()
        self._made: OrderedDict[str, Reference] = OrderedDict()

    @contextlib.contextmanager
    def of(
        self, workload: Workload, cases: Sequence[int], seed: int, target: dict[str, Any], call: Call
    ) -> Iterator[Reference]:
        """The reference of a workload with these cases, made where it is missing, and kept while the block lasts.

        Args:
            target: the llvm target that it is compiled for.

        Raises:
            ChildError: it could not be made.
        """
        key = f"{workload.key}-{seed}"
        with self._held(key):
            reference = self._made[key]

            refused: dict[int, ChildError] = {}

            def make(case: int) -> None:
                with reference.locks[case]:
                    if case not in reference.outputs and case not in reference.failed:
                        try:
                            self._make(reference, workload, case, seed, target, call)
                        except ChildError as error:
                            passing = error.interrupted or _MACHINE.search(error.detail)
                            (refused if passing else reference.failed)[case] = error

            with self._lock:
                for case in cases:
                    reference.locks.setdefault(case, threading.Lock())
            missing = [case for case in cases if case not in reference.outputs and case not in reference.failed]
            if missing:
                with ThreadPoolExecutor(len(missing)) as pool:
                    list(pool.map(make, missing))
            failed = {**reference.failed, **refused}
            for case in cases:
                if case in failed:
                    raise failed[case]
            yield reference

    def hold(self, workload: Workload, seed: int) -> contextlib.AbstractContextManager[None]:
        """Keep what there is of a workload's reference, or will be, for as long as the block lasts."""
        return self._held(f"{workload.key}-{seed}")

    @contextlib.contextmanager
    def _held(self, key: str) -> Iterator[None]:
        with self._lock:
            reference = self._made.setdefault(key, Reference())
            reference.users += 1
            self._made.move_to_end(key)
        try:
            yield
        finally:
            with self._lock:
                reference.users -= 1
                self._evict()

    def _make(
        self, reference: Reference, workload: Workload, case: int, seed: int, target: dict[str, Any], call: Call
    ) -> None:
        out = str(self._folder / f"{workload.key}-{seed}")
        answer = call(
            "littledragon.compiler.reference:reference",
            module=workload.module,
            target=target,
            specs=workload.specs,
            cases=[case],
            seed=seed,
            out=out,
        )
        with self._lock:
            reference.arguments[case] = answer["arguments"][str(case)]
            reference.rounding = Rounding.of(answer["rounding"])
            reference.outputs[case] = answer["outputs"][str(case)]
            reference.size = sum(Path(path).stat().st_size for path in reference.paths())

    def _evict(self) -> None:
        for key, reference in list(self._made.items()):
            if sum(kept.size for kept in self._made.values()) <= KEPT_BYTES:
                return
            if reference.users == 0:
                del self._made[key]
                for path in reference.paths():
                    Path(path).unlink(missing_ok=True)


def references() -> References:
    """This process's."""
    return _references(os.getpid())


@functools.cache
def _references(owner: int) -> References:
    return References()
