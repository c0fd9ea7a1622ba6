"""Building, running, timing and references, on small real workloads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from littledragon.compiler import build, inputs, kernels, targets
from littledragon.compiler.children import ChildError
from littledragon.compiler.environment import environment

TARGET = targets.target("llvm")
CUDA = targets.target("cuda")
Call = Any


def run(call: Call, workload: Any, path: str, case: int, folder: Path) -> list[Any]:
    found = call(
        "compiler.kernels:run", library=path, specs=workload["specs"], case=case, seed=0, threads=2, out=f"{folder}/out"
    )
    return [np.load(name) for name in found["outputs"]]


def test_built_kernel_runs_and_computes_what_numpy_does(call: Call, tmp_path: Path) -> None:
    workload = call("probe.modules:matmul", m=8, n=12, k=20, dtype="float32", accumulate="float32")
    path = str(tmp_path / f"k{build.suffix(TARGET)}")
    assert call("compiler.build:build", scheduled=workload["module"], target=TARGET, path=path)["build_s"] > 0
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


def test_cuda_without_a_device_says_so_in_one_line(call: Call, tmp_path: Path) -> None:
    workload = call("probe.modules:scalar", n=4)
    try:
        targets.require_device("cuda")
    except targets.DeviceMissing:
        with pytest.raises(ChildError, match="raised: ValueError: target cuda: kernels are compiled only where"):
            call("compiler.build:build", scheduled=workload["module"], target=CUDA, path=str(tmp_path / "k.so"))


def test_timing_gives_five_repeats_that_grow_with_the_work(call: Call, tmp_path: Path) -> None:
    latencies = []
    for size in (16, 64):
        workload = call("probe.modules:matmul", m=size, n=size, k=size, dtype="float32", accumulate="float32")
        path = str(tmp_path / f"k{size}.o")
        call("compiler.build:build", scheduled=workload["module"], target=TARGET, path=path)
        repeats = call("compiler.kernels:time", library=path, specs=workload["specs"], repeat_ms=1.0, threads=2)
        assert len(repeats) == kernels.REPEATS
        latencies.append(float(np.median(repeats)))
    assert latencies[1] > 8 * latencies[0]  # 64 times the work


def test_empty_kernel_is_faster_than_any_work(call: Call, tmp_path: Path) -> None:
    path = str(tmp_path / "empty.o")
    call("compiler.build:build_empty", target=TARGET, path=path)
    specs = [{"name": "out", "shape": [1], "dtype": "float32", "role": "output", "low": None, "high": None}]
    repeats = call("compiler.kernels:time", library=path, specs=specs, repeat_ms=1.0, threads=2)
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
