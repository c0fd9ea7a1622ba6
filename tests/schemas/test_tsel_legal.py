"""Legal decoding: what a writer writes is legal, what ends legally is well-formed, and a mistake is seen at once."""

import random
from pathlib import Path

import mutants
import pytest
import walks
from graph_mutants import decisions
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.schemas import tsel
from littledragon.schemas.tsel import legal

GOLDEN = Path(__file__).parents[1] / "golden"
SEEDS = st.integers(0, 1 << 40)
HEAD = '<graph version="tsel/1" notation="line" tvm="0.25.0.post1">\n'
EDIT = f'{HEAD}<trace_sequence id="t0">\n'
END = "\n</trace_sequence>\n</graph>\n"
BLOCKS = f"{EDIT}b0 = block C\nl1-3 = loops b0\n"
MAP = f'{HEAD}<map id="m0">'
GRAPH = f'{HEAD}<evidence id="e1" cite="x">y</evidence>\n<analysis id="a1">z</analysis>\n'
STARTS = (
    EDIT,
    f"{BLOCKS}v4-6 = ",
    f"{BLOCKS}v4-6 = tile l1 ",
    f"{BLOCKS}v4-6 = partitioned_tile l1 ",
    f"{BLOCKS}v4-6 = tile l2 60 [2,5]\nl7-9 = split",
    f"{BLOCKS}v4 = categorical [1,2,96] 2\nannotate b0 ",
    f"{BLOCKS}l4 = location b0 -1\n",
    f"{BLOCKS}reorder ",
    f"{BLOCKS}l4 = fuse ",
    f"{BLOCKS}enter_postproc\n",
    MAP,
    f'{MAP}{{"in":["i0","i1"],',
    f'{MAP}{{"in":["i"],"let":{{"$0":0,"$1":',
    f'{MAP}{{"in":["i"],"out":["v3"]}}</map>\n<trace_sequence id="t0">\n',
    GRAPH,
    f'{GRAPH}<trace_sequence id="t0">\nenter_postproc\n</trace_sequence>\n<effect id="p1">x</effect>\n<',
)


def reach(text: str) -> int:
    """How many characters are legal."""
    state = legal.start()
    for place, char in enumerate(text):
        after = legal.advance(state, char)
        if after is None:
            return place
        state = after
    return len(text)


def is_whole(text: str) -> bool:
    state = legal.advance(legal.start(), text)
    return state is not None and legal.complete(state)


def test_every_recorded_text_is_legal() -> None:
    texts = {base.texts[0] for base in mutants.bases() if base.workload}
    paths = [*(GOLDEN / "labels").glob("*.xml"), *(GOLDEN / "tsel").glob("*.line.xml"), GOLDEN / "paper" / "label.xml"]
    texts |= {tsel.convert(path.read_text(encoding="utf-8"), "line") for path in paths}
    assert len(texts) > 30
    for text in texts:
        assert is_whole(text), (text[: reach(text)][-200:], text[reach(text) :][:40])


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_other_decisions_of_real_traces_are_legal(seed: int) -> None:
    draw = random.Random(seed)
    base = draw.choice([base for base in mutants.bases() if base.workload])
    try:
        text = tsel.render(decisions(draw, base.graph)).text
        tsel.decode(text)
    except tsel.TselError:
        return
    assert reach(text) == len(text)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_a_random_legal_text_that_ends_is_well_formed(seed: int) -> None:
    text, ended = walks.walk(seed)
    if ended:
        found = tsel.diagnose(text)
        assert found.gate is None, (text, found)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.sampled_from(STARTS), st.sampled_from(("", "v")))
def test_wherever_it_starts_a_legal_text_ends_well(seed: int, before: str, last: str) -> None:
    text, ended = walks.walk(seed, before, 2000, last)
    if ended:
        found = tsel.diagnose(text)
        assert found.gate is None, (text, found)


@pytest.mark.parametrize("before", ["", *STARTS])
def test_wherever_it_starts_some_random_text_ends(before: str) -> None:
    """So that what is said of those that end is said of something. A map of few sampled numbers ends more often."""
    last = "v" if before.startswith(MAP) and before.count("v") == MAP.count("v") else ""
    ends = (text for seed in range(24) for text, ended in [walks.walk(seed, before, 2000, last)] if ended)
    text = next(ends, None)
    assert text is not None
    assert text.startswith(before)
    assert tsel.diagnose(text).gate is None


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_what_the_language_refuses_is_never_whole(seed: int) -> None:
    """Mutants of real texts: the two readers share little code."""
    mutant = mutants.payload(seed).text
    text = mutant if isinstance(mutant, str) else mutant.decode("utf-8", "replace")
    if is_whole(text):
        assert tsel.diagnose(text).gate is None


@pytest.mark.parametrize(
    ("before", "wrong", "right"),
    [
        # the skeleton
        ("", "<analysis", f"{HEAD}<analysis"),
        (f"{HEAD}<", "x", "e"),
        (f'{HEAD}<evidence id="', "a1", "e1"),
        (f"{HEAD}<analysis id=\"a1\">1 ", "< 2", "&lt; 2"),
        (f'{HEAD}<analysis id="a1">x</analysis>\n<', "v", "m"),
        (f'{GRAPH}<analysis id="a1', '"', '2"'),
        (f"{HEAD}<postproc rules=\"", "rocm", "llvm"),
        (f"{BLOCKS}enter_postproc\n", "e", "b"),
        (f"{BLOCKS}enter_postproc\n</trace_sequence>\n<", "po", "effect"),
        (EDIT, "</trace_sequence>", "b0"),
        # words and names
        (EDIT, "annotate", "reorder"),  # nothing is there to be annotated
        (EDIT, "b1", "b0"),
        (f"{BLOCKS}b4 = ", "tile", "cache_read"),
        (f"{BLOCKS}", "cache_read", "bind"),
        (f"{BLOCKS}bind ", "b0", "l1"),
        (f"{BLOCKS}bind l", "4", "3"),
        (f"{BLOCKS}bind l1 ", "gridIdx", "threadIdx.x\n"),
        (f"{BLOCKS}bind l1", "\n", " blockIdx.x\n"),
        (f"{BLOCKS}reorder l1 ", "l1", "l2"),
        (f"{BLOCKS}reorder l1-", "4", "3"),
        (f"{BLOCKS}unroll l1", " l2", "\n"),
        (f"{BLOCKS}b4 = cache_read b0 0 shared consumers=", "l", "b0\n"),
        (f"{BLOCKS}l4 = location b0 -1\nbind l", "4", "3"),
        (f"{BLOCKS}l4 = location b0 -1\ncompute_at b0 ", "l5", "l4\n"),
        (f"{BLOCKS}annotate b0 pragma_", "import_c", "unroll_explicit 1\n"),
        (f"{BLOCKS}annotate b0 ms.cooperative_fetch ", "65", "64\n"),
        (f"{BLOCKS}v4 = categorical [1,96] 1\nannotate b0 ms.cooperative_fetch ", "v4", "4\n"),
        (f"{BLOCKS}v4 = categorical [1,96] ", "2", "1\n"),
        # tiles and splits
        (f"{BLOCKS}v4-6 = tile l1 1024 [", "33", "32,1]\n"),
        (f"{BLOCKS}v4-6 = tile l1 1024 [", "17", "16,1]\n"),
        (f"{BLOCKS}v4-6 = tile l1 1024 [512,", "4", "2]\n"),
        (f"{BLOCKS}v4-6 = tile l1 1024 [8,", "1]", "16]\n"),  # 128 would be left
        (f"{BLOCKS}v4-6 = tile l1 1024 [8", "]", ",2]\n"),
        (f"{BLOCKS}v4-6 = tile l1 1024 [8,2", ",", "]\n"),
        (f"{BLOCKS}v4-6 = tile l1 max_innermost_factor=-1 1024 [1,", "3]", "1]\n"),
        (f"{BLOCKS}v4-6 = tile l1 max_innermost_factor=", "0", "16 "),
        (f"{BLOCKS}v4-6 = partitioned_tile l1 1 8 ", "12 ", "24 [3,1]\n"),
        (f"{BLOCKS}v4-6 = partitioned_tile l1 1 8 24 [", "2", "3,4]\n"),
        (f"{BLOCKS}v4-6 = tile l1 8 [2,2]\nl7-8 = split", "\n", " l1 v4 v5\n"),
        (f"{BLOCKS}v4-6 = tile l1 8 [2,2]\nl7-9 = split", " l1 v4\n", "\n"),
        (f"{BLOCKS}v4-6 = tile l1 8 [2,2]\nl7-9 = split l1 null ", "null", "v4-5\n"),
        # index maps
        (f"{MAP}i j - ", "k", "j i</map>\n"),
        (f"{MAP}i - i</map>\n<map id=\"m1\">i - i", "<", " i</map>\n"),
        (f"{MAP}i - i</map>\n", "</graph>", "<trace_sequence"),
        (f'{MAP}i - i</map>\n{EDIT.removeprefix(HEAD)}b0 = block C\ntransform_block_layout b0 m', "1", "0\n"),
        (f'{MAP}{{"in":["i"],"out":[["//","i",', "0", "1"),
        (f'{MAP}{{"in":["i"],"let":{{"$0":2}},"out":[["+","$0","i"]', "]", ',"$0"]}</map>\n'),
        (f'{MAP}{{"in":["i"],"out":["v1"]}}</map>\n{EDIT.removeprefix(HEAD)}b0 = block C\n', "b1", "v1"),
        (f'{MAP}{{"in":["i"],"out":["v1"]}}</map>\n{EDIT.removeprefix(HEAD)}', "transform", "b0 = block C\n"),
        # edges
        (f"{GRAPH}<", "m1", "supports"),
        (f"{GRAPH}<supports from=\"", "a1", "e1"),
        (f"{GRAPH}<supports from=\"e1\" to=\"", "e1", 'a1"/>\n'),
        (f'{GRAPH}<supports from="e1" to="a1"/>\n<', "supports", "/graph>\n"),
        (f"{GRAPH}</graph>\n", "\n", ""),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_where_it_stands(before: str, wrong: str, right: str) -> None:
    assert reach(before) == len(before)
    assert reach(before + right) == len(before + right)
    assert len(before) <= reach(before + wrong) < len(before + wrong)


def test_an_empty_schedule_and_its_end() -> None:
    assert not is_whole(HEAD)
    assert is_whole(f"{HEAD}</graph>")
    assert is_whole(f"{HEAD}</graph>\n")
    assert not is_whole(f"{EDIT}b0 = block C")
    assert is_whole(f"{EDIT}b0 = block C{END}")


def test_free_text_is_bounded_and_can_end() -> None:
    before = f'{HEAD}<analysis id="a1">'
    assert reach(before + "x" * 9999) == len(before) + legal.PROSE
    assert is_whole(f"{before}{'é' * legal.PROSE}</analysis>\n</graph>\n")
    names = f"{EDIT}b0 = block "
    assert reach(names + "x" * 9999) < len(names) + 512


def test_texts_as_json() -> None:
    for text in ('"a b"', '"\\u003c\\n\\"\\\\"', '""', '"é"'):
        assert is_whole(f"{EDIT}b0 = block {text}{END}")
        assert tsel.diagnose(f"{EDIT}b0 = block {text}{END}").gate is None
    before = f'{EDIT}b0 = block "'
    for wrong in ("<", "&", "\\ud800", "\\x", "\n"):
        assert reach(before + wrong) < len(before + wrong)


def test_what_is_too_large_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legal, "MAX_SIZE", 100)
    assert legal.advance(legal.start(), f"{HEAD}</graph>") is not None
    assert legal.advance(legal.start(), f'{HEAD}<analysis id="a1">{"x" * 30}') is None
