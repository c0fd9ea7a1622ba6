"""`dragon replay ID`: run one row here, and set what comes out beside what it claims.

The row's text is decoded, applied to M0 in a child, built, compared with the original computation on every input
case, and timed with the default schedule (and graph A, where it refines one) in three fresh processes, with repeats as
long as the claim's. The source
is a work directory, or a published folder, whose files are not trusted: see release/published.py.
"""

import dataclasses
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from littledragon.compiler import children, targets
from littledragon.compiler.children import ChildError
from littledragon.compiler.inputs import CASES
from littledragon.pipelines import search
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.progress import busy
from littledragon.pipelines.show import clean, find
from littledragon.pipelines.store import Store
from littledragon.schemas.gates import OK
from littledragon.validators import device as devices
from littledragon.validators import scratch
from littledragon.validators.device import Device, GateFailed, Kernel
from littledragon.validators.stability import noise_band

if TYPE_CHECKING:
    from rich.console import Console

PROCESSES: Final = 3
READ_DEADLINE_S: Final = 120.0
MOST_REPEAT_MS: Final = 1000.0
"""A claim that asks for longer repeats than these is not followed in it."""

CORRECT, NOT_CORRECT = 0, 1

Row = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """What a row says, and what is needed to try it. Latencies in microseconds, None where the row has none."""

    id: str
    mode: str
    module: str
    specs: list[Row]
    text: str | None
    """The graph; None for the default schedule."""
    prior: str | None
    """Graph A of a refinement."""
    status: str
    """The first gate that the row's kernel failed where it was measured, or ok."""
    latency_us: float | None
    default_us: float | None
    parent_us: float | None
    margin: float | None
    environment: Row


@dataclass
class Trial:
    """One schedule, here."""

    name: str
    text: str | None
    gate: str = OK
    reason: str = ""
    kernel: Kernel | None = None
    run_s: float = 0.0
    error: float = math.nan
    medians: list[float] = field(default_factory=list)

    def fail(self, gate: str, reason: str) -> None:
        self.gate, self.reason = gate, reason

    @property
    def latency_us(self) -> float | None:
        return statistics.median(self.medians) if len(self.medians) == PROCESSES else None

    @property
    def band(self) -> float:
        return noise_band(self.medians)


def replay(source: Path, id: str, config: Config, console: "Console | None" = None) -> int:
    """Run the row `id` of a work directory or a published folder here and print what became of its claim.

    Returns:
        0 when its kernel computes the right result here, 1 when it does not or never runs.

    Raises:
        UserError: no such row, a folder that is none, or no device of the row's target here.
    """
    from rich.console import Console

    console = console or Console()
    claim = _from_store(Store.open(source), id) if (source / "dragon.json").is_file() else _from_release(source, id)
    kind = json.loads(claim.environment["target"])["kind"]
    target = targets.target(kind)
    config = dataclasses.replace(config, target=kind, repeat_ms=_repeat_ms(claim.environment) or config.repeat_ms)
    try:
        device = devices.open_device(config.device, target, search.deadlines(config))
    except targets.DeviceMissing as error:
        raise UserError(str(error)) from None
    trials = [Trial("L0, the default schedule", None)]
    if claim.prior is not None:
        trials.append(Trial("A, the prior graph", claim.prior))
    if claim.text is not None:
        trials.append(Trial(f"L, {id}", claim.text))
    _try(trials, claim, device, config)
    return _report(claim, trials, search.environment_row(config), config.stable_band, console)


def _repeat_ms(environment: Row) -> float | None:
    """How long the claim's own repeats were at least; None where its settings do not say it soundly."""
    try:
        least = json.loads(environment["settings"])["repeat_ms"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return float(least) if isinstance(least, int | float) and 0 < least <= MOST_REPEAT_MS else None


# -- what the row claims ---------------------------------------------------------------------------


def _from_store(store: Store, id: str) -> Claim:
    """The claim of an example, label or candidate of a work directory."""
    row = find(store, id)
    if id[0] not in "xlc":
        raise UserError(f"{id}: give an example (x-), a label (l-) or a candidate (c-): `dragon show {id}` names some")
    selection = row
    if id[0] == "l":
        if row["graph"] is None:
            raise UserError(f"{id}: this label has no graph: it is {row['state']} ({row['reason']})")
        selection = find(store, row["selection_id"])
    work, environment = selection["workload_id"], selection["environment_id"]
    candidate, parent = selection["candidate_id"], selection.get("parent_id")
    verdicts = {
        v["candidate_id"]: v
        for v in store.rows("verdicts", "workload_id = $work AND environment_id = $here", work=work, here=environment)
    }
    text = row["completion"] if id[0] == "x" else row["graph"] if id[0] == "l" else _payload(store, row)
    workload = find(store, work)
    anchors = store.rows("anchors", "workload_id = $work AND environment_id = $here", work=work, here=environment)
    measured = verdicts.get(candidate) or find(store, candidate)
    return Claim(
        id=id,
        mode=selection.get("mode", "candidate"),
        module=workload["module"],
        specs=json.loads(workload["inputs"]),
        text=text,
        prior=_payload(store, {"candidate_id": parent, "source": "evolutionary"}) if parent else None,
        status=measured["status"],
        latency_us=measured["latency_us"],
        default_us=anchors[0]["default_us"] if anchors else None,
        parent_us=(verdicts.get(parent) or find(store, parent))["latency_us"] if parent else None,
        margin=anchors[0]["margin"] if anchors else None,
        environment=store.rows("environments", "environment_id = $here", here=environment)[0],
    )


def _payload(store: Store, candidate: Row) -> str | None:
    """The payload of a candidate, None for the default schedule."""
    traces = store.rows("traces", "candidate_id = $id", id=candidate["candidate_id"])
    if traces and traces[0]["tsel"]:
        return str(traces[0]["tsel"])
    if candidate["source"] == "default":
        return None
    raise UserError(f"{candidate['candidate_id']}: has no payload: it failed the gate {candidate.get('status')}")


def _from_release(folder: Path, id: str) -> Claim:
    """The claim of an example of a published folder, read in a child."""
    if not (folder / "README.md").is_file():
        raise UserError(f"{folder}: neither a work directory (dragon.json) nor a release (README.md)")
    if id[:2] != "x-":
        raise UserError(f"{clean(id)[:40]}: a release holds examples only: give an id with x-")
    read = "littledragon.release.published:read"
    try:
        with busy(f"reading {folder}"):
            row = children.once(read, deadline_s=READ_DEADLINE_S, folder=str(folder.absolute()), id=id)
    except ChildError as error:
        said = error.detail.removeprefix("Unreadable: ") if error.kind == "raised" else str(error)
        raise UserError(said) from None
    example, task, environment = row["example"], row["task"], row["environment"]
    return Claim(
        id=id,
        mode=example["mode"],
        module=task["module"],
        specs=json.loads(task["inputs"]),
        text=example["completion"],
        prior=example["messages"][2]["content"] if example["mode"] == "refine" else None,
        status=OK,
        latency_us=example["latency_us"],
        default_us=example["default_us"],
        parent_us=example["parent_us"],
        margin=task["margin"],
        environment=environment,
    )


# -- what happens here -----------------------------------------------------------------------------


def _try(trials: Sequence[Trial], claim: Claim, device: Device, config: Config) -> None:
    """Build, check and time every trial; what fails keeps its gate and reason."""
    workload = devices.Workload(claim.module, claim.specs)
    with scratch.temporary("replay") as folder, _steps() as say:
        for trial in trials:
            say(f"building and checking {trial.name}")
            _build_and_check(trial, workload, device, config, folder)
        alive = [trial for trial in trials if trial.gate == OK]
        for process in range(PROCESSES):
            say(f"timing in fresh process {process + 1} of {PROCESSES}")
            kernels = [(trial.kernel, trial.run_s) for trial in alive if trial.kernel is not None]
            answers = device.time_fresh(kernels, workload, config.repeat_ms, process, config.seed)
            for trial, answer in zip(alive, answers, strict=True):
                if isinstance(answer, GateFailed):
                    trial.reason = f"{answer.gate}: {answer.reason}"
                else:
                    trial.medians.append(statistics.median(answer))


def _build_and_check(trial: Trial, workload: devices.Workload, device: Device, config: Config, folder: Path) -> None:
    made = device.make(workload, Path(tempfile.mkdtemp(dir=folder)), text=trial.text)
    if made.kernel is None:
        assert made.failed is not None
        return trial.fail(made.failed.gate, made.failed.reason)
    trial.kernel = made.kernel
    try:
        checked = device.check(made.kernel, workload, range(len(CASES)), config.seed)
        trial.run_s, trial.error = checked.run_s, checked.error
        checked.judge()
    except GateFailed as failed:
        trial.fail(failed.gate, failed.reason)
    return None


@contextmanager
def _steps() -> Iterator[Any]:
    """What is being done, on stderr."""
    from rich.console import Console

    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield lambda words: console.print(words, markup=False, highlight=False)
        return
    from rich.markup import escape

    with console.status("") as status:
        yield lambda words: status.update(escape(words))


# -- what it comes to ------------------------------------------------------------------------------


def _report(claim: Claim, trials: Sequence[Trial], here: Row, stable_band: float, console: "Console") -> int:
    from rich.table import Table

    trial = trials[-1]
    claimed = [claim.default_us, *([claim.parent_us] if claim.prior is not None else [])]
    if claim.text is not None:
        claimed.append(claim.latency_us)
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for name in ("", "claim, µs", "here, µs", "here, correctness"):
        table.add_column(name, overflow="fold")
    for row, latency in zip(trials, claimed, strict=True):
        table.add_row(row.name, _us(latency), _us(row.latency_us), clean(_verdict(row)))
    console.print(table)
    for line in _environment_lines(claim.environment, here):
        _print(console, line)
    if here["device"] == "simulated":
        _print(console, "device: simulated, so nothing was run and the numbers here are invented")
    base = trials[-2] if len(trials) > 1 else trial
    base_claimed = claimed[-2] if len(trials) > 1 else claimed[-1]
    correct = trial.gate == OK
    if len(trials) > 1:
        name = "L_A / L" if claim.prior is not None else "L0 / L"
        _print(console, _speed_line(name, claim, base_claimed, (base, trial), stable_band))
    gate = "" if claim.status == OK else f" (its own run failed the gate {claim.status})"
    _print(console, f"{claim.id}: {'correct here' if correct else f'not correct here: {_verdict(trial)}'}{gate}")
    return CORRECT if correct else NOT_CORRECT


def _print(console: "Console", words: str) -> None:
    console.print(clean(words), markup=False, highlight=False)


def _us(latency: float | None) -> str:
    return "-" if latency is None else f"{latency:.2f}"


def _verdict(trial: Trial) -> str:
    if trial.gate != OK:
        return f"fails {trial.gate}: {trial.reason}"
    told = f"correct (error {trial.error:.2g} of its bound)"
    if trial.reason:
        return f"{told}; not timed: {trial.reason}"
    return f"{told}, processes within {trial.band:.1%}" if trial.latency_us is not None else told


def _environment_lines(claimed: Row, here: Row) -> list[str]:
    if claimed["environment_id"] == here["environment_id"]:
        return ["environment: the same as the claim's"]
    differing = [name for name in here if name != "environment_id" and claimed.get(name) != here[name]]
    lines = [f"  {name}: {str(claimed.get(name))[:200]} there, {str(here[name])[:200]} here" for name in differing]
    return ["environment: not the claim's, so only ratios can be compared:", *lines]


def _speed_line(
    name: str, claim: Claim, base_claimed: float | None, here: tuple[Trial, Trial], stable_band: float
) -> str:
    """Whether the gain beyond the margin that the row stands for is there; noise is no answer."""
    base, own = here
    if base.latency_us is None or own.latency_us is None:
        return f"{name}: not measured here"
    ratio = base.latency_us / own.latency_us
    told = f"{name}: {ratio:.3f} here"
    if base_claimed is not None and claim.latency_us is not None:
        told += f", {base_claimed / claim.latency_us:.3f} claimed"
    if claim.margin is None or claim.mode == "candidate":
        return told
    if (band := max(base.band, own.band)) > stable_band:
        return f"{told}: too noisy here to judge the claim ({band:.1%} between processes): leave the machine idle"
    holds = ratio - 1 > claim.margin
    return f"{told}: the claim of more than {1 + claim.margin:.3f} {'holds' if holds else 'does not hold'} here"
