"""What is set where latencies are measured. Latencies of two environments are never compared."""

import contextlib
import os
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from littledragon.compiler.targets import DeviceMissing
from littledragon.schemas import tsel
from littledragon.schemas.ids import canonical_json, digest


def environment(
    target: dict[str, Any], device: str, settings: dict[str, Any], *, elsewhere: bool = False
) -> dict[str, Any]:
    """A row of the table `environments`, made without TVM.

    Args:
        target: the TVM target.
        device: real or simulated. On the simulated device nothing depends on the machine but the target.
        settings: what else is set: repeats, their least time, cache flushing, a CPU's threads, a GPU's timer.
        elsewhere: whether it is to be compared with another machine's: without id, and with an unknown processor.

    Raises:
        ValueError: target or settings are not JSON.
        DeviceMissing: a real CUDA device is asked for, and its driver does not answer.
    """
    processor, driver = "simulated", "none"
    if elsewhere:
        processor = driver = "unknown"
    elif device == "real" and target["kind"] == "cuda":
        processor, driver = gpu()
    elif device == "real":
        processor, driver = _processor(), f"LLVM of apache-tvm {version('apache-tvm')}"
    row = {
        "target": canonical_json(target),
        "device": device,
        "processor": processor,
        "driver": driver,
        "tvm": version("apache-tvm"),
        "tvm_ffi": version("apache-tvm-ffi"),
        "codec": tsel.VERSION,
        "settings": canonical_json(settings),
    }
    return row if elsewhere else {"environment_id": digest(row), **row}


def _processor() -> str:
    """Model of the CPU, as the system names it, and how many logical CPUs there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} CPUs"


def gpu() -> tuple[str, str]:
    """The GPU that TVM calls cuda:0: its model with the power and clocks that are set, and driver and CUDA versions.

    Raises:
        DeviceMissing: NVIDIA's driver or its Python bindings are not here.
    """
    try:
        import pynvml
    except ImportError:
        raise DeviceMissing("target cuda: nvidia-ml-py is not installed: pip install 'littledragon[cuda]'") from None
    try:
        handle = gpu_handle(pynvml)
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion())
        model = _text(pynvml.nvmlDeviceGetName(handle))
        driver = f"driver {_text(pynvml.nvmlSystemGetDriverVersion())}, CUDA {cuda // 1000}.{cuda % 1000 // 10}"
    except pynvml.NVMLError as error:
        raise DeviceMissing(f"target cuda: the driver does not answer: {error}") from None
    told: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("{} W", lambda: pynvml.nvmlDeviceGetPowerManagementLimit(handle) // 1000),
        ("SM up to {} MHz", lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        ("memory up to {} MHz", lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
    )
    for words, ask in told:
        with contextlib.suppress(pynvml.NVMLError):  # not every GPU tells
            model += f", {words.format(ask())}"
    return model, driver


def gpu_handle(pynvml: Any) -> Any:
    """NVML's handle of the GPU that TVM calls cuda:0, which CUDA_VISIBLE_DEVICES may name by number or by id.

    Raises:
        NVMLError: there is none, or the driver does not answer.
    """
    pynvml.nvmlInit()
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(first)
    return pynvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdecimal() else 0)


def gpu_name() -> str:
    """A name of that GPU that is the same for every process of this host: its id, where the driver tells it."""
    try:
        import pynvml

        return _text(pynvml.nvmlDeviceGetUUID(gpu_handle(pynvml)))
    except Exception:  # no bindings, no driver: whoever measures will be told
        return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"


def _text(said: Any) -> str:
    return said.decode() if isinstance(said, bytes) else str(said)
