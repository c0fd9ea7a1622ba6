"""What `dragon eval` compares models with: outputs that no model wrote."""

import dataclasses
import functools
import math
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import rules as rule_sets
from littledragon.compiler import slots, targets
from littledragon.compiler.children import ChildError
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.progress import busy
from littledragon.pipelines.questions import PIECE, Baseline, Prompt, Settings, Text, ask_child
from littledragon.pipelines.threads import in_children
from littledragon.release import published
from littledragon.release.published import Unreadable
from littledragon.schemas import tsel
from littledragon.schemas.graph import Instruction
from littledragon.schemas.ids import digest
from littledragon.validators import device as devices
from littledragon.validators.service import Task, is_fault

Row = dict[str, Any]

TRAINING_COLUMNS: Final = ("example_id", "split", "workload_id", "environment_id", "latency_us")
DRAW_S: Final = 900.0
"""For all draws of a prompt: a space in which nothing legal is found by then gives empty outputs."""
LATE_S: Final = 300.0
"""A draw that began in time may take so long: whoever takes longer has died of it."""
DEATHS: Final = 3
"""TVM dies of some traces: so often others are drawn."""
DRAW: Final = "littledragon.compiler.draws:draw"


def baseline(release: Path, name: Baseline, prompts: dict[str, Prompt]) -> Iterator[Text]:
    """One output of each prompt: reference, default or nearest, see `Source`. Raises UserError."""
    if name == "nearest":
        yield from _nearest(release, prompts)
        return
    for id, prompt in prompts.items():
        yield Text(id, 0, prompt.completion if name == "reference" else "", default=name == "default")


def _nearest(release: Path, prompts: dict[str, Prompt]) -> Iterator[Text]:
    """The fastest answer to the nearest training workload; what is not known of one is an empty text."""
    ids = sorted({prompt.task_id for prompt in prompts.values()})
    environments = sorted({prompt.environment_id for prompt in prompts.values()})
    folder = str(release.absolute())
    texts: dict[str, str] = {}
    try:
        with busy("looking for the nearest training rows"):
            asked = {"folder": folder, "workloads": ids, "environments": environments}
            found = ask_child("eval_baselines:nearest", **asked)["found"]
            wanted = sorted({near["example_id"] for near in found.values()})
            place: list[int] | None = [0, 0] if wanted else None
            while place is not None:
                piece = ask_child("eval_baselines:read_answers", folder=folder, wanted=wanted, place=place)
                texts |= piece["texts"]
                place = piece["place"]
    except Unreadable as error:
        raise UserError(str(error)) from None
    for id, prompt in prompts.items():
        near = found.get(prompt.task_id)
        yield Text(id, 0, retiled(texts[near["example_id"]], near["theirs"], near["ours"]) if near else "")


def nearest(folder: str, workloads: list[str], environments: list[str]) -> Row:
    """For each of these workloads the nearest one of the training split: the id of its fastest answer in these
    environments, and both workloads' extents.

    Nearest: of the same signature, then of the same number of extents, then by the sum of |log| of their ratios.
    Runs in a child of bounded memory.

    Raises:
        Unreadable: a file that no release of ours holds.
    """
    return published.bounded(folder, functools.partial(_find_nearest, Path(folder), workloads, environments))


def _find_nearest(root: Path, workloads: list[str], environments: list[str]) -> Row:
    best: dict[str, tuple[float, str]] = {}
    for path in _examples(root):
        for rows in published.batches(path, TRAINING_COLUMNS, 0):
            for row in rows:
                ours = row["split"] == "train" and row["environment_id"] in environments
                if ours and None not in row.values():
                    one = (row["latency_us"], row["example_id"])
                    best[row["workload_id"]] = min(one, best.get(row["workload_id"], one))
    cells = _cells(root)
    training = sorted(best.keys() & cells.keys())
    chosen: dict[str, str] = {}
    for workload in workloads:
        others = [id for id in training if id != workload]  # of the training split itself, its answer is no neighbour's
        if workload in cells and others:
            chosen[workload] = min((_distance(*cells[workload], *cells[id]), id) for id in others)[1]
    found = {
        workload: {"example_id": best[near][1], "theirs": cells[near][1], "ours": cells[workload][1]}
        for workload, near in chosen.items()
    }
    return {"found": found}


def read_answers(folder: str, wanted: list[str], place: list[int]) -> Row:
    """The answers of these examples from this file and row on, some at a time, and the place where to go on. Runs in a
    child of bounded memory.

    Raises:
        Unreadable: a file that no release of ours holds.
    """
    return published.bounded(folder, functools.partial(_read_answers, Path(folder), set(wanted), place))


def _read_answers(root: Path, wanted: set[str], place: list[int]) -> Row:
    texts: dict[str, str] = {}
    size = 0
    number, first = place
    files = _examples(root)
    for at in range(number, len(files)):
        ids = [row["example_id"] for rows in published.batches(files[at], ("example_id",), 0) for row in rows]
        if wanted.isdisjoint(ids[first:]):
            first = 0
            continue
        for rows in published.batches(files[at], ("example_id", "completion"), first):
            found = {row["example_id"]: row["completion"] or "" for row in rows if row["example_id"] in wanted}
            texts |= found
            size += sum(map(len, found.values()))
            first += len(rows)
            if size > PIECE:
                return {"texts": texts, "place": [at, first]}
        first = 0
    return {"texts": texts, "place": None}


def _examples(root: Path) -> list[Path]:
    """The files of all examples, always in the same order."""
    return [path for mode in ("construction", "refinement") for path in published.files(root, f"{mode}/*.parquet")]


def drawn(
    release: Path,
    prompts: dict[str, Prompt],
    tasks: dict[str, Task],
    settings: Settings,
    wanted: Sequence[tuple[str, int]],
) -> Generator[Text, None, None]:
    """Random legal members of the design spaces of these prompts' tasks, for each prompt its own.

    An output is empty where no draw was legal in time, or TVM died of each; one that nobody could draw is a fault.

    Raises:
        UserError: no device of the tasks here, or a task without a rule set.
    """
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for id, number in wanted:
        numbers[id].append(number)
    rules = rules_of(release, {prompts[id].task_id: tasks[prompts[id].task_id] for id in numbers}.values())
    slots.use(settings.workers)

    def draw(id: str) -> list[Text]:
        task = tasks[prompts[id].task_id]
        device = devices.open_device(settings.device, task.target)
        began = time.monotonic()
        for attempt in range(DEATHS):
            try:
                found = device.on_slot(
                    DRAW,
                    DRAW_S + LATE_S,
                    module=task.module,
                    target=task.target,
                    rules=rules[task.task_id],
                    count=max(numbers[id]) + 1,
                    state=int(digest([settings.seed, id, attempt]), 16) % (1 << 28) + 1,
                    budget_s=DRAW_S,
                )
                return [Text(id, n, found[n]["text"] or "", found[n]["seconds"]) for n in numbers[id]]
            except (ChildError, OSError) as error:
                if is_fault(error, raising=True):
                    return [Text(id, number, "", fault=f"no draw: {published.short(error)}") for number in numbers[id]]
        return [Text(id, number, "", time.monotonic() - began) for number in numbers[id]]

    try:
        for texts in in_children(draw, list(numbers), settings.at_once):
            yield from texts
    except targets.DeviceMissing as error:
        raise UserError(str(error)) from None


def rules_of(release: Path, tasks: Iterable[Task]) -> dict[str, str]:
    """The rule set of each task's design space, as the release's metadata tell of it.

    Raises:
        UserError: a task has none there, or none of its target's kind.
    """
    try:
        found = ask_child("eval_baselines:read_rules", folder=str(release.absolute()))["found"]
    except Unreadable as error:
        raise UserError(str(error)) from None
    wanted = {task.task_id: task.target["kind"] for task in tasks}
    known = (*rule_sets.POSTPROCS, rule_sets.LOCAL)
    for id, kind in wanted.items():
        if (own := found.get(id)) not in known or rule_sets.kind_of(own) != kind:
            said = f"names rule set '{published.short(own)}'" if own else "names no rule set"
            raise UserError(f"{release}: metadata/workloads.parquet {said} for {published.short(id)}, of target {kind}")
    return {id: found[id] for id in wanted}


def read_rules(folder: str) -> Row:
    """Rule sets by workload. Runs in a child of bounded memory.

    Raises:
        Unreadable: a file that no release of ours holds.
    """
    return published.bounded(folder, functools.partial(_read_rules, Path(folder)))


def _read_rules(root: Path) -> Row:
    found: dict[str, str] = {}
    for path in published.files(root, "metadata/workloads.parquet"):
        for rows in published.batches(path, ("workload_id", "state", "rules"), 0):
            found |= {r["workload_id"]: r["rules"] for r in rows if r["state"] == "ok" and r["workload_id"]}
    return {"found": found}


def _cells(root: Path) -> dict[str, tuple[str, list[int]]]:
    """Signature and extents of every workload."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = {
        "workload_id": pa.string(),
        "state": pa.string(),
        "signature": pa.string(),
        "extents": pa.list_(pa.int64()),
    }
    cells: dict[str, tuple[str, list[int]]] = {}
    for path in published.files(root, "metadata/workloads.parquet"):
        try:
            file = pq.ParquetFile(path, thrift_string_size_limit=1 << 24, arrow_extensions_enabled=False)
            for name, kind in wanted.items():
                at = file.schema_arrow.get_all_field_indices(name)
                if len(at) != 1 or file.schema_arrow.field(at[0]).type != kind:
                    raise Unreadable(f"{path}: has no column '{name}' of type {kind}")
            for batch in file.iter_batches(1024, columns=list(wanted)):
                for row in batch.to_pylist():
                    known = row["state"] == "ok" and row["workload_id"] and row["signature"] is not None
                    extents = row["extents"] or []
                    if known and len(extents) <= 64 and all(extent and extent > 0 for extent in extents):
                        cells[row["workload_id"]] = (row["signature"], extents)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Unreadable(f"{path}: damaged: {published.short(error)}") from None
    return cells


def _distance(signature: str, extents: Sequence[int], theirs: str, others: Sequence[int]) -> tuple[bool, bool, float]:
    apart = math.fsum(abs(math.log(a / b)) for a, b in zip(extents, others, strict=False))
    return signature != theirs, len(extents) != len(others), apart


def retiled(text: str, theirs: Sequence[int], ours: Sequence[int]) -> str:
    """A training answer with its tiles fitted to other extents; as it is where that cannot be done.

    A tile of a loop of the anchor block, which is as long as that block's extent, takes the new extent; other tiles
    do where all equal extents become the same. From the innermost factor outwards each becomes the largest divisor of
    what is left that is no larger than it was, and the outermost takes the rest: factors always multiply to the
    extent, and none that has a limit grows. Whatever else depends on the extents is left to the gates.
    """
    try:
        graph = tsel.decode(text).graph
    except tsel.TselError:
        return text
    if len(theirs) != len(ours) or list(theirs) == list(ours):
        return text
    becomes: dict[int, set[int]] = {}
    for old, new in zip(theirs, ours, strict=True):
        becomes.setdefault(old, set()).add(new)
    known = {old: min(new) for old, new in becomes.items() if len(new) == 1}
    place: dict[str, int] = {}
    edits = []
    for edit in graph.edits:
        steps = []
        for step in edit.instructions:
            if step.kind == "GetLoops" and len(step.outputs) == len(ours):
                place |= {name: at for at, name in enumerate(step.outputs)}
            steps.append(_fitted(step, place, known, theirs, ours))
        edits.append(dataclasses.replace(edit, instructions=tuple(steps)))
    try:
        return tsel.render(dataclasses.replace(graph, edits=tuple(edits))).text
    except tsel.TselError:
        return text


def _fitted(
    step: Instruction, place: dict[str, int], known: dict[int, int], theirs: Sequence[int], ours: Sequence[int]
) -> Instruction:
    decision = step.decision
    if not isinstance(decision, dict) or "factors" not in decision or not step.inputs:
        return step
    extent, factors = decision["extent"], decision["factors"]
    at = place.get(step.inputs[0]) if isinstance(step.inputs[0], str) else None
    new = ours[at] if at is not None and theirs[at] == extent else known.get(extent)
    if new is None or math.prod(factors) < 1 or extent % math.prod(factors):
        return step
    left = new
    fitted: list[int] = []
    for factor in reversed([*factors[1:], extent // math.prod(factors)]):
        largest = next(divisor for divisor in range(min(factor, left), 0, -1) if left % divisor == 0)
        left //= largest
        fitted.insert(0, largest)
    return step._replace(decision={"extent": new, "factors": [left, *fitted][: len(factors)]})
