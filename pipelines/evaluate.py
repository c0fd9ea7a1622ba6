"""`dragon eval`: what a model's outputs for a release's prompts are worth, in the terms of the paper's Table 1.

First the outputs: of a file, of a model behind an endpoint or on this machine, or of a baseline. Then each goes through
`validators.service`. A kernel is never timed while a model generates, so one comes after the other.

    FILE.jsonl          the results: a line that says what was run, then one for each judged output
    FILE.outputs.jsonl  what a model wrote, as --outputs takes it
    FILE.summary.json   the figures

Both JSONL files only grow, and each line is flushed to the disk: a run that was interrupted goes on where it stopped.
What met a fault is done again.
"""

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import itertools
import json
import math
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeVar

from littledragon.compiler import children, slots, targets
from littledragon.compiler.children import ChildError
from littledragon.pipelines import llm
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.files import disk_error, make_directory, replace_text
from littledragon.pipelines.progress import busy
from littledragon.release import evaluation, published
from littledragon.release.evaluation import Comparison, Evaluation, Output
from littledragon.release.published import Unreadable
from littledragon.release.tasks import tasks_of
from littledragon.schemas import tsel
from littledragon.schemas.graph import Graph, Instruction, Postproc
from littledragon.schemas.ids import digest
from littledragon.validators.device import Deadlines
from littledragon.validators.service import Service, Task

Row = dict[str, Any]
Baseline = Literal["reference", "default", "nearest"]
BASELINES: Final[tuple[Baseline, ...]] = ("reference", "default", "nearest")

SAMPLES: Final = 8
"""Outputs of a prompt, as Table 1's percentages fit."""
MAX_LINE: Final = 8 << 20
"""Bytes of a line of a JSONL file: a text of `tsel.MAX_TEXT` letters, each of them escaped."""
MAX_TOTAL: Final = 4 << 30
"""Bytes of a JSONL file."""
MAX_LINES: Final = 10_000_000
MAX_OUTPUTS: Final = 1024
"""Outputs of one prompt."""
PIECE: Final = 32 << 20
"""A child answers so many characters at once, about."""
DEADLINE_S: Final = 600.0
"""For a child that reads a release."""
LINE_EVERY_S: Final = 5.0

PROMPT_COLUMNS: Final = (
    "example_id", "mode", "split", "family", "workload_id", "environment_id", "messages", "completion", "latency_us",
    "parent_us", "default_us",
)  # fmt: skip
TRAINING_COLUMNS: Final = ("example_id", "split", "workload_id", "latency_us")

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True)
class Prompt:
    """A row to answer: its id, mode, family, workload, chat messages, reference answer, and latencies (µs)."""

    example_id: str
    mode: Literal["construct", "refine"]
    family: str
    task_id: str
    environment_id: str
    messages: list[dict[str, str]]
    completion: str
    latency_us: float
    parent_us: float | None


@dataclass(frozen=True)
class Source:
    """Where the outputs come from; one of the four.

    outputs: a JSONL file of {"example_id", "output", "seconds"?}; outputs of one prompt are numbered as they come.
    endpoint, model: the base URL of an OpenAI-compatible endpoint, and the model's name there.
    model alone: a local model, the path of its folder. baseline: reference (the row's own answer), default (a text
    that schedules nothing), nearest (the answer to the nearest training workload, its tiles fitted to the new extents).

    Raises:
        UserError: none of them, or several.
    """

    outputs: Path | None = None
    endpoint: str | None = None
    model: str | None = None
    baseline: Baseline | None = None

    def __post_init__(self) -> None:
        given = [self.outputs is not None, self.endpoint is not None or self.model is not None, self.baseline]
        if sum(map(bool, given)) != 1 or (self.endpoint is not None and not self.model):
            raise UserError(
                "give one of --outputs FILE, --model PATH, --endpoint URL with --model NAME, and --baseline NAME"
            )

    def as_dict(self) -> Row:
        """What a result file says of it; a file's lines are known by their content."""
        if self.outputs is not None:
            return {"outputs": True}
        return {"endpoint": self.endpoint, "model": self.model, "baseline": self.baseline}


@dataclass(frozen=True)
class Settings:
    """How to generate and to judge. samples: outputs of a prompt. limit: prompts of each mode at most, 0 for all.

    threads: outputs judged at once; with 1 the time to kernel is free of waiting for others. repeat_ms, build_s: as
    `validators.service`. rpm, deadline_s: of an endpoint's requests. temperature, max_tokens, batch, seed: of a local
    model.
    """

    split: str = "test"
    device: str = "real"
    environment_id: str | None = None
    samples: int = SAMPLES
    limit: int = 0
    threads: int = 0
    workers: int | None = None
    repeat_ms: float = 10.0
    build_s: float = 30.0
    rpm: int = 600
    deadline_s: float = 600.0
    temperature: float = 1.0
    max_tokens: int = 8192
    batch: int = 16
    seed: int = 0


@dataclass(frozen=True)
class Text:
    """An output to judge, the number of its prompt's. fault: why there is none."""

    example_id: str
    number: int
    output: str
    seconds: float | None = None
    fault: str | None = None

    @property
    def key(self) -> tuple[str, int, str]:
        """What its result is known by."""
        return self.example_id, self.number, _hash(self.output)


def evaluate(release: Path, source: Source, results: Path, settings: Settings) -> Evaluation:
    """Have every output judged, or those that `results` does not hold yet; write and return the figures.

    Raises:
        UserError: a folder that is no release, no device of its tasks, a damaged file, an endpoint that takes no key,
            a result file of another run or one that another run writes to.
    """
    try:
        with busy(f"reading {release}"):
            prompts = prompts_of(release, settings.split, settings.environment_id)
            tasks = {
                task.task_id: task
                for task in tasks_of(release, split=settings.split, environment_id=settings.environment_id)
            }
    except Unreadable as error:
        raise UserError(str(error)) from None
    lacking = sorted({prompt.task_id for prompt in prompts.values()} - tasks.keys())
    if lacking:
        raise UserError(f"{release}: tasks/ has no row of workload {lacking[0]}")
    if settings.limit:
        prompts = _limited(prompts, settings.limit)
    run = _run_of(prompts, source, settings)
    make_directory(results.parent)
    with _Journal(results, {"run": run}) as journal:
        texts = _texts(release, source, prompts, tasks, results, settings)
        rows = _judge(journal, texts, prompts, tasks, settings)
    found = evaluation.summarise((_output(row, results) for row in rows), seed=settings.seed)
    unanswered = len(prompts) - len({row["example_id"] for row in rows})
    summary = {"run": run, "prompts": len(prompts), "unanswered": unanswered, "evaluation": found.as_dict()}
    replace_text(_beside(results, "summary.json"), json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return found


def compare(a: Path, b: Path) -> tuple[Comparison, ...]:
    """On how many prompts the first outputs of result file A are faster than those of B.

    Raises:
        UserError: a file that is none, or files of different environments or devices.
    """
    sides = [[_output(row, path) for row in _latest(_lines(path), path).values()] for path in (a, b)]
    try:
        return evaluation.compare(*sides)
    except ValueError as error:
        raise UserError(f"{a} and {b}: {error}") from None


def _run_of(prompts: dict[str, Prompt], source: Source, settings: Settings) -> Row:
    """What makes results comparable; a result file holds those of one such run."""
    return {
        "version": 1,
        "split": settings.split,
        "device": settings.device,
        "environments": sorted({prompt.environment_id for prompt in prompts.values()}),
        "prompts": digest(sorted(prompts)),
        "repeat_ms": settings.repeat_ms,
        "build_s": settings.build_s,
        "source": source.as_dict(),
        **(
            {name: getattr(settings, name) for name in ("temperature", "max_tokens", "seed")}
            if source.model is not None and source.endpoint is None
            else {}
        ),
    }


def _limited(prompts: dict[str, Prompt], limit: int) -> dict[str, Prompt]:
    """At most so many of each mode; which ones does not depend on what else there is."""
    kept: dict[str, Prompt] = {}
    for mode in evaluation.MODES:
        of_mode = sorted((_hash(id), id) for id, prompt in prompts.items() if prompt.mode == mode)
        kept |= {id: prompts[id] for _, id in of_mode[:limit]}
    return kept


# -- the release --------------------------------------------------------------------------------------


def prompts_of(release: Path, split: str, environment_id: str | None = None) -> dict[str, Prompt]:
    """The distinct prompts of a split, by the id of their row; of rows with one prompt the fastest answer's.

    Raises:
        Unreadable: no such folder, or a file or value that no release of ours holds; no row of the split.
    """
    rows: list[Row] = []
    place: list[int] | None = [0, 0]
    while place is not None:
        piece = _child("read_prompts", folder=str(release.absolute()), place=place, split=split, env=environment_id)
        rows += piece["rows"]
        place = piece["place"]
    if not rows:
        raise Unreadable(f"{release}: construction/ and refinement/ have no rows of split {split}")
    if len(environments := sorted({row["environment_id"] for row in rows})) > 1:
        raise Unreadable(f"{release}: latencies of {len(environments)} environments: choose one of {environments[:9]}")
    best: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: (row["latency_us"], row["example_id"])):
        best.setdefault(digest([row["mode"], row["workload_id"], row["messages"]]), row)
    fields = ("example_id", "mode", "family", "environment_id", "messages", "completion", "latency_us", "parent_us")
    made = [Prompt(task_id=row["workload_id"], **{name: row[name] for name in fields}) for row in best.values()]
    return {prompt.example_id: prompt for prompt in sorted(made, key=lambda p: (p.task_id, p.example_id))}


def read_prompts(folder: str, place: list[int], split: str, env: str | None) -> Row:
    """Rows from this file and row on, and the place where to go on. Runs in a child of bounded memory.

    Raises:
        Unreadable: see `prompts_of`.
    """
    return published.bounded(folder, functools.partial(_read_prompts, Path(folder), place, split, env))


def _read_prompts(root: Path, place: list[int], split: str, environment_id: str | None) -> Row:
    files = [path for mode in ("construction", "refinement") for path in published.files(root, f"{mode}/*.parquet")]
    rows: list[Row] = []
    size = 0
    number, first = place
    while number < len(files):
        path = files[number]
        wanted = [
            row["split"] == split and environment_id in (None, row["environment_id"])
            for found in published.batches(path, ("split", "environment_id"), 0)
            for row in found
        ]
        for row in (
            itertools.chain.from_iterable(published.batches(path, PROMPT_COLUMNS, first)) if any(wanted[first:]) else ()
        ):
            if wanted[first]:
                _check(row, path)
                rows.append(row)
                size += len(row["completion"]) + sum(len(message["content"]) for message in row["messages"])
            first += 1
            if size > PIECE:
                return {"rows": rows, "place": [number, first]}
        number, first = number + 1, 0
    return {"rows": rows, "place": None}


def _check(row: Row, path: Path) -> None:
    where = f"{path}: {published.short(row['example_id'])}"
    lacking = [name for name, value in row.items() if value is None and name != "parent_us"]
    if lacking:
        raise Unreadable(f"{where}: {', '.join(lacking)} is missing")
    if row["mode"] not in published.ROLES:
        raise Unreadable(f"{where}: mode '{published.short(row['mode'])}' is neither construct nor refine")
    names = ("latency_us", "default_us", *(["parent_us"] if row["mode"] == "refine" else []))
    for name in names:
        if not 0 < (row[name] or 0) < 1e9:
            raise Unreadable(f"{where}: {name} is {row[name]}, which is no latency")
    roles = [(message or {}).get("role") for message in row["messages"]]
    said = all(message and message["content"] is not None for message in row["messages"])
    if roles != published.ROLES[row["mode"]] or not said:
        raise Unreadable(f"{where}: its messages are none of a {row['mode']} prompt")


def _child(function: str, **arguments: Any) -> Row:
    try:
        answer: Row = children.once(f"littledragon.pipelines.evaluate:{function}", deadline_s=DEADLINE_S, **arguments)
    except ChildError as error:
        said = error.detail.removeprefix("Unreadable: ") if error.kind == "raised" else str(error)
        raise Unreadable(said) from None
    return answer


# -- outputs ------------------------------------------------------------------------------------------


def _texts(
    release: Path,
    source: Source,
    prompts: dict[str, Prompt],
    tasks: dict[str, Task],
    results: Path,
    settings: Settings,
) -> list[Text]:
    """The outputs to judge, in the order of their tasks. Raises UserError."""
    if source.baseline is not None:
        found = list(_baseline(release, source.baseline, prompts, tasks))
    elif source.outputs is not None:
        found = read_outputs(source.outputs, prompts)
    else:
        found = _generated(source, prompts, _beside(results, "outputs.jsonl"), settings)
    order = {id: place for place, id in enumerate(prompts)}
    missing = len(prompts) - len({text.example_id for text in found})
    if missing:
        _say(f"eval: {missing} of {len(prompts)} prompts have no output: they do not count in any figure")
    return sorted(found, key=lambda text: (order[text.example_id], text.number))


def read_outputs(path: Path, prompts: dict[str, Prompt]) -> list[Text]:
    """The outputs in a JSONL file of {"example_id", "output", "seconds"?}, numbered as they come.

    Raises:
        UserError: the file, or a line of it, is none; it says which. What an output holds is never the reason.
    """
    counts: Counter[str] = Counter()
    found = []
    other = 0
    for number, row in enumerate(_lines(path), 1):
        where = f"{path}: line {number}"
        if number == 1 and row.keys() == {"run"}:  # a file that dragon eval wrote
            continue
        id, output, seconds = (row.get(name) for name in ("example_id", "output", "seconds"))
        if not isinstance(id, str) or not isinstance(output, str):
            raise UserError(f'{where}: not an object with the texts "example_id" and "output"')
        if seconds is not None and not (_is_number(seconds) and 0 <= seconds < 1e9):
            raise UserError(f"{where}: seconds is {published.short(seconds)}, which is no duration")
        if id not in prompts:
            other += 1
            continue
        if counts[id] == MAX_OUTPUTS:
            raise UserError(f"{where}: more than {MAX_OUTPUTS} outputs of {published.short(id)}")
        found.append(Text(id, counts[id], output, None if seconds is None else float(seconds)))
        counts[id] += 1
    if not found:
        raise UserError(f"{path}: no output for a prompt of this split")
    if other:
        _say(f"eval: {path}: {other} outputs belong to no prompt here (or to one that another row has): left aside")
    return found


def _baseline(release: Path, name: Baseline, prompts: dict[str, Prompt], tasks: dict[str, Task]) -> Iterator[Text]:
    if name == "nearest":
        yield from _nearest(release, prompts)
        return
    for id, prompt in prompts.items():
        if name == "reference":
            yield Text(id, 0, prompt.completion)
        else:
            rules = tasks[prompt.task_id].target["kind"]
            yield Text(id, 0, tsel.render(Graph((), postproc=Postproc(rules, tsel.RULES[rules]))).text)


def _nearest(release: Path, prompts: dict[str, Prompt]) -> Iterator[Text]:
    """The fastest answer to the nearest training workload; what is not known of one is an empty text."""
    ids = sorted({prompt.task_id for prompt in prompts.values()})
    try:
        with busy("looking for the nearest training rows"):
            parts = [
                _child("nearest", folder=str(release.absolute()), workloads=ids[first : first + 256])["found"]
                for first in range(0, len(ids), 256)
            ]
    except Unreadable as error:
        raise UserError(str(error)) from None
    found = {id: one for part in parts for id, one in part.items()}
    for id, prompt in prompts.items():
        near = found.get(prompt.task_id)
        yield Text(id, 0, retiled(near["completion"], near["theirs"], near["ours"]) if near else "")


def nearest(folder: str, workloads: list[str]) -> Row:
    """For each of these workloads the nearest one of the training split: its answer, and both workloads' extents.

    Nearest: of the same signature, then of the same number of extents, then by the sum of |log| of their ratios.
    Runs in a child of bounded memory.

    Raises:
        Unreadable: a file that no release of ours holds.
    """
    return published.bounded(folder, functools.partial(_find_nearest, Path(folder), workloads))


def _find_nearest(root: Path, workloads: list[str]) -> Row:
    files = [path for mode in ("construction", "refinement") for path in published.files(root, f"{mode}/*.parquet")]
    best: dict[str, tuple[float, str]] = {}
    for path in files:
        for rows in published.batches(path, TRAINING_COLUMNS, 0):
            for row in rows:
                if row["split"] == "train" and None not in row.values():
                    one = (row["latency_us"], row["example_id"])
                    best[row["workload_id"]] = min(one, best.get(row["workload_id"], one))
    cells = _cells(root)
    training = sorted(best.keys() & cells.keys())
    chosen: dict[str, str] = {}
    for workload in workloads:
        if workload in cells and training:
            ranked = ((_distance(*cells[workload], *cells[id]), id) for id in training)
            chosen[workload] = min(ranked)[1]
    wanted = {best[id][1] for id in chosen.values()}
    texts: dict[str, str] = {}
    for path in files:
        for rows in published.batches(path, ("example_id", "completion"), 0):
            texts |= {row["example_id"]: row["completion"] for row in rows if row["example_id"] in wanted}
    found = {
        workload: {"completion": texts[best[near][1]] or "", "theirs": cells[near][1], "ours": cells[workload][1]}
        for workload, near in chosen.items()
    }
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


# -- models -------------------------------------------------------------------------------------------


def _generated(source: Source, prompts: dict[str, Prompt], path: Path, settings: Settings) -> list[Text]:
    """What the model writes; what it wrote for an earlier run of the same is read."""
    run = {"source": source.as_dict()} | (
        {} if source.endpoint else {name: getattr(settings, name) for name in ("temperature", "max_tokens", "seed")}
    )
    with _Journal(path, {"run": run}) as journal:
        kept: dict[tuple[str, int], Text] = {}
        for row in journal.rows:
            id, number, output, seconds = (row.get(name) for name in ("example_id", "number", "output", "seconds"))
            if not (isinstance(id, str) and type(number) is int and isinstance(output, str) and _is_number(seconds)):
                raise UserError(f"{path}: a row that is no output: choose another --out")
            if id in prompts and 0 <= number < settings.samples:
                kept[id, number] = Text(id, number, output, seconds)
        wanted = [(id, n) for n in range(settings.samples) for id in prompts if (id, n) not in kept]
        progress = _Lines("generating", len(wanted) + len(kept), {"kept": len(kept)} if kept else {})
        generate = _asked if source.endpoint else _sampled
        faults: dict[tuple[str, int], Text] = {}
        with contextlib.closing(generate(source, prompts, wanted, settings)) as generated:
            for text in generated:
                where = (text.example_id, text.number)
                if text.fault is None:
                    line = {"example_id": text.example_id, "number": text.number, "output": text.output}
                    journal.append(line | {"seconds": text.seconds})
                    kept[where] = text
                else:
                    faults[where] = text
                progress.one("written" if text.fault is None else "faults")
        progress.end()
    return [*kept.values(), *faults.values()]


class _Client(llm.Client):
    """A client that asks for text, not for a JSON object."""

    def __init__(self, url: str, model: str, rpm: int, deadline_s: float) -> None:
        super().__init__(url, model, rpm, deadline_s)
        self._formatted = False


def _asked(
    source: Source, prompts: dict[str, Prompt], wanted: Sequence[tuple[str, int]], settings: Settings
) -> Generator[Text, None, None]:
    """The replies of an endpoint, many questions at once. Raises UserError: it takes none of them."""
    assert source.endpoint is not None
    assert source.model is not None
    here = threading.local()

    def ask(what: tuple[str, int]) -> Text:
        id, number = what
        began = time.monotonic()
        try:
            if not hasattr(here, "client"):
                here.client = _Client(source.endpoint or "", source.model or "", settings.rpm, settings.deadline_s)
            reply = here.client.ask(prompts[id].messages).text
        except llm.LlmError as error:
            if error.kind == "unauthorized":
                raise UserError(f"{source.endpoint}: {error.detail}") from None
            if error.kind not in llm.FINAL or error.detail.startswith("HTTP "):
                return Text(id, number, "", fault=f"no output: {error}")
            reply = ""  # the model refused, or wrote more than it may: its own failure
        return Text(id, number, reply, time.monotonic() - began)

    yield from _side_by_side(ask, wanted, settings.threads or 16)


def _sampled(
    source: Source, prompts: dict[str, Prompt], wanted: Sequence[tuple[str, int]], settings: Settings
) -> Generator[Text, None, None]:
    """What a local model writes, some prompts at once; the seconds of each are those of its batch.

    Raises:
        UserError: no model lies there, or it has no chat template.
    """
    if not wanted:
        return
    if not Path(source.model or "").is_dir():
        raise UserError(f"--model {source.model}: no folder of a model (or give --endpoint URL too)")
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise UserError(f"a local model needs {error.name}: pip install 'littledragon[train]'") from None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        with busy(f"loading {source.model}"):
            tokenizer = AutoTokenizer.from_pretrained(source.model, local_files_only=True, padding_side="left")
            dtype = torch.bfloat16 if device == "cuda" else torch.float32
            model = AutoModelForCausalLM.from_pretrained(source.model, local_files_only=True, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"--model {source.model}: {published.short(error)}") from None
    if tokenizer.chat_template is None:
        raise UserError(f"--model {source.model}: its tokenizer has no chat template")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = model.to(device).eval()
    most = int(getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 20))
    ends = _ends(model, tokenizer)
    written = {
        id: tokenizer.apply_chat_template(prompts[id].messages, tokenize=False, add_generation_prompt=True)
        for id in {id for id, _ in wanted}
    }
    # Prompts of like length together: padding is work too.
    order = sorted(wanted, key=lambda one: (one[1], len(written[one[0]]), one[0]))
    for first in range(0, len(order), settings.batch):
        batch = order[first : first + settings.batch]
        torch.manual_seed(int(digest([settings.seed, batch]), 16) % (1 << 63))
        inputs = tokenizer(
            [written[id] for id, _ in batch], return_tensors="pt", padding=True, add_special_tokens=False
        ).to(device)
        room = min(settings.max_tokens, most - inputs["input_ids"].shape[1])
        began = time.monotonic()
        if room > 0:
            sampling = (
                {"do_sample": True, "temperature": settings.temperature, "top_k": 0, "top_p": 1.0}
                if settings.temperature > 0
                else {"do_sample": False}
            )
            with torch.inference_mode():
                tokens = model.generate(
                    input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=room,
                    eos_token_id=ends, pad_token_id=tokenizer.pad_token_id, **sampling,
                )[:, inputs["input_ids"].shape[1] :]  # fmt: skip
            replies = [_before(row, ends, tokenizer) for row in tokens.tolist()]
        else:
            replies = [""] * len(batch)  # the prompt leaves no room in the model's context: its own failure
        took = time.monotonic() - began
        for (id, number), reply in zip(batch, replies, strict=True):
            yield Text(id, number, reply, took)
    del model
    if device == "cuda":
        torch.cuda.empty_cache()  # the kernels that are judged next need the memory


def _ends(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer: the model's, the tokenizer's, and the one that the chat template puts there."""
    own = model.generation_config.eos_token_id
    ends = {*(own if isinstance(own, list) else [own]), tokenizer.eos_token_id}
    said = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": "ANSWER"}], tokenize=False
    )
    tail = tokenizer(said.rpartition("ANSWER")[2].strip(), add_special_tokens=False)["input_ids"][:1]
    ends |= set(tail) & set(tokenizer.all_special_ids)
    return sorted(end for end in ends if end is not None)


def _before(tokens: list[int], ends: Sequence[int], tokenizer: Any) -> str:
    """The text of what comes before the end."""
    stop = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
    return str(tokenizer.decode(tokens[:stop], skip_special_tokens=True, clean_up_tokenization_spaces=False))


# -- verdicts -----------------------------------------------------------------------------------------


def _judge(
    journal: "_Journal", texts: list[Text], prompts: dict[str, Prompt], tasks: dict[str, Task], settings: Settings
) -> list[Row]:
    """The rows of all texts: those that the file holds, and new ones, which it gets."""
    known = {
        (row.get("example_id"), row.get("number"), row.get("text_sha256")): row
        for row in _latest(journal.rows, journal.path).values()
        if isinstance(row.get("verdict"), dict) and row["verdict"].get("fault") is None
    }
    rows = [known[text.key] for text in texts if text.key in known]
    wanted = [text for text in texts if text.key not in known]
    progress = _Lines("eval", len(texts), Counter(map(_ended, rows)))
    if not wanted:
        return rows
    slots.use(settings.workers)
    judged = {prompts[text.example_id].task_id for text in wanted}
    try:
        service = Service(
            [tasks[id] for id in sorted(judged)],
            settings.device,
            deadlines=Deadlines(build_s=settings.build_s),
            repeat_ms=settings.repeat_ms,
        )
    except (targets.DeviceMissing, ValueError) as error:
        raise UserError(str(error)) from None

    def judge(text: Text) -> Row:
        prompt = prompts[text.example_id]
        task = tasks[prompt.task_id]
        if text.fault is not None:
            verdict: Row = {"task_id": task.task_id, "gate": None, "fault": text.fault}
        else:
            verdict = service.evaluate(task.task_id, text.output).as_dict()
        return {
            "example_id": text.example_id,
            "number": text.number,
            "text_sha256": text.key[2],
            "task_id": task.task_id,
            "mode": prompt.mode,
            "family": prompt.family,
            "environment_id": prompt.environment_id,
            "device": settings.device,
            "default_us": task.default_us,
            "anchor_us": task.anchor_us,
            "parent_us": prompt.parent_us,
            "reference_us": prompt.latency_us,
            "margin": task.margin,
            "noise_band": task.noise_band,
            "generation_s": text.seconds,
            "verdict": verdict,
        }

    threads = settings.threads or min(64, 4 * (settings.workers or os.cpu_count() or 1))
    ended = False
    with service:
        try:
            with contextlib.closing(_side_by_side(judge, wanted, threads)) as done:
                for row in done:
                    journal.append(row)
                    rows.append(row)
                    progress.one(_ended(row))
            ended = True
        finally:
            if not ended:
                with contextlib.suppress(OSError):
                    children.stop()  # whoever is still judged ends now
            progress.end()
    return rows


def _ended(row: Row) -> str:
    verdict = row["verdict"]
    return "faults" if verdict.get("fault") is not None else "correct" if verdict["gate"] == "ok" else "refused"


def _output(row: Row, path: Path) -> Output:
    try:
        return evaluation.output_of(row)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: a row that is no result: {published.short(error)}") from None


def _latest(rows: Iterable[Row], path: Path) -> dict[tuple[str, int], Row]:
    """The last row of each output: a fault is followed by what came of another try."""
    found: dict[tuple[str, int], Row] = {}
    for row in rows:
        if "run" in row:
            continue
        id, number = row.get("example_id"), row.get("number")
        if not isinstance(id, str) or type(number) is not int or not isinstance(row.get("verdict"), dict):
            raise UserError(f"{path}: a row that is no result of dragon eval")
        found[id, number] = row
    return found


def _side_by_side(work: Callable[[_In], _Out], items: Sequence[_In], threads: int) -> Generator[_Out, None, None]:
    """What `work` gives for each, as it comes. Closed early, nothing new begins, and nobody waits for the rest.

    Raises whatever `work` raises.
    """
    waiting: queue.SimpleQueue[_In] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    done: queue.SimpleQueue[tuple[_Out | None, BaseException | None]] = queue.SimpleQueue()
    closed = threading.Event()

    def run() -> None:
        while not closed.is_set():
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((work(item), None))
            except BaseException as error:
                done.put((None, error))

    for _ in range(min(threads, len(items))):
        threading.Thread(target=run, name="eval", daemon=True).start()
    try:
        for _ in items:
            result, error = done.get()
            if error is not None:
                raise error
            yield result  # type: ignore[misc]
    finally:
        closed.set()


# -- files --------------------------------------------------------------------------------------------


class _Journal:
    """A JSONL file that only grows, for one run at a time. `rows`: what it held before, the first line left aside.

    Raises:
        UserError: it is of another run, damaged, written to by another, or the disk refuses.
    """

    def __init__(self, path: Path, head: Row) -> None:
        self.path = path
        self.rows: list[Row] = []
        self._stack = contextlib.ExitStack()
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: not a file: choose another --out")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
            self._file: IO[bytes] = self._stack.enter_context(os.fdopen(handle, "r+b", buffering=0))
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._stack.close()
            raise UserError(f"{path}: another run writes to it: wait for that, or choose another --out") from None
        except OSError as error:
            self._stack.close()
            raise disk_error(path, error) from None
        with self._stack:
            self._cut_torn_line()
            self.rows = list(_lines(path))
            if not self.rows:
                self.append(head)
            elif (held := self.rows.pop(0)) != head:
                raise UserError(f"{path}: {_difference(held, head)}: choose another --out")
            self._stack = self._stack.pop_all()

    def __enter__(self) -> "_Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def append(self, row: Row) -> None:
        """One more line, on the disk when this returns."""
        try:
            line = memoryview(json.dumps(row, allow_nan=False).encode() + b"\n")
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise disk_error(self.path, error) from None

    def _cut_torn_line(self) -> None:
        """A line that a kill left without its end goes."""
        size = end = self._file.seek(0, os.SEEK_END)
        while end:
            first = max(0, end - (1 << 16))
            self._file.seek(first)
            at = self._file.read(end - first).rfind(b"\n")
            if at >= 0:
                end = first + at + 1
                break
            end = first
        if end < size:
            self._file.truncate(end)


def _difference(held: Row, head: Row) -> str:
    run, ours = held.get("run"), head["run"]
    if not isinstance(run, dict):
        return "not a file of dragon eval"
    return f"made with another {', '.join(name for name in ours | run if run.get(name) != ours.get(name))}"


def _lines(path: Path) -> Iterator[Row]:
    """The objects of a JSONL file. Raises UserError: it is none, or too large."""
    try:
        if not path.is_file():
            raise UserError(f"{path}: not a file: give one of JSON lines")
        if path.stat().st_size > MAX_TOTAL:
            raise UserError(f"{path}: more than {MAX_TOTAL >> 30} GiB")
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE or number > MAX_LINES:
                    raise UserError(f"{path}: line {number}: more than {MAX_LINE} bytes, or {MAX_LINES} lines")
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise UserError(f"{path}: line {number}: not JSON: {published.short(error)}") from None
                if not isinstance(row, dict):
                    raise UserError(f"{path}: line {number}: not a JSON object")
                yield row
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def _beside(results: Path, ending: str) -> Path:
    return results.with_name(f"{results.name.removesuffix('.jsonl')}.{ending}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Lines:
    """How far it is, in a line on stderr now and then, and at the end."""

    def __init__(self, what: str, total: int, before: dict[str, int]) -> None:
        self._what, self._total, self._counts = what, total, Counter(before)
        self._before = self._counts.total()
        self._began = self._printed = time.monotonic()

    def one(self, outcome: str) -> None:
        """One more has ended so."""
        self._counts[outcome] += 1
        if time.monotonic() - self._printed >= LINE_EVERY_S:
            self._printed = time.monotonic()
            rate = (self._counts.total() - self._before) / (self._printed - self._began)
            _say(f"{self._line()} · {rate:.3g}/s")

    def end(self) -> None:
        """Nothing more comes."""
        if self._counts.total() > self._before:
            _say(f"{self._line()} in {time.monotonic() - self._began:.1f} s")

    def _line(self) -> str:
        parts = [f"{count} {name}" for name, count in self._counts.items()]
        return " · ".join([f"{self._what}: {self._counts.total()}/{self._total}", *parts])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
