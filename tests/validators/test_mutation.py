"""The numerical gate put to the test: wrong kernels of every kind are caught, right ones of every kind pass.

`make test-mutation` runs the whole table and prints it; `docs/numerics.md` says what it shows, and what it does not.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from littledragon.compiler import children, wrong

PROBE = Path(__file__).parent.parent / "compiler" / "probe"
DEADLINE_S = 300
SEED = 1

FLOATS = ("float32", "float16", "bfloat16")
SHORT, LONG = (1, 7, 64), (1, 7, 64, 1000, 4096, 16384)
PROGRAMS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "linear": ((*FLOATS, "float8_e4m3fn", "float8_e5m2"), LONG),
    "quantised_linear": (("float8_e4m3fn", "float8_e5m2"), LONG),
    "gelu": (FLOATS, LONG),
    "whole_linear": (("int8", "uint8", "int32", "int64"), LONG),
    "requantised": (("int8", "uint8"), LONG),
    "packed_linear": (("uint8", "uint32"), (32, 64, 1024, 4096, 16384)),
    "softmax": (FLOATS, (7, 64, 1000, 4096, 16384)),
    "layer_norm": (FLOATS, (7, 64, 1000, 4096, 16384)),
    "convolution": (FLOATS, (1, 8, 64, 256)),  # TVM lowers no padding of 8-bit floats
    "largest": (FLOATS, LONG),
    "masked_sum": (FLOATS, LONG),
    "above": (FLOATS, (64,)),
    "gathered": (FLOATS, LONG),
}
"""What is computed: in which types, and over how many terms (of a convolution: channels of nine)."""
# A sum that is kept in 16 bits is beyond what any bound allows where it is longer: 9% off at 4,096 terms in float16.
NARROW = {"float16": (1, 7, 64, 1000), "bfloat16": (1, 7, 64)}
ALL = [
    *((name, dtype, k) for name, (dtypes, lengths) in PROGRAMS.items() for dtype in dtypes for k in lengths),
    *(("narrow_linear", dtype, k) for dtype, lengths in NARROW.items() for k in lengths),
]
# What takes seconds; `make test-mutation` has the rest.
SOME = [
    ("linear", "float32", 4096),
    ("linear", "float8_e4m3fn", 64),
    ("quantised_linear", "float8_e4m3fn", 64),
    ("linear", "bfloat16", 1000),
    ("whole_linear", "int8", 7),
    ("packed_linear", "uint32", 64),
    ("softmax", "float16", 1000),
    ("layer_norm", "bfloat16", 64),
    ("convolution", "float16", 8),
    ("masked_sum", "bfloat16", 64),
    ("narrow_linear", "float16", 64),
]

INDIFFERENT = {
    # A sum that starts at 1 is off by less than the step of what it is scaled to and rounded.
    ("requantised", "wrong_start"),
    ("requantised", "sign_of_bytes_confused"),
    ("requantised", "activation_dropped"),
    ("requantised", "clamp_dropped"),
    # What is too large becomes the largest number as it is made an 8-bit float.
    ("quantised_linear", "clamp_dropped"),
    # Four bits of a byte that is shifted to the right are the same with or without a sign.
    ("packed_linear", "sign_of_bytes_confused"),
    # One of a thousand terms is the largest in none of the 96 rows.
    ("largest", "middle_term_dropped"),
}
"""Mutants that may leave every output of every case as it was: nobody can catch them, and they are not counted."""

MISSED = {
    # Each step is stored in bfloat16, and these mistakes are smaller than that.
    *(("gelu", "bfloat16", k, "wrong_constant") for k in (1000, 4096, 16384)),
    ("gelu", "bfloat16", 16384, "wrong_start"),
    # A sum of 16,384 products in front of it may be further off.
    ("gelu", "float16", 16384, "wrong_constant"),
    # One of 16,384 squares.
    *(
        ("layer_norm", dtype, 16384, kind)
        for dtype in ("float32", "bfloat16")
        for kind in ("first_term_dropped", "middle_term_dropped", "last_term_dropped", "term_added_twice")
    ),
    ("layer_norm", "float16", 16384, "middle_term_dropped"),
    ("layer_norm", "float16", 16384, "term_added_twice"),
    # One of 16,384 exponentials, which are stored in bfloat16.
    ("softmax", "bfloat16", 16384, "middle_term_dropped"),
    ("softmax", "bfloat16", 16384, "term_added_twice"),
    # The largest but one is the next smaller number.
    ("largest", "bfloat16", 1000, "middle_term_dropped"),
    # Moves only what lies at a tie.
    ("requantised", "uint8", 64, "wrong_start"),
}
"""Wrong kernels that pass, all of them; the table counts them as not caught, see `docs/numerics.md`."""

Verdict = dict[str, Any]


@pytest.fixture(scope="module")
def child() -> Iterator[children.Child]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(PROBE))
    one = children.Child()
    yield one
    one.close()
    patch.undo()


def judged(child: children.Child, name: str, dtype: str, k: int) -> list[Verdict]:
    found: list[Verdict] = child.call(
        "littledragon.probe.gate:judge", deadline_s=DEADLINE_S, name=name, dtype=dtype, k=k, seed=SEED
    )
    return found


def mistakes(found: list[Verdict], name: str, dtype: str, k: int) -> list[tuple[str, list[float]]]:
    """Right kernels that fail, wrong ones that pass and are not known to, or do not and are, and those that changed
    nothing."""
    return [
        (verdict["name"], [float(f"{error:.3g}") for error in verdict["errors"]])
        for verdict in found
        if (verdict["group"] == "right" and not passed(verdict))
        or (verdict["group"] == "wrong" and passed(verdict) != excused(verdict, name, dtype, k))
    ]


def passed(verdict: Verdict) -> bool:
    return max(verdict["errors"]) <= 1


def excused(verdict: Verdict, name: str, dtype: str, k: int) -> bool:
    if verdict["idle"]:
        return (name, verdict["name"]) in INDIFFERENT
    return (name, dtype, k, verdict["name"]) in MISSED


@pytest.mark.parametrize(("name", "dtype", "k"), SOME)
def test_wrong_kernels_fail_and_right_ones_pass(child: children.Child, name: str, dtype: str, k: int) -> None:
    found = judged(child, name, dtype, k)
    assert not mistakes(found, name, dtype, k)
    assert sum(verdict["group"] == "wrong" for verdict in found) >= 15
    assert sum(verdict["group"] == "right" for verdict in found) >= 5


def test_there_are_kinds_enough() -> None:
    assert len(wrong.FAULTS) + len(wrong.SPOILT) >= 20
    assert all(mutation.__doc__ for mutation in (*wrong.FAULTS, *wrong.ROUNDINGS))


@pytest.mark.slow
def test_real_schedules_pass_and_wrong_ones_made_of_them_fail(child: children.Child) -> None:
    for name, dtype, k in (("linear", "float32", 64), ("linear", "float16", 1000), ("softmax", "float32", 64)):
        found = child.call(
            "littledragon.probe.gate:scheduled",
            deadline_s=DEADLINE_S, name=name, dtype=dtype, k=k, seed=SEED, count=4,
        )  # fmt: skip
        assert not mistakes(found, name, dtype, k)
        assert sum(verdict["group"] == "right" for verdict in found) >= 2
        assert sum(verdict["group"] == "wrong" for verdict in found) >= 30


@pytest.mark.slow
def test_the_whole_table(child: children.Child, capsys: pytest.CaptureFixture[str]) -> None:
    counts: dict[str, Counter[tuple[str, str, str]]] = {"right": Counter(), "wrong": Counter(), "rounding": Counter()}
    wrongly = []
    for name, dtype, k in ALL:
        found = judged(child, name, dtype, k)
        wrongly += [(name, dtype, k, *mistake) for mistake in mistakes(found, name, dtype, k)]
        for verdict in found:
            if verdict["idle"] and verdict["group"] != "right":
                continue
            as_told = passed(verdict) == (verdict["group"] == "right")
            count = counts[verdict["group"]]
            count[verdict["name"], dtype, "told"] += as_told
            count[verdict["name"], dtype, "all"] += 1
    with capsys.disabled():
        for group, said in (
            ("wrong", "wrong kernels: caught / made"),
            ("right", "right kernels: passed / made"),
            ("rounding", "differences that are roundings: caught / made"),
        ):
            print(f"\n{said}\n{table(counts[group])}")
        for mistake in wrongly:
            print("mistaken:", *mistake)
    assert not wrongly


def table(counts: Counter[tuple[str, str, str]]) -> str:
    """Markdown: a row for each kind, a column for each type."""
    dtypes = sorted({dtype for _, dtype, _ in counts}, key=lambda dtype: (not dtype.startswith(("f", "b")), dtype))
    kinds = list(dict.fromkeys(name for name, _, _ in counts))

    def cell(name: str, dtypes: list[str]) -> str:
        made = sum(counts[name, dtype, "all"] for dtype in dtypes)
        return f"{sum(counts[name, dtype, 'told'] for dtype in dtypes)}/{made}" if made else ""

    rows = [["kind", *dtypes, "all"], ["---"] * (len(dtypes) + 2)]
    rows += [[name.replace("_", " "), *(cell(name, [d]) for d in dtypes), cell(name, dtypes)] for name in kinds]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


@pytest.mark.parametrize("kind", wrong.SPOILT)
def test_a_spoilt_output_is_another_and_the_same_each_time(kind: str) -> None:
    output = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    before = np.full_like(output, np.nan)
    first, second = (wrong.spoil(kind, output, before, 5) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.tobytes() == second.tobytes() != output.tobytes()
    assert np.array_equal(output, np.arange(1, 10, dtype=np.float32).reshape(3, 3))
