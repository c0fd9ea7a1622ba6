"""The figures of `dragon bench tsel` as tables."""

import statistics
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from littledragon.compiler.corpus import BY_HAND

SIZES: Final[dict[str, tuple[float | None, float | None]]] = {
    "line derived": (0.40, 0.50),
    "line": (0.55, 0.65),
    "json derived": (None, None),
    "json": (0.85, None),
}
"""Targets of text length over printed Python: in characters, in tokens."""
SPEEDS: Final = {"cuda-tensorcore": 200, "cuda": 800, "llvm": 1000}
"""Targets of round trips a second, by rule set."""

NAMED: Final = 20
"""Workloads that are named, at most, where children died."""


def show(console: Console, figures: dict[str, Any]) -> None:
    """Print all figures of a run."""
    console.print(_round_trips(figures["cells"]))
    console.print(_kinds(figures["kinds"]))
    for title, head, counts in (
        ("Draws that gave no trace", "reason", figures["refused"]),
        ("Traces that TVM itself cannot save and load", "reason (and what we said)", figures["lossy"]),
        ("Failures", "reason", figures["failures"]),
    ):
        if counts:
            console.print(_counted(title, head, counts))
    console.print(_sizes(figures["sizes"]))
    console.print(_speeds(figures["speed"]))
    for name in ("lost", "broken"):
        for words in figures[name][:NAMED]:
            console.print(f"{name}: {words}", markup=False, soft_wrap=True)
        if figures[name][NAMED:]:
            console.print(f"{name}: {len(figures[name]) - NAMED} more")
    console.print(_verdict(figures), markup=False, soft_wrap=True)


def _verdict(figures: dict[str, Any]) -> str:
    total = {name: sum(cell[name] for cell in figures["cells"]) for name in ("traces", "trees", "modules", "failures")}
    lost = f"; {len(figures['lost'])} workloads lost" if figures["lost"] else ""
    broken = f"; {len(figures['broken'])} workloads broken" if figures["broken"] else ""
    short = f"; {figures['made']} made of the {figures['wanted']} wanted" if figures["made"] < figures["wanted"] else ""
    return (
        f"{total['traces']} traces: {total['trees']} came back as trees, {total['modules']} as modules, "
        f"{total['failures']} failed{lost}{broken}{short}"
    )


def _table(title: str, *columns: str, left: int = 2) -> Table:
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right")
    return table


def _round_trips(cells: list[dict[str, Any]]) -> Table:
    names = ("traces", "before", "after", "distinct", "trees", "modules", "failures", "lossy")
    table = _table("Round trips (before, after: post-processing)", "family", "rules", *names, "derived")
    for cell in cells:
        table.add_row(cell["family"], cell["rules"], *(str(cell[name]) for name in names), _share(cell["derived"]))
    table.add_section()
    table.add_row("all", "", *(str(sum(cell[name] for cell in cells)) for name in names), "")
    return table


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _kinds(kinds: dict[str, int]) -> Table:
    """Three pairs of columns, read downwards."""
    table = _table(f"Instructions by kind ({len(kinds)} kinds)", *("kind", "count") * 3, left=0)
    for place in (0, 2, 4):
        table.columns[place].justify = "left"
    pairs = [(name, f"{count:,}") for name, count in kinds.items()]
    rows = -(-len(pairs) // 3)
    for row in range(rows):
        cells = [pairs[i] if i < len(pairs) else ("", "") for i in (row, row + rows, row + 2 * rows)]
        table.add_row(*(word for pair in cells for word in pair))
    return table


def _counted(title: str, head: str, counts: dict[str, int]) -> Table:
    from rich.text import Text

    table = _table(title, head, "count", left=1)
    for reason, count in counts.items():
        table.add_row(Text(reason), str(count))
    return table


def _sizes(rows: list[dict[str, Any]]) -> Table:
    heads = [f"{text} {unit}" for text in SIZES for unit in ("chars", "tokens")]
    title = "Text over TVM's printed Python: medians of post-processed traces (* misses its target)"
    table = _table(title, "family", "rules", "traces", *heads)
    for row in rows:
        # Targets are for what search finds: a few steps by hand are mostly the text's frame.
        bound = SIZES if row["family"] != BY_HAND else dict.fromkeys(SIZES, (None, None))
        cells = [_ratio(row[text][i], bound[text][i]) for text in SIZES for i in (0, 1)]
        table.add_row(row["family"], row["rules"], str(row["traces"]), *cells)
    table.add_section()
    targets = [target for pair in SIZES.values() for target in pair]
    table.add_row("target, at most", "", "", *("" if target is None else f"{target:.2f}" for target in targets))
    return table


def _ratio(value: float | None, target: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" + ("*" if target is not None and value > target else "")


def _speeds(speeds: dict[str, Any]) -> Table:
    title = "Traces a second on one core: median (least to most of the turns)"
    heads = ("target", "line", "first turn", "json", "TVM's own JSON", "line / TVM's", "replay")
    table = _table(title, "rules", "traces", *heads, left=1)
    for name, found in speeds.items():
        if "error" in found:
            table.add_row(name, str(found["traces"]), f"not timed: {found['error']}")
            continue
        target = SPEEDS.get(name.rsplit(", ", 1)[-1])
        ratios = [ours / theirs for ours, theirs in zip(found["line"], found["tvm"], strict=True)]
        missed = "*" if target is not None and statistics.median(found["line"]) < target else ""
        table.add_row(
            name,
            str(found["traces"]),
            "–" if target is None else f"≥ {target}",
            _spread(found["line"], ".0f") + missed,
            f"{found['line'][0]:.0f}",
            _spread(found["json"], ".0f"),
            _spread(found["tvm"], ".0f"),
            _spread(ratios, ".2f"),
            _spread(found["replay"], ".0f"),
        )
    return table


def _spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"
