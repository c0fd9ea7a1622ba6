"""Compiling scheduled modules. Every function here runs in a child."""

import time
from pathlib import Path
from typing import Any


def suffix(target: dict[str, Any]) -> str:
    """How the file of a built kernel must end. Runs anywhere.

    CPU kernels are object files, which TVM links in the process that loads them: no linker is needed.
    """
    return ".o" if target["kind"] == "llvm" else ".so"


def build(scheduled: str, target: dict[str, Any], path: str) -> dict[str, float]:
    """Compile a scheduled module (`save_json` text) to the new file `path`.

    Returns:
        `{"build_s": seconds of compiling and writing}`.

    Raises:
        FileExistsError: the path is taken; a file that some process has loaded must not change.
        ValueError: the target's toolchain is not on this machine.
        RuntimeError: what TVM says of a module that does not compile.
    """
    import tvm

    return _compile(tvm.ir.load_json(scheduled), target, path)


def build_empty(target: dict[str, Any], path: str) -> dict[str, float]:
    """Compile the kernel that does next to nothing: it writes one float. Its latency is that of a launch."""
    import tvm
    from tvm import te

    out = te.compute((1,), lambda i: te.const(0.0, "float32"), name="out")
    function = te.create_prim_func([out]).with_attr("global_symbol", "main")
    return _compile(tvm.IRModule({"main": function}), target, path)


def _compile(module: Any, target: dict[str, Any], path: str) -> dict[str, float]:
    import tvm

    if Path(path).exists():
        raise FileExistsError(f"{path}: a built kernel is never overwritten")
    if target["kind"] == "cuda" and not tvm.cuda(0).exist:
        raise ValueError("target cuda: kernels are compiled only where there is a CUDA device")
    began = time.perf_counter()
    executable = tvm.compile(module, target=tvm.target.Target(target))
    if target["kind"] == "llvm":
        executable.mod.write_to_file(path)
    else:
        executable.export_library(path)
    return {"build_s": time.perf_counter() - began}
