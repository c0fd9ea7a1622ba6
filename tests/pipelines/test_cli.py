"""The command line: exit codes, one line for every mistake, and what is printed."""

import csv
import dataclasses
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from littledragon.pipelines import cli
from littledragon.pipelines.config import Config
from littledragon.pipelines.stage import Result, Unit
from littledragon.pipelines.store import Store
from littledragon.schemas.tables import BY_NAME

SEEN = {"attempt": 1, "started_at": "2020-01-01T00:00:00+00:00", "wall_s": 0.5, "host": "here"}
HERE = [sys.executable, "-m", "littledragon.pipelines.cli"]


def environment(name, **values):
    return {**{column.name: "x" for column in BY_NAME["environments"].columns}, "environment_id": name, **values}


@pytest.fixture
def store(tmp_path):
    store = Store.open(tmp_path / "work", create=True)
    units = [Unit("search", 1, {}, {"number": number}) for number in range(3)]
    store.plan("search", units)
    rows = [environment("e1", target='quo"te, and\nline'), environment("e2", target="\x1b[31mred", codec="y" * 500)]
    store.commit(units[0], Result({"environments": rows}), SEEN)
    store.commit(units[1], Result(state="failed", reason="crashed", detail="[bold]signal\x1b[0m 11"), SEEN)
    return store


@pytest.fixture
def dragon(capsys):
    def call(*arguments):
        code = cli.call([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


def one_line(answer, code=2):
    got, out, err = answer
    assert got == code, err
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_help_is_quick_and_imports_nothing_heavy():
    code = "import sys; from littledragon.pipelines import cli; cli.call(['--help']); print(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout
    assert "Commands:" in out
    for heavy in ("tvm", "torch", "duckdb", "pyarrow", "distributed", "numpy", "rich", "datasets", "openai", "pandas"):
        assert f"'{heavy}'" not in out, heavy


def test_every_command_explains_itself(dragon):
    for name, command in cli.dragon.commands.items():
        assert dragon(name, "--help")[0] == 0
        assert command.help, name
    assert dragon()[0] == 0
    assert dragon("--version")[:2] == (0, "dragon, version 0.1.0\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "No such command"),
        (["run", "--preset", "huge"], "unknown preset 'huge': choose one of"),
        (["run", "--config", "/nowhere.yaml"], "/nowhere.yaml: cannot be read"),
        (["run", "--target", "metal"], "target: must be one of"),
        (["run", "--device", "imaginary"], "device: must be one of"),
        (["run", "--limit", "0"], "error: --limit: must be from 1"),
        (["run", "--limit", "many"], "not a valid integer"),
        (["run", "--families", "gemm,poetry"], "unknown 'poetry': choose among attention, gemm"),
        (["run", "--families", " , "], "--families: name at least one"),
        (["run", "--executor", "cloud", "--device", "simulated"], "choose serial, local, or tcp://"),
        (["run", "--executor", "tcp://127.0.0.1:9", "--device", "simulated"], "no Dask scheduler answers there"),
        (["run", "--retry", "all"], "choose failed, or a reason: "),
        (["search", "--retry", "launch_bound"], "choose failed, or a reason: exhausted, no_space"),
        (["status", "--workdir", "nowhere"], "no work directory there"),
        (["query", "select 1", "--workdir", "nowhere"], "no work directory there"),
        (["query"], "Missing argument"),
        (["gc", "--workdir", "nowhere"], "no work directory there"),
        (["tsel", "check", "/nowhere.tsel"], "cannot be read"),
        (["bench", "nothing"], "unknown benchmark"),
    ],
)
def test_a_mistake_is_one_line_and_makes_nothing(dragon, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert said in one_line(dragon(*arguments))
    if "gemm,poetry" not in arguments:  # the zoo knows its families only once it is asked for its blocks
        assert not list(tmp_path.iterdir())
    assert not list(tmp_path.glob("work/*/*.parquet"))


SETTINGS = {field.name for field in dataclasses.fields(Config)} - {"preset"}


def test_every_setting_that_is_an_option_is_laid_over_the_preset(monkeypatch):
    given = {
        "target": "cuda", "device": "simulated", "seed": 7, "limit": 11, "workloads": 13, "teacher": "openai",
        "teacher_url": "http://127.0.0.1:1", "teacher_model": "m", "families": "gemm, moe", "models": "a.onnx",
    }  # fmt: skip
    options = [option for option in cli.run.params if option.name in SETTINGS]
    assert {option.name for option in options} == given.keys()
    told = []
    monkeypatch.setattr(cli, "_run", lambda workdir, names, options: told.append(cli._config(options)))
    line = [word for option in options for word in (option.opts[0], str(given[option.name]))]
    cli.dragon.main(["search", *line], standalone_mode=False)
    (config,) = told
    spelled = given | {"families": ("gemm", "moe"), "models": ("a.onnx",)}
    assert {name: getattr(config, name) for name in given} == spelled


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is an NVIDIA GPU here")  # noqa: PTH110
@pytest.mark.parametrize("command", ["run", "search", "verify"])
def test_a_missing_device_is_said_before_any_work(dragon, tmp_path, command):
    one_line(dragon(command, "--target", "cuda", "--device", "real", "--workdir", tmp_path / "work"))
    assert not (tmp_path / "work").exists()


def test_a_stage_without_those_before_it(dragon, tmp_path):
    said = one_line(dragon("pairs", "--workdir", tmp_path / "work"))
    assert "no work directory there: make one with `dragon run" in said
    assert not (tmp_path / "work").exists()
    Store.open(tmp_path / "work", create=True)
    said = one_line(dragon("pairs", "--workdir", tmp_path / "work"))
    assert "needs workloads first: run `dragon workloads`" in said


def test_status_shows_stages_and_reasons(dragon, store):
    code, out, err = dragon("status", "--workdir", store.path)
    assert (code, err) == (0, "")
    assert "search" in out
    (line,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["search"] and "failed" not in line]
    assert line == ["search", "3", "1", "0", "1", "1"]
    assert "[bold]signal [0m 11" in out, "data is not markup, and no control character is printed"


def test_query_as_table_csv_and_json(dragon, store):
    ask = ("query", "select environment_id, target, codec, null as nothing, 1.5::decimal as d from environments")
    code, out, _ = dragon(*ask, "--workdir", store.path)
    assert code == 0
    assert out.splitlines()[0].split() == ["environment_id", "target", "codec", "nothing", "d"]
    assert 'quo"te, and line' in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) < 200
    _, out, _ = dragon(*ask, "--format", "csv", "--workdir", store.path)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows[0] == {"environment_id": "e1", "target": 'quo"te, and\nline', "codec": "x", "nothing": "", "d": "1.5"}
    _, out, _ = dragon(*ask, "--format", "json", "--workdir", store.path)
    rows = json.loads(out)
    assert rows[1]["codec"] == "y" * 500
    assert rows[0]["nothing"] is None


def test_queries_without_rows_and_with_one_name_twice(dragon, store):
    assert json.loads(dragon("query", "from examples", "--format", "json", "--workdir", store.path)[1]) == []
    assert "(0 rows)" in dragon("query", "from funnel", "--workdir", store.path)[1]
    _, out, _ = dragon("query", "select 1 as a, 'two' as a, 'nan'::double as b", "--workdir", store.path)
    assert out.splitlines()[2].split()[:2] == ["1", "two"]
    assert out.splitlines()[0].split() == ["a", "a_1", "b"]
    twice = "select 1 as a, 2 as a_1, 3 as a, {'x': 4} as a"
    _, out, _ = dragon("query", twice, "--format", "json", "--workdir", store.path)
    assert json.loads(out) == [{"a": 1, "a_1": 2, "a_2": 3, "a_3": {"x": 4}}]


@pytest.mark.parametrize("format", ["table", "csv", "json"])
def test_an_answer_of_many_rows_is_whole(dragon, store, format):
    code, out, _ = dragon("query", "from range(2500)", "--format", format, "--workdir", store.path)
    lines = out.splitlines()
    assert code == 0
    if format == "json":
        assert [row["range"] for row in json.loads(out)] == list(range(2500))
    else:
        rows = lines[2:-1] if format == "table" else lines[1:]
        assert list(map(int, rows)) == list(range(2500))


def test_the_deadline_of_a_query_covers_printing(dragon, store):
    code, _, err = dragon("query", "from range(1000000)", "--timeout", "0.5", "--workdir", store.path)
    assert (code, err) == (2, "error: query: stopped after 0.5 s: narrow it, or give --timeout\n")


def test_a_wrong_query_is_one_line(dragon, store):
    assert "environmental" in one_line(
        dragon("query", "select environmental from environments", "--workdir", store.path)
    )
    assert "one SELECT" in one_line(dragon("query", "drop view labels", "--workdir", store.path))


@pytest.mark.parametrize("command", [["status"], ["query", "select * from environments"], ["query", "from outcomes"]])
def test_a_truncated_file_is_one_line_that_names_it(dragon, store, command):
    path = store.files("search")[0]
    os.truncate(path, path.stat().st_size // 2)
    assert f"{path}: damaged" in one_line(dragon(*command, "--workdir", store.path))


BOTH = [["status"], ["query", "select 1"], ["query", "from labels"], ["query", "from environments"]]
"""Questions of no stage, of another stage, and of the one that is damaged."""


@pytest.mark.parametrize("command", BOTH)
@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_a_damaged_manifest_is_one_line_that_names_it(dragon, store, command, content):
    path = store.path / "search" / "manifest.parquet"
    if content is None:  # a foreign one
        pq.write_table(pa.table({"other": [1]}), path)
    else:
        path.write_bytes(content)
    assert f"{path}: damaged" in one_line(dragon(*command, "--workdir", store.path))


@pytest.mark.parametrize("command", BOTH)
@pytest.mark.parametrize("content", ["missing", "garbage", "foreign"])
def test_columns_are_written_anew(dragon, store, command, content):
    path = store.path / "search" / "columns.parquet"
    path.unlink()
    if content == "garbage":
        path.write_bytes(b"garbage")
    elif content == "foreign":
        pq.write_table(pa.table({"other": [1]}), path)
    assert dragon(*command, "--workdir", store.path)[0] == 0
    assert dragon("query", "select count(*) as n from environments", "--format", "csv", "--workdir", store.path)[1] == (
        "n\n2\n"
    )


@pytest.mark.parametrize("command", BOTH)
def test_columns_that_cannot_be_written_anew(dragon, store, command):
    (store.path / "search" / "columns.parquet").unlink()
    (store.path / "search" / "columns.parquet").mkdir()
    assert "search/columns.parquet: " in one_line(dragon(*command, "--workdir", store.path))


@pytest.mark.parametrize("name", ["deadbeef.parquet", "zz/abc.parquet", "ab/cd/ef.parquet", "ab/ef.parquet"])
def test_a_stray_file_is_named_by_all_that_would_read_it(dragon, store, name):
    path = store.path / "search" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(store.files("search")[0], path)
    for command in BOTH[0], BOTH[-1]:
        assert f"{path}: not a file of this store: move it elsewhere" in one_line(
            dragon(*command, "--workdir", store.path)
        )


def test_a_foreign_data_file_is_named(dragon, store):
    path = store.path / "search" / "compact-x.parquet"
    pq.write_table(pa.table({"other": [1]}), path)
    for command in BOTH[0], BOTH[-1]:
        assert f"{path}: damaged (no outcomes)" in one_line(dragon(*command, "--workdir", store.path))


def test_a_directory_in_the_place_of_the_catalog(dragon, store):
    (store.path / "catalog.duckdb").mkdir()
    said = one_line(dragon("query", "select 1", "--workdir", store.path))
    assert "catalog.duckdb: a directory is where the catalog belongs: move it" in said


def test_a_copy_is_asked_for_its_own_rows_though_it_cannot_be_written(dragon, store, tmp_path):
    assert dragon("status", "--workdir", store.path)[0] == 0
    copy = shutil.copytree(store.path, tmp_path / "copy")
    shutil.rmtree(store.path)
    kept = (copy / "catalog.duckdb").read_bytes()
    with mounted_read_only(copy):
        code, out, err = dragon("query", "select count(*) as n from environments", "--workdir", copy)
    assert code == 0, err
    assert out.split()[2] == "2"
    assert (copy / "catalog.duckdb").read_bytes() == kept


@contextmanager
def mounted_read_only(path):
    """Without a right to write; or, for those who may write everywhere, with a file system that refuses."""
    if os.geteuid():
        path.chmod(0o555)
        yield
        path.chmod(0o755)
        return
    for options in (["--bind"], ["-o", "remount,bind,ro"]):
        source = [str(path)] if options == ["--bind"] else []
        if subprocess.run(["mount", *options, *source, str(path)], check=False, capture_output=True).returncode:
            pytest.skip("this place lets nobody mount")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_path_that_is_no_unicode_is_refused(dragon, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/w\xff")
    os.mkdir(path)  # noqa: PTH102
    for command in (["status"], ["query", "select 1"], ["run", "--device", "simulated"]):
        assert "w\\udcff': the name is not UTF-8" in one_line(dragon(*command, "--workdir", path))
    assert os.listdir(path) == []  # noqa: PTH208
    assert "not UTF-8" in one_line(dragon("tsel", "check", path))


@pytest.mark.parametrize("text", ['{"format": true}', '{"format": 1.0}', "[" * 50_000, '{"format": [1]}', "1"])
def test_a_head_that_is_none(dragon, store, text):
    (store.path / "dragon.json").write_text(text)
    assert "not readable as the head" in one_line(dragon("query", "select 1", "--workdir", store.path))


def test_a_pipe_is_not_waited_for(dragon, store, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "cannot be read: not a regular file" in one_line(dragon("tsel", "check", tmp_path / "pipe"))
    (store.path / "dragon.json").unlink()
    os.mkfifo(store.path / "dragon.json")
    assert "not a regular file" in one_line(dragon("query", "select 1", "--workdir", store.path))


def test_another_version_of_the_work_directory(dragon, store):
    (store.path / "dragon.json").write_text('{"format": 99}')
    for command in (["status"], ["query", "select 1"], ["gc"], ["run", "--device", "simulated"]):
        assert "format 99" in one_line(dragon(*command, "--workdir", store.path))


def test_the_work_directory_from_the_environment(dragon, store, monkeypatch):
    monkeypatch.setenv("DRAGON_WORKDIR", str(store.path))
    assert dragon("query", "select 1")[0] == 0


def test_gc_lists_and_removes(dragon, store):
    other = Unit("search", 1, {}, {"number": 77})
    store.commit(other, Result(), SEEN)
    left = store.path / "search" / ".x.parquet.1-ab.tmp"
    left.write_bytes(b"half")
    beside = store.path / ".catalog.duckdb.1-ab.tmp"
    beside.write_bytes(b"half")
    code, out, _ = dragon("gc", "--dry-run", "--workdir", store.path)
    assert code == 0
    assert f"search {other.id}" in out
    assert str(left) in out and str(beside) in out
    assert left.exists() and beside.exists()
    code, out, _ = dragon("gc", "--workdir", store.path)
    assert (code, out) == (0, "removed 1 units and 2 leftover files\n")
    assert not left.exists() and not beside.exists()
    assert set(Store.open(store.path).complete("search")) == set(store.manifest("search")[:2])


def test_the_next_commands_can_be_pasted(tmp_path, capsys):
    store = Store.open(tmp_path / "it's my work", create=True)
    cli._closing_words(store)
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [Path(line[0]).name[:6] for line in lines] == ["dragon"] * 4 + ["python"]
    assert all(Path(line[0]).exists() or shutil.which(line[0]) for line in lines)
    assert all(line[2:4] == ["--workdir", str(store.path)] for line in lines[:4])
    assert repr(str(store.path / "release")) in lines[4][2]
    compile(lines[4][2], "pasted", "exec")


def test_ids_that_are_none(dragon, store):
    for command in ("show", "replay"):
        for id in ("w-123", "z-0123456789abcdef", "'; drop", "x-0123456789abcdef"):
            one_line(dragon(command, id, "--workdir", store.path))


def test_an_own_fault_is_one_line_too(dragon, store, monkeypatch):
    monkeypatch.setattr(Store, "open", staticmethod(lambda *a, **k: {}["x"]))
    assert "DRAGON_DEBUG=1" in one_line(dragon("status", "--workdir", store.path), code=70)
    monkeypatch.setenv("DRAGON_DEBUG", "1")
    with pytest.raises(KeyError):
        cli.call(["status", "--workdir", str(store.path)])


@pytest.mark.parametrize("format", ["table", "csv", "json"])
def test_a_reader_that_goes_away(store, format):
    ask = [*HERE, "query", "from range(100000)", "--format", format, "--workdir", str(store.path)]
    process = subprocess.Popen(ask, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_have_their_exit_codes(store, number, code):
    ask = [*HERE, "query", "select sum(range) from range(1000000000000)", "--workdir", str(store.path)]
    process = subprocess.Popen(ask, stderr=subprocess.PIPE, text=True)
    time.sleep(1.5)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code, said
    assert "Traceback" not in said


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_inside_a_destructor_is_not_lost(name, code):
    script = f"""
import os, signal, sys, time
from littledragon.pipelines import cli
class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.01)
@cli.dragon.command()
def victim():
    Dying()
    time.sleep(20)
    print("went on")
sys.argv[1:] = ["victim"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
