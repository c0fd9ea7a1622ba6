"""Splits: no two cells of different splits are near, and nothing that is added moves a cell."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.release.splits import SEALED, Cell, Sealed, cell, dump, load_sealed, near, seal, split, version

extents = st.lists(st.integers(1, 64), min_size=2, max_size=2).map(tuple)
cells = st.tuples(st.sampled_from(["SS w:0", "SR w:0 r:0,1", "SSR r:1"]), extents)
families = st.sampled_from(["gemm", "moe", "vision"])
zoos = st.lists(st.tuples(families, cells), min_size=1, max_size=40)


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


@settings(max_examples=60, deadline=None)
@given(zoos, st.lists(cells, max_size=40))
def test_no_two_cells_of_different_splits_are_near(zoo: list[tuple[str, Cell]], grown: list[Cell]) -> None:
    sealed = seal(zoo)
    everything = {member for _, member in zoo} | set(grown)
    where = {member: split(*member, sealed) for member in everything}
    for a in everything:
        for b in everything:
            if where[a] != where[b] and "embargo" not in (where[a], where[b]):
                assert a[0] != b[0] or not near(a[1], b[1]), (a, where[a], b, where[b])


@settings(max_examples=60, deadline=None)
@given(zoos, st.randoms(use_true_random=False))
def test_sealing_ignores_order_and_embargoes_none_of_its_own(zoo: list[tuple[str, Cell]], random) -> None:  # type: ignore[no-untyped-def]
    sealed = seal(zoo)
    shuffled = list(zoo)
    random.shuffle(shuffled)
    assert seal(shuffled) == sealed
    assert "embargo" not in {split(*member, sealed) for _, member in zoo}
    assert not sealed.test & sealed.validation


def test_the_committed_list_is_sound() -> None:
    sealed = load_sealed()
    assert SEALED.read_text(encoding="utf-8") == dump(sealed)
    assert len(sealed.test) >= 8 and len(sealed.validation) >= 4 and len(sealed.held_out) == 2
    for a in sealed.test:
        for b in sealed.validation:
            assert a[0] != b[0] or not near(a[1], b[1])
        assert split(*a, sealed) == "test"
    for b in sealed.validation:
        assert split(*b, sealed) == "validation"
    assert sealed.held_out <= {signature for signature, _ in sealed.test}


def test_another_list_is_another_version(tmp_path: Path) -> None:
    same, other = tmp_path / "same.json", tmp_path / "other.json"
    same.write_bytes(SEALED.read_bytes())
    sealed = load_sealed()
    other.write_text(dump(Sealed(sealed.test, sealed.validation, frozenset())), encoding="utf-8")
    assert version(same) == version()
    assert version(other) != version()


def test_the_command_writes_the_list() -> None:
    lines = [["gemm", f"S{i}", [i + 1, 10 * i + 1]] for i in range(24)]
    command = [sys.executable, "-m", "littledragon.release.splits"]
    done = subprocess.run(
        command, input=json.dumps(lines), capture_output=True, text=True, check=True, timeout=60
    ).stdout
    expected = seal((family, (signature, tuple(shape))) for family, signature, shape in lines)
    assert done == dump(expected)
    assert (len(expected.test), len(expected.validation)) == (4, 2)


@pytest.mark.parametrize("text", ["", "[]", '{"test": 3}', '{"test": [["S", 3]], "validation": [], "held_out": []}'])
def test_a_broken_list_is_one_clear_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "sealed.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"sealed\.json: not a list of sealed cells .*: restore it from git") as error:
        load_sealed(path)
    assert "\n" not in str(error.value)
