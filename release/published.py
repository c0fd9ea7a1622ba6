"""One row of a published folder, read as what it is: files from strangers.

Nothing is believed: column types and sizes are checked before a value is used, and what could make TVM run foreign
code (external calls and pragmas in M0) is refused; pragmas of a schedule are the language's business. `read` runs in
a child with bounded memory.
"""

import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from littledragon.schemas import tsel
from littledragon.schemas.tables import EXAMPLES, MESSAGES

Row = dict[str, Any]

MEMORY: Final = 4 << 30
"""Address space of the child that reads, bytes."""
BATCH: Final = 16
"""So many rows are read at a time, where all are."""
MAX_FILES: Final = 10_000
MAX_ROWS: Final = 10_000_000
MAX_TEXT: Final = {
    "completion": tsel.MAX_TEXT,
    "completion_json": tsel.MAX_TEXT,
    "module": 8 << 20,
    "inputs": 1 << 18,
    "target": 1 << 14,
}
"""Characters of one value; other texts have at most `MAX_OTHER`."""
MAX_OTHER: Final = 1 << 16
MAX_MESSAGES: Final = 16
"""Of one prompt."""
MAX_ELEMENTS: Final = 1 << 32
"""Elements of one argument of a kernel."""

EXAMPLE_COLUMNS: Final = (
    "example_id", "mode", "workload_id", "environment_id", "messages", "completion", "completion_json", "latency_us",
    "parent_us", "default_us",
)  # fmt: skip
TASK_COLUMNS: Final = ("workload_id", "environment_id", "module", "inputs", "margin")
ENVIRONMENT_COLUMNS: Final = (
    "environment_id", "target", "device", "processor", "driver", "tvm", "tvm_ffi", "codec", "settings",
)  # fmt: skip

_OPERATORS = """
    abs acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil clz copysign cos cosh
    erf exp exp10 exp2 fabs floor fmod hypot if_then_else infinity isfinite isinf isnan large_uint_imm ldexp likely log
    log10 log1p log2 max_value min_value nearbyint nextafter popcount pow q_multiply_shift reinterpret ret round rsqrt
    shift_left shift_right sigmoid sin sinh sqrt tan tanh trunc vectorhigh vectorlow
"""
OPERATORS: Final = frozenset(_OPERATORS.split())
"""Operators that M0 may call: arithmetic, none that names a function."""
_IMPORTS = re.compile(r"import_|asm", re.IGNORECASE)


class Unreadable(Exception):
    """The folder or the row is not what a release holds. The text is one line."""


def read(folder: str, id: str) -> Row:
    """`row`, in a child of its own."""
    return bounded(folder, lambda: row(folder, id))


def bounded(folder: str, work: Callable[[], Row]) -> Row:
    """What `work` gives, in a child that may not grow beyond `MEMORY`.

    Raises:
        Unreadable: it would.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        return work()
    except (MemoryError, pa.ArrowMemoryError):
        raise Unreadable(f"{folder}: its files hold more than fits into {MEMORY >> 30} GiB") from None


def row(folder: str, id: str) -> Row:
    """The example `id`: `example`, `task` and `environment`, rows of the columns above.

    Raises:
        Unreadable: no such row, or a file or value that no release of ours holds.
    """
    root = Path(folder)
    example = _find(root, "[cr]*/*.parquet", {"example_id": id}, EXAMPLE_COLUMNS)
    if example is None:
        raise Unreadable(f"{folder}: no example {id} in construction/ or refinement/")
    key = {name: example[name] for name in ("workload_id", "environment_id")}
    task = _find(root, "tasks/*.parquet", key, TASK_COLUMNS)
    if task is None:
        raise Unreadable(f"{folder}: tasks/ has no row of workload {short(key['workload_id'])}")
    here = {"environment_id": key["environment_id"]}
    environment = _find(root, "metadata/environments.parquet", here, ENVIRONMENT_COLUMNS)
    if environment is None:
        raise Unreadable(f"{folder}: metadata/ has no row of environment {short(key['environment_id'])}")
    _check(example, task, environment)
    return {"example": example, "task": task, "environment": environment}


def files(root: Path, pattern: str) -> list[Path]:
    """The files of a pattern, sorted. Raises Unreadable: too many, or one that is none."""
    found: list[Path] = []
    for path in root.glob(pattern):
        if len(found) == MAX_FILES:
            raise Unreadable(f"{root}: more than {MAX_FILES} files")
        if not path.is_file():
            raise Unreadable(f"{path}: not a file")
        found.append(path)
    return sorted(found)


def _find(root: Path, pattern: str, key: Row, columns: tuple[str, ...]) -> Row | None:
    """The first row whose columns have these values; of each row group, only the keys are read until it is found."""
    for path in files(root, pattern):
        file = _open(path, columns)
        try:
            for group in range(file.num_row_groups):
                keys = file.read_row_group(group, list(key))
                same = [pc.equal(keys.column(name), pa.scalar(value, pa.string())) for name, value in key.items()]
                place = pc.index(functools.reduce(pc.and_, same), True).as_py()
                if place >= 0:
                    rows = file.read_row_group(group, list(columns)).slice(place, 1)
                    _check_sizes(path, rows)
                    return dict(rows.to_pylist()[0])
        except pa.ArrowMemoryError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Unreadable(f"{path}: damaged: {short(error)}") from None
    return None


def batches(path: Path, columns: tuple[str, ...], first: int) -> Iterator[list[Row]]:
    """The rows of a file from the `first` on, some at a time.

    Raises:
        Unreadable: the file, or the size of a value, is none of a release.
    """
    file, skip = _open(path, columns), first
    try:
        group = 0  # whole groups of rows before the first one are not read
        while group < file.num_row_groups and skip >= (rows := file.metadata.row_group(group).num_rows):
            group, skip = group + 1, skip - rows
        groups = list(range(group, file.num_row_groups))
        for batch in file.iter_batches(BATCH, row_groups=groups, columns=list(columns)):
            table = pa.Table.from_batches([batch.slice(skip)])
            skip = max(0, skip - batch.num_rows)
            if table.num_rows:
                _check_sizes(path, table)
                yield table.to_pylist()
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Unreadable(f"{path}: damaged: {short(error)}") from None


def _open(path: Path, columns: tuple[str, ...]) -> pq.ParquetFile:
    """A file whose columns have the types of a release."""
    try:
        file = pq.ParquetFile(
            path, memory_map=False, page_checksum_verification=True, thrift_string_size_limit=1 << 24,
            thrift_container_size_limit=1 << 20, arrow_extensions_enabled=False,
        )  # fmt: skip
        schema = file.schema_arrow
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Unreadable(f"{path}: not a readable Parquet file: {short(error)}") from None
    if file.metadata.num_rows > MAX_ROWS:
        raise Unreadable(f"{path}: more than {MAX_ROWS} rows")
    types = {column.name: column.type for column in EXAMPLES.columns} | {
        "margin": pa.float64(),
        "noise_band": pa.float64(),
        "anchor_us": pa.float64(),
        "messages": MESSAGES,
    }
    for name in columns:
        wanted = types.get(name, pa.string())
        index = schema.get_all_field_indices(name)
        if len(index) != 1:
            raise Unreadable(f"{path}: has {len(index)} columns '{name}', and a release has one")
        if schema.field(index[0]).type != wanted:
            raise Unreadable(f"{path}: column '{name}' is {short(schema.field(index[0]).type)}, and must be {wanted}")
    return file


def _check_sizes(path: Path, rows: pa.Table) -> None:
    """Refuse a row whose texts are too long, before they become Python objects."""
    for name in rows.column_names:
        column = rows.column(name)
        if pa.types.is_string(column.type):
            size = pc.max(pc.binary_length(column)).as_py() or 0
            if size > MAX_TEXT.get(name, MAX_OTHER):
                raise Unreadable(f"{path}: '{name}' holds {size} bytes, more than {MAX_TEXT.get(name, MAX_OTHER)}")
        elif pa.types.is_list(column.type):
            texts = pc.list_flatten(column).combine_chunks()
            size = pc.max(pc.binary_length(pc.struct_field(texts, "content"))).as_py() or 0
            most = pc.max(pc.list_value_length(column)).as_py() or 0
            if most > MAX_MESSAGES or size > MAX_TEXT["completion"]:
                raise Unreadable(f"{path}: '{name}' holds {most} messages of up to {size} bytes: too much")


def _check(example: Row, task: Row, environment: Row) -> None:
    """Refuse values that no release holds."""
    where = example["example_id"]
    for row in (example, task, environment):
        lacking = [name for name, value in row.items() if value is None and name != "parent_us"]
        if lacking:
            raise Unreadable(f"{where}: {', '.join(lacking)} is missing")
    for name in ("latency_us", "default_us"):
        if not 0 < example[name] < 1e9:
            raise Unreadable(f"{where}: {name} is {example[name]}, which is no latency")
    if example["mode"] not in ("construct", "refine"):
        raise Unreadable(f"{where}: mode '{short(example['mode'])}' is neither construct nor refine")
    if example["mode"] == "refine" and not (0 < (example["parent_us"] or 0) < 1e9 and len(example["messages"]) == 4):
        raise Unreadable(f"{where}: a refinement without a prior graph and its latency")
    _check_messages(where, example)
    _check_notations(where, example)
    if not 0 < task["margin"] < 100:
        raise Unreadable(f"{where}: margin is {task['margin']}")
    check_target(environment["target"], f"{where}: its environment")
    check_specs(task["inputs"])
    check_module(task["module"])


ROLES: Final = {"construct": ["system", "user"], "refine": ["system", "user", "assistant", "user"]}
"""Who speaks in the prompt of an example; the assistant's turn of a refinement is graph A."""


def _check_messages(where: str, example: Row) -> None:
    messages = example["messages"]
    for number, message in enumerate(messages, 1):
        lacking = ["it"] if message is None else [name for name, value in message.items() if value is None]
        if lacking:
            raise Unreadable(f"{where}: message {number} of {len(messages)}: {', '.join(lacking)} is missing")
    roles = [message["role"] for message in messages]
    if roles != ROLES[example["mode"]]:
        said = short(", ".join(roles))
        raise Unreadable(f"{where}: its messages are of {said}, and must be of {', '.join(ROLES[example['mode']])}")


def _check_notations(where: str, example: Row) -> None:
    """Refuse an example whose two notations are not of one graph. A completion that is none fails its gate later."""
    try:
        graph = tsel.decode(example["completion"]).graph
    except tsel.TselError:
        return
    try:
        other = tsel.decode(example["completion_json"]).graph
        # by their texts: graphs are equal, for Python, where one says 1 and the other true
        same = tsel.render(other).text == tsel.render(graph).text
    except tsel.TselError as error:
        raise Unreadable(f"{where}: its completion_json is no graph: {short(error)}") from None
    if not same:
        raise Unreadable(f"{where}: its completion_json is not the graph of its completion")


def check_target(text: str, whose: str) -> None:
    """Refuse what is no TVM target for CPUs or NVIDIA GPUs, as JSON.

    Raises:
        Unreadable: so it is.
    """
    try:
        kind = json.loads(text)["kind"]
    except (ValueError, TypeError, KeyError, RecursionError):
        kind = None
    if kind not in ("llvm", "cuda"):
        raise Unreadable(f"{whose}'s target is neither llvm nor cuda")


def check_specs(text: str) -> None:
    """Refuse anything but a list of kernel arguments, as `compiler.inputs` takes them, of a bounded size.

    Raises:
        Unreadable: so it is.
    """
    try:
        specs = json.loads(text)
        fine = isinstance(specs, list) and 0 < len(specs) <= 64 and all(_is_spec(spec) for spec in specs)
    except (ValueError, TypeError, KeyError, RecursionError):
        fine = False
    if not fine:
        raise Unreadable("the task's inputs are not a list of kernel arguments of a bounded size")


def _is_spec(spec: Any) -> bool:
    shape, bounds = spec["shape"], (spec["low"], spec["high"])
    return (
        isinstance(spec["name"], str)
        and isinstance(spec["role"], str)
        and re.fullmatch(r"[a-z][0-9a-z_]{1,15}", spec["dtype"]) is not None
        and isinstance(shape, list)
        and len(shape) <= 16
        and all(type(extent) is int and 0 < extent <= MAX_ELEMENTS for extent in shape)
        and math.prod(shape) <= MAX_ELEMENTS
        and all(bound is None or type(bound) is int for bound in bounds)
    )


def check_module(text: str) -> None:
    """Refuse an M0 that calls anything but arithmetic, or that imports code.

    Raises:
        Unreadable: so it is, or the text is no `save_json`.
    """
    try:
        nodes = json.loads(text)["nodes"]
        kinds = [(str(node["type"]), node.get("data")) for node in nodes]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Unreadable("the task's module is not what tvm.ir.save_json writes") from None
    functions = sum(kind.endswith(("Func", "GlobalVar")) for kind, _ in kinds)
    if functions != 2:
        raise Unreadable("the task's module holds or names other functions than the one of a workload")
    for kind, data in kinds:
        if kind.endswith(".Op") and str(data).split(".")[-1] not in OPERATORS:
            raise Unreadable(f"the task's module calls {short(data)}, which is no arithmetic")
        if kind.endswith("String") and _IMPORTS.search(str(data)):
            raise Unreadable(f"the task's module names {short(data)}, which may import code")


def short(value: Any) -> str:
    """A value from a file, fit for one line."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(value)[:2000]).split())
    return text[:120]
