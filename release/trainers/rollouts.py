"""The prompts of a published dataset folder, what completions of them are worth, and which come next in training.

    rows, longest = read(folder, "train")
    with judge(rows, url="http://127.0.0.1:8723") as ask:  # or device="real", with the toolkit installed
        ask(rows[0], completion)["total"]

`Scorer` asks for many completions at once; it is what `grpo.py` gives to TRL. Only pyarrow, `reward.py` and `sft.py`
are needed, and the toolkit where there is no `dragon serve` to ask.
"""

import json
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING or __package__:
    from littledragon.release.trainers.reward import STAGES, Levels, reward, usable
    from littledragon.release.trainers.sft import CONFIGS, TEXTS, Row
    from littledragon.release.trainers.sft import MOST as MOST_TEXT
else:
    from reward import STAGES, Levels, reward, usable
    from sft import CONFIGS, TEXTS, Row
    from sft import MOST as MOST_TEXT

Ask = Callable[[Row, str], Mapping[str, Any]]
Outcome = tuple[str, float | None] | None
"""What the gates verified of a completion, without partial credit: its stage and r_lat. None: a fault."""
MODES: Final = ("construct", "refine")
TASK: Final = ["default_us", "anchor_us", "noise_band", "margin"]
COLUMNS: Final = ["example_id", "mode", "workload_id", "environment_id", "messages", "parent_us"]
MOST_ANSWER: Final = 1 << 20
"""Bytes of an answer over HTTP."""
MOST_UTILITY: Final = 1e3
MOST_LOST: Final = 10
"""So many times in a row may completions that are judged together all be faults; then training ends."""


def read(data: Path, split: str, environment: str | None = None) -> tuple[list[Row], str]:
    """The different prompts of a split with their task's numbers, and the longest answer.

    Prompts that `reward.usable` refuses are left out and counted.
    """
    import pyarrow.parquet as pq

    tasks: dict[tuple[str, str], Row] = {}
    found: dict[str, Row] = {}
    rows, refused, longest, path = 0, 0, "", data / "tasks"
    try:
        for path in sorted((data / "tasks").glob("*.parquet")):
            for row in pq.read_table(path, columns=["workload_id", "environment_id", *TASK]).to_pylist():
                tasks[row["workload_id"], row["environment_id"]] = {name: row[name] for name in TASK}
        for path in [path for name in CONFIGS for path in sorted((data / name).glob(f"{split}-*.parquet"))]:
            for batch in pq.ParquetFile(path).iter_batches(256, columns=[*COLUMNS, "completion"]):
                for row in batch.to_pylist():
                    if environment not in (None, row["environment_id"]):
                        continue
                    rows, longest = rows + 1, max(longest, row.pop("completion"), key=len)
                    texts = [*(row[name] for name in COLUMNS[:4]), *(m[k] for m in row["messages"] for k in TEXTS)]
                    if len(texts) < 6 or {type(text) for text in texts} != {str} or sum(map(len, texts)) > MOST_TEXT:
                        raise ValueError(f"{row['example_id']} lacks text, or is too long")
                    numbers = tasks[row["workload_id"], row["environment_id"]]
                    if usable(mode=row["mode"], parent_us=row["parent_us"], **numbers):
                        found.setdefault(json.dumps(row["messages"]), row | numbers)
                    else:
                        refused += 1
    except Exception as error:  # of pyarrow's kinds some are none of Python's
        sys.exit(f"error: {path}: {type(error).__name__}: {' '.join(str(error).split())[:500]}")
    if len(environments := sorted({row["environment_id"] for row in found.values()})) > 1:
        sys.exit(f"error: {data}: latencies of {len(environments)} environments: give --environment, one of them")
    modes = [sum(row["mode"] == mode for row in found.values()) for mode in MODES]
    print(f"{split}: {modes[0]} construction and {modes[1]} refinement prompts; {refused} of {rows} rows left out:")
    print("  their noise is too coarse for a reward (q > 0.5), or nothing is to be gained")
    return list(found.values()), longest


def last_of(out: Path, resume: bool) -> Path | None:
    """The last checkpoint in a folder that was saved to its end; refuses one where resume does not say to go on."""
    done = [state.parent for state in out.glob("checkpoint-*/order.json")]  # which is written last
    last = max(done, key=lambda path: int(path.name.split("-")[1]), default=None)
    if last and not resume:
        sys.exit(f"error: {out} holds {last.name}: give --resume to go on from it, or another --out")
    if (out / "sft.json").exists():
        sys.exit(f"error: {out} holds a supervised run: give another --out")
    return last


@contextmanager
def judge(
    rows: Sequence[Row],
    *,
    url: str | None = None,
    timeout: float = 600.0,
    data: Path = Path(),
    device: str = "real",
    environment: str | None = None,
    workers: int | None = None,
) -> Iterator[Ask]:
    """A function that says what a text is worth: the fields of `reward.Reward`, and why where there is a fault.

    It may raise, and be called from many threads. With a url a `dragon serve` is asked; else a service is opened here
    for the tasks of `data`, on a device that is real or simulated, with so many workers that build. timeout: seconds.
    """
    if url:
        from urllib.error import HTTPError
        from urllib.request import ProxyHandler, Request, build_opener

        opener, address = build_opener(ProxyHandler({})), url.rstrip("/") + "/evaluate"

        def over_http(row: Row, text: str) -> Mapping[str, Any]:
            question = {"task_id": row["workload_id"], "completion": text} | {k: row[k] for k in ("mode", "parent_us")}
            numbers = {name: row[name] for name in TASK}
            asked = Request(address, json.dumps(question).encode(), {"Content-Type": "application/json"})
            late = time.monotonic() + timeout
            while True:
                try:
                    with opener.open(asked, timeout=timeout) as answer:
                        said = json.loads(_whole(answer, late))
                    if said.get("task", numbers) != numbers:
                        raise RuntimeError("the server's release has other latencies of this task")
                    return dict(said["reward"]) | {"why": said["verdict"]["fault"]}
                except HTTPError as error:
                    if error.code != 503 or time.monotonic() > late:  # which means: too many are under way
                        raise RuntimeError(f"HTTP {error.code}: {error.read(500).decode(errors='replace')}") from None
                    time.sleep(0.5)

        yield over_http
        return
    from littledragon.compiler import children, slots, targets
    from littledragon.release.published import Unreadable
    from littledragon.release.tasks import tasks_of
    from littledragon.validators.device import Deadlines
    from littledragon.validators.service import Service

    children.go_on()
    slots.use(workers)
    wanted = {row["workload_id"] for row in rows}
    try:
        tasks = [t for t in tasks_of(data, environment_id=environment) if t.task_id in wanted]
        service = Service(tasks, device, deadlines=Deadlines(build_s=60.0))  # as `dragon serve` and `dragon eval`
    except (Unreadable, targets.DeviceMissing, ValueError) as error:
        sys.exit(f"error: {error}")

    def here(row: Row, text: str) -> Mapping[str, Any]:
        verdict, numbers = service.evaluate(row["workload_id"], text), {name: row[name] for name in TASK}
        found = reward(verdict, mode=row["mode"], parent_us=row["parent_us"], **numbers)
        return vars(found) | {"why": verdict.fault}

    with service:
        try:
            yield here
        finally:
            children.stop()  # whoever still waits has a fault


def _whole(answer: Any, late: float) -> bytes:
    """What a server answers, in time and in size."""
    found = b""
    while piece := answer.read1(1 << 16):
        found += piece
        if len(found) > MOST_ANSWER or time.monotonic() > late:
            raise ValueError(f"an answer without an end: {len(found)} bytes so far")
    return found


def write(path: Path, value: Any) -> None:
    """A JSON file that is there whole or not at all."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(value))
    new.replace(path)


def fits(name: str, tokenizer: Any, model: Any) -> None:
    """Refuse a tokenizer without an end of sequence, or with tokens that the model does not know."""
    rows = model.get_input_embeddings().num_embeddings
    if tokenizer.eos_token is None or len(tokenizer) > rows:
        sys.exit(f"error: --model {name}: its tokenizer has no end of sequence, or more tokens than the model, {rows}")


def side_by_side(work: Callable[[Any], Any], items: Sequence[Any], threads: int) -> Iterator[tuple[Any, Any]]:
    """Each item with what `work` gives for it, as they come; work must not raise.

    The threads are daemons: a process that is told to end does not wait for what they wait for.
    """
    left, done = SimpleQueue[Any](), SimpleQueue[Any]()
    for item in items:
        left.put(item)

    def take() -> None:
        with suppress(Empty):
            while True:
                item = left.get_nowait()
                done.put((item, work(item)))

    for _ in range(min(threads, len(items))):
        threading.Thread(target=take, daemon=True).start()
    for _ in items:
        yield done.get()


def alike(outcomes: Sequence[Outcome]) -> bool | None:
    """Whether the known outcomes are all the same; None where fewer than two are known."""
    known = [outcome for outcome in outcomes if outcome is not None]
    return len(set(known)) == 1 if len(known) > 1 else None


MOST: Final = Levels().correct + max(Levels().construct, Levels().refine) * Levels().most + 1e-9
"""The largest reward that there is."""


def _is_worth(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST


class Scorer:
    """The reward function for TRL: all completions of a call at once, in threads, equal ones once; logs the parts."""

    __name__ = "staged"

    def __init__(self, ask: Ask, rows: Sequence[Row], threads: int) -> None:
        self.ask, self.rows, self.threads, self.lost = ask, rows, threads, 0
        self.since, self.outcomes = time.monotonic(), list[Outcome]()

    def known(self, asked: tuple[int, str]) -> Row:
        """What a completion of a prompt is worth, or a fault, of whatever kind."""
        try:
            found = dict(self.ask(self.rows[asked[0]], asked[1]))
            if found["total"] is None:
                why = str(found["why"])
            elif found["stage"] in STAGES.values() and _is_worth(found["total"]) and _is_worth(found["r_lat"] or 0.0):
                return found
            else:
                why = f"not a reward: {found['total']} at stage {found['stage']}"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        return {"total": None, "stage": "fault", "r_lat": None, "why": " ".join(why.split())[:300]}

    def check(self) -> None:
        """Every task must be known to whoever judges, before anything is generated."""
        firsts = {row["workload_id"]: (at, "") for at, row in enumerate(self.rows)}
        for (at, _), found in side_by_side(self.known, list(firsts.values()), self.threads):
            if found["total"] is None:
                sys.exit(f"error: no verdict for task {self.rows[at]['workload_id']}: {found['why']}")

    def __call__(self, completions: Any, row: Sequence[int], log_metric: Any, **_: Any) -> list[float | None]:
        began, before = time.monotonic(), self.since
        asked = list(zip(row, (completion[-1]["content"] for completion in completions), strict=True))
        each = dict(side_by_side(self.known, list(dict.fromkeys(asked)), self.threads))
        found, self.since = [each[one] for one in asked], time.monotonic()
        self.outcomes = [None if f["total"] is None else (f["stage"], f["r_lat"]) for f in found]
        log_metric("waiting_s", self.since - began)
        log_metric("waiting_share", (self.since - began) / max(self.since - before, 1e-9))
        scored = [f for f in found if f["total"] is not None]
        log_metric("faults", len(found) - len(scored))
        for stage in dict.fromkeys(STAGES.values()):
            log_metric(f"stage/{stage}", sum(f["stage"] == stage for f in scored) / max(len(scored), 1))
        for name, mode in zip(CONFIGS, MODES, strict=True):
            of_it = [f["total"] for f, at in zip(found, row, strict=True) if self.rows[at]["mode"] == mode]
            for total in filter(lambda total: total is not None, of_it):
                log_metric(f"reward_{name}", total)
        for f in scored:
            log_metric("r_lat", f["r_lat"] or 0.0)
            u = f.get("u")
            log_metric("utility", u if isinstance(u, int | float) and abs(u) < MOST_UTILITY else 0.0)
        if why := next((f["why"] for f in found if f["total"] is None), None):
            print(f"{len(found) - len(scored)} of {len(found)} completions have no reward: {why}", file=sys.stderr)
        self.lost = 0 if scored else self.lost + 1
        if self.lost == MOST_LOST:
            said = "give --resume, once it answers again, to go on from the last checkpoint"
            sys.exit(f"error: no verdict at all, {MOST_LOST} times in a row; at last: {why}: {said}")
        return [f["total"] for f in found]


class Order:
    """The prompts of each step, as a sampler: the least used, shuffled among equals; whichever rests counts as used.

    Its `state` is all that it goes by, and JSON. drawn: batches of prompts that no step has taken yet, of which a
    loader that reads ahead has one.
    """

    def __init__(
        self,
        parts: Sequence[Sequence[int]],
        *,
        share: float | None = None,
        prompts: int,
        generations: int,
        patience: int,
        rest: int,
        seed: int,
    ) -> None:
        """Batches of so many prompts from the rows of both modes; `share` of them from the first, if given.

        A prompt with `patience` groups in a row that are all alike counts as used `rest` times more, so it rests.
        """
        self.share, self.prompts, self.generations, self.patience, self.rest = (
            share,
            prompts,
            generations,
            patience,
            rest,
        )
        self.parts = [sorted(row for part in parts for row in part)] if share is None else parts
        self.seed, self.copies, self.batches = seed, 1, 0
        zeros = {str(row): 0 for part in parts for row in part}
        self.state: Row = {"used": zeros, "alike": dict(zeros), "batches": 0, "drawn": []}

    def __len__(self) -> int:
        return self.batches * self.copies * self.prompts * self.generations

    def __iter__(self) -> Iterator[int]:
        waiting = list(self.state["drawn"])  # of the run that this one resumes
        while waiting or self.state["batches"] < self.batches:
            rows = waiting.pop(0) if waiting else self.draw()
            for _ in range(self.copies):
                for row in rows:
                    yield from [row] * self.generations

    def draw(self) -> list[int]:
        """The next batch; each part gives its share."""
        used, number, count = self.state["used"], self.state["batches"], self.prompts
        of_first = (1.0 if self.share is None else self.share) * count
        first = round(of_first * (number + 1)) - round(of_first * number)
        rows: list[int] = []
        for part, wanted in zip(self.parts, (first, count - first), strict=False):
            for _ in range(wanted):
                rows.append(min(part, key=lambda row: (used[str(row)], self.shuffled(row))))
                used[str(rows[-1])] += 1
        self.state["batches"] += 1
        self.state["drawn"].append(rows)
        return rows

    @property
    def resting(self) -> int:
        """How many prompts rest."""
        return sum(count >= self.patience for count in self.state["alike"].values())

    def shuffled(self, row: int) -> int:
        """Where a prompt stands among those that are used as often."""
        return zlib.crc32(f"{self.seed} {self.state['used'][str(row)]} {row}".encode())

    def told(self, rows: Sequence[int], outcomes: Sequence[Any]) -> None:
        """The outcomes of the batch that was drawn first, group by group."""
        self.state["drawn"].pop(0)
        for at in range(0, len(rows), self.generations):
            row, same = str(rows[at]), alike(outcomes[at : at + self.generations])
            if same is not None:
                self.state["alike"][row] = self.state["alike"][row] + 1 if same else 0
            if same and self.state["alike"][row] >= self.patience:
                self.state["used"][row] += self.rest
