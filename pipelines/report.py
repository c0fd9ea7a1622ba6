"""What the workloads of a store are, as tables: families, operators, dtypes, refusals, splits, and near twins."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from littledragon.pipelines.store import Store
from littledragon.release import leakage

FAMILIES = """
    WITH kept AS (SELECT family, operator, dtype, signature, cell, rules FROM workloads WHERE state = 'ok'),
    operators AS (SELECT family, operator, count(*) AS n FROM kept GROUP BY ALL)
    SELECT family, count(*) AS workloads, count(DISTINCT cell) AS cells, count(DISTINCT signature) AS signatures,
        count(DISTINCT operator) AS operators,
        (SELECT max_by(o.operator, o.n) FROM operators o WHERE o.family = kept.family) AS largest,
        round(100.0 * (SELECT max(n) FROM operators o WHERE o.family = kept.family) / count(*), 1) AS share
    FROM kept GROUP BY family
    UNION ALL BY NAME
    SELECT 'all' AS family, count(*) AS workloads, count(DISTINCT cell) AS cells,
        count(DISTINCT signature) AS signatures, count(DISTINCT operator) AS operators, NULL AS largest, NULL AS share
    FROM kept
    ORDER BY family = 'all', family
"""
OPERATORS = """
    SELECT family, operator, dtype, count(*) AS n FROM workloads WHERE state = 'ok'
    GROUP BY ALL ORDER BY family, operator, dtype
"""
REFUSED = """
    SELECT family, reason, count(*) AS n FROM workloads WHERE state <> 'ok' GROUP BY ALL
"""
RULES = "SELECT family, rules, count(*) AS n FROM workloads WHERE state = 'ok' GROUP BY ALL ORDER BY ALL"
SPLITS = "SELECT family, split, count(*) AS n FROM workloads WHERE state = 'ok' GROUP BY ALL ORDER BY ALL"
CELLS = """
    SELECT family, signature, extents, count(*) AS n FROM workloads WHERE state = 'ok' GROUP BY ALL ORDER BY ALL
"""
HELD_APART = """
    SELECT workload_id, family, split, cell, module_hash AS module, module_hash, signature, extents
    FROM workloads WHERE state = 'ok' AND split != 'embargo' ORDER BY block_id, configuration, task
"""
"""What the leakage report compares; equal texts have equal structural hashes, and texts are long."""


def show(store: Store, console: Console) -> None:
    """Print all tables.

    Raises:
        UserError: a damaged file.
    """
    families = store.sql(FAMILIES).to_pylist()
    if not families[-1]["workloads"]:
        console.print("No workloads yet.")
        return
    console.print(_table("Workloads", families, share="largest %"))
    console.print(_crossed("Operators by the type of the first input", store.sql(OPERATORS).to_pylist(), "dtype"))
    console.print(_crossed("Rule sets that are predicted to schedule them", store.sql(RULES).to_pylist(), "rules"))
    refused = store.sql(REFUSED).to_pylist()
    if refused:
        console.print(_crossed("Refused, by reason", refused, "family", rows_of=("reason",)))
    console.print(_crossed("Splits", store.sql(SPLITS).to_pylist(), "split"))
    leaks = leakage.report(store.sql(HELD_APART).to_pylist())
    console.print(_table("Held-out workloads against the other splits", _overall(leakage.summary(leaks))))
    cells = [(row["family"], row["signature"], row["extents"], row["n"]) for row in store.sql(CELLS).to_pylist()]
    console.print(_table("Nearest other cell of the same signature: largest ratio of extents", leakage.twins(cells)))


def _overall(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in row if name != "family"} for row in rows if row["family"] == "all"]


def _table(title: str, rows: list[dict[str, Any]], **heads: str) -> Table:
    """Rows as they are; `heads` renames columns."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, value in rows[0].items():
        words = heads.get(name, name.removesuffix("_ratio").replace("_", " "))
        table.add_column(words, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    return table


def _crossed(title: str, rows: list[dict[str, Any]], across: str, *, rows_of: tuple[str, ...] | None = None) -> Table:
    """Counts `n` with the values of one column across, and a total of each line."""
    down = rows_of or tuple(name for name in rows[0] if name not in (across, "n"))
    columns = sorted({str(row[across]) for row in rows})
    lines: dict[tuple[str, ...], dict[str, int]] = {}
    for row in rows:
        counts = lines.setdefault(tuple(str(row[name]) for name in down), dict.fromkeys(columns, 0))
        counts[str(row[across])] += row["n"]
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in down:
        table.add_column(name)
    for name in (*columns, "all"):
        table.add_column(name, justify="right")
    for key, counts in sorted(lines.items()):
        table.add_row(*key, *(str(n or "") for n in counts.values()), str(sum(counts.values())))
    return table


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
