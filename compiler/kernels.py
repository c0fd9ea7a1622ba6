"""Running and timing built kernels, with the runtime part of TVM alone. Every function here runs in a child.

A kernel may crash, hang or write where it should not: the child is what that costs.
"""

import functools
import json
import math
import os
import time as clock
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from littledragon.compiler import cuda_clock, inputs

REPEATS: Final = 5
SETTLED: Final = 0.02
"""Warm-up ends when two batches in a row differ by less."""
WARM_UPS: Final = 6
"""Batches of warm-up at most."""
MAX_NUMBER: Final = 1_000_000
SLOW_S: Final = 0.25
"""A kernel that runs longer is not timed by `measure`: who asks must first know how long that may take."""
KEPT_BYTES: Final = 4 << 30
"""Arguments that are kept ready, on the device or for it, for the next candidate of their workload."""

Specs = list[dict[str, Any]]


def write(specs: Specs, arrays: list[Any], out: str) -> list[str | None]:
    """Write each argument of one input case to `<out>.<n>.npy`, for `measure` and `time_all`; None for outputs.

    Children keep what they have read by its path: other arguments need another `out`.
    Types that `.npy` does not know are written as the bytes that they are.
    """
    import numpy as np

    paths: list[str | None] = []
    for number, (spec, array) in enumerate(zip(specs, arrays, strict=True)):
        paths.append(None if spec["role"] == "output" else f"{out}.{number}.npy")
        if paths[-1] is not None:
            np.save(paths[-1], array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}"))
    return paths


def measure(
    library: str,
    specs: Specs,
    arrays: list[str | None],
    threads: int,
    repeat_ms: float,
    hopeless_s: float | None,
    guard: bool,
    out: str | None,
) -> dict[str, Any]:
    """Run a kernel on prepared arguments, its outputs poisoned before, and time it right away.

    Without `out`, what the run left stays in this process until `save` is called, which does not need the device.

    Args:
        library: file of the built kernel.
        specs: how to make each argument, see `compiler/inputs.py`.
        arrays: what `write` gave for these specs.
        threads: CPU threads that parallel loops may use.
        repeat_ms: of the repeats, see `time_all`.
        hopeless_s: a kernel that ran longer is not timed.
        guard: whether to look at the inputs afterwards.
        out: where to write the outputs, as `save` does.

    Returns:
        `{"run_s", "repeats_us", "left"}`: `repeats_us` is null where the run took longer than `hopeless_s` or `SLOW_S`;
        `left` is what `save` gives, null without `out`.
    """
    loaded = _load(library, threads)
    pristine = _pristine(specs, arrays, library)
    arguments = _arguments(pristine, library)
    seconds, found = _run(loaded, arguments, specs)
    after = {
        number: argument.numpy()
        for number, (argument, path) in enumerate(zip(arguments, arrays, strict=True))
        if guard and path is not None
    }
    _unsaved[:] = [_Left(specs, arrays, found, after)]
    left = None if out is None else save(out)
    limit = min(SLOW_S, hopeless_s if hopeless_s is not None else SLOW_S)
    repeats = _time(loaded, arguments, repeat_ms) if seconds <= limit else None
    return {"run_s": seconds, "repeats_us": repeats, "left": left}


def fetch(specs: Specs, arrays: list[str | None]) -> None:
    """Read prepared arguments from the disk, unless this process has them, for the `measure` that comes next."""
    key = _key(specs, arrays)
    if key not in _kept:
        _read[:] = [(key, _host(specs, arrays))]


def save(out: str) -> dict[str, list[str]]:
    """Write the outputs of the last `measure` to `<out>.<n>.npy`, and look what it did to its inputs.

    16-bit and 8-bit floats other than float16 are written as float32, which holds them.

    Returns:
        `{"outputs": paths, "overwritten": names of inputs that the run changed, as far as they were looked at}`.

    Raises:
        LookupError: this process holds none.
    """
    if not _unsaved:
        raise LookupError("nothing was measured in this process")
    left = _unsaved.pop()
    return {"outputs": _saved(left.outputs, out), "overwritten": _overwritten(left)}


@dataclass(frozen=True)
class _Left:
    """What a run left: its outputs, and by their positions the inputs that are to be looked at."""

    specs: Specs
    arrays: list[str | None]
    outputs: list[Any]
    inputs: dict[int, Any]


_unsaved: list[_Left] = []
_read: list[tuple[str, list[Any]]] = []


def time_all(
    kernels: list[str], specs: Specs, arrays: list[str | None], repeat_ms: float, threads: int
) -> list[list[float]]:
    """Five repeats of each kernel (files), in microseconds a call, after a warm-up that ends when the clock settled.

    Each repeat is as many calls as make it last `repeat_ms` at least, and one call where that is longer. On a GPU it is
    the device's time (`compiler/cuda_clock.py`); caches are as the call before left them.
    """
    found = []
    for library in kernels:
        loaded = _load(library, threads)
        found.append(_time(loaded, _arguments(_pristine(specs, arrays, library), library), repeat_ms))
    return found


def clocks(library: str, specs: Specs, arrays: list[str | None], repeat_ms: float) -> dict[str, float | None]:
    """What three clocks say of one kernel on a GPU, in microseconds a call: `loop`, events around a loop of launches;
    `graph`, what `time_all` goes by; `cupti`, the sum of its kernels' own durations, null without CUPTI's bindings."""
    loaded = _load(library, 1)
    arguments = _arguments(_pristine(specs, arrays, library), library)
    function, ticking = loaded.module["main"], _clock()

    def launch() -> None:
        function(*arguments)

    launch()
    loaded.device.sync()
    number = _number(repeat_ms * 1e-3, ticking.time_loop(launch, 3))
    loop = sorted(ticking.time_loop(launch, number) * 1e6 for _ in range(REPEATS))[REPEATS // 2]
    graph = sorted(_time(loaded, arguments, repeat_ms))[REPEATS // 2]
    return {"loop": loop, "graph": graph, "cupti": cuda_clock.kernels_us(launch, min(number, 200), loaded.device.sync)}


def outputs(specs: Specs) -> list[int]:
    """Positions of the arguments that the kernel writes. Runs anywhere."""
    return [position for position, spec in enumerate(specs) if spec["role"] == "output"]


def plain(array: Any) -> Any:
    """The array in a dtype that `.npy` knows: bfloat16 and the 8-bit floats become float32, exactly. Runs anywhere."""
    import numpy as np

    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


@dataclass(frozen=True)
class _Loaded:
    module: Any
    device: Any

    @property
    def cuda(self) -> bool:
        return bool(self.device.dlpack_device_type() != 1)


def _load(library: str, threads: int) -> _Loaded:
    # Read by TVM when its thread pool starts, with the first parallel loop.
    os.environ["TVM_NUM_THREADS"] = str(threads)
    import tvm

    return _Loaded(tvm.runtime.load_module(library), _device(library))


def _device(library: str) -> Any:
    import tvm

    return tvm.cpu(0) if library.endswith(".o") else tvm.cuda(0)


def _run(loaded: _Loaded, arguments: list[Any], specs: Specs) -> tuple[float, list[Any]]:
    """Seconds of one run, and the outputs."""
    function, device = loaded.module["main"], loaded.device
    began = clock.perf_counter()
    function(*arguments)
    device.sync()
    seconds = clock.perf_counter() - began
    return seconds, [arguments[position].numpy() for position in outputs(specs)]


def _saved(found: list[Any], out: str) -> list[str]:
    import numpy as np

    paths = [f"{out}.{number}.npy" for number in range(len(found))]
    for path, array in zip(paths, found, strict=True):
        np.save(path, plain(array))
    return paths


def _time(loaded: _Loaded, arguments: list[Any], repeat_ms: float) -> list[float]:
    wanted_s = repeat_ms * 1e-3
    if loaded.cuda:
        return _time_on_gpu(loaded, arguments, wanted_s)

    def batch(calls: int, repeats: int = 1) -> list[float]:
        # The evaluator makes one call more, before the first repeat, and waits for the device after each repeat.
        evaluator = loaded.module.time_evaluator("main", loaded.device, number=calls, repeat=repeats)
        return [float(seconds) for seconds in evaluator(*arguments).results]

    last = _settled(lambda number: batch(number)[0], wanted_s)
    return [seconds * 1e6 for seconds in batch(_number(wanted_s, last), REPEATS)]


def _time_on_gpu(loaded: _Loaded, arguments: list[Any], wanted_s: float) -> list[float]:
    function, ticking = loaded.module["main"], _clock()

    def launch() -> None:
        function(*arguments)

    launch()
    loaded.device.sync()
    one_s = ticking.time_loop(launch, 3)
    graph = ticking.capture(launch, cuda_clock.launches(one_s))
    try:

        def batch(calls: int) -> float:
            return graph.time(max(1, math.ceil(calls / graph.launches)))

        last = _settled(batch, wanted_s)
        return [batch(_number(wanted_s, last)) * 1e6 for _ in range(REPEATS)]
    finally:
        graph.close()


def _settled(batch: Callable[[int], float], wanted_s: float) -> float:
    """Warm up until the clock has settled; gives what one call takes. `batch(calls)` is seconds a call."""
    last = batch(1)
    for _ in range(WARM_UPS if last < wanted_s else 0):
        this = batch(_number(wanted_s / 2, last))
        settled = abs(this - last) <= SETTLED * this
        last = this
        if settled:
            break
    return last


@functools.cache
def _clock() -> cuda_clock.Clock:
    return cuda_clock.Clock()


def _number(wanted_s: float, call_s: float) -> int:
    # 3% more, so that a repeat that happens to be fast still lasts long enough.
    return min(MAX_NUMBER, max(1, math.ceil(1.03 * wanted_s / max(call_s, 1e-9))))


def _arguments(pristine: list[Any], library: str) -> list[Any]:
    """Fresh copies of the arguments on the device."""
    import tvm

    device = _device(library)
    if pristine and not hasattr(pristine[0], "copyto"):
        return [tvm.runtime.tensor(array, device) for array in pristine]
    copies = [tvm.runtime.empty(kept.shape, kept.dtype, device) for kept in pristine]
    for kept, copy in zip(pristine, copies, strict=True):
        kept.copyto(copy)
    return copies


def _pristine(specs: Specs, arrays: list[str | None], library: str) -> list[Any]:
    """The arguments as they were prepared: arrays on a CPU, tensors on a GPU, where copying one costs next to nothing.

    A kernel may spoil what is kept on a GPU. Then the next one's outputs are wrong, and who asked tries it again
    in a fresh process.
    """
    import tvm

    key = _key(specs, arrays)
    if key not in _kept:
        made = next((read for of, read in _read if of == key), None) or _host(specs, arrays)
        _read.clear()
        size = sum(array.nbytes for array in made)
        device = _device(library)
        _kept[key] = (made if library.endswith(".o") else [tvm.runtime.tensor(array, device) for array in made], size)
    _kept.move_to_end(key)
    while len(_kept) > 1 and sum(size for _, size in _kept.values()) > KEPT_BYTES:
        _kept.popitem(last=False)
    return _kept[key][0]


_kept: OrderedDict[str, tuple[list[Any], int]] = OrderedDict()


def _key(specs: Specs, arrays: list[str | None]) -> str:
    return json.dumps([specs, arrays])


def _host(specs: Specs, arrays: list[str | None]) -> list[Any]:
    return [_array(spec, path) for spec, path in zip(specs, arrays, strict=True)]


def _array(spec: dict[str, Any], path: str | None) -> Any:
    import numpy as np

    from littledragon.compiler.features import numpy_dtype

    if path is None:
        return inputs.make([spec], 0, 0)[0]  # poison
    return np.load(path, allow_pickle=False).view(numpy_dtype(spec["dtype"]))


def _overwritten(left: _Left) -> list[str]:
    """Names of the inputs that are not what they were."""
    import numpy as np

    changed = []
    for number, now in left.inputs.items():
        before = np.load(str(left.arrays[number]), mmap_mode="r", allow_pickle=False)
        if not np.array_equal(now.reshape(-1).view(np.uint8), before.reshape(-1).view("u1")):
            changed.append(str(left.specs[number]["name"]))
    return changed
