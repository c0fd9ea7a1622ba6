"""Texts that look for reward where no work was done: none gets more than what its text honestly is."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from littledragon.compiler import targets
from littledragon.release.trainers.reward import Levels, Reward, reward
from littledragon.schemas import tsel
from littledragon.schemas.graph import Analysis, Effect
from littledragon.validators.service import Service, Task, Verdict

GOLDEN = Path(__file__).parents[1] / "golden" / "release"


def golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


FAST, SLOW = golden("payload_fast.txt"), golden("payload_slow.txt")
POSTPROC = '<postproc rules="llvm" version="1"/>\n'
HEAD = FAST[: FAST.index("\n") + 1]
FIRST = FAST[len(HEAD) : FAST.index('<trace_sequence id="t1">')]
TILES = "l2-4 = loops b0\nv5-8 = tile l2 128 [2,4,8]\n"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """On the simulated device, with L0 and the anchor such that the honest answer is the anchor."""
    task = Task("w-1", golden("module.json"), json.loads(golden("inputs.json")), targets.target("llvm"), 1e6, 1, 0, 0.1)
    with Service([task], "simulated") as service:
        yield service


def judged(service: Service, text: str, parent: str | None = None) -> tuple[Verdict, Reward]:
    """The verdict of a text, and its reward; refining where there is a graph A."""
    honest, verdict = service.evaluate("w-1", FAST), service.evaluate("w-1", text)
    parent_us = None if parent is None else service.evaluate("w-1", parent).latency_us
    assert honest.latency_us is not None
    task = {"default_us": 16 * honest.latency_us, "anchor_us": honest.latency_us, "noise_band": 0.0, "margin": 0.05}
    mode = "construct" if parent is None else "refine"
    return verdict, reward(verdict, mode=mode, parent_us=parent_us, **task)  # type: ignore[arg-type]


def explained(text: str, words: str) -> str:
    graph = tsel.decode(text).graph
    return tsel.render(replace(graph, analyses=(Analysis("a1", words),), effects=(Effect("p1", words),))).text


def inside(edit: str) -> str:
    """The honest text with these lines in front of its second edit."""
    return FAST.replace(TILES, edit + TILES)


UNPARSED = {
    "nothing": "",
    "spaces": " \n" * 1000,
    "the target's program": golden("scheduled_fast.txt"),
    "the prompt": golden("prompt_construction.txt"),
    "the dialogue": golden("prompt_refinement.txt"),
    "a program before the graph": golden("scheduled_fast.txt") + FAST,
    "words around the graph": f"Here is the fastest schedule.\n```xml\n{FAST}```\n",
    "a comment": FAST.replace("</graph>", "<!-- correct: True, speedup: 1e9 --></graph>"),
    "a processing instruction": '<?reward total="2"?>' + FAST,
    "an entity": '<!DOCTYPE graph [<!ENTITY a "aaaa">]>' + FAST,
    "two graphs": FAST + FAST,
    "a graph in a graph": FAST.replace("</graph>", FAST + "</graph>"),
    "a reward of its own": FAST.replace("<graph ", '<graph reward="2.0" '),
    "a text without end": FAST + " " * (2 << 20),
}


@pytest.mark.parametrize("name", UNPARSED)
def test_what_is_no_graph_earns_nothing(service: Service, name: str) -> None:
    verdict, found = judged(service, UNPARSED[name])
    assert (verdict.gate, found.total) == ("parsed", 0)


NOT_WELLFORMED = {
    "repeated tiles": HEAD + FIRST + f'<trace_sequence id="t1">\n{TILES}{TILES * 500}</trace_sequence>\n</graph>\n',
    "tiles of ones": inside("".join(f"v{n} = tile l2 1 [1]\n" for n in range(200, 900))),
    "an edit twice": FAST.replace(FIRST, FIRST + FIRST),
    "an edit twice under other names": FAST.replace(FIRST, FIRST.replace('"t0"', '"t9"') + FIRST),
    "a factor of 400 digits": FAST.replace("[2,4,8]", f"[2,4,{'9' * 400}]"),
    "a factor of 64 bits": FAST.replace("[2,4,8]", f"[2,4,{2**63 - 1}]"),
    "an extent of 64 bits": FAST.replace("tile l2 128 [2,4,8]", f"tile l2 {2**62} [2,4,8]"),
    "a negative factor": FAST.replace("[2,4,8]", "[-2,-4,8]"),
    "a number that is none": FAST.replace("[2,4,8]", "[2,4,NaN]"),
    "a factor of nought": FAST.replace("[2,4,8]", "[0,4,8]"),
    "an instruction of its own": inside("reward b0 1000000\n"),
    "rules of its own": FAST.replace('rules="llvm"', 'rules="none"'),
}


@pytest.mark.parametrize("name", NOT_WELLFORMED)
def test_what_breaks_a_rule_earns_its_tiles_at_most(service: Service, name: str) -> None:
    verdict, found = judged(service, NOT_WELLFORMED[name])
    assert verdict.gate in ("parsed", "wellformed")
    assert found.total is not None
    assert found.total < Levels().wellformed
    assert verdict.f_div <= 1


WELLFORMED = {
    "false extents": FAST.replace(" 128 [", " 64 ["),
    "one false extent at the end": FAST.replace("tile l4 128 [2]", "tile l4 64 [2]"),
    "extents that divide by all": FAST.replace(" 128 [", " 1024 ["),
    "a block that is not there": FAST.replace("NT_matmul", "reward"),
    "many instructions before a false one": FAST.replace(
        TILES, "".join(f"b{n} = block NT_matmul\n" for n in range(100, 600)) + TILES.replace("128", "64")
    ),
}


@pytest.mark.parametrize("name", WELLFORMED)
def test_what_does_not_apply_earns_less_than_what_does(service: Service, name: str) -> None:
    verdict, found = judged(service, WELLFORMED[name])
    assert verdict.gate in ("wellformed", "applicable")
    assert found.total is not None
    assert found.total < Levels().replayed
    if verdict.gate == "applicable":
        assert verdict.applied < verdict.emitted


@pytest.mark.parametrize("postproc", ["", POSTPROC])
def test_an_empty_graph_earns_its_form_and_nothing_for_what_post_processing_does(
    service: Service, postproc: str
) -> None:
    verdict, found = judged(service, f"{HEAD}{postproc}</graph>\n")
    assert (verdict.gate, verdict.emitted) == ("ok" if postproc else "postprocessed", 0)
    assert found.total == 0.20


def test_without_post_processing_it_is_not_built(service: Service) -> None:
    verdict, found = judged(service, FAST.replace(POSTPROC, ""))
    assert (verdict.gate, found.total) == ("postprocessed", 0.40)


def test_what_an_explanation_says_is_worth_nothing(service: Service) -> None:
    told = "This is 1000 times as fast; gate: ok; reward: 2.0; latency_us: 0.001. " * 20
    for text in (FAST, WELLFORMED["false extents"]):
        honest, hacked = judged(service, text), judged(service, explained(text, told))
        assert hacked[1] == honest[1]
        assert hacked[0].p == honest[0].p


def test_a_copy_of_graph_a_is_right_and_no_refinement(service: Service) -> None:
    """Also where it is dressed up: the program is the same."""
    for text in (SLOW, explained(SLOW, "Faster than A."), SLOW.replace("b1 = block root\n", "b1 = block root\n", 1)):
        verdict, found = judged(service, text, parent=SLOW)
        assert (verdict.gate, found.b_refine, found.r_lat, found.total) == ("ok", False, 0, 1)


def test_the_honest_answer_is_the_best_of_all(service: Service) -> None:
    verdict, found = judged(service, FAST)
    assert verdict.gate == "ok"
    assert found.total == pytest.approx(1.30)
    others = [judged(service, text)[1].total for text in (*UNPARSED.values(), *NOT_WELLFORMED.values())]
    assert max(total for total in others if total is not None) < Levels().wellformed
