"""What the device and its host are doing: found, not set, and recorded beside what was measured then."""

import os
from collections.abc import Callable
from typing import Any

from littledragon.compiler.environment import gpu_handle


def observe(target: dict[str, Any]) -> dict[str, Any]:
    """The host's load; of a GPU also clocks (MHz), temperature (°C), power (W), why its clock is held back (NVML's
    bits), and how many other processes use it. What the driver does not say is left out."""
    seen: dict[str, Any] = {"load": round(os.getloadavg()[0], 2)}
    return seen | _gpu() if target["kind"] == "cuda" else seen


def _gpu() -> dict[str, Any]:
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        handle = gpu_handle(pynvml)
    except pynvml.NVMLError:
        return {}
    asked: dict[str, Callable[[], Any]] = {
        "sm_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "celsius": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        "watts": lambda: round(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        "held_back": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "others": lambda: sum(not _ours(p.pid) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    }
    seen = {}
    for name, ask in asked.items():
        try:
            seen[name] = ask()
        except (pynvml.NVMLError, AttributeError):
            continue
    return seen


def _ours(pid: int) -> bool:
    """Whether a process descends from this one."""
    import psutil

    try:
        return os.getpid() in {parent.pid for parent in psutil.Process(pid).parents()}
    except psutil.Error:
        return False
