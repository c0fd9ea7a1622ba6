"""`dragon eval report`: the page of strangers' files, equal for equal ones, and one line for what is none."""

import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from littledragon.pipelines import cli, eval_report
from littledragon.release import evaluation, times
from littledragon.release.times import COLUMNS

Row = dict[str, Any]
RUN: Row = {"version": 1, "split": "test", "device": "real", "environments": ["e"], "prompts": "p", "repeat_ms": 10.0}
NAME = '<img onerror>"&'
FAMILY = "</svg><script>alert(1)</script>"


def row(task: str, ratio: float | None, mode: str = "construct", **more: Any) -> Row:
    """A judged output that is `ratio` times as fast as L0, which takes 1000 µs."""
    verdict = {"gate": "built"} if ratio is None else {"gate": "ok", "latency_us": 1000 / ratio, "emitted": 3}
    return {
        "example_id": f"x-{task}-{mode}", "number": 0, "task_id": task, "mode": mode, "family": "gemm",
        "environment_id": "e", "device": "real", "default_us": 1000.0, "anchor_us": 10.0, "reference_us": 20.0,
        "parent_us": 500.0 if mode == "refine" else None, "margin": 0.05, "noise_band": 0.01, "generation_s": 2.0,
        "verdict": verdict | {"seconds": {"make": 1.0}},
    } | more  # fmt: skip


ROWS = [
    row("w-1", 2.5), row("w-2", 20.0), row("w-3", None), row("w-4", 4.0, family="moe"), row("w-1", 8.0, "refine"),
    row("w-2", 3.0, "refine"),
]  # fmt: skip


def lines(path: Path, run: Row | None, rows: list[Row]) -> Path:
    head = [] if run is None else [{"run": run}]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*head, *rows]), encoding="utf-8")
    return path


def trial(task: str, number: int, elapsed_s: float, latency_us: float | None) -> Row:
    return {"task_id": task, "trial": number, "elapsed_s": elapsed_s, "gate": "ok" if latency_us else "built",
            "latency_us": latency_us}  # fmt: skip


TRIALS = [
    trial("w-1", 1, 3.0, 800.0),
    trial("w-1", 2, 9.0, 100.0),
    trial("w-2", 1, 4.0, None),
    trial("w-9", 1, 1.0, 1.0),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file of every kind."""
    lines(tmp_path / "sft.jsonl", RUN | {"source": {"model": "/home/somebody/sft-8b", "endpoint": "http://k@h"}}, ROWS)
    lines(tmp_path / "none.jsonl", RUN | {"source": {"baseline": "default"}}, [row("w-1", 1.0, generation_s=None)])
    lines(tmp_path / "trials.jsonl", RUN | {"trials": 2}, TRIALS)
    for name, values in (
        ("grpo", {"r_lat": 0.1, "stage/correct": 0.5}),
        ("sft", {"loss_decision": 1.0, "loss_structure": 1.0, "loss_explanation": 1.0}),
    ):
        (tmp_path / name).mkdir()
        state = {"log_history": [{"step": step, **values} for step in range(1, 31)]}
        (tmp_path / name / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    return tmp_path


def everything(folder: Path) -> list[str]:
    return [
        f"SFT={folder / 'sft.jsonl'}", f"default={folder / 'none.jsonl'}",
        "--trials", f"stock={folder / 'trials.jsonl'}", "--training", f"SFT={folder / 'sft'}",
        "--training", f"GRPO={folder / 'grpo'}",
        "--curve", f"100={folder / 'none.jsonl'}", "--curve", f"2000={folder / 'sft.jsonl'}",
    ]  # fmt: skip


def report(folder: Path, *arguments: str) -> str:
    out = folder / "report.html"
    assert cli.call(["eval", "report", "--out", str(out), *arguments]) == 0
    return out.read_text(encoding="utf-8")


class Page(HTMLParser):
    """Tags and attributes of a page, and the text of its table cells, by table and row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.tables: list[list[list[str]]] = []
        self.titles: list[str] = []
        self.inside: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")
            self.inside = tag
        elif tag == "h3":
            self.titles.append("")
            self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td", "h3"):
            self.inside = None

    def handle_data(self, data: str) -> None:
        if self.inside == "h3":
            self.titles[-1] += data
        elif self.inside:
            self.tables[-1][-1][-1] += data

    def table(self, title: str) -> list[list[str]]:
        return self.tables[self.titles.index(title)]


def test_the_page_holds_all_figures_and_nothing_from_elsewhere(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page(report(folder, *everything(folder)))
    assert capsys.readouterr().out == f"wrote {folder / 'report.html'}: 6 figures\n"
    assert not page.tags & {"script", "link", "img", "image", "iframe", "object", "embed", "base", "form"}
    for name, value in page.attributes:
        assert name not in ("src", "srcset", "action", "data")
        assert not name.startswith("on")
        if name in ("href", "xlink:href"):
            assert value.startswith("#")
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"url\((?!#)|@import", text)
    assert re.findall(r'<figure class="\w+" id="([\w-]+)"', text) == [
        "figure-3", "figure-4", "figure-5", "figure-6", "figure-loss", "figure-curve",
    ]  # fmt: skip
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(set(ids)) == len(ids)
    assert "baseline default" in text
    assert "model sft-8b" in text
    assert not [secret for secret in ("/home/", "k@h", str(folder)) if secret in text]


def test_tables_are_those_of_the_evaluation(folder: Path) -> None:
    page = Page(report(folder, *everything(folder)))
    group = evaluation.summarise([evaluation.output_of(one) for one in ROWS]).group("construct")
    head, ours, theirs = page.table("Construction: per output, % [95%]")
    assert head[:5] == ["results", "Correct@1", "fast_1", "fast_2", "fast_10"]
    low, high = (100 * (bound or 0) for bound in (group.correct.low, group.correct.high))
    assert ours[:2] == ["SFT", f"75.0[{low:.1f}, {high:.1f}]"]
    assert [cell.partition("[")[0] for cell in ours[2:5]] == ["75.0", "75.0", "25.0"]
    assert theirs[:2] == ["default", "100.0"]  # of one task, without an interval
    first = page.table("Construction: first outputs, geometric means [95%]")
    assert first[1][1] == "3"
    assert first[1][2].partition("[")[0] == f"{200 ** (1 / 3):.2f}×"
    refused = page.table("Construction: outputs refused, by the first gate that refused them")
    assert refused[0][1:] == ["not built", "outputs", "faults"]
    assert refused[1][1:] == ["1", "4", "0"]
    refine = page.table("Refinement: per output, % [95%]")
    assert [cell.partition("[")[0] for cell in refine[1][1:4]] == ["100.0", "100.0", "50.0"]
    families = page.table("Construction by family: per output, % [95%]")
    assert [line[0] for line in families] == ["results", "gemm", "SFT", "default", "moe", "SFT", "default"]
    assert families[-1][1:] == [""] * 9  # it has none of that family
    against = page.table("Construction: time to kernel against searches, medians [95%]")
    assert against[0][1:] == [column.name for column in COLUMNS][1:]
    assert against[1][:5] == ["SFT / stock", "1", "1", "3", "9"]  # w-1: 3 s, and 9 s until 100 µs
    assert [line[-1] for line in against[1:]] == [
        "1 incorrect, 2 unsearched",
        "1 untimed",
    ]  # also where no pair is left


def test_the_page_and_the_terminal_have_the_same_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever column one of both has."""
    page = Page(report(folder, f"SFT={folder / 'sft.jsonl'}", "--trials", f"stock={folder / 'trials.jsonl'}"))
    outputs = [evaluation.output_of(one) for one in ROWS]
    found = evaluation.summarise(outputs)
    told = evaluation.tables(found)
    told += times.tables(times.times(outputs, times.trajectories_of(TRIALS), 2, "stock"))
    for table in told:
        title = str(table.title).replace("Construction, ", "Construction: ").replace("Refinement, ", "Refinement: ")
        lines = page.table(title.replace("against stock of 2 trials", "against searches"))
        assert lines[0][1:] == [column.header for column in table.columns][1:]
        cells = [str(next(iter(column.cells))) for column in table.columns][1:]
        assert lines[1][1:] == [cell.replace(" [", "[") for cell in cells]
    assert len(told) == 7


def test_times_that_hold_waiting_get_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(run: Row, rows: list[Row] = ROWS) -> tuple[str, str]:
        path = lines(folder / "one.jsonl", RUN | run, rows)
        page = re.findall("Times to a kernel hold[^<]*", report(folder, f"one={path}"))
        trials = lines(folder / "s.jsonl", RUN | {"trials": 2, "source": {"baseline": "search"}}, TRIALS)
        capsys.readouterr()
        assert cli.call(["eval", "times", str(path), str(trials)]) == 0
        return " ".join(page), capsys.readouterr().out

    for run in ({}, {"threads": 1}, {"threads": 1, "batch": 1}):
        page, table = said(run)
        assert (page, "waiting" in table) == ("", False)
    page, table = said({"threads": 2, "batch": 16})
    assert page == "Times to a kernel hold waiting for other outputs: one (judged 2 at once and written 16 at once)."
    assert "hold waiting for other outputs: judged 2 at once and written 16 at once." in table
    assert said({"threads": 2}, [row("w-1", 1.0, generation_s=None)])[0] == ""  # it has no times


def test_equal_files_give_equal_bytes(folder: Path) -> None:
    def some(folder: Path) -> str:
        results = [f"SFT={folder / 'sft.jsonl'}", f"default={folder / 'none.jsonl'}"]
        return report(folder, *results, "--trials", f"stock={folder / 'trials.jsonl'}")

    first = some(folder)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    for name in ("sft.jsonl", "none.jsonl", "trials.jsonl"):
        (folder / name).rename(elsewhere / name)
    assert some(elsewhere) == first


def test_hostile_texts_are_escaped(folder: Path) -> None:
    rows = [one | {"family": FAMILY} for one in ROWS]
    run = RUN | {"source": {"model": f"a/{NAME}"}, "split": FAMILY, "environments": [FAMILY], "device": [NAME]}
    hostile = lines(folder / "h.jsonl", run, rows)
    text = report(folder, f"{NAME}={hostile}", "--training", f"{NAME}$x$={folder / 'grpo'}")
    page = Page(text)
    assert not page.tags & {"script", "img"}
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert any(NAME in cell for line in page.tables[0] for cell in line)
    assert "&lt;script&gt;" in text


def test_what_lacks_data_says_why_and_what_differs_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = lines(folder / "other.jsonl", RUN | {"device": "simulated", "prompts": "q"}, [row("w-1", None)])
    text = report(folder, f"a={folder / 'none.jsonl'}", f"b={other}")
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in said] == ["left out"] * 5 + [f"wrote {folder / 'report.html'}"]
    for line in said[:-1]:
        reason = line.partition(": ")[2].split(": ", 1)[1]
        assert reason.split(": ")[-1] in text.replace("&#x27;", "'")
    assert "is left out: no log of reinforcement learning" in text
    assert "differ in device, prompts: their rows are not comparable" in text
    assert "simulated device" in text
    assert "Without outputs of this kind" not in text


def test_training_alone_is_a_page_and_a_checkpoint_is_enough(folder: Path) -> None:
    for step, name in ((5, "checkpoint-5"), (30, "checkpoint-30")):
        (folder / "run" / name).mkdir(parents=True)
        state = {"log_history": [{"step": at, "stage/correct": 1.0} for at in range(step)]}
        (folder / "run" / name / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    assert len(eval_report.log_of(folder / "run")) == 30
    text = report(folder, "--training", f"a={folder / 'run'}")
    assert 'id="figure-6"' in text
    assert "Figure 5: utility in reinforcement learning is left out" in text


BAD = {
    "no_head.jsonl": json.dumps(ROWS[0]),
    "empty.jsonl": "",
    "head.jsonl": json.dumps({"run": RUN}),
    "torn.jsonl": json.dumps({"run": RUN}) + '\n{"example_id": "x',
    "deep.jsonl": "[" * 100_000,
    "binary.jsonl": "\x00\x01",
    "lacking.jsonl": "\n".join(map(json.dumps, ({"run": RUN}, {"example_id": "x"}))),
    "fast.jsonl": "\n".join(map(json.dumps, ({"run": RUN}, row("w-1", 1e12)))),
    "tiny.jsonl": "\n".join(map(json.dumps, ({"run": RUN}, row("w-1", 1.0, default_us=1e-320)))),
    "nan.jsonl": "\n".join(map(json.dumps, ({"run": RUN}, row("w-1", 1.0, default_us=math.nan)))),
    "all.jsonl": "\n".join(map(json.dumps, ({"run": RUN}, row("w-1", 1.0, family="all")))),
    "control.jsonl": "\n".join(map(json.dumps, ({"run": RUN}, row("w-1", 1.0, family="a\u202eb")))),
    "long.jsonl": "\n".join(map(json.dumps, ({"run": RUN}, row("w-1", 1.0, family="a" * 999)))),
    "families.jsonl": "\n".join(
        map(json.dumps, ({"run": RUN}, *(row(f"w-{n}", 1.0, family=f"f{n}") for n in range(40))))
    ),
}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "give NAME=RESULTS.jsonl"),
        (["sft.jsonl"], "give NAME=PATH for each result"),
        (["=sft.jsonl"], "give NAME=PATH for each result"),
        ([f"{'n' * 50}=sft.jsonl"], "a name has at most 40 letters"),
        (["a=sft.jsonl", "a=none.jsonl"], "two result files of this name"),
        ([f"{n}=sft.jsonl" for n in range(11)], "11 names, and colours for 10"),
        (["a=nowhere.jsonl"], "nowhere.jsonl: not a file"),
        (["a=grpo"], "grpo: not a file"),
        (["a=no_head.jsonl"], "not a result file"),
        (["a=empty.jsonl"], "no result in it"),
        (["a=head.jsonl"], "no result in it"),
        (["a=torn.jsonl"], "line 2: not JSON"),
        (["a=deep.jsonl"], "line 1: not JSON"),
        (["a=binary.jsonl"], "line 1: not JSON"),
        (["a=lacking.jsonl"], "is missing"),
        (["a=fast.jsonl"], "which no two kernels have"),
        (["a=tiny.jsonl"], "which no two kernels have"),
        (["a=nan.jsonl"], "which is no latency"),
        (["a=all.jsonl"], "is no name of a family"),
        (["a=control.jsonl"], "is no name of a family"),
        (["a=long.jsonl"], "more than 200 letters"),
        (["a=families.jsonl"], "40 families, at most 32"),
        (["--trials", "s=trials.jsonl"], "give result files of the same tasks"),
        (["a=sft.jsonl", "--trials", "s=none.jsonl"], "a trial has a task_id"),
        (["a=none.jsonl", "--trials", "s=head.jsonl"], "no trials in it"),
        (["--training", "g=nowhere"], "nowhere: no such folder"),
        (["--training", "g=sft.jsonl"], "sft.jsonl: no such folder"),
        (["--training", "g=."], "no trainer_state.json"),
        (["--curve", "many=sft.jsonl"], "ROWS a positive number"),
        (["--curve", "0=sft.jsonl"], "ROWS a positive number"),
        (["--curve", "²=sft.jsonl"], "ROWS a positive number"),
        (["--curve", f"{'9' * 5000}=sft.jsonl"], "ROWS a positive number"),
        (["--curve", "100=torn.jsonl"], "line 2: not JSON"),
    ],
)
def test_what_is_wrong_is_one_line(
    folder: Path, given: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for name, text in BAD.items():
        (folder / name).write_text(text, encoding="utf-8")
    assert cli.call(["eval", "report", "--out", "report.html", *given]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert words in said[0]
    assert len(said[0]) < 500
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "it has no log_history"),
        ('{"log_history": [1]}', "it has no log_history"),
    ],
)
def test_a_damaged_log_is_one_line(folder: Path, content: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "grpo" / "trainer_state.json").write_text(content, encoding="utf-8")
    out = ["--out", str(folder / "report.html")]
    assert cli.call(["eval", "report", *out, "--training", f"g={folder / 'grpo'}"]) == 2
    said = capsys.readouterr().err
    assert (words in said, said.count("\n")) == (True, 1)


def test_searches_of_another_place_are_not_comparable(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(folder / "report.html")]
    other = lines(folder / "other.jsonl", RUN | {"environments": ["f"]}, TRIALS)
    assert cli.call(["eval", "report", *out, f"a={folder / 'sft.jsonl'}", "--trials", f"s={other}"]) == 2
    assert "not comparable" in capsys.readouterr().err
    strange = lines(folder / "strange.jsonl", RUN, [trial("w-1", 1, 1.0, 1e-12)])
    assert cli.call(["eval", "report", *out, f"a={folder / 'sft.jsonl'}", "--trials", f"s={strange}"]) == 2
    assert "a time or latency that no trial has" in capsys.readouterr().err
    differs = lines(folder / "differs.jsonl", RUN, [row("w-1", 1.0, default_us=2000.0)])
    given = [f"a={folder / 'sft.jsonl'}", f"b={differs}", "--trials", f"s={folder / 'trials.jsonl'}"]
    assert cli.call(["eval", "report", *out, *given]) == 2
    assert "two result files differ in its family or L0" in capsys.readouterr().err


def test_a_page_takes_no_place_of_what_it_reads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "sft.jsonl").read_bytes()
    for out, words in (("sft.jsonl", "choose another --out"), ("nowhere/r.html", "nowhere"), (".", "")):
        given = ["--out", str(folder / out), f"a={folder / 'sft.jsonl'}"]
        assert cli.call(["eval", "report", *given]) == 2
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(said) == 1
        assert words in said[0]
    assert (folder / "sft.jsonl").read_bytes() == before


def test_without_matplotlib_one_line_says_what_to_install(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.call(["eval", "report", "--out", str(folder / "r.html"), f"a={folder / 'sft.jsonl'}"]) == 2
    said = capsys.readouterr().err
    assert ("littledragon[report]" in said, said.count("\n")) == (True, 1)
