"""The prompts of a release that `dragon eval` asks, and the outputs that answer them.

A release may be a stranger's: its files are read in a child of bounded memory, as `release.published` says.
"""

import functools
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from littledragon.compiler import children
from littledragon.compiler.children import ChildError
from littledragon.pipelines.errors import UserError
from littledragon.release import published
from littledragon.release.published import Unreadable
from littledragon.schemas.ids import digest

Row = dict[str, Any]

Baseline = Literal["reference", "default", "nearest", "random", "search", "stock"]
BASELINES: Final[tuple[Baseline, ...]] = ("reference", "default", "nearest", "random", "search", "stock")
SEARCHES: Final[tuple[Baseline, ...]] = ("search", "stock")
"""Those that give a trajectory of trials for each task: `eval_search`."""

SAMPLES: Final = 8
"""Outputs of a prompt, as Table 1's percentages fit."""
LOCAL: Final[Mapping[str, Any]] = {"temperature": 1.0, "max_tokens": 8192}
"""How a local model samples."""
MAX_OUTPUTS: Final = 1024
"""Outputs of one prompt, at most."""
ENDED: Final = ("eos", "cut", "stuck")
"""How a model's output ended: by itself, at its bound of tokens, or, constrained, where no token was legal."""
PIECE: Final = 32 << 20
"""A child answers so many characters at once, about."""
DEADLINE_S: Final = 600.0
"""For a child that reads a release."""
WEIGHTS: Final = (
    "*.safetensors", "pytorch_model*.bin", "adapter_model*.bin", "config.json", "generation_config.json",
    "adapter_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "chat_template.*",
)  # fmt: skip
"""The files of a local model that decide what it writes."""
WHOLE: Final = 1 << 20
"""A model's file up to so many bytes is read whole; of a larger one its beginning, and pieces of the rest."""
PIECES: Final = 64
PROMPT_COLUMNS: Final = (
    "example_id", "mode", "split", "family", "workload_id", "environment_id", "messages", "completion", "latency_us",
    "parent_us", "default_us",
)  # fmt: skip


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
    model alone: a local model, the path of its folder. baseline: reference (the row's own answer), default (no text
    but the schedule that L0 is of), nearest (the answer to the nearest training workload, its tiles fitted to the new
    extents), random (legal members of the task's design space), search (our engine's), stock (MetaSchedule's tuner).

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

    @property
    def local(self) -> bool:
        """Whether it is a model on this machine."""
        return self.model is not None and self.endpoint is None

    def as_dict(self) -> Row:
        """What a result file says of it; a file's lines are known by their content, a local model by its weights.

        Raises:
            UserError: a local model whose folder is none.
        """
        if self.outputs is not None:
            return {"outputs": True}
        said = {"endpoint": self.endpoint, "model": self.model, "baseline": self.baseline}
        return said | ({"weights": weights_of(Path(self.model or ""))} if self.local else {})


@dataclass(frozen=True)
class Settings:
    """How to generate and to judge. samples: outputs of a prompt. limit: prompts of each mode at most, 0 for all; of
    a search tasks, of each family in turn.

    threads: outputs judged at once; with 1, and batch 1, the time to kernel is free of waiting for others: each output
    has the time of its whole batch. repeat_ms, build_s: as `validators.service`. rpm, deadline_s: of an endpoint's
    requests. temperature, max_tokens: of a model; a local one has `LOCAL` without, an endpoint what it takes itself.
    batch, seed: of a local model; constrain: it writes legal tokens only (`pipelines.legal_decoding`). seed: also of
    random and of a search. trials: of one task's search; read: after how many its best counts, which is a result of its
    own (empty: after 8, 32, 128 and all). per_round: trials of a round of our search. timeout_s: of stock's builder.
    """

    split: str = "test"
    device: str = "real"
    environment_id: str | None = None
    samples: int = SAMPLES
    limit: int = 0
    threads: int = 0
    workers: int | None = None
    repeat_ms: float = 10.0
    build_s: float = 60.0
    rpm: int = 600
    deadline_s: float = 600.0
    temperature: float | None = None
    max_tokens: int | None = None
    batch: int = 16
    seed: int = 0
    trials: int = 128
    read: tuple[int, ...] = ()
    per_round: int = 16
    timeout_s: float = 120.0
    constrain: bool = False

    @property
    def at_once(self) -> int:
        """How many outputs are under way at once, most of them waiting for a slot."""
        return self.threads or min(64, 4 * (self.workers or os.cpu_count() or 1))

    def deciding(self, source: Source) -> Row:
        """Those that decide what this source's outputs are. Raises UserError: constrain, and no local model."""
        if self.constrain and not source.local:
            raise UserError("--constrain masks the tokens of a local model: give --model PATH, and no --endpoint")
        names: tuple[str, ...] = ()
        if source.baseline in SEARCHES:
            names = ("seed", "trials", "per_round" if source.baseline == "search" else "timeout_s")
        elif source.baseline == "random":
            names = ("seed",)
        elif source.local:
            names = ("seed", "constrain", "batch")
        return self.sampling(source) | {name: getattr(self, name) for name in names}

    def sampling(self, source: Source) -> Row:
        """How this source's model samples, as far as it was said or is ours to say; empty where there is none."""
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        said = {name: value for name, value in given.items() if value is not None}
        return {} if source.model is None else said if source.endpoint is not None else {**LOCAL, **said}


@dataclass(frozen=True)
class Text:
    """An output to judge, the number of its prompt's. seconds: until it was there. fault: why there is none. default:
    it is no text but the default schedule. ended: one of `ENDED`, where that is known."""

    example_id: str
    number: int
    output: str
    seconds: float | None = None
    fault: str | None = None
    default: bool = False
    ended: str | None = None

    @property
    def key(self) -> tuple[str, int, str]:
        """What its result is known by."""
        return self.example_id, self.number, text_hash(self.output)


def prompts_of(release: Path, split: str, environment_id: str | None = None) -> dict[str, Prompt]:
    """The distinct prompts of a split, by the id of their row; of rows with one prompt the fastest answer's.

    Raises:
        Unreadable: no such folder, or a file or value that no release of ours holds; no row of the split.
    """
    rows: list[Row] = []
    place: list[int] | None = [0, 0]
    while place is not None:
        piece = ask_child(
            "questions:read_prompts", folder=str(release.absolute()), place=place, split=split, env=environment_id
        )
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
        end = max((at + 1 for at, one in enumerate(wanted) if one), default=0)
        for found in published.batches(path, PROMPT_COLUMNS, first) if first < end else ():
            for row in found:
                if wanted[first]:
                    _check(row, path)
                    rows.append(row)
                    size += len(row["completion"]) + sum(len(message["content"]) for message in row["messages"])
                first += 1
                if size > PIECE:
                    return {"rows": rows, "place": [number, first]}
            if first >= end:
                break
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


def ask_child(function: str, **arguments: Any) -> Row:
    """What a function of ours, MODULE:NAME, answers in a child. Raises Unreadable."""
    try:
        answer: Row = children.once(f"littledragon.pipelines.{function}", deadline_s=DEADLINE_S, **arguments)
    except ChildError as error:
        said = error.detail.removeprefix("Unreadable: ") if error.kind == "raised" else str(error)
        raise Unreadable(said) from None
    return answer


def weights_of(folder: Path) -> str:
    """A digest of a model's folder: of the files that decide what it writes, their names, sizes and contents, these as
    far as `WHOLE` says.

    Equal layers have equal sizes and headers, so that only the numbers themselves tell a model from one that was
    trained further; training changes them everywhere, and pieces will do.

    Raises:
        UserError: there is no such folder, or a file of it cannot be read.
    """
    if not folder.is_dir():
        raise UserError(f"--model {folder}: no folder of a model (or give --endpoint URL too)")
    found = hashlib.sha256()
    try:
        for path in sorted({path for pattern in WEIGHTS for path in folder.glob(pattern) if path.is_file()}):
            size = path.stat().st_size
            found.update(f"{path.name}\0{size}\0".encode("utf-8", "surrogateescape"))
            with path.open("rb") as file:
                found.update(file.read(WHOLE))
                piece = WHOLE // PIECES
                for number in range(PIECES if size > WHOLE else 0):
                    file.seek(WHOLE + max(0, size - WHOLE - piece) * number // (PIECES - 1))
                    found.update(file.read(piece))
    except OSError as error:
        raise UserError(f"--model {folder}: {error.strerror or error}") from None
    return found.hexdigest()[:16]


def text_hash(text: str) -> str:
    """SHA-256, also of lone surrogates."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_number(value: object) -> bool:
    """An integer or a float, and no boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)
