"""Device time of CUDA kernels: launches captured once as a graph, replayed between two events.

A host launches a kernel every 4 to 6 µs at best, and not evenly, so below some 8 µs an evaluator that calls the kernel
in a loop times the host. A graph is launched once for all of its kernels, which then follow one another on the device
within about a microsecond; what is left of the host is one launch for each graph. Long kernels give the same figure as
events around a loop. Every function here runs in a child that may use the device.
"""

import math
from collections.abc import Callable
from typing import Any, Final

MOST_LAUNCHES: Final = 256
"""Launches of a kernel in one graph, at most…"""
GRAPH_S: Final = 1e-3
"""…and as many as last so long, so that the gap between two graphs, some microseconds, is lost in them."""


class CudaError(RuntimeError):
    """What the driver said; after most errors the process cannot use the device any more."""


def checked(answer: tuple[Any, ...]) -> Any:
    """The value of a driver's call, of which the first element is its error.

    Raises:
        CudaError: it is one.
    """
    error, *values = answer
    if int(error) != 0:
        raise CudaError(f"CUDA driver: {getattr(error, 'name', error)}")
    return values[0] if values else None


class Clock:
    """Times launches on a stream of its own. The device's primary context must be current in this thread."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._stream = checked(driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))
        # Who waits for an event sleeps: the core belongs to those who build.
        flags = int(driver.CUevent_flags.CU_EVENT_BLOCKING_SYNC)
        self._ends = [checked(driver.cuEventCreate(flags)) for _ in range(2)]

    def capture(self, launch: Callable[[], None], launches: int) -> "Graph":
        """A graph of `launches` calls of `launch`, which must have run before: memory cannot be allocated now.

        Raises:
            CudaError: the driver refuses, as where the call waits for the device.
        """
        import tvm_ffi

        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), int(self._stream)):
            checked(self._driver.cuStreamBeginCapture(self._stream, mode))
            try:
                for _ in range(launches):
                    launch()
            finally:
                graph = checked(self._driver.cuStreamEndCapture(self._stream))
        return Graph(self, graph, launches)

    def time(self, work: Callable[[], None]) -> float:
        """Seconds that the device takes for what `work` puts on the stream."""
        driver, (start, end) = self._driver, self._ends
        checked(driver.cuEventRecord(start, self._stream))
        work()
        checked(driver.cuEventRecord(end, self._stream))
        checked(driver.cuEventSynchronize(end))
        return float(checked(driver.cuEventElapsedTime(start, end))) * 1e-3

    def time_loop(self, launch: Callable[[], None], launches: int) -> float:
        """Seconds a launch of `launches` in a loop, between events: what the host can launch, where that is slower."""
        import tvm_ffi

        def loop() -> None:
            for _ in range(launches):
                launch()

        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), int(self._stream)):
            return self.time(loop) / launches


class Graph:
    """Captured launches, ready to run; `close` frees them."""

    def __init__(self, clock: Clock, graph: Any, launches: int) -> None:
        self._clock, self._graph, self.launches = clock, graph, launches
        self._ready = checked(clock._driver.cuGraphInstantiate(graph, 0))

    def time(self, replays: int) -> float:
        """Seconds a launch, over so many replays."""
        driver, stream = self._clock._driver, self._clock._stream

        def replay() -> None:
            for _ in range(replays):
                checked(driver.cuGraphLaunch(self._ready, stream))

        return self._clock.time(replay) / (replays * self.launches)

    def close(self) -> None:
        checked(self._clock._driver.cuGraphExecDestroy(self._ready))
        checked(self._clock._driver.cuGraphDestroy(self._graph))


def launches(call_s: float) -> int:
    """How many launches of a kernel that takes about so long go into one graph."""
    return max(1, min(MOST_LAUNCHES, math.ceil(GRAPH_S / max(call_s, 1e-9))))


def kernels_us(launch: Callable[[], None], launches: int, sync: Callable[[], None]) -> float | None:
    """Microseconds a launch that its kernels ran, by CUPTI's records; None without its bindings (`cupti-python`).

    From then on CUPTI watches this process: nothing else should be timed in it.
    """
    try:
        from cupti import cupti
    except ImportError:
        return None
    spent: list[int] = []
    cupti.activity_register_callbacks(
        lambda: (1 << 23, 0), lambda records: spent.extend(record.end - record.start for record in records)
    )
    cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
    for _ in range(launches):
        launch()
    sync()
    cupti.activity_flush_all(1)
    cupti.activity_disable(cupti.ActivityKind.CONCURRENT_KERNEL)
    return sum(spent) / launches * 1e-3 if spent else None
