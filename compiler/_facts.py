"""A list of facts in the making: paths that are unique, values as canonical JSON, words in plain ASCII."""

import math
import re
from typing import Any, Final

from littledragon.schemas.ids import canonical_json

Row = dict[str, Any]

MAX_FACTS: Final = 2000


class Facts:
    """Facts in the order in which they are added; a path that is taken gets a number."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._paths: set[str] = set()

    def add(self, path: str, value: Any, text: str, derivation: str) -> None:
        base = ".".join(segment(part) for part in path.split("."))
        path, tries = base, 1
        while path in self._paths:
            tries += 1
            path = f"{base}_{tries}"
        if len(self.rows) >= MAX_FACTS:
            return
        self._paths.add(path)
        text = "".join(c if " " <= c <= "~" else "?" for c in text)
        row = {"path": path, "value": canonical_json(value), "text": text, "derivation": derivation}
        self.rows.append({**row, "position": len(self.rows)})


def segment(name: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_") or "_"


def times(factors: list[int]) -> str:
    if len(factors) < 2:
        return str(factors[0]) if factors else "1"
    return f"{' * '.join(map(str, factors))} = {math.prod(factors)}"
