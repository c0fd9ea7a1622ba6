"""What kernels are compiled for. A target is a plain dict, so that it can be hashed, stored and sent to a child."""

import ctypes.util
import functools
import platform
from pathlib import Path
from typing import Any

CPU_CORES = 2
"""Cores that the `llvm` target may use: fixed, so that tables of different machines hold the same candidates."""


class DeviceMissing(Exception):
    """The target's device is not on this machine. The text says what to do, in one line."""


def target(name: str) -> dict[str, Any]:
    """The TVM target of this name (`llvm` or `cuda`), as `tvm.target.Target` takes it.

    `mcpu` is set where the CPU has AVX2 and F16C: without it LLVM emulates fp16 arithmetic.

    Raises:
        ValueError: unknown name.
    """
    if name == "llvm":
        wide = {"mcpu": "x86-64-v3"} if has_avx2() else {}
        return {"kind": "llvm", "num-cores": CPU_CORES, **wide}
    if name == "cuda":
        return {
            "kind": "cuda",
            "arch": "sm_90",
            "max_threads_per_block": 1024,
            "max_shared_memory_per_block": 49152,
            "thread_warp_size": 32,
        }
    raise ValueError(f"unknown target '{name}': choose llvm or cuda")


def require_device(name: str) -> None:
    """Check, without TVM, that kernels for this target can run here.

    Raises:
        DeviceMissing: there is no NVIDIA driver or no GPU.
        ValueError: unknown name.
    """
    target(name)
    if name != "cuda":
        return
    if ctypes.util.find_library("cuda") is None:
        raise DeviceMissing("target cuda: no NVIDIA driver (libcuda) here: use --target llvm or --device simulated")
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
        raise DeviceMissing("target cuda: no NVIDIA GPU (/dev/nvidia*) here: use --target llvm or --device simulated")


@functools.cache
def has_avx2() -> bool:
    """Whether this is an x86-64 CPU with AVX2, FMA and F16C, as the level x86-64-v3 asks."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    return {"avx2", "fma", "f16c", "bmi2"} <= set(flags)
