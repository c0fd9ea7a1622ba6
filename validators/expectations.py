"""What must hold of every table before it is published, checked with great_expectations on pandas frames.

The table's own schema gives keys and required columns; `CLOSED` and `AT_LEAST` give closed sets and ranges;
`_derived` adds yes-or-no columns for rules that join columns or tables.
"""

import contextlib
import functools
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from littledragon.schemas.gates import GATES, OK, REASONS, STATES
from littledragon.schemas.tables import BY_NAME, Table

if TYPE_CHECKING:
    import pandas as pd

Frames = Mapping[str, "pd.DataFrame"]

MODES: Final = ("construct", "refine")
SPLITS: Final = ("train", "validation", "test", "embargo")
FAMILIES: Final = ("attention", "gemm", "moe", "norm_reduction", "quant_irregular", "vision")

CLOSED: Final[dict[str, tuple[str, ...]]] = {
    "state": STATES,
    "mode": MODES,
    "split": SPLITS,
    "family": FAMILIES,
    "status": (*GATES, OK),
    "role": ("default", "best", "parent"),
    "device": ("real", "simulated"),
    "teacher": ("facts", "openai"),
}
"""Columns of these names take these values, in every table; null where the column may be."""

AT_LEAST: Final[dict[str, tuple[float, bool]]] = {
    "latency_us": (0.0, True),
    "parent_us": (0.0, True),
    "default_us": (0.0, True),
    "anchor_us": (0.0, True),
    "empty_us": (0.0, True),
    "noise_band": (0.0, False),
    "margin": (0.0, True),
    "error": (0.0, False),
    "flops": (0.0, False),
    "bytes_min": (0.0, True),
    "instructions": (1.0, False),
    "cases": (0.0, False),
    "position": (0.0, False),
}
"""Columns of these names are at least so much; or more, where the second value is True."""

MAX_US: Final = 1e9
"""A latency above a quarter of an hour is a sentinel, not a measurement."""


@dataclass(frozen=True)
class Failure:
    """One rule that does not hold."""

    table: str
    rule: str
    rows: int
    """How many rows break it; 0 where the rule could not be evaluated."""
    examples: str

    def __str__(self) -> str:
        where = f" ({self.rows} rows: {self.examples})" if self.rows else f" ({self.examples})" if self.examples else ""
        return f"{self.table}: {self.rule}{where}"


def check(tables: Frames) -> list[Failure]:
    """Every rule that a frame breaks. The frames' columns are those of `schemas.tables`; other frames are refused.

    great_expectations reports a rule that it could not evaluate in `exception_info` and never raises: such a rule
    counts as broken.
    """
    return [failure for name in tables for failure in check_table(name, tables)]


def check_table(name: str, tables: Frames) -> list[Failure]:
    """Every rule that one of the frames breaks; the others are there to be joined with."""
    import great_expectations as gx

    table, frame = BY_NAME[name], tables[name]
    missing = [c.name for c in table.columns if c.name not in frame.columns]
    if missing:
        return [Failure(name, "has all columns", 0, f"missing {', '.join(missing)}")]
    try:
        derived = _derived(name, frame, tables)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        return [Failure(name, "columns hold the types of the schema", 0, f"not evaluated: {error}")]
    with _quiet():
        asset = _source().add_dataframe_asset(f"frame {next(_numbers)}")
        batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": frame.assign(**derived)})
        suite = gx.ExpectationSuite(name=name, expectations=list(_expectations(table, list(derived))))
        return list(_failures(name, batch.validate(suite).results))


@functools.cache
def _source() -> Any:
    """One context for the process: each makes a temporary directory."""
    import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    return context.data_sources.add_pandas("frames")


_numbers = itertools.count()


def _expectations(table: Table, derived: Sequence[str]) -> Iterator[Any]:
    import great_expectations.expectations as gxe

    if len(table.key) == 1:
        yield gxe.ExpectColumnValuesToBeUnique(column=table.key[0])
    else:
        yield gxe.ExpectCompoundColumnsToBeUnique(column_list=list(table.key), ignore_row_if="any_value_is_missing")
    for column in table.columns:
        name = column.name
        if name == "reason" and table.stage in REASONS and any(c.name == "state" for c in table.columns):
            yield gxe.ExpectColumnValuesToBeInSet(column=name, value_set=list(REASONS[table.stage]))
        elif name in CLOSED:
            yield gxe.ExpectColumnValuesToBeInSet(column=name, value_set=list(CLOSED[name]))
        elif name in AT_LEAST:
            least, strict = AT_LEAST[name]
            most = MAX_US if name.endswith("_us") else None
            yield gxe.ExpectColumnValuesToBeBetween(column=name, min_value=least, max_value=most, strict_min=strict)
    for name in derived:
        yield gxe.ExpectColumnValuesToBeInSet(column=name, value_set=[True])


def _derived(table: str, frame: "pd.DataFrame", tables: Frames) -> dict[str, "pd.Series[Any]"]:
    """Yes-or-no columns, named by the rule that they test."""
    import pandas as pd

    required = frame[[column.name for column in BY_NAME[table].columns if not column.null]].notna()
    lacking = [str(name) for name in required.columns[~required.all(axis=0)]]
    # One rule for all of them: each rule costs great_expectations a fiftieth of a second.
    columns: dict[str, pd.Series[Any]] = {f"never null: {', '.join(lacking) or 'as required'}": required.all(axis=1)}
    if "state" in frame:
        columns["a row is rejected exactly when it has a reason of the list"] = (frame["state"] == "ok") == frame[
            "reason"
        ].isna()
    if table == "selections":
        chosen = frame["state"] == "ok"
        columns["ratio - 1 > margin"] = ~chosen | (frame["ratio"] - 1 > frame["margin"])
        refine = frame["mode"] == "refine"
        columns["refining has a parent and a gain band"] = ~(chosen & refine) | (
            frame["parent_id"].notna() & frame["gain_band"].notna()
        )
    elif table == "anchors":
        columns["an accepted workload has L0 >= a"] = (frame["state"] != "ok") | (
            frame["default_us"] >= frame["anchor_us"]
        )
    elif table in ("candidates", "verdicts"):
        columns["what passed all gates has a latency"] = (frame["status"] != OK) | frame["latency_us"].notna()
        columns["what passed all gates is correct: error at most 1"] = (frame["status"] != OK) | (frame["error"] <= 1)
    elif table == "workloads":
        ok = frame.loc[frame["state"] == "ok"]
        splits = ok.groupby("cell")["split"].nunique()
        columns["a cell stands in one split only"] = ~frame["cell"].isin(splits[splits > 1].index)
        columns["an accepted workload has a module, a cell and a split"] = (frame["state"] != "ok") | frame[
            ["workload_id", "module", "script", "features", "inputs", "cell", "split"]
        ].notna().all(axis=1)
        accepted = ok["workload_id"].value_counts()
        columns["a workload is accepted once"] = ~frame["workload_id"].isin(accepted[accepted > 1].index) | (
            frame["state"] != "ok"
        )
    elif table == "examples":
        columns |= _derived_examples(frame, tables)
    return columns


def _derived_examples(frame: "pd.DataFrame", tables: Frames) -> dict[str, "pd.Series[Any]"]:
    import pandas as pd

    refine = frame["mode"] == "refine"
    columns: dict[str, pd.Series[Any]] = {
        "the spans tile the completion": _rows(frame, lambda r: tiles(r["spans"], len(r["completion"]))),
        "the messages are a dialogue of the mode": _rows(
            frame,
            lambda r: (
                [m["role"] for m in r["messages"]]
                == ["system", "user", *(["assistant", "user"] if r["mode"] == "refine" else [])]
            ),
        ),
        "refining has a parent, its latency and a gain band": refine
        == frame[["parent_id", "parent_us", "gain_band"]].notna().all(axis=1),
        "a refined schedule is faster than its parent": ~refine | (frame["parent_us"] > frame["latency_us"]),
        "an accepted row is not under embargo": (frame["state"] == "ok") == (frame["split"] != "embargo"),
        "L0 >= a": frame["default_us"] >= frame["anchor_us"],
    }
    for name, key in (
        ("workloads", "workload_id"),
        ("labels", "label_id"),
        ("checks", "label_id"),
        ("selections", "selection_id"),
    ):
        if name in tables:
            there = tables[name]
            columns[f"its row of {name} is there and ok"] = frame[key].isin(there[there["state"] == "ok"][key])
    if "workloads" in tables:
        of_workload = tables["workloads"].query("state == 'ok'").drop_duplicates("workload_id").set_index("workload_id")
        columns["its split is the workload's"] = frame["split"] == frame["workload_id"].map(of_workload["split"])
    return columns


def tiles(spans: Sequence[Mapping[str, Any]], length: int) -> bool:
    """Whether the spans follow one another from 0 to `length` without a gap."""
    end = 0
    for span in spans:
        if span["start"] != end or span["end"] <= end or span["kind"] not in ("explanation", "decision", "structure"):
            return False
        end = span["end"]
    return bool(end == length)


def _rows(frame: "pd.DataFrame", rule: Any) -> "pd.Series[Any]":
    import pandas as pd

    return pd.Series([bool(rule(row)) for row in frame.to_dict("records")], index=frame.index, dtype=bool)


def _failures(table: str, results: Sequence[Any]) -> Iterator[Failure]:
    for result in results:
        if result.success:
            continue
        config = result.expectation_config
        kind = config.type.removeprefix("expect_").replace("_", " ")
        column = config.kwargs.get("column") or ", ".join(config.kwargs.get("column_list", []))
        rule = column if config.kwargs.get("value_set") == [True] else f"{kind}: {column}"
        error = _exception(result.exception_info)
        if error:
            yield Failure(table, rule, 0, f"not evaluated: {error}")
            continue
        shown = ", ".join(str(v)[:60] for v in result.result.get("partial_unexpected_list", [])[:3])
        yield Failure(table, rule, int(result.result.get("unexpected_count", 0)), shown)


def _exception(info: Any) -> str | None:
    """The message of `exception_info`, which is one record or one record for each metric."""
    if not isinstance(info, Mapping):
        return None
    if info.get("raised_exception") is True:
        return " ".join(str(info.get("exception_message")).split())[:200]
    return next((text for nested in info.values() if (text := _exception(nested))), None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """great_expectations and pandas warn of their own future."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
