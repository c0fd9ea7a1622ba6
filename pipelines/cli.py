"""The command line: `dragon run`, each stage by itself, and looking at what came of it.

Everything heavy is imported inside the command that needs it. Whatever a user can mend ends in one line on
stderr and exit code 2; see `main`.
"""

import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from littledragon.pipelines.errors import UserError
from littledragon.pipelines.progress import busy
from littledragon.pipelines.stages import NAMES
from littledragon.schemas.gates import REASONS

if TYPE_CHECKING:
    from littledragon.pipelines.config import Config
    from littledragon.pipelines.store import Store

INTERRUPTED, TERMINATED, OWN_FAULT, USERS_FAULT = 130, 143, 70, 2

WORKDIR = click.option(
    "--workdir",
    type=click.Path(path_type=Path),
    default=Path("work"),
    envvar="DRAGON_WORKDIR",
    show_default=True,
    help="Where everything is kept (or DRAGON_WORKDIR).",
)
SETTINGS = (
    click.option("--preset", default="smoke", show_default=True, help="smoke, gpu or paper."),
    click.option("--config", "file", type=click.Path(path_type=Path), help="A YAML file of settings over the preset."),
    click.option("--target", help="llvm or cuda."),
    click.option("--device", help="real or simulated."),
    click.option("--seed", type=int, help="Seed of everything random."),
    click.option("--from", "models", multiple=True, help="Your own model (.pt2, .onnx, .py), in place of the zoo."),
    click.option("--limit", type=int, help="At most so many zoo blocks."),
    click.option("--workloads", type=int, help="Search at most so many workloads, of each family in turn."),
    click.option("--families", help="Only these families, with commas between."),
    click.option("--teacher", help="facts (templates, offline) or openai (an endpoint)."),
    click.option("--teacher-url", help="Base URL of an OpenAI-compatible endpoint."),
    click.option("--teacher-model", help="The model's name at that endpoint."),
)
RUNNING = (
    click.option("--executor", default="serial", show_default=True, help="serial, local or tcp://host:port."),
    click.option("--workers", type=click.IntRange(1, 1024), help="Processes of the local executor; one a core."),
    click.option("--retry", help="Do units again: failed, or those that ended for this reason of `dragon status`."),
)

_Command = Callable[..., Any]


def _options(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of the work, not of the alphabet

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader has seen enough; click would call it a failure
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="littledragon", prog_name="dragon")
def dragon() -> None:
    """Build, check and publish a dataset of compiler schedules.

    `dragon run` does everything; running it again goes on where it stopped.
    """


@dragon.command()
@_options(WORKDIR, *SETTINGS, *RUNNING)
def run(workdir: Path, **options: Any) -> None:
    """Run all stages, from model blocks to the release."""
    store = _run(workdir, NAMES, options)
    _closing_words(store)


def _add_stage(name: str, about: str) -> None:
    @dragon.command(name, help=about)
    @_options(WORKDIR, *SETTINGS, *RUNNING)
    def command(workdir: Path, **options: Any) -> None:
        store = _run(workdir, (name,), options)
        if name == "workloads":
            _report(store)


_ABOUT = {
    "workloads": "Stage 1: extract workloads from the zoo's model blocks.",
    "search": "Stage 2: propose, build, check and time candidates.",
    "verify": "Stage 3: time and check the chosen ones thoroughly.",
    "pairs": "Stage 4: choose what to teach, and derive its facts.",
    "teach": "Stage 5: have the teacher explain each selection.",
    "check": "Stage 6: verify each explanation against its facts.",
    "publish": "Stage 7: write the examples and the release folder.",
}
for _name in NAMES:
    _add_stage(_name, _ABOUT[_name])


@dragon.command()
@WORKDIR
def status(workdir: Path) -> None:
    """Show how far each stage is, why work was refused, and the funnel."""
    from rich.console import Console

    from littledragon.pipelines import status as page
    from littledragon.pipelines.store import Store

    store = Store.open(workdir)
    with busy("reading"):
        store.prepare()
        page.show(store, Console(width=None if sys.stdout.isatty() else 200))
        with _fresh_catalog(store):
            pass


@dragon.command()
@WORKDIR
def report(workdir: Path) -> None:
    """Show what the workloads are: operators, types, refusals, splits, and how near they lie to each other."""
    from littledragon.pipelines.store import Store

    _report(Store.open(workdir))


def _report(store: "Store") -> None:
    from rich.console import Console

    from littledragon.pipelines import report as page

    page.show(store, Console(width=None if sys.stdout.isatty() else 200))


@dragon.command()
@click.argument("sql")
@WORKDIR
@click.option("--format", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
@click.option("--timeout", type=click.FloatRange(0.1, 86400), default=300.0, show_default=True, help="Seconds.")
def query(sql: str, workdir: Path, format: Any, timeout: float) -> None:
    """Ask one SQL question of the tables; `show tables` and `describe candidates` are questions too."""
    from littledragon.pipelines import catalog
    from littledragon.pipelines.formats import render
    from littledragon.pipelines.store import Store

    store = Store.open(workdir)
    with busy("asking"):
        store.verify(sql)
        with _fresh_catalog(store) as file:
            ends = time.monotonic() + timeout
            answer = catalog.ask(store.path, sql, timeout_s=timeout, file=file)
    for piece in render(answer, format):
        if time.monotonic() > ends:
            raise catalog.too_late(timeout)
        since = time.monotonic()
        click.echo(piece, nl=False)
        ends += time.monotonic() - since  # a reader may take its time
    click.echo()


@dragon.command()
@click.argument("id")
@WORKDIR
def show(id: str, workdir: Path) -> None:
    """Show a workload, candidate, selection, label or example."""
    from rich.console import Console

    from littledragon.pipelines import show as page
    from littledragon.pipelines.store import Store

    page.show(Store.open(workdir), id, Console())


@dragon.command()
@click.argument("id")
@_options(WORKDIR, *SETTINGS)
@click.option("--release", type=click.Path(path_type=Path), help="A published folder instead of a work directory.")
def replay(id: str, workdir: Path, release: Path | None, **options: Any) -> int:
    """Run a published row here, and compare what comes out with what it claims."""
    from littledragon.pipelines import replay as again
    from littledragon.pipelines.store import Store

    _require_id(id)
    config = _config(options)
    source = release if release is not None else Store.open(workdir).path
    return again.replay(source, id, config)


@dragon.command()
@click.argument("release", type=click.Path(path_type=Path))
@click.option("--device", type=click.Choice(["real", "simulated"]), default="real", show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Whoever reaches it has kernels built and run.")
@click.option("--port", type=click.IntRange(0, 65535), default=8723, show_default=True, help="0 takes a free one.")
@click.option("--split", type=click.Choice(["train", "validation", "test"]), help="Only these tasks.")
@click.option("--environment", "environment_id", help="Whose latencies, where the release has several.")
@click.option("--workers", type=click.IntRange(1, 1024), help="Processes that build; one a core.")
@click.option("--repeat-ms", type=click.FloatRange(0.1, 1000), default=10.0, show_default=True, help="Of five repeats.")
@click.option("--build-s", type=click.FloatRange(1, 3600), default=60.0, show_default=True, help="Deadline of a build.")
def serve(release: Path, **options: Any) -> None:
    """Answer over HTTP what completions for a release's tasks are worth: POST /evaluate, GET /health."""
    from littledragon.pipelines import serve as server

    server.serve(release, **options)


@dragon.group()
def tsel() -> None:
    """Check, convert or apply one label's text."""


@tsel.command("check")
@click.argument("file", type=click.Path(path_type=Path))
def tsel_check(file: Path) -> None:
    """Say whether FILE holds a well-formed graph; if not, where it breaks which rule."""
    from littledragon.pipelines import tsel_files

    click.echo(tsel_files.check(file))


@tsel.command("convert")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--to", "notation", type=click.Choice(["line", "json"]), required=True, help="The notation to write.")
def tsel_convert(file: Path, notation: Any) -> None:
    """Print the graph of FILE in another notation; what it says stays the same."""
    from littledragon.pipelines import tsel_files

    click.echo(tsel_files.convert(file, notation), nl=False)


@tsel.command("apply")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--workload", required=True, help="Id of the workload to schedule (w-…).")
@click.option("--target", type=click.Choice(["llvm", "cuda"]), default="llvm", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print all that is known, the scheduled module too.")
@WORKDIR
def tsel_apply(file: Path, workload: str, target: str, as_json: bool, workdir: Path) -> None:
    """Apply the edits of FILE to a workload, and say whether it takes them."""
    from littledragon.compiler import targets
    from littledragon.pipelines import tsel_files
    from littledragon.pipelines.show import find
    from littledragon.pipelines.store import Store

    row = find(Store.open(workdir), workload)
    if not row.get("module") or "candidate_id" in row:
        raise UserError(f"'{workload}' is no workload with a module: give --workload the id of one (w-…)")
    with busy("applying"):
        answer = tsel_files.apply(file, row["module"], targets.target(target))
    if as_json:
        import json

        click.echo(json.dumps(answer, indent=1))
    if answer["failed"]:
        raise UserError(f"{file}: stops at gate {answer['failed']}: {answer['reason']}")
    if not as_json:
        click.echo(
            f"{file}: applies to {workload}: {answer['instructions']} instructions, module {answer['module_hash']}"
        )


@dragon.command("import")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--target", type=click.Choice(["llvm", "cuda"]), default="llvm", show_default=True)
@click.option("--best", type=click.IntRange(1), help="Of each workload only so many, fastest first by its claims.")
@WORKDIR
def import_database(paths: tuple[Path, ...], target: str, best: int | None, workdir: Path) -> None:
    """Take candidates from a MetaSchedule JSON database: its folder, or its two files. `dragon search` tries them."""
    from littledragon.pipelines import metaschedule
    from littledragon.pipelines.store import Store

    workloads, records = metaschedule.files_of(paths)
    store = Store.open(workdir)
    with busy(f"importing {records}"):
        found = metaschedule.import_(store, workloads, records, target, best)
    for line in found.lines():
        click.echo(line)


@dragon.command("export")
@click.option("--metaschedule", "folder", required=True, type=click.Path(path_type=Path), help="The folder to write.")
@click.option("--target", type=click.Choice(["llvm", "cuda"]), default="llvm", show_default=True)
@click.option("--best", type=click.IntRange(1, 1024), default=1, show_default=True, help="Traces of each workload.")
@click.option("--from", "models", multiple=True, help="Your own model (.pt2, .onnx, .py): its functions too.")
@click.option("--environment", help="Whose latencies, where there are several.")
@WORKDIR
def export_database(
    folder: Path, target: str, best: int, models: tuple[str, ...], environment: str | None, workdir: Path
) -> None:
    """Write the best verified schedules as a database that TVM's MetaScheduleApplyDatabase compiles with."""
    from littledragon.pipelines import metaschedule
    from littledragon.pipelines.store import Store

    store = Store.open(workdir)
    with busy(f"exporting to {folder}"):
        done = metaschedule.export(store, folder, target, best=best, models=models, environment=environment)
    click.echo(f"{folder}: {done.records} records of {done.workloads} workloads in {done.forms} forms")
    for line in done.left:
        click.echo(f"  left out: {line}")


@dragon.command()
@click.argument("name")
@click.option("--traces", type=click.IntRange(1, 1_000_000), help="tsel: how many are made, about; 600 if not given.")
@click.option("--sample", type=click.IntRange(1, 1_000_000), help="schedulable: workloads; 300 if not given.")
@click.option("--zoo", type=click.Choice(["demo", "paper"]), help="workloads: which blocks; paper if not given.")
@click.option("--workdir", type=click.Path(path_type=Path), help="schedulable: whose workloads; workloads: kept here.")
@click.option("--seed", type=int, help="Seed of everything random.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Child processes; 2 if not given, search: one a core.")
@click.option("--target", type=click.Choice(["llvm", "cuda"]), help="search: llvm if not given.")
@click.option("--device", type=click.Choice(["real", "simulated"]), help="search: real if not given.")
@click.option("--workloads", type=click.IntRange(1, 100_000), help="search: how many; 2 if not given.")
@click.option("--limit", type=click.IntRange(1, 100_000), help="search: zoo blocks at most; all if not given.")
@click.option("--trials", type=click.IntRange(1, 100_000), help="search: candidates of each; 32 if not given.")
@click.option("--per-round", type=click.IntRange(1, 100_000), help="search: candidates of a round; 16 if not given.")
@click.option("--warm-up", type=click.IntRange(0, 100_000), help="search: candidates before ours asks its cost model.")
@click.option(
    "--timeout", type=click.FloatRange(1, 3600), help="search: seconds of the peer's builder; 30 if not given."
)
@click.option(
    "--peers", type=click.Path(path_type=Path), help="search: figures of an earlier run, for its peer's runs."
)
@click.option("--stock", type=click.IntRange(0, 100_000), help="search: how many the peer searches; all if not given.")
@click.option("--families", help="tsel: only these families, with commas between.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write all figures to this file too.")
def bench(name: str, families: str | None, **options: Any) -> int:
    """Measure one thing of this toolkit: `builds`, `device`, `help`, `schedulable`, `search`, `tsel` or `workloads`."""
    from rich.console import Console

    from littledragon.pipelines.bench import bench as measure

    given = {key: value for key, value in options.items() if value is not None}
    if families is not None:
        given["families"] = tuple(word.strip() for word in families.split(",") if word.strip())
    return measure(name, Console(width=None if sys.stdout.isatty() else 200), **given)


@dragon.group()
def train() -> None:
    """Train a student on a published dataset folder."""


@train.command("sft", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def train_sft(options: tuple[str, ...]) -> None:
    """Supervised fine-tuning with weighted tokens; `dragon train sft --help` lists its options."""
    _become("sft", options)


@train.command("grpo", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def train_grpo(options: tuple[str, ...]) -> None:
    """Reinforcement learning with the staged reward; `dragon train grpo --help` lists its options."""
    _become("grpo", options)


def _become(trainer: str, options: Sequence[str]) -> None:
    """Go on as the trainer's own script, which gets the signals and whose exit code counts; see its `__main__`."""
    from importlib.util import find_spec

    needs = ("accelerate", "datasets", "peft", "tokenizers", "torch", "transformers", "trl")
    if missing := [name for name in needs if find_spec(name) is None]:
        raise UserError(f"training needs {', '.join(missing)}: pip install 'littledragon[train]'")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "littledragon.release.trainers", trainer, *options])


@dragon.command()
@WORKDIR
@click.option("--dry-run", is_flag=True, help="Only list what would go.")
def gc(workdir: Path, dry_run: bool) -> None:
    """Remove the work that no current plan names, and files that a kill left behind."""
    from littledragon.pipelines.lease import acquire_all
    from littledragon.pipelines.store import Store

    store = Store.open(workdir)
    if dry_run:
        _list_unnamed(store)
        return
    with acquire_all(store.path, NAMES), busy("removing"):
        units = files = 0
        for stage, path, ids in list(store.unnamed()):
            store.remove(stage, path, ids)
            units, files = units + len(ids), files + (not ids)
    click.echo(f"removed {units} units and {files} leftover files")


def _list_unnamed(store: "Store") -> None:
    units = files = 0
    for stage, path, ids in store.unnamed():
        for id in ids:
            click.echo(f"{stage} {id}")
        if not ids:
            click.echo(str(path))
        units, files = units + len(ids), files + (not ids)
    click.echo(f"would remove {units} units and {files} leftover files")


@dragon.group("eval", invoke_without_command=True)
@click.option("--data", type=click.Path(path_type=Path), help="The release folder whose prompts are answered.")
@click.option("--outputs", type=click.Path(path_type=Path), help='JSON lines of {"example_id", "output", "seconds"?}.')
@click.option("--endpoint", help="Base URL of an OpenAI-compatible endpoint; --model names the model there.")
@click.option("--model", help="Without --endpoint: the folder of a local model, through transformers.")
@click.option(
    "--baseline",
    type=click.Choice(["reference", "default", "nearest", "random", "search", "stock"]),
    help="Answers of no model; search and stock (MetaSchedule's tuner) search each task.",
)
@click.option("--split", type=click.Choice(["train", "validation", "test"]), default="test", show_default=True)
@click.option("--workdir", type=click.Path(path_type=Path), help="Keep the results here, in results.jsonl.")
@click.option("--out", type=click.Path(path_type=Path), help="Keep the results in this file.")
@click.option("--device", type=click.Choice(["real", "simulated"]), default="real", show_default=True)
@click.option("--environment", "environment_id", help="Whose latencies, where the release has several.")
@click.option("--samples", type=click.IntRange(1, 1024), default=8, show_default=True, help="Outputs of a prompt.")
@click.option(
    "--limit", type=click.IntRange(1), help="At most so many prompts of each mode; search, stock: tasks, by family."
)
@click.option("--threads", type=click.IntRange(1, 1024), help="Outputs judged at once; 1 for clean times to kernel.")
@click.option("--workers", type=click.IntRange(1, 1024), help="Processes that build; one a core.")
@click.option("--repeat-ms", type=click.FloatRange(0.1, 1000), default=10.0, show_default=True, help="Of five repeats.")
@click.option("--build-s", type=click.FloatRange(1, 3600), default=60.0, show_default=True, help="Deadline of a build.")
@click.option("--rpm", type=click.IntRange(1, 1_000_000), default=600, show_default=True, help="Endpoint: a minute.")
@click.option("--deadline-s", type=click.FloatRange(1, 86400), default=600.0, show_default=True, help="Of an answer.")
@click.option("--temperature", type=click.FloatRange(0, 10), help="Of a model; 1 for a local one.")
@click.option("--max-tokens", type=click.IntRange(1), help="Of an output; 8192 for a local model.")
@click.option("--batch", type=click.IntRange(1, 4096), default=16, show_default=True, help="Local model: at once.")
@click.option("--constrain", is_flag=True, help="Local model: only tokens that keep its text a legal graph.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of sampling, searches and the intervals.")
@click.option("--trials", type=click.IntRange(1, 100_000), default=128, show_default=True, help="Search, stock.")
@click.option(
    "--read", help="Search, stock: a result at each of these numbers of trials; 8,32,128, of stock 64 and all."
)
@click.option("--per-round", type=click.IntRange(1, 1024), default=16, show_default=True, help="Search: trials.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1, 3600),
    default=120.0,
    show_default=True,
    help="Stock: seconds of its builder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.pass_context
def eval_(ctx: click.Context, /, **options: Any) -> None:
    """Judge outputs for a release's prompts: Table 1's figures. `dragon eval compare A B`: whose are faster.

    `dragon eval times`: time to kernel against searches. `dragon eval report`: a page of several such results.
    """
    if ctx.invoked_subcommand is not None:
        return
    from littledragon.pipelines import evaluate
    from littledragon.pipelines.questions import SEARCHES, Settings, Source

    data, workdir, out, as_json = (options.pop(name) for name in ("data", "workdir", "out", "as_json"))
    source = {name: options.pop(name) for name in ("outputs", "endpoint", "model", "baseline")}
    if data is None or (workdir is None) == (out is None):
        raise UserError("dragon eval: give --data RELEASE, and one of --workdir DIR and --out FILE")
    results = out if out is not None else workdir / "results.jsonl"
    options["read"] = _numbers("--read", options["read"])
    settings = Settings(**options | {name: options[name] or 0 for name in ("limit", "threads")})
    settings.deciding(Source(**source))  # what does not fit together is refused before anything is read
    if source["baseline"] in SEARCHES:
        from littledragon.pipelines.eval_search import searched

        _tell_all(searched(data, Source(**source), results, settings), as_json)
        return
    figures = evaluate.evaluate(data, Source(**source), results, settings)
    if settings.constrain and not as_json:
        click.echo("Constrained decoding: the model could write legal tokens only (--constrain).")
    _tell(figures, as_json)


@eval_.command("compare")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def eval_compare(a: Path, b: Path, as_json: bool) -> None:
    """On how many prompts the first outputs in result file A are faster than those in B."""
    from littledragon.pipelines import evaluate

    _tell(evaluate.compare(a, b), as_json)


@eval_.command("report")
@click.argument("results", nargs=-1, metavar="[NAME=RESULTS.jsonl]...")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The page to write.")
@click.option("--trials", multiple=True, metavar="NAME=TRIALS.jsonl", help="A search's trials of the same tasks.")
@click.option("--training", multiple=True, metavar="NAME=DIR", help="The --out of a `dragon train sft` or `grpo`.")
@click.option("--curve", multiple=True, metavar="ROWS=RESULTS.jsonl", help="Of a model trained on so many rows.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the intervals.")
def eval_report(results: tuple[str, ...], out: Path, **options: Any) -> None:
    """Write one HTML page of result files, searches and training runs: Table 1 and the paper's figures.

    Each option may be given many times. What the names stand for is up to you: SFT=sft.jsonl GRPO=grpo.jsonl. Equal
    files give equal bytes. The figures need matplotlib.
    """
    from littledragon.pipelines.eval_report import report

    drawn = report(results, out, **options)
    for figure in drawn:
        if figure.svg is None:
            click.echo(f"left out: {figure.title}: {figure.missing}")
    click.echo(f"wrote {out}: {sum(figure.svg is not None for figure in drawn)} figures")


@eval_.command("times")
@click.argument("results", type=click.Path(path_type=Path))
@click.argument("trials", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--trials", "count", type=click.IntRange(1), help="Of each search; as many as it was given if left out.")
@click.option("--each", is_flag=True, help="Print every pair, too.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the intervals.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def eval_times(
    results: Path, trials: tuple[Path, ...], count: int | None, each: bool, seed: int, as_json: bool
) -> None:
    """Time to kernel of the first outputs in RESULTS, against the searches in TRIALS (FILE.trials.jsonl)."""
    from rich.console import Console

    from littledragon.pipelines import eval_search, evaluate
    from littledragon.pipelines.journal import lines_of
    from littledragon.release import times

    found = eval_search.times_of(results, trials, count, seed)
    if as_json:
        click.echo(times.dumps(found), nl=False)
        return
    run = next(lines_of(results), {}).get("run")
    crowded = evaluate.crowded(run) if isinstance(run, dict) else None
    note = f"The model's times hold waiting for other outputs: {crowded}." if crowded else None
    console = Console(width=None if sys.stdout.isatty() else 200)
    for one in found:
        for table in [*([times.task_table(one)] if each else []), *times.tables(one, note)]:
            console.print(table)


def _numbers(option: str, text: str | None) -> tuple[int, ...]:
    """The numbers of an option, with commas between."""
    words = [] if text is None else [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and 0 < len(word) < 7 for word in words):
        raise UserError(f"{option} {ascii(text)[1:-1][:40]}: give numbers with commas between, such as 8,32,128")
    return tuple(map(int, words))


def _tell_all(found: dict[int, Any], as_json: bool) -> None:
    """Print an evaluation for each number of trials."""
    import json

    if as_json:
        click.echo(json.dumps({str(n): one.as_dict() for n, one in found.items()}, indent=1, allow_nan=False))
        return
    for n, one in found.items():
        click.echo(f"The best of the first {n} trials of each task")
        _tell(one, as_json)


def _tell(figures: Any, as_json: bool) -> None:
    """Print an evaluation, or a comparison, as tables or as JSON."""
    from rich.console import Console

    from littledragon.release import evaluation

    if as_json:
        click.echo(evaluation.dumps(figures), nl=False)
        return
    console = Console(width=None if sys.stdout.isatty() else 200)
    compared = isinstance(figures, tuple)
    for table in (evaluation.comparison_tables if compared else evaluation.tables)(figures):
        console.print(table)


def _config(options: dict[str, Any]) -> "Config":
    from dataclasses import fields

    from littledragon.pipelines.config import Config, load

    settings = {field.name for field in fields(Config)} - {"preset"}
    given = {name: value for name, value in options.items() if name in settings}
    given["models"] = list(options["models"]) or None
    if options["families"] is not None:
        given["families"] = [word.strip() for word in options["families"].split(",") if word.strip()]
        if not given["families"]:
            raise UserError("--families: name at least one, or leave the option out for all")
    return load(options["preset"], options["file"], **given)


def _run(workdir: Path, names: Sequence[str], options: dict[str, Any]) -> "Store":
    config = _config(options)
    if config.device == "real" and {"search", "verify"} & set(names):
        _require_device(config.target, workdir)
    from littledragon.pipelines.driver import run
    from littledragon.pipelines.executor import executor, require
    from littledragon.pipelines.store import Store

    require(options["executor"])
    reasons = sorted({reason for name in names for reason in REASONS.get(name, ())})
    if options["retry"] not in (None, "failed", *reasons):
        raise UserError(f"--retry {options['retry']}: choose failed, or a reason: {', '.join(reasons)}")
    store = Store.open(workdir, create="workloads" in names)
    with ExitStack() as held:
        with busy(f"starting the executor {options['executor']}"):
            where = held.enter_context(executor(options["executor"], workers=options["workers"]))
        run(store, names, config, where, retry=options["retry"])
    return store


def _require_device(target: str, workdir: Path | None = None) -> None:
    from littledragon.compiler.targets import DeviceMissing, require_device

    try:
        require_device(target)
    except DeviceMissing as error:
        measured = workdir is not None and (workdir / "verify" / "manifest.parquet").exists()
        hint = "; what is measured needs no device: go on with `dragon pairs`, `teach`, `check`, `publish`"
        raise UserError(f"{error}{hint if measured else ''}") from None


def _require_id(id: str) -> None:
    from littledragon.schemas.ids import ID_PATTERN

    if not ID_PATTERN.fullmatch(id):
        raise UserError(
            f"'{id}' is no id: it is a letter (w workload, c candidate, s selection, l label, x example), "
            f'a hyphen and 16 hex digits; find one with `dragon query "select example_id from examples"`'
        )


@contextmanager
def _fresh_catalog(store: "Store") -> Iterator[Path]:
    """A catalog of this moment, kept in the work directory too where that can be written."""
    from littledragon.pipelines import catalog
    from littledragon.pipelines.files import replace

    store.prepare()
    with catalog.built(store.path) as file:
        kept = store.path / catalog.FILE
        if kept.is_dir():
            raise UserError(f"{kept}: a directory is where the catalog belongs: move it elsewhere")
        with suppress(UserError):  # on a disk that cannot be written, this one has to do
            replace(kept, file.read_bytes())
        yield file


def _closing_words(store: "Store") -> None:
    from rich.console import Console

    from littledragon.pipelines import status as page

    page.funnel(store, Console(width=None if sys.stdout.isatty() else 200))
    there = f" --workdir {shlex.quote(str(store.path))}"
    on_path = shutil.which("dragon")
    dragon = "dragon" if on_path else shlex.quote(str(Path(sys.executable).with_name("dragon")))
    python = "python" if on_path else shlex.quote(sys.executable)
    found = store.sql("select example_id from examples where state = 'ok' order by mode desc, example_id limit 1")
    id = found.column(0)[0].as_py() if found.num_rows else "ID"
    click.echo("Next:")
    click.echo(f"  {dragon} status{there}")
    click.echo(f'  {dragon} query{there} "select * from funnel"')
    click.echo(f"  {dragon} show{there} {id}")
    click.echo(f"  {dragon} replay{there} {id}")
    load = f"import datasets; print(datasets.load_dataset({str(store.path / 'release')!r}, 'refinement'))"
    click.echo(f"  {python} -c {shlex.quote(load)}")


def call(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code."""
    try:
        code = dragon.main(list(arguments), prog_name="dragon", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UserError as error:
        return _fail(str(error), USERS_FAULT)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        return _fail(f"{' '.join(error.format_message().split())} (see dragon --help)", USERS_FAULT)
    except (KeyboardInterrupt, click.Abort):
        code = TERMINATED if _terminated.is_set() else INTERRUPTED
        return _fail("stopped: what is finished is kept; run the same command again to go on", code)
    except Exception as error:
        from littledragon.pipelines.files import disk_error, is_disk_error

        if isinstance(error, OSError) and is_disk_error(error):
            return _fail(str(disk_error(Path(error.filename or "the disk"), error)), USERS_FAULT)
        if os.environ.get("DRAGON_DEBUG"):
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        return _fail(f"{said} (a fault of dragon itself: DRAGON_DEBUG=1 shows where)", OWN_FAULT)


def _fail(message: str, code: int) -> int:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    return code


_terminated = threading.Event()


def main() -> None:
    """The `dragon` command. SIGTERM stops it as cleanly as Ctrl-C does."""
    import signal

    def stop(number: int, frame: Any) -> None:
        _terminated.set()
        raise KeyboardInterrupt

    def again(swallowed: Any) -> None:
        """An interrupt that comes inside a destructor or the garbage collector is lost there: send it once more."""
        if not issubclass(swallowed.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(swallowed)
            return
        number = signal.SIGTERM if _terminated.is_set() else signal.SIGINT
        later = threading.Timer(0.05, os.kill, (os.getpid(), number))  # not in here, where it would be lost again
        later.daemon = True
        later.start()

    sys.unraisablehook = again
    signal.signal(signal.SIGTERM, stop)
    sys.exit(call(sys.argv[1:]))


if __name__ == "__main__":
    main()
