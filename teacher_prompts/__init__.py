"""Versioned templates, and the teachers' protocol. A template's version is its name and a hash of its text."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TEMPLATES: Final = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Template:
    """A template's text with `$name` for each slot, and its version, such as `facts@0123456789abcdef`."""

    text: str
    version: str


def load(name: str) -> Template:
    """The template of this name.

    Raises:
        ValueError: there is none.
    """
    known = sorted(path.stem for path in TEMPLATES.glob("*.txt"))
    if name not in known:
        raise ValueError(f"no template '{name}': there are {', '.join(known)}")
    text = (TEMPLATES / f"{name}.txt").read_text(encoding="utf-8")
    return Template(text, f"{name}@{hashlib.sha256(text.encode()).hexdigest()[:16]}")
