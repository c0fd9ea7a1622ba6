"""Compiling scheduled modules. Every function here runs in a child, unless it says otherwise.

A CUDA kernel is built in four steps, none of which needs a GPU, a driver or TVM's tensor intrinsics: TVM lowers the
module and generates CUDA C++ for the device and an object file for the host; NVRTC compiles the former
(`compiler/nvrtc.py`); the machine code is packed as TVM packs its own CUDA modules; the C compiler links both into
the shared library that `tvm.runtime.load_module` loads wherever TVM finds a GPU. So the file is the same whether or
not the machine that builds it has one. A shared library, since an object file would be linked again, by the same C
compiler, in every process that loads it (`python/tvm/runtime/module.py`, `load_module`).
"""

import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import float8, nvrtc
from littledragon.compiler.children import cpu_s
from littledragon.compiler.targets import DeviceMissing

FAST_MATH: Final = True
"""Whether CUDA kernels are compiled with `--use_fast_math`; see `nvrtc.compile`."""
LINK_S: Final = 60.0
"""How long the C compiler may take to link one kernel; it takes hundredths of a second."""


COMPILERS: Final = ("g++", "gcc", "clang++", "clang", "c++", "cc")
"""Where neither CXX nor CC names one, as TVM looks for them (`python/tvm/support/cc.py`)."""


def suffix(target: dict[str, Any]) -> str:
    """How the file of a built kernel must end. Runs anywhere.

    CPU kernels are object files, which the process that loads them links. CUDA kernels are shared libraries.
    """
    return ".o" if target["kind"] == "llvm" else ".so"


def require_toolchain(target: dict[str, Any]) -> None:
    """Check, without TVM, that this machine has what building and loading need. Runs anywhere.

    Raises:
        DeviceMissing: there is no C compiler; or, for cuda, no NVRTC or headers.
    """
    named = os.environ.get("CXX") or os.environ.get("CC")
    if not any(shutil.which(name) for name in ([named] if named else COMPILERS)):
        raise DeviceMissing(
            f"target {target['kind']}: no C compiler here to link kernels: install gcc or clang, or set CXX"
        )
    if target["kind"] == "cuda":
        try:
            nvrtc.toolkit()
        except ValueError as error:
            raise DeviceMissing(str(error)) from None


def build(scheduled: str, target: dict[str, Any], path: str) -> dict[str, Any]:
    """Compile a scheduled module (`save_json` text) to the new file `path`.

    Temporary files are made in the folder of `path` only, so that one that is removed leaves nothing of a killed build.

    Returns:
        `{"build_s": seconds of compiling and writing, "fast_math", "headers"}`: `fast_math` is whether the device code
        was compiled so, `headers` is `slim` or `full` (`nvrtc.compile`); false and null on a CPU.

    Raises:
        FileExistsError: the path is taken; a file that some process has loaded must not change.
        ValueError: the target's toolchain is not on this machine.
        RuntimeError: what TVM, NVRTC or the linker says of a module that does not compile.
    """
    import tvm

    return _compile(tvm.ir.load_json(scheduled), target, path)


def build_empty(target: dict[str, Any], path: str) -> dict[str, Any]:
    """Compile the kernel that does next to nothing: it writes one float. Its latency is that of a launch."""
    import tvm
    from tvm import te

    out = te.compute((1,), lambda i: te.const(0.0, "float32"), name="out")
    function = te.create_prim_func([out]).with_attr("global_symbol", "main")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
    if target["kind"] == "cuda":
        (loop,) = schedule.get_loops(schedule.get_sblock("out"))
        schedule.bind(loop, "threadIdx.x")
    return _compile(schedule.mod, target, path)


def profile(scheduled: str, target: dict[str, Any], turns: int) -> dict[str, Any]:
    """What each step of a CUDA build costs, and NVRTC with slim headers against TVM's own call of it, by turns.

    Args:
        scheduled: a scheduled module, as `save_json`.
        target: a cuda target.
        turns: how often both calls of NVRTC run, after one unmeasured turn.

    Returns:
        CPU milliseconds of this process and its children: `{"lower_ms", "host_ms", "link_ms"}` once each, of `turns`
        turns `{"slim_ms", "tvm_ms"}`; `headers`; and `same`, whether both gave the same kernels, byte for byte.
    """
    import tvm

    found = nvrtc.toolkit()
    nvrtc.version()  # loads the library, which the bindings that TVM uses then find
    os.environ["CUDA_PATH"] = str(found.include[0].parent)
    from tvm.support.nvcc import compile_cuda

    mod = tvm.ir.load_json(scheduled)
    _lowered(mod, target)
    executable, lower_ms = _cpu_ms(lambda: _lowered(mod, target))
    source = _source(executable.mod)

    def ours() -> nvrtc.Compiled:
        return nvrtc.compile(source, target["arch"], fast_math=FAST_MATH)

    def theirs() -> bytes:
        options = [f"-I{folder}" for folder in found.include]
        return bytes(compile_cuda(source, "cubin", arch=target["arch"], options=options, compiler="nvrtc"))

    compiled, own = ours(), theirs()
    slim_ms: list[float] = []
    tvm_ms: list[float] = []
    sides: list[tuple[Callable[[], Any], list[float]]] = [(ours, slim_ms), (theirs, tvm_ms)]
    for turn in range(turns):
        for run, times in reversed(sides) if turn % 2 else sides:
            times.append(_cpu_ms(run)[1])
    with tempfile.TemporaryDirectory(prefix="dragon-build-") as folder:
        objects, host_ms = _cpu_ms(lambda: _objects(executable.mod, source, compiled.cubin, Path(folder)))
        _, link_ms = _cpu_ms(lambda: _link(objects, Path(folder) / "kernel.so"))
    return {
        "lower_ms": lower_ms,
        "host_ms": host_ms,
        "link_ms": link_ms,
        "slim_ms": slim_ms,
        "tvm_ms": tvm_ms,
        "headers": _headers(compiled),
        "same": nvrtc.text(compiled.cubin) == nvrtc.text(own),
    }


def _compile(module: Any, target: dict[str, Any], path: str) -> dict[str, Any]:
    import tvm

    if Path(path).exists():
        raise FileExistsError(f"{path}: a built kernel is never overwritten")
    began = time.perf_counter()
    if target["kind"] == "llvm":
        tvm.compile(float8.exact(module), target=tvm.target.Target(target)).mod.write_to_file(path)
        return {"build_s": time.perf_counter() - began, "fast_math": False, "headers": None}
    nvrtc.toolkit()
    _linker()
    host = _lowered(module, target).mod
    source = _source(host)
    compiled = nvrtc.compile(source, target["arch"], fast_math=FAST_MATH)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=Path(path).parent) as folder:
        library = Path(folder) / "kernel.so"
        _link(_objects(host, source, compiled.cubin, Path(folder)), library)
        library.rename(path)
    return {"build_s": time.perf_counter() - began, "fast_math": FAST_MATH, "headers": _headers(compiled)}


def _lowered(module: Any, target: dict[str, Any]) -> Any:
    """The executable of a module: host code compiled, device code as source.

    Left to itself, TVM compiles the source where it finds a GPU and keeps it elsewhere; told so by this variable, it
    keeps it everywhere (`src/backend/cuda/codegen/cuda_fallback_module.h`).
    """
    import tvm

    os.environ["TVM_COMPILE_FORCE_FALLBACK"] = "1"
    return tvm.compile(module, target=tvm.target.Target(target))


def _source(host: Any) -> str:
    """The CUDA C++ of all kernels of a lowered module."""
    if len(host.imports) != 1:
        raise RuntimeError(f"target cuda: {len(host.imports)} device modules in a program, not one: is it scheduled?")
    return str(host.imports[0].inspect_source("cuda"))


def _objects(host: Any, source: str, cubin: bytes, folder: Path) -> list[Path]:
    """Write two object files: the host code, and the machine code under the name by which TVM looks for it."""
    import tvm

    packed = tvm.get_global_func("runtime.ModulePackImportsToTensor")(host).numpy().tobytes()
    triple = host.get_function("_get_target_string")()
    blob = tvm.get_global_func("codegen.codegen_blob")(_with_cubin(packed, source.encode(), cubin), False, triple, "")
    files = [folder / "host.o", folder / "device.o"]
    for module, file in zip((host, blob), files, strict=True):
        module.write_to_file(str(file))
    return files


def _with_cubin(packed: bytes, source: bytes, cubin: bytes) -> bytes:
    """A packed import tree with machine code where the source was.

    Every text stands behind its size, eight bytes. The tree's one module is its last part (`src/target/codegen.cc`):
    the kind `cuda`, then as one text the format of its code, the signatures of its kernels, and the code
    (`src/backend/cuda/runtime/cuda_module.cc`). Format and code are replaced.
    """
    name, code = _sized(b"cuda"), _sized(source)
    tree, _, rest = packed[8:].partition(name)
    module = rest[8:]
    if packed != _sized(tree + name + _sized(module)) or not module.startswith(name) or not module.endswith(code):
        raise RuntimeError("target cuda: this version of TVM packs modules in another way")
    signatures = module[len(name) : -len(code)]
    return _sized(tree + name + _sized(_sized(b"cubin") + signatures + _sized(cubin)))


def _sized(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _link(objects: list[Path], library: Path) -> None:
    """Make a shared library with the C compiler, whose temporary files go where the library goes.

    Of other libraries it needs only what the process that loads it has loaded: TVM's, and the C library.
    """
    done = subprocess.run(
        [_linker(), "-shared", "-nostdlib", "-o", library, *objects],
        env={**os.environ, "TMPDIR": str(library.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=LINK_S,
    )
    if done.returncode:
        raise RuntimeError(f"the C compiler cannot link the kernel: {done.stdout.decode(errors='replace').strip()}")


def _linker() -> str:
    from tvm.support.cc import get_cc

    found = get_cc()
    if found is None:
        raise ValueError("target cuda: no C compiler here to link kernels: install gcc or clang, or set CXX")
    return str(found)


def _headers(compiled: nvrtc.Compiled) -> str:
    return "slim" if compiled.slim else "full"


def _cpu_ms(run: Callable[[], Any]) -> tuple[Any, float]:
    """What a function gives, and the CPU time that it took, that of ended child processes included."""
    before = cpu_s()
    answer = run()
    return answer, 1e3 * (cpu_s() - before)
