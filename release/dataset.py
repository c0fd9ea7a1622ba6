"""The release folder: Parquet files that `datasets.load_dataset` opens, a card, a licence and checksums.

The folder is built aside, its checksums last, and takes the place of the old one in one step. The same rows
give the same bytes.
"""

import ctypes
import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS_PER_GROUP: Final = 10_000
SPLITS: Final = ("train", "validation", "test")
CHECKSUMS: Final = "SHA256SUMS"

_EXCHANGE, _AT_FDCWD = 2, -100


@dataclass(frozen=True)
class Part:
    """One Parquet file of the release: its path in the folder, and what the card says of it."""

    config: str
    split: str
    path: str
    rows: int
    bytes: int
    """Size of the file."""
    arrow_bytes: int
    """Size of the rows' values in memory, however they are chunked and buffered: see `_bits`."""
    sha256: str
    schema: pa.Schema


def write(folder: Path, config: str, split: str, schema: pa.Schema, batches: Iterable[pa.Table]) -> Part | None:
    """Write `<config>/<split>-00000-of-00001.parquet`; None, and no file, where there are no rows.

    `datasets` cannot load a split without rows, in whatever form its file has.
    """
    path = folder / config / f"{split}-00000-of-00001.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_file(folder, path, config, split, schema, batches)


def write_file(
    folder: Path, path: Path, config: str, split: str, schema: pa.Schema, batches: Iterable[pa.Table]
) -> Part | None:
    """The same at a path of the caller's choice inside `folder`."""
    rows = bits = 0
    with pq.ParquetWriter(
        path, schema, compression="zstd", write_page_index=True, use_content_defined_chunking=True,
        write_page_checksum=True,
    ) as writer:  # fmt: skip
        for group in _groups(schema, batches):
            writer.write_table(group, row_group_size=ROWS_PER_GROUP)
            rows += group.num_rows
            bits += sum(_bits(chunk) for column in group.columns for chunk in column.chunks)
    if not rows:
        path.unlink()
        return None
    name, size = path.relative_to(folder).as_posix(), path.stat().st_size
    return Part(config, split, name, rows, size, (bits + 7) // 8, sha256(path), schema)


def _groups(schema: pa.Schema, batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows in groups of `ROWS_PER_GROUP`, each in one chunk: the file's pages follow the chunks it is given."""
    held = schema.empty_table()
    for batch in batches:
        held = pa.concat_tables([held, batch.select(schema.names).cast(schema)])
        while held.num_rows >= ROWS_PER_GROUP:
            yield held.slice(0, ROWS_PER_GROUP).combine_chunks()
            held = held.slice(ROWS_PER_GROUP)
    if held.num_rows:
        yield held.combine_chunks()


def _bits(array: pa.Array) -> int:
    """What the values of an array take in memory, in bits: values, texts and one offset each, no validity."""
    kind = array.type
    if pa.types.is_struct(kind):
        return sum(_bits(pc.struct_field(array, [i])) for i in range(kind.num_fields))
    if pa.types.is_list(kind):
        return 32 * len(array) + _bits(pc.list_flatten(array))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 32 * len(array) + 8 * (pc.sum(pc.binary_length(array).cast(pa.int64())).as_py() or 0)
    return len(array) * int(kind.bit_width)


def sha256(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path) -> None:
    """Write `SHA256SUMS` over every file of the folder, for `sha256sum -c`; then flush all to the disk."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != CHECKSUMS)
    lines = [f"{sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
    for path in [*files, folder / CHECKSUMS]:
        _fsync(path)
    for path in [*(p for p in folder.rglob("*") if p.is_dir()), folder]:
        _fsync(path)


def broken(folder: Path) -> list[str]:
    """What differs from the folder's checksums: a line for each file that is missing, changed or not listed."""
    try:
        lines = (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return [f"{CHECKSUMS} is missing or unreadable"]
    listed = {line[66:]: line[:64] for line in lines}
    present = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - {CHECKSUMS}
    problems = [f"{name} is missing" for name in sorted(set(listed) - present)]
    problems += [f"{name} is not listed" for name in sorted(present - set(listed))]
    changed = (name for name in sorted(present & set(listed)) if sha256(folder / name) != listed[name])
    return problems + [f"{name} has changed" for name in changed]


def aside(final: Path) -> Path:
    """An empty folder beside `final` to build in; leftovers of a build that died are removed first.

    Where a build died between the two renames of `replace`, the old folder is put back.

    Raises:
        OSError: `final` is no folder (see `check`), or the disk refuses.
    """
    check(final)
    old, new = _beside(final)
    if not final.exists() and old.is_dir() and not old.is_symlink():
        old.rename(final)
    for leftover in (old, new):
        _remove(leftover)
    new.mkdir(parents=True)
    return new


def replace(final: Path) -> None:
    """Put the folder built in `aside(final)` in the place of `final`.

    On Linux the two change places in one step, so that `final` is a whole folder at every moment. Elsewhere two
    renames do it, and `aside` mends what a crash between them leaves.

    Raises:
        OSError: `final` is no folder (see `check`), or the disk refuses.
    """
    check(final)
    old, new = _beside(final)
    if not final.exists():
        new.rename(final)
    elif not _exchange(new, final):
        final.rename(old)
        new.rename(final)
    _fsync(final.parent)
    for leftover in (old, new):
        _remove(leftover)


def check(final: Path) -> None:
    """Refuse to put a release where something else lies.

    Raises:
        NotADirectoryError: a symbolic link or a file, which nobody asked to replace.
    """
    if final.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "a symbolic link and not a folder, so nothing was released")
    if final.exists() and not final.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a file and not a folder, so nothing was released")


def _remove(leftover: Path) -> None:
    """Remove a folder with all it holds; of a link, only the link."""
    if leftover.is_symlink() or not leftover.is_dir():
        leftover.unlink(missing_ok=True)
    else:
        shutil.rmtree(leftover, ignore_errors=True)


def _beside(final: Path) -> tuple[Path, Path]:
    return final.with_name(f".{final.name}.old"), final.with_name(f".{final.name}.new")


def _exchange(a: Path, b: Path) -> bool:
    """Swap two paths in one step, where the system can; False, and nothing done, where it cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return rename is not None and rename(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _EXCHANGE) == 0


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tasks_schema() -> pa.Schema:
    """The Arrow schema of the `tasks` configuration; each field carries its sentence."""
    return pa.schema([pa.field(name, kind, True, {"about": about}) for name, (kind, about) in TASKS.items()])


def published(schema: pa.Schema, without: Iterable[str] = ("unit_id",)) -> pa.Schema:
    """A table's schema as it is published: nullable throughout, without the columns that only the store needs."""
    dropped = set(without)
    return pa.schema([pa.field(f.name, f.type, True, f.metadata) for f in schema if f.name not in dropped])


TASKS: Final[Mapping[str, tuple[Any, str]]] = {
    "workload_id": (pa.string(), "The workload."),
    "family": (pa.string(), "Its family."),
    "operator": (pa.string(), "The operator at the heart of it."),
    "description": (pa.string(), "The task description d of the prompt."),
    "module": (pa.string(), "M0 as `tvm.ir.save_json`, its function named `main`."),
    "script": (pa.string(), "M0 as printed TVMScript."),
    "features": (pa.string(), "F(M0) as canonical JSON."),
    "inputs": (pa.string(), "How to make each argument, as JSON."),
    "target": (pa.string(), "The TVM target, as canonical JSON."),
    "environment_id": (pa.string(), "Where the latencies were measured; see metadata_environments."),
    "default_us": (pa.float64(), "Default latency L0 in microseconds."),
    "anchor_us": (pa.float64(), "Anchor latency a in microseconds: the best verified one."),
    "noise_band": (pa.float64(), "Larger of the noise bands of L0 and the anchor."),
    "margin": (pa.float64(), "max(0.05, 2 * noise_band): a gain must exceed it."),
    "split": (pa.string(), "train, validation or test."),
}
"""The columns of `tasks`: what reinforcement learning and replay need."""
