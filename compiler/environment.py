"""What is set where latencies are measured. Latencies of two environments are never compared."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from littledragon.schemas import tsel
from littledragon.schemas.ids import canonical_json, digest


def environment(target: dict[str, Any], device: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A row of the table `environments`, made without TVM.

    Args:
        target: the TVM target.
        device: real or simulated. On the simulated device nothing depends on the machine but the target.
        settings: what else is set: threads, repeats, their least time, cache flushing.

    Raises:
        ValueError: target or settings are not JSON.
    """
    real = device == "real"
    row = {
        "target": canonical_json(target),
        "device": device,
        "processor": _processor() if real else "simulated",
        "driver": f"LLVM of apache-tvm {version('apache-tvm')}" if real else "none",
        "tvm": version("apache-tvm"),
        "tvm_ffi": version("apache-tvm-ffi"),
        "codec": tsel.VERSION,
        "settings": canonical_json(settings),
    }
    return {"environment_id": digest(row), **row}


def _processor() -> str:
    """Model of the CPU, as the system names it, and how many logical CPUs there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} CPUs"
