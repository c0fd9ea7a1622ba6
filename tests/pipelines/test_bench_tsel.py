"""`dragon bench tsel` on few traces: what it counts adds up, and a trace that does not come back fails the run."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from littledragon.pipelines import bench_tsel, cli

SAMPLE = Path(__file__).parents[2] / "samples" / "h200_traces.jsonl.gz"


def run(*arguments: object) -> int:
    return cli.call(["bench", "tsel", "--jobs", "1", *map(str, arguments)])


@pytest.mark.slow
def test_schedules_by_hand_come_back_and_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    assert run("--families", "by hand", "--traces", 40, "--seed", 3, "--json", out) == 0
    printed = capsys.readouterr().out
    figures = json.loads(out.read_text(encoding="utf-8"))
    (cell,) = figures["cells"]
    assert cell["traces"] == cell["before"] + cell["after"] == cell["trees"] == cell["modules"] >= 40
    assert cell["before"] == cell["after"] == figures["kinds"]["EnterPostproc"]
    assert cell["failures"] == cell["lossy"] == 0
    assert not figures["failed"]
    assert {"CacheRead", "RFactor", "PadEinsum", "LoopPartition", "SampleComputeLocation"} <= set(figures["kinds"])
    assert all(len(rates) == bench_tsel.TURNS for rates in (figures["speed"]["by hand"][n] for n in ("line", "tvm")))
    assert f"{cell['traces']} traces: {cell['traces']} came back as trees" in printed
    for kind, count in figures["kinds"].items():
        assert kind in printed
        assert f"{count:,}" in printed


def probe(path: Path, **changes: str) -> Path:
    """A file of recorded traces: the shortest of the sample, and the same with each of the changes made."""
    rows = [json.loads(line) for line in gzip.decompress(SAMPLE.read_bytes()).decode().splitlines()]
    short = min((row for row in rows if row["kind"] == "candidate"), key=lambda row: len(row["trace"]))
    # By hand: nothing is derived, which would cost seconds.
    kept: list[Any] = [{**r, "rules": "by hand"} for r in rows if (r["kind"], r["name"]) == ("workload", short["name"])]
    kept.append(short)
    for old, new in changes.items():
        assert old in short["trace"]
        kept.append({**short, "trace": short["trace"].replace(f'"{old}"', f'"{new}"')})
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in kept).encode()))
    return path


def test_a_trace_that_does_not_come_back_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures.json"
    # TVM takes any names for what a step gives; the language knows only those that TVM writes.
    monkeypatch.setenv("LITTLEDRAGON_H200", str(probe(tmp_path / "probe.jsonl.gz", b0="b77777")))
    assert run("--families", bench_tsel.PROBE, "--json", out) == 1
    figures = json.loads(out.read_text(encoding="utf-8"))
    (cell,) = [cell for cell in figures["cells"] if cell["traces"]]
    assert (cell["traces"], cell["trees"], cell["modules"], cell["failures"], cell["lossy"]) == (2, 1, 1, 1, 0)
    (reason,) = figures["failures"]
    assert reason.startswith(f"{bench_tsel.PROBE}, by hand: encoding: wellformed: ")
    assert "2 traces: 1 came back as trees, 1 as modules, 1 failed" in capsys.readouterr().out


@pytest.mark.slow
def test_a_child_that_dies_loses_its_workload_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = probe(tmp_path / "probe.jsonl.gz"), tmp_path / "figures.json"
    workload, good = (json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines())
    endless = json.dumps({"root_index": 0, "nodes": [{"type": "ffi.Array", "data": [0]}]})  # TVM runs out of stack
    rows = [{**workload, "name": "deadly"}, {**good, "name": "deadly", "trace": endless}, workload, good]
    file.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    monkeypatch.setenv("LITTLEDRAGON_H200", str(file))
    assert run("--families", bench_tsel.PROBE, "--json", out) == 1
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert [cell["modules"] for cell in figures["cells"] if cell["traces"]] == [1]
    (lost,) = figures["lost"]
    assert lost.startswith("deadly from 0 (by hand): crashed: ")
    assert f"lost: {lost}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "tsel", "--families", "gemm,nothing"], "unknown family 'nothing'"),
        (["bench", "tsel", "--traces", "0"], "--traces"),
        (["bench", "help", "--traces", "5"], "bench help has no option --traces"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b"{}\n"), gzip.compress(b"[1]\n"), None])
def test_recorded_traces_that_cannot_be_read_are_one_line(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "probe.jsonl.gz"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("LITTLEDRAGON_H200", str(file))
    assert run("--families", bench_tsel.PROBE) == 2
    error = capsys.readouterr().err
    assert "holds no recorded traces" in error
    assert error.count("\n") == 1
