"""The store on real disks: what is committed comes back, what is damaged is named, what is killed loses nothing."""

import json
import math
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.pipelines import catalog, shards
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.stage import Result, Unit
from littledragon.pipelines.store import Store
from littledragon.schemas.tables import BY_NAME

SEEN = {"attempt": 1, "started_at": "2020-01-01T00:00:00+00:00", "wall_s": 0.5, "host": "here"}


def unit(number: int) -> Unit:
    return Unit("search", 1, {"p": 1}, {"number": number})


def environment(name: str, **values: object) -> dict[str, object]:
    return {**{column.name: "x" for column in BY_NAME["environments"].columns}, "environment_id": name, **values}


def result(number: int, rows: int = 2) -> Result:
    return Result({"environments": [environment(f"e{number:03}.{row}") for row in range(rows)]})


def candidate(number: int, **values: object) -> dict[str, object]:
    row = {column.name: None for column in BY_NAME["candidates"].columns}
    about = {"candidate_id": f"c{number}", "workload_id": "w", "environment_id": "e", "source": "evolutionary"}
    return {**row, **about, "rules": "llvm", "round": 0, "status": "ok", **values}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "work", create=True)


def fill(store: Store, count: int, planned: int | None = None) -> list[Unit]:
    units = [unit(number) for number in range(count)]
    store.plan("search", units[:planned])
    for number, one in enumerate(units):
        store.commit(one, result(number), SEEN)
    return units


def names(store: Store) -> list[str]:
    return [row["environment_id"] for row in Store.open(store.path).rows("environments")]


# -- opening -------------------------------------------------------------------------------------------


def test_a_new_work_directory_says_its_format(store):
    assert json.loads((store.path / "dragon.json").read_text())["format"] == 1
    assert Store.open(store.path).path == store.path


def test_without_create_a_missing_directory_is_refused_and_not_made(tmp_path):
    with pytest.raises(UserError, match="no work directory there"):
        Store.open(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("head", "said"),
    [('{"format": 2}', "format 2"), ("{", "not readable"), ("[]", "not readable"), ("{}", "not readable")],
)
def test_a_directory_of_another_version_is_refused_untouched(tmp_path, head, said):
    (tmp_path / "dragon.json").write_text(head)
    with pytest.raises(UserError, match=said):
        Store.open(tmp_path, create=True)
    assert (tmp_path / "dragon.json").read_text() == head


def test_a_directory_that_is_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="not a work directory"):
        Store.open(tmp_path, create=True)
    with pytest.raises(UserError, match="is a file"):
        Store.open(tmp_path / "thesis.tex", create=True)


@pytest.mark.parametrize(
    "name", ["**", "x=1", "outcomes=3", "new\nline", "{a,b};--", "q'uo\"te", "$v %20 ~", "über [!a]?"]
)
def test_any_name_of_a_directory_will_do(tmp_path, name):
    store = Store.open(tmp_path / name / "work", create=True)
    fill(store, 2)
    catalog.write(store.path)
    for _ in range(2):
        assert names(store) == ["e000.0", "e000.1", "e001.0", "e001.1"]
        answer = catalog.ask(store.path, "select count(*) as n from environments", timeout_s=30)
        assert answer.to_pylist() == [{"n": 4}]
        store.compact("search", at_least=1)


def test_a_backslash_in_the_name_is_refused(tmp_path):
    with pytest.raises(UserError, match="backslash"):
        Store.open(tmp_path / "a\\b", create=True)
    assert not list(tmp_path.iterdir())


def test_a_kill_while_the_directory_was_made_does_not_spoil_it(tmp_path):
    (tmp_path / ".dragon.json.12-abcd.tmp").write_text('{"for')
    assert Store.open(tmp_path, create=True).complete("search") == {}


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path):
    with pytest.raises(UserError, match="/proc/nothing"):
        Store.open(Path("/proc/nothing/here"), create=True)


# -- rows ----------------------------------------------------------------------------------------------


def test_rows_come_back_ordered_by_key_with_their_unit(store):
    second, first = unit(1), unit(0)
    store.plan("search", [second, first])
    store.commit(second, result(1), SEEN)
    store.commit(first, result(0), SEEN)
    rows = store.rows("environments")
    assert [row["environment_id"] for row in rows] == ["e000.0", "e000.1", "e001.0", "e001.1"]
    assert [row["unit_id"] for row in rows] == [first.id, first.id, second.id, second.id]
    assert store.rows("environments", "environment_id = $name", name="e001.0") == [rows[2]]
    assert store.sql("select count(*) as n from environments where unit_id = $u", u=first.id).to_pylist() == [{"n": 2}]


def test_rows_are_chosen_by_any_number_of_values(store):
    fill(store, 3)
    wanted = ["e001.1", *(f"none{number}" for number in range(3000)), "e000.0", "e001.1", "$value_0", "'"]
    found = store.chosen("environments", "environment_id", wanted)
    assert [row["environment_id"] for row in found] == ["e000.0", "e001.1"]
    among = store.chosen("environments", "environment_id", wanted, "environment_id > $least", least="e001")
    assert [row["environment_id"] for row in among] == ["e001.1"]
    assert store.chosen("environments", "environment_id", []) == []
    grouped = store.grouped("environments", "environment_id", ["e002.0", "none"])
    assert {name: len(rows) for name, rows in grouped.items()} == {"e002.0": 1, "none": 0}


def test_an_environment_is_one_row_however_many_units_measured_there(store):
    store.plan("search", [unit(0), unit(1), unit(2)])
    for number in range(3):
        store.commit(unit(number), Result({"environments": [environment("e")]}), SEEN)
    (row,) = store.rows("environments")
    assert row["unit_id"] == min(unit(number).id for number in range(3))
    store.plan("search", [unit(1)])
    assert [row["unit_id"] for row in store.rows("environments")] == [unit(1).id]


def test_every_table_has_its_view_and_types_without_any_row(store):
    for when in ("never planned", "planned"):
        for name, table in BY_NAME.items():
            found = store.sql(f"select * from {name}")
            assert found.num_rows == 0, when
            assert [(f.name, f.type) for f in found.schema] == [(f.name, f.type) for f in table.arrow()], (name, when)
        store.plan("search", [unit(0)])
        store.plan("publish", [])


def test_views_show_the_current_plan_only(store):
    units = fill(store, 4, planned=3)
    assert len(store.rows("environments")) == 6
    assert set(store.complete("search")) == {one.id for one in units}, "done is done, planned or not"
    store.plan("search", [units[3]])
    assert names(store) == ["e003.0", "e003.1"]
    assert [row["unit_id"] for row in store.rows("outcomes")] == [units[3].id]
    assert Store.open(store.path).manifest("search") == [units[3].id]


def test_the_manifest_says_what_was_planned(store):
    fill(store, 2)
    found = pq.read_table(store.path / "search" / "manifest.parquet")
    assert found.schema.metadata[b"params"] == b'{"p":1}'
    assert found.schema.metadata[b"version"] == b"1"
    assert found.column("inputs").to_pylist() == ['{"number":0}', '{"number":1}']


def test_a_later_attempt_replaces_the_rows_of_an_earlier_one(store):
    (one,) = fill(store, 1)
    store.compact("search", at_least=1)
    store.commit(one, Result({"environments": [environment("again")]}), {**SEEN, "attempt": 2})
    assert names(store) == ["again"]
    store.compact("search", at_least=1)
    assert names(store) == ["again"]
    assert store.outcomes("search")[one.id].attempt == 2


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"traces!": []}, "no table"),
        ({"environments": [{"environment_id": "e"}]}, "missing or unknown columns: codec"),
        ({"environments": [environment("e", surplus=1)]}, "surplus"),
        ({"environments": [environment("e", target=None)]}, "target may not be null"),
        ({"environments": [environment("e", target=7)]}, "stage search"),
        ({"candidates": [candidate(0, round=1 << 70)]}, "stage search"),
        ({"candidates": [candidate(0, repeats_us=["x"])]}, "stage search"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_nothing_is_kept(store, rows, said):
    with pytest.raises(shards.RowError, match=said):
        store.commit(unit(0), Result(rows), SEEN)
    assert store.complete("search") == {}
    assert not list(store.path.rglob("*.tmp"))


@settings(max_examples=30, deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=()), max_size=40),
    number=st.integers(-(2**63), 2**63 - 1),
    real=st.floats(),
    reals=st.none() | st.lists(st.floats(allow_nan=False), max_size=4),
)
def test_any_value_comes_back(tmp_path_factory, text, number, real, reals):
    store = Store.open(tmp_path_factory.mktemp("any") / "work", create=True)
    store.plan("search", [unit(0)])
    row = candidate(0, reason=text, round=number, score=real, repeats_us=reals)
    store.commit(unit(0), Result({"candidates": [row]}, detail=text), SEEN)
    (found,) = Store.open(store.path).rows("candidates")
    assert found["reason"] == text.encode("utf-8", "replace").decode()
    assert (found["round"], found["repeats_us"]) == (number, reals)
    assert found["score"] == real or math.isnan(real)


# -- damage --------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 30)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for place in range(40, 120):
        data[place] ^= 0xFF
    path.write_bytes(data)


def exchange(path: Path) -> None:
    other = next(p for p in path.parent.parent.glob("*/*.parquet") if p != path)
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("damage", [cut, empty, flip])
def test_a_damaged_file_is_named_and_mended_by_removing_it(store, damage, compacted):
    fill(store, 5)
    if compacted:
        store.compact("search", at_least=1)
    path = store.files("search")[0]
    damage(path)
    for ask in (lambda s: s.rows("environments"), lambda s: s.sql("select count(*) from environments")):
        with pytest.raises(UserError, match=f"{path.name}: damaged.*or remove it and run again"):
            ask(Store.open(store.path))
    path.unlink()
    assert len(names(store)) == (0 if compacted else 8)


@pytest.mark.parametrize("damage", [cut, empty, exchange])
def test_complete_never_takes_a_damaged_file_for_a_finished_unit(store, damage):
    fill(store, 3)
    damage(store.files("search")[1])
    with pytest.raises(UserError, match="damaged"):
        Store.open(store.path).complete("search")


def test_rows_of_a_unit_without_its_outcome_are_damage(store):
    fill(store, 2)
    store.compact("search", at_least=1)
    (path,) = store.path.glob("search/compact-*.parquet")
    added = {"environments": {**environment("e9"), "unit_id": "f" * 16}}
    rows = pa.concat_tables([shards.read(path), pa.Table.from_pylist([added], schema=shards.schema("search"))])
    with path.open("wb") as stream:
        shards.write(stream, [rows], "search")
    with pytest.raises(UserError, match="rows of a unit without its outcome"):
        names(store)


@pytest.mark.parametrize("values", [[1, 2], [{"x": 1}]])
def test_a_file_whose_columns_are_of_other_types_is_damage(store, values):
    fill(store, 2)
    store.compact("search", at_least=1)
    (path,) = store.path.glob("search/compact-*.parquet")
    columns = {name: pa.array(values) for name in ("environments", "outcomes")}
    pq.write_table(pa.table(columns), path, write_page_checksum=True)
    with pytest.raises(UserError, match=r"compact-.*: damaged"):
        names(store)


def test_damage_that_happens_while_a_store_is_open_is_seen(store):
    fill(store, 3)
    assert len(store.rows("environments")) == 6
    flip(store.files("search")[0])
    with pytest.raises(UserError, match="damaged"):
        store.rows("environments")


def test_a_damaged_manifest_is_named(store):
    fill(store, 2)
    cut(store.path / "search" / "manifest.parquet")
    for ask in (lambda s: s.manifest("search"), lambda s: s.rows("environments")):
        with pytest.raises(UserError, match=r"manifest.parquet: damaged"):
            ask(Store.open(store.path))


def test_a_foreign_file_is_named(store):
    (one,) = fill(store, 1)
    stray = store.path / "search" / one.id[:2] / "notes.parquet"
    stray.write_bytes(b"?")
    with pytest.raises(UserError, match=r"notes.parquet: not a file of this store"):
        Store.open(store.path).complete("search")


def test_files_with_fewer_or_more_columns_are_still_read(store):
    """A unit of a former version, which no plan names, must not spoil the views."""
    units = fill(store, 2)
    path = store.path / "search" / units[1].id[:2] / f"{units[1].id}.parquet"
    rows = shards.read(path).to_pylist()
    former = pa.schema(
        [
            pa.field("environments", pa.struct(list(shards.schema("search").field("environments").type)[:-1])),
            shards.schema("search").field("outcomes"),
            pa.field("dropped", pa.struct([("unit_id", pa.string()), ("x", pa.int64())])),
        ]
    )
    rows.append({"dropped": {"unit_id": units[1].id, "x": 1}})
    pq.write_table(pa.Table.from_pylist(rows, schema=former), path)
    found = Store.open(store.path).rows("environments")
    assert [row["settings"] for row in found] == ["x", "x", None, None]
    store.compact("search", at_least=1)
    assert Store.open(store.path).rows("environments") == found


# -- compaction and gc ---------------------------------------------------------------------------------


def test_compaction_changes_nothing_that_can_be_asked(store):
    fill(store, 30, planned=20)
    before, ended = store.rows("environments"), store.complete("search")
    assert store.compact("search", at_least=31) == 0
    assert store.compact("search", at_least=30) == 30
    assert len(store.files("search")) == 1
    for again in (store, Store.open(store.path)):
        assert again.rows("environments") == before
        assert again.complete("search") == ended


def test_compaction_of_one_stage_does_not_trouble_questions_about_another(store):
    fill(store, 3)
    store.rows("environments")
    Store.open(store.path).compact("search", at_least=1)
    verdicts = Unit("verify", 1, {}, {})
    store.commit(verdicts, Result(), SEEN)
    store.plan("verify", [verdicts])  # the views are made anew
    assert store.rows("verdicts") == []
    assert len(store.rows("environments")) == 6


def test_compaction_holds_a_part_of_the_rows_at_once(store, monkeypatch):
    fill(store, 30)
    before = store.rows("environments")
    monkeypatch.setattr(shards, "ROWS_PER_GROUP", 20)  # each unit has three rows
    store.compact("search", at_least=1)
    (path,) = store.files("search")
    assert pq.ParquetFile(path).metadata.num_row_groups > 3
    assert Store.open(store.path).rows("environments") == before


@pytest.mark.parametrize("after", range(5))
def test_compaction_may_be_killed_between_any_two_steps(store, monkeypatch, after):
    fill(store, 3)
    before = names(store)
    steps = iter(range(100))
    for name in ("unlink", "replace"):
        real = getattr(Path, name)

        def step(self, *arguments, real=real, **options):
            if next(steps) == after:
                raise KeyboardInterrupt
            return real(self, *arguments, **options)

        monkeypatch.setattr(Path, name, step)
    if after < 4:  # one replacement and three removals
        with pytest.raises(KeyboardInterrupt):
            store.compact("search", at_least=1)
    else:
        store.compact("search", at_least=1)
    monkeypatch.undo()
    again = Store.open(store.path)
    assert names(again) == before
    assert len(again.complete("search")) == 3
    again.compact("search", at_least=1)
    assert names(again) == before


def test_reading_goes_on_while_files_are_compacted(store):
    fill(store, 40)
    stop, wrong = threading.Event(), []

    def look() -> None:
        reader = Store.open(store.path)
        while not stop.is_set():
            counts = len(reader.rows("environments")), len(reader.complete("search"))
            if counts != (80, 40):
                wrong.append(counts)

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(4):
        store.compact("search", at_least=1)
        for number in range(0, 40, 3):
            store.commit(unit(number), result(number), {**SEEN, "attempt": 2})
    stop.set()
    thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("ask", "answer"), [(lambda s: s.complete("search"), 5), (lambda s: s.rows("environments"), 10)]
)
def test_what_is_compacted_between_listing_and_reading_is_not_lost(store, monkeypatch, ask, answer):
    fill(store, 5)
    reader = Store.open(store.path)
    listed = reader.files

    def files(stage):
        found = listed(stage)
        store.compact(stage, at_least=1)
        return found

    monkeypatch.setattr(reader, "files", files)
    assert len(ask(reader)) == answer


def test_gc_removes_what_no_manifest_names_and_nothing_else(store):
    units = fill(store, 12, planned=12)
    store.compact("search", at_least=1)
    store.commit(unit(99), result(99), SEEN)
    store.plan("search", units[:5])
    (store.path / "search" / ".half.tmp").write_bytes(b"half")
    kept = names(store)
    listed = {id for _, _, ids in store.unnamed() for id in ids}
    assert listed == {one.id for one in units[5:]} | {unit(99).id}
    for stage, path, ids in list(store.unnamed()):
        store.remove(stage, path, ids)
    again = Store.open(store.path)
    assert list(again.unnamed()) == []
    assert names(again) == kept
    assert set(again.complete("search")) == {one.id for one in units[:5]}


def test_gc_leaves_a_stage_without_a_manifest_alone(store):
    store.commit(unit(0), result(0), SEEN)
    assert list(store.unnamed()) == []


def test_the_disk_errors_of_a_commit_are_one_line(store, tmp_path):
    (store.path / "search").write_text("a file where a directory belongs")
    with pytest.raises(UserError, match="search"):
        store.commit(unit(0), result(0), SEEN)
