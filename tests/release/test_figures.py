"""The figures: which numbers they show, where their marks stand, and what hostile names and logs do to them."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from littledragon.release import evaluation, figures
from littledragon.release.evaluation import Mode, Output
from littledragon.release.figures import Drawn, Result, Sized, Training, Trials

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = ('</svg><script>x()</script>$\\frac{1$"&', '" onload="x()" <!-- ]]> \u9f8d\U0001f409\u200f')


def output(
    task: str, ratio: float | None, family: str = "gemm", mode: Mode = "construct", number: int = 0, **more: Any
) -> Output:
    """An output that is `ratio` times as fast as L0 (refining: as A), which take 1000 µs; None: it does not parse."""
    verdict = {"gate": "parsed"} if ratio is None else {"gate": "ok", "latency_us": 1000 / ratio, "emitted": 1}
    verdict |= {"seconds": {"make": 1.0}}
    fields = {"default_us": 1000.0, "anchor_us": 10.0, "margin": 0.05, "noise_band": 0.01} | more
    parent = 1000.0 if mode == "refine" else None
    return Output(f"x-{task}-{mode}", task, mode, family, number, verdict, parent_us=parent, **fields)


def result(name: str, outputs: list[Output]) -> Result:
    return Result(name, tuple(outputs), evaluation.summarise(outputs, resamples=50))


def some(name: str = "ours", generation_s: float | None = 4.0) -> Result:
    ratios = {"gemm": (1.0, 10.0, 100.0), "moe": (2.0, 8.0)}
    return result(
        name,
        [
            output(f"{family}{at}", ratio, family, mode, generation_s=generation_s)
            for mode in evaluation.MODES
            for family, of_it in ratios.items()
            for at, ratio in enumerate(of_it)
        ],
    )


def log(steps: int, **values: Any) -> list[dict[str, Any]]:
    return [{"step": step} | {name: of(step) for name, of in values.items()} for step in range(1, steps + 1)]


def everything(name: str) -> list[Drawn]:
    """Each figure, of data with this name in every place for one."""
    ours, rows = some(name), [Sized(rows, some().evaluation) for rows in (100, 1000)]
    search = figures.search_of("t", name, 1000.0, [(1.0, 500.0), (20.0, 20.0)])
    family = result(name, [output("t", 3.0, name, generation_s=1.0), output("u", 5.0, name, generation_s=2.0)])
    learning = Training(name, log(30, r_lat=lambda step: step / 100, **{"stage/correct": lambda step: step / 40}))
    sft = Training(name, log(30, **{f"loss_{kind}": lambda step: 1 / step for kind in figures.KINDS}))
    return [
        figures.first_outputs([ours, result("b", list(family.outputs))], [name, "b"]),
        figures.optimisation_time([family], [Trials("b", (search,))], [name, "b"]),
        figures.utility([learning], [name]),
        figures.correctness([learning], [name]),
        figures.losses([sft], [name]),
        figures.data_sizes(rows),
    ]


def parsed(drawn: Drawn) -> ElementTree.Element:
    assert drawn.svg is not None, drawn.missing
    return ElementTree.fromstring(drawn.svg)


def part(drawn: Drawn, name: str) -> ElementTree.Element:
    """The group of marks of this data-part."""
    (found,) = (element for element in parsed(drawn).iter() if element.get("data-part") == name)
    return found


def marks(drawn: Drawn, name: str) -> list[tuple[float, float]]:
    """Where the marks of a part stand, y downwards."""
    return [(float(use.attrib["x"]), float(use.attrib["y"])) for use in part(drawn, name).iter(f"{SVG}use")]


def line(drawn: Drawn, name: str) -> list[tuple[float, float]]:
    """The corners of a part's line."""
    path = next(part(drawn, name).iter(f"{SVG}path"))
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path.attrib["d"])]


# -- data ---------------------------------------------------------------------------------------------


def test_speedups_are_those_of_correct_first_outputs() -> None:
    rows = [
        output("a", 4.0), output("b", 2.0), output("c", None), output("a", 9.0, number=1), output("d", 3.0, "moe"),
        output("e", 5.0, mode="refine", default_us=7000.0),
    ]  # fmt: skip
    assert figures.speedups(rows, "construct") == {"gemm": [2.0, 4.0], "moe": [3.0]}
    assert figures.speedups(rows, "refine") == {"gemm": [5.0]}  # over A, not over L0
    group = evaluation.summarise(rows, resamples=50).group("construct", "gemm")
    assert figures.mean_speedup(group).value == pytest.approx(math.sqrt(8))


def test_times_need_a_time() -> None:
    rows = [output("a", 4.0, generation_s=3.0), output("b", 2.0), output("c", 2.0, mode="refine", generation_s=1.0)]
    assert figures.times(rows) == {"gemm": [(4.0, 4.0)]}  # of generation and of making


def test_a_search_is_its_best_so_far_in_the_order_of_time() -> None:
    trials = [(9.0, 100.0), (2.0, 2000.0), (1.0, None), (5.0, 250.0), (4.0, 250.0), (30.0, 900.0)]
    search = figures.search_of("t", "gemm", 1000.0, trials)
    assert search.steps == ((2.0, 0.5), (4.0, 4.0), (9.0, 10.0))
    assert search.end_s == 30.0
    assert figures.search_of("t", "gemm", 1000.0, [(1.0, None)], ended_s=7.0).end_s == 7.0
    nothing = figures.search_of("t", "gemm", 1000.0, [(0.0, None)])
    assert (nothing.steps, nothing.end_s > 0) == ((), True)


def test_the_mean_of_searches_counts_one_where_there_is_no_kernel_yet() -> None:
    one = figures.search_of("a", "gemm", 1000.0, [(1.0, 10.0), (8.0, 1.0)])
    other = figures.search_of("b", "gemm", 1000.0, [(4.0, 10.0), (20.0, None)])
    found = figures.mean_search([one, other])
    assert [at for at, _ in found] == [1.0, 4.0, 8.0, 20.0]
    assert [mean for _, mean in found] == pytest.approx([10.0, 100.0, math.sqrt(1e5), math.sqrt(1e5)])
    assert figures.mean_search([]) == []


def test_bands_stand_in_their_middle() -> None:
    points = [(float(step), float(step)) for step in range(1, 24)]
    assert figures.bands(points) == [(5.5, 5.5), (15.5, 15.5), (22.0, 22.0)]  # the last has three steps
    assert figures.bands([(10.0, 1.0), (20.0, 3.0)]) == [(5.5, 1.0), (15.5, 3.0)]  # means of ten steps each
    assert figures.bands([(0.0, 7.0)]) == [(1.0, 7.0)]
    assert figures.bands([]) == []


def test_a_log_of_all_kinds_of_lines() -> None:
    lines = [
        {"step": 3, "loss": 3.0}, {"step": 1, "loss": "1"}, {"step": 2, "loss": math.nan}, {"loss": 5.0}, {},
        {"step": True, "loss": 1.0}, {"step": -1, "loss": 1.0}, {"step": 1e300, "loss": 1.0},
        {"step": 4, "loss": 1e300}, {"step": 2, "loss": 2.5}, {"step": 3, "loss": 3.5}, {"step": 5, "loss": 10**400},
    ]  # fmt: skip
    assert figures.series(lines, "loss") == [(2.0, 2.5), (3.0, 3.5)]


def test_of_many_values_so_many_quantiles_are_left() -> None:
    values = [float(value) for value in range(1000)]
    found = figures.thinned(values, 5)
    assert found == [0.0, 250.0, 500.0, 749.0, 999.0]
    assert figures.thinned(values[:5], 5) == values[:5]
    points = [(value, value) for value in values]
    assert figures.sparse(points, 4) == [(0.0, 0.0), (250.0, 250.0), (500.0, 500.0), (750.0, 750.0), (999.0, 999.0)]
    assert figures.sparse([], 4) == []


def test_shares_are_of_all_families_in_the_order_of_the_rows() -> None:
    found = figures.shares([Sized(1000, some().evaluation), Sized(10, some().evaluation)], "construct")
    assert [rows for rows, _ in found["fast_2"]] == [10, 1000]
    assert found["fast_2"][0][1].value == pytest.approx(4 / 5)
    assert list(figures.shares([Sized(10, some().evaluation)], "refine")) == ["Correct@1", "2× over A"]


# -- drawing ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours() -> list[Drawn]:
    return everything("ours")


@pytest.fixture(scope="module")
def three() -> Drawn:
    return figures.first_outputs([some(), some("theirs")], ["ours", "theirs"])


def test_dots_and_means_stand_on_a_log_scale(three: Drawn) -> None:
    one = line(three, "one-construct")[0][1]
    dots = sorted(marks(three, "points-construct-0-1"), key=lambda dot: -dot[1])  # gemm, after all families
    decade = dots[0][1] - dots[1][1]
    assert dots[0][1] == pytest.approx(one, abs=0.01)
    assert dots[1][1] - dots[2][1] == pytest.approx(decade, abs=0.01)
    (mean,) = marks(three, "mean-construct-0-1")
    assert mean[1] == pytest.approx(one - decade, abs=0.01)
    (other,) = marks(three, "mean-construct-0-2")
    assert other[1] == pytest.approx(one - math.log10(4) * decade, abs=0.01)
    (every,) = marks(three, "mean-construct-0-0")
    assert every[1] == pytest.approx(one - math.log10(16000) / 5 * decade, abs=0.01)
    interval = some().evaluation.group("construct", "gemm").over_default
    assert interval.low is not None
    ends = [one - math.log10(value or 1) * decade for value in (interval.low, interval.high)]
    assert [y for _, y in line(three, "interval-construct-0-1")] == pytest.approx(ends, abs=0.01)


def test_files_stand_side_by_side_within_their_family(three: Drawn) -> None:
    x = [[x for x, _ in marks(three, f"points-refine-{file}-{place}")] for place in range(3) for file in range(2)]
    assert all(max(left) < min(right) for left, right in itertools.pairwise(x))


def test_points_and_steps_against_time() -> None:
    trials = [(1.0, 1000.0), (10.0, 100.0), (100.0, 10.0), (1000.0, None)]
    search = figures.search_of("gemm0", "gemm", 1000.0, trials)
    ours = result("ours", [output("gemm0", 10.0, generation_s=9.0)])
    drawn = figures.optimisation_time([ours], [Trials("stock", (search,))], ["ours", "stock"])
    corners = line(drawn, "search-1-0-0")
    (dot,) = marks(drawn, "points-0-0")
    second, tenth, hundredth, end = (corners[at] for at in (0, 2, 4, 5))
    assert dot == pytest.approx(tenth, abs=0.01)  # 10 times after 10 seconds
    assert hundredth[0] - tenth[0] == pytest.approx(tenth[0] - second[0], abs=0.01)
    assert hundredth[1] - tenth[1] == pytest.approx(tenth[1] - second[1], abs=0.01)
    assert (end[0] - hundredth[0], end[1]) == pytest.approx((tenth[0] - second[0], hundredth[1]), abs=0.01)


def test_a_model_and_a_search_are_of_the_same_tasks_and_what_failed_counts_one() -> None:
    """Two models: `ours` solves one of three shared tasks 1000 times, and each of the two that only it has."""
    rows = [output("a", 1000.0, generation_s=9.0), output("b", None, generation_s=9.0), output("f", None)]
    rows += [output("c", None, generation_s=9.0), output("d", 9.0, generation_s=99.0), output("e", 9.0)]
    rows[2] = replace(rows[2], verdict={"gate": None, "fault": "the disk is full"})
    ours = result("ours", rows)
    theirs = result("theirs", [output(task, 10.0, generation_s=9.0) for task in "abcd"])
    assert figures.centre(ours.outputs[:4]) == pytest.approx((10.0, 10.0))
    searches = [figures.search_of(task, "gemm", 1000.0, [(10.0, 100.0 if task != "c" else None)]) for task in "abc"]
    stock = Trials("stock", (*searches, figures.search_of("z", "moe", 1000.0, [(10.0, 1.0)])))
    assert figures.shared([ours, theirs], [stock]) == {"a", "b", "c"}
    drawn = figures.optimisation_time([ours, theirs], [stock], ["ours", "theirs", "stock"])
    (mean,), (other,) = marks(drawn, "centre-0-0"), marks(drawn, "centre-1-0")
    assert mean == pytest.approx(other, abs=0.01)  # 1000, 1 and 1 against three times 10
    assert len(marks(drawn, "points-0-0")) == 1
    end = line(drawn, "mean-2-0")[-1]
    low = marks(drawn, "points-0-0")[0][1]  # of 1000 times
    decade = (mean[1] - low) / 2
    assert end == pytest.approx((mean[0], mean[1] + decade / 3), abs=0.01)  # 10, 10 and 1
    assert "gemm (3 tasks)" in str(drawn.svg)
    assert "moe" not in str(drawn.svg)
    assert drawn.notes == (
        "ours: 3 of its 5 tasks, 3 first outputs, 1 of them correct.",
        "theirs: 3 of its 4 tasks, 3 first outputs, 3 of them correct.",
        "stock: 3 of its 4 tasks, 2 of them with a kernel.",
    )
    apart = figures.optimisation_time([ours], [Trials("stock", stock.searches[3:])], ["ours", "stock"])
    assert (apart.svg, apart.missing) == (None, "no task that all of these have: ours, stock")


def test_training_is_drawn_raw_and_in_bands() -> None:
    values = {"utility": float, "r_lat": lambda _: 0.0, "stage/correct": lambda step: step / 40}
    run = Training("ours", [*log(40, **values), {"step": 40, "eval_utility": 20.5}])
    drawn = figures.utility([run], ["ours"])
    raw, bands = line(drawn, "raw-utility-0"), line(drawn, "bands-utility-0")
    assert (len(raw), len(bands)) == (40, 4)
    between = [(a + b) / 2 for a, b in zip(raw[4], raw[5], strict=True)]
    assert bands[0] == pytest.approx(between, abs=0.01)
    (held,) = marks(drawn, "validation-utility-0")
    assert held == pytest.approx((raw[-1][0], (raw[19][1] + raw[20][1]) / 2), abs=0.01)
    assert "from 0.0" not in str(figures.correctness([run], ["ours"]).svg)
    assert "from 13.8 to 88.8" in str(figures.correctness([run], ["ours"]).svg)  # in percent


def test_a_log_without_utility_shows_what_speed_adds() -> None:
    runs = [Training("a", log(9, r_lat=lambda _: 0.1)), Training("b", log(9, r_lat=lambda _: 0.2, utility=lambda _: 1))]
    drawn = figures.utility(runs, ["a", "b"])
    assert "r_lat" in str(drawn.svg)
    assert "α times the utility" in drawn.caption
    only = figures.utility(runs[1:], ["a", "b"])
    assert "log(L0/L)" in only.caption


def test_equal_data_gives_equal_bytes_whatever_the_users_settings(ours: list[Drawn]) -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "red"}):
        assert everything("ours") == ours
        assert matplotlib.rcParams["font.size"] == 30


def test_ids_and_titles_of_all_figures_fit_on_one_page(ours: list[Drawn]) -> None:
    ids: list[str] = []
    for drawn in ours:
        root = parsed(drawn)
        own = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
        assert all(id.startswith(f"{drawn.key}-") for id in own)
        assert not list(root.iter(f"{SVG}style"))
        assert not list(root.iter(f"{SVG}metadata"))
        for value in (value for element in root.iter() for value in element.attrib.values()):
            assert "http" not in value
            for target in re.findall(r"^#(.+)|url\(#(.+?)\)", value):
                assert "".join(target) in own
        assert root.get("role") == "img"
        title, description = (root.find(f"{SVG}{tag}") for tag in ("title", "desc"))
        assert title is not None and description is not None
        assert root.attrib["aria-labelledby"].split() == [title.attrib["id"], description.attrib["id"]]
        assert (title.text, (description.text or "")[:40]) == (drawn.title, drawn.caption[:40])
        ids += own
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text(name: str, ours: list[Drawn]) -> None:
    tags = {element.tag for drawn in ours for element in parsed(drawn).iter()}
    for drawn in everything(name):
        root = parsed(drawn)
        assert {element.tag for element in root.iter()} <= tags
        assert not any(key.startswith("on") for element in root.iter() for key in element.attrib)
        if drawn.key != "figure-curve":  # which has no names
            assert any(name in text for text in root.itertext()), drawn.key


def test_what_has_no_data_says_why() -> None:
    wrong = result("ours", [output("t", None)])
    drawn = [
        figures.first_outputs([wrong], ["ours"]),
        figures.optimisation_time([wrong, some("b", None)], [], ["ours", "b"]),
        figures.utility([Training("ours", [{"step": 1, "loss": 1.0}])], ["ours"]),
        figures.correctness([], []),
        figures.losses([], []),
        figures.data_sizes([]),
    ]
    assert all(one.svg is None and one.missing for one in drawn)


def test_what_a_figure_leaves_out_is_noted() -> None:
    wrong = result("wrong", [output("t", None)])
    three = figures.first_outputs([some(), wrong], ["ours", "wrong"])
    assert three.notes == (
        "Construction: no correct first output in wrong.",
        "Refinement: no correct first output in wrong.",
    )
    empty = Trials("stock", (figures.search_of("gemm0", "gemm", 1000.0, [(1.0, None)]),))
    four = figures.optimisation_time([some(), some("b", None)], [empty], ["ours", "b", "stock"])
    assert four.notes == (
        "Without times to a kernel, and not drawn: b.",
        "stock: no trial found a kernel.",
        "ours: 5 of its 5 tasks, 5 first outputs, 5 of them correct.",
    )


@pytest.mark.parametrize("ratio", [1e-9, 1e9])
def test_the_farthest_speedups_are_drawn(ratio: float) -> None:
    far = result("far", [output("t", ratio, generation_s=1e8), output("u", 1.0, generation_s=1e-9)])
    for drawn in (figures.first_outputs([far], ["far"]), figures.optimisation_time([far], [], ["far"])):
        y = [y for use in parsed(drawn).iter(f"{SVG}use") for y in [float(use.attrib["y"])]]
        assert all(map(math.isfinite, y))


@pytest.fixture(autouse=True, scope="module")
def drawing() -> Iterator[None]:
    """Whoever has no matplotlib needs none of this."""
    pytest.importorskip("matplotlib")
    yield
