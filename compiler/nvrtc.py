"""CUDA C++ to machine code, by NVRTC. Neither TVM, nor a GPU, nor a driver is needed.

The source is what TVM's code generator writes (`src/backend/cuda/codegen/codegen_cuda.cc`). Under NVRTC it takes
integer types and `is_same` from libcu++ (`<cuda/std/cstdint>`, `<cuda/std/type_traits>`), and reading those headers
costs more than most kernels do. So NVRTC is first given stand-ins for the two, a dozen declarations each; only where
the source then does not compile, it is given the headers themselves. Typedefs leave no trace in machine code:
`dragon bench builds` compares it with that of TVM's own call, section by section.

NVRTC and the headers are those of the `cuda` extra's packages, or of a CUDA toolkit.
"""

import ctypes
import functools
import importlib.util
import os
import platform
import re
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

INSTALL: Final = (
    "target cuda: no NVRTC with CUDA's headers here: pip install 'littledragon[cuda]', or set CUDA_HOME to a toolkit"
)
REGISTER_USAGE_LEVEL: Final = 10
"""What TVM passes to ptxas unless an environment variable says otherwise; it changes the machine code."""
_ARCH: Final = re.compile(r"sm_\d{2,3}[af]?")
_NEEDED: Final = ("cuda.h", "cuda_fp16.h", "crt/mma.h", "nv/target", "cuda/std/cstdint")
"""One header of each package that generated code may read."""
_ALIASES: Final = [
    (f"{prefix}int{bits}_t", f"{sign} {name}")
    for prefix, sign in (("", "signed"), ("u", "unsigned"))
    for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
]
_CSTDINT: Final = "\n".join(
    [
        "#pragma once",
        *(f"using {alias} = {name};" for alias, name in _ALIASES),
        "namespace cuda { namespace std {",
        *(f"using ::{alias};" for alias, _ in _ALIASES),
        "} }\n",
    ]
)
# What is only declared is what generated code names but does not use: a use of it does not compile.
_TYPE_TRAITS: Final = """#pragma once
namespace cuda { namespace std {
template <class T, class U> struct is_same { static constexpr bool value = false; };
template <class T> struct is_same<T, T> { static constexpr bool value = true; };
template <class T, class U> inline constexpr bool is_same_v = is_same<T, U>::value;
template <class T> struct is_integral;
template <class T> struct is_signed;
template <class T> struct is_unsigned;
template <class T> struct is_floating_point;
template <bool, class = void> struct enable_if;
template <bool, class, class> struct conditional;
} }
"""
STAND_INS: Final[dict[str, str]] = {"cuda/std/cstdint": _CSTDINT, "cuda/std/type_traits": _TYPE_TRAITS}
"""Short headers by the names that they stand in for."""
_PREAMBLE: Final = "#ifndef INFINITY\n#define INFINITY __int_as_float(0x7f800000)\n#endif\n#line 1\n"


class CompileError(RuntimeError):
    """NVRTC refused the source; the text is the first error of its log, in one line."""


@dataclass(frozen=True)
class Toolkit:
    """Where NVRTC is: its two libraries, and folders of headers in the order in which they are searched."""

    library: Path
    builtins: Path
    include: tuple[Path, ...]


@dataclass(frozen=True)
class Compiled:
    """Machine code.

    cubin: an ELF file for one architecture.
    slim: whether the stand-in headers were enough.
    seconds: wall time in NVRTC, a first try that failed included.
    """

    cubin: bytes
    slim: bool
    seconds: float


def compile(source: str, arch: str, *, fast_math: bool = True, slim: bool = True) -> Compiled:
    """Compile CUDA C++ for one architecture, such as `sm_90`.

    Args:
        source: one translation unit, as TVM generates it.
        arch: the real architecture.
        fast_math: `--use_fast_math`: subnormal floats flush to zero, division and square root are approximate, and
            calls such as `expf` become their hardware approximations. It is on as in TVM's own call
            (`python/tvm/support/nvcc.py`), so that latencies compare with those of other users of TVM. Whether a
            kernel is near enough to the reference for all that is not decided here: the numerical gate judges it.
        slim: try the stand-in headers first.

    Raises:
        CompileError: the source does not compile, nor did it with the full headers.
        ValueError: `arch` is no architecture, or there is no NVRTC here.
    """
    if not _ARCH.fullmatch(arch):
        raise ValueError(f"target cuda: '{arch}' is no architecture: give one such as sm_90")
    found = toolkit()
    options = [
        f"--gpu-architecture={arch}",
        "--device-as-default-execution-space",
        "--device-int128",
        *(f"--include-path={folder}" for folder in found.include),
        # CUDA 13's headers of narrow floats use these without including what defines them.
        *(f"-D__NV_SILENCE_{what}_{end}=" for what in ("DEPRECATION", "HOST_DEPRECATION") for end in ("BEGIN", "END")),
        *(["--use_fast_math"] if fast_math else []),
        f"--ptxas-options=--register-usage-level={REGISTER_USAGE_LEVEL}",
    ]
    began = time.perf_counter()
    if slim:
        try:
            cubin = _run(found, source, options, STAND_INS)
        except CompileError:
            pass
        else:
            return Compiled(cubin, True, time.perf_counter() - began)
    return Compiled(_run(found, source, options, {}), False, time.perf_counter() - began)


def toolkit() -> Toolkit:
    """NVRTC and headers of the same CUDA version, from the installed packages, CUDA_HOME, CUDA_PATH or /usr/local/cuda.

    Earlier places go before later ones, and a place may have only one of the two: packages often lack some headers,
    and a toolkit may have been installed without NVRTC.

    Raises:
        ValueError: there is none; the text says what to do, in one line.
    """
    return _toolkit(tuple(_roots()))


def version() -> str:
    """NVRTC's version, such as `13.0`.

    Raises:
        ValueError: there is none here.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    _checked(_library(toolkit()), "nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def text(cubin: bytes) -> dict[str, bytes]:
    """The machine code of a cubin: its sections `.text.<kernel>`, by name.

    Raises:
        ValueError: it is no 64-bit ELF file.
    """
    try:
        if cubin[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a little-endian 64-bit ELF file")
        table, size, count, names = *struct.unpack_from("<40xQ10xHH", cubin), struct.unpack_from("<62xH", cubin)[0]
        sections = [struct.unpack_from("<I4x16xQQ", cubin, table + size * number) for number in range(count)]
        start = sections[names][1]
        labelled = [
            (cubin[start + name : cubin.index(b"\0", start + name)].decode(), offset, length)
            for name, offset, length in sections
        ]
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"not a whole ELF file: {error}") from None
    return {name: cubin[at : at + length] for name, at, length in labelled if name.startswith(".text.")}


def _roots() -> Iterator[Path]:
    packages = importlib.util.find_spec("nvidia")
    for folder in (packages.submodule_search_locations or ()) if packages else ():
        yield Path(folder) / "cu13"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield Path("/usr/local/cuda")


@functools.cache
def _toolkit(roots: tuple[Path, ...]) -> Toolkit:
    libraries, headers = [], []
    for root in roots:
        machine = root / "targets" / ("x86_64-linux" if platform.machine() == "x86_64" else "sbsa-linux")
        folders = [root / "lib", root / "lib64", machine / "lib"]
        library, builtins = _first(folders, "libnvrtc.so.*"), _first(folders, "libnvrtc-builtins.so.*.*")
        if library and builtins:
            libraries.append((_part(builtins.name, r"\.so\.(\d+)\.(\d+)"), library, builtins))
        tops = [root / "include", machine / "include"]
        include = tuple(folder for top in tops for folder in (top, top / "cccl") if folder.is_dir())
        if all(any((folder / name).is_file() for folder in include) for name in _NEEDED):
            headers.append((_of_headers(include), include))
    for theirs, library, builtins in libraries:
        for ours, include in headers:
            if theirs == ours:
                return Toolkit(library, builtins, include)
    raise ValueError(INSTALL)


def _first(folders: list[Path], pattern: str) -> Path | None:
    found = (file for folder in folders for file in sorted(folder.glob(pattern)) if ".alt." not in file.name)
    return next(found, None)


def _of_headers(include: tuple[Path, ...]) -> tuple[int, ...]:
    """The CUDA version of headers: 13.0 is written as 13000."""
    file = next(folder / "cuda.h" for folder in include if (folder / "cuda.h").is_file())
    (number,) = _part(file.read_text(encoding="utf-8", errors="replace"), r"define CUDA_VERSION (\d+)")
    return number // 1000, number % 1000 // 10


def _part(text: str, pattern: str) -> tuple[int, ...]:
    found = re.search(pattern, text)
    return tuple(int(group) for group in found.groups()) if found else (0,)


@functools.cache
def _library(found: Toolkit) -> ctypes.CDLL:
    # NVRTC opens the second library by its bare name, which finds it when it is loaded already.
    ctypes.CDLL(str(found.builtins.resolve()))
    library = ctypes.CDLL(str(found.library.resolve()))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _checked(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    code = getattr(library, function)(*arguments)
    if code:
        raise CompileError(f"{function}: {library.nvrtcGetErrorString(code).decode()}")


def _run(found: Toolkit, source: str, options: list[str], headers: Mapping[str, str]) -> bytes:
    """One call of NVRTC."""
    library = _library(found)
    program = ctypes.c_void_p()
    _checked(
        library,
        "nvrtcCreateProgram",
        ctypes.byref(program),
        (_PREAMBLE + source).encode(),
        b"kernel.cu",
        len(headers),
        _strings(list(headers.values())),
        _strings(list(headers)),
    )
    try:
        if library.nvrtcCompileProgram(program, len(options), _strings(options)):
            raise CompileError(_error(_output(library, "ProgramLog", program).decode(errors="replace")))
        return _output(library, "CUBIN", program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _strings(texts: list[str]) -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def _output(library: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _checked(library, f"nvrtcGet{what}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(size.value, 1))
    _checked(library, f"nvrtcGet{what}", program, buffer)
    return buffer.raw[: size.value]


def _error(log: str) -> str:
    """The first error of a log, in which warnings may stand before it."""
    lines = [line.strip(" \0") for line in log.splitlines() if line.strip(" \0")]
    return next((line for line in lines if re.search(r"\b(error|fatal)\b", line)), lines[0] if lines else "no log")
