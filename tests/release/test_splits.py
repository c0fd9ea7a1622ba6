"""Splits: no two cells of different splits are near, nothing that is added moves a cell, and the embargo is small."""

import hashlib
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.release import splits
from littledragon.release.splits import SEALED, Cell, Counted, Sealed, cell, dump, load_sealed, near, seal, split

extents = st.lists(st.integers(1, 64), min_size=2, max_size=2).map(tuple)
cells = st.tuples(st.sampled_from(["SS w:0", "SR w:0 r:0,1", "SSR r:1"]), extents)
families = st.sampled_from(["gemm", "moe", "vision"])
counted = st.builds(lambda family, member, n: (family, *member, n), families, cells, st.integers(1, 6))
zoos = st.lists(counted, min_size=1, max_size=40)

MATMUL = "SSR w:0,1 r:0,2 r:1,2"
TOKENS = (1, 8, 32, 128, 512, 2048, 8192)
WIDTHS = (768, 896, 1024, 1280, 1536, 2048, 2304, 2560, 3072, 3584, 4096, 5120, 5376, 6144, 6656, 7168, 8192)
RATIOS = (0.125, 0.25, 0.5, 1, 1.5, 2.6875, 3.5, 4, 5.375)


def transformers() -> list[Counted]:
    """Cells as the layers of language models give them: dense in widths, far apart in tokens; and odd ones beside."""
    found: list[Counted] = []
    for tokens, width, ratio in product(TOKENS, WIDTHS, RATIOS):
        inner = int(width * ratio)
        found += [("gemm", MATMUL, (tokens, inner, width), 3), ("gemm", MATMUL, (tokens, width, inner), 2)]
        found += [("moe", f"SSSR w:{experts}", (experts, tokens, inner, width), 2) for experts in (8, 64)]
        found += [("moe", MATMUL, (tokens, experts, width), 1) for experts in (8, 64)]
        found += [("norm", f"SR r:{kind}", (tokens * heads, inner), 2) for kind in range(3) for heads in (1, 12, 32)]
    for family, number in product(("gemm", "moe", "norm"), range(6)):
        found += [(family, f"{family} {number}", (4**step, 7), number + 1) for step in range(12)]
    return found


@pytest.fixture(scope="module")
def zoo() -> list[Counted]:
    return transformers()


@pytest.fixture(scope="module")
def chosen(zoo: list[Counted]) -> Sealed:
    return seal(zoo)


def members(zoo: list[Counted]) -> set[Cell]:
    return {(signature, tuple(shape)) for _, signature, shape, _ in zoo}


def test_near_is_a_factor_of_one_and_a_half_in_every_extent() -> None:
    assert near([100, 100], [150, 67])
    assert not near([100, 100], [151, 100])
    assert not near([100, 100], [100, 66])
    assert near([4, 4, 4], [4, 4, 6])
    assert not near([4, 4], [4, 4, 4])


@given(extents, extents)
def test_near_has_no_direction(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert near(a, b) == near(b, a)
    assert near(a, a)


def test_a_cell_id_depends_on_signature_and_extents() -> None:
    ids = {cell("S", [1, 2]), cell("S", [2, 1]), cell("R", [1, 2]), cell("S", (1, 2))}
    assert len(ids) == 3
    text = '{"extents":[128,128,128],"signature":"SSR w:0,1 r:0,2 r:1,2"}'
    assert cell("SSR w:0,1 r:0,2 r:1,2", [128, 128, 128]) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_split_by_hand() -> None:
    sealed = Sealed(frozenset({("S", (100,))}), frozenset({("S", (1000,))}), frozenset({"R"}))
    assert split("S", [100], sealed) == "test"
    assert split("S", [150], sealed) == "embargo"
    assert split("S", [151], sealed) == "train"
    assert split("S", [1000], sealed) == "validation"
    assert split("S", [700], sealed) == "embargo"
    assert split("R", [7], sealed) == "test"
    assert split("SS", [100, 1], sealed) == "train"


LARGE = st.lists(st.integers(0, 3000) | st.sampled_from([1, 2, 3, 4, 6, 16, 24, 1024, 1536]), min_size=0, max_size=3)


@given(LARGE.map(tuple), st.lists(LARGE.map(tuple), max_size=30))
def test_a_cell_is_under_embargo_just_if_it_is_near_a_sealed_one(here: tuple[int, ...], there: list[Cell]) -> None:
    sealed = Sealed(frozenset(("S", e) for e in there[::2]), frozenset(("S", e) for e in there[1::2]))
    if here in there:
        assert split("S", here, sealed) in {"test", "validation"}
    else:
        assert split("S", here, sealed) == ("embargo" if any(near(here, e) for e in there) else "train")
    assert split("R", here, sealed) == "train"


@settings(max_examples=60, deadline=None)
@given(zoos, st.lists(cells, max_size=40))
def test_no_two_cells_of_different_splits_are_near(zoo: list[Counted], grown: list[Cell]) -> None:
    sealed = seal(zoo)
    everything = members(zoo) | set(grown)
    where = {member: split(*member, sealed) for member in everything}
    for a in everything:
        for b in everything:
            if where[a] != where[b] and "embargo" not in (where[a], where[b]):
                assert a[0] != b[0] or not near(a[1], b[1]), (a, where[a], b, where[b])


@settings(max_examples=60, deadline=None)
@given(zoos, st.randoms(use_true_random=False))
def test_sealing_ignores_order_and_names_cells_of_the_zoo(zoo: list[Counted], random: Random) -> None:
    sealed = seal(zoo)
    shuffled = list(zoo)
    random.shuffle(shuffled)
    assert seal(shuffled) == sealed
    assert not sealed.test & sealed.validation
    assert sealed.test | sealed.validation <= members(zoo)
    assert not sealed.held_out & {signature for signature, _ in sealed.test | sealed.validation}


@settings(max_examples=60, deadline=None)
@given(zoos)
def test_the_embargo_is_at_most_twice_what_is_sealed(zoo: list[Counted]) -> None:
    sealed = seal(zoo)
    of = {"train": 0, "embargo": 0, "test": 0, "validation": 0}
    for _, signature, shape, workloads in zoo:
        of[split(signature, shape, sealed)] += workloads if signature not in sealed.held_out else 0
    assert of["embargo"] <= splits.COST * (of["test"] + of["validation"])


@settings(max_examples=60, deadline=None)
@given(zoos, zoos)
def test_a_list_only_grows_and_no_settled_cell_moves(zoo: list[Counted], more: list[Counted]) -> None:
    before = seal(zoo)
    fresh = seal(zoo + more, before)
    assert (before.test, before.validation, before.held_out) <= (fresh.test, fresh.validation, fresh.held_out)
    assert before.test <= fresh.test and before.validation <= fresh.validation and before.held_out <= fresh.held_out
    grown = seal(zoo + more, before, members(zoo))
    assert before.test <= grown.test and before.validation <= grown.validation and before.held_out <= grown.held_out
    for member in members(zoo):
        assert split(*member, grown) == split(*member, before)
    assert seal(zoo, before, members(zoo)) == before


def test_far_cells_are_sealed_one_by_one_in_the_order_of_their_hashes() -> None:
    lone: list[Cell] = sorted((("S", (4**step,)) for step in range(24)), key=lambda member: cell(*member))
    sealed = seal([("gemm", *member, 1) for member in lone])
    assert sealed == Sealed(frozenset(lone[:4]), frozenset(lone[4:6]), frozenset())


def test_a_family_gets_its_own_share() -> None:
    far = [(family, f"{family} {n}", (8,), 1) for family, count in (("gemm", 600), ("moe", 12)) for n in range(count)]
    sealed = seal(far)
    assert sum(signature.startswith("gemm") for signature, _ in sealed.test) == 60
    assert sum(signature.startswith("moe") for signature, _ in sealed.test) == 2
    assert sum(signature.startswith("moe") for signature, _ in sealed.validation) == 1


def test_cells_that_lie_too_dense_stay_in_train() -> None:
    dense = [("gemm", "S", (1000 + n,), 1) for n in range(100)]
    assert seal(dense) == Sealed()


def test_a_dense_place_is_sealed_as_a_group() -> None:
    """Each seed of this grid has 8 near cells; so a group is sealed, and what lies around it goes under embargo."""
    grid = [("gemm", "SS", (round(1000 * 1.3**i), round(1000 * 1.3**j)), 1) for i in range(20) for j in range(20)]
    sealed = seal(grid)
    assert len(sealed.test) >= 60 and len(sealed.validation) >= 30
    for name in (sealed.test, sealed.validation):
        alone = [a for a in name if not any(near(a[1], b[1]) for b in name if a != b)]
        assert len(alone) < len(name) / 4


def test_a_signature_of_lone_cells_does_not_give_more_than_its_share() -> None:
    lone = [("gemm", "lone", (4**i, 4**j), 1) for i in range(10) for j in range(10)]
    dense = [("gemm", "dense", (round(1000 * 1.3**i), round(1000 * 1.3**j)), 1) for i in range(30) for j in range(30)]
    sealed = seal(lone + dense)
    assert sum(signature == "lone" for signature, _ in sealed.test) == 2
    assert sum(signature == "lone" for signature, _ in sealed.validation) == 1
    assert sum(signature == "dense" for signature, _ in sealed.test) >= 58


def test_held_out_signatures_are_the_first_two_of_modest_size() -> None:
    """Of 1,000 workloads of a family: 3 to 20; `shared` is mostly the other family's, and too large for it."""
    modest = {f"modest {n}": n for n in range(4, 10)}
    gemm = {"tiny": 2, **modest, "large": 40, "shared": 10, "rest": 909}
    zoo: list[Counted] = [("gemm", name, (64,), count) for name, count in gemm.items()]
    zoo += [("moe", "shared", (64,), 11), ("moe", "other", (64,), 989)]
    expected = sorted(modest, key=lambda signature: splits.digest({"held out": signature}))
    assert seal(zoo).held_out == set(expected[:2])
    assert seal(zoo, Sealed(held_out=frozenset({"tiny"}))).held_out == {"tiny", expected[0]}
    assert seal(zoo, None, [(expected[0], (65,))]).held_out == set(expected[1:3])
    assert seal(zoo, Sealed(validation=frozenset({(expected[0], (64,))}))).held_out == set(expected[1:3])


def test_a_census_by_hand() -> None:
    zoo: list[Counted] = [
        ("gemm", "S", (100,), 1),
        ("gemm", "S", (130,), 2),
        ("gemm", "R", (1,), 5),
        ("moe", "S", (900,), 2),
    ]
    sealed = Sealed(frozenset({("S", (100,))}), frozenset(), frozenset({"R"}))
    everything, gemm, moe = splits.census(zoo, sealed)
    counts = {"train": 0.0, "validation": 0.0, "test": 75.0, "held_out": 62.5, "embargo": 25.0}
    assert gemm == {"family": "gemm", "workloads": 8, **counts, "test_cells": 1, "validation_cells": 0}
    assert (moe["workloads"], moe["train"], moe["test_cells"]) == (2, 100.0, 0)
    assert (everything["workloads"], everything["test"], everything["test_cells"]) == (10, 60.0, 1)


def test_a_zoo_of_real_shapes_gives_enough_for_little(zoo: list[Counted], chosen: Sealed) -> None:
    for name, most, least in (("test", 0.02, 60), ("validation", 0.01, 30)):
        members = getattr(chosen, name)
        for family in ("gemm", "moe", "norm"):
            mine = [c for c in zoo if c[0] == family]
            kept = [c for c in mine if (c[1], c[2]) in members]
            assert len({c[1:3] for c in kept}) >= least
            assert sum(c[3] for c in kept) >= most * sum(c[3] for c in mine)
    for row in splits.census(zoo, chosen):
        assert row["embargo"] <= 7.5 if row["family"] == "all" else 10
        assert 2 <= row["test"] <= 9
        assert row["train"] + row["validation"] + row["test"] + row["embargo"] == pytest.approx(100, abs=0.03)
        assert 0 < row["held_out"] <= 4
        assert row["test_cells"] >= 60 and row["validation_cells"] >= 30
    assert len(chosen.held_out) == 6
    assert len(dump(chosen)) < 1 << 20


def test_test_and_validation_of_real_shapes_are_not_near(chosen: Sealed) -> None:
    for a in chosen.test:
        assert not any(a[0] == b[0] and near(a[1], b[1]) for b in chosen.validation)


def test_a_larger_zoo_moves_nothing(zoo: list[Counted], chosen: Sealed) -> None:
    more = [*zoo, *(("vision", s, (5 * e[0], *e[1:]), n) for _, s, e, n in zoo[::3])]
    grown = seal(more, chosen, members(zoo))
    assert len(grown.test) > len(chosen.test)
    assert all(split(*member, grown) == split(*member, chosen) for member in members(zoo))
    assert any(split(s, e, grown) == "test" != split(s, e, chosen) for family, s, e, _ in more if family == "vision")


FIRST = Sealed(
    frozenset({("SR w:0 r:0,1", (16, 1024)), ("SSR w:0,1 r:0,2 r:1,2", (16, 304, 896))}),
    frozenset({("SR w:0 r:0,1", (32, 18992)), ("SSR w:0,1 r:0,2 r:1,2", (8, 128, 2048))}),
    frozenset({"SSR w:0,1 r:0 r:0,2,1", "SSSRR w:0,1,2 r:0,2*1+3,2*2+4"}),
)
"""Part of the first list that was committed: what is sealed stays sealed."""


def test_the_committed_list_is_sound() -> None:
    sealed = load_sealed()
    assert SEALED.read_text(encoding="utf-8") == dump(sealed)
    assert FIRST.test <= sealed.test and FIRST.validation <= sealed.validation and FIRST.held_out <= sealed.held_out
    for a in sealed.test:
        for b in sealed.validation:
            assert a[0] != b[0] or not near(a[1], b[1])
        assert split(*a, sealed) == "test"
    for b in sealed.validation:
        assert split(*b, sealed) == "validation"


def test_another_list_is_another_version(tmp_path: Path) -> None:
    same, other = tmp_path / "same.json", tmp_path / "other.json"
    same.write_bytes(SEALED.read_bytes())
    sealed = load_sealed()
    other.write_text(dump(Sealed(sealed.test, sealed.validation, frozenset())), encoding="utf-8")
    assert splits.version(same) == splits.version()
    assert splits.version(other) != splits.version()


def run(*files: Path, zoo: list[Counted]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "littledragon.release.splits", *map(str, files)]
    return subprocess.run(command, input=json.dumps(zoo), capture_output=True, text=True, check=True, timeout=60)


def test_the_command_extends_the_list(tmp_path: Path) -> None:
    path, settled = tmp_path / "sealed.json", tmp_path / "settled.json"
    zoo: list[Counted] = [("gemm", f"S{i}", (i + 1, 10 * i + 1), 1) for i in range(24)]
    first = seal(zoo)
    printed = run(path, zoo=zoo).stdout
    assert path.read_text() == dump(first)
    assert (len(first.test), len(first.validation)) == (4, 2)
    assert [json.loads(line) for line in printed.splitlines()] == splits.census(zoo, first)
    more: list[Counted] = [*zoo, *(("moe", f"S{i}", (i + 2, 10 * i + 2), 2) for i in range(24))]
    settled.write_text(json.dumps(zoo))
    run(path, settled, zoo=more)
    assert load_sealed(path) == seal(more, first, members(zoo))
    assert first.test < load_sealed(path).test


def test_splits_of_a_list_need_no_numpy() -> None:
    code = "import sys; from littledragon.release.splits import *; split('S', [1], load_sealed()); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "littledragon.release.splits" in done.stdout.split()
    assert "numpy" not in done.stdout.split()


@pytest.mark.parametrize("text", ["", "[]", '{"test": 3}', '{"test": [["S", 3]], "validation": [], "held_out": []}'])
def test_a_broken_list_is_one_clear_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "sealed.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"sealed\.json: not a list of sealed cells .*: restore it from git") as error:
        load_sealed(path)
    assert "\n" not in str(error.value)
