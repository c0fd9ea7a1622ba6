"""Tensor intrinsics from the cache are those that TVM registers; no state of the cache keeps a process from them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOOK = """
import sys, tvm
from tvm.s_tir import TensorIntrin
import littledragon.compiler.intrinsics as ours
from tvm_ffi import structural_hash
names = __import__("json").loads(ours.file().read_text().splitlines()[1])["names"]
found = [TensorIntrin.get(name) for name in names]
print(len(names), structural_hash(tvm.runtime.convert([[one.desc, one.impl] for one in found])))
print(hasattr(sys.modules["tvm.s_tir.tensor_intrin"], "cuda"))
"""


def look(cache: Path | None, code: str = LOOK) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **({"XDG_CACHE_HOME": str(cache)} if cache else {})},
        capture_output=True,
        text=True,
        check=True,
        timeout=400,
    )
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A cache folder that a first process has filled, and what that process saw."""
    folder = tmp_path_factory.mktemp("cache")
    (seen, imported) = look(folder)
    assert imported == "True"
    return folder, seen


@pytest.mark.slow
def test_after_one_process_the_next_imports_nothing() -> None:
    """In the user's own cache: an import takes a minute on a slow machine."""
    seen, _ = look(None)
    assert int(seen.split()[0]) > 100
    assert look(None) == [seen, "False"]


@pytest.mark.slow
def test_a_second_process_reads_what_the_first_one_imported(cache: tuple[Path, str]) -> None:
    folder, seen = cache
    assert int(seen.split()[0]) > 100
    assert look(folder) == [seen, "False"]
    (kept,) = (folder / "littledragon").iterdir()
    assert "intrinsics" in kept.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["", "{", '{"names": [], "functions": 3}', '{"names": ["a"], "functions": "[]"}', "cut"]
)
def test_a_damaged_cache_is_made_anew(cache: tuple[Path, str], tmp_path: Path, text: str) -> None:
    folder, seen = cache
    (kept,) = (folder / "littledragon").iterdir()
    (tmp_path / "littledragon").mkdir()
    damaged = tmp_path / "littledragon" / kept.name
    whole = kept.read_text(encoding="utf-8")
    damaged.write_text({"cut": whole[: len(whole) // 2], "shared": whole}.get(text, text), encoding="utf-8")
    if text == "shared":
        damaged.chmod(0o666)
    if text == "link":
        damaged.unlink()
        damaged.symlink_to(kept)
    assert look(tmp_path) == [seen, "True"]
    assert damaged.read_text(encoding="utf-8") == whole
    assert damaged.stat().st_mode & 0o777 == 0o600
    assert not damaged.is_symlink()


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "littledragon").write_text("a file", encoding="utf-8")
    code = "import littledragon.compiler.intrinsics; from tvm.s_tir import TensorIntrin; "
    assert look(tmp_path, code + "print(TensorIntrin.get('mma_ldmatrix_f16_a') is not None)") == ["True"]


@pytest.mark.slow
def test_spaces_are_made_with_intrinsics_from_the_cache() -> None:
    code = """
import tvm
from tvm import te
import littledragon.compiler.intrinsics
from littledragon.compiler import targets
from littledragon.compiler.proposals import tune_context
from littledragon.compiler.rules import LOCAL
x, w = (te.placeholder((256, 256), name=name, dtype="float16") for name in "xw")
k = te.reduce_axis((0, 256), "k")
y = te.compute((256, 256), lambda i, j: te.sum(x[i, k].astype("float32") * w[k, j].astype("float32"), k), name="y")
mod = tvm.IRModule({"main": te.create_prim_func([x, w, y])})
for rules in ("cuda-tensorcore", LOCAL):
    spaces = tune_context(mod, targets.target("cuda"), rules, 1).generate_design_space()
    print(any("Tensorize" in str(one.trace) or "auto_tensorize" in str(one.trace) for one in spaces))
"""
    assert look(None, code) == ["True", "False"]
