"""`dragon tsel check`, `convert` and `apply`: one text from a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from littledragon.pipelines import cli, tsel_files
from littledragon.schemas import tsel

GOLDEN = Path(__file__).parents[1] / "golden"
LABEL = GOLDEN / "labels" / "matmul.construct.xml"
MODULE, TRACE, PAYLOAD = (
    (GOLDEN / "release" / name).read_text(encoding="utf-8")
    for name in ("module.json", "trace_slow.json", "payload_slow.txt")
)
TARGET = {"kind": "llvm", "num-cores": 2}


def dragon(capsys: Any, *arguments: Any) -> tuple[int, str, str]:
    code = cli.call(["tsel", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_convert_there_and_back(tmp_path: Path, capsys: Any) -> None:
    label = LABEL.read_text(encoding="utf-8").rstrip("\n") + "\n"
    code, json_text, err = dragon(capsys, "convert", LABEL, "--to", "json")
    assert (code, err) == (0, "")
    assert 'notation="json"' in json_text.split("\n")[0]
    assert tsel.decode(json_text).graph == tsel.decode(label).graph
    (tmp_path / "other").write_text(json_text, encoding="utf-8")
    assert dragon(capsys, "convert", tmp_path / "other", "--to", "line") == (0, label, "")
    assert dragon(capsys, "convert", tmp_path / "other", "--to", "json") == (0, json_text, "")


@pytest.mark.parametrize("command", [["check"], ["convert", "--to", "json"]])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"<graph", "gate parsed"),
        (b"\xff", "gate parsed"),
        (PAYLOAD.replace("128 [32,2,2]", "128 [32,2,3]").encode(), "gate wellformed"),
        (b" " * (tsel.MAX_TEXT + 2), "gate parsed"),
    ],
)
def test_what_is_no_graph_is_one_line(tmp_path: Path, capsys: Any, command: list[str], text: bytes, words: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(text)
    code, out, err = dragon(capsys, *command, path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {path}: ")
    assert words in err


def test_convert_wants_to_know_the_notation(capsys: Any) -> None:
    for to in ([], ["--to", "yaml"]):
        code, out, err = dragon(capsys, "convert", LABEL, *to)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_check_names_the_notation_and_the_post_processing(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "text"
    for text, words in (
        (
            PAYLOAD,
            "notation line, 7 edits, 17 instructions, 0 index maps, 0 explanations, post-processing derived (llvm)",
        ),
        (tsel.convert(PAYLOAD, "json"), "notation json, 7 edits, 17 instructions"),
        (tsel.encode(TRACE).text, "36 instructions, 0 index maps, 0 explanations, post-processing spelled out"),
        (PAYLOAD.replace('<postproc rules="llvm" version="1"/>\n', ""), "0 explanations, no post-processing"),
    ):
        path.write_text(text, encoding="utf-8")
        code, out, err = dragon(capsys, "check", path)
        assert (code, err) == (0, "")
        assert out.startswith(f"{path}: well-formed tsel/1, ")
        assert words in out


def test_apply_expands_derived_post_processing(tmp_path: Path) -> None:
    path = tmp_path / "text"
    answers = []
    for text in (PAYLOAD, tsel.convert(PAYLOAD, "json"), tsel.encode(TRACE).text):
        path.write_text(text, encoding="utf-8")
        answers.append(tsel_files.apply(path, MODULE, TARGET))
    assert [answer["failed"] for answer in answers] == [None] * 3
    assert {answer["trace"] for answer in answers} == {tsel.canonical(TRACE)}
    assert len({answer["module_hash"] for answer in answers}) == 1
    path.write_text(PAYLOAD.replace('<postproc rules="llvm" version="1"/>\n', ""), encoding="utf-8")
    never = tsel_files.apply(path, MODULE, TARGET)
    assert (never["failed"], never["scheduled"]) == ("postprocessed", None)
    assert json.loads(never["trace"])
