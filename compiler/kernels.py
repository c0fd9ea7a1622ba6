"""Running and timing built kernels, with the runtime part of TVM alone. Every function here runs in a child.

A kernel may crash, hang or write where it should not: the child is what that costs.
"""

import functools
import json
import math
import os
import time as clock
from typing import Any, Final

from littledragon.compiler import inputs

REPEATS: Final = 5
SETTLED: Final = 0.02
"""Warm-up ends when two batches in a row differ by less."""
WARM_UPS: Final = 6
"""Batches of warm-up at most."""
MAX_NUMBER: Final = 1_000_000


def run(library: str, specs: list[dict[str, Any]], case: int, seed: int, threads: int, out: str) -> dict[str, Any]:
    """Run a kernel once, its outputs poisoned before, and write each output to `<out>.<n>.npy`.

    Args:
        library: file of the built kernel.
        specs: how to make each argument, see `compiler/inputs.py`.
        case, seed: which inputs.
        threads: CPU threads that parallel loops may use.
        out: where to write; 16-bit and 8-bit floats other than float16 are written as float32, which holds them.

    Returns:
        `{"run_s": seconds of the run, "outputs": paths}`.
    """
    import numpy as np

    kernel, device = _load(library, threads)
    arguments = _arguments(specs, case, seed, device)
    began = clock.perf_counter()
    kernel["main"](*arguments)
    device.sync()
    seconds = clock.perf_counter() - began
    paths = []
    for number, position in enumerate(outputs(specs)):
        paths.append(f"{out}.{number}.npy")
        np.save(paths[-1], plain(arguments[position].numpy()))
    return {"run_s": seconds, "outputs": paths}


def time(library: str, specs: list[dict[str, Any]], repeat_ms: float, threads: int) -> list[float]:
    """Five repeats of a kernel, in microseconds a call, after a warm-up that ends when the clock has settled.

    Each repeat is as many calls as make it last `repeat_ms` at least, and one call where that is longer.
    """
    kernel, device = _load(library, threads)
    arguments = _arguments(specs, 0, 0, device)

    def batch(calls: int, repeats: int = 1) -> list[float]:
        # The evaluator makes one call more, before the first repeat, and waits for the device after each repeat.
        evaluator = kernel.time_evaluator("main", device, number=calls, repeat=repeats)
        return [float(seconds) for seconds in evaluator(*arguments).results]

    wanted_s = repeat_ms * 1e-3
    last = batch(1)[0]
    for _ in range(WARM_UPS if last < wanted_s else 0):
        this = batch(_number(wanted_s / 2, last))[0]
        settled = abs(this - last) <= SETTLED * this
        last = this
        if settled:
            break
    return [seconds * 1e6 for seconds in batch(_number(wanted_s, last), REPEATS)]


def time_all(kernels: list[tuple[str, list[dict[str, Any]]]], repeat_ms: float, threads: int) -> list[list[float]]:
    """`time` for each (library, specs), in this order."""
    return [time(library, specs, repeat_ms, threads) for library, specs in kernels]


def outputs(specs: list[dict[str, Any]]) -> list[int]:
    """Positions of the arguments that the kernel writes. Runs anywhere."""
    return [position for position, spec in enumerate(specs) if spec["role"] == "output"]


def plain(array: Any) -> Any:
    """The array in a dtype that `.npy` knows: bfloat16 and the 8-bit floats become float32, exactly. Runs anywhere."""
    import numpy as np

    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def _number(wanted_s: float, call_s: float) -> int:
    # 3% more, so that a repeat that happens to be fast still lasts long enough.
    return min(MAX_NUMBER, max(1, math.ceil(1.03 * wanted_s / max(call_s, 1e-9))))


def _load(library: str, threads: int) -> tuple[Any, Any]:
    # Read by TVM when its thread pool starts, with the first parallel loop.
    os.environ["TVM_NUM_THREADS"] = str(threads)
    import tvm

    return tvm.runtime.load_module(library), tvm.cpu(0) if library.endswith(".o") else tvm.cuda(0)


def _arguments(specs: list[dict[str, Any]], case: int, seed: int, device: Any) -> list[Any]:
    """Fresh copies of the arguments on the device."""
    import tvm

    return [tvm.runtime.tensor(array, device) for array in _arrays(json.dumps(specs), case, seed)]


@functools.lru_cache(maxsize=2)
def _arrays(specs: str, case: int, seed: int) -> list[Any]:
    """The arguments, kept for the next candidate of the same workload."""
    return inputs.make(json.loads(specs), case, seed)
