"""What the tests of the compiler room share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from littledragon.compiler import children


@pytest.fixture(scope="module")
def call() -> Iterator[Any]:
    """Calls functions of ours and of `probe/` in one lasting child."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(Path(__file__).parent / "probe"))
    child = children.Child()

    def ask(function: str, **arguments: Any) -> Any:
        return child.call(f"littledragon.{function}", deadline_s=300, **arguments)

    yield ask
    child.close()
    patch.undo()
