"""Content ids. Everything that is kept is named by what it is, never by where or when it was made.

A unit of work is named by the first 16 hex digits of SHA-256 over canonical JSON; the id of a record
carries a kind letter in front (`w-` workload, `c-` candidate, `s-` selection, `l-` label, `x-` example),
so that `dragon show` and `dragon replay` know what they are given.
"""

import hashlib
import json
import re
from typing import Any, Literal

Kind = Literal["w", "c", "s", "l", "x"]
ID_PATTERN = re.compile(r"[wcslx]-[0-9a-f]{16}")


def canonical_json(value: Any) -> str:
    """The one spelling of a JSON value: sorted keys, no spaces, UTF-8, no NaN or infinity.

    Raises:
        ValueError: the value holds NaN or an infinity.
        TypeError: the value is not JSON.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """First 16 hex digits of SHA-256 over the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


def content_id(kind: Kind, value: Any) -> str:
    """The id of a record of this kind, for example `w-3f0c…`, from the JSON value that defines it."""
    return f"{kind}-{digest(value)}"


def unit_id(stage: str, version: int, params: Any, inputs: Any) -> str:
    """The id of one unit of a stage's work: a function of what goes in, and of nothing else."""
    return digest({"stage": stage, "version": version, "params": params, "inputs": inputs})
