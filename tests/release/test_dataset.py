"""The release folder: files that readers open, checksums that `sha256sum` accepts, a swap that never leaves half."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from littledragon.release import dataset

SCHEMA = pa.schema([pa.field("id", pa.string(), True, {"about": "A name."}), pa.field("n", pa.list_(pa.int64()))])


def rows(count: int, start: int = 0) -> pa.Table:
    return pa.Table.from_pylist([{"id": f"r{i:06}", "n": [i]} for i in range(start, start + count)], SCHEMA)


def test_a_part_has_the_layout_that_readers_want(tmp_path: Path) -> None:
    part = dataset.write(tmp_path, "construction", "train", SCHEMA, [rows(10_000), rows(7_000, 10_000)])
    assert part is not None
    assert (part.path, part.rows) == ("construction/train-00000-of-00001.parquet", 17_000)
    file = pq.ParquetFile(tmp_path / part.path, page_checksum_verification=True)
    meta = file.metadata
    assert [meta.row_group(i).num_rows for i in range(meta.num_row_groups)] == [10_000, 7_000]
    column = meta.row_group(0).column(0)
    assert (column.compression, column.has_offset_index, column.has_column_index) == ("ZSTD", True, True)
    assert file.schema_arrow.field("id").metadata == {b"about": b"A name."}
    assert file.read().column("id").to_pylist()[-1] == "r016999"
    assert part.sha256 == dataset.sha256(tmp_path / part.path)


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (dataset.write(tmp_path / name, "tasks", "test", SCHEMA, [rows(100)]) for name in "ab")
    assert first is not None and second is not None
    assert first.sha256 == second.sha256


MIXED = pa.schema(
    [
        *SCHEMA,
        pa.field("on", pa.bool_()),
        pa.field("x", pa.float64()),
        pa.field("turns", pa.list_(pa.struct([("role", pa.string()), ("on", pa.bool_())]))),
    ]
)


def mixed(count: int) -> pa.Table:
    turns = [{"role": "user", "on": True}, None, {"role": None, "on": False}]
    rows = [
        {
            "id": None if i % 7 == 0 else f"r{i * i * 7919 % 10_007}",
            "n": None if i % 5 == 0 else list(range(i % 4)),
            "on": i % 3 == 0,
            "x": None if i % 11 == 0 else i / 3,
            "turns": turns[: i % 4],
        }
        for i in range(count)
    ]
    return pa.Table.from_pylist(rows, MIXED)


@pytest.mark.parametrize("step", [1, 3, 999, 12_345])
def test_the_same_rows_in_other_chunks_and_buffers_give_the_same_part(tmp_path: Path, step: int) -> None:
    """Chunks of a table, tables of a part, slices of longer buffers, bitmaps that say that nothing is null."""
    whole = mixed(3_000 if step < 900 else 12_500)
    wanted = dataset.write(tmp_path / "a", "tasks", "test", MIXED, [whole])
    twice = pa.concat_tables([whole.slice(5), whole]).combine_chunks().slice(whole.num_rows - 5)
    pieces = [twice.slice(i, step) for i in range(0, twice.num_rows, step)]
    for name, batches in (
        ("b", [pa.concat_tables(pieces)]),
        ("c", pieces),
        ("d", [p.combine_chunks() for p in pieces]),
    ):
        assert dataset.write(tmp_path / name, "tasks", "test", MIXED, batches) == wanted


def test_the_size_in_memory_is_that_of_the_values(tmp_path: Path) -> None:
    part = dataset.write(tmp_path, "tasks", "test", SCHEMA, [rows(100)])
    assert part is not None
    assert part.arrow_bytes == 100 * (4 + len("r000000") + 4 + 8)


def test_a_split_without_rows_leaves_no_file(tmp_path: Path) -> None:
    assert dataset.write(tmp_path, "tasks", "test", SCHEMA, [rows(0)]) is None
    assert list((tmp_path / "tasks").iterdir()) == []


def fill(folder: Path, text: str) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "README.md").write_text(text)
    (folder / "a" / "b" / "with space.txt").write_text(text)
    dataset.seal(folder)


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    fill(tmp_path, "one")
    command = ["sha256sum", "--strict", "-c", dataset.CHECKSUMS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == ["README.md: OK", "a/b/with space.txt: OK"]
    assert dataset.broken(tmp_path) == []


def test_what_changed_after_sealing_is_named(tmp_path: Path) -> None:
    fill(tmp_path, "one")
    (tmp_path / "README.md").write_text("two")
    (tmp_path / "a" / "b" / "with space.txt").unlink()
    (tmp_path / "extra").write_text("")
    assert dataset.broken(tmp_path) == [
        "a/b/with space.txt is missing",
        "extra is not listed",
        "README.md has changed",
    ]


def release(final: Path, text: str) -> None:
    fill(dataset.aside(final), text)
    dataset.replace(final)


@pytest.mark.parametrize("atomic", [True, False])
def test_a_new_release_takes_the_place_of_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    if not atomic:  # a file system or system without an exchange of names
        monkeypatch.setattr(dataset, "_exchange", lambda a, b: False)
    final = tmp_path / "release"
    for text in ("one", "two", "three"):
        release(final, text)
        assert (final / "README.md").read_text() == text
        assert dataset.broken(final) == []
        assert [p.name for p in tmp_path.iterdir()] == ["release"]


def test_a_build_that_dies_leaves_the_old_release(tmp_path: Path) -> None:
    final = tmp_path / "release"
    release(final, "one")
    (dataset.aside(final) / "half").write_text("")
    assert dataset.broken(final) == []
    release(final, "two")
    assert (final / "README.md").read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["release"]


@pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
@pytest.mark.parametrize("when", ["aside", "replace"])
def test_what_is_no_folder_is_not_replaced(tmp_path: Path, kind: str, when: str) -> None:
    final, other = tmp_path / "release", tmp_path / "other"
    other.mkdir()
    (other / "kept").write_text("")
    if when == "replace":
        fill(dataset.aside(final), "one")
    if kind == "file":
        final.write_text("kept")
    else:
        final.symlink_to(other if kind == "link" else tmp_path / "nowhere")
    before = sorted(p.name for p in tmp_path.iterdir())
    words = "a file and not a folder" if kind == "file" else "a symbolic link and not a folder"
    with pytest.raises(NotADirectoryError, match=words):
        (dataset.aside if when == "aside" else dataset.replace)(final)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert final.is_symlink() == (kind != "file")
    assert (other / "kept").exists()
    final.unlink()
    release(final, "two")
    assert dataset.broken(final) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "release"]


@pytest.mark.parametrize("name", [".release.old", ".release.new"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "file", "folder"])
@pytest.mark.parametrize("first", [True, False])
def test_leftovers_of_any_kind_are_swept(tmp_path: Path, name: str, kind: str, first: bool) -> None:
    final, other, leftover = tmp_path / "release", tmp_path / "other", tmp_path / name
    fill(other, "other")
    if not first:
        release(final, "one")
    if kind == "file":
        leftover.write_text("")
    elif kind == "folder":
        (leftover / "deep").mkdir(parents=True)
    else:
        leftover.symlink_to(other if kind == "link" else tmp_path / "nowhere")
    release(final, "two")
    assert (final / "README.md").read_text() == "two"
    assert not final.is_symlink()
    assert dataset.broken(final) == dataset.broken(other) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "release"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("step", range(6))
def test_a_kill_at_any_step_of_the_swap_leaves_one_whole_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, atomic: bool
) -> None:
    final = tmp_path / "release"
    release(final, "one")
    fill(dataset.aside(final), "two")
    steps = 0

    def counted(real: object) -> object:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal steps
            if steps == step:
                raise Killed
            steps += 1
            return real(*args, **kwargs)  # type: ignore[operator]

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", counted(Path.rename))
        patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
        patch.setattr(dataset, "_exchange", counted(dataset._exchange) if atomic else lambda a, b: False)
        patch.setattr(dataset, "_fsync", counted(dataset._fsync))
        with contextlib.suppress(Killed):
            dataset.replace(final)
    if atomic:
        assert dataset.broken(final) == []
    assert any(dataset.broken(folder) == [] for folder in tmp_path.iterdir())
    dataset.aside(final)
    assert dataset.broken(final) == []
    assert (final / "README.md").read_text() in ("one", "two")
