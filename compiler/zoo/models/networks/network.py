"""A network whose layers are read off."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

Shape = tuple[int, ...]

BSD: Final = "BSD-3-Clause"
APACHE: Final = "Apache-2.0"
MIT: Final = "MIT"


@dataclass(frozen=True)
class Network:
    """A published network; `build` gives a function of one tensor, `shapes` has the shape of one input, or of several
    that are run one after the other, without the batch.
    """

    key: str
    name: str
    source: str
    licence: str
    build: Callable[[], Any]
    shapes: tuple[Shape, ...]


def library(name: str) -> Any:
    """A module of a library that defines networks: the project itself does not depend on one.

    Raises:
        ImportError: it is not installed.
    """
    return import_module(name)
