"""NVRTC with stand-in headers gives the machine code of TVM's own call, and takes the headers where it needs them."""

import gzip
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from littledragon.compiler import nvrtc, targets

CUDA = targets.target("cuda")
SAMPLE = Path(__file__).parents[2] / "samples" / "h200_traces.jsonl.gz"
KERNEL = 'extern "C" __global__ void f(float* x) { x[threadIdx.x] = x[threadIdx.x] / 3.0f; }\n'
# What TVM writes at the top of everything that it generates.
HEAD = """
#include <cuda/std/cstdint>
using cuda::std::uint8_t;
using cuda::std::int64_t;
#include <cuda/std/type_traits>
namespace std { using cuda::std::is_same_v; using cuda::std::is_integral; using cuda::std::enable_if; }
"""
ALIASES = {
    "int8_t": "signed char",
    "int16_t": "short",
    "int32_t": "int",
    "int64_t": "long long",
    "uint8_t": "unsigned char",
    "uint16_t": "unsigned short",
    "uint32_t": "unsigned int",
    "uint64_t": "unsigned long long",
}


def default(call: Any, program: str, **extents: Any) -> str:
    """A program of `probe/` with the schedule that dlight gives it."""
    module = call(f"probe.modules:{program}", **extents)["module"]
    return str(call("compiler.proposals:default", module=module, target=CUDA)["scheduled"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "extents"),
    [
        ("softmax", {"m": 8, "n": 50}),
        ("quantise", {"n": 64}),
        ("matmul", {"m": 16, "n": 16, "k": 32, "dtype": "float16", "accumulate": "float32"}),
        ("matmul", {"m": 16, "n": 16, "k": 32, "dtype": "bfloat16", "accumulate": "float32"}),
        ("matmul", {"m": 16, "n": 16, "k": 32, "dtype": "float8_e4m3fn", "accumulate": "float32"}),
        ("matmul", {"m": 16, "n": 16, "k": 32, "dtype": "int8", "accumulate": "int32"}),
    ],
)
def test_stand_ins_give_the_machine_code_of_tvms_own_call(call: Any, program: str, extents: dict[str, Any]) -> None:
    found = call("compiler.build:profile", scheduled=default(call, program, **extents), target=CUDA, turns=0)
    assert (found["same"], found["headers"]) == (True, "slim")


@pytest.mark.slow
def test_recorded_candidates_give_the_machine_code_of_tvms_own_call(call: Any) -> None:
    rows = [json.loads(line) for line in gzip.decompress(SAMPLE.read_bytes()).splitlines()]
    modules = {row["name"]: row["module"] for row in rows if row["kind"] == "workload"}
    traces = {row["name"]: row["trace"] for row in rows if row["kind"] == "candidate"}
    assert len(traces) > 20
    for name, trace in traces.items():
        admitted = call("compiler.traces:admit", module=modules[name], trace=trace, target=CUDA)
        assert admitted["failed"] is None, name
        found = call("compiler.build:profile", scheduled=admitted["scheduled"], target=CUDA, turns=0)
        assert (found["same"], found["headers"]) == (True, "slim"), name


@pytest.mark.slow
def test_building_a_tensor_core_kernel_needs_no_tensor_intrinsics(call: Any, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in gzip.decompress(SAMPLE.read_bytes()).splitlines()]
    by_kind = {row["kind"]: row for row in rows if row["name"] == "gemm_f16_512x512x512"}
    module, trace = by_kind["workload"]["module"], by_kind["candidate"]["trace"]
    scheduled = call("compiler.traces:admit", module=module, trace=trace, target=CUDA)["scheduled"]
    (tmp_path / "scheduled").write_text(scheduled, encoding="utf-8")
    code = "import sys, pathlib; sys.modules['tvm.s_tir.tensor_intrin'] = None\n"
    code += "from littledragon.compiler import build, targets\n"
    code += f"text = pathlib.Path('{tmp_path}/scheduled').read_text()\n"
    code += f"print(build.build(text, targets.target('cuda'), '{tmp_path}/k.so')['headers'])"
    assert python(code) == "slim"


@pytest.mark.parametrize("slim", [True, False])
def test_stand_ins_are_what_libcudacxx_says(slim: bool) -> None:
    # Two declarations of one name agree only where the types do: `long` and `long long` are two.
    again = [f"namespace cuda {{ namespace std {{ using {alias} = {name}; }} }}" for alias, name in ALIASES.items()]
    assert nvrtc.compile("\n".join([HEAD, *again, KERNEL]), "sm_90", slim=slim).slim == slim


def test_what_the_stand_ins_lack_gets_the_headers_themselves() -> None:
    source = HEAD + "static_assert(std::is_integral<int64_t>::value);\n" + KERNEL
    compiled = nvrtc.compile(source, "sm_90")
    assert not compiled.slim
    assert nvrtc.text(compiled.cubin) == nvrtc.text(nvrtc.compile(KERNEL, "sm_90").cubin)


def test_infinity_is_there_as_in_tvms_own_call() -> None:
    compiled = nvrtc.compile('extern "C" __global__ void f(float* x) { x[0] = -INFINITY; }', "sm_90")
    assert list(nvrtc.text(compiled.cubin)) == [".text.f"]


def test_fast_math_changes_a_division_and_is_the_default() -> None:
    fast, exact = nvrtc.compile(KERNEL, "sm_90"), nvrtc.compile(KERNEL, "sm_90", fast_math=False)
    assert nvrtc.text(fast.cubin) == nvrtc.text(nvrtc.compile(KERNEL, "sm_90", fast_math=True).cubin)
    assert len(nvrtc.text(fast.cubin)[".text.f"]) < len(nvrtc.text(exact.cubin)[".text.f"])


def test_what_does_not_compile_is_told_in_one_line_past_the_warnings() -> None:
    source = 'extern "C" __global__ void f(int* x) { int unused; x[0] = y; }'
    with pytest.raises(nvrtc.CompileError) as refused:
        nvrtc.compile(source, "sm_90")
    assert str(refused.value) == 'kernel.cu(1): error: identifier "y" is undefined'


@pytest.mark.parametrize("arch", ["sm_1", "compute_90", "sm_90 --help", ""])
def test_an_architecture_that_is_none_is_refused(arch: str) -> None:
    with pytest.raises(ValueError, match="is no architecture: give one such as sm_90"):
        nvrtc.compile(KERNEL, arch)


def test_architectures_that_nvrtc_does_not_know_are_told() -> None:
    with pytest.raises(nvrtc.CompileError, match="gpu-architecture"):
        nvrtc.compile(KERNEL, "sm_20")


def test_text_of_a_cubin_is_its_kernels() -> None:
    two = KERNEL + KERNEL.replace("f(", "g(").replace("3.0f", "5.0f")
    cubin = nvrtc.compile(two, "sm_90").cubin
    found = nvrtc.text(cubin)
    assert set(found) == {".text.f", ".text.g"}
    assert all(code and code in cubin for code in found.values())


@given(st.binary(max_size=200), st.integers(0, 200))
def test_text_of_anything_else_is_refused(tail: bytes, cut: int) -> None:
    for garbage in (tail, b"\x7fELF\x02\x01" + tail, struct.pack("<6s34xQ10xHHH", b"\x7fELF\x02\x01", cut, 64, 9, 8)):
        try:
            found = nvrtc.text(garbage)
        except ValueError:
            continue
        assert found == {}  # a file without sections


def python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WITHOUT_PACKAGES = (
    "import importlib.util as u; find = u.find_spec\n"
    "u.find_spec = lambda name, *rest: None if name == 'nvidia' else find(name, *rest)\n"
    "from littledragon.compiler import nvrtc\n"
)


def test_a_toolkit_is_found_by_cuda_home(tmp_path: Path) -> None:
    found = nvrtc.toolkit()
    home = tmp_path / "cuda"
    machine = home / "targets" / ("x86_64-linux" if os.uname().machine == "x86_64" else "sbsa-linux")
    machine.mkdir(parents=True)
    (machine / "include").symlink_to(found.include[0])
    (home / "lib64").mkdir()
    for library in (found.library, found.builtins):
        (home / "lib64" / library.name).symlink_to(library)
    printed = python(WITHOUT_PACKAGES + "print(nvrtc.toolkit().library, nvrtc.version())", CUDA_HOME=str(home))
    assert printed == f"{home}/lib64/{found.library.name} {nvrtc.version()}"


def roots(folder: Path, *, version: str = "") -> tuple[Path, Path]:
    """A place with NVRTC alone and a place with the headers alone, of another version if one is given."""
    found = nvrtc.toolkit()
    library, headers = folder / "library", folder / "headers"
    (library / "lib").mkdir(parents=True)
    for file in (found.library, found.builtins):
        (library / "lib" / file.name).symlink_to(file)
    (headers / "include").mkdir(parents=True)
    for file in found.include[0].iterdir():
        if file.name != "cuda.h":
            (headers / "include" / file.name).symlink_to(file)
    text = (found.include[0] / "cuda.h").read_text(encoding="utf-8")
    changed = re.sub(r"define CUDA_VERSION \d+", f"define CUDA_VERSION {version}", text) if version else text
    (headers / "include" / "cuda.h").write_text(changed, encoding="utf-8")
    return library, headers


@pytest.mark.parametrize("turn", [1, -1])
def test_nvrtc_and_headers_of_one_version_may_lie_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    places = roots(tmp_path)
    monkeypatch.setattr(nvrtc, "_roots", lambda: iter(places[::turn]))
    assert nvrtc.toolkit().include == (places[1] / "include", places[1] / "include" / "cccl")
    assert nvrtc.compile(KERNEL, "sm_90", slim=False).cubin


def test_nvrtc_and_headers_of_two_versions_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = roots(tmp_path, version="12080")
    monkeypatch.setattr(nvrtc, "_roots", lambda: iter(places))
    with pytest.raises(ValueError, match="no NVRTC with CUDA's headers here: pip install"):
        nvrtc.compile(KERNEL, "sm_90")


def test_half_a_toolkit_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_fp16.h").touch()
    monkeypatch.setattr(nvrtc, "_roots", lambda: iter([tmp_path]))
    with pytest.raises(ValueError, match="no NVRTC with CUDA's headers here: pip install"):
        nvrtc.compile(KERNEL, "sm_90")
