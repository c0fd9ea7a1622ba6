"""One frozen record of configuration, read from a preset or a YAML file.

`smoke` is what `make demo` runs; `gpu` and `paper` are the larger ones. A stage's units depend only on the
fields that the stage names in its `params`, so changing one stage's setting leaves the others' work alone.
"""

import dataclasses
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from littledragon.pipelines.errors import UserError
from littledragon.pipelines.files import read_regular

PRESETS = Path(__file__).parent / "presets"
MOST_BYTES = 1 << 20
"""A file of settings is no longer than that."""


@dataclass(frozen=True)
class Config:
    """Settings of a run. Those marked *chosen* are ours, not the paper's."""

    preset: str = "smoke"
    target: Literal["llvm", "cuda"] = "llvm"
    device: Literal["real", "simulated"] = "real"
    seed: int = 0
    zoo: Literal["demo", "paper"] = "demo"
    """Which blocks: small ones for a laptop, or the dataset's."""
    limit: int | None = None
    """At most so many zoo blocks, one of each family in turn, in the zoo's order."""
    families: tuple[str, ...] = ()
    """Only these families; empty means all."""
    models: tuple[str, ...] = ()
    """Files of the user's own models (.pt2, .onnx, .py), in place of the zoo."""
    workloads: int | None = None
    """At most so many workloads are searched, of each family in turn, picked by the hash of their ids."""
    held_out: int = 0
    """So many workloads of validation and test, of each family in turn, are searched besides, or are among these."""
    rounds: int = 1
    """Search rounds of each workload."""
    candidates_per_round: int = 16
    population: int = 64
    """Size of a generation of the evolutionary search."""
    warm_up: int = 0
    """Measured candidates of a workload before its cost model is asked; MetaSchedule waits for 100."""
    verify_best: int = 2
    """How many of the fastest candidates are verified."""
    verify_parents: int = 3
    """How many slower ones, spaced evenly in log latency."""
    margin_floor: float = 0.05
    """Smallest margin (*chosen*, design section 6)."""
    stable_band: float = 0.05
    """Largest noise band of a stable kernel."""
    construct_best: int = 1
    """So many of a workload's fastest schedules are construction examples; the paper takes one."""
    refine_per_band: int = 1
    """Refinement pairs of one workload in one gain band."""
    repeat_ms: float = 20.0
    """Least time of one timing repeat when verifying…"""
    search_repeat_ms: float = 20.0
    """…and while searching, where latencies only rank."""
    build_deadline_s: float = 30.0
    run_deadline_s: float = 20.0
    propose_deadline_s: float = 180.0
    reference_deadline_s: float = 300.0
    """For what the original program computes on one input case."""
    teacher: Literal["facts", "openai"] = "facts"
    teacher_model: str = "templates"
    teacher_url: str | None = None
    """Base URL of an OpenAI-compatible endpoint; the key comes from OPENAI_API_KEY."""
    teacher_asks: int = 3
    """Requests for one label at most, the first counted."""
    teacher_deadline_s: float = 120.0
    teacher_rpm: int = 60
    """Requests a minute at most."""


def load(preset: str, file: Path | None = None, **overrides: Any) -> Config:
    """Read a preset, lay a YAML file over it, then options given on the command line (None means not given).

    Raises:
        UserError: unknown preset, a file that is not a mapping of known fields, or a value of another type.
    """
    path = PRESETS / f"{preset}.yaml"
    known = sorted(p.stem for p in PRESETS.glob("*.yaml"))
    if preset not in known:
        raise UserError(f"unknown preset '{preset}': choose one of {', '.join(known)}")
    values: dict[str, Any] = {"preset": preset, **_read(path)}
    if file is not None:
        own = _read(file)
        if own.get("preset", preset) != preset:
            raise UserError(f"{file}: preset: a file lies over a preset and cannot choose it: give --preset instead")
        values |= own
    given = {name: value for name, value in overrides.items() if value is not None}
    from_options = {name: f"--{name.replace('_', '-')}" for name in given}
    return _build(values | given, {name: f"{file or path}: {name}" for name in values} | from_options)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_regular(path, MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise UserError(f"{path}: longer than {MOST_BYTES >> 20} MiB: no file of settings")
        values = yaml.safe_load(text.decode())
    except RecursionError:
        raise UserError(f"{path}: cannot be read as YAML: nested too deeply") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: must be a mapping of settings to values")
    return values


def _build(values: dict[str, Any], places: dict[str, str]) -> Config:
    """places: where each value was given, for the user's eyes."""
    fields = {field.name: field for field in dataclasses.fields(Config)}
    for name, value in values.items():
        if name not in fields:
            raise UserError(f"{places[name]}: unknown setting '{name}': choose one of {', '.join(sorted(fields))}")
        problem = _problem(name, value)
        if problem:
            raise UserError(f"{places[name]}: {problem}")
    # One value has one spelling, since units are named by it: 10 and 10.0 are the same time.
    return Config(**{name: _spelled(fields[name].default, value) for name, value in values.items()})


def _spelled(default: Any, value: Any) -> Any:
    if isinstance(default, float):
        return float(value)
    return tuple(value) if isinstance(default, tuple) else value


_CHOICES = {
    "zoo": ("demo", "paper"),
    "target": ("llvm", "cuda"),
    "device": ("real", "simulated"),
    "teacher": ("facts", "openai"),
}
_LISTS = {"families": "family names", "models": "files"}
_OPTIONAL = {"limit": int, "workloads": int, "teacher_url": str}


def _problem(name: str, value: Any) -> str | None:
    """What is wrong with a value, or None."""
    if name in _CHOICES:
        return (
            None
            if value in _CHOICES[name]
            else f"must be one of {', '.join(_CHOICES[name])}, not {reprlib.repr(value)}"
        )
    if name in _LISTS:
        fine = isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
        return None if fine else f"must be a list of {_LISTS[name]}"
    if name in _OPTIONAL and value is None:
        return None
    wanted = _OPTIONAL.get(name, type(getattr(Config, name)))
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if wanted is float and number:
        return None if 0 < value < 1e9 else f"must be above 0 and below 1e9, not {reprlib.repr(value)}"
    if wanted is int and number and isinstance(value, int):
        least = 0 if name in ("seed", "warm_up", "held_out") else 1
        most = (1 << 31) - 1
        return None if least <= value <= most else f"must be from {least} to {most}, not {reprlib.repr(value)}"
    if wanted is str and isinstance(value, str):
        return None
    kind = "an integer" if wanted is int else "a number" if wanted is float else "text"
    return f"must be {kind}, not {reprlib.repr(value)}"
