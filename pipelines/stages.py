"""The stages, in order, by name. Each is a module of this package, imported when it is needed."""

import importlib
from types import ModuleType
from typing import Final

NAMES: Final = ("workloads", "search", "verify", "pairs", "teach", "check", "publish")


def stage(name: str) -> ModuleType:
    """The stage of this name; or any module that is one, by its dotted name."""
    return importlib.import_module(name if "." in name or name not in NAMES else f"littledragon.pipelines.{name}")
