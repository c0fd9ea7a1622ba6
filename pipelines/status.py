"""What a work directory holds, from disk alone: how far each stage is, why work was refused, and the funnel."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from littledragon.pipelines import lease
from littledragon.pipelines.store import STAGES, Store
from littledragon.schemas.gates import GATES, STATES


def show(store: Store, console: Console) -> None:
    """Print stages, reasons and funnel.

    Raises:
        UserError: a damaged file.
    """
    console.print(_stages(store))
    reasons = _reasons(store)
    if reasons.row_count:
        console.print(reasons)
    funnel(store, console)


def funnel(store: Store, console: Console) -> None:
    """Print, for each family, the candidates that passed each gate, and what was published of it."""
    counts: dict[str, dict[str, int]] = {}
    for row in store.sql("select * from funnel").to_pylist():
        counts.setdefault(row["family"], {})[row["gate"]] = row["candidates"]
    if not counts:
        return
    workloads = _by_family(store, "select family, count(*) as n from workloads where state = 'ok' group by family")
    published = {
        mode: _by_family(
            store,
            "select family, count(*) as n from examples where state = 'ok' and mode = $mode group by family",
            mode=mode,
        )
        for mode in ("construct", "refine")
    }
    families = list(counts)
    title, note = (
        "Funnel: candidates that passed each gate",
        "stable: of the candidates that were chosen for verification",
    )
    table = Table(
        title=title, caption=note, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("")
    for name in (*families, "all"):
        table.add_column(name.replace("_", "_\n"), justify="right")  # two lines, so that eighty columns do
    lines: list[tuple[str, dict[str, int]]] = [("workloads", workloads)]
    lines += [(gate, {family: counts[family][gate] for family in families}) for gate in GATES]
    lines += [(f"{mode} examples", found) for mode, found in published.items()]
    for place, (name, values) in enumerate(lines):
        numbers = [values.get(family, 0) for family in families]
        ruled = place in (0, len(GATES))  # around the gates
        table.add_row(name, *map(str, numbers), str(sum(numbers)), end_section=ruled)
    console.print(table)


def _by_family(store: Store, query: str, **parameters: Any) -> dict[str, int]:
    return {row["family"]: row["n"] for row in store.sql(query, **parameters).to_pylist()}


def _stages(store: Store) -> Table:
    table = Table(title=f"Stages of {escape(str(store.path))}", title_justify="left", box=SIMPLE_HEAD)
    for name in ("stage", "planned", *STATES, "waiting", ""):
        table.add_column(name, justify="left" if name in ("stage", "") else "right")
    for stage in STAGES:
        manifest = store.manifest(stage)
        if manifest is None:
            table.add_row(stage, "-", *("-" for _ in STATES), "-", "")
            continue
        ended = store.complete(stage)
        states = [ended[id] for id in manifest if id in ended]
        counts = [str(states.count(state)) for state in STATES]
        table.add_row(
            stage, str(len(manifest)), *counts, str(len(manifest) - len(states)), lease.holder(store.path, stage) or ""
        )
    return table


def _reasons(store: Store) -> Table:
    table = Table(title="Units that were rejected or failed", title_justify="left", box=SIMPLE_HEAD)
    for name in ("stage", "state", "reason", "units", "for example"):
        table.add_column(name, justify="right" if name == "units" else "left", max_width=60, overflow="ellipsis")
    found = store.sql(
        "select stage, state, coalesce(reason, '') as reason, count(*) as n, coalesce(min(detail), '') as detail "
        "from outcomes where state <> 'ok' group by all order by stage, state, reason"
    )
    for row in found.to_pylist():
        example = " ".join(row["detail"].split())
        table.add_row(row["stage"], row["state"], row["reason"], str(row["n"]), _plain(example))
    return table


def _plain(text: str) -> str:
    return escape("".join(letter if letter.isprintable() else " " for letter in text)[:200])
