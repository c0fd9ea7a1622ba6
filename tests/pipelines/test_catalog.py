"""The catalog: the same answers as the store's, from a file that the duckdb shell opens; and the funnel's numbers."""

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from littledragon.pipelines import catalog
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.stage import Result, Unit
from littledragon.pipelines.store import Store
from littledragon.schemas.gates import GATES
from littledragon.schemas.tables import BY_NAME

SEEN = {"attempt": 1, "started_at": "2020-01-01T00:00:00+00:00", "wall_s": 0.5, "host": "here"}
DEFAULTS = {"VARCHAR": "x", "BIGINT": 0, "DOUBLE": 0.0, "VARCHAR[]": [], "BIGINT[]": [], "DOUBLE[]": []}


def row(table: str, **values: object) -> dict[str, object]:
    filled = {c.name: None if c.null else DEFAULTS[catalog._sql_type(c.type)] for c in BY_NAME[table].columns if c.name}
    return {**filled, **values}


def put(store: Store, stage: str, rows: dict[str, list[dict[str, object]]]) -> None:
    one = Unit(stage, 1, {}, {})
    store.plan(stage, [one])
    store.commit(one, Result(rows), SEEN)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store that the tests only read, with its catalog."""
    store = filled(tmp_path_factory.mktemp("lasting"))
    catalog.write(store.path)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return filled(tmp_path)


def filled(folder: Path) -> Store:
    """Two families; candidates that fail at known gates of the search and of verify."""
    store = Store.open(folder / "it's [a] work? dir*", create=True)
    homes = [("w1", "gemm"), ("w2", "gemm"), ("w3", "vision")]
    extractions = [
        row("extractions", workload_id=w, family=f, state="ok", block_id=w, configuration="c", task="t")
        for w, f in homes
    ]
    placements = [row("placements", state="ok", block_id=w, configuration="c", task="t") for w, _ in homes]
    put(store, "workloads", {"extractions": extractions, "placements": placements})
    found = [
        ("c0", "w1", "default", "ok"),
        ("c1", "w1", "evolutionary", "parsed"),
        ("c2", "w1", "evolutionary", "built"),
        ("c3", "w1", "evolutionary", "ok"),
        ("c4", "w2", "evolutionary", "ok"),
        ("c5", "w2", "evolutionary", "ok"),
        ("c6", "w2", "evolutionary", "ok"),
    ]
    candidates = [
        row("candidates", candidate_id=c, workload_id=w, source=source, status=status) for c, w, source, status in found
    ]
    put(store, "search", {"candidates": candidates})
    judged = [("c0", "ok"), ("c3", "ok"), ("c4", "correct"), ("c5", "stable")]
    verdicts = [row("verdicts", candidate_id=c, workload_id="w", status=status) for c, status in judged]
    put(store, "verify", {"verdicts": verdicts})
    return store


def test_the_funnel_counts_each_gate_of_each_family(lasting):
    counts = {(r["family"], r["gate"]): r["candidates"] for r in lasting.sql("select * from funnel").to_pylist()}
    gemm = [counts["gemm", gate] for gate in GATES]
    #       parsed … encoded: all but c1; built … ran: also not c2; correct, timed: also not c4; stable: c3 alone
    assert gemm == [5, 5, 5, 5, 5, 5, 4, 4, 3, 3, 1]
    assert [counts["vision", gate] for gate in GATES] == [0] * len(GATES)
    assert len(counts) == 2 * len(GATES)


def test_the_catalog_answers_like_the_store(lasting):
    with duckdb.connect(str(lasting.path / catalog.FILE), read_only=True) as shell:
        for name in catalog.table_names():
            theirs = shell.sql(f"from {name}").to_arrow_table()
            assert theirs.equals(lasting.sql(f"from {name}")), name
        assert shell.sql("select count(*) from candidates").fetchall()[0] == (7,)
        shown = {name for (name,) in shell.sql("show tables").fetchall()}
    assert shown == set(catalog.table_names()), "nothing internal in `show tables`"


def test_views_and_columns_say_what_they_hold(lasting):
    with duckdb.connect(str(lasting.path / catalog.FILE), read_only=True) as shell:
        views = dict(
            shell.sql(
                "select view_name, comment from duckdb_views() where schema_name = 'main' and not internal"
            ).fetchall()
        )
        columns = shell.sql(
            "select table_name, column_name, comment from duckdb_columns() where schema_name = 'main'"
        ).fetchall()
    about = {(table, column): comment for table, column, comment in columns}
    for table in BY_NAME.values():
        assert views[table.name] == table.about
        for column in table.columns:
            assert about[table.name, column.name] == column.about
    assert "default schedule is not counted" in views["funnel"]


def test_an_older_shell_opens_it(lasting):
    """The number of the file's layout stands behind its magic bytes; 64 is that of DuckDB 1.0."""
    head = (lasting.path / catalog.FILE).read_bytes()[8:20]
    assert (head[:4], int.from_bytes(head[4:], "little")) == (b"DUCK", 64)


def test_an_open_shell_sees_the_work_that_comes_after(store):
    catalog.write(store.path)
    with duckdb.connect(str(store.path / catalog.FILE), read_only=True) as shell:
        more = Unit("search", 1, {}, {"round": 1})
        store.plan("search", [Unit("search", 1, {}, {}), more])
        store.commit(more, Result({"candidates": [row("candidates", candidate_id="c9", status="ok")]}), SEEN)
        assert shell.sql("select count(*) from candidates").fetchall()[0] == (8,)


def test_a_moved_directory_is_right_again_after_the_catalog_is_written(store, tmp_path):
    catalog.write(store.path)
    moved = tmp_path / "moved"
    shutil.move(store.path, moved)
    catalog.write(moved)
    assert catalog.ask(moved, "select count(*) as n from candidates", timeout_s=30).to_pylist() == [{"n": 7}]


def test_a_writing_is_whole_or_absent(store, monkeypatch):
    catalog.write(store.path)
    before = (store.path / catalog.FILE).read_bytes()
    monkeypatch.setattr(catalog, "_funnel", lambda: "select broken from nowhere")
    with pytest.raises(duckdb.Error):
        catalog.write(store.path)
    assert (store.path / catalog.FILE).read_bytes() == before
    assert not [p for p in store.path.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("selec 1", "syntax error"),
        ("select nothing from candidates", "nothing"),
        ("select 1; select 2", "one SELECT"),
        ("", "one SELECT"),
        ("drop view candidates", "one SELECT"),
        ("copy (select 1) to 'x.csv'", "one SELECT"),
        ("explain analyze copy (select 1) to 'x.csv'", "one SELECT"),
        ("set memory_limit = '1TB'", "one SELECT"),
        ("attach 'y.duckdb'", "one SELECT"),
        ("install httpfs", "one SELECT"),
        ("select * from read_text('/etc/hostname')", "Permission"),
        ("select * from '/etc/hostname'", "hostname"),
        ("select * from read_csv('https://example.org/x.csv')", "query"),
    ],
)
def test_a_wrong_or_wandering_query_is_one_line(lasting, query, said):
    before = sorted(lasting.path.rglob("*"))
    with pytest.raises(UserError, match=said) as caught:
        catalog.ask(lasting.path, query, timeout_s=30)
    assert "\n" not in str(caught.value)
    assert sorted(lasting.path.rglob("*")) == before


def test_a_query_that_takes_too_long_is_stopped(lasting):
    with pytest.raises(UserError, match=r"stopped after 0.3 s"):
        catalog.ask(lasting.path, "select sum(range) from range(1000000000000)", timeout_s=0.3)


@pytest.mark.parametrize("query", ["from range(30000000000)", "select repeat('x', 20000) from range(1000000)"])
def test_a_large_answer_is_refused_while_it_is_small(lasting, query):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"more than 1,000,000 rows or 256 MiB: add a limit"):
        catalog.ask(lasting.path, query, timeout_s=60)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 << 20  # KiB


def test_the_largest_answer_is_whole(lasting):
    assert catalog.ask(lasting.path, f"from range({catalog.MOST_ROWS})", timeout_s=60).num_rows == catalog.MOST_ROWS


def test_the_tables_behind_a_query_are_known():
    assert catalog.tables_read("SELECT * FROM Funnel") == {
        "workloads": ["outcomes", "extractions", "placements"],
        "search": ["outcomes", "candidates"],
        "verify": ["outcomes", "verdicts"],
    }
    assert set(catalog.tables_read("from outcomes")) == set(catalog._STAGES)
    assert catalog.tables_read("select 1") == {}


@pytest.mark.parametrize(
    "query",
    [
        "from query_table('lab' || 'els')",
        "from query('from ' || 'labels')",
        "from store.teach",
        "from read_parquet('x')",
    ],
)
def test_a_query_that_hides_its_tables_may_read_all(query):
    found = catalog.tables_read(query)
    assert {name for names in found.values() for name in names} == set(BY_NAME) - {"workloads"}


@pytest.mark.parametrize("folder", ["outcomes=1", "unit_id=3", "r=x"])
def test_a_folder_that_looks_like_a_partition_is_a_folder(tmp_path, folder):
    store = filled(tmp_path / folder)
    catalog.write(store.path)
    for count in (store.sql, lambda query: catalog.ask(store.path, query, timeout_s=30)):
        assert count("select count(*) as n from candidates").to_pylist() == [{"n": 7}]
        assert count("select count(*) as n from outcomes where unit_id <> '3'").to_pylist() == [{"n": 3}]


@pytest.mark.parametrize("size", [0, 1 << 13, 1 << 15, 1 << 17, 1 << 18])
def test_a_full_disk_for_temporary_files_is_one_line(store, size):
    code = f"""
import resource, signal, sys
from pathlib import Path
from littledragon.pipelines import catalog
from littledragon.pipelines.errors import UserError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
try:
    catalog.write(Path(sys.argv[1]))
except UserError as error:
    print(error)
"""
    said = subprocess.run(
        [sys.executable, "-c", code, str(store.path)], capture_output=True, text=True, check=True, timeout=60
    )
    what = "the file may not grow that large here" if size else "No usable temporary directory"
    assert what in said.stdout, said.stderr
    assert said.stdout.count("\n") == 1
