"""What the student is asked: chat messages for the two modes.

A prompt is a function of a record that holds what the student may see and nothing else, so no latency and no
scheduled program can get in (paper, section 3: the student receives only information available for its task).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final

TEMPLATES: Final = Path(__file__).parent / "templates"
PROMPT_FILES: Final = ("system.txt", "construction.txt", "prior.txt")

Message = dict[str, str]
"""`role` (system, user or assistant) and `content`."""

WIDTH: Final = 160
"""Feature entries up to this many characters stand on one line."""


@dataclass(frozen=True)
class ConstructionTask:
    """x = (d, M0, F(M0), h): the description, M0 as TVMScript, the features as JSON, the environment in words."""

    description: str
    script: str
    features: str
    environment: str


@dataclass(frozen=True)
class RefinementTask:
    """x, and the supplied graph A (payload and edit summaries only), its summary, and the gain to aim at."""

    description: str
    script: str
    features: str
    environment: str
    prior_graph: str
    prior_summary: str
    gain_band: str


def construction(task: ConstructionTask) -> list[Message]:
    """The messages that ask for a complete script: system, user."""
    return [_message("system", _template("system.txt").template.rstrip()), _message("user", _question(task))]


def refinement(task: RefinementTask) -> list[Message]:
    """The dialogue that asks for a faster script than A: system, user (x), assistant (A), user (what to improve)."""
    request = _template("prior.txt").substitute(prior_summary=task.prior_summary, gain_band=task.gain_band)
    return [
        _message("system", _template("system.txt").template.rstrip()),
        _message("user", _question(task)),
        _message("assistant", task.prior_graph),
        _message("user", request.rstrip()),
    ]


def environment(row: Mapping[str, Any]) -> str:
    """The text h, from a row of `environments`: target, its limits and TVM's version, never a machine or a latency.

    Raises:
        ValueError: the target is neither llvm nor cuda.
    """
    target = json.loads(row["target"])
    tvm = f"Apache TVM {row['tvm']}"
    if target["kind"] == "llvm":
        processor = f"mcpu {target['mcpu']}" if "mcpu" in target else "a generic CPU"
        return f"{tvm}, target llvm ({processor}), {target['num-cores']} cores."
    if target["kind"] == "cuda":
        return (
            f"{tvm}, target cuda ({target['arch']}), at most {target['max_threads_per_block']} threads and "
            f"{target['max_shared_memory_per_block']} bytes of shared memory per block, "
            f"warps of {target['thread_warp_size']} threads."
        )
    raise ValueError(f"environment {row['environment_id']}: target {target['kind']} has no words")


def version() -> str:
    """A hash of the templates: prompts of another version are other prompts."""
    digest = hashlib.sha256()
    for name in PROMPT_FILES:
        digest.update((TEMPLATES / name).read_bytes())
    return digest.hexdigest()[:16]


def readable(value: Any, indent: str = "") -> str:
    """JSON that a person can read and that wastes few tokens: a value stands on one line where it fits."""
    flat = json.dumps(value, ensure_ascii=False, separators=(", ", ": "), allow_nan=False)
    if len(indent) + len(flat) <= WIDTH or not isinstance(value, (dict, list)) or not value:
        return flat
    deeper = indent + " "
    if isinstance(value, dict):
        items = [f"{deeper}{json.dumps(k, ensure_ascii=False)}: {readable(v, deeper)}" for k, v in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + readable(v, deeper) for v in value) + f"\n{indent}]"


def _question(task: ConstructionTask | RefinementTask) -> str:
    text = _template("construction.txt").substitute(
        description=task.description.strip(),
        environment=task.environment.strip(),
        script=task.script.strip(),
        features=readable(json.loads(task.features)),
    )
    return text.rstrip()


def _template(name: str) -> Template:
    return Template((TEMPLATES / name).read_text(encoding="utf-8"))


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
