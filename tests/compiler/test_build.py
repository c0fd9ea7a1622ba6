"""Building, running, timing and references, on small real workloads."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from littledragon.compiler import build, children, inputs, kernels, nvrtc, targets
from littledragon.compiler.children import ChildError
from littledragon.compiler.environment import environment

TARGET = targets.target("llvm")
CUDA = targets.target("cuda")
Call = Any


def run(call: Call, workload: Any, path: str, case: int, folder: Path) -> list[Any]:
    specs, out = workload["specs"], f"{folder}/out"
    arrays = kernels.write(specs, inputs.make(specs, case, 0), f"{folder}/in.{case}")
    given = {"library": path, "specs": specs, "arrays": arrays, "threads": 2, "repeat_ms": 1.0}
    found = call("compiler.kernels:measure", **given, hopeless_s=0.0, guard=False, out=out)
    return [np.load(name) for name in found["left"]["outputs"]]


def test_built_kernel_runs_and_computes_what_numpy_does(call: Call, tmp_path: Path) -> None:
    workload = call("probe.modules:matmul", m=8, n=12, k=20, dtype="float32", accumulate="float32")
    path = str(tmp_path / f"k{build.suffix(TARGET)}")
    answer = call("compiler.build:build", scheduled=workload["module"], target=TARGET, path=path)
    assert answer.pop("build_s") > 0
    assert answer == {"fast_math": False, "headers": None}
    for case in range(len(inputs.CASES)):
        x, w, _ = inputs.make(workload["specs"], case, 0)
        (y,) = run(call, workload, path, case, tmp_path)
        np.testing.assert_allclose(y, x @ w.T, rtol=1e-5, atol=1e-5)


def test_bfloat16_outputs_are_saved_as_float32(call: Call, tmp_path: Path) -> None:
    workload = call("probe.modules:matmul", m=4, n=4, k=8, dtype="bfloat16", accumulate="float32")
    path = str(tmp_path / "k.o")
    call("compiler.build:build", scheduled=workload["module"], target=TARGET, path=path)
    x, w, _ = inputs.make(workload["specs"], 3, 0)
    (y,) = run(call, workload, path, 3, tmp_path)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, x.astype(np.float32) @ w.astype(np.float32).T)


def test_a_path_is_never_written_twice(call: Call, tmp_path: Path) -> None:
    workload = call("probe.modules:scalar", n=4)
    path = tmp_path / "k.o"
    path.write_bytes(b"mine")
    with pytest.raises(ChildError, match="never overwritten"):
        call("compiler.build:build", scheduled=workload["module"], target=TARGET, path=str(path))
    assert path.read_bytes() == b"mine"


def scheduled(call: Call, dtype: str = "float16") -> str:
    workload = call("probe.modules:matmul", m=32, n=32, k=32, dtype=dtype, accumulate="float32")
    return str(call("compiler.proposals:default", module=workload["module"], target=CUDA)["scheduled"])


# What a process that imports nothing but TVM hands to TVM's own loader of CUDA modules when it loads a kernel.
LOADED = """
import sys, tvm, tvm_ffi
def loader(data):
    sys.stdout.buffer.write(bytes(data))
    raise RuntimeError("seen")
tvm_ffi.register_global_func("ffi.Module.load_from_bytes.cuda", loader, override=True)
try:
    tvm.runtime.load_module(sys.argv[1])
except RuntimeError as error:
    assert str(error) == "seen"
    assert not [name for name in sys.modules if "tensor_intrin" in name]
"""


def test_cuda_kernels_are_built_without_a_gpu_as_a_gpu_machine_loads_them(call: Call, tmp_path: Path) -> None:
    path = tmp_path / f"k{build.suffix(CUDA)}"
    answer = call("compiler.build:build", scheduled=scheduled(call), target=CUDA, path=str(path))
    assert (answer["fast_math"], answer["headers"]) == (True, "slim")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    done = subprocess.run([sys.executable, "-c", LOADED, path], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"\5\0\0\0\0\0\0\0cubin")
    assert b"threadIdx.x" in done.stdout  # how it is launched
    cubin = done.stdout[done.stdout.index(b"\x7fELF") :]
    assert set(nvrtc.text(cubin)) == {".text.main_kernel", ".text.main_kernel_1"}  # the product, and the cast after it
    assert cubin in path.read_bytes()


def test_one_module_gives_one_file(call: Call, tmp_path: Path) -> None:
    module = scheduled(call, "bfloat16")
    for name in ("a", "b"):
        call("compiler.build:build", scheduled=module, target=CUDA, path=str(tmp_path / f"{name}.so"))
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()


def test_an_empty_kernel_is_built_for_cuda_too(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "empty.so"
    assert call("compiler.build:build_empty", target=CUDA, path=str(path))["headers"] == "slim"
    assert b".text.main_kernel" in path.read_bytes()


def test_a_module_that_is_not_scheduled_for_cuda_is_refused(call: Call, tmp_path: Path) -> None:
    workload = call("probe.modules:matmul", m=8, n=8, k=8, dtype="float32", accumulate="float32")
    with pytest.raises(ChildError, match="raised: RuntimeError: Memory verification failed"):
        call("compiler.build:build", scheduled=workload["module"], target=CUDA, path=str(tmp_path / "k.so"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_without_nvrtc_cuda_says_what_to_install(tmp_path: Path) -> None:
    code = "from littledragon.compiler import build, nvrtc, targets\n"
    code += "nvrtc._roots = lambda: iter(())\n"
    code += f"build.build_empty(targets.target('cuda'), '{tmp_path}/k.so')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr.splitlines()[-1] == f"ValueError: {nvrtc.INSTALL}"
    assert not list(tmp_path.iterdir())


def test_a_linker_that_fails_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    path = str(tmp_path / "k.so")
    with pytest.raises(ChildError, match="raised: RuntimeError: the C compiler cannot link the kernel"):
        children.once("littledragon.compiler.build:build_empty", deadline_s=120, target=CUDA, path=path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_outside_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere, compiler = tmp_path / "kernel", tmp_path / "tmp", tmp_path / "cc"
    folder.mkdir()
    elsewhere.mkdir()
    compiler.write_text('#!/bin/sh\necho > "$TMPDIR/object"\nkill -9 $PPID\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    with pytest.raises(ChildError, match="crashed: SIGKILL"):
        children.once("littledragon.compiler.build:build_empty", deadline_s=120, target=CUDA, path=f"{folder}/k.so")
    assert not list(elsewhere.iterdir())
    for left in folder.iterdir():  # one for each child that was killed
        assert {"host.o", "device.o", "object"} == {file.name for file in left.iterdir()}


def timed(call: Call, path: str, specs: Any, folder: Path) -> Any:
    arrays = kernels.write(specs, inputs.make(specs, 0, 0), f"{folder}/in")
    (repeats,) = call("compiler.kernels:time_all", kernels=[path], specs=specs, arrays=arrays, repeat_ms=1.0, threads=2)
    return repeats


def test_timing_gives_five_repeats_that_grow_with_the_work(call: Call, tmp_path: Path) -> None:
    latencies = []
    for size in (16, 64):
        workload = call("probe.modules:matmul", m=size, n=size, k=size, dtype="float32", accumulate="float32")
        path = str(tmp_path / f"k{size}.o")
        call("compiler.build:build", scheduled=workload["module"], target=TARGET, path=path)
        repeats = timed(call, path, workload["specs"], tmp_path)
        assert len(repeats) == kernels.REPEATS
        latencies.append(float(np.median(repeats)))
    assert latencies[1] > 8 * latencies[0]  # 64 times the work


def test_empty_kernel_is_faster_than_any_work(call: Call, tmp_path: Path) -> None:
    path = str(tmp_path / "empty.o")
    call("compiler.build:build_empty", target=TARGET, path=path)
    specs = [{"name": "out", "shape": [1], "dtype": "float32", "role": "output", "low": None, "high": None}]
    repeats = timed(call, path, specs, tmp_path)
    assert 0 < min(repeats) < 5


def reference(call: Call, workload: Any, case: int, folder: Path) -> tuple[Any, Any]:
    found = call(
        "compiler.reference:reference",
        module=workload["module"],
        target=TARGET,
        specs=workload["specs"],
        cases=[case],
        seed=0,
        out=f"{folder}/reference",
    )
    return np.load(found["outputs"][str(case)][0]), found["rounding"]


def test_reference_of_fp16_accumulation_is_the_wide_one(call: Call, tmp_path: Path) -> None:
    workload = call("probe.modules:matmul", m=4, n=4, k=2048, dtype="float16", accumulate="float16")
    y, rounding = reference(call, workload, 1, tmp_path)
    x, w, _ = inputs.make(workload["specs"], 1, 0)
    np.testing.assert_allclose(y, x.astype(np.float64) @ w.astype(np.float64).T, rtol=1e-5)
    assert rounding == {
        "reduction": 2048,
        "accumulation": "float16",
        "stored": "float16",
        "discrete": False,
        "bits": False,
        "coarse": False,
        "millions": False,
    }


def test_reference_of_float32_is_the_original_itself(call: Call, tmp_path: Path) -> None:
    workload = call("probe.modules:softmax", m=4, n=50)
    path = str(tmp_path / "k.o")
    call("compiler.build:build", scheduled=workload["module"], target=TARGET, path=path)
    y, rounding = reference(call, workload, 0, tmp_path)
    np.testing.assert_array_equal(run(call, workload, path, 0, tmp_path)[0], y)
    np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-5)
    assert (rounding["reduction"], rounding["accumulation"]) == (50, "float32")


def test_turning_floats_into_integers_is_noticed(call: Call, tmp_path: Path) -> None:
    _, rounding = reference(call, call("probe.modules:quantise", n=8), 0, tmp_path)
    assert rounding["discrete"]


def test_environment_is_what_is_set() -> None:
    settings = {"threads": 2, "repeat_ms": 20.0}
    real = environment(TARGET, "real", settings)
    assert environment(TARGET, "real", settings) == real
    assert environment(TARGET, "real", settings | {"threads": 3})["environment_id"] != real["environment_id"]
    simulated = environment(TARGET, "simulated", settings)
    assert (simulated["processor"], simulated["driver"]) == ("simulated", "none")
    assert simulated["environment_id"] != real["environment_id"]
