"""The house rules that no linter knows: who may import whom, and what must stay lazy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "schemas": set(),
    "teacher_prompts": {"schemas"},
    "compiler": {"schemas"},
    "validators": {"compiler", "schemas"},
    "release": {"validators", "compiler", "teacher_prompts", "schemas"},
    "pipelines": {"release", "validators", "compiler", "teacher_prompts", "schemas"},
}
HEAVY = {"tvm", "torch", "great_expectations", "datasets", "openai"}


def imports(path: Path) -> list[tuple[str, bool]]:
    """Every absolute module name that a file imports, and whether that happens at its top level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = {id(node) for node in tree.body}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "littledragon":
                names = [f"littledragon.{alias.name}" for alias in node.names]
            found += [(name, id(node) in top) for name in names]
    return found


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_run_downwards(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        for name, at_top in imports(path):
            parts = name.split(".")
            assert parts[0] not in MAY_IMPORT, f"{path}: import littledragon.{name}, not {name}"
            if parts[0] == "littledragon":
                assert parts[1] == room or parts[1] in MAY_IMPORT[room], f"{path}: {room} may not import {name}"
            if parts[0] == "tvm":
                assert room == "compiler", f"{path}: only the compiler room imports TVM"
            assert not (at_top and parts[0] in HEAVY), f"{path}: {name} is imported where it is used, not at the top"


def test_src_holds_one_relative_link_for_each_room() -> None:
    entries = {path.name: path for path in (ROOT / "src" / "littledragon").iterdir() if path.name != "__pycache__"}
    assert set(entries) == set(MAY_IMPORT)
    for name, path in entries.items():
        assert path.is_symlink()
        assert str(path.readlink()) == f"../../{name}"


def test_language_and_help_need_no_tvm() -> None:
    code = (
        "import sys, littledragon.schemas.tsel, littledragon.pipelines.cli\n"
        f"print(sorted(set(sys.modules) & {HEAVY!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
